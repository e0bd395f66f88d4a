//! Makes the keys and certificates of admission, and converts them to and from the content of
//! admission's Secret. [`super::registration`] reads and writes this Secret, and
//! [`crate::domain::admission::certificates`] decides when each step is due.
//!
//! Invariants:
//! * The content of the Secret is checked when it is read. Without a valid certificate of the
//!   authority, the read fails. Any other invalid entry counts as missing.
//! * Private keys are never printed.
//!
//! cert-manager is not used, because admission would then depend on a second installation. Helm's
//! `genSignedCert` is not used, because it makes a certificate only when the chart is rendered, and
//! no new one if the certificate expires before the next rendering. Also, `config/` is applied
//! without Helm.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData as _,
};
use tokio_rustls::rustls;

use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::domain::admission::certificates::{
    AUTHORITY_LIFE, BACKDATED, CertificateSecret, StoredAuthority, StoredCertificate, serving_end,
};
use crate::domain::object_fields::digest::hex;

/// Content of admission's Secret: map from a key of the Secret to its value.
pub type Data = BTreeMap<String, Vec<u8>>;

const CA: (&str, &str) = ("ca.crt", "ca.key");
const NEXT: (&str, &str) = ("next-ca.crt", "next-ca.key");
const SERVING: (&str, &str) = ("tls.crt", "tls.key");
const PREVIOUS: &str = "previous-ca.crt";
/// Maximum number of previous authorities that stay trusted. If more are added, the last ones in
/// `CertificateMaterial::previous` are dropped.
const MOST_PREVIOUS: usize = 8;

/// Parsed certificate, of an authority or of a server.
#[derive(Clone, PartialEq, Eq)]
pub struct ParsedCertificate {
    pem: String,
    der: CertificateDer<'static>,
    not_after: Duration,
    /// Value of the only attribute of the subject. `None`: the subject has no attribute or several,
    /// or the value is not a text.
    name: Option<String>,
    names: BTreeSet<String>,
    key: Vec<u8>,
}

impl ParsedCertificate {
    /// Whether a bundle in PEM contains the certificate.
    pub fn is_in(&self, bundle: &[u8]) -> bool {
        CertificateDer::pem_slice_iter(bundle).flatten().any(|der| der == self.der)
    }
}

/// Certificate with its private key. `key` is `None` if the key is missing or belongs to another
/// certificate.
#[derive(Clone, PartialEq, Eq)]
struct CertificatePair {
    certificate: ParsedCertificate,
    key: Option<String>,
}

/// Parsed content of admission's Secret.
#[derive(Clone, PartialEq, Eq)]
pub struct CertificateMaterial {
    ca: CertificatePair,
    next: Option<CertificatePair>,
    serving: Option<CertificatePair>,
    previous: Vec<ParsedCertificate>,
}

impl fmt::Debug for CertificateMaterial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("CertificateMaterial");
        text.field("ca", &self.ca.certificate.name).finish_non_exhaustive()
    }
}

/// Reason why a key or certificate could not be read or made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CertificateError(String);

impl CertificateError {
    fn new(what: &str, why: impl fmt::Display) -> Self {
        Self(format!("{what}: {why}"))
    }
}

impl CertificateMaterial {
    /// Makes a new authority. The new authority signs a serving certificate for `names`.
    /// `previous`: authorities that must stay trusted, in PEM.
    pub fn start(
        now: Duration,
        names: &BTreeSet<String>,
        previous: &str,
    ) -> Result<Self, CertificateError> {
        let ca = authority(now)?;
        let serving = Some(signed(&ca, now, names)?);
        Ok(Self { ca, next: None, serving, previous: Vec::new() }.trusting(now, previous))
    }

    /// Adds the authorities in `pem` to the previous authorities, which stay trusted. Leaves out an
    /// authority that has expired or is trusted already, and every authority beyond
    /// `MOST_PREVIOUS`.
    #[must_use]
    pub fn trusting(mut self, now: Duration, pem: &str) -> Self {
        let bundle = self.bundle();
        let more = certificates(pem).into_iter();
        self.previous.extend(more.filter(|ca| ca.not_after > now && !bundle.contains(&ca.pem)));
        self.previous.truncate(MOST_PREVIOUS);
        self
    }

