//! Owns the certificates: a throw-away authority and the certificates that it signs.

use std::net::Ipv4Addr;

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, PKCS_RSA_SHA256, RsaKeySize,
};

/// A certificate authority that lives as long as the test.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

/// A server's certificate with its key, both in PEM.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The certificate.
    pub cert_pem: String,
    /// The private key, PKCS#8.
    pub key_pem: String,
}

impl Authority {
    /// Makes a new authority.
    pub fn new(name: &str) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        Ok(Self { issuer })
    }

    /// Certificate of the authority, which clients trust.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Signs a certificate for loopback and the further names or addresses; it also serves as a
    /// client certificate.
    pub fn issue(&self, names: &[&str]) -> Result<Issued> {
        let mut all = vec![Ipv4Addr::LOCALHOST.to_string(), "localhost".to_owned()];
        all.extend(names.iter().map(|&name| name.to_owned()));
        let mut params = CertificateParams::new(all)?;
        params.distinguished_name.push(DnType::CommonName, "testbed");
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        let cert = params.signed_by(&key, &self.issuer)?;
        Ok(Issued { cert_pem: cert.pem(), key_pem: key.serialize_pem() })
    }
}

/// A key pair in PEM, private half first; it signs the tokens of service accounts. RSA, as in
/// clusters of RKE2 and kubeadm: signing the same content twice gives the same signature.
pub(crate) fn signing_key() -> Result<(String, String)> {
    let key = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048)?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}
