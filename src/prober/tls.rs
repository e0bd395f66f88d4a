//! Verification of the backends' certificates: by the CAs of the check, or not at all.
//!
//! Sessions are not resumed: a resumed session skips the certificate, so a replaced or expired one
//! would not be noticed.

use std::sync::Arc;

use tokio_rustls::rustls;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WantsClientCert};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ConfigBuilder, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    WantsVerifier,
};

use crate::domain::vm_backends::health::{Fault, Request};

const RIGHT_BUNDLE: &str = "give the certificates of the CAs that sign the backends', in PEM";

/// Client configuration that trusts exactly the certificates in this PEM. Other content, such as
/// keys, is ignored.
pub(super) fn trusting(pem: &str) -> Result<ClientConfig, Fault> {
    let mut roots = RootCertStore::empty();
    for (at, certificate) in CertificateDer::pem_slice_iter(pem.as_bytes()).enumerate() {
        let unfit = |why: String| {
            Fault::new("caBundle", format!("certificate {}: {why}", at + 1), RIGHT_BUNDLE)
        };
        let certificate = certificate.map_err(|e| unfit(e.to_string()))?;
        roots.add(certificate).map_err(|e| unfit(e.to_string()))?;
    }
    if roots.is_empty() {
        return Err(Fault::new("caBundle", "no certificate in PEM", RIGHT_BUNDLE));
    }
    Ok(finished(builder()?.with_root_certificates(roots)))
}

/// Client configuration that accepts any certificate, as kubelet's HTTPS probes do: most backends
/// have self-signed certificates, and the probe checks only that they answer.
pub(super) fn unchecked() -> Result<ClientConfig, Fault> {
    let verifier = Arc::new(Unchecked(Arc::new(aws_lc_rs::default_provider())));
    Ok(finished(builder()?.dangerous().with_custom_certificate_verifier(verifier)))
}

/// Server name to send and to verify, if the check has one.
pub(super) fn name(request: &Request) -> Result<Option<ServerName<'static>>, Fault> {
    let name = request.server_name.clone();
    name.map(ServerName::try_from).transpose().map_err(|e| {
        Fault::new("serverName", e.to_string(), "use a DNS name such as www.example.com")
    })
}

fn builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, Fault> {
    // Names the provider, so that the default that another crate sets does not matter.
    ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| Fault::new("protocol", format!("no TLS here: {e}"), "use tcp or http"))
}

fn finished(builder: ConfigBuilder<ClientConfig, WantsClientCert>) -> ClientConfig {
    let mut config = builder.with_no_client_auth();
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config
}

/// Verifier that accepts any certificate and any proof of its key. The probe sends no secret, and
/// uses only the status of the answer.
#[derive(Debug)]
struct Unchecked(Arc<CryptoProvider>);

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    // Signatures are not verified either: certificates of X.509 version 1, which old appliances
    // have, cannot be parsed for that.
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
