//! What is told of credentials that are watched, and of the API key with which a Rancher is asked.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A credential in a target that is only watched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WatchedCredential {
    /// The kubeconfig's user that has it; empty where the value is the token alone, and for cloud
    /// credentials.
    #[schemars(length(max = 253))]
    pub user: String,
    /// What it is called, as far as it says. Of a certificate: whom it is for.
    #[schemars(length(max = 253))]
    pub name: String,
    /// The cloud credential's Secret in Rancher, such as `cc-abcde`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub credential: Option<String>,
    /// What people call the cloud credential.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub title: Option<String>,
    /// When it ends. Unset: never, or it does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub expires_at: Option<String>,
    /// Whether another TokenRotation replaces it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rotated: bool,
    /// Why it cannot be known when it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub unknown: Option<String>,
}

/// The API key with which a Rancher is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApiKey {
    /// What it is called in Rancher.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Since when it works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub issued_at: Option<String>,
    /// When it ends. Unset: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub expires_at: Option<String>,
    /// Whether a TokenRotation renews it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub renewed: bool,
}
