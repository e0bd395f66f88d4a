//! User to whom a token belongs, as a server reports it.
//!
//! Invariant: a request for the user succeeds only if the server accepts the token.

use http::Method;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use serde_json::{Value, json};

use super::{RancherError, ServerClient, parsed, plain};
use crate::domain::credentials::secret_text::SecretText;

/// Path of SelfSubjectAccessReviews. Every account may create such a review at every API server. So
/// the creation succeeds if the server accepts the token, and fails otherwise.
const ACCESS_REVIEW: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
/// Path of a review that names the user of a token.
pub(super) const REVIEW: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// User to whom a token belongs, as the server reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenBearer {
    /// ID of the user. `None`: the server accepts the token but does not serve the review that
    /// names the user. Before Kubernetes 1.28, servers do not serve it by default.
    pub user: Option<String>,
    /// Name of the token, if the server returns it.
    pub token: Option<String>,
}

impl ServerClient {
    /// Asks the server for the user of a token. Success proves that the server accepts the token. A
    /// request for the server's version would prove nothing, because servers answer such a request
    /// without authentication.
    pub async fn bearer(&self, token: &SecretText) -> Result<TokenBearer, RancherError> {
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let answer = match self.send(token, Method::POST, REVIEW, Some(plain(&review))).await {
            // The server cannot name the token's user. It is asked only whether it accepts the
            // token.
            Err(RancherError::NotFound(..)) => {
                let review = json!({
                    "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                    "spec": {"nonResourceAttributes": {"path": "/api", "verb": "get"}},
                });
                self.allowed(token, &review).await?;
                return Ok(TokenBearer { user: None, token: None });
            }
            other => other?,
        };
        let user = parsed::<SelfSubjectReview>(&answer)?.status.and_then(|status| status.user_info);
        let user = user.unwrap_or_default();
        let name = user.username.ok_or_else(|| answer.unreadable("it names no user"))?;
        if name == "system:anonymous" || name == "system:unauthenticated" {
            return Err(RancherError::Unauthorized(answer.call));
        }
        let named = user.extra.and_then(|mut extra| extra.remove("requesttokenid"));
        let token = named.and_then(|names| names.into_iter().next());
        Ok(TokenBearer { user: Some(name), token })
    }

    /// Asks the server whether the token's bearer has the right in the SelfSubjectAccessReview
    /// `review`.
    pub(super) async fn allowed(
        &self,
        token: &SecretText,
        review: &Value,
    ) -> Result<bool, RancherError> {
        let answer = self.send(token, Method::POST, ACCESS_REVIEW, Some(plain(review))).await?;
        let allowed = parsed::<Value>(&answer)?["status"]["allowed"].as_bool();
        allowed.ok_or_else(|| answer.unreadable("it is not a review"))
    }
}
