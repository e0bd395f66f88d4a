//! The client of a Rancher server: the few calls that are needed to replace a credential.
//!
//! Only this module and the prober connect to a server other than the API server. This module
//! connects to the server that a spec, a kubeconfig or an option of a command names.
//!
//! Invariants:
//!
//! * A call is sent once, over HTTPS, and only to that server. It is bounded in time and size.
//! * A [`RancherError`] holds no secret.

mod api_server;
mod credentials;
mod error;
mod issuer;
mod rights;
mod target;
mod token_bearer;
mod token_in_use;
mod tokens;
mod transport;
mod trusted_roots;

use std::fmt;

use http::Method;
use serde::de::DeserializeOwned;
use serde_json::Value;
use zeroize::Zeroizing;

pub use api_server::ApiServer;
pub use credentials::{StoredCredential, TokenExpiry};
pub use error::{RancherCall, RancherError};
pub use issuer::{IssuedTokens, RancherIssuer, TokenFault, TokenLife};
pub use rights::TokenRights;
pub use target::{CloudCredentialView, ReplacementToken};
pub use token_bearer::TokenBearer;
pub use tokens::{ListedToken, MintedToken, TokenApi, TokenList, TokenOrder};
pub use transport::shown;
use transport::{ServerTarget, WireAnswer, WireRequest};
pub use trusted_roots::TrustedRoots;

use crate::domain::credentials::secret_text::SecretText;

/// An answer of a server, with its date.
#[derive(Clone, Debug)]
pub struct DatedAnswer<T> {
    /// The answer.
    pub value: T,
    /// Date by the server's clock, in seconds since the epoch. `None`: the server did not send a
    /// date.
    pub date: Option<i64>,
}

/// A Rancher server, or one of the clusters behind it. Cheap to clone.
#[derive(Clone)]
pub struct RancherClient(ServerTarget);

impl fmt::Debug for RancherClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rancher")
    }
}

impl RancherClient {
    /// Client for the server at a URL. The error says why the URL or the authorities cannot be
    /// used.
    pub fn new(url: &str, trust: TrustedRoots<'_>) -> Result<Self, String> {
        ServerTarget::new(url, trust, None).map(Self)
    }

    /// Client for a cluster behind this server, at the URL that a kubeconfig names. A URL on
    /// another server is an error, because the other server would get the token. `name`: the name
    /// in the server's certificate, if it differs from the URL's host.
    pub fn cluster(
        &self,
        url: &str,
        trust: TrustedRoots<'_>,
        name: Option<&str>,
    ) -> Result<Self, String> {
        let there = ServerTarget::new(url, trust, name)?;
        if !there.is_at(&self.0) {
            return Err("the server in the kubeconfig is not this Rancher".to_owned());
        }
        if there.prefix.is_empty() {
            let right = "a cluster behind this Rancher: https://RANCHER/k8s/clusters/ID";
            return Err(format!("the server in the kubeconfig must be {right}"));
        }
        Ok(Self(there))
    }

    /// Client for the cluster with the Rancher ID `id`, behind this server.
    fn behind(&self, id: &str) -> Self {
        Self(self.0.below(&format!("/k8s/clusters/{id}")))
    }

    /// Asks the server for the user of a token. Success proves that the server accepts the token. A
    /// request for the server's version would prove nothing, because servers answer such a request
    /// without authentication.
    pub async fn bearer(
        &self,
        token: &SecretText,
    ) -> Result<DatedAnswer<TokenBearer>, RancherError> {
        token_bearer::bearer(&self.0, token.reveal()).await
    }

    async fn send(
        &self,
        token: &SecretText,
        method: Method,
        path: &str,
        body: Option<(&'static str, Zeroizing<Vec<u8>>)>,
    ) -> Result<WireAnswer, RancherError> {
        self.0.call(WireRequest { method, path, token: token.reveal(), body }).await
    }
}

/// Content type and text of a JSON body that holds nothing secret.
fn plain(body: &Value) -> (&'static str, Zeroizing<Vec<u8>>) {
    ("application/json", Zeroizing::new(body.to_string().into_bytes()))
}

fn parsed<T: DeserializeOwned>(answer: &WireAnswer) -> Result<T, RancherError> {
    serde_json::from_slice(&answer.body).map_err(|error| {
        // The error names the position of the fault, but quotes no text of the answer.
        let at = format!("line {}, column {}", error.line(), error.column());
        answer.unreadable(format!("the text at {at} is not as expected"))
    })
}
