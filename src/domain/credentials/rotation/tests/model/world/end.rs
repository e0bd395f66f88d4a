//! Invariants after each step and at the end.

use std::collections::BTreeSet;

use super::deletion::has_credential;
use super::{OVERLAP, World, works};
use crate::credentials::rotation::ready::{ReadyFacts, ReadyState};
use crate::credentials::rotation::{
    ObservedState, RotationAction, RotationState, TargetState, idle,
};
use crate::credentials::timestamp::Seconds;

impl World {
    pub(super) fn check(&mut self) -> Result<(), String> {
        self.note();
        let is_deleting = self.plan.deleting.is_some();
        if is_deleting && self.secret.is_none() {
            // A deletion gives credentials no overlap if the target does not exist any more.
            self.held.clear();
        }
        let secret = self.secret.iter().filter(|secret| !secret.spoilt);
        let in_target: BTreeSet<String> =
            secret.flat_map(|secret| secret.token.iter().chain(&secret.kept)).cloned().collect();
        let never = Seconds::MIN / 2;
        let held = self.held.iter().map(|(hash, until)| (hash, *until));
        for (hash, until) in held.chain(in_target.iter().map(|hash| (hash, never))) {
            let credential = &self.credentials[hash];
            let ended = credential.expires.is_some_and(|end| end <= self.now);
            let is_held = in_target.contains(hash);
            let recent = is_held || self.now - until <= OVERLAP && !credential.leaked;
            // A deletion with `Revoke` spares only a foreign credential in the target.
            let may_end = is_deleting && self.plan.revokes && (credential.ours || !is_held);
            if recent && !credential.alive && !ended && !credential.excused && !may_end {
                return Err(format!("{hash} is read, or was just now, and does not work"));
            }
        }
        Ok(())
    }

    /// Runs both workers, without failures and edits, until one credential works and no other
    /// credential of the operator exists. If the user has deleted the TokenRotation, both run until
    /// the deletion is complete.
    pub fn calm(&mut self) -> Result<(), String> {
        self.mend();
        while !self.in_flight.is_empty() {
            self.land();
            self.check()?;
        }
        for worker in &mut self.workers {
            worker.trouble = None;
        }
        for round in 0..4_000 {
            let who = round % 2;
            self.workers[who].looked = None;
            let mut acts = 0;
            loop {
                self.look(who);
                let Some((state, _, seen)) = self.workers[who].looked.clone() else { break };
                let next = self.decide(who, &state, &seen);
                self.check_rest(who, &state, &seen, &next)?;
                if matches!(next, RotationAction::Wait(_)) {
                    break;
                }
                acts += 1;
                if acts > 60 {
                    return Err(format!("no end of it: {next:?}"));
                }
                self.act(who)?;
                self.check()?;
            }
            if self.completed.is_some() {
                return Ok(());
            }
            if self.plan.deleting.is_none() && self.is_calm() {
                return self.one_is_left();
            }
            self.now += 1;
        }
        Err(format!("never calm: {:?}", self.state))
    }

    /// Checks two rules while nothing changes:
    ///
    /// * If a rotation waits and is Ready, its credential works.
    /// * A pause that follows from the state alone is not longer than a pause after a read of the
    ///   target. A deletion always reads the target.
    fn check_rest(
        &self,
        who: usize,
        state: &RotationState,
        seen: &ObservedState,
        next: &RotationAction,
    ) -> Result<(), String> {
        let (plan, now) = (&self.plan, self.now);
        let facts = ReadyFacts::default();
        let ready = ReadyState::of(plan, state, seen, &api::Target::default(), facts);
        let held = match &seen.target {
            TargetState::There { holds, .. } => holds.as_ref(),
            _ => None,
        };
        if matches!(next, RotationAction::Wait(_))
            && ready == Some(ReadyState::current())
            && !held.is_some_and(|held| works(&self.credentials[&held.hash], now))
        {
            return Err(format!("Ready, and {held:?} does not work"));
        }
        let TargetState::There { holds: Some(held), kept: None, .. } = &seen.target else {
            return Ok(());
        };
        if plan.deleting.is_some() {
            return Ok(());
        }
        let exist = |name: &String| seen.existing.iter().flatten().any(|one| one == name);
        let is_recorded = state
            .current
            .as_ref()
            .is_some_and(|one| one.hash == held.hash && (!one.ours || exist(&one.name)))
            && seen.existing.iter().flatten().all(|name| has_credential(state, name));
        let unpublished = self.workers[who].unpublished.clone();
        let alone = idle::step_as_recorded(plan, state, unpublished, now).filter(|_| is_recorded);
        match (alone, next) {
            (Some(RotationAction::Wait(alone)), RotationAction::Wait(next))
                if next.is_none_or(|next| alone.is_some_and(|alone| alone <= next)) =>
            {
                Ok(())
            }
            (Some(RotationAction::Wait(alone)), _) => {
                Err(format!("rests until {alone:?} in spite of {next:?}: {state:?}"))
            }
            _ => Ok(()),
        }
    }

    fn is_calm(&self) -> bool {
        let state = &self.state;
        let held = self.secret.as_ref().and_then(|secret| secret.token.as_ref());
        state.pending.is_none()
            && state.previous.is_empty()
            && held.is_some_and(|hash| works(&self.credentials[hash], self.now))
            && state.current.as_ref().map(|current| &current.hash) == held
    }

    fn one_is_left(&self) -> Result<(), String> {
        let held = self.secret.as_ref().and_then(|secret| secret.token.clone()).unwrap_or_default();
        let held_works = works(&self.credentials[&held], self.now);
        // Every credential that is not revoked counts, even an expired one.
        let ours: BTreeSet<&String> =
            self.credentials.values().filter(|c| c.ours && c.alive).map(|c| &c.name).collect();
        let expected = BTreeSet::from([&self.credentials[&held].name]);
        let expected = if self.credentials[&held].ours { expected } else { BTreeSet::new() };
        if held_works && ours == expected {
            Ok(())
        } else {
            Err(format!("{held} works: {held_works}; of ours there are {ours:?}"))
        }
    }
}
