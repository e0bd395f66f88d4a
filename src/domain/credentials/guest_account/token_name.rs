//! Name of the Secret whose token a guest gets.
//!
//! A new Secret gets the name without a suffix, `<cluster>-token`, only for a new account. An
//! existing account may have had a token Secret of this name before, and a new Secret of this name
//! would make the revoked token valid again. No trace of the earlier Secret may be left: a user may
//! have deleted it with kubectl, or a revocation may have ended before it created the placeholder.

use super::{ExistingObjects, GuestCluster, safe_name};

/// Name of the Secret whose token the guest gets. `stamp`: suffix that makes a name unique. The
/// first case that applies decides:
///
/// 1. `rotate` is true: a new name with `stamp`, which no Secret of the account had before.
/// 2. The guest has a valid token: the newest Secret with a valid token.
/// 3. The account does not exist, and no Secret of another type has the name of the guest's first
///    token Secret: that name.
/// 4. A foreign Secret has the name of the guest's first token Secret: that name, so that the plan
///    refuses the Secret.
/// 5. In all other cases: a new name with `stamp`.
pub fn wanted_token(
    guest: &GuestCluster,
    found: &ExistingObjects,
    stamp: &str,
    rotate: bool,
) -> String {
    let fresh = || safe_name(&[&guest.cluster, "token", stamp]);
    if rotate {
        return fresh();
    }
    if let Some(current) = found.valid(guest).last() {
        return current.name.clone();
    }
    let plain = guest.token();
    let is_new = found.account.is_none() && !found.taken.contains_key(&plain);
    if is_new || is_foreign(guest, found, &plain) { plain } else { fresh() }
}

/// Whether a Secret named `name` exists that is neither a token Secret of the guest's present
/// account nor a placeholder.
fn is_foreign(guest: &GuestCluster, found: &ExistingObjects, name: &str) -> bool {
    if let Some(taken) = found.taken.get(name) {
        return taken.stands_for.is_none();
    }
    found.tokens.iter().any(|token| token.name == name)
        && found.own(guest).iter().all(|own| own.name != name)
}
