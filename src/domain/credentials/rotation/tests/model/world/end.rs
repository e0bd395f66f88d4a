//! Invariants after each step and at the end.

use std::collections::BTreeSet;

use super::{OVERLAP, World, works};
use crate::credentials::rotation::ready::{ReadyFacts, ReadyReason};
use crate::credentials::rotation::{
    ObservedState, RotationAction, RotationRecord, TargetState, idle,
};
use crate::credentials::timestamp::Seconds;

impl World {
    pub(super) fn check(&mut self) -> Result<(), String> {
        self.note();
        let in_target = self.secret.as_ref().filter(|s| !s.spoilt).and_then(|s| s.token.clone());
        let never = Seconds::MIN / 2;
        let held = self.held.iter().map(|(hash, until)| (hash, *until));
        for (hash, until) in held.chain(in_target.iter().map(|hash| (hash, never))) {
            let credential = &self.credentials[hash];
            let ended = credential.expires.is_some_and(|end| end <= self.now);
            let is_held = in_target.as_ref() == Some(hash);
            let recent = is_held || self.now - until <= OVERLAP && !credential.leaked;
            if recent && !credential.alive && !ended && !credential.by_hand {
                return Err(format!("{hash} is read, or was just now, and does not work"));
            }
        }
        Ok(())
    }

    /// Runs both workers, without failures and edits, until one credential works and no other
    /// credential of the operator exists.
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
                let Some((record, _, seen)) = self.workers[who].looked.clone() else { break };
                let next = self.decide(who, &record, &seen);
                self.check_rest(who, &record, &seen, &next)?;
                if matches!(next, RotationAction::Wait(_) | RotationAction::Finish) {
                    break;
                }
                acts += 1;
                if acts > 60 {
                    return Err(format!("no end of it: {next:?}"));
                }
                self.act(who)?;
                self.check()?;
            }
            if self.is_calm() {
                return self.one_is_left();
            }
            self.now += 1;
        }
        Err(format!("never calm: {:?}", self.record))
    }

    /// Checks two rules while nothing changes:
    ///
    /// * If a rotation waits and is Ready, its credential works.
    /// * A pause that follows from the record alone is not longer than a pause after a read of the
    ///   target.
    fn check_rest(
        &self,
        who: usize,
        record: &RotationRecord,
        seen: &ObservedState,
        next: &RotationAction,
    ) -> Result<(), String> {
        let (plan, now) = (&self.plan, self.now);
        let facts = ReadyFacts::default();
        let ready = ReadyReason::of(plan, record, seen, &api::Target::default(), facts);
        let held = match &seen.target {
            TargetState::There { holds, .. } => holds.as_ref(),
            _ => None,
        };
        if matches!(next, RotationAction::Wait(_))
            && ready == Some(ReadyReason::Current)
            && !held.is_some_and(|held| works(&self.credentials[&held.hash], now))
        {
            return Err(format!("Ready, and {held:?} does not work"));
        }
        let TargetState::There { holds: Some(held), kept: None, .. } = &seen.target else {
            return Ok(());
        };
        let exist = |name: &String| seen.existing.iter().flatten().any(|one| one == name);
        let is_known = |name: &&String| {
            let current = record.current.iter().map(|one| &one.name);
            let pending = record.pending.iter().map(|one| &one.name);
            let old = record.previous.iter().map(|old| &old.name);
            current.chain(pending).chain(old).any(|one| one == *name)
        };
        let is_recorded = record
            .current
            .as_ref()
            .is_some_and(|one| one.hash == held.hash && (!one.ours || exist(&one.name)))
            && seen.existing.iter().flatten().all(|name| is_known(&name));
        let unpublished = self.workers[who].unpublished.clone();
        let alone = idle::step_as_recorded(plan, record, unpublished, now).filter(|_| is_recorded);
        match (alone, next) {
            (Some(RotationAction::Wait(alone)), RotationAction::Wait(next))
                if next.is_none_or(|next| alone.is_some_and(|alone| alone <= next)) =>
            {
                Ok(())
            }
            (Some(RotationAction::Wait(alone)), _) => {
                Err(format!("rests until {alone:?} in spite of {next:?}: {record:?}"))
            }
            _ => Ok(()),
        }
    }

    fn is_calm(&self) -> bool {
        let record = &self.record;
        let held = self.secret.as_ref().and_then(|secret| secret.token.as_ref());
        record.pending.is_none()
            && record.previous.is_empty()
            && held.is_some_and(|hash| works(&self.credentials[hash], self.now))
            && record.current.as_ref().map(|current| &current.hash) == held
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
