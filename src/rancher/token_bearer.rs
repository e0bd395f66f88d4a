//! User of a token, as a server authenticates it.
//!
//! Invariant: a request for the user succeeds only if the server accepts the token.

use std::collections::BTreeMap;

use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::transport::{ServerTarget, WireAnswer, WireRequest};
use super::{DatedAnswer, RancherError, parsed, plain};

/// Path of SelfSubjectAccessReviews, which every account may create at every API server. The
/// request succeeds if the server accepts the token, and fails otherwise.
const ACCESS_REVIEW: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
/// Path of a review that names the user of a token.
pub(super) const REVIEW: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// User of a token, as the server authenticates the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenBearer {
    /// ID of the user. `None`: the server accepts the token but cannot name its user. Before
    /// Kubernetes 1.28, the review that names the user is in beta, and a server does not serve beta
    /// APIs by default.
    pub user: Option<String>,
    /// Name of the token, if the server returns it.
    pub token: Option<String>,
}

#[derive(Deserialize)]
struct TokenReview {
    status: ReviewStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReviewStatus {
    user_info: UserInfo,
}

#[derive(Deserialize)]
struct UserInfo {
    username: String,
    #[serde(default)]
    extra: BTreeMap<String, Vec<String>>,
}

/// Asks the server for the user of the token.
pub(super) async fn bearer(
    there: &ServerTarget,
    token: &str,
) -> Result<DatedAnswer<TokenBearer>, RancherError> {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let answer = match post(there, token, REVIEW, &review).await {
        Err(RancherError::NotFound(..)) => return accepted(there, token).await,
        other => other?,
    };
    let UserInfo { username, mut extra } = parsed::<TokenReview>(&answer)?.status.user_info;
    if username == "system:anonymous" || username == "system:unauthenticated" {
        return Err(RancherError::Unauthorized(answer.call));
    }
    let named = extra.remove("requesttokenid").and_then(|names| names.into_iter().next());
    Ok(DatedAnswer { value: TokenBearer { user: Some(username), token: named }, date: answer.date })
}

/// Asks the server only whether it accepts the token. Used if the server cannot name the token's
/// user.
async fn accepted(
    there: &ServerTarget,
    token: &str,
) -> Result<DatedAnswer<TokenBearer>, RancherError> {
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"nonResourceAttributes": {"path": "/api", "verb": "get"}},
    });
    let date = allowed(there, token, &review).await?.date;
    Ok(DatedAnswer { value: TokenBearer { user: None, token: None }, date })
}

/// Asks the server whether the token's bearer has the right in the SelfSubjectAccessReview
/// `review`.
pub(super) async fn allowed(
    there: &ServerTarget,
    token: &str,
    review: &Value,
) -> Result<DatedAnswer<bool>, RancherError> {
    let answer = post(there, token, ACCESS_REVIEW, review).await?;
    let allowed = parsed::<Value>(&answer)?["status"]["allowed"].as_bool();
    let value = allowed.ok_or_else(|| answer.unreadable("it is not a review"))?;
    Ok(DatedAnswer { value, date: answer.date })
}

async fn post(
    there: &ServerTarget,
    token: &str,
    path: &str,
    body: &Value,
) -> Result<WireAnswer, RancherError> {
    there.call(WireRequest { method: Method::POST, path, token, body: Some(plain(body)) }).await
}
