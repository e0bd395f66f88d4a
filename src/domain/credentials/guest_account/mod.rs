//! A guest cluster's way into Harvester: an account, what it may do, and its tokens. Which objects
//! these are, and which of them are missing, given what is there.
//!
//! Invariants: objects have the names, contents and owners that Harvester's own
//! `/v1/harvester/kubeconfig` gives them, so that either side takes over what the other made. What is
//! there under such a name and is not the guest's is refused by name, never changed. A token Secret's
//! name is used once in the life of its account: the token is made from names alone, so a Secret that
//! is made again under the name of a revoked one brings the revoked token back to life.

pub mod list;
mod name_placeholder;
pub mod output;
mod revoke;
mod roles;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub use name_placeholder::{StandIn, stand_in, stand_in_for};
pub use revoke::{Removal, Revocation, What, revoke};
pub use roles::{CLOUD_PROVIDER, CSI_CLUSTER, CSI_DRIVER, CSI_SHARED, Csi, SHARED_NAMESPACES, csi};

/// Annotation of a ServiceAccount: it was made for the guest cluster of that name.
pub const ANNOTATION_GUEST: &str = "credentials.harvesterhci.io/guest-cluster";
/// Annotation of a Secret that holds a copy of another's token: that one's name.
pub const ANNOTATION_STANDS_IN: &str = "credentials.harvesterhci.io/stands-in-for";
/// Annotation of a token Secret: whose token it is.
pub const ANNOTATION_ACCOUNT: &str = "kubernetes.io/service-account.name";
/// Annotation of a token Secret: the account's UID.
pub const ANNOTATION_ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
/// Label of a token Secret that the API server keeps: the day of its last use.
pub const LABEL_LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
/// Label of a token Secret: the API server refuses the token since that day.
pub const LABEL_INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
/// The type of a token Secret.
pub const TOKEN_TYPE: &str = "kubernetes.io/service-account-token";

const RBAC: &str = "rbac.authorization.k8s.io";
/// Longest name that Harvester makes of parts.
const LONGEST: usize = 63;

/// Why nothing is done, each reason a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct Refused(pub Vec<String>);

/// A guest cluster, and the namespace of its VMs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Guest {
    /// The namespace.
    pub namespace: String,
    /// The guest cluster's name, which is the account's.
    pub cluster: String,
}

impl Guest {
    /// Checks both names.
    pub fn new(cluster: &str, namespace: &str) -> Result<Self, Refused> {
        let mut faults: Vec<String> = namespace_fault(namespace).into_iter().collect();
        if !is_object_name(cluster) {
            let rule = "must be lower-case letters, digits, '-' and '.', as the name of a ServiceAccount is";
            faults.push(format!("--cluster {cluster:?}: {rule}"));
        } else if cluster == "default" {
            faults.push(
                "--cluster \"default\": the ServiceAccount of that name is the one of every pod in the \
                 namespace, so all of them would have the guest's rights; give the cluster's own name"
                    .to_owned(),
            );
        }
        if faults.is_empty() {
            Ok(Self { namespace: namespace.to_owned(), cluster: cluster.to_owned() })
        } else {
            Err(Refused(faults))
        }
    }

    /// What the guest's bindings are called.
    pub fn binding(&self) -> String {
        safe_name(&[&self.namespace, &self.cluster])
    }

    /// The token Secret that Harvester makes and looks for.
    pub fn token(&self) -> String {
        safe_name(&[&self.cluster, "token"])
    }

    fn subject(&self) -> Subject {
        Subject {
            kind: "ServiceAccount".to_owned(),
            namespace: self.namespace.clone(),
            name: self.cluster.clone(),
        }
    }
}

/// What is wrong with the name of a namespace.
pub fn namespace_fault(namespace: &str) -> Option<String> {
    (!is_label(namespace) || namespace.len() > LONGEST).then(|| {
        format!("--namespace {namespace:?}: must be the name of a namespace: lower-case letters, digits and '-'")
    })
}

/// Whether most objects of Kubernetes may have that name.
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

/// Parts of a name as Harvester puts them together: with its own hash in place of an end that is too
/// long.
fn safe_name(parts: &[&str]) -> String {
    let full = parts.join("-");
    if full.len() <= LONGEST {
        return full;
    }
    let octets = Sha256::digest(&full);
    let hash: Vec<String> = octets.iter().take(3).map(|octet| format!("{octet:02x}")).collect();
    let hash = hash.concat();
    let ends_well =
        full.as_bytes().get(56).is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let (kept, hashed) = if ends_well { (57, 5) } else { (56, 6) };
    let start: String = full.chars().take(kept).collect();
    format!("{start}-{}", hash.chars().take(hashed).collect::<String>())
}

