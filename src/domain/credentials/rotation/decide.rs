//! Decision of the next step, from the recorded state and from the observed state.

use super::super::timestamp::EarliestTime;
use super::bookkeeping::{
    abandon_pending, is_other_token, may_be_revoked, recovered, revoke_or_forget, update_state,
    without_late_writes,
};
use super::foreign_credentials::is_unseen;
use super::kept_credential::{as_second, drop_kept_foreign, is_kept, kept_hash, occupied_until};
use super::{
    HELD_ELSEWHERE, ObservedState, PendingEntry, PendingPublication, READ_AGAIN_AFTER,
    RotationAction, RotationPlan, RotationState, RotationStep, Seconds, StateChange, TargetState,
    UnpublishedCredential, deletion, due, failed,
};

/// Facts from which the next step of a rotation follows.
#[derive(Clone, Copy)]
pub(super) struct DecisionInput<'a> {
    pub(super) plan: &'a RotationPlan,
    pub(super) state: &'a RotationState,
    pub(super) seen: &'a ObservedState,
}

/// Returns the next step of a rotation.
pub fn decide(plan: &RotationPlan, state: &RotationState, seen: &ObservedState) -> RotationAction {
    let input = DecisionInput { plan, state, seen };
    match plan.deleting {
        Some(_) if plan.is_second => {
            let seen = &as_second(state, seen);
            return deletion::next_step(DecisionInput { plan, state, seen });
        }
        Some(_) => return deletion::next_step(input),
        None if plan.is_second => return RotationAction::Wait(None),
        None => {}
    }
    // No step is possible while the target's state is unknown. The target is read again later.
    if matches!(seen.target, TargetState::Unknown) {
        return RotationAction::Wait(Some(seen.now + READ_AGAIN_AFTER));
    }
    if let Some(act) = update_state(input) {
        return act;
    }
    if plan.schedule.paused {
        return RotationAction::Wait(None);
    }
    let mut until = EarliestTime::default();
    // A step that is not possible in an unfit target may still be wanted, so its failure stays.
    let is_fit = !matches!(seen.target, TargetState::Unfit(_));
    next_step(input, &mut until)
        .or_else(|| forget_failures(input, next_step).filter(|_| is_fit))
        .unwrap_or(RotationAction::Wait(until.0))
}

/// Next step of a rotation whose recorded state is up to date. `None`: no step is possible now.
/// `until` then gets the time of the next step, if that time is known.
fn next_step(input: DecisionInput<'_>, until: &mut EarliestTime) -> Option<RotationAction> {
    replace(input, until)
        .or_else(|| restart(input, until))
        .or_else(|| revoke(input, until))
        .or_else(|| drop_kept_foreign(input, until))
}

