//! Name of the Secret whose token a guest gets.
//!
//! A new Secret gets the name without a suffix, `<cluster>-token`, only if the account is new too.
//! An existing account may have had a Secret of this name, and the token of that Secret may have
//! been revoked. A new Secret of the same name would make the revoked token valid again. The
//! operator cannot always see that there was such a Secret: a user may have deleted it with
//! kubectl, or a revocation may have ended before it created the placeholder.

use super::{ExistingObjects, GuestCluster, safe_name};

/// Name of the Secret whose token the guest gets. `stamp`: suffix that makes a name unique. The
/// plain name is the name of the guest's first token Secret. The first case that applies decides:
///
/// 1. `rotate` is true: a new name with `stamp`, which no Secret of the account had before.
/// 2. The guest has a valid token: the name of the newest Secret with a valid token.
/// 3. A foreign Secret has the plain name: the plain name. `plan` then returns an error about the
///    foreign Secret.
/// 4. The account does not exist, and no placeholder has the plain name: the plain name.
/// 5. All other cases: a new name with `stamp`.
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