/// Kinds that belong to a guest's credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Kind {
    ServiceAccount,
    Secret,
    ClusterRole,
    RoleBinding,
    ClusterRoleBinding,
}

/// An object by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Object {
    /// What it is.
    pub kind: Kind,
    /// Where it is. `None`: it is the whole cluster's.
    pub namespace: Option<String>,
    /// What it is called.
    pub name: String,
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{:?} {namespace}/{}", self.kind, self.name),
            None => write!(f, "{:?} {}", self.kind, self.name),
        }
    }
}

/// A ServiceAccount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub version: String,
    /// Creation, in seconds since the epoch.
    pub created: i64,
    /// The guest cluster that it says it was made for.
    pub made_for: Option<String>,
}

/// Who is given something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Subject {
    pub kind: String,
    pub namespace: String,
    pub name: String,
}

/// A RoleBinding or a ClusterRoleBinding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Binding {
    /// Where. `None`: a ClusterRoleBinding.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// Kind and name of the role.
    pub role: (String, String),
    /// Who is given it.
    pub subjects: Vec<Subject>,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub version: String,
}

impl Binding {
    fn gives(&self, role: &str) -> bool {
        self.role.0 == "ClusterRole" && self.role.1 == role
    }

    fn is_only(&self, subject: &Subject) -> bool {
        self.subjects.iter().eq([subject])
    }

    fn object(&self) -> Object {
        let kind = match self.namespace {
            Some(_) => Kind::RoleBinding,
            None => Kind::ClusterRoleBinding,
        };
        Object { kind, namespace: self.namespace.clone(), name: self.name.clone() }
    }
}

/// A token Secret, without its token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Token {
    /// Its name.
    pub name: String,
    /// Name and UID of the account.
    pub account: (String, String),
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub version: String,
    /// Creation, in seconds since the epoch.
    pub created: i64,
    /// The day of its last use, as the API server noted it.
    pub last_used: Option<String>,
    /// The day since which the API server refuses it.
    pub invalid_since: Option<String>,
}

/// A Secret under the token's name that is none of the token type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub version: String,
    /// The Secret whose token it holds: see [`stand_in`].
    pub stands_for: Option<String>,
}

/// What there is of a guest's credential.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// Rules of the ClusterRoles that matter and exist.
    pub roles: BTreeMap<String, Value>,
    /// Which of [`SHARED_NAMESPACES`] exist.
    pub shared: BTreeSet<String>,
    /// The account.
    pub account: Option<Account>,
    /// Bindings that matter, by their role, their name or their subjects.
    pub bindings: Vec<Binding>,
    /// Token Secrets of the namespace, of other accounts too.
    pub tokens: Vec<Token>,
    /// Other Secrets of the namespace whose names were asked for.
    pub taken: BTreeMap<String, Taken>,
}

impl Found {
    /// The guest's tokens that the API server accepts, the newest last.
    pub fn valid(&self, guest: &Guest) -> Vec<&Token> {
        let mut valid: Vec<_> =
            self.own(guest).into_iter().filter(|token| token.invalid_since.is_none()).collect();
        valid.sort_by_key(|token| (token.created, token.name.clone()));
        valid
    }

    /// The guest's tokens. Those of an earlier account of its name are going by themselves.
    pub fn own(&self, guest: &Guest) -> Vec<&Token> {
        let Some(account) = &self.account else { return Vec::new() };
        let is_own =
            |token: &&Token| token.account.0 == guest.cluster && token.account.1 == account.uid;
        self.tokens.iter().filter(is_own).collect()
    }
}

/// An object to create.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Which.
    pub object: Object,
    /// Its content.
    pub body: Value,
}

/// The Secret whose token is to be handed out: the newest that works, or a new one. `stamp` makes a
/// name that was never used.
pub fn wanted_token(guest: &Guest, found: &Found, stamp: &str, rotate: bool) -> String {
    let fresh = || safe_name(&[&guest.cluster, "token", stamp]);
    if rotate {
        return fresh();
    }
    if let Some(current) = found.valid(guest).last() {
        return current.name.clone();
    }
    let plain = guest.token();
    let was_used = found.own(guest).iter().any(|token| token.name == plain)
        || found.taken.get(&plain).is_some_and(|taken| taken.stands_for.is_some());
    if was_used { fresh() } else { plain }
}

