//! What probing by a check takes, made once for each check and shared by its probes.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::{HeaderValue, Uri};
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::tls;
use crate::domain::vm_backends::health::{Check, Fault, Probe, Request};

/// A check in the form that sockets need.
pub(super) struct Dial {
    pub(super) port: u16,
    /// `None`: accepting the connection is the answer.
    pub(super) get: Option<Get>,
}

/// A GET to be sent.
pub(super) struct Get {
    pub(super) path: Uri,
    pub(super) request: Request,
    /// Host header, if it does not depend on the address.
    host: Option<HeaderValue>,
    port_suffix: String,
    pub(super) tls: Option<Tls>,
}

/// How TLS is spoken.
pub(super) struct Tls {
    pub(super) config: Arc<ClientConfig>,
    /// `None`: the address.
    name: Option<ServerName<'static>>,
}

impl Dial {
    /// Fails when the path, the CA bundle or the server name cannot be used.
    pub(super) fn new(check: &Check) -> Result<Self, Fault> {
        let get = match &check.probe {
            Probe::Tcp => None,
            Probe::Http(request) => Some(Get::new(check.port, 80, request, None)?),
            Probe::Https(request, bundle) => {
                let config = match bundle {
                    Some(pem) => tls::trusting(pem)?,
                    None => tls::unchecked()?,
                };
                let tls = Tls { config: Arc::new(config), name: tls::name(request)? };
                Some(Get::new(check.port, 443, request, Some(tls))?)
            }
        };
        Ok(Self { port: check.port, get })
    }

    pub(super) fn socket(&self, address: IpAddr) -> SocketAddr {
        SocketAddr::new(address, self.port)
    }
}

impl Get {
    fn new(port: u16, usual: u16, request: &Request, tls: Option<Tls>) -> Result<Self, Fault> {
        let path = request.path.parse().map_err(|e| {
            Fault::new("path", format!("{e}"), "use a path such as /healthz?ready=1")
        })?;
        // The scheme's own port is not named in a Host header.
        let port_suffix = if port == usual { String::new() } else { format!(":{port}") };
        let host = request.server_name.as_ref().and_then(|name| header(name, &port_suffix));
        Ok(Self { path, request: request.clone(), host, port_suffix, tls })
    }

    /// The Host header for a backend at the address.
    pub(super) fn host(&self, address: IpAddr) -> Option<HeaderValue> {
        self.host.clone().or_else(|| match address {
            IpAddr::V4(ip) => header(&ip.to_string(), &self.port_suffix),
            IpAddr::V6(ip) => header(&format!("[{ip}]"), &self.port_suffix),
        })
    }
}

impl Tls {
    /// The name that the certificate must bear, and that is asked for unless it is an address.
    pub(super) fn name(&self, address: IpAddr) -> ServerName<'static> {
        self.name.clone().unwrap_or_else(|| ServerName::IpAddress(address.into()))
    }
}

fn header(name: &str, port_suffix: &str) -> Option<HeaderValue> {
    HeaderValue::try_from(format!("{name}{port_suffix}")).ok()
}
