//! State of the model: an issuer, a target, the recorded state, and two workers.

mod calls;
mod deletion;
mod end;
mod faults;
mod person;

pub use deletion::{Completion, Moment};
pub use faults::Fault;

use std::collections::{BTreeMap, BTreeSet};

use super::{Form, Life};
use crate::credentials::rotation::schedule::ReplacementSchedule;
use crate::credentials::rotation::*;
use crate::credentials::token::TokenClaims;

const LIFE: Seconds = 600;
const OVERLAP: Seconds = 60;

#[derive(Clone, Copy, Debug)]
pub enum Move {
    Look(usize),
    Act(usize),
    Crash(usize),
    /// The next call of this worker is refused.
    FailNext(usize),
    /// The next call of this worker is carried out, and its answer is lost.
    LoseNext(usize),
    /// The next publication of this worker stays under way until `Land`.
    HangNext(usize),
    Land,
    Pass(Seconds),
    Foreign,
    PutBack(usize),
    Delete,
    Spoil,
    Mend,
    RevokeByHand,
    Ask,
    Leak,
    /// The user deletes the TokenRotation. Field: whether the spec says `Revoke`.
    Remove(bool),
}

#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools)] // Each field is checked separately.
struct Credential {
    name: String,
    alive: bool,
    /// Whether the end of the credential breaks no invariant. The usual reason is that a person has
    /// revoked it.
    excused: bool,
    /// Whether the credential was reported as leaked. A report is about every credential except the
    /// one that is published because of the report.
    leaked: bool,
    ours: bool,
    expires: Option<Seconds>,
    issued: Seconds,
    verified: bool,
}

#[derive(Clone, Debug, Default)]
struct Secret {
    version: u64,
    token: Option<String>,
    kept: Option<String>,
    spoilt: bool,
    /// Whether a person has put a replaced token back. The overlap of that token does not restart.
    put_back: bool,
}

#[derive(Clone, Debug, Default)]
struct Worker {
    /// Last read that the worker has not acted on yet. Field 0: recorded state. Field 1: its
    /// version. Field 2: observed state.
    looked: Option<(RotationState, u64, ObservedState)>,
    unpublished: Option<UnpublishedCredential>,
    trouble: Option<Trouble>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Trouble {
    Fail,
    Lose,
    Hang,
}

/// A write that is under way to the target.
#[derive(Clone, Debug)]
struct Flight {
    /// Version of the Secret that the write replaces. Empty: the write creates the Secret.
    replaces: String,
    hash: String,
    /// Whether the replaced token stays in the Secret beside the new one.
    keep: bool,
    sent: Seconds,
    /// Whether a report of a leak asked for the publication.
    for_leak: bool,
}

pub struct World {
    now: Seconds,
    plan: RotationPlan,
    fault: Option<Fault>,
    credentials: BTreeMap<String, Credential>,
    secret: Option<Secret>,
    versions: u64,
    state: RotationState,
    state_version: u64,
    workers: [Worker; 2],
    in_flight: Vec<Flight>,
    /// Whether each write ends within `SURELY_ANSWERED`. Only the decision for a deletion relies on
    /// that.
    has_short_flights: bool,
    named: BTreeSet<String>,
    /// Map from the hash of a token to the last time at which the token was in the target.
    held: BTreeMap<String, Seconds>,
    /// Number of credentials that were made.
    minted: u64,
    foreign: u64,
    asked: u64,
    pub published: u64,
    /// Completion of the deletion of the TokenRotation. `None`: the TokenRotation exists.
    pub completed: Option<Completion>,
}

impl World {
    pub fn new(form: Form, life: Life, fault: Option<Fault>) -> Self {
        let schedule = ReplacementSchedule {
            left_percent: 33,
            minimum_left: 0,
            jitter_percent: 5,
            window: None,
            paused: false,
        };
        let plan = RotationPlan {
            prefix: "r".into(),
            source: Some(form.source),
            lifetime: LIFE,
            presumed: LIFE,
            schedule,
            overlap: OVERLAP,
            restarts: form.restarts,
            revokes: false,
            is_second: false,
            deleting: None,
            requests: RotationRequests::default(),
        };
        Self {
            now: 1_000_000,
            plan,
            fault,
            credentials: BTreeMap::new(),
            secret: None,
            versions: 0,
            state: RotationState::default(),
            state_version: 0,
            workers: Default::default(),
            in_flight: Vec::new(),
            has_short_flights: life == Life::Deleted,
            named: BTreeSet::new(),
            held: BTreeMap::new(),
            minted: 0,
            foreign: 0,
            asked: 0,
            published: 0,
            completed: None,
        }
    }

