//! Invariants after each step and at the end.

use std::collections::BTreeSet;

use super::{OVERLAP, World, works};
use crate::credentials::rotation::RotationAction;
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

    /// Runs without disturbances until one credential works and no other of ours exists.
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
                if matches!(
                    self.decide(who, &record, &seen),
                    RotationAction::Wait(_) | RotationAction::Finish
                ) {
                    break;
                }
                acts += 1;
                if acts > 60 {
                    return Err(format!("no end of it: {:?}", self.decide(who, &record, &seen)));
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
        // A credential that is not revoked counts, even if it has expired.
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
