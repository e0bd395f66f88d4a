//! Faults: deliberate breaks of the decision. The model must notice each of them.

use super::*;

/// Part of the protocol that a run leaves out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    RevokeBeforeOverlap,
    PublishUnverified,
    MintUnrecorded,
    PublishUnguarded,
    ForgetFlight,
    NeverFind,
    OverwriteForeign,
    RevokeWhatIsHeld,
    /// A new credential is named while the target keeps a replaced one whose overlap still runs.
    FillKeptPlace,
    /// A deletion revokes nothing.
    FinishAtOnce,
    /// A deletion revokes the credentials that stay according to the spec.
    RevokeWhatStays,
    /// A deletion leaves the credential that must be revoked according to the spec.
    KeepWhatMustGo,
    /// A deletion does not wait for the end of a publication that may be under way.
    RevokeInFlight,
}

impl Fault {
    pub const ALL: [Self; 13] = [
        Self::RevokeBeforeOverlap,
        Self::PublishUnverified,
        Self::MintUnrecorded,
        Self::PublishUnguarded,
        Self::ForgetFlight,
        Self::NeverFind,
        Self::OverwriteForeign,
        Self::RevokeWhatIsHeld,
        Self::FillKeptPlace,
        Self::FinishAtOnce,
        Self::RevokeWhatStays,
        Self::KeepWhatMustGo,
        Self::RevokeInFlight,
    ];

    /// Kind of the random lives in which the fault shows.
    pub fn life(self) -> Life {
        match self {
            Self::RevokeBeforeOverlap
            | Self::PublishUnverified
            | Self::MintUnrecorded
            | Self::PublishUnguarded
            | Self::ForgetFlight
            | Self::NeverFind
            | Self::OverwriteForeign
            | Self::RevokeWhatIsHeld => Life::Usual,
            Self::FillKeptPlace => Life::Pruned,
            Self::FinishAtOnce
            | Self::RevokeWhatStays
            | Self::KeepWhatMustGo
            | Self::RevokeInFlight => Life::Deleted,
        }
    }

    /// Part of the message of the invariant that the fault breaks.
    pub fn breaks(self) -> &'static str {
        match self {
            Self::PublishUnverified => "is published and was not tested",
            Self::MintUnrecorded => "is made without a recorded name",
            Self::NeverFind => "no end of it",
            Self::FinishAtOnce | Self::KeepWhatMustGo => "are not revoked",
            Self::RevokeBeforeOverlap
            | Self::PublishUnguarded
            | Self::ForgetFlight
            | Self::OverwriteForeign
            | Self::RevokeWhatIsHeld
            | Self::FillKeptPlace
            | Self::RevokeWhatStays
            | Self::RevokeInFlight => "is read, or was just now, and does not work",
        }
    }
}

impl World {
    pub(super) fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    pub(super) fn decide(
        &self,
        who: usize,
        state: &RotationState,
        seen: &ObservedState,
    ) -> RotationAction {
        let mut seen =
            ObservedState { unpublished: self.workers[who].unpublished.clone(), ..seen.clone() };
        let mut state = state.clone();
        if self.has(Fault::PublishUnverified) {
            seen.unpublished
                .iter_mut()
                .for_each(|unpublished| unpublished.verified = unpublished.made.is_some());
        }
        if self.has(Fault::RevokeBeforeOverlap) {
            state.previous.iter_mut().for_each(|old| old.after = Some(0));
        }
        if self.has(Fault::ForgetFlight) {
            state.previous.iter_mut().for_each(|old| old.replaces = None);
        }
        if let TargetState::There { holds: Some(held), .. } = &mut seen.target
            && let Some(current) = &state.current
            && self.has(Fault::OverwriteForeign)
            && state.pending.as_ref().and_then(|p| p.publishing.as_ref()).map(|p| &p.made.hash)
                != Some(&held.hash)
        {
            held.hash.clone_from(&current.hash);
        }
        if let TargetState::There { holds: Some(held), .. } = &mut seen.target
            && self.has(Fault::RevokeWhatIsHeld)
            && state.current.is_some()
            && state.previous.iter().any(|old| old.hash.as_ref() == Some(&held.hash))
        {
            held.hash = state.current.clone().unwrap_or_default().hash;
        }
        if self.plan.deleting.is_some() {
            return self.decide_deletion(&state, &seen);
        }
        let act = decide(&self.plan, &state, &seen);
        if self.has(Fault::FillKeptPlace)
            && matches!(act, RotationAction::Wait(_))
            && let TargetState::There { kept, .. } = &mut seen.target
        {
            *kept = None;
            let named = decide(&self.plan, &state, &seen);
            if matches!(named, RotationAction::Write(StateChange::Named, _)) {
                return named;
            }
        }
        act
    }

    /// Decision after the deletion of the TokenRotation was requested.
    fn decide_deletion(&self, state: &RotationState, seen: &ObservedState) -> RotationAction {
        if self.has(Fault::FinishAtOnce) {
            return RotationAction::Finish;
        }
        let (mut plan, mut state) = (self.plan.clone(), state.clone());
        if self.has(Fault::RevokeInFlight) {
            for old in state.previous.iter_mut().filter(|old| old.replaces.is_some()) {
                old.after = Some(seen.now);
            }
        }
        plan.revokes |= self.has(Fault::RevokeWhatStays);
        plan.revokes &= !self.has(Fault::KeepWhatMustGo);
        decide(&plan, &state, seen)
    }
}
