//! Access of a guest cluster to Harvester: its account, its rights and its tokens. Together, they
//! are called the guest's credential. The module computes which objects belong to the credential
//! and which of them are missing.
//!
//! Invariants:
//!
//! * An object that Harvester's own API `/v1/harvester/kubeconfig` also makes has the same name and
//!   owner here. So Harvester and the operator accept each other's objects.
//! * A foreign object, which does not belong to the guest, is never changed or deleted. If a
//!   missing account, role, binding or token needs the name of a foreign object, an error names
//!   that object.
//! * The name of a token Secret is used only once in the life of its account. The reason is that a
//!   token depends only on names and on the account's UID. If a new Secret had the name of a
//!   revoked token's Secret, the revoked token would be valid again.

pub mod list;
mod name_placeholder;
pub mod output;
mod revoke;
mod roles;
mod token_name;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::{Value, json};

pub use name_placeholder::{NamePlaceholder, name_placeholder};
pub use revoke::{ObjectRemoval, Revocation, RevokeScope, revoke};
pub use roles::{
    CLOUD_PROVIDER, CSI_CLUSTER, CSI_DRIVER, CSI_SHARED, CsiAccess, GUEST_ROLES, SHARED_NAMESPACES,
    csi,
};
pub use token_name::wanted_token;

use crate::object_fields::digest::sha256_hex;

/// Annotation of a ServiceAccount: name of the guest cluster for which the account was made.
pub const ANNOTATION_GUEST: &str = "credentials.harvesterhci.io/guest-cluster";
/// Annotation of a placeholder: name of the token Secret whose content is copied. Empty: the
/// placeholder has no content.
pub const ANNOTATION_STANDS_IN: &str = "credentials.harvesterhci.io/stands-in-for";
/// Annotation of a token Secret: name of the token's account.
pub const ANNOTATION_ACCOUNT: &str = "kubernetes.io/service-account.name";
/// Annotation of a token Secret: UID of the token's account.
pub const ANNOTATION_ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
/// Label of a token Secret, set by the API server: day of the token's last use.
pub const LABEL_LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
/// Label of a token Secret, set by kube-controller-manager: day since which the API server refuses
/// the token.
pub const LABEL_INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
/// Type of a token Secret.
pub const TOKEN_TYPE: &str = "kubernetes.io/service-account-token";

/// Last sentence of an error: the remedy if a foreign object has a name that the guest needs.
const OTHER: &str = "Give another --cluster, or delete the object if it is not needed";
const RBAC: &str = "rbac.authorization.k8s.io";
/// Maximum length, in bytes, of a name that Harvester builds from parts.
const LONGEST: usize = 63;

/// Reasons why a command is refused, one text for each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct RefusalReasons(pub Vec<String>);

/// A guest cluster and the namespace of its VMs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GuestCluster {
    /// Namespace of the guest's VMs and account.
    pub namespace: String,
    /// Name of the guest cluster and of its account.
    pub cluster: String,
}

impl GuestCluster {
    /// Guest cluster `cluster` with its VMs in `namespace`. The error says why a name is invalid.
    pub fn new(cluster: &str, namespace: &str) -> Result<Self, RefusalReasons> {
        let mut faults: Vec<String> = namespace_fault(namespace).into_iter().collect();
        if !is_object_name(cluster) {
            let rule = "must be the name of a ServiceAccount: lower-case letters, digits, '-', '.'";
            faults.push(format!("--cluster {cluster:?}: {rule}"));
        } else if cluster == "default" {
            faults.push(
                "--cluster \"default\": every pod in the namespace uses the ServiceAccount of that \
                 name by default, and would get the guest's rights: give the guest cluster's own \
                 name"
                    .to_owned(),
            );
        }
        if faults.is_empty() {
            Ok(Self { namespace: namespace.to_owned(), cluster: cluster.to_owned() })
        } else {
            Err(RefusalReasons(faults))
        }
    }

    /// Name of the guest's ClusterRoleBinding, and of its RoleBinding to the cloud provider's role.
    /// Other RoleBindings that `cloud-config` makes for the guest have this name with a suffix.
    pub fn binding(&self) -> String {
        safe_name(&[&self.namespace, &self.cluster])
    }

