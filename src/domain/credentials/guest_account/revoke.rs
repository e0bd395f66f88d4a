//! What is taken away, and in what order: access first, then rights elsewhere, the account, and last
//! what says whose it was. What a crash leaves behind is found again by the same request.

use super::list::Credential;
use super::roles::{CLOUD_PROVIDER, CSI_CLUSTER, CSI_DRIVER, CSI_SHARED};
use super::{Binding, Found, Guest, Kind, Object, Refused, Subject, is_guests};

/// What `--revoke` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Tokens other than the newest.
    Old,
    /// Everything.
    All,
    /// Everything, of guests that are gone.
    Gone,
    /// One token, by the name of its Secret.
    Token(String),
}

impl From<&str> for What {
    fn from(text: &str) -> Self {
        match text {
            "old" => Self::Old,
            "all" => Self::All,
            "gone" => Self::Gone,
            name => Self::Token(name.to_owned()),
        }
    }
}

/// An object to delete, as it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// Which.
    pub object: Object,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub version: String,
}

/// What becomes of a request to revoke.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revocation {
    /// What goes, in order.
    pub removals: Vec<Removal>,
    /// What stays though it has to do with the guest, and why.
    pub left: Vec<String>,
}

/// Decides. `kept`: the token that has just been handed out, which nobody can have used yet. Without
/// one, the newest stays, and only if it is known to be in use where the others are.
pub fn revoke(
    guest: &Guest,
    found: &Found,
    what: &What,
    kept: Option<&str>,
) -> Result<Revocation, Refused> {
    match what {
        What::Old => old(guest, found, kept),
        What::Token(name) => one(guest, found, name),
        What::All | What::Gone => all(guest, found),
    }
}

fn removal(guest: &Guest, token: &super::Token) -> Removal {
    let object = Object {
        kind: Kind::Secret,
        namespace: Some(guest.namespace.clone()),
        name: token.name.clone(),
    };
    Removal { object, uid: token.uid.clone(), version: token.version.clone() }
}

fn old(guest: &Guest, found: &Found, kept: Option<&str>) -> Result<Revocation, Refused> {
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
        return Err(Refused(vec![format!(
            "--revoke old: nobody has used {} yet, and {} was used on {}: the guest would be cut off. Give \
             the guest its new cloud config first, or name the Secret: --revoke {}",
            newest.name,
            used.name,
            used.last_used.as_deref().unwrap_or_default(),
            used.name
        )]));
    }
    let removals = going.into_iter().map(|token| removal(guest, token)).collect();
    Ok(Revocation { removals, left: Vec::new() })
}

fn one(guest: &Guest, found: &Found, name: &str) -> Result<Revocation, Refused> {
    let own = found.own(guest);
    let Some(token) = own.iter().find(|token| token.name == name) else {
        let mut names: Vec<_> = own.iter().map(|token| token.name.as_str()).collect();
        names.sort_unstable();
        return Err(Refused(vec![format!(
            "--revoke {name:?}: must be old, all, gone, or a token Secret of {}/{}, which are: {}",
            guest.namespace,
            guest.cluster,
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        )]));
    };
    Ok(Revocation { removals: vec![removal(guest, token)], left: Vec::new() })
}

fn all(guest: &Guest, found: &Found) -> Result<Revocation, Refused> {
    let mut revocation = Revocation::default();
    let account = found.account.as_ref();
    if let Some(account) = account
        && !is_guests(guest, account, found)
    {
        return Err(Refused(vec![format!(
            "ServiceAccount {}/{} is there and nothing says that it is a guest cluster's: it is left as it is",
            guest.namespace, guest.cluster
        )]));
    }
    revocation.removals.extend(found.own(guest).into_iter().map(|token| removal(guest, token)));
    let subject = guest.subject();
    let roles = [CLOUD_PROVIDER, CSI_DRIVER, CSI_CLUSTER, CSI_SHARED];
    let of_guest = |binding: &&Binding| {
        binding.subjects.contains(&subject) && roles.iter().any(|role| binding.gives(role))
    };
    // The widest first. The account goes before what says that it is the guest's.
    let here = Some(&guest.namespace);
    let (here, mut elsewhere): (Vec<_>, Vec<_>) =
        found.bindings.iter().filter(of_guest).partition(|b| b.namespace.as_ref() == here);
    elsewhere.sort_by_key(|binding| binding.namespace.is_some());
    take(&subject, elsewhere, &mut revocation);
    if let Some(account) = account {
        let object = Object {
            kind: Kind::ServiceAccount,
            namespace: Some(guest.namespace.clone()),
            name: guest.cluster.clone(),
        };
        let (uid, version) = (account.uid.clone(), account.version.clone());
        revocation.removals.push(Removal { object, uid, version });
    }
    take(&subject, here, &mut revocation);
    Ok(revocation)
}

fn take(subject: &Subject, bindings: Vec<&Binding>, revocation: &mut Revocation) {
    for binding in bindings {
        let object = binding.object();
        if binding.is_only(subject) {
            let (uid, version) = (binding.uid.clone(), binding.version.clone());
            revocation.removals.push(Removal { object, uid, version });
        } else {
            let why = "names others too: take the guest out of it by hand";
            revocation.left.push(format!("{object} {why}"));
        }
    }
}

impl Credential {
    /// Why the guest is not taken for gone, if it is not.
    pub fn lives(&self, now: i64, unused_days: i64) -> Option<String> {
        match self.machines {
            Some(0) => {}
            Some(machines) => return Some(format!("it has {machines} VMs")),
            None => return Some("its VMs cannot be listed".to_owned()),
        }
        let quiet = self.quiet_days(now)?;
        if let Some(rotation) = &self.rotation {
            return Some(format!(
                "TokenRotation {rotation} makes tokens of its account, and of their use there is no note"
            ));
        }
        (quiet < unused_days).then(|| {
            format!("its credential was made or used {quiet} days ago, less than --unused-days {unused_days}")
        })
    }
}
