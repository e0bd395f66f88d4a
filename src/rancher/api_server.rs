//! The API server that a kubeconfig names, and the user that it authenticates a token as.
//!
//! Invariants: as for a Rancher: HTTPS, bounded in time and size, no server text that may hold a
//! token. A request ends at its deadline, however the server behaves.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::error::safe;
use super::issuer::pem;
use super::wire::{Answer, Ask, Endpoint};
use super::{ACCESS_REVIEW, Error, REVIEW, Trust, plain};
use crate::domain::credentials::kubeconfig::Reach;

/// Pause between two tries: the servers behind one URL learn of a new token one after the other.
const BETWEEN_TRIES: Duration = Duration::from_millis(500);

/// An API server, or a proxied path to one.
pub struct ApiServer(Endpoint);

impl ApiServer {
    /// The server that a kubeconfig points to.
    pub fn of(reach: &Reach) -> Result<Self, String> {
        if let Some(fault) = reach.fault() {
            return Err(fault);
        }
        let authority = reach.authority.as_deref().map(pem).transpose()?;
        let trust = authority.as_deref().map_or(Trust::System, Trust::Pem);
        Self::new(&reach.server, trust, reach.server_name.as_deref())
    }

    /// The server at a URL. The error says why the URL or the authorities cannot be used. `name`:
    /// the name in the server's certificate, if it differs from the URL's host.
    pub fn new(url: &str, trust: Trust<'_>, name: Option<&str>) -> Result<Self, String> {
        Endpoint::new(url, trust, name).map(Self)
    }

    /// Repeats the review until the server authenticates the token as that user. An unknown token
    /// and a denied review are retried. After two other faults, and at the deadline, the error is
    /// the last fault. A server that accepts the token and cannot name its user is a success.
    pub async fn accepts(&self, token: &str, user: &str, within: Duration) -> Result<(), String> {
        let mut why = Error::Silent(format!("not within {} s", within.as_secs())).to_string();
        let asked = async {
            let mut faults = 0;
            while faults < 2 {
                match self.bearer(token).await {
                    Ok(Some(who)) if who != user => {
                        faults += 1;
                        why = format!("the token belongs to {:?} there, not to {user}", safe(&who));
                    }
                    Ok(_) => return true,
                    Err(error) => {
                        let may_pass = matches!(error, Error::Unauthorized | Error::Forbidden(_));
                        faults += u8::from(!may_pass);
                        why = error.to_string();
                    }
                }
                sleep(BETWEEN_TRIES).await;
            }
            false
        };
        if timeout(within, asked).await == Ok(true) { Ok(()) } else { Err(why) }
    }

    /// User that the server authenticates the token as. `None`: the server accepts the token but
    /// cannot name its user, as before Kubernetes 1.28: SelfSubjectReview was in beta before, which
    /// is not served by default.
    async fn bearer(&self, token: &str) -> Result<Option<String>, Error> {
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        match self.post(token, REVIEW, &review).await {
            Ok(answer) => {
                let review: Value = super::parsed(&answer)?;
                let user = review["status"]["userInfo"]["username"].as_str().unwrap_or_default();
                Ok(Some(user.to_owned()))
            }
            Err(Error::NotFound(_)) => {
                let review = json!({
                    "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                    "spec": {"nonResourceAttributes": {"path": "/api", "verb": "get"}},
                });
                let answer = self.post(token, ACCESS_REVIEW, &review).await?;
                let review: Value = super::parsed(&answer)?;
                let answered = review["status"]["allowed"].is_boolean();
                let odd = || Error::Unreadable("it is no review".to_owned());
                if answered { Ok(None) } else { Err(odd()) }
            }
            Err(error) => Err(error),
        }
    }

    async fn post(&self, token: &str, path: &str, body: &Value) -> Result<Answer, Error> {
        self.0.call(Ask { method: Method::POST, path, token, body: Some(plain(body)) }).await
    }
}
