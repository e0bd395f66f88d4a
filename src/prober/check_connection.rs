//! Connection settings of a check, made once for each check and shared by its probes.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::{HeaderValue, Uri};
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::tls;
use crate::domain::vm_backends::health::{
    BackendProbe, CheckSettings, HealthSpecFault, ProbeRequest,
};

/// Connection settings of a check.
pub(super) struct DialSettings {
    pub(super) port: u16,
    /// GET to send. `None`: an accepted connection is enough.
    pub(super) get: Option<ProbeGet>,
}

/// GET that a probe sends.
pub(super) struct ProbeGet {
    pub(super) path: Uri,
    pub(super) request: ProbeRequest,
    /// Host header. `None`: the header is made from each backend's address.
    host: Option<HeaderValue>,
    port_suffix: String,
    pub(super) tls: Option<ProbeTls>,
}

/// TLS settings of a probe.
pub(super) struct ProbeTls {
    pub(super) config: Arc<ClientConfig>,
    /// Name that the certificate must have. `None`: the backend's address is used.
    name: Option<ServerName<'static>>,
}

impl DialSettings {
    /// Converts a check. Fails when its path, CA bundle or server name is invalid.
    pub(super) fn new(check: &CheckSettings) -> Result<Self, HealthSpecFault> {
        let get = match &check.probe {
            BackendProbe::Tcp => None,
            BackendProbe::Http(request) => Some(ProbeGet::new(check.port, 80, request, None)?),
            BackendProbe::Https(request, bundle) => {
                let config = match bundle {
                    Some(pem) => tls::trusting(pem)?,
                    None => tls::unverified()?,
                };
                let tls = ProbeTls { config: Arc::new(config), name: tls::name(request)? };
                Some(ProbeGet::new(check.port, 443, request, Some(tls))?)
            }
        };
        Ok(Self { port: check.port, get })
    }

    pub(super) fn socket(&self, address: IpAddr) -> SocketAddr {
        SocketAddr::new(address, self.port)
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
        // A Host header omits the scheme's default port.
        let port_suffix = if port == usual { String::new() } else { format!(":{port}") };
        let host = request.server_name.as_ref().and_then(|name| header(name, &port_suffix));
        Ok(Self { path, request: request.clone(), host, port_suffix, tls })
    }

    /// Host header for a backend at the address.
    pub(super) fn host(&self, address: IpAddr) -> Option<HeaderValue> {
        self.host.clone().or_else(|| match address {
            IpAddr::V4(ip) => header(&ip.to_string(), &self.port_suffix),
            IpAddr::V6(ip) => header(&format!("[{ip}]"), &self.port_suffix),
        })
    }
}

impl ProbeTls {
    /// Name that the certificate must have. A DNS name is also sent as SNI.
    pub(super) fn name(&self, address: IpAddr) -> ServerName<'static> {
        self.name.clone().unwrap_or_else(|| ServerName::IpAddress(address.into()))
    }
}

fn header(name: &str, port_suffix: &str) -> Option<HeaderValue> {
    HeaderValue::try_from(format!("{name}{port_suffix}")).ok()
}
