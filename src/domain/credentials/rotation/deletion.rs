//! Steps before the deletion of a TokenRotation completes.

use super::super::timestamp::EarliestTime;
use super::bookkeeping::{
    abandon_pending, is_held, is_other_token, may_be_revoked, retire, revoke_or_forget,
    update_state, without_late_writes,
};
use super::decide::{DecisionInput, forget_failures};
use super::foreign_credentials::record_found;
use super::kept_credential::{drop_kept_foreign, kept_foreign_until};
use super::{
    ObservedState, RetiredCredential, RotationAction, RotationPlan, RotationState, SURELY_ANSWERED,
    Seconds, StateChange, TargetState, UnknownReason,
};

/// Time that a deletion waits for servers that do not answer, and for revocations that a server
/// refuses. After a restart or an upgrade, a Rancher normally answers within this time.
const PATIENCE: Seconds = 15 * 60;

/// Latest time at which a deletion completes, even if a credential could not be revoked. The time
/// is [`PATIENCE`] after one of these times:
///
/// * The request to delete, if no overlap runs, or if the deletion revokes everything at once.
/// * In other cases, the end of the last running overlap, or `plan.overlap` after the request to
///   delete, whichever is earlier.
pub(super) fn deadline(plan: &RotationPlan, state: &RotationState) -> Seconds {
    let asked = plan.deleting.unwrap_or_default();
    // After a failed revocation, `after` is the end of a pause, not of an overlap.
    let previous = state.previous.iter().filter(|old| old.failures == 0);
    let ends = previous.filter_map(|old| old.after).chain(kept_foreign_until(plan, state));
    let end = ends.max().filter(|_| !plan.revokes).unwrap_or(asked);
    end.min(asked + plan.overlap).max(asked) + PATIENCE
}

/// Names of the recorded credentials that must be revoked, and would not be if a deletion completed
/// now. The credential in the target must be revoked only if `plan.revokes` is true, and if the
/// operator made the credential.
pub fn left_behind<'a>(plan: &RotationPlan, state: &'a RotationState) -> Vec<&'a str> {
    let current = state.current.as_ref().filter(|current| plan.revokes && current.ours);
    let previous = state.previous.iter().map(|old| &old.name);
    let names = previous
        .chain(current.map(|current| &current.name))
        .chain(state.pending.as_ref().map(|pending| &pending.name));
    names.map(String::as_str).collect()
}

/// Reason why the deletion of a TokenRotation does not continue: `unknown`, or else a failed step.
/// `None`: there is neither. `unknown`: reason why the target, or the list of credentials, is not
/// known.
pub fn why_deletion_waits<'a>(
    state: &'a RotationState,
    unknown: Option<&'a str>,
) -> Option<&'a str> {
    let failed = state.last_result.as_deref().filter(|_| state.has_failed());
    // Another step may have succeeded since the revocation failed.
    let unrevoked = (!state.failed_revocations().is_empty()).then_some("Failed Revoke");
    unknown.or(failed).or(unrevoked)
}

/// Next step of a deletion. The pending credential is revoked, and replaced credentials are revoked
/// after their overlap. If `plan.revokes` is true, the operator's credential in the target is
/// revoked too, and no overlap is awaited.
pub(super) fn next_step(input: DecisionInput<'_>) -> RotationAction {
    let DecisionInput { plan, state, seen } = input;
    let last = deadline(plan, state);
    if seen.now >= last {
        return RotationAction::Finish;
    }
    match seen.unknown {
        _ if seen.target != TargetState::Unknown => {}
        UnknownReason::TargetBarred => {}
        // A separate issuer (`is_apart`) lists and revokes credentials without the target's server.
        // The deletion waits for the target's server only if the credential in the target must
        // stay.
        UnknownReason::Barred if plan.is_apart() => {}
        UnknownReason::Silent if plan.is_apart() && plan.revokes => {}
        UnknownReason::Barred | UnknownReason::Unlisted => return RotationAction::Finish,
        UnknownReason::Silent => {
            return RotationAction::Wait(Some(last.min(seen.now + super::READ_AGAIN_AFTER)));
        }
    }
    // If `plan.revokes` is true, the deletion revokes every credential that the operator made. So
    // it does not matter which of them the target holds, and a change of the target is not
    // recorded.
    let news = if plan.revokes { record_found(input) } else { update_state(input) };
    if let Some(act) = news {
        return act;
    }
    if state.pending.is_some() {
        return abandon_pending(input);
    }
    if plan.revokes && state.current.as_ref().is_some_and(|current| current.ours) {
        let mut next = state.clone();
        retire(&mut next, Some(seen.now));
        return RotationAction::write(StateChange::Abandoned, next);
    }
    if !plan.revokes
        && let Some(next) = with_overlaps(input)
    {
        return RotationAction::write(StateChange::Abandoned, next);
    }
    let mut until = EarliestTime::default();
    // In a deletion, `state.retry_after` delays only this removal.
    let removal = drop_kept_foreign(input, &mut until);
    if let Some(act) = removal.or_else(|| forget_failures(input, drop_kept_foreign)) {
        return act;
    }
    for old in &state.previous {
        // `old.after` is the end of an overlap, or of a pause after a failed revocation. An overlap
        // is skipped if `plan.revokes` is true, or if the target was deleted. A deleted target has
        // no readers, but it gets readers again if a late write of `old` creates it.
        let is_absent = seen.target == TargetState::Absent && old.replaces.is_none();
        let is_read = !plan.revokes && !is_absent;
        let after = old.after.filter(|_| is_read || old.failures > 0);
        match after {
            Some(after) if after > seen.now => until.or(after),
            // The target holds the credential, and a client may read it there, so the credential
            // stays.
            _ if !plan.revokes && (is_held(old, seen) || is_other_token(old, seen)) => {}
            _ if plan.revokes || may_be_revoked_by_deletion(old, seen) => {
                return revoke_or_forget(state, old, seen);
            }
            _ => until.or(seen.now + SURELY_ANSWERED),
        }
    }
    until.0.map_or(RotationAction::Finish, |until| RotationAction::Wait(Some(until.min(last))))
}

/// State in which overlaps begin now. `None`: no overlap begins now. The first case that applies
/// decides which overlaps begin:
///
/// 1. Late writes (their outcome is not known) can no longer succeed. The overlaps of their
///    credentials begin.
/// 2. Overlaps wait for a restart of the workloads. These overlaps begin, because a deletion
///    restarts no workloads.
fn with_overlaps(input: DecisionInput<'_>) -> Option<RotationState> {
    let DecisionInput { plan, state, seen } = input;
    if let Some(next) = without_late_writes(input) {
        return Some(next);
    }
    if state.previous.iter().all(|old| old.after.is_some()) {
        return None;
    }
    let mut next = state.clone();
    next.begin_overlaps(plan.overlap_end(seen.now));
    Some(next)
}

/// Whether a deletion of the TokenRotation may revoke `old` now. `old.replaces` is ignored.
/// Precondition: no write of `old` can still succeed, because `old.replaces` is `None`, or because
/// the time in `old.after` is over.
fn may_be_revoked_by_deletion(old: &RetiredCredential, seen: &ObservedState) -> bool {
    let answered = RetiredCredential { replaces: None, ..old.clone() };
    matches!(seen.target, TargetState::Absent | TargetState::Unfit(_) | TargetState::Unknown)
        || may_be_revoked(&answered, seen)
}
