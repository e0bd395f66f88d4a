//! Certificate authorities that a server's certificate may come from.
//!
//! Invariants: either exactly the given authorities or exactly the system's are trusted. A
//! certificate is always verified: sessions are not resumed, because that would skip the check.

use std::sync::Arc;

use rustls_platform_verifier::BuilderVerifierExt as _;
use tokio_rustls::rustls;

use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

/// Certificate authorities that a server's certificate may come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust<'a> {
    /// The given authorities, in PEM.
    Pem(&'a str),
    /// The authorities that the system trusts.
    System,
}

/// TLS settings for the given trust. The error says why the authorities cannot be used.
pub(super) fn settings(trust: Trust<'_>) -> Result<ClientConfig, String> {
    // The provider is named here, so that another crate's default does not matter.
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?;
    let builder = match trust {
        Trust::Pem(pem) => builder.with_root_certificates(roots(pem)?),
        Trust::System => builder
            .with_platform_verifier()
            .map_err(|e| format!("the system has no authorities ({e}): set the server's own"))?,
    };
    let mut config = builder.with_no_client_auth();
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn roots(pem: &str) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for (at, certificate) in CertificateDer::pem_slice_iter(pem.as_bytes()).enumerate() {
        let unfit = |why: String| format!("certificate {}: {why}", at + 1);
        // The library's error would quote the line that it cannot read; that line may be from a
        // Secret.
        let certificate = certificate.map_err(|_| unfit("it is not PEM".to_owned()))?;
        roots.add(certificate).map_err(|e| unfit(e.to_string()))?;
    }
    if roots.is_empty() { Err("no certificate in PEM".to_owned()) } else { Ok(roots) }
}
