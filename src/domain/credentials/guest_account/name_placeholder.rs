//! What stands in the place of the first token's Secret once that is revoked.
//!
//! A token Secret's token follows from its name and the account's UID. Harvester's UI asks for the
//! Secret `<cluster>-token` at each upgrade of the guest, and makes it when it is missing: the token
//! that was revoked, perhaps because it had leaked, would work again. So a Secret of another type takes
//! the name. It holds a copy of the token that is valid, so that the UI hands out that one.

use serde_json::{Value, json};

use super::{ANNOTATION_STANDS_IN, Found, Guest, Kind, Object, Removal, owner};

/// How the stand-in is put right.
#[derive(Clone, Debug, PartialEq)]
pub struct StandIn {
    /// The one that is there and holds another token.
    pub old: Option<Removal>,
    /// The Secret whose content it gets. `None`: it stays empty, and holds the name.
    pub copies: Option<String>,
    /// Which Secret it is.
    pub object: Object,
}

/// What is to be done, if anything. `make`: a token of that name was there and is gone.
pub fn stand_in(guest: &Guest, found: &Found, kept: Option<&str>, make: bool) -> Option<StandIn> {
    found.account.as_ref()?;
    let name = guest.token();
    if found.tokens.iter().any(|token| token.name == name) || kept == Some(name.as_str()) {
        return None;
    }
    let object =
        Object { kind: Kind::Secret, namespace: Some(guest.namespace.clone()), name: name.clone() };
    let old = match found.taken.get(&name) {
        None if !make => return None,
        None => None,
        Some(taken) => {
            // Whose it is otherwise, nobody knows.
            let stands_for = taken.stands_for.as_deref()?;
            if stands_for == kept.unwrap_or_default() {
                return None;
            }
            let (uid, version) = (taken.uid.clone(), taken.version.clone());
            Some(Removal { object: object.clone(), uid, version })
        }
    };
    Some(StandIn { old, copies: kept.map(str::to_owned), object })
}

/// Its content without the copied data.
pub fn stand_in_for(guest: &Guest, found: &Found, copies: Option<&str>) -> Value {
    json!({
        "metadata": {
            "annotations": {ANNOTATION_STANDS_IN: copies.unwrap_or_default()},
            "ownerReferences": [owner(guest, found)],
        },
        "type": "Opaque",
    })
}
