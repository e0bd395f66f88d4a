//! Connection settings of a health check, made once for each check and shared by its probes.

use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderValue, Uri};
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::domain::vm_backends::health::{
    BackendProbe, CheckSettings, HealthSpecFault, ProbeRequest,
};
use crate::tls;

/// Connection settings of a health check.
pub(super) struct DialSettings {
    pub(super) port: u16,
    /// GET to send. `None`: the target passes when it accepts the connection.
    pub(super) get: Option<ProbeGet>,
}

/// GET that a probe sends.
pub(super) struct ProbeGet {
    pub(super) path: Uri,
    pub(super) request: ProbeRequest,
    /// Host header. `None`: each backend's address is the host.
    host: Option<HeaderValue>,
    port_suffix: String,
    pub(super) tls: Option<ProbeTls>,
}

/// TLS settings of a probe.
pub(super) struct ProbeTls {
    pub(super) config: Arc<ClientConfig>,
    /// Server name for TLS. `None`: the backend's address. If certificates are verified, the
    /// backend's certificate must have this name or address.
    name: Option<ServerName<'static>>,
}

impl DialSettings {
    /// Makes the connection settings of a health check. Fails if the check's path, CA bundle or
    /// server name is invalid, or if TLS cannot be set up.
    pub(super) fn new(check: &CheckSettings) -> Result<Self, HealthSpecFault> {
        let get = match &check.probe {
            BackendProbe::Tcp => None,
            BackendProbe::Http(request) => Some(ProbeGet::new(check.port, 80, request, None)?),
            BackendProbe::Https(request, bundle) => {
                let tls = ProbeTls::new(request, bundle.as_deref())?;
                Some(ProbeGet::new(check.port, 443, request, Some(tls))?)
            }
        };
        Ok(Self { port: check.port, get })
    }
}

impl ProbeGet {
    fn new(
        port: u16,
        usual: u16,
        request: &ProbeRequest,
        tls: Option<ProbeTls>,
    ) -> Result<Self, HealthSpecFault> {
        let path = request.path.parse().map_err(|e| {
            HealthSpecFault::new("path", format!("{e}"), "use a path such as /healthz?ready=1")
        })?;
        // A Host header contains no port if the port is the scheme's default.
        let port_suffix = if port == usual { String::new() } else { format!(":{port}") };
        let host = request.server_name.as_ref().and_then(|name| header(name, &port_suffix));
        Ok(Self { path, request: request.clone(), host, port_suffix, tls })
    }

    /// Host header of a GET to the backend at `address`: the server name, or else the address.
    /// `None`: neither is a valid header value, so the GET has no Host header.
    pub(super) fn host(&self, address: IpAddr) -> Option<HeaderValue> {
        self.host.clone().or_else(|| match address {
            IpAddr::V4(ip) => header(&ip.to_string(), &self.port_suffix),
            IpAddr::V6(ip) => header(&format!("[{ip}]"), &self.port_suffix),
        })
    }
}

impl ProbeTls {
    /// Settings that trust exactly the CA certificates in the PEM text `bundle`. `bundle: None`:
    /// any certificate is accepted, as in kubelet's HTTPS probes, because most backends have
    /// self-signed certificates. This is safe: the probe sends no secret, and uses only the status
    /// of the answer.
    fn new(request: &ProbeRequest, bundle: Option<&str>) -> Result<Self, HealthSpecFault> {
        let config = match bundle {
            Some(pem) => tls::trusting(pem).map_err(|why| {
                HealthSpecFault::new(
                    "caBundle",
                    why,
                    "give the certificates of the CAs that sign the backends' certificates, in PEM",
                )
            }),
            None => tls::unverified()
                .map_err(|why| HealthSpecFault::new("protocol", why, "use tcp or http")),
        };
        let name = request.server_name.clone().map(ServerName::try_from).transpose();
        let name = name.map_err(|e| {
            let right = "use a DNS name such as www.example.com";
            HealthSpecFault::new("serverName", e.to_string(), right)
        });
        Ok(Self { config: Arc::new(config?), name: name? })
    }

    /// Server name for TLS to the backend at `address`. If certificates are verified, the backend's
    /// certificate must have this name. A DNS name is also sent as SNI.
    pub(super) fn name(&self, address: IpAddr) -> ServerName<'static> {
        self.name.clone().unwrap_or_else(|| ServerName::IpAddress(address.into()))
    }
}

fn header(name: &str, port_suffix: &str) -> Option<HeaderValue> {
    HeaderValue::try_from(format!("{name}{port_suffix}")).ok()
}