    /// Name of the token Secret that Harvester itself makes for the guest: the guest's first token
    /// Secret.
    pub fn token(&self) -> String {
        safe_name(&[&self.cluster, "token"])
    }

    /// Reference to an object in the guest's namespace.
    fn object(&self, kind: ObjectKind, name: &str) -> KindAndName {
        KindAndName { kind, namespace: Some(self.namespace.clone()), name: name.to_owned() }
    }

    fn subject(&self) -> BindingSubject {
        BindingSubject {
            kind: "ServiceAccount".to_owned(),
            namespace: self.namespace.clone(),
            name: self.cluster.clone(),
        }
    }
}

/// Error text about an invalid value of `--namespace`. `None`: the value is valid.
pub fn namespace_fault(namespace: &str) -> Option<String> {
    (!is_label(namespace) || namespace.len() > LONGEST).then(|| {
        format!(
            "--namespace {namespace:?}: must be the name of a namespace: lower-case letters, \
             digits and '-'"
        )
    })
}

/// Whether the text is a DNS subdomain, which is a valid name for most kinds of objects.
pub(super) fn is_object_name(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label)
}

fn is_label(text: &str) -> bool {
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.len() <= 253
        && text.bytes().all(|c| inner(c) || c == b'-')
        && text.bytes().next().is_some_and(inner)
        && text.bytes().next_back().is_some_and(inner)
}

/// Joins parts to a name, as Harvester does. If the name is longer than `LONGEST`, a hash replaces
/// its end.
fn safe_name(parts: &[&str]) -> String {
    let full = parts.join("-");
    if full.len() <= LONGEST {
        return full;
    }
    let hash = sha256_hex(full.as_bytes());
    let ends_well =
        full.as_bytes().get(56).is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let (kept, hashed) = if ends_well { (57, 5) } else { (56, 6) };
    let start: String = full.chars().take(kept).collect();
    format!("{start}-{}", &hash[..hashed])
}

/// Kinds of objects that belong to a guest's credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum ObjectKind {
    ServiceAccount,
    Secret,
    ClusterRole,
    RoleBinding,
    ClusterRoleBinding,
}

/// Reference to an object by kind and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KindAndName {
    /// Kind of the object.
    pub kind: ObjectKind,
    /// Namespace of the object. `None`: the object is cluster-scoped.
    pub namespace: Option<String>,
    /// Name of the object.
    pub name: String,
}

impl KindAndName {
    /// Reference to a RoleBinding in `namespace`. `None`: reference to a ClusterRoleBinding.
    fn binding(namespace: Option<&str>, name: &str) -> Self {
        let kind = namespace.map_or(ObjectKind::ClusterRoleBinding, |_| ObjectKind::RoleBinding);
        Self { kind, namespace: namespace.map(str::to_owned), name: name.to_owned() }
    }
}

impl fmt::Display for KindAndName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{:?} {namespace}/{}", self.kind, self.name),
            None => write!(f, "{:?} {}", self.kind, self.name),
        }
    }
}

/// A ServiceAccount, as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredAccount {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub version: String,
    /// Creation, in seconds since the epoch.
    pub created: i64,
    /// Guest cluster that the account's annotation names. `None`: the annotation is missing.
    pub made_for: Option<String>,
}

/// Subject of a binding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct BindingSubject {
    pub kind: String,
    pub namespace: String,
    pub name: String,
}

/// A RoleBinding or a ClusterRoleBinding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredBinding {
    /// Namespace of a RoleBinding. `None`: a ClusterRoleBinding.
    pub namespace: Option<String>,
    /// Name of the binding.
    pub name: String,
    /// Role of the binding. Field 0: its kind, such as ClusterRole. Field 1: its name.
    pub role: (String, String),
    /// Subjects that get the role.
    pub subjects: Vec<BindingSubject>,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub version: String,
}

impl StoredBinding {
    fn gives(&self, role: &str) -> bool {
        self.role.0 == "ClusterRole" && self.role.1 == role
    }