/// Action that forgets the recorded failures, if no failed step is wanted any more. `None`: no
/// failure is recorded, or a failed step waits for its next try. `step`: function that finds the
/// next step. Precondition: `step` returns `None` for `input`.
pub(super) fn forget_failures(
    input: DecisionInput<'_>,
    step: fn(DecisionInput<'_>, &mut EarliestTime) -> Option<RotationAction>,
) -> Option<RotationAction> {
    let DecisionInput { plan, state, seen } = input;
    if state.failures == 0 {
        return None;
    }
    // Without its pause, a step that waits for its next try would be the next step.
    let unpaused = RotationState { retry_after: None, ..state.clone() };
    let input = DecisionInput { plan, state: &unpaused, seen };
    let is_over = step(input, &mut EarliestTime::default()).is_none();
    is_over.then(|| RotationAction::write(StateChange::Recovered, recovered(state)))
}

/// Next step of a replacement that is due or requested. `None`: no step is due, or none is possible
/// now. `until` then gets the time of the next step, if that time is known.
fn replace(input: DecisionInput<'_>, until: &mut EarliestTime) -> Option<RotationAction> {
    let DecisionInput { plan, state, seen } = input;
    let (version, empty) = match &seen.target {
        TargetState::Unknown => return None,
        TargetState::Absent => ("", true),
        // A pending credential that was not published is abandoned at once, because no workload has
        // read it.
        TargetState::Unfit(_) => {
            until.or(seen.now + READ_AGAIN_AFTER);
            let never_sent = state.pending.as_ref().is_some_and(|p| p.publishing.is_none());
            return never_sent.then(|| abandon_pending(input));
        }
        TargetState::There { version, holds, .. } => (version.as_str(), holds.is_none()),
    };
    let retry = state.retry_after.filter(|retry| *retry > seen.now);
    if let Some(pending) = &state.pending {
        // The pending credential is obsolete if the issuer keeps the current credential alive.
        // Exceptions: a request needs the pending credential, or the first replacement is due
        // (`takes_over`).
        let is_obsolete = state.is_kept_alive() && !state.is_asked() && !takes_over(plan, state);
        if plan.source.is_none() || is_obsolete {
            return Some(abandon_pending(input));
        }
        if let Some(retry) = retry {
            until.or(retry);
            return None;
        }
        return Some(continue_pending(input, pending, version));
    }
    plan.source?;
    let requests = plan.requests.beyond(&state.done);
    let due = due(plan, state);
    if let Some(due) = due.filter(|due| due.at > seen.now) {
        until.or(due.at);
    }
    let is_gone = state.is_current_gone(seen);
    let is_due = !state.is_kept_alive() && due.is_none_or(|due| due.at <= seen.now);
    let is_unseen = is_unseen(plan, state, seen);
    let is_first = takes_over(plan, state);
    if !(is_due || is_first || empty || is_gone || is_unseen || !requests.is_none()) {
        return None;
    }
    if let Some(retry) = retry {
        until.or(retry);
        return None;
    }
    if state.is_stuck() {
        until.or(seen.now + READ_AGAIN_AFTER);
        return None;
    }
    let mut next = state.clone();
    next.serial += 1;
    let name = format!("{}-{}", plan.prefix, next.serial);
    let leaked = requests.leaked.is_some();
    next.pending = Some(PendingEntry { name, since: seen.now, requests, publishing: None });
    match occupied_until(input).filter(|at| {
        let expires = state.current.as_ref().and_then(|current| current.expires);
        !leaked && expires.is_none_or(|end| end > *at)
    }) {
        Some(at) if at > seen.now => {
            until.or(at);
            None
        }
        Some(_) => Some(RotationAction::DropOld),
        None => Some(RotationAction::write(StateChange::Named, next)),
    }
}

/// Whether the first replacement is due at once. True for a separate issuer (`is_apart`), if no
/// credential was published yet, and another party made the credential in the target.
fn takes_over(plan: &RotationPlan, state: &RotationState) -> bool {
    plan.is_apart()
        && state.last_rotation.is_none()
        && state.current.as_ref().is_some_and(|current| !current.ours)
}

/// Next step for the pending credential: make, verify, publish or abandon it. `version`: present
/// version of the target, empty if the target does not exist.
fn continue_pending(
    input: DecisionInput<'_>,
    pending: &PendingEntry,
    version: &str,
) -> RotationAction {
    let DecisionInput { plan, state, seen } = input;
    let (readable, now) = (plan.source.is_some_and(|source| source.readable), seen.now);
    let unpublished =
        seen.unpublished.as_ref().filter(|unpublished| unpublished.name == pending.name);
    let made = match unpublished {
        // Another process that believes it is the leader may have the pending credential in memory,
        // so this process waits. If two processes abandoned each other's credentials at once, no
        // credential would ever be published.
        None if !readable && now < pending.since + HELD_ELSEWHERE => {
            return RotationAction::Wait(Some(pending.since + HELD_ELSEWHERE));
        }
        // No process has the pending credential in memory any more, and the issuer cannot show it
        // again.
        None if !readable => return abandon_pending(input),
        None | Some(UnpublishedCredential { made: None, .. }) => {
            return RotationAction::Mint(pending.name.clone());
        }
        Some(UnpublishedCredential { made: Some(made), .. }) => made,
    };
    let end = made.expires.unwrap_or(made.issued + plan.presumed);
    if now - made.issued > (end - made.issued) / 2 {
        // More than half of the new credential's lifetime is over before its publication, or the
        // issuer granted a very short lifetime. Another credential is made later.
        return RotationAction::write(
            StateChange::Abandoned,
            failed(plan, state, RotationStep::Mint, &pending.name, now),
        );
    }
    if !unpublished.is_some_and(|unpublished| unpublished.verified) {
        return RotationAction::Verify;
    }
    let is_recorded = pending
        .publishing
        .as_ref()
        .is_some_and(|publishing| publishing.replaces == version && publishing.made == *made);
    if is_recorded {
        // The old token stays in the target only if it works, because Rancher stops reading a cloud
        // credential that names an unknown token. A leaked token has no overlap, so it does not
        // stay either.
        let is_alive = seen.target.held().is_some_and(|held| !held.is_dead);
        let is_leaked = pending.requests.leaked.is_some();
        let keep = is_alive && !is_leaked && plan.source.is_some_and(|source| source.prunes);
        return RotationAction::Publish { keep };
    }
    let mut next = state.clone();
    if let Some(pending) = &mut next.pending {
        pending.publishing =
            Some(PendingPublication { made: made.clone(), replaces: version.to_owned() });
    }
    RotationAction::write(StateChange::Publishing, next)
}

/// Action that restarts the workloads for the credential in the target. If the restart is done, or
/// the plan restarts no workloads, the action starts the overlap of the old credentials. `None`, if
/// one of these holds:
///
/// * The restart is done or not wanted, and every overlap has been started.
/// * The restart is wanted and not done, but a failed step waits for its next try.
/// * The target contains no credential, or the operator did not make the credential in the target.
fn restart(input: DecisionInput<'_>, until: &mut EarliestTime) -> Option<RotationAction> {
    let DecisionInput { plan, state, seen } = input;
    let current = state.current.as_ref().filter(|current| current.ours)?;
    seen.target.held()?;
    let is_done = state.restarted_for.as_ref() == Some(&current.name);
    if plan.restarts && !is_done {
        if let Some(retry) = state.retry_after.filter(|retry| *retry > seen.now) {
            until.or(retry);
            return None;
        }
        return Some(RotationAction::Restart);
    }
    // Workloads were restarted, or the plan restarts no workloads.
    state.previous.iter().any(|old| old.after.is_none()).then(|| {
        RotationAction::write(StateChange::Restarted, after_restart(plan, state, seen.now))
    })
}

/// State in which the overlap begins now for each old credential whose overlap had not begun. If
/// the plan restarts workloads, the state also records that they were restarted for the credential
/// in the target.
pub fn after_restart(plan: &RotationPlan, state: &RotationState, now: Seconds) -> RotationState {
    let mut next = state.clone();
    if plan.restarts {
        next.restarted_for = next.current.as_ref().map(|current| current.name.clone());
        next.failures = 0;
        next.retry_after = None;
        next.last_result = Some("Published".to_owned());
    }
    next.begin_overlaps(plan.overlap_end(now));
    next
}

/// Next action for the old credentials. `None`: no action is possible now. `until` then gets the
/// time of the next action, if that time is known.
///
/// If a late write (its outcome is not known) can no longer succeed, the action records this. In
/// other cases, the action revokes the first old credential whose overlap is over. If the target
/// keeps this credential for the overlap, the action only removes the credential from the target,
/// and the revocation comes later. These credentials are skipped:
///
/// * The credential in use in the target.
/// * A credential that may have been published, if the target contains no credential.
/// * A credential that a late write can still put into the target.
/// * A credential of which a person has put a copy into the target.
/// * A credential that the target keeps, if a failed step waits for its next try.
fn revoke(input: DecisionInput<'_>, until: &mut EarliestTime) -> Option<RotationAction> {
    let DecisionInput { plan, state, seen } = input;
    if let Some(next) = without_late_writes(input) {
        return Some(RotationAction::write(StateChange::Abandoned, next));
    }
    let prunes = plan.source.is_some_and(|source| source.prunes);
    for old in &state.previous {
        if !may_be_revoked(old, seen) {
            continue;
        }
        match old.after {
            None => {}
            Some(after) if after > seen.now => until.or(after),
            Some(_) if prunes && kept_hash(seen).is_some_and(|kept| is_kept(old, kept)) => {
                match state.retry_after.filter(|retry| *retry > seen.now) {
                    Some(retry) => until.or(retry),
                    None => return Some(RotationAction::DropOld),
                }
            }
            // A person has put a copy of the old credential into the target. The operator neither
            // removes the copy nor revokes the credential.
            Some(_) if is_other_token(old, seen) => {}
            Some(_) => return Some(revoke_or_forget(state, old, seen)),
        }
    }
    None
}
