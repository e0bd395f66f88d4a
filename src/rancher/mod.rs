//! The way to a Rancher server: the few calls that replacing a credential takes.
//!
//! Beside the prober, this is the only room that connects to anything but the API server, and it
//! goes to the server that a spec names. Invariants: a call is sent once, bounded in time and size,
//! over HTTPS, to no other host; a [`Secret`] shows its text by [`Secret::reveal`] alone and is wiped
//! when it is dropped; an [`Error`] holds none.

mod api_server;
mod bearer;
mod credentials;
mod error;
mod in_use;
mod issuer;
mod rights;
mod target;
mod tokens;
mod trust;
mod wire;

use std::fmt;

use http::Method;
use serde::de::DeserializeOwned;
use serde_json::Value;
use zeroize::Zeroizing;

pub use api_server::ApiServer;
pub use bearer::Bearer;
pub use credentials::{Listed, Stored};
pub use error::Error;
pub use issuer::{Fault, Issued, Issuer, Life};
pub use rights::Rights;
pub use target::Sight;
pub use tokens::{Minted, Order, Token, TokenApi, TokenList};
pub use trust::Trust;
use wire::{Answer, Ask, Endpoint};

/// May be asked by every account, everywhere, and tells a token that is accepted from one that is not.
const ACCESS_REVIEW: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// Reads what the Rancher at a URL shows everybody below a path. Who answers is not proven: its content must be checked.
pub async fn shown(url: &str, path: &str) -> Result<String, Error> {
    let answer = wire::shown(url, path).await?;
    let text = std::str::from_utf8(&answer.body);
    text.map(str::to_owned).map_err(|_| Error::Unreadable("it is no text".to_owned()))
}

/// A token, or a content that has one in it.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Keeps the text.
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// The text itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<&crate::domain::credentials::token::Token> for Secret {
    fn from(token: &crate::domain::credentials::token::Token) -> Self {
        Self::new(token.reveal().to_owned())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// What was answered, and when by the server's own clock.
#[derive(Clone, Debug)]
pub struct Dated<T> {
    /// The answer.
    pub value: T,
    /// In seconds since the epoch, if the server says.
    pub date: Option<i64>,
}

/// A Rancher server, or one of the clusters behind it. Cheap to clone.
#[derive(Clone)]
pub struct Rancher(Endpoint);

impl fmt::Debug for Rancher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rancher")
    }
}

impl Rancher {
    /// The server at a URL. The fault is in words, if the URL or the authorities cannot be used.
    pub fn new(url: &str, trust: Trust<'_>) -> Result<Self, String> {
        Endpoint::new(url, trust, None).map(Self)
    }

    /// A cluster behind this server, at the URL that a kubeconfig names. One of another server is a
    /// fault: what is sent there would get to know the token.
    pub fn cluster(&self, url: &str, trust: Trust<'_>, name: Option<&str>) -> Result<Self, String> {
        let there = Endpoint::new(url, trust, name)?;
        if !there.is_at(&self.0) {
            return Err("its server is not this Rancher".to_owned());
        }
        if there.prefix().is_empty() {
            return Err("its server is no cluster behind Rancher".to_owned());
        }
        Ok(Self(there))
    }

    /// A cluster behind this server, by its id.
    fn behind(&self, id: &str) -> Self {
        Self(self.0.below(&format!("/k8s/clusters/{id}")))
    }

    /// Asks who the bearer of a token is. This proves that it is accepted on this very way: its
    /// version, for one, a server tells anybody.
    pub async fn bearer(&self, token: &Secret) -> Result<Dated<Bearer>, Error> {
        bearer::bearer(&self.0, token.reveal()).await
    }

    async fn send(
        &self,
        token: &Secret,
        method: Method,
        path: &str,
        body: Option<(&'static str, Zeroizing<Vec<u8>>)>,
    ) -> Result<Answer, Error> {
        self.0.call(Ask { method, path, token: token.reveal(), body }).await
    }
}

/// A body that holds nothing secret.
fn plain(body: &Value) -> (&'static str, Zeroizing<Vec<u8>>) {
    ("application/json", Zeroizing::new(body.to_string().into_bytes()))
}

fn parsed<T: DeserializeOwned>(answer: &Answer) -> Result<T, Error> {
    serde_json::from_slice(&answer.body).map_err(|error| {
        // Where it went wrong, not what stood there.
        let at = format!("line {}, column {}", error.line(), error.column());
        Error::Unreadable(format!("unexpected at {at}"))
    })
}
