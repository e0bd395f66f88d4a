//! Changes of the recorded state of a rotation: what the target holds, which credential was
//! published, replaced or abandoned, and which step has failed. This module also decides which old
//! credential may be revoked.

use super::decide::DecisionInput;
use super::foreign_credentials::{record_found, serial_of};
use super::kept_credential::kept_hash;
use super::{
    CurrentEntry, ObservedState, PendingEntry, PendingPublication, RetiredCredential,
    RotationAction, RotationPlan, RotationState, RotationStep, SURELY_ANSWERED, Seconds,
    StateChange, TargetCredential, TargetState, issuer_report,
};

/// Pause after the first failure of a step, in seconds. Each further failure doubles the pause, up
/// to [`LAST_RETRY`]. For a revocation, the limit is [`LAST_REVOKE`].
const FIRST_RETRY: Seconds = 5;
/// Longest pause after a failed step other than a revocation, in seconds.
const LAST_RETRY: Seconds = 600;
/// Longest pause after a failed revocation, in seconds. It is shorter than [`LAST_RETRY`], because
/// the credential may have leaked. Besides, a revocation may fail because the operator lacks a
/// right, and no event reports that an admin has granted the right.
const LAST_REVOKE: Seconds = 120;

/// Action that brings the recorded state up to date with the observed state. `None`, if both of
/// these hold:
///
/// * The credential in the target is the recorded one, and its recorded expiry needs no change. Or
///   no credential in the target is known.
/// * No existing credential is known that the recorded state lacks. Or the recorded state has no
///   room for another one ([`RotationState::is_stuck`]).
pub(super) fn update_state(input: DecisionInput<'_>) -> Option<RotationAction> {
    let DecisionInput { plan, state, seen } = input;
    if let Some(held) = seen.target.held() {
        if has_hash(state.publishing().map(|publishing| &publishing.made.hash), held) {
            return Some(RotationAction::write(
                StateChange::Published,
                published(plan, state, seen.now),
            ));
        }
        if !state.current.as_ref().is_some_and(|current| is_same(plan, current, held)) {
            return Some(RotationAction::write(StateChange::Adopted, adopted(input, held)));
        }
        if let Some(next) = issuer_report::with_reported_expiry(state, held, seen.now) {
            return Some(RotationAction::write(StateChange::Retimed, next));
        }
    }
    record_found(input)
}

/// Whether the target holds the recorded credential. `current`: recorded credential. `held`:
/// credential in the target. The comparison depends on the plan:
///
/// * If the operator replaces the credential, the hashes are compared.
/// * If the credential is only watched, the names and the expiries are compared. Expiries are not
///   compared if only the issuer knows the expiry, because this expiry may change while the
///   credential stays the same. The status has no hash of a watched credential, because the
///   credential may be a password, and a hash would reveal it.
fn is_same(plan: &RotationPlan, current: &CurrentEntry, held: &TargetCredential) -> bool {
    if plan.source.is_some() {
        return current.hash == held.hash;
    }
    let is_asked_for = held.report.is_some() || held.is_unseen;
    let expire_alike = is_asked_for || current.expires == held.claims.expires;
    current.name == held.claims.name && expire_alike
}

fn has_hash(hash: Option<&String>, held: &TargetCredential) -> bool {
    hash.is_some_and(|hash| *hash == held.hash)
}

impl RotationState {
    /// Whether the last recorded result is a failed step.
    pub fn has_failed(&self) -> bool {
        self.last_result.as_ref().is_some_and(|result| result.starts_with("Failed"))
    }

    /// Names of the old credentials whose revocation has failed and has not succeeded since.
    pub(super) fn failed_revocations(&self) -> Vec<&str> {
        self.previous.iter().filter(|old| old.failures > 0).map(|old| old.name.as_str()).collect()
    }

    fn publishing(&self) -> Option<&PendingPublication> {
        self.pending.as_ref()?.publishing.as_ref()
    }

    /// Begins the overlaps that have not begun. `end`: end of these overlaps.
    pub(super) fn begin_overlaps(&mut self, end: Seconds) {
        for old in self.previous.iter_mut().filter(|old| old.after.is_none()) {
            old.after = Some(end);
        }
    }

    /// Whether the operator made the credential in the target, and the issuer no longer has this
    /// credential. False if it is not known which credentials the issuer has.
    pub(super) fn is_current_gone(&self, seen: &ObservedState) -> bool {
        let exists = |name: &String| seen.existing.as_ref().is_none_or(|all| all.contains(name));
        self.current.as_ref().is_some_and(|current| current.ours && !exists(&current.name))
    }
}

impl RotationPlan {
    /// End of an overlap that begins at `now`. One second is added to the overlap, because times
    /// are cut to whole seconds, and an overlap must not be shorter than the spec says.
    pub(super) fn overlap_end(&self, now: Seconds) -> Seconds {
        now + self.overlap + 1
    }
}

