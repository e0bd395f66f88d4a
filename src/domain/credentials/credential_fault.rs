//! Reasons why a kubeconfig, a cloud credential or a target Secret cannot be used.
//!
//! Invariant: a reason contains nothing secret, because conditions repeat it.

use super::cloud_credential::CREATOR;

/// Reason why a credential cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialFault {
    /// The key of the Secret is not there.
    #[error("it is not there")]
    NotThere,
    /// The text is not YAML.
    #[error("it is not YAML")]
    NotYaml,
    /// The value is missing or a token alone, and the spec names a user of a kubeconfig, or the
    /// reverse.
    #[error("it is no kubeconfig")]
    NoKubeconfig,
    /// The value has no users, so it is no kubeconfig.
    #[error("it is no kubeconfig: it has no users")]
    NoUsers,
    /// The value is a kubeconfig, and the spec names none of its users.
    #[error("it holds a kubeconfig: spec.target.secret.kubeconfigUser must name the user")]
    UserNotNamed,
    /// The current context is missing, or names no user.
    #[error("it has no current context, or that no user")]
    NoCurrentUser,
    /// The user is missing.
    #[error("it has no user {0:?}")]
    NoUser(String),
    /// Two entries have the name of the user.
    #[error("it has two users {0:?}")]
    TwoUsers(String),
    /// The user does not authenticate by a token in the file.
    #[error("its user {user:?} authenticates by {method}, not by a token in the file")]
    OtherMethod {
        /// Name of the user.
        user: String,
        /// Field of the other method.
        method: &'static str,
    },
    /// No context names the user.
    #[error("no context names the user {0:?}, so its token has no server")]
    NoContext(String),
    /// The cluster of the user's context is missing.
    #[error("the cluster of the user {0:?} is not in it")]
    NoCluster(String),
    /// The cluster has a field with which the operator cannot reach its server.
    #[error("its cluster has {0}, with which a token cannot be tested")]
    Untestable(&'static str),
    /// The cluster names no server.
    #[error("its cluster has no server")]
    NoServer,
    /// The kubeconfig says that the server is not verified.
    #[error(
        "its cluster has insecure-skip-tls-verify, so the token would go to any server that answers there: it must have \
         certificate-authority-data instead"
    )]
    Unverified,
    /// The server's URL is not one of HTTPS.
    #[error("its cluster's server must begin with https://: a token is not sent in clear")]
    InClear,
    /// The new content is no YAML.
    #[error("it cannot be written")]
    NotWritable,
    /// The new content would be read as other content.
    #[error("written as YAML it would read as something else")]
    ReadsOtherwise,
    /// The cloud credential is being deleted.
    #[error("it is being deleted")]
    Leaving,
    /// The cloud credential names no user who made it.
    #[error(
        "it has no annotation {CREATOR}: Rancher ignores it, and crashes on one without any annotation"
    )]
    NoCreator,
    /// The cloud credential has no content for Harvester.
    #[error("it is no credential for Harvester")]
    NotForHarvester,
    /// The kubeconfig of the cloud credential says that the server is not verified.
    #[error(
        "its cluster has insecure-skip-tls-verify: a token is not sent to a server that is not verified"
    )]
    UnverifiedCloudCredential,
}
