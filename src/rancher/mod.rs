//! Client of a Rancher, of a cluster behind it, and of an API server that a kubeconfig names. The
//! client has only the few calls that are needed to replace a credential.
//!
//! Only this module and the prober connect to a server other than the API server. The URL to which
//! this module connects comes from a spec, from the Secret of an API key, from a kubeconfig, or
//! from an option of a command.
//!
//! Invariants:
//!
//! * A call is sent once, over HTTPS, and only to the server at this URL. It is bounded in time and
//!   size.
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

use serde::de::DeserializeOwned;
use serde_json::Value;
use zeroize::Zeroizing;

pub use credentials::{StoredCredential, TokenExpiry};
pub use error::{RancherCall, RancherError};
pub use issuer::{IssuedTokens, RancherIssuer, TokenFault, TokenLife};
pub use rights::TokenRights;
pub use target::{CloudCredentialView, ReplacementToken};
pub use token_bearer::TokenBearer;
pub use tokens::{ListedToken, MintedToken, TokenApi, TokenList, TokenOrder};
use transport::WireAnswer;
pub use transport::{ServerClient, shown};

/// An answer of a server, with its date.
#[derive(Clone, Debug)]
pub struct DatedAnswer<T> {
    /// The answer.
    pub value: T,
    /// Date by the server's clock, in seconds since the epoch. `None`: the server did not send a
    /// date.
    pub date: Option<i64>,
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
