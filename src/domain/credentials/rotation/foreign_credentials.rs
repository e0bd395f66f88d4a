//! Credentials about which the recorded state says too little. There are two kinds:
//!
//! * The issuer has a credential with a name like those that the operator gives, and the state
//!   lacks the credential. The credential is recorded, so that it is revoked.
//! * The target holds a foreign credential, and neither its validity nor its expiry is known. If
//!   the issuer is not separate (`is_apart`), the credential is replaced at once.

use super::decide::DecisionInput;
use super::{
    CurrentEntry, ObservedState, RetiredCredential, RotationAction, RotationPlan, RotationState,
    StateChange,
};

/// Maximum distance between the number in a credential's name and the last recorded number. A
/// credential with a number further ahead does not count as the operator's. Without this limit,
/// another party could make a credential with the highest number. The operator would record this
/// number, and no number would be left for new credentials.
const FURTHEST_AHEAD: u64 = 1_000;

/// Action that records one credential that the state lacks. The issuer has this credential, and its
/// name is one that this plan may have given. `None`: no such credential is known, or the state has
/// no room for more ([`RotationState::is_stuck`]). In the second case, the credential is recorded
/// later, after an old credential was revoked.
pub(super) fn record_found(input: DecisionInput<'_>) -> Option<RotationAction> {
    let DecisionInput { plan, state, seen } = input;
    if state.is_stuck() {
        return None;
    }
    let unknown = |name: &&String| !state.has_credential(name);
    let (found, number) = seen
        .existing
        .iter()
        .flatten()
        .filter(unknown)
        .find_map(|name| Some((name, serial_of(plan, state, name)?)))?;
    let mut next = state.clone();
    // The operator may have published this credential before the status was lost, so the overlap
    // applies.
    next.previous.push(RetiredCredential {
        name: found.clone(),
        after: Some(plan.overlap_end(seen.now)),
        ..RetiredCredential::default()
    });
    next.serial = next.serial.max(number);
    Some(RotationAction::write(StateChange::Found, next))
}

/// Number in `name`, the name of a credential. This plan gives names that consist of its prefix, a
/// dash and a number, but another party can give such names too. `None`: the name has another form,
/// the number is 0, or the number is more than `FURTHEST_AHEAD` above the last recorded number.
pub(super) fn serial_of(plan: &RotationPlan, state: &RotationState, name: &str) -> Option<u64> {
    let number = name.strip_prefix(&plan.prefix)?.strip_prefix('-')?;
    let number = number.parse().ok().filter(|read: &u64| read.to_string() == number)?;
    (1..=state.serial.saturating_add(FURTHEST_AHEAD)).contains(&number).then_some(number)
}

/// Whether the target holds a foreign credential of which only the name is known. Such a credential
/// may expire at any time, so it is replaced at once. False if one of these holds:
///
/// * The state has an expiry of the credential, or says that the issuer keeps it alive.
/// * The issuer is separate (`is_apart`). In this case, other rules decide when the credential is
///   replaced.
pub(super) fn is_unseen(plan: &RotationPlan, state: &RotationState, seen: &ObservedState) -> bool {
    let Some(held) = seen.target.held() else { return false };
    let known = |c: &CurrentEntry| c.ours || c.expires.is_some() || c.kept_alive;
    held.is_unseen && !plan.is_apart() && !state.current.as_ref().is_some_and(known)
}

impl RotationState {
    /// Whether the state contains a credential with this name: as current, as pending, or among
    /// those to be revoked.
    fn has_credential(&self, name: &str) -> bool {
        self.current.as_ref().is_some_and(|current| current.name == name)
            || self.pending.as_ref().is_some_and(|pending| pending.name == name)
            || self.previous.iter().any(|old| old.name == name)
    }
}