/// What is missing, in the order in which it is made. With no account, all that follows it is named
/// only: it needs the account's UID.
pub fn plan(guest: &Guest, csi: Csi, token: &str, found: &Found) -> Result<Vec<Step>, Refused> {
    let mut faults = Vec::new();
    let mut steps = Vec::new();
    let account = Object {
        kind: Kind::ServiceAccount,
        namespace: Some(guest.namespace.clone()),
        name: guest.cluster.clone(),
    };
    match &found.account {
        None => steps.push(Step {
            body: json!({"metadata": {"annotations": {ANNOTATION_GUEST: guest.cluster}}}),
            object: account,
        }),
        Some(known) if !is_guests(guest, known, found) => faults.push(format!(
            "{account} is there and nothing says that it is a guest cluster's: its token could open \
             more than a guest needs. Give another --cluster, or, if it is the guest's, annotate it \
             with {ANNOTATION_GUEST}={}",
            guest.cluster
        )),
        Some(_) => {}
    }
    roles::plan(guest, csi, found, &mut steps, &mut faults);
    let secret = Object {
        kind: Kind::Secret,
        namespace: Some(guest.namespace.clone()),
        name: token.to_owned(),
    };
    match found.tokens.iter().find(|there| there.name == token) {
        None if found.taken.contains_key(token) => {
            faults.push(format!("{secret} is there and holds no ServiceAccount's token: it is not ours"));
        }
        None => steps.push(Step { body: token_body(guest, found), object: secret }),
        Some(there) if there.account.0 != guest.cluster => {
            faults.push(format!("{secret} is the token of ServiceAccount {:?}: it is not ours", there.account.0));
        }
        Some(_) if found.own(guest).iter().all(|own| own.name != token) => faults.push(format!(
            "{secret} belongs to an earlier ServiceAccount {:?}: it goes by itself, try again in a moment",
            guest.cluster
        )),
        Some(_) => {}
    }
    if faults.is_empty() { Ok(steps) } else { Err(Refused(faults)) }
}

/// Whether the account is the guest's: it says so, or it already has a guest's rights, as what the UI
/// or the script made has.
fn is_guests(guest: &Guest, account: &Account, found: &Found) -> bool {
    let subject = guest.subject();
    account.made_for.as_deref() == Some(guest.cluster.as_str())
        || found.bindings.iter().any(|b| b.gives(CLOUD_PROVIDER) && b.subjects.contains(&subject))
}

fn token_body(guest: &Guest, found: &Found) -> Value {
    let uid = found.account.as_ref().map(|account| account.uid.as_str()).unwrap_or_default();
    json!({
        "metadata": {
            "annotations": {ANNOTATION_ACCOUNT: guest.cluster, ANNOTATION_ACCOUNT_UID: uid},
            "ownerReferences": [owner(guest, found)],
        },
        "type": TOKEN_TYPE,
    })
}

/// The account as an owner.
fn owner(guest: &Guest, found: &Found) -> Value {
    let uid = found.account.as_ref().map(|account| account.uid.as_str()).unwrap_or_default();
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "name": guest.cluster, "uid": uid})
}

/// What the guest may do in all namespaces and need not, in words.
pub fn too_much(guest: &Guest, found: &Found) -> Vec<String> {
    let subject = guest.subject();
    let say = |binding: &Binding| {
        let object = binding.object();
        if binding.namespace.is_some() || !binding.subjects.contains(&subject) {
            None
        } else if binding.gives(CLOUD_PROVIDER) {
            Some(format!(
                "{object} lets the guest at the LoadBalancers, VMs and volumes of all namespaces; the \
                 RoleBinding is enough: delete it"
            ))
        } else if binding.gives(CSI_DRIVER) {
            Some(format!(
                "{object} lets the guest at the network file systems, snapshots and backups of all \
                 namespaces, and change any VM from Harvester 1.8 on: delete it, then make the cloud config \
                 with --csi narrow; tokens stay as they are"
            ))
        } else {
            None
        }
    };
    found.bindings.iter().filter_map(say).collect()
}

#[cfg(test)]
mod tests;
