//! Sources and targets of a TokenRotation's credentials: ServiceAccounts and Secrets of this
//! cluster, and a Rancher with its cloud credentials.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Source of new credentials. Exactly one field is set.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("[has(self.serviceAccountToken), has(self.serviceAccountTokenSecret), has(self.rancherToken)].filter(given, given).size() == 1",
        "spec.source: must have exactly one of serviceAccountToken, serviceAccountTokenSecret and rancherToken"),
)]
pub struct Source {
    /// Tokens with an expiry, which the API server signs on request. Each token is bound to a
    /// Secret of its own. The deletion of this Secret revokes the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_token: Option<ServiceAccountToken>,
    /// Tokens in Secrets of type kubernetes.io/service-account-token, a new Secret for each token.
    /// These tokens have no expiry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_token_secret: Option<ServiceAccountToken>,
    /// Tokens that a Rancher makes for the user of the API key in spec.rancher.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rancher_token: Option<RancherToken>,
}

/// Tokens of a ServiceAccount in the same namespace.
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

/// Target from which clients read a credential. Exactly one field is set.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("[has(self.secret), has(self.cloudCredential), has(self.allCloudCredentials)].filter(given, given).size() == 1",
        "spec.target: must have exactly one of secret, cloudCredential and allCloudCredentials"),
)]
pub struct Target {
    /// Secret in the TokenRotation's namespace, and its key that holds the credential.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretTarget>,
    /// Cloud credential, which holds a kubeconfig, in the Rancher of spec.rancher. A token of that
    /// Rancher replaces only the token of the kubeconfig's current user. A ServiceAccount's token
    /// replaces the whole kubeconfig.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud_credential: Option<CloudCredentialTarget>,
    /// All cloud credentials for Harvester that the API key's user may see in the Rancher in
    /// spec.rancher. Without spec.source, all of them are only watched. With spec.source, the
    /// operator creates a TokenRotation for each cloud credential that the API key's user has made
    /// or makes later. These TokenRotations replace the credentials. If the API key expires, it
    /// gets a TokenRotation too. All other cloud credentials are only watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all_cloud_credentials: Option<AllCloudCredentials>,
}

/// Choice of all cloud credentials as the target. The choice has no options.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AllCloudCredentials {}

/// Key of a Secret that holds a credential.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("self.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",
        "spec.target.secret.name: must be the name of a Secret: lower-case letters, digits, dashes and dots"),
    validation = ("self.key.matches('^[-._a-zA-Z0-9]+$')",
        "spec.target.secret.key: must be a key of a Secret: letters, digits, dashes, underscores and dots"),
)]
pub struct SecretTarget {
    /// Name of the Secret. A missing Secret is created, unless `kubeconfigUser` is set or the
    /// target is only watched.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Key of the credential in the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
    /// Name of the kubeconfig's user whose token is replaced. Clusters, contexts and other users
    /// stay as they are. Unset: the value is the token itself, not a kubeconfig. A target that is
    /// only watched needs no user: its value is a token or a kubeconfig, and every credential in it
    /// is reported.
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
    /// Lifetime of a token in seconds. The maximum is Rancher's setting auth-token-max-ttl-minutes,
    /// ninety days by default. If Rancher grants less than requested, it does not report this.
    /// Unset: the longest lifetime that Rancher grants, at most a year. The operator may not know
    /// the expiry of a token that another party made. It then assumes this lifetime for the token,
    /// or thirty days if this field is unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 600, max = 31_536_000))]
    pub lifetime_seconds: Option<i64>,
    /// ID of the only cluster that accepts the new tokens. If it is unset and the target is a cloud
    /// credential, the cluster of that credential's kubeconfig is used. If it is unset and the
    /// target is a Secret, the tokens are valid for Rancher itself, and for all clusters that their
    /// user may access.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub cluster: Option<String>,
    /// Whether a cloud credential may get the token of a user other than the cloud credential's
    /// creator. The creator can read that token, and so gets all rights of the token's user. Unset
    /// means false: the API key must belong to the creator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_other_user: Option<bool>,
}

/// Cloud credential for Harvester in a Rancher.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("self.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
        "spec.target.cloudCredential.name: must be the name of its Secret in Rancher's namespace cattle-global-data, such as cc-abcde"),
    validation = ("!has(self.server) || self.server.matches('^https://[^/@?# ]+/?$')",
        "spec.target.cloudCredential.server: must be https://HOST or https://HOST:PORT, with nothing after it"),
)]
pub struct CloudCredentialTarget {
    /// Name of the credential's Secret in Rancher's namespace cattle-global-data, such as
    /// `cc-abcde`. The Secret must exist: it is never created.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// URL at which Rancher reaches this cluster's API server, for example the URL with Harvester's
    /// VIP, `https://192.168.5.10:6443`. Required for a ServiceAccount's token, because the
    /// operator then writes the whole kubeconfig. The server at this URL must have a certificate
    /// that this cluster's own authority has signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 9, max = 512))]
    pub server: Option<String>,
}

/// Rancher server, and the API key for calls to it.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("!has(self.url) || self.url.matches('^https://[^/@?# ]+/?$')",
        "spec.rancher.url: must be https://HOST or https://HOST:PORT, with nothing after it"),
    validation = ("!has(self.certificateAuthority) || self.certificateAuthority.contains('-----BEGIN CERTIFICATE-----')",
        "spec.rancher.certificateAuthority: must be certificates in PEM"),
    validation = ("!has(self.certificateAuthority) || !has(self.certificateAuthoritySecret)",
        "spec.rancher.certificateAuthoritySecret: there is certificateAuthority as well: remove one of the two"),
)]
pub struct RancherServer {
    /// URL of the server, as in Rancher's setting server-url: `https://` and a host. Unset: the URL
    /// in the annotation credentials.harvesterhci.io/rancher-url of the API key's Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 9, max = 512))]
    pub url: Option<String>,
    /// Certificates of the authorities that sign the server's certificate, in PEM. If neither this
    /// field nor certificateAuthoritySecret is set, the operator trusts the certificates under
    /// `ca.crt` in the API key's Secret. If that Secret has none, the operator trusts the public
    /// authorities and the chart's `additionalTrustedCAs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65_536))]
    pub certificate_authority: Option<String>,
    /// Alternative to certificateAuthority: a Secret in the same namespace that holds the
    /// certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_authority_secret: Option<AuthoritySecret>,
    /// API key with which the operator makes and revokes tokens in the Rancher.
    pub minter: Minter,
}

/// Secret with certificates. Its other content, such as a private key, is ignored.
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
    /// Key of the certificates in the Secret. The value is in PEM.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

/// API key with which the operator makes and revokes tokens in a Rancher. The tokens belong to the
/// user of the API key.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("self.secretName.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",
        "spec.rancher.minter.secretName: must be the name of a Secret: lower-case letters, digits, dashes and dots"),
    validation = ("self.key.matches('^[-._a-zA-Z0-9]+$')",
        "spec.rancher.minter.key: must be a key of a Secret: letters, digits, dashes, underscores and dots"),
)]
pub struct Minter {
    /// Name of the Secret in the same namespace that holds the API key.
    #[schemars(length(min = 1, max = 253))]
    pub secret_name: String,
    /// Key of the Secret under which the API key is stored. The value must be only the API key. A
    /// TokenRotation with this Secret and key as its target renews the API key. The API key is sent
    /// only to the URL in the Secret's annotation credentials.harvesterhci.io/rancher-url.
    #[serde(default = "token")]
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

fn token() -> String {
    "token".to_owned()
}
