//! Certificate authorities that a server's certificate may come from.
//!
//! Invariants: either exactly the given authorities or exactly the system's are trusted. Where a
//! token is sent, a certificate is always verified: sessions are not resumed, because that would skip
//! the check.

use std::sync::Arc;

use rustls_platform_verifier::BuilderVerifierExt as _;
use tokio_rustls::rustls;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ConfigBuilder, DigitallySignedStruct, RootCertStore, SignatureScheme,
    WantsVerifier,
};

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
    let builder = builder()?;
    let builder = match trust {
        Trust::Pem(pem) => builder.with_root_certificates(roots(pem)?),
        Trust::System => builder
            .with_platform_verifier()
            .map_err(|e| format!("the system has no authorities ({e}): set the server's own"))?,
    };
    Ok(finished(builder.with_no_client_auth()))
}

/// TLS settings that accept any certificate, for an answer that is checked by its content and a
/// request without a token.
pub(super) fn unchecked() -> Result<ClientConfig, String> {
    let builder = builder()?.dangerous().with_custom_certificate_verifier(Arc::new(Unchecked));
    Ok(finished(builder.with_no_client_auth()))
}

fn builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, String> {
    // The provider is named, so that no other crate's choice of a default matters.
    ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())
}

fn finished(mut config: ClientConfig) -> ClientConfig {
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config
}

/// Verifier that accepts any certificate.
#[derive(Debug)]
struct Unchecked;

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
    }
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