    /// Whether the role of the binding is one of those that guests get.
    fn is_for_guests(&self) -> bool {
        GUEST_ROLES.iter().any(|role| self.gives(role))
    }

    fn is_only(&self, subject: &BindingSubject) -> bool {
        self.subjects.iter().eq([subject])
    }

    fn object(&self) -> KindAndName {
        KindAndName::binding(self.namespace.as_deref(), &self.name)
    }
}

/// A token Secret, without its token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenSecret {
    /// Name of the Secret.
    pub name: String,
    /// ServiceAccount that the token authenticates. Field 0: its name. Field 1: its UID.
    pub account: (String, String),
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub version: String,
    /// Creation, in seconds since the epoch.
    pub created: i64,
    /// Day of the token's last use, as the API server recorded it. `None`: no use is recorded.
    pub last_used: Option<String>,
    /// Day since which the API server refuses the token. `None`: the API server accepts the token.
    pub invalid_since: Option<String>,
}

/// A Secret with a name that a guest's token Secret needs, but with another type. It may be a
/// placeholder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForeignSecret {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub version: String,
    /// Name of the token Secret from which the content of this placeholder is copied
    /// ([`name_placeholder()`]). Empty: no content. `None`: this Secret is no placeholder.
    pub stands_for: Option<String>,
}

/// Existing objects of a guest's credential.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExistingObjects {
    /// Rules of the ClusterRoles that guests get, by the ClusterRole's name. The map contains only
    /// ClusterRoles that exist.
    pub roles: BTreeMap<String, Value>,
    /// Namespaces of [`SHARED_NAMESPACES`] that exist.
    pub shared: BTreeSet<String>,
    /// Account of the guest. `None`: the account does not exist.
    pub account: Option<StoredAccount>,
    /// Bindings that have the guest's account as a subject, or whose name begins with
    /// [`GuestCluster::binding`].
    pub bindings: Vec<StoredBinding>,
    /// Token Secrets of all accounts in the guest's namespace.
    pub tokens: Vec<TokenSecret>,
    /// Secrets that are no token Secrets, but have a name that a token Secret of the guest needs.
    /// The key is the name. The code that reads the objects chooses the names.
    pub taken: BTreeMap<String, ForeignSecret>,
}

impl ExistingObjects {
    /// Token Secrets of the guest, the newest last. Only those with a token that the API server
    /// accepts.
    pub fn valid(&self, guest: &GuestCluster) -> Vec<&TokenSecret> {
        let mut valid: Vec<_> =
            self.own(guest).into_iter().filter(|token| token.invalid_since.is_none()).collect();
        valid.sort_by_key(|token| (token.created, token.name.clone()));
        valid
    }

    /// Token Secrets of the guest's present account. Kubernetes deletes the token Secrets of an
    /// earlier account with the same name, so these do not count.
    pub fn own(&self, guest: &GuestCluster) -> Vec<&TokenSecret> {
        let Some(account) = &self.account else { return Vec::new() };
        let is_own = |token: &&TokenSecret| {
            token.account.0 == guest.cluster && token.account.1 == account.uid
        };
        self.tokens.iter().filter(is_own).collect()
    }
}

/// An object to create.
#[derive(Clone, Debug, PartialEq)]
pub struct CreationStep {
    /// Reference to the object.
    pub object: KindAndName,
    /// Content of the object, without apiVersion, kind, name and namespace.
    pub body: Value,
}