    /// Reads the content of the Secret. `Err`: the authority is missing or invalid.
    pub fn read(data: &Data) -> Result<Self, CertificateError> {
        let ca = pair(data, CA)?.ok_or_else(|| CertificateError::new(CA.0, "missing"))?;
        // A faulty entry counts as missing, except the authority. All other entries can be made
        // again.
        let next = pair(data, NEXT).ok().flatten();
        let serving = pair(data, SERVING).ok().flatten();
        let previous = data.get(PREVIOUS).map(|text| certificates(&String::from_utf8_lossy(text)));
        Ok(Self { ca, next, serving, previous: previous.unwrap_or_default() })
    }

    /// Content to store in the Secret.
    pub fn data(&self) -> Data {
        let mut data = Data::new();
        let pairs =
            [(CA, Some(&self.ca)), (NEXT, self.next.as_ref()), (SERVING, self.serving.as_ref())];
        for (keys, pair) in pairs.into_iter().filter_map(|(keys, pair)| Some((keys, pair?))) {
            data.insert(keys.0.to_owned(), pair.certificate.pem.clone().into_bytes());
            if let Some(key) = &pair.key {
                data.insert(keys.1.to_owned(), key.clone().into_bytes());
            }
        }
        if !self.previous.is_empty() {
            let text: String = self.previous.iter().map(|ca| ca.pem.as_str()).collect();
            data.insert(PREVIOUS.to_owned(), text.into_bytes());
        }
        data
    }

    /// Facts from which the next step for the certificates is chosen. `ours`: authority that signed
    /// the certificate of this replica; `None` if this replica serves no valid certificate.
    pub fn facts(&self, ours: Option<&ParsedCertificate>) -> CertificateSecret {
        let authority = |pair: &CertificatePair| StoredAuthority {
            not_after: pair.certificate.not_after,
            signs: pair.key.is_some() && pair.certificate.name.is_some(),
        };
        let ca = &self.ca.certificate;
        CertificateSecret {
            ca: authority(&self.ca),
            next: self.next.as_ref().map(authority),
            serving: self.serving.as_ref().map(|pair| StoredCertificate {
                not_after: pair.certificate.not_after,
                names: pair.certificate.names.clone(),
                fits: pair.key.is_some() && is_signed(&pair.certificate, ca),
            }),
            previous: self.previous.iter().map(|ca| ca.not_after).collect(),
            knows_ours: ours.is_none_or(|ours| self.authorities().any(|ca| ca.der == ours.der)),
        }
    }

    /// Authorities that the API server must trust, in PEM.
    pub fn bundle(&self) -> String {
        self.authorities().map(|ca| ca.pem.as_str()).collect()
    }

    fn authorities(&self) -> impl Iterator<Item = &ParsedCertificate> {
        [&self.ca].into_iter().chain(&self.next).map(|pair| &pair.certificate).chain(&self.previous)
    }

    /// Authority that will replace the current authority as the signer of certificates. `None`: no
    /// such authority was made yet.
    pub fn next(&self) -> Option<ParsedCertificate> {
        self.next.as_ref().map(|pair| pair.certificate.clone())
    }

    /// Returns two times since the Unix epoch: the expiry of the current authority, and the expiry
    /// of the serving certificate. `None`: there is no serving certificate.
    pub fn expiries(&self) -> (Duration, Option<Duration>) {
        let serving = self.serving.as_ref().map(|pair| pair.certificate.not_after);
        (self.ca.certificate.not_after, serving)
    }

    /// Serving certificate with its key. `None`: the certificate is missing, its key does not
    /// match, or the current authority did not sign it.
    pub fn identity(&self) -> Option<ServingIdentity> {
        let serving = self.serving.as_ref()?;
        let ca = &self.ca.certificate;
        if !is_signed(&serving.certificate, ca) {
            return None;
        }
        let key = PrivateKeyDer::from_pem_slice(serving.key.as_ref()?.as_bytes()).ok()?;
        let chain = vec![serving.certificate.der.clone()];
        let provider = aws_lc_rs::default_provider();
        let certified = CertifiedKey::from_der(chain, key, &provider).ok()?;
        Some(ServingIdentity {
            certified: Arc::new(certified),
            authority: ca.clone(),
            not_after: serving.certificate.not_after.min(ca.not_after),
        })
    }

