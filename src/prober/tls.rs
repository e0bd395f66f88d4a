//! How the certificates of backends are judged: against the CAs of the check, or not at all.
//!
//! Sessions are not resumed: a resumed session skips the certificate, so one that was replaced
//! or has expired would go unnoticed.

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

/// A configuration that trusts exactly the certificates in this PEM. Other things in it, such as
/// keys, are passed over.
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

/// A configuration that takes any certificate, as kubelet's HTTPS probes do: backends mostly
/// have certificates of their own making, and the question is whether they answer.
pub(super) fn unchecked() -> Result<ClientConfig, Fault> {
    let verifier = Arc::new(Unchecked(Arc::new(aws_lc_rs::default_provider())));
    Ok(finished(builder()?.dangerous().with_custom_certificate_verifier(verifier)))
}

/// The name to ask for and to find in the certificate, if the check gives one.
pub(super) fn name(request: &Request) -> Result<Option<ServerName<'static>>, Fault> {
    let name = request.server_name.clone();
    name.map(ServerName::try_from).transpose().map_err(|e| {
        Fault::new("serverName", e.to_string(), "use a DNS name such as www.example.com")
    })
}

fn builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, Fault> {
    // The provider is named, so that no other crate's choice of a default matters.
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

/// Takes any certificate, and any proof of its key, from anybody. Nothing secret is sent to who
/// is not known, and nothing but a status is believed.
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

    // The signatures stay unchecked, too: certificates of the first X.509 version, which old
    // appliances have, could not be read for it.
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
