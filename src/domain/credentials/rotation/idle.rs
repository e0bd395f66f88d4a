//! Pause of a rotation between two reconciles. This module finds the time of the next reconcile. It
//! also finds the next step without a read of the target.

use super::super::timestamp::Seconds;
use super::super::token::TokenClaims;
use super::ready::{UNREADABLE, ready_condition};
use super::{
    ObservedState, RotationAction, RotationPlan, RotationState, TargetCredential, TargetState,
    UnpublishedCredential, decide, expiry, status,
};
use api::{ROTATION_FINALIZER, TokenRotation};

/// Next step if nothing has changed since the last reconcile. `None`: only a reconcile can find the
/// next step. `unpublished`: pending credential in the memory of this process.
pub fn step_if_unchanged(
    rotation: &TokenRotation,
    unpublished: Option<UnpublishedCredential>,
    now: Seconds,
) -> Option<RotationAction> {
    // With a Rancher, the target must be read: only the Rancher server reports which credentials
    // exist there, and the time of its clock.
    if rotation.spec.rancher.is_some() {
        return None;
    }
    let status = rotation.status.as_ref()?;
    let is_followed = status.observed_generation == rotation.metadata.generation;
    let plan = status::plan(rotation);
    let mut finalizers = rotation.metadata.finalizers.iter().flatten();
    let is_held = plan.source.is_none() || finalizers.any(|one| one == ROTATION_FINALIZER);
    // A target that could not be read must be read again, because no event reports a granted right.
    let is_blind =
        ready_condition(rotation).is_some_and(|ready| ready.reason.as_deref() == Some(UNREADABLE));
    if !is_followed || !is_held || plan.deleting.is_some() || is_blind {
        return None;
    }
    let state = status::state(Some(status));
    match step_as_recorded(&plan, &state, unpublished, now)? {
        RotationAction::Wait(until) => {
            let expires = status::expiry(status);
            Some(RotationAction::Wait(next_reconcile(&plan, &state, until, expires, now)))
        }
        step => Some(step),
    }
}

/// Next step if the target holds the recorded credential and all recorded credentials exist.
/// `None`: the state names no credential in the target.
pub(super) fn step_as_recorded(
    plan: &RotationPlan,
    state: &RotationState,
    unpublished: Option<UnpublishedCredential>,
    now: Seconds,
) -> Option<RotationAction> {
    let current = state.current.as_ref()?;
    let claims = TokenClaims { name: current.name.clone(), issued: None, expires: current.expires };
    let held =
        TargetCredential { hash: current.hash.clone(), claims, ..TargetCredential::default() };
    let target = TargetState::There {
        // No late write names this version, so every late write counts as refused here. A reconcile
        // reads the target again before it carries out the step.
        version: "recorded".to_owned(),
        holds: Some(held),
        other_tokens: Vec::new(),
        kept: None,
    };
    Some(decide(
        plan,
        state,
        &ObservedState { now, target, unpublished, ..ObservedState::default() },
    ))
}

/// Time of the next reconcile of a rotation: the earliest of these times that is after `decided`.
///
/// * `until`: time of the next step.
/// * Time from which the condition Expiring is True.
/// * `expires`: earliest expiry of the target's credentials.
///
/// `None`: no such time is known. `decided`: time of the decision that gave `until`. The result may
/// have passed since then.
pub fn next_reconcile(
    plan: &RotationPlan,
    state: &RotationState,
    until: Option<Seconds>,
    expires: Option<Seconds>,
    decided: Seconds,
) -> Option<Seconds> {
    let times = [until, expiry::alarm(plan, state, expires), expires];
    times.into_iter().flatten().filter(|at| *at > decided).min()
}
