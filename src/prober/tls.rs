//! Verification of the backends' certificates: by the CAs of the check, or not at all.

use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::domain::vm_backends::health::{HealthSpecFault, ProbeRequest};
use crate::tls;

/// Client configuration that trusts exactly the CA certificates in the text `pem`.
pub(super) fn trusting(pem: &str) -> Result<ClientConfig, HealthSpecFault> {
    tls::trusting(pem).map_err(|why| {
        HealthSpecFault::new(
            "caBundle",
            why,
            "give the certificates of the CAs that sign the backends' certificates, in PEM",
        )
    })
}

/// Client configuration that accepts any certificate, as kubelet's HTTPS probes do. Most backends
/// have self-signed certificates. The probe sends no secret, and uses only the status of the
/// answer.
pub(super) fn unverified() -> Result<ClientConfig, HealthSpecFault> {
    tls::unverified().map_err(|why| HealthSpecFault::new("protocol", why, "use tcp or http"))
}

/// Server name that is sent as SNI and that the certificate must have. `None`: the check has no
/// server name.
pub(super) fn name(request: &ProbeRequest) -> Result<Option<ServerName<'static>>, HealthSpecFault> {
    let name = request.server_name.clone();
    name.map(ServerName::try_from).transpose().map_err(|e| {
        HealthSpecFault::new("serverName", e.to_string(), "use a DNS name such as www.example.com")
    })
}