    /// Puts the authority `ours` first among the previous authorities, which stay trusted. If there
    /// are then too many, the last one is dropped.
    #[must_use]
    pub fn remembering(mut self, ours: &ParsedCertificate) -> Self {
        self.previous.insert(0, ours.clone());
        self.previous.truncate(MOST_PREVIOUS);
        self
    }

    /// Makes a new serving certificate for `names`. The current authority signs this certificate.
    pub fn renewed(
        mut self,
        now: Duration,
        names: &BTreeSet<String>,
    ) -> Result<Self, CertificateError> {
        self.serving = Some(signed(&self.ca, now, names)?);
        Ok(self)
    }

    /// Makes the authority that will replace the current authority as the signer of certificates.
    pub fn with_next_authority(mut self, now: Duration) -> Result<Self, CertificateError> {
        self.next = Some(authority(now)?);
        Ok(self)
    }

    /// Makes the next authority the current one, and signs a serving certificate with it. The
    /// former authority stays trusted.
    pub fn switched(
        mut self,
        now: Duration,
        names: &BTreeSet<String>,
    ) -> Result<Self, CertificateError> {
        let missing = || CertificateError::new(NEXT.0, "missing or not valid");
        let next = self.next.take().ok_or_else(missing)?;
        let before = std::mem::replace(&mut self.ca, next);
        self.serving = Some(signed(&self.ca, now, names)?);
        Ok(self.remembering(&before.certificate))
    }

    /// Removes previous authorities that have expired.
    #[must_use]
    pub fn forgetting(mut self, now: Duration) -> Self {
        self.previous.retain(|ca| ca.not_after > now);
        self
    }
}

/// Serving certificate, and the authority that callers must trust to accept it.
#[derive(Clone)]
pub struct ServingIdentity {
    /// The certificate with its key.
    pub certified: Arc<CertifiedKey>,
    /// Authority that signed the certificate.
    pub authority: ParsedCertificate,
    /// Time since the Unix epoch at which the certificate or its authority expires, whichever
    /// expires first.
    pub not_after: Duration,
}

fn authority(now: Duration) -> Result<CertificatePair, CertificateError> {
    let unfit = |e: rcgen::Error| CertificateError::new("cannot make a new authority", e);
    let key = KeyPair::generate().map_err(unfit)?;
    let mark: Vec<u8> = key.public_key_raw().iter().skip(1).take(4).copied().collect();
    let mark = hex(&mark);
    let mut params = authority_params(&format!("harvester-guest-operator admission {mark}"));
    validity(&mut params, now, now + AUTHORITY_LIFE);
    let made = params.self_signed(&key).map_err(unfit)?;
    Ok(CertificatePair { certificate: certificate(&made.pem())?, key: Some(key.serialize_pem()) })
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params
}

fn signed(
    ca: &CertificatePair,
    now: Duration,
    names: &BTreeSet<String>,
) -> Result<CertificatePair, CertificateError> {
    let unfit = |e: rcgen::Error| CertificateError::new("cannot make a new serving certificate", e);
    let (Some(key), Some(name)) = (&ca.key, &ca.certificate.name) else {
        return Err(CertificateError::new(CA.1, "missing or not valid"));
    };
    let key = KeyPair::from_pem(key).map_err(unfit)?;
    let issuer = Issuer::new(authority_params(name), key);
    let mut params =
        CertificateParams::new(names.iter().cloned().collect::<Vec<_>>()).map_err(unfit)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "harvester-guest-operator admission");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    validity(&mut params, now, serving_end(now, ca.certificate.not_after));
    let key = KeyPair::generate().map_err(unfit)?;
    let made = params.signed_by(&key, &issuer).map_err(unfit)?;
    let certificate = certificate(&made.pem())?;
    if !is_signed(&certificate, &ca.certificate) {
        return Err(CertificateError::new(
            "cannot make a new serving certificate",
            "the signature does not fit the authority in ca.crt",
        ));
    }
    Ok(CertificatePair { certificate, key: Some(key.serialize_pem()) })
}

