//! Children of a TokenRotation for all cloud credentials, the parent. A child is a TokenRotation
//! for one credential. This credential is a cloud credential that the user of the parent's API key
//! made, or the API key itself.
//!
//! Invariants:
//!
//! * A credential gets no child if another TokenRotation has precedence for it.
//! * The operator deletes the child of a cloud credential that Rancher does not list only if a read
//!   of the cloud credential by its name finds nothing, or is forbidden.
//! * The spec of a child is the parent's spec with another target, and with the URL of the Rancher.
//!   The spec of the child for the API key has no `onDelete`.
//! * The patch of a child requires the resourceVersion of the observed child.

use std::collections::BTreeMap;

use super::rivals::{API_VERSION, KIND, first_rival, made_by};
use super::rotation::ready::ready_condition;
use crate::limits::text::{LONGEST_TEXT, cut};
use crate::object_fields::merge_patch::merge_patch;
use api::{
    CloudCredentialTarget, ConditionStatus, LABEL_ROTATION, SecretTarget, Target, TokenRotation,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::{Value, json};

/// Maximum number of characters of the parent's name in a child's name. The rest is cut.
const LONGEST_STEM: usize = 180;
/// Maximum number of credentials that each list in a message names. Further credentials are only
/// counted.
const MOST_NAMED: usize = 8;
/// Maximum length, in bytes, of each reason in a message. A reason says why one credential is not
/// replaced. A longer reason is cut.
const LONGEST_REASON: usize = 240;

/// A cloud credential for Harvester, as Rancher lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedCredential {
    /// Name of the cloud credential's Secret.
    pub name: String,
    /// Display name in Rancher's UI. Empty if Rancher has none.
    pub title: String,
    /// ID of the Rancher user who made the cloud credential. Empty if Rancher does not name the
    /// user.
    pub owner: String,
}

/// Observed state of a Rancher, and observed TokenRotations.
#[derive(Clone, Debug)]
pub struct ObservedRancher<'a> {
    /// URL of the Rancher server.
    pub url: &'a str,
    /// ID of the user to whom the API key belongs.
    pub user: &'a str,
    /// All cloud credentials for Harvester that the user of the API key may read.
    pub listed: &'a [ListedCredential],
    /// Whether the API key expires. `None`: not known.
    pub key_expires: Option<bool>,
    /// TokenRotations in all namespaces where the operator has rights. The existing children are
    /// among them.
    pub others: &'a [&'a TokenRotation],
}

/// Wanted children, and their differences from the existing children.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChildRotations {
    /// All children that must exist.
    pub wanted: Vec<TokenRotation>,
    /// Wanted children that do not exist.
    pub missing: Vec<TokenRotation>,
    /// Changes of the existing children whose spec differs from the wanted one.
    pub changed: Vec<ChildChange>,
    /// Existing children that are not wanted and are not being deleted yet.
    pub superfluous: Vec<SuperfluousChild>,
    /// Cloud credentials that Rancher lists and that get no child. The list is empty if the
    /// parent's spec has no source. Field 0: name of the cloud credential's Secret. Field 1:
    /// reason.
    pub apart: Vec<(String, String)>,
}

/// A change of an existing child.
#[derive(Clone, Debug, PartialEq)]
pub struct ChildChange {
    /// Name of the child.
    pub name: String,
    /// Merge patch with the changed fields of the spec, and the resourceVersion of the child.
    pub patch: Value,
}

/// An existing child that is not wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuperfluousChild {
    /// Name of the child.
    pub name: String,
    /// UID of the child.
    pub uid: String,
    /// Name of the child's cloud credential, if Rancher's list of cloud credentials lacks it. The
    /// child is deleted only if a read of this name finds no cloud credential, or is forbidden.
    /// `None`: the child may be deleted at once.
    pub unlisted: Option<String>,
}

