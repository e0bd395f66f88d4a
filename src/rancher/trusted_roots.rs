//! Certificate authorities that may have signed a server's certificate.
//!
//! Invariant: the trusted authorities are either exactly the given ones, or exactly the system's. A
//! token is sent only to a server whose certificate has been verified.

use tokio_rustls::rustls::ClientConfig;

use crate::tls;

/// Certificate authorities that may have signed a server's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrustedRoots<'a> {
    /// The given authorities, in PEM.
    Pem(&'a str),
    /// The authorities that the system trusts.
    System,
}

/// TLS settings that trust these authorities. The error says why the authorities cannot be used.
pub(super) fn settings(trust: TrustedRoots<'_>) -> Result<ClientConfig, String> {
    match trust {
        TrustedRoots::Pem(pem) => tls::trusting(pem),
        TrustedRoots::System => {
            let right = "give the certificate authority of the server";
            tls::trusting_system().map_err(|why| format!("{why}: {right}"))
        }
    }
}