impl TargetState {
    /// Credential that a client of the target would use. `None`: there is none, or it is not known.
    pub fn held(&self) -> Option<&TargetCredential> {
        match self {
            Self::There { holds, .. } => holds.as_ref(),
            _ => None,
        }
    }
}

/// State after the pending credential was observed in the target.
fn published(plan: &RotationPlan, state: &RotationState, now: Seconds) -> RotationState {
    let mut next = state.clone();
    let Some(pending) = next.pending.take() else { return next };
    let Some(PendingPublication { made, .. }) = pending.publishing else { return next };
    retire(&mut next, (!plan.restarts).then_some(plan.overlap_end(now)));
    if pending.requests.leaked.is_some() {
        for old in &mut next.previous {
            old.after = Some(now);
        }
        next.done.leaked = pending.requests.leaked;
    }
    if pending.requests.rotate.is_some() {
        next.done.rotate = pending.requests.rotate;
    }
    next.current = Some(CurrentEntry {
        name: pending.name,
        hash: made.hash,
        ours: true,
        issued: made.issued,
        expires: made.expires,
        kept_alive: false,
    });
    next.failures = 0;
    next.retry_after = None;
    next.last_rotation = Some(now);
    next.last_result = Some("Published".to_owned());
    next
}

/// Takes the current credential out of the state `next`. If the operator made this credential, the
/// credential goes to `previous`, the list of credentials to revoke. `after`: earliest time of the
/// revocation. `None`: the overlap begins only after the workloads were restarted.
pub(super) fn retire(next: &mut RotationState, after: Option<Seconds>) {
    if let Some(old) = next.current.take().filter(|current| current.ours) {
        let (name, hash) = (old.name, Some(old.hash));
        next.previous.push(RetiredCredential { name, hash, after, ..RetiredCredential::default() });
    }
}

/// State whose current credential is `held`, the credential that was found in the target.
/// Precondition: `held` is neither the current nor the pending credential of `state`. So one of
/// these events came before:
///
/// * Another party has made the credential.
/// * Another party has put an old credential back.
/// * A late write of the operator, whose outcome was not known, has published the credential.
/// * The operator has published the credential, and the status was lost later.
fn adopted(input: DecisionInput<'_>, held: &TargetCredential) -> RotationState {
    let DecisionInput { plan, state, seen } = input;
    let mut next = state.clone();
    abandon(plan, &mut next, seen.now);
    let end = plan.overlap_end(seen.now);
    retire(&mut next, Some(end));
    // An overlap that waits for a restart of the workloads begins now, because the party that
    // changed the target must restart the workloads itself.
    next.begin_overlaps(end);
    let by_hash = next.previous.iter().position(|old| has_hash(old.hash.as_ref(), held));
    // An entry of `previous` may lack the hash. Such an entry is found by its name.
    let named = |name: &String| *name == held.claims.name;
    let by_name = || next.previous.iter().position(|old| old.hash.is_none() && named(&old.name));
    let again = by_hash.or_else(by_name).map(|at| next.previous.remove(at).name);
    let made_here = |name: &&String| named(name) && serial_of(plan, state, name).is_some();
    let lost = || seen.existing.iter().flatten().find(made_here).cloned();
    let ours = again.or_else(lost);
    if ours.is_some() && kept_hash(seen).is_some() {
        // The operator made the credential, and the target keeps a replaced one beside it, for
        // example after a late write. The overlap of the kept credential begins now.
        next.last_rotation = Some(seen.now);
    }
    next.current = Some(CurrentEntry {
        ours: ours.is_some(),
        name: ours.unwrap_or_else(|| held.claims.name.clone()),
        hash: plan.source.map(|_| held.hash.clone()).unwrap_or_default(),
        issued: held.claims.issued.unwrap_or(seen.now),
        expires: held.claims.expires,
        kept_alive: held.is_kept_alive(),
    });
    next.last_result = Some("Adopted".to_owned());
    next
}

/// Moves the pending credential to `previous`, the list of credentials to revoke. If an attempt to
/// publish the credential was recorded, a client may have read the credential, and the attempt may
/// still succeed. In this case, the revocation waits for the overlap, and for the end of the
/// attempt.
fn abandon(plan: &RotationPlan, next: &mut RotationState, now: Seconds) {
    let Some(PendingEntry { name, publishing, .. }) = next.pending.take() else { return };
    next.previous.push(match publishing {
        None => RetiredCredential { name, after: Some(now), ..RetiredCredential::default() },
        Some(PendingPublication { made, replaces }) => RetiredCredential {
            name,
            hash: Some(made.hash),
            after: Some(plan.overlap_end(now).max(now + SURELY_ANSWERED)),
            replaces: Some(replaces),
            ..RetiredCredential::default()
        },
    });
}