    pub fn step(&mut self, step: Move) -> Result<(), String> {
        match step {
            Move::Look(who) => self.look(who),
            Move::Act(who) => self.act(who)?,
            Move::Crash(who) => self.workers[who] = Worker::default(),
            Move::FailNext(who) => self.workers[who].trouble = Some(Trouble::Fail),
            Move::LoseNext(who) => self.workers[who].trouble = Some(Trouble::Lose),
            Move::HangNext(who) => self.workers[who].trouble = Some(Trouble::Hang),
            Move::Land => self.land(),
            Move::Pass(seconds) => self.now += seconds,
            Move::Foreign => self.edit(true, None),
            Move::PutBack(index) => {
                let alive = self.credentials.iter().filter(|(_, c)| c.ours && works(c, self.now));
                let held = alive.filter(|(hash, _)| self.held.contains_key(*hash));
                if let Some(hash) = held.map(|(hash, _)| hash.clone()).nth(index) {
                    self.edit(false, Some(hash));
                }
            }
            Move::Delete => self.delete_secret(),
            Move::Spoil => self.secret.iter_mut().for_each(|secret| secret.spoilt = true),
            Move::Mend => self.mend(),
            Move::RevokeByHand => self.by_hand(),
            Move::Ask => {
                self.asked += 1;
                self.plan.requests.rotate = Some(self.asked.to_string());
            }
            Move::Leak => {
                self.asked += 1;
                self.plan.requests.leaked = Some(self.asked.to_string());
            }
            Move::Remove(revokes) => self.remove(revokes),
        }
        self.check()
    }

    /// Sets the time in `held` to now for the token in the target, unless a person has put the
    /// token back.
    fn note(&mut self) {
        let secret = self.secret.as_ref().filter(|secret| !secret.put_back);
        if let Some(hash) = secret.and_then(|secret| secret.token.clone()) {
            self.held.insert(hash, self.now);
        }
    }

    fn seen(&self, unpublished: Option<UnpublishedCredential>) -> ObservedState {
        let held = |hash: &String| {
            let credential = &self.credentials[hash];
            let claims = TokenClaims {
                name: credential.name.clone(),
                issued: Some(credential.issued).filter(|_| credential.ours),
                expires: credential.expires,
            };
            let is_dead = !works(credential, self.now);
            TargetCredential { hash: hash.clone(), claims, is_dead, ..TargetCredential::default() }
        };
        let target = match &self.secret {
            None => TargetState::Absent,
            Some(secret) if secret.spoilt => TargetState::Unfit("spoilt".into()),
            Some(secret) => TargetState::There {
                version: secret.version.to_string(),
                holds: secret.token.as_ref().map(held),
                other_tokens: secret.kept.iter().cloned().collect(),
                kept: secret.kept.clone(),
            },
        };
        let names = self.credentials.values().filter(|c| c.ours && c.alive);
        let existing = names.map(|c| c.name.clone()).collect::<BTreeSet<_>>();
        let existing = (!self.has(Fault::NeverFind)).then(|| existing.into_iter().collect());
        ObservedState {
            now: self.now,
            target,
            existing,
            unpublished,
            unknown: UnknownReason::Silent,
        }
    }

    /// Reads first the target and then the recorded state, so the state may be newer than the
    /// target. Reads nothing after the completion of a deletion.
    fn look(&mut self, who: usize) {
        if self.completed.is_some() {
            return;
        }
        let seen = self.seen(None);
        self.workers[who].looked = Some((self.state.clone(), self.state_version, seen));
    }

