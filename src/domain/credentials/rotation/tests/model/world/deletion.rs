//! Deletion of the TokenRotation by the user.

use super::*;
use crate::credentials::rotation::deletion::deadline;

/// State of the rotation in which the user deletes the TokenRotation.
#[derive(Clone, Copy, Debug)]
pub enum Moment {
    Any,
    /// A publication is under way.
    Publication,
    /// A credential waits for its revocation.
    Revocation,
}

/// Completion of a deletion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Completion {
    /// Everything was done that the spec demands.
    InTime,
    /// The time was over for which a deletion waits.
    AtDeadline,
}

impl World {
    pub fn is_at(&self, moment: Moment) -> bool {
        match moment {
            Moment::Any => true,
            Moment::Publication => !self.in_flight.is_empty(),
            Moment::Revocation => !self.state.previous.is_empty(),
        }
    }

    /// Requests the deletion of the TokenRotation. `revokes`: whether the spec says `Revoke`. The
    /// request changes the object, so a write that was decided from an older version fails.
    pub(super) fn remove(&mut self, revokes: bool) {
        self.plan.deleting = Some(self.now);
        self.plan.revokes = revokes;
        self.state_version += 1;
    }

    /// Removes the finalizer, if no other worker has written the status meanwhile. The workers then
    /// have nothing to do any more.
    ///
    /// Each credential of the operator that is left must be one that stays: with `Keep`, the
    /// published one, and those in the target. At the deadline, others may be left as well, if the
    /// report of the deletion names them, or if the state does not contain them.
    pub(super) fn finish(
        &mut self,
        version: u64,
        state: &RotationState,
        seen: &ObservedState,
    ) -> Result<(), String> {
        if version != self.state_version {
            return Ok(());
        }
        let is_late = self.now >= deadline(&self.plan, state);
        self.completed = Some(if is_late { Completion::AtDeadline } else { Completion::InTime });
        self.workers = Default::default();
        let mut stays = BTreeSet::new();
        if !self.plan.revokes {
            stays.extend(state.current.iter().map(|current| current.name.as_str()));
            if let TargetState::There { holds, other_tokens, .. } = &seen.target {
                let in_target = holds.iter().map(|held| &held.hash).chain(other_tokens);
                stays.extend(in_target.map(|hash| self.credentials[hash].name.as_str()));
            }
        }
        if is_late {
            stays.extend(left_behind(&self.plan, state));
        }
        let is_unknown = |name: &str| is_late && !has_credential(state, name);
        let ours = self.credentials.values().filter(|c| c.ours && c.alive);
        let left: BTreeSet<&str> = ours
            .map(|c| c.name.as_str())
            .filter(|name| !stays.contains(name) && !is_unknown(name))
            .collect();
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("the deletion is complete, and {left:?} are not revoked"))
        }
    }
}

/// Whether the state names the credential.
pub(super) fn has_credential(state: &RotationState, name: &str) -> bool {
    let current = state.current.iter().map(|one| &one.name);
    let pending = state.pending.iter().map(|one| &one.name);
    let old = state.previous.iter().map(|old| &old.name);
    current.chain(pending).chain(old).any(|one| one == name)
}
