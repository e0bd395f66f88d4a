//! Revocation of a guest's tokens, or of its whole credential. The objects of a credential are
//! deleted in this order, so that the same request finds the remaining objects after a crash:
//!
//! 1. The tokens.
//! 2. The bindings outside of the guest's namespace.
//! 3. The account.
//! 4. The bindings in the guest's namespace, which show that the account is the guest's.

use super::list::GuestCredential;
use super::{
    ANNOTATION_GUEST, BindingSubject, ExistingObjects, GuestCluster, KindAndName, ObjectKind,
    RefusalReasons, StoredBinding, is_guests,
};

/// Value of `--revoke`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RevokeScope {
    /// All tokens of the guest except the newest valid one.
    Old,
    /// The whole credential: account, bindings and tokens.
    All,
    /// The whole credential of each guest that no longer exists.
    Gone,
    /// A single token. Field 0: name of its Secret.
    Token(String),
}

impl From<&str> for RevokeScope {
    fn from(text: &str) -> Self {
        match text {
            "old" => Self::Old,
            "all" => Self::All,
            "gone" => Self::Gone,
            name => Self::Token(name.to_owned()),
        }
    }
}

/// An object to delete, as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRemoval {
    /// Reference to the object.
    pub object: KindAndName,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub version: String,
}

/// Objects to delete for a request to revoke, and bindings of the guest that are not deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revocation {
    /// Objects to delete, in order.
    pub removals: Vec<ObjectRemoval>,
    /// Sentences about bindings that are not deleted, because they also have other subjects.
    pub left: Vec<String>,
}

/// Objects to delete for `what`, the value of `--revoke`. The error says why nothing may be
/// deleted. `kept`: name of the Secret that `--revoke old` keeps, because the same command has
/// handed out its token. `None`: `--revoke old` keeps the Secret with the newest valid token. If
/// this token was never used, but another valid token was used, `--revoke old` is refused, because
/// the guest would lose its access.
pub fn revoke(
    guest: &GuestCluster,
    found: &ExistingObjects,
    what: &RevokeScope,
    kept: Option<&str>,
) -> Result<Revocation, RefusalReasons> {
    match what {
        RevokeScope::Old => old(guest, found, kept),
        RevokeScope::Token(name) => one(guest, found, name),
        RevokeScope::All | RevokeScope::Gone => all(guest, found),
    }
}

fn removal(guest: &GuestCluster, token: &super::TokenSecret) -> ObjectRemoval {
    let object = guest.object(ObjectKind::Secret, &token.name);
    ObjectRemoval { object, uid: token.uid.clone(), version: token.version.clone() }
}

fn old(
    guest: &GuestCluster,
    found: &ExistingObjects,
    kept: Option<&str>,
) -> Result<Revocation, RefusalReasons> {
    let newest = found.valid(guest).last().copied();
    let stays = kept.or(newest.map(|token| token.name.as_str())).unwrap_or_default();
    let going: Vec<_> = found.own(guest).into_iter().filter(|token| token.name != stays).collect();
    let used = going
        .iter()
        .filter(|token| token.invalid_since.is_none() && token.last_used.is_some())
        .max_by_key(|token| &token.last_used);
    if kept.is_none()
        && let (Some(newest), Some(used)) = (newest, used)
        && newest.last_used.is_none()
    {
        return Err(RefusalReasons(vec![format!(
            "--revoke old: the newest token, in Secret {}, was never used, and the one in Secret \
             {} was used on {}: the guest would lose its access. Give the guest its new cloud \
             config first. To revoke the token in use anyway, give --revoke {}",
            newest.name,
            used.name,
            used.last_used.as_deref().unwrap_or_default(),
            used.name
        )]));
    }
    let removals = going.into_iter().map(|token| removal(guest, token)).collect();
    Ok(Revocation { removals, left: Vec::new() })
}