fn validity(params: &mut CertificateParams, now: Duration, end: Duration) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    // Times in a certificate are whole seconds.
    params.not_before = epoch + Duration::from_secs(now.saturating_sub(BACKDATED).as_secs());
    params.not_after = epoch + Duration::from_secs(end.as_secs());
}

fn pair(data: &Data, keys: (&str, &str)) -> Result<Option<CertificatePair>, CertificateError> {
    let Some(text) = data.get(keys.0) else { return Ok(None) };
    let certificate = certificate(&String::from_utf8_lossy(text))
        .map_err(|e| CertificateError::new(keys.0, e))?;
    let key = data.get(keys.1).map(|text| String::from_utf8_lossy(text).into_owned());
    let fits = |key: &String| {
        KeyPair::from_pem(key).is_ok_and(|key| key.subject_public_key_info() == certificate.key)
    };
    Ok(Some(CertificatePair { key: key.filter(fits), certificate }))
}

/// Parses the certificates in PEM text. Omits certificates that cannot be parsed.
fn certificates(pem: &str) -> Vec<ParsedCertificate> {
    let found = CertificateDer::pem_slice_iter(pem.as_bytes()).flatten();
    found.filter_map(|der| parsed(der).ok()).collect()
}

/// Parses the first certificate in PEM text. `Err`: there is none, or it cannot be parsed.
fn certificate(pem: &str) -> Result<ParsedCertificate, CertificateError> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes())
        .map_err(|e| CertificateError::new("certificate", e))?;
    parsed(der)
}

fn parsed(der: CertificateDer<'static>) -> Result<ParsedCertificate, CertificateError> {
    let (not_after, name, names, key) = {
        let (_, parsed) =
            X509Certificate::from_der(&der).map_err(|e| CertificateError::new("certificate", e))?;
        let end = u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0);
        let parts: Vec<_> = parsed.subject().iter_attributes().collect();
        let name = match parts.as_slice() {
            [only] => only.as_str().ok().map(str::to_owned),
            _ => None,
        };
        let alternatives = parsed.subject_alternative_name().ok().flatten();
        let names = alternatives.iter().flat_map(|found| &found.value.general_names);
        let names = names.filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            GeneralName::IPAddress(bytes) => address(bytes).map(|ip| ip.to_string()),
            _ => None,
        });
        let names: BTreeSet<String> = names.collect();
        (Duration::from_secs(end), name, names, parsed.public_key().raw.to_vec())
    };
    Ok(ParsedCertificate { pem: pem(&der), not_after, name, names, key, der })
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// Whether the authority `ca` signed the certificate. `false` also if the certificate has no name,
/// because the verifier needs one. Expiry is not checked.
fn is_signed(certificate: &ParsedCertificate, ca: &ParsedCertificate) -> bool {
    let mut roots = RootCertStore::empty();
    let Some(name) = certificate.names.first() else { return false };
    let Ok(name) = ServerName::try_from(name.clone()) else { return false };
    if roots.add(ca.der.clone()).is_err() {
        return false;
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let Ok(verifier) =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build()
    else {
        return false;
    };
    // Another function checks the expiry. So this check assumes a time one second before the
    // certificate expires.
    let at =
        UnixTime::since_unix_epoch(certificate.not_after.saturating_sub(Duration::from_secs(1)));
    verifier.verify_server_cert(&certificate.der, &[], &name, &[], at).is_ok()
}

/// PEM text of a certificate (RFC 7468).
fn pem(der: &CertificateDer<'_>) -> String {
    let text = STANDARD.encode(der);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in text.as_bytes().chunks(64) {
        pem.push_str(&String::from_utf8_lossy(line));
        pem.push('\n');
    }
    pem.push_str("-----END CERTIFICATE-----\n");
    pem
}

#[cfg(test)]
mod tests;