/// Action that abandons the pending credential.
pub(super) fn abandon_pending(input: DecisionInput<'_>) -> RotationAction {
    let mut next = input.state.clone();
    abandon(input.plan, &mut next, input.seen.now);
    RotationAction::write(StateChange::Abandoned, next)
}

/// State without the late writes that can no longer succeed. `None`: the state does not change.
///
/// A late write is a write of a credential into the target whose outcome is not known. If the
/// target has another version than the one that the write replaces, the server refuses the write
/// from now on. But the write may have succeeded before, and a client may have read the credential.
/// Therefore the overlap of this credential begins now.
pub(super) fn without_late_writes(input: DecisionInput<'_>) -> Option<RotationState> {
    let DecisionInput { plan, state, seen } = input;
    let TargetState::There { version, .. } = &seen.target else { return None };
    let is_over =
        |old: &RetiredCredential| old.replaces.as_ref().is_some_and(|replaces| replaces != version);
    if !state.previous.iter().any(is_over) {
        return None;
    }
    let mut next = state.clone();
    for old in next.previous.iter_mut().filter(|old| is_over(old)) {
        old.replaces = None;
        old.after = Some(plan.overlap_end(seen.now));
    }
    Some(next)
}

/// State after `step` has failed. After a failed mint or verification, the pending credential is
/// abandoned. After a failed publication, the credential stays pending, because the write may still
/// have succeeded. `name`: name of the credential that was to be revoked. Only a failed revocation
/// uses `name`.
pub fn failed(
    plan: &RotationPlan,
    state: &RotationState,
    step: RotationStep,
    name: &str,
    now: Seconds,
) -> RotationState {
    let mut next = state.clone();
    next.last_result = Some(format!("Failed {}", step.word()));
    if step == RotationStep::Revoke {
        // Only the revocation of `name` waits for its next try. Other credentials are revoked
        // meanwhile.
        for old in next.previous.iter_mut().filter(|old| old.name == name) {
            old.failures = old.failures.saturating_add(1);
            old.after = Some(now + retry_pause(old.failures).min(LAST_REVOKE));
        }
        return next;
    }
    next.failures = next.failures.saturating_add(1);
    next.retry_after = Some(now + retry_pause(next.failures).min(LAST_RETRY));
    if matches!(step, RotationStep::Mint | RotationStep::Verify) {
        abandon(plan, &mut next, now);
    }
    next
}

/// State without failed steps. The failure of a revocation stays, because revocations are tried
/// again independently of the other steps.
pub(super) fn recovered(state: &RotationState) -> RotationState {
    let mut next = state.clone();
    (next.failures, next.retry_after) = (0, None);
    if next.has_failed() && next.last_result.as_deref() != Some("Failed Revoke") {
        let result = |is_ours: bool| if is_ours { "Published" } else { "Adopted" };
        next.last_result = next.current.as_ref().map(|current| result(current.ours).to_owned());
    }
    next
}

/// Pause in seconds after `failures` consecutive failures. The caller limits the pause.
fn retry_pause(failures: u32) -> Seconds {
    FIRST_RETRY << failures.saturating_sub(1).min(10)
}

/// Action that revokes the credential `old`. If the credential no longer exists, the action removes
/// `old` from the state instead.
pub(super) fn revoke_or_forget(
    state: &RotationState,
    old: &RetiredCredential,
    seen: &ObservedState,
) -> RotationAction {
    let is_there = seen.existing.as_ref().is_none_or(|all| all.contains(&old.name));
    if is_there {
        return RotationAction::Revoke(old.name.clone());
    }
    let mut next = state.clone();
    next.previous.retain(|other| other.name != old.name);
    if next.last_result.as_deref() == Some("Failed Revoke") {
        next.last_result = Some("Revoked".to_owned());
    }
    RotationAction::write(StateChange::Revoked, next)
}

/// Whether the target holds the old credential `old` beside the credential in use.
pub(super) fn is_other_token(old: &RetiredCredential, seen: &ObservedState) -> bool {
    let TargetState::There { other_tokens, .. } = &seen.target else { return false };
    old.hash.as_ref().is_some_and(|hash| other_tokens.contains(hash))
}

/// Whether the target allows the revocation of `old`. True if one of these holds:
///
/// * The state records neither a publication of `old` nor an attempt to publish it.
/// * The target has another credential in use, and no write of `old` with an unknown outcome can
///   still succeed.
pub(super) fn may_be_revoked(old: &RetiredCredential, seen: &ObservedState) -> bool {
    if old.hash.is_none() && old.replaces.is_none() {
        // The credential was never published, or was only found by its name at the issuer.
        return true;
    }
    seen.target.held().is_some() && !is_held(old, seen) && old.replaces.is_none()
}

/// Whether the old credential `old` is the credential in use in the target.
pub(super) fn is_held(old: &RetiredCredential, seen: &ObservedState) -> bool {
    seen.target.held().is_some_and(|held| has_hash(old.hash.as_ref(), held))
}