/// Compares the wanted children with the existing children of `parent`, a TokenRotation for all
/// cloud credentials. If the spec of `parent` has no source, no child is wanted.
pub fn children(parent: &TokenRotation, seen: &ObservedRancher<'_>) -> ChildRotations {
    let (mine, others): (Vec<_>, Vec<_>) =
        seen.others.iter().copied().partition(|other| is_child(other, parent));
    let mut children = ChildRotations::default();
    let mut wanted = BTreeMap::new();
    let mut want = |child: TokenRotation| -> Option<String> {
        let name = child.metadata.name.clone().unwrap_or_default();
        // `first_rival` compares creation times, and only a stored child has a creation time. So
        // the stored child, if it exists, is passed in place of `child`.
        let there = mine.iter().find(|one| one.metadata.name == child.metadata.name);
        let first = first_rival(there.copied().unwrap_or(&child), others.iter().copied());
        if let Some(first) = first {
            return Some(format!("TokenRotation {} replaces it", full_name(first)));
        }
        let is_taken = wanted.contains_key(&name);
        wanted.entry(name).or_insert(child);
        is_taken.then(|| {
            "its TokenRotation would have the name of the API key's TokenRotation".to_owned()
        })
    };
    if parent.spec.source.is_some() {
        let key = of_key(parent, seen.url);
        let is_there = || mine.iter().any(|one| one.metadata.name == key.metadata.name);
        if seen.key_expires.unwrap_or_else(is_there) {
            want(key);
        }
        for one in seen.listed {
            let why = if one.owner == seen.user {
                want(of_credential(parent, &one.name, seen.url))
            } else {
                let (owner, user) = (&one.owner, seen.user);
                Some(format!(
                    "it belongs to the user {owner:?}, and the API key to the user {user:?}"
                ))
            };
            children.apart.extend(why.map(|why| (one.name.clone(), why)));
        }
    }
    for child in &mine {
        let name = child.metadata.name.clone().unwrap_or_default();
        let goes = child.metadata.deletion_timestamp.is_some();
        match wanted.get(&name) {
            _ if goes => {}
            Some(right) => children.changed.extend(change(child, right)),
            None => {
                let credential = child.spec.target.cloud_credential.as_ref().map(|to| &to.name);
                let is_listed = |name: &&String| seen.listed.iter().any(|one| one.name == **name);
                let unlisted = credential.filter(|name| !is_listed(name)).cloned();
                let uid = child.metadata.uid.clone().unwrap_or_default();
                children.superfluous.push(SuperfluousChild { name, uid, unlisted });
            }
        }
    }
    let is_there = |name: &String| mine.iter().any(|one| one.metadata.name.as_ref() == Some(name));
    let missing = wanted.iter().filter(|(name, _)| !is_there(name));
    children.missing = missing.map(|(_, child)| child.clone()).collect();
    children.wanted = wanted.into_values().collect();
    children
}

/// Change that gives the stored child `stored` the spec of the child `right`. `None`: the specs are
/// equal.
fn change(stored: &TokenRotation, right: &TokenRotation) -> Option<ChildChange> {
    let text = |one: &TokenRotation| serde_json::to_value(&one.spec).unwrap_or_default();
    let spec = merge_patch(&text(stored), &text(right))?;
    let version = &stored.metadata.resource_version;
    let patch = json!({"metadata": {"resourceVersion": version}, "spec": spec});
    Some(ChildChange { name: stored.metadata.name.clone().unwrap_or_default(), patch })
}

/// Summary of the children of one TokenRotation. Field 0: whether every wanted child replaces its
/// credential. Field 1: message about all cloud credentials. `seen`: existing TokenRotations of the
/// parent's namespace. `failures`: map from a child's name to the reason why the child could not be
/// created or changed.
pub fn summary(
    children: &ChildRotations,
    seen: &[&TokenRotation],
    failures: &BTreeMap<String, String>,
) -> (bool, String) {
    let (mut replaced, mut credentials, mut key, mut faults) = (0, 0, "", Vec::new());
    for wanted in &children.wanted {
        let name = wanted.metadata.name.clone().unwrap_or_default();
        let credential = wanted.spec.target.cloud_credential.as_ref();
        credentials += usize::from(credential.is_some());
        let child = seen.iter().find(|one| one.metadata.name == wanted.metadata.name);
        let fault = failures.get(&name).cloned().or_else(|| fault(child.copied()));
        match (fault, credential) {
            (None, Some(_)) => replaced += 1,
            (None, None) => key = " and the API key",
            (Some(why), credential) => {
                let what = credential.map_or("the API key", |to| to.name.as_str());
                faults.push(format!("{what}: {}", cut(why, LONGEST_REASON)));
            }
        }
    }
    let mut parts =
        vec![format!("{replaced} of {credentials} cloud credentials{key} are replaced")];
    let is_whole = faults.is_empty();
    parts.extend(named_in_short("not replaced", faults));
    let apart = children.apart.iter().map(|(name, why)| format!("{name} ({why})"));
    parts.extend(named_in_short("only watched", apart.collect()));
    (is_whole, cut(parts.join("; "), LONGEST_TEXT))
}

