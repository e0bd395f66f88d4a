//! Credentials that a cloud credential keeps beside the one in use, because Rancher deletes a token
//! that no cloud credential names any more.

use super::super::timestamp::EarliestTime;
use super::decide::DecisionInput;
use super::{
    ObservedState, RetiredCredential, RotationAction, RotationPlan, RotationState, Seconds,
    TargetState,
};

/// Action that removes a kept foreign credential from the target, without a revocation, when the
/// overlap of this credential is over. The deletion of a TokenRotation does not wait for the
/// overlap if `plan.revokes` is true. `None`: no foreign credential is kept, or it must stay for
/// now. In the second case, `until` gets the time of the removal, if that time is known.
pub(super) fn drop_kept_foreign(
    input: DecisionInput<'_>,
    until: &mut EarliestTime,
) -> Option<RotationAction> {
    let DecisionInput { plan, state, seen } = input;
    let kept = kept_hash(seen).filter(|_| plan.source.is_some_and(|source| source.prunes))?;
    if state.previous.iter().any(|old| is_kept(old, kept)) {
        return None;
    }
    let end = kept_foreign_until(plan, state)?;
    let end = if plan.deleting.is_some() && plan.revokes { seen.now } else { end };
    let at = end.max(state.retry_after.unwrap_or_default());
    if at > seen.now {
        until.or(at);
        return None;
    }
    Some(RotationAction::DropOld)
}

/// End of the overlap of the credential that the target keeps beside the one in use. Until then,
/// the target cannot keep another replaced credential. `None`: the target keeps none, or the time
/// is not known.
pub(super) fn occupied_until(input: DecisionInput<'_>) -> Option<Seconds> {
    let DecisionInput { plan, state, seen } = input;
    let kept = kept_hash(seen).filter(|_| plan.source.is_some_and(|source| source.prunes))?;
    match state.previous.iter().find(|old| is_kept(old, kept)) {
        Some(old) => old.after,
        None => kept_foreign_until(plan, state),
    }
}

/// End of the overlap of a foreign credential that the target keeps. The overlap begins at the last
/// publication. `None`: a credential is pending, or no credential was published yet.
pub(super) fn kept_foreign_until(plan: &RotationPlan, state: &RotationState) -> Option<Seconds> {
    let published = state.last_rotation.filter(|_| state.pending.is_none())?;
    Some(plan.overlap_end(published))
}

/// Observed state for a TokenRotation without precedence. This TokenRotation must not remove the
/// credential that the target keeps for the TokenRotation with precedence. So the state omits the
/// kept credential, unless the target holds the credential that this TokenRotation published last.
pub(super) fn as_second(state: &RotationState, seen: &ObservedState) -> ObservedState {
    let mut seen = seen.clone();
    if let TargetState::There { holds, kept, .. } = &mut seen.target {
        let current = state.current.as_ref().filter(|current| current.ours);
        let is_ours =
            holds.as_ref().zip(current).is_some_and(|(held, ours)| held.hash == ours.hash);
        *kept = kept.take().filter(|_| is_ours);
    }
    seen
}

pub(super) fn kept_hash(seen: &ObservedState) -> Option<&String> {
    let TargetState::There { kept, .. } = &seen.target else { return None };
    kept.as_ref()
}

pub(super) fn is_kept(old: &RetiredCredential, hash: &String) -> bool {
    old.hash.as_ref() == Some(hash)
}
