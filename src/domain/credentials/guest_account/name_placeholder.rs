//! Placeholder: a Secret of another type that takes the name of a guest's first token Secret if
//! that Secret is missing.
//!
//! A token depends only on the name of its Secret and on the account's UID. Rancher's UI asks
//! Harvester for the Secret `<cluster>-token` at each upgrade of the guest. If that Secret was
//! deleted to revoke its token, Harvester would create it again. The revoked token would then work
//! again, although it may have leaked. The placeholder prevents this. If the guest has a valid
//! token, the placeholder has a copy of it, which the UI hands out.

use serde_json::json;

use super::{
    ANNOTATION_STANDS_IN, CreationStep, ExistingObjects, GuestCluster, ObjectKind, ObjectRemoval,
    owner,
};

/// Placeholder that must be created, and the placeholder that it replaces.
#[derive(Clone, Debug, PartialEq)]
pub struct NamePlaceholder {
    /// Existing placeholder that must be deleted first, because its content is not the one that
    /// `copies` requires. `None`: no placeholder exists.
    pub old: Option<ObjectRemoval>,
    /// Name of the token Secret whose content is copied into the new placeholder. `None`: the guest
    /// has no valid token. The new placeholder then has no content, and only occupies the name of
    /// the guest's first token Secret.
    pub copies: Option<String>,
    /// Placeholder to create, without the copied content.
    pub step: CreationStep,
}

/// Placeholder that must be created, with the name of the guest's first token Secret. It is needed
/// even if no Secret has this name, because the account may have had a token Secret of this name
/// before. `None`, if one of these holds:
///
/// * A token Secret or a foreign Secret has the name.
/// * A placeholder with the right content exists.
/// * The account does not exist.
///
/// `kept`: name of the Secret with the valid token; `None` if no token is valid.
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