fn one(
    guest: &GuestCluster,
    found: &ExistingObjects,
    name: &str,
) -> Result<Revocation, RefusalReasons> {
    let own = found.own(guest);
    let Some(token) = own.iter().find(|token| token.name == name) else {
        let mut names: Vec<_> = own.iter().map(|token| token.name.as_str()).collect();
        names.sort_unstable();
        return Err(RefusalReasons(vec![format!(
            "--revoke {name:?}: must be old, all, gone, or a token Secret of guest cluster {}/{}. \
             Its token Secrets are: {}",
            guest.namespace,
            guest.cluster,
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        )]));
    };
    Ok(Revocation { removals: vec![removal(guest, token)], left: Vec::new() })
}

fn all(guest: &GuestCluster, found: &ExistingObjects) -> Result<Revocation, RefusalReasons> {
    let mut revocation = Revocation::default();
    let account = found.account.as_ref();
    if let Some(account) = account
        && !is_guests(guest, account, found)
    {
        return Err(RefusalReasons(vec![format!(
            "ServiceAccount {}/{} is not known to be a guest cluster's, so nothing was deleted. If \
             it is the guest's, annotate it with {ANNOTATION_GUEST}={}",
            guest.namespace, guest.cluster, guest.cluster
        )]));
    }
    revocation.removals.extend(found.own(guest).into_iter().map(|token| removal(guest, token)));
    let subject = guest.subject();
    let of_guest =
        |binding: &&StoredBinding| binding.subjects.contains(&subject) && binding.is_for_guests();
    // ClusterRoleBindings are removed before the RoleBindings outside of the guest's namespace. The
    // account is removed before the bindings in the guest's namespace, because these bindings show
    // that the account is the guest's.
    let here = Some(&guest.namespace);
    let (here, mut elsewhere): (Vec<_>, Vec<_>) =
        found.bindings.iter().filter(of_guest).partition(|b| b.namespace.as_ref() == here);
    elsewhere.sort_by_key(|binding| binding.namespace.is_some());
    remove_subject(&subject, elsewhere, &mut revocation);
    if let Some(account) = account {
        let object = guest.object(ObjectKind::ServiceAccount, &guest.cluster);
        let (uid, version) = (account.uid.clone(), account.version.clone());
        revocation.removals.push(ObjectRemoval { object, uid, version });
    }
    remove_subject(&subject, here, &mut revocation);
    Ok(revocation)
}

fn remove_subject(
    subject: &BindingSubject,
    bindings: Vec<&StoredBinding>,
    revocation: &mut Revocation,
) {
    for binding in bindings {
        let object = binding.object();
        if binding.is_only(subject) {
            let (uid, version) = (binding.uid.clone(), binding.version.clone());
            revocation.removals.push(ObjectRemoval { object, uid, version });
        } else {
            revocation.left.push(format!(
                "{object} has other subjects too: remove ServiceAccount {}/{} from it by hand",
                subject.namespace, subject.name
            ));
        }
    }
}

impl GuestCredential {
    /// Reason why `--revoke gone` keeps the guest's credential. `None`: the guest counts as gone.
    /// It has no VMs, and one of these holds:
    ///
    /// * The account does not exist.
    /// * No TokenRotation makes tokens of the account. The creation of the account, the creation of
    ///   its newest token and the last use of its tokens were at least `unused_days` days ago.
    ///
    /// `now`: seconds since the epoch.
    pub fn reason_to_keep(&self, now: i64, unused_days: i64) -> Option<String> {
        match self.machines {
            Some(0) => {}
            Some(1) => return Some("it has 1 VM".to_owned()),
            Some(machines) => return Some(format!("it has {machines} VMs")),
            None => return Some("its VMs cannot be listed".to_owned()),
        }
        let quiet = self.quiet_days(now)?;
        if let Some(rotation) = &self.rotation {
            return Some(format!(
                "TokenRotation {rotation} makes tokens of its account, and their use is not recorded"
            ));
        }
        (quiet < unused_days).then(|| {
            format!("its credential was made or used {quiet} days ago, less than --unused-days {unused_days}")
        })
    }
}