    fn act(&mut self, who: usize) -> Result<(), String> {
        let Some((state, version, mut seen)) = self.workers[who].looked.take() else {
            self.look(who);
            return Ok(());
        };
        // Time may have passed since the worker read the state.
        seen.now = self.now;
        let act = self.decide(who, &state, &seen);
        let trouble = match act {
            RotationAction::Wait(_) | RotationAction::Finish => None,
            _ => self.workers[who].trouble.take(),
        };
        let refused = trouble == Some(Trouble::Fail);
        let lost = trouble.is_some();
        let step = match &act {
            RotationAction::Mint(_) => Some(RotationStep::Mint),
            RotationAction::Verify => Some(RotationStep::Verify),
            RotationAction::Publish { .. } | RotationAction::DropOld => Some(RotationStep::Publish),
            RotationAction::Restart => Some(RotationStep::Restart),
            RotationAction::Revoke(_) => Some(RotationStep::Revoke),
            _ => None,
        };
        if let Some(step) = step.filter(|_| refused) {
            let name = if let RotationAction::Revoke(name) = &act { name } else { "" };
            let next = failed(&self.plan, &state, step, name, self.now);
            self.write(who, version, next, &seen);
            return Ok(());
        }
        match act {
            RotationAction::Write(change, next) if !refused => {
                if self.has(Fault::MintUnrecorded) && change == StateChange::Named {
                    let name = next.pending.clone().unwrap_or_default().name;
                    self.workers[who].unpublished = Some(self.mint(&name)?);
                }
                let current = next.current.clone().unwrap_or_default();
                let leak = next.done.leaked != state.done.leaked;
                let named = (change == StateChange::Named).then(|| next.pending.clone()).flatten();
                if self.write(who, version, *next, &seen) && !lost {
                    if let Some(pending) = named {
                        let unpublished = UnpublishedCredential {
                            name: pending.name,
                            ..UnpublishedCredential::default()
                        };
                        self.workers[who].unpublished = Some(unpublished);
                    }
                    self.published += u64::from(change == StateChange::Published);
                }
                if leak && self.state.current.as_ref() == Some(&current) {
                    // A report of a leak is about all credentials except the new one.
                    for (hash, credential) in &mut self.credentials {
                        credential.leaked |= *hash != current.hash;
                    }
                }
                if lost {
                    self.workers[who].looked = None;
                }
            }
            RotationAction::Mint(name) => {
                let unpublished = self.mint(&name)?;
                self.workers[who].unpublished = (!lost).then_some(unpublished);
            }
            RotationAction::Verify => self.verify(who)?,
            RotationAction::Publish { keep } => {
                if let TargetState::There { holds: Some(held), .. } = &seen.target
                    && keep
                    && held.is_dead
                {
                    return Err(format!("{} is dead, and stays in the target", held.hash));
                }
                self.publish(&state, keep, trouble)?;
            }
            RotationAction::Restart => {
                let next = after_restart(&self.plan, &state, self.now);
                self.write(who, version, next, &seen);
            }
            RotationAction::DropOld => self.drop_kept(&seen),
            RotationAction::Revoke(name) => self.revoke(who, &name),
            RotationAction::Finish => self.finish(version, &state, &seen)?,
            RotationAction::Write(..) | RotationAction::Wait(_) => {}
        }
        Ok(())
    }

    fn write(
        &mut self,
        who: usize,
        version: u64,
        next: RotationState,
        seen: &ObservedState,
    ) -> bool {
        if version != self.state_version {
            return false;
        }
        self.state_version += 1;
        self.named.extend(next.pending.iter().map(|pending| pending.name.clone()));
        self.state = next.clone();
        // The worker goes on with the state that it has just written, and with the target as it
        // was read before.
        self.workers[who].looked = Some((next, self.state_version, seen.clone()));
        true
    }
}

fn works(credential: &Credential, now: Seconds) -> bool {
    credential.alive && credential.expires.is_none_or(|end| end > now)
}
