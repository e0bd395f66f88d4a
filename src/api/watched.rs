//! Status of watched credentials, and of the API key for a Rancher.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Credential that the TokenRotation watches, but does not replace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WatchedCredential {
    /// Name of the kubeconfig's user that has the credential. Empty for a cloud credential, and for
    /// a watched value that is only a token.
    #[schemars(length(max = 253))]
    pub user: String,
    /// Name of the credential, such as the common name of a certificate. Empty if no name is known.
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
    /// Name of the API key. For a Rancher's token: the token's description if it has the form of a
    /// name, otherwise the token's name. For a ServiceAccount's token: name of the Secret that the
    /// token is bound to or stored in, or of the ServiceAccount.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Time when the API key became valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub issued_at: Option<String>,
    /// Time when the API key expires. Unset: the API key never expires, or its expiry is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub expires_at: Option<String>,
    /// Whether a TokenRotation renews the API key.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub renewed: bool,
}
