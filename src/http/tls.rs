//! TLS settings of admission, and the current certificate.
//!
//! Invariants: TLS 1.2 and later, HTTP/1.1 only. A certificate is replaced between two handshakes,
//! so a replacement drops no connection. Sessions are not resumed, so the caller verifies the
//! certificate on each connection.

use std::path::Path;
use std::sync::{Arc, Mutex};

use anyhow::{Context, ensure};
use tokio_rustls::rustls;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::server::{
    ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};

use crate::locks::lock;

/// Certificate that TLS handshakes use now. `None`: handshakes fail.
#[derive(Debug, Default)]
pub struct InUse(Mutex<Option<Arc<CertifiedKey>>>);

impl InUse {
    /// Uses the certificate for handshakes from now on.
    pub fn set(&self, certified: Arc<CertifiedKey>) {
        *lock(&self.0) = Some(certified);
    }
}

impl ResolvesServerCert for InUse {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        lock(&self.0).clone()
    }
}

/// TLS settings that serve the current certificate. `client_ca`: PEM file with the authorities of
/// callers' certificates. With this file, the server verifies a caller's certificate. A caller
/// without a certificate is still accepted (`Caller::is_known` is false), because the API server
/// sends no certificate when it requests a conversion.
pub fn settings(in_use: Arc<InUse>, client_ca: Option<&Path>) -> anyhow::Result<ServerConfig> {
    // The crypto provider is named here, because another crate may set another default for the
    // process.
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let roots = Arc::new(roots(path)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
            builder.with_client_cert_verifier(verifier.allow_unauthenticated().build()?)
        }
    };
    let mut config = builder.with_cert_resolver(in_use);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn roots(path: &Path) -> anyhow::Result<RootCertStore> {
    let what = || format!("--admission-client-ca {}", path.display());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).with_context(what)? {
        roots.add(certificate.with_context(what)?).with_context(what)?;
    }
    ensure!(!roots.is_empty(), "{}: the file must have a certificate in PEM", what());
    Ok(roots)
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeSet;
    use std::time::{SystemTime, UNIX_EPOCH};

    use rustls::ClientConfig;
    use rustls::pki_types::PrivateKeyDer;
    use tokio_rustls::TlsConnector;

    use super::*;
    use crate::http::certificates::CertificateMaterial;

    /// TLS settings of a server at 127.0.0.1, and TLS settings of a caller that trusts the server's
    /// certificate.
    pub fn pair() -> (Arc<ServerConfig>, TlsConnector) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let names = BTreeSet::from(["127.0.0.1".to_owned()]);
        let material = CertificateMaterial::start(now, &names, "").unwrap();
        let provider = || Arc::new(aws_lc_rs::default_provider());
        let data = material.data();
        let chain = vec![CertificateDer::from_pem_slice(&data["tls.crt"]).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(&data["tls.key"]).unwrap();
        let server = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(material.bundle().as_bytes()).unwrap()).unwrap();
        let client = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        (Arc::new(server), TlsConnector::from(Arc::new(client)))
    }
}