fn named_in_short(what: &str, all: Vec<String>) -> Option<String> {
    let more = all.len().saturating_sub(MOST_NAMED);
    let mut named: Vec<String> = all.into_iter().take(MOST_NAMED).collect();
    if more > 0 {
        named.push(format!("{more} others"));
    }
    (!named.is_empty()).then(|| format!("{what}: {}", named.join(", ")))
}

/// Reason why a child does not replace its credential. `None`: the child's condition Ready is True.
/// `child`: the stored child, or `None` if the child does not exist yet.
fn fault(child: Option<&TokenRotation>) -> Option<String> {
    let Some(ready) = child.and_then(ready_condition) else {
        return Some("not reconciled yet".to_owned());
    };
    let words = [ready.reason.clone(), ready.message.clone()];
    let words: Vec<String> = words.into_iter().flatten().collect();
    (ready.status != ConditionStatus::True).then(|| words.join(": "))
}

/// Whether `parent` made the TokenRotation `one` as its child.
pub fn is_child(one: &TokenRotation, parent: &TokenRotation) -> bool {
    one.metadata.namespace == parent.metadata.namespace
        && made_by(one).is_some_and(|owner| Some(&owner.uid) == parent.metadata.uid.as_ref())
}

fn of_credential(parent: &TokenRotation, credential: &str, url: &str) -> TokenRotation {
    let name = credential.to_owned();
    let target = Target {
        cloud_credential: Some(CloudCredentialTarget { name, server: None }),
        ..Target::default()
    };
    child(parent, credential, url, target)
}

/// Child that replaces the API key. It does not inherit `onDelete`, so its deletion does not revoke
/// the key. Reason: the key belongs to a user, who may use it for other purposes too.
fn of_key(parent: &TokenRotation, url: &str) -> TokenRotation {
    let minter = parent.spec.rancher.clone().unwrap_or_default().minter;
    let secret = SecretTarget { name: minter.secret_name, key: minter.key, kubeconfig_user: None };
    let target = Target { secret: Some(secret), ..Target::default() };
    let mut child = child(parent, "api-key", url, target);
    child.spec.on_delete = None;
    child
}

fn child(parent: &TokenRotation, part: &str, url: &str, target: Target) -> TokenRotation {
    let (name, uid) = (parent.metadata.name.clone(), parent.metadata.uid.clone());
    let (name, uid) = (name.unwrap_or_default(), uid.unwrap_or_default());
    let stem: String = name.chars().take(LONGEST_STEM).collect();
    let mut spec = parent.spec.clone();
    spec.target = target;
    if let Some(rancher) = &mut spec.rancher {
        rancher.url = Some(url.to_owned());
    }
    let mut child =
        TokenRotation::new(&format!("{}-{part}", stem.trim_end_matches(['-', '.'])), spec);
    child.metadata.namespace.clone_from(&parent.metadata.namespace);
    child.metadata.labels = Some(BTreeMap::from([(LABEL_ROTATION.to_owned(), uid.clone())]));
    child.metadata.owner_references = Some(vec![OwnerReference {
        api_version: API_VERSION.to_owned(),
        kind: KIND.to_owned(),
        name,
        uid,
        controller: Some(true),
        block_owner_deletion: None,
    }]);
    child
}

fn full_name(rotation: &TokenRotation) -> String {
    let namespace = rotation.metadata.namespace.as_deref().unwrap_or_default();
    format!("{namespace}/{}", rotation.metadata.name.as_deref().unwrap_or_default())
}

/// Message of a TokenRotation that does nothing, because the TokenRotation `first` has precedence
/// for the same credential.
pub fn second_message(first: &TokenRotation) -> String {
    format!(
        "TokenRotation {} already replaces this credential and has precedence: one made by hand comes first, then the \
         older one; this TokenRotation does nothing: delete one of the two",
        full_name(first)
    )
}

#[cfg(test)]
mod tests;
