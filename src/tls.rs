//! TLS settings of the client in `rancher` and of the prober. The client in `k8s` has the TLS
//! settings of kube.
//!
//! Invariant: sessions are not resumed. A resumed session skips the check of the certificate, so a
//! replaced or expired certificate would not be noticed.

use std::sync::Arc;

use rustls_platform_verifier::BuilderVerifierExt as _;
use tokio_rustls::rustls;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WantsClientCert};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ConfigBuilder, DigitallySignedStruct, RootCertStore, SignatureScheme,
    WantsVerifier,
};

/// Settings that trust exactly the certificates in `pem`. Other content of `pem`, such as keys, is
/// ignored. `Err`: the reason why `pem` cannot be used. The reason gives the number of the faulty
/// certificate, but quotes nothing of `pem`, because `pem` may be from a Secret.
pub(crate) fn trusting(pem: &str) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    for (at, certificate) in CertificateDer::pem_slice_iter(pem.as_bytes()).enumerate() {
        let unfit = |why: String| format!("certificate {}: {why}", at + 1);
        let certificate = certificate.map_err(|_| unfit("it is not PEM".to_owned()))?;
        roots.add(certificate).map_err(|e| unfit(e.to_string()))?;
    }
    if roots.is_empty() {
        return Err("no certificate in PEM".to_owned());
    }
    Ok(finished(builder()?.with_root_certificates(roots)))
}

/// Settings that trust the certificate authorities of the system. `Err`: the reason why these
/// authorities cannot be used.
pub(crate) fn trusting_system() -> Result<ClientConfig, String> {
    let verified = builder()?.with_platform_verifier();
    Ok(finished(verified.map_err(|e| format!("cannot use the CAs of the system: {e}"))?))
}

/// Settings that accept any server certificate, and any proof that the server has the certificate's
/// key. These settings are only for requests that contain no secret. `Err`: the reason why TLS
/// cannot be set up.
pub(crate) fn unverified() -> Result<ClientConfig, String> {
    let verifier = Arc::new(Unverified(Arc::new(aws_lc_rs::default_provider())));
    Ok(finished(builder()?.dangerous().with_custom_certificate_verifier(verifier)))
}

fn builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, String> {
    // The crypto provider is named here, so that a default provider that another crate installs has
    // no effect.
    ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| format!("cannot set up TLS: {e}"))
}

fn finished(builder: ConfigBuilder<ClientConfig, WantsClientCert>) -> ClientConfig {
    let mut config = builder.with_no_client_auth();
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config
}

/// Verifier that accepts any server certificate, and any proof that the server has the
/// certificate's key.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
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

    // No signature is verified, just as no certificate is. To verify a signature, rustls must parse
    // the certificate, and it cannot parse X.509 version 1. Old appliances have such certificates.
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
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
