//! Placeholder: a Secret that takes the name of a guest's first token Secret, `<cluster>-token`, if
//! that token Secret is missing. The type of a placeholder is not that of token Secrets.
//!
//! A token depends only on names and on the account's UID. So a new Secret with the name of a
//! revoked token's Secret would make the revoked token valid again, although it may have leaked.
//! Rancher's UI asks Harvester for `<cluster>-token` at each upgrade of the guest, and Harvester
//! creates this Secret if it is missing. The placeholder prevents this. If the guest has a valid
//! token, the placeholder contains a copy of that token, and the UI hands out the copy.

use serde_json::json;

use super::{
    ANNOTATION_STANDS_IN, CreationStep, ExistingObjects, GuestCluster, ObjectKind, ObjectRemoval,
    owner,
};

/// Placeholder that must be created, and the placeholder that it replaces.
#[derive(Clone, Debug, PartialEq)]
pub struct NamePlaceholder {
    /// Existing placeholder with other content than the new one. It must be deleted first. `None`:
    /// no placeholder exists.
    pub old: Option<ObjectRemoval>,
    /// Name of the token Secret whose content is copied into the new placeholder. `None`: the guest
    /// has no valid token. The new placeholder then has no content, and only occupies the name of
    /// the guest's first token Secret.
    pub copies: Option<String>,
    /// Placeholder to create, without the copied content.
    pub step: CreationStep,
}

/// Placeholder that must be created, because the guest's first token Secret is missing. A token
/// Secret that was deleted looks like one that never existed, so the placeholder is needed in both
/// cases. `None`, if one of these holds:
///
/// * The account does not exist.
/// * A token Secret has the name of the guest's first token Secret, or `kept` is this name.
/// * Another Secret that is no placeholder has this name.
/// * A placeholder with the right content exists.
///
/// `kept`: name of the token Secret to copy, or `None` if no token is valid.
pub fn name_placeholder(
    guest: &GuestCluster,
    found: &ExistingObjects,
    kept: Option<&str>,
) -> Option<NamePlaceholder> {
    found.account.as_ref()?;
    let name = guest.token();
    if found.tokens.iter().any(|token| token.name == name) || kept == Some(name.as_str()) {
        return None;
    }
    let object = guest.object(ObjectKind::Secret, &name);
    let old = match found.taken.get(&name) {
        None => None,
        Some(taken) => {
            // A Secret without the annotation of a placeholder is foreign, and is not changed.
            let stands_for = taken.stands_for.as_deref()?;
            if stands_for == kept.unwrap_or_default() {
                return None;
            }
            let (uid, version) = (taken.uid.clone(), taken.version.clone());
            Some(ObjectRemoval { object: object.clone(), uid, version })
        }
    };
    let body = json!({
        "metadata": {
            "annotations": {ANNOTATION_STANDS_IN: kept.unwrap_or_default()},
            "ownerReferences": [owner(guest, found)],
        },
        "type": "Opaque",
    });
    let step = CreationStep { object, body };
    Some(NamePlaceholder { old, copies: kept.map(str::to_owned), step })
}
