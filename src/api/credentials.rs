//! Where the credentials of a TokenRotation come from and go to: ServiceAccounts and Secrets here, and a
//! Rancher with its cloud credentials.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Where new credentials come from: exactly one of these.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("[has(self.serviceAccountToken), has(self.serviceAccountTokenSecret), has(self.rancherToken)].filter(given, given).size() == 1",
        "spec.source: exactly one of serviceAccountToken, serviceAccountTokenSecret and rancherToken"),
)]
pub struct Source {
    /// Tokens that the API server signs on request and that end by themselves. Each is bound to a
    /// Secret of its own, by whose deletion it is revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_token: Option<ServiceAccountToken>,
    /// Tokens in Secrets of type kubernetes.io/service-account-token, one Secret after the other.
    /// They do not end by themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_token_secret: Option<ServiceAccountToken>,
    /// Tokens that a Rancher makes for the user of the API key in spec.rancher.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rancher_token: Option<RancherToken>,
}

/// Tokens of a ServiceAccount of the same namespace.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("self.serviceAccountName.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",
        "serviceAccountName: must be the name of a ServiceAccount: lower-case letters, digits, dashes and dots"),
)]
pub struct ServiceAccountToken {
    /// Name of the ServiceAccount to issue tokens for, in the TokenRotation's namespace.
    #[schemars(length(min = 1, max = 253))]
    pub service_account_name: String,
    /// Lifetime of a token in seconds; the API server may grant less. A token without an expiry
    /// counts as expired after this time. Unset means 2592000, thirty days.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 600, max = 31_536_000))]
    pub lifetime_seconds: Option<i64>,
}

/// Where a credential is read by those who use it: exactly one of these.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("[has(self.secret), has(self.cloudCredential), has(self.allCloudCredentials)].filter(given, given).size() == 1",
        "spec.target: exactly one of secret, cloudCredential and allCloudCredentials"),
)]
pub struct Target {
    /// A key of a Secret of the same namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretTarget>,
    /// A cloud credential of the Rancher in spec.rancher: the kubeconfig in it, whose current user gets
    /// the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud_credential: Option<CloudCredentialTarget>,
    /// Every cloud credential for Harvester that the API key's user may see in the Rancher in
    /// spec.rancher. With spec.source, those that this user made are replaced, later ones too, and so is the API
    /// key: a TokenRotation is made for each. The others are only watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all_cloud_credentials: Option<AllCloudCredentials>,
}

/// All of them: there is nothing to choose.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AllCloudCredentials {}

/// A key of a Secret.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("self.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",
        "spec.target.secret.name: must be the name of a Secret: lower-case letters, digits, dashes and dots"),
    validation = ("self.key.matches('^[-._a-zA-Z0-9]+$')",
        "spec.target.secret.key: must be a key of a Secret: letters, digits, dashes, underscores and dots"),
)]
pub struct SecretTarget {
    /// The Secret. If there is none, it is made, unless `kubeconfigUser` is set.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The key in it.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
    /// Set: the value is a kubeconfig, and the user by this name gets the token; clusters, contexts
    /// and other users stay. Unset: the value is the token alone. A credential that is only watched
    /// may be either without it: then every token of a kubeconfig is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub kubeconfig_user: Option<String>,
}

/// Tokens that a Rancher makes for the user of the API key.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("!has(self.cluster) || self.cluster.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
        "spec.source.rancherToken.cluster: must be the id of a cluster in Rancher, such as c-m-abcdefgh"),
)]
pub struct RancherToken {
    /// Lifetime of a token in seconds. Rancher grants at most its setting
    /// auth-token-max-ttl-minutes, ninety days by default, and does not report when that is less.
    /// Unset means as long as Rancher grants, a year at most. A token from elsewhere whose expiry
    /// is not known counts as expired after this time; unset, after thirty days.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 600, max = 31_536_000))]
    pub lifetime_seconds: Option<i64>,
    /// The only cluster that a token is good for. Unset: for a cloud credential the one to which its kubeconfig
    /// leads; for a Secret all that its user may enter, and Rancher.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub cluster: Option<String>,
    /// Whether a cloud credential may get a token of another user than the one who made it, who can read
    /// the token and do with it whatever its user may. Unset means false: the API key must be of that user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_other_user: Option<bool>,
}

/// A cloud credential for Harvester in a Rancher.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("self.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
        "spec.target.cloudCredential.name: must be the name of its Secret in Rancher's namespace cattle-global-data, such as cc-abcde"),
)]
pub struct CloudCredentialTarget {
    /// The name of its Secret in Rancher's namespace cattle-global-data, such as `cc-abcde`. It must be
    /// there: it is never made.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
}

/// A Rancher, and the API key with which it is asked.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("!has(self.url) || self.url.matches('^https://[^/@?# ]+/?$')",
        "spec.rancher.url: must be https:// and a host, perhaps with a port, and nothing behind it"),
    validation = ("!has(self.certificateAuthority) || self.certificateAuthority.contains('-----BEGIN CERTIFICATE-----')",
        "spec.rancher.certificateAuthority: must be certificates in PEM"),
    validation = ("!has(self.certificateAuthority) || !has(self.certificateAuthoritySecret)",
        "spec.rancher.certificateAuthoritySecret: there is certificateAuthority as well: remove one of the two"),
)]
pub struct RancherServer {
    /// Where it is, as its setting server-url says: `https://` and a host. Unset: where the API key's Secret
    /// says, by its annotation credentials.harvesterhci.io/rancher-url.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 9, max = 512))]
    pub url: Option<String>,
    /// Certificates of the authorities that sign its own, in PEM. Unset: those under `ca.crt` in the API
    /// key's Secret, else the public ones and those of the chart's `additionalTrustedCAs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65_536))]
    pub certificate_authority: Option<String>,
    /// The Secret of the same namespace that holds them instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_authority_secret: Option<AuthoritySecret>,
    /// The API key.
    pub minter: Minter,
}

/// A Secret with certificates. What else it holds, such as a private key, is not looked at.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("self.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",
        "spec.rancher.certificateAuthoritySecret.name: must be the name of a Secret: lower-case letters, digits, dashes and dots"),
    validation = ("self.key.matches('^[-._a-zA-Z0-9]+$')",
        "spec.rancher.certificateAuthoritySecret.key: must be a key of a Secret: letters, digits, dashes, underscores and dots"),
)]
pub struct AuthoritySecret {
    /// Name of the Secret with the certificates.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The key in it, whose value is certificates in PEM.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

/// An API key of a Rancher: whose it is, makes and revokes the tokens.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("self.secretName.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",
        "spec.rancher.minter.secretName: must be the name of a Secret: lower-case letters, digits, dashes and dots"),
    validation = ("self.key.matches('^[-._a-zA-Z0-9]+$')",
        "spec.rancher.minter.key: must be a key of a Secret: letters, digits, dashes, underscores and dots"),
)]
pub struct Minter {
    /// The Secret of the same namespace that holds it.
    #[schemars(length(min = 1, max = 253))]
    pub secret_name: String,
    /// The key in it, whose value is the API key alone. A TokenRotation whose target this is renews it. It is
    /// sent to the URL alone that the Secret's annotation credentials.harvesterhci.io/rancher-url names.
    #[serde(default = "token")]
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

fn token() -> String {
    "token".to_owned()
}