/// Objects of the guest's credential that are missing, in the order in which they must be created.
/// The error lists the obstacles, such as a foreign object with the name of a missing one. If the
/// account is missing, the caller must create only the account, and then call this function again:
/// the content of the other objects needs the account's UID. `token`: name of the token Secret.
pub fn plan(
    guest: &GuestCluster,
    csi: CsiAccess,
    token: &str,
    found: &ExistingObjects,
) -> Result<Vec<CreationStep>, RefusalReasons> {
    let mut faults = Vec::new();
    let mut steps = Vec::new();
    let account = guest.object(ObjectKind::ServiceAccount, &guest.cluster);
    match &found.account {
        None => steps.push(CreationStep {
            body: json!({"metadata": {"annotations": {ANNOTATION_GUEST: guest.cluster}}}),
            object: account,
        }),
        Some(known) if !is_guests(guest, known, found) => faults.push(format!(
            "{account} exists, but is not known to be a guest cluster's: its token could give more \
             rights than a guest needs. Give another --cluster. If the account is the guest's, \
             annotate it with {ANNOTATION_GUEST}={}",
            guest.cluster
        )),
        Some(_) => {}
    }
    roles::plan(guest, csi, found, &mut steps, &mut faults);
    let secret = guest.object(ObjectKind::Secret, token);
    match found.tokens.iter().find(|there| there.name == token) {
        None if found.taken.get(token).is_some_and(|taken| taken.stands_for.is_some()) => {
            faults.push(format!(
                "{secret} has become a placeholder while the command ran: run the command again"
            ));
        }
        None if found.taken.contains_key(token) => {
            faults.push(format!("{secret} exists, but is not a token Secret. {OTHER}"));
        }
        None => steps.push(CreationStep { body: token_body(guest, found), object: secret }),
        Some(there) if there.account.0 != guest.cluster => {
            let other = &there.account.0;
            faults.push(format!("{secret} is the token of ServiceAccount {other:?}. {OTHER}"));
        }
        Some(_) if found.own(guest).iter().all(|own| own.name != token) => faults.push(format!(
            "{secret} belongs to an earlier ServiceAccount {:?}. Kubernetes will delete it: run \
             the command again in a moment",
            guest.cluster
        )),
        Some(_) => {}
    }
    if faults.is_empty() { Ok(steps) } else { Err(RefusalReasons(faults)) }
}

/// Whether `account` belongs to the guest: the account's annotation names the guest, or the account
/// has the cloud provider's role. The role is enough, because Rancher's UI and Harvester's script
/// make accounts without the annotation.
fn is_guests(guest: &GuestCluster, account: &StoredAccount, found: &ExistingObjects) -> bool {
    let subject = guest.subject();
    account.made_for.as_deref() == Some(guest.cluster.as_str())
        || found.bindings.iter().any(|b| b.gives(CLOUD_PROVIDER) && b.subjects.contains(&subject))
}

fn token_body(guest: &GuestCluster, found: &ExistingObjects) -> Value {
    let owner = owner(guest, found);
    let uid = &owner["uid"];
    json!({
        "metadata": {
            "annotations": {ANNOTATION_ACCOUNT: guest.cluster, ANNOTATION_ACCOUNT_UID: uid},
            "ownerReferences": [owner],
        },
        "type": TOKEN_TYPE,
    })
}

/// Owner reference to the guest's account.
fn owner(guest: &GuestCluster, found: &ExistingObjects) -> Value {
    let uid = found.account.as_ref().map(|account| account.uid.as_str()).unwrap_or_default();
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "name": guest.cluster, "uid": uid})
}

/// Sentences about ClusterRoleBindings that give the guest more rights than the guest needs. Each
/// sentence is about one binding, whose rights apply in all namespaces.
pub fn too_much(guest: &GuestCluster, found: &ExistingObjects) -> Vec<String> {
    let subject = guest.subject();
    let describe = |binding: &StoredBinding| {
        let object = binding.object();
        if binding.namespace.is_some() || !binding.subjects.contains(&subject) {
            None
        } else if binding.gives(CLOUD_PROVIDER) {
            Some(format!(
                "{object} gives the guest access to the LoadBalancers, VMs and volumes of all \
                 namespaces: delete this ClusterRoleBinding, the guest's RoleBinding is enough"
            ))
        } else if binding.gives(CSI_DRIVER) {
            Some(format!(
                "{object} gives the guest access to the network file systems, snapshots and \
                 backups of all namespaces, and from Harvester 1.8 on the right to change every \
                 VM: delete this ClusterRoleBinding, then run the command with --csi narrow. \
                 Tokens stay valid"
            ))
        } else {
            None
        }
    };
    found.bindings.iter().filter_map(describe).collect()
}

#[cfg(test)]
mod tests;
