//! The user whom a server takes a token's bearer for.
//!
//! Invariant: an answer is had only with a token that is accepted on this very way.

use std::collections::BTreeMap;

use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::wire::{Answer, Ask, Endpoint};
use super::{ACCESS_REVIEW, Dated, Error, parsed, plain};

const REVIEW: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// A user by a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bearer {
    /// The user's id. `None`: the server accepts the token and cannot say, as before Kubernetes 1.28: the review
    /// was in beta before, which is not served by default.
    pub user: Option<String>,
    /// The token's name, if the server says.
    pub token: Option<String>,
}

#[derive(Deserialize)]
struct Review {
    status: Status,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    user_info: User,
}

#[derive(Deserialize)]
struct User {
    username: String,
    #[serde(default)]
    extra: BTreeMap<String, Vec<String>>,
}

/// Asks whom the server takes the token's bearer for.
pub(super) async fn bearer(there: &Endpoint, token: &str) -> Result<Dated<Bearer>, Error> {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let answer = match post(there, token, REVIEW, &review).await {
        Err(Error::NotFound(_)) => return accepted(there, token).await,
        other => other?,
    };
    let User { username, mut extra } = parsed::<Review>(&answer)?.status.user_info;
    if username == "system:anonymous" || username == "system:unauthenticated" {
        return Err(Error::Unauthorized);
    }
    let named = extra.remove("requesttokenid").and_then(|names| names.into_iter().next());
    Ok(Dated { value: Bearer { user: Some(username), token: named }, date: answer.date })
}

/// Asks only whether the token is accepted.
async fn accepted(there: &Endpoint, token: &str) -> Result<Dated<Bearer>, Error> {
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"nonResourceAttributes": {"path": "/api", "verb": "get"}},
    });
    let answer = post(there, token, ACCESS_REVIEW, &review).await?;
    if parsed::<Value>(&answer)?["status"]["allowed"].is_boolean() {
        Ok(Dated { value: Bearer { user: None, token: None }, date: answer.date })
    } else {
        Err(Error::Unreadable("it is no review".to_owned()))
    }
}

async fn post(there: &Endpoint, token: &str, path: &str, body: &Value) -> Result<Answer, Error> {
    there.call(Ask { method: Method::POST, path, token, body: Some(plain(body)) }).await
}
