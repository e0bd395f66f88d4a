//! Reasons why a kubeconfig, a cloud credential or a target Secret cannot be used.
//!
//! Invariant: a reason contains nothing secret, because conditions repeat it.

/// Annotation of a cloud credential's Secret: ID of the Rancher user who made the cloud credential.
pub(super) const CREATOR: &str = "field.cattle.io/creatorId";

/// Reason why the operator cannot use a kubeconfig, a cloud credential or a target Secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialFault {
    /// The spec names a user of a kubeconfig, but the target Secret does not have the key that the
    /// spec names, or the value is empty.
    #[error("it is missing or empty")]
    NotThere,
    /// The text of the kubeconfig is not YAML.
    #[error("it is not YAML")]
    NotYaml,
    /// The spec names a user of a kubeconfig, but no kubeconfig was read from the target Secret.
    /// The fault is also reported for the reverse: the spec names no user, but a kubeconfig was
    /// read.
    #[error("it is not a kubeconfig")]
    NoKubeconfig,
    /// The text has no entry in `users`, so it is no kubeconfig.
    #[error("it is not a kubeconfig, because it has no users")]
    NoUsers,
    /// The target Secret's value is a kubeconfig, but the spec names no user of a kubeconfig.
    #[error("it is a kubeconfig: spec.target.secret.kubeconfigUser must name one of its users")]
    UserNotNamed,
    /// The kubeconfig's current context is missing, or names no user.
    #[error("it has no current context, or its current context names no user")]
    NoCurrentUser,
    /// The kubeconfig has no user with this name.
    #[error("it has no user {0:?}")]
    NoUser(String),
    /// Two user entries of the kubeconfig have this name.
    #[error("it has two users {0:?}")]
    TwoUsers(String),
    /// The kubeconfig's user has a method of authentication other than a token in the kubeconfig.
    /// The user may have a token as well.
    #[error("its user {user:?} authenticates by {method}, not by a token in the file")]
    OtherMethod {
        /// Name of the user.
        user: String,
        /// Field of the user's entry that selects this method, such as `exec`.
        method: &'static str,
    },
    /// No context of the kubeconfig names the user.
    #[error("no context names the user {0:?}, so its token has no server")]
    NoContext(String),
    /// The kubeconfig lacks the cluster of the user's context, or the context names no cluster.
    #[error("it does not contain the cluster of the user {0:?}")]
    NoCluster(String),
    /// The kubeconfig's entry for the cluster has the field `proxy-url`, or the field
    /// `certificate-authority`, which is the path of a file. The operator can use neither, so it
    /// cannot test a token at that cluster. Field 0: name of the field.
    #[error("its cluster has {0}, so the operator cannot test a token there")]
    Untestable(&'static str),
    /// The kubeconfig's entry for the cluster names no server.
    #[error("its cluster has no server")]
    NoServer,
    /// The kubeconfig turns off the check of the server's certificate.
    #[error(
        "its cluster has insecure-skip-tls-verify, so the token would go to any server that answers there: it must have \
         certificate-authority-data instead"
    )]
    Unverified,
    /// The URL of the kubeconfig's server does not begin with `https://`.
    #[error(
        "its cluster's server must begin with https://: the operator sends no token without TLS"
    )]
    InClear,
    /// The new kubeconfig cannot be written as YAML.
    #[error("its new content cannot be written as YAML")]
    NotWritable,
    /// The new kubeconfig, written as YAML, is not parsed to the same value.
    #[error("its new content, written as YAML, would be read as another value")]
    ReadsOtherwise,
    /// The cloud credential is being deleted.
    #[error("it is being deleted")]
    Leaving,
    /// The cloud credential's Secret does not name the user who made the cloud credential.
    #[error(
        "it has no annotation {CREATOR}: Rancher ignores such a Secret, and its server crashes on a Secret without annotations"
    )]
    NoCreator,
    /// The cloud credential has no kubeconfig for Harvester.
    #[error("it is not a credential for Harvester")]
    NotForHarvester,
    /// The cloud credential's kubeconfig turns off the check of the server's certificate.
    #[error(
        "its cluster has insecure-skip-tls-verify: a token is not sent to a server that is not verified"
    )]
    UnverifiedCloudCredential,
}
