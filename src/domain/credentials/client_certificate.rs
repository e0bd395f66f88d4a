//! Client certificates in kubeconfigs: their names, and the times between which they are valid.
//!
//! Invariant: only the common name and the times of a certificate are reported.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use x509_parser::pem::Pem;

use super::token::TokenClaims;

/// Common name and times of the first certificate in `data`, the value of
/// `client-certificate-data`. Further certificates are ignored: they belong to authorities, not to
/// the user. The name is empty if the certificate has no common name. `None`: `data` is not base64,
/// or its first PEM block is no readable certificate.
pub(super) fn claims(data: &str) -> Option<TokenClaims> {
    let plain: String = data.split_whitespace().collect();
    let pem = STANDARD.decode(plain).ok()?;
    let first =
        Pem::iter_from_buffer(&pem).next()?.ok().filter(|pem| pem.label == "CERTIFICATE")?;
    let certificate = first.parse_x509().ok()?;
    let name = certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
    let validity = certificate.validity();
    Some(TokenClaims {
        name: name.unwrap_or_default().to_owned(),
        issued: Some(validity.not_before.timestamp()),
        expires: Some(validity.not_after.timestamp()),
    })
}
