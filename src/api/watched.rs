//! Status of watched credentials, and of the API key for a Rancher.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Credential in a target that the operator only watches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WatchedCredential {
    /// Name of the kubeconfig's user that has the credential. Empty for a cloud credential, and for
    /// a watched value that is only a token.
    #[schemars(length(max = 253))]
    pub user: String,
    /// Name that the credential itself contains, such as the subject of a certificate. Empty if the
    /// credential contains no name.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Name of the cloud credential's Secret in Rancher, such as `cc-abcde`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub credential: Option<String>,
    /// Display name of the cloud credential in Rancher.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub title: Option<String>,
    /// Time when the credential expires. Unset: the credential never expires, or its expiry is not
    /// known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub expires_at: Option<String>,
    /// Whether another TokenRotation replaces the credential.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rotated: bool,
    /// Reason why the expiry of the credential is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub unknown: Option<String>,
}

/// API key that authenticates this operator to a Rancher.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApiKey {
    /// Name of the API key's token in Rancher.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Time when the API key became valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub issued_at: Option<String>,
    /// Time when the API key expires. Unset: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub expires_at: Option<String>,
    /// Whether a TokenRotation renews the API key.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub renewed: bool,
}
