//! Decision of the next step, from the record and from what is observed.

use super::beside::{drop_foreign, is_of, kept, occupied_until};
use super::strangers::{find, is_unseen, number};
use super::{
    CurrentEntry, IN_OTHER_HANDS, LOOK_AGAIN, ObservedState, PendingEntry, PendingPublication,
    RecordChange, RetiredCredential, RotationAction, RotationPlan, RotationRecord, RotationStep,
    Seconds, TargetCredential, TargetState, UnpublishedCredential, deletion, due, failed, term,
};

/// Returns the next step.
pub fn decide(
    plan: &RotationPlan,
    record: &RotationRecord,
    seen: &ObservedState,
) -> RotationAction {
    if plan.deleting.is_some() {
        return deletion::leave(plan, record, seen);
    }
    // Without a read of the target nothing is decided.
    if matches!(seen.target, TargetState::Unknown) {
        return RotationAction::Wait(Some(seen.now + LOOK_AGAIN));
    }
    if let Some(act) = settle(plan, record, seen) {
        return act;
    }
    if plan.schedule.paused {
        return RotationAction::Wait(None);
    }
    let mut until = EarliestTime::default();
    replace(plan, record, seen, &mut until)
        .or_else(|| restart(plan, record, seen, &mut until))
        .or_else(|| revoke(plan, record, seen, &mut until))
        .or_else(|| drop_foreign(plan, record, seen, &mut until))
        .unwrap_or(RotationAction::Wait(until.0))
}

/// Earliest of several times.
#[derive(Default)]
pub(super) struct EarliestTime(pub(super) Option<Seconds>);

impl EarliestTime {
    pub(super) fn or(&mut self, at: Seconds) {
        self.0 = Some(self.0.map_or(at, |until| until.min(at)));
    }
}

/// Updates the record to what the target holds and to the credentials that exist.
pub(super) fn settle(
    plan: &RotationPlan,
    record: &RotationRecord,
    seen: &ObservedState,
) -> Option<RotationAction> {
    if let TargetState::There { holds: Some(held), .. } = &seen.target {
        if is(record.publishing().map(|publishing| &publishing.made.hash), held) {
            return Some(write(RecordChange::Published, published(plan, record, seen.now)));
        }
        if !record.current.as_ref().is_some_and(|current| is_same(plan, current, held)) {
            return Some(write(RecordChange::Adopted, adopted(plan, record, seen, held)));
        }
        if let Some(next) = term::retimed(record, held, seen.now) {
            return Some(write(RecordChange::Retimed, next));
        }
    }
    find(plan, record, seen)
}

/// Whether the target still holds the recorded credential. A credential that is only watched is
/// compared by its name and expiry: it may be a password, and a hash in a status would reveal it.
fn is_same(plan: &RotationPlan, current: &CurrentEntry, held: &TargetCredential) -> bool {
    if plan.source.is_some() {
        return current.hash == held.hash;
    }
    let is_asked_for = held.term.is_some() || held.is_unseen;
    let ends_alike = is_asked_for || current.expires == held.says.expires;
    current.name == held.says.name && ends_alike
}

fn is(hash: Option<&String>, held: &TargetCredential) -> bool {
    hash.is_some_and(|hash| *hash == held.hash)
}

pub(super) fn write(change: RecordChange, record: RotationRecord) -> RotationAction {
    RotationAction::Write(change, Box::new(record))
}

impl RotationRecord {
    fn publishing(&self) -> Option<&PendingPublication> {
        self.pending.as_ref()?.publishing.as_ref()
    }

    pub(super) fn knows(&self, name: &str) -> bool {
        self.current.as_ref().is_some_and(|current| current.name == name)
            || self.pending.as_ref().is_some_and(|pending| pending.name == name)
            || self.previous.iter().any(|old| old.name == name)
    }
}

/// Record after the pending credential was observed in the target.
fn published(plan: &RotationPlan, record: &RotationRecord, now: Seconds) -> RotationRecord {
    let mut next = record.clone();
    let Some(pending) = next.pending.take() else { return next };
    let Some(PendingPublication { made, .. }) = pending.publishing else { return next };
    // One second more, because times are cut to whole seconds.
    retire(&mut next, (!plan.restarts).then_some(now + plan.overlap + 1));
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

/// Moves the current credential to those that are to be revoked, if the operator made it.
fn retire(next: &mut RotationRecord, after: Option<Seconds>) {
    if let Some(old) = next.current.take().filter(|current| current.ours) {
        let (name, hash) = (old.name, Some(old.hash));
        next.previous.push(RetiredCredential { name, hash, after, ..RetiredCredential::default() });
    }
}

/// Record after another party has changed the target: it holds a foreign credential, or an old one
/// again.
fn adopted(
    plan: &RotationPlan,
    record: &RotationRecord,
    seen: &ObservedState,
    held: &TargetCredential,
) -> RotationRecord {
    let mut next = record.clone();
    abandon(plan, &mut next, seen.now);
    let after = Some(seen.now + plan.overlap + 1);
    retire(&mut next, after);
    // The party that changed the target is responsible for the restart of workloads.
    for old in next.previous.iter_mut().filter(|old| old.after.is_none()) {
        old.after = after;
    }
    let by_hash = next.previous.iter().position(|old| is(old.hash.as_ref(), held));
    // A credential of ours whose record was lost is found by its own name.
    let named = |name: &String| *name == held.says.name;
    let by_name = || next.previous.iter().position(|old| old.hash.is_none() && named(&old.name));
    let again = by_hash.or_else(by_name).map(|at| next.previous.remove(at).name);
    let made_here = |name: &&String| named(name) && number(plan, record, name).is_some();
    let lost = || seen.existing.iter().flatten().find(made_here).cloned();
    let ours = again.or_else(lost);
    next.current = Some(CurrentEntry {
        ours: ours.is_some(),
        name: ours.unwrap_or_else(|| held.says.name.clone()),
        hash: plan.source.map(|_| held.hash.clone()).unwrap_or_default(),
        issued: held.says.issued.unwrap_or(seen.now),
        expires: held.says.expires,
        kept_alive: held.is_kept_alive(),
    });
    next.last_result = Some("Adopted".to_owned());
    next
}

/// Moves the pending credential to those that are to be revoked. If its publication was recorded,
/// it may have been read, and the overlap applies.
pub(super) fn abandon(plan: &RotationPlan, next: &mut RotationRecord, now: Seconds) {
    let Some(PendingEntry { name, publishing, .. }) = next.pending.take() else { return };
    next.previous.push(match publishing {
        None => RetiredCredential { name, after: Some(now), ..RetiredCredential::default() },
        Some(PendingPublication { made, replaces }) => RetiredCredential {
            name,
            hash: Some(made.hash),
            after: Some(now + plan.overlap + 1),
            replaces: Some(replaces),
            ..RetiredCredential::default()
        },
    });
}

/// Makes and publishes another credential, if that is due or requested.
fn replace(
    plan: &RotationPlan,
    record: &RotationRecord,
    seen: &ObservedState,
    until: &mut EarliestTime,
) -> Option<RotationAction> {
    let (version, empty) = match &seen.target {
        TargetState::Unknown => return None,
        TargetState::Absent => ("", true),
        // A pending credential that was not published is abandoned at once: no workload has read
        // it.
        TargetState::Unfit(_) => {
            until.or(seen.now + LOOK_AGAIN);
            let never_sent = record.pending.as_ref().is_some_and(|p| p.publishing.is_none());
            return never_sent.then(|| given_up(plan, record, seen.now));
        }
        TargetState::There { version, holds, .. } => (version.as_str(), holds.is_none()),
    };
    let retry = record.retry_after.filter(|retry| *retry > seen.now);
    if let Some(pending) = &record.pending {
        let hand = seen.hand.as_ref().filter(|hand| hand.name == pending.name);
        // The pending credential is obsolete, too, if the issuer now keeps the current one alive.
        let is_obsolete = record.is_kept_alive() && !record.is_asked() && !takes_over(plan, record);
        if plan.source.is_none() || is_obsolete {
            return Some(given_up(plan, record, seen.now));
        }
        if let Some(retry) = retry {
            until.or(retry);
            return None;
        }
        return Some(go_on(plan, record, pending, hand, version, seen.now));
    }
    plan.source?;
    let requests = plan.requests.beyond(&record.done);
    let due = due(plan, record);
    if let Some(due) = due.filter(|due| due.at > seen.now) {
        until.or(due.at);
    }
    let is_gone = record.current.as_ref().is_some_and(|current| {
        let there = seen.existing.as_ref().is_none_or(|all| all.contains(&current.name));
        current.ours && !there
    });
    let is_due = !record.is_kept_alive() && due.is_none_or(|due| due.at <= seen.now);
    let is_unseen = is_unseen(record, seen);
    let is_first = takes_over(plan, record);
    if !(is_due || is_first || empty || is_gone || is_unseen || !requests.is_none()) {
        return None;
    }
    if let Some(retry) = retry {
        until.or(retry);
        return None;
    }
    if record.is_stuck() {
        until.or(seen.now + LOOK_AGAIN);
        return None;
    }
    let mut next = record.clone();
    next.serial += 1;
    let name = format!("{}-{}", plan.prefix, next.serial);
    let leaked = requests.leaked.is_some();
    next.pending = Some(PendingEntry { name, since: seen.now, requests, publishing: None });
    match occupied_until(plan, record, seen).filter(|at| {
        let ends = record.current.as_ref().and_then(|current| current.expires);
        !leaked && ends.is_none_or(|end| end > *at)
    }) {
        Some(at) if at > seen.now => {
            until.or(at);
            None
        }
        Some(_) => Some(RotationAction::DropOld),
        None => Some(write(RecordChange::Named, next)),
    }
}

/// Whether the target still holds the credential of another kind that the first one replaces.
fn takes_over(plan: &RotationPlan, record: &RotationRecord) -> bool {
    plan.source.is_some_and(|source| source.takes_over)
        && record.last_rotation.is_none()
        && record.current.as_ref().is_some_and(|current| !current.ours)
}

fn given_up(plan: &RotationPlan, record: &RotationRecord, now: Seconds) -> RotationAction {
    let mut next = record.clone();
    abandon(plan, &mut next, now);
    write(RecordChange::Abandoned, next)
}

/// Next step of the pending credential.
fn go_on(
    plan: &RotationPlan,
    record: &RotationRecord,
    pending: &PendingEntry,
    hand: Option<&UnpublishedCredential>,
    version: &str,
    now: Seconds,
) -> RotationAction {
    let readable = plan.source.is_some_and(|source| source.readable);
    let made = match hand {
        // Another process that believes to lead may hold it in memory. If two abandon each other's
        // at once, neither ever publishes.
        None if !readable && now < pending.since + IN_OTHER_HANDS => {
            return RotationAction::Wait(Some(pending.since + IN_OTHER_HANDS));
        }
        // The process that held it has ended, and the credential cannot be read again.
        None if !readable => return given_up(plan, record, now),
        None | Some(UnpublishedCredential { made: None, .. }) => {
            return RotationAction::Mint(pending.name.clone());
        }
        Some(UnpublishedCredential { made: Some(made), .. }) => made,
    };
    let end = made.expires.unwrap_or(made.issued + plan.presumed);
    if now - made.issued > (end - made.issued) / 2 {
        // The credential has waited for half of its life, or was granted a very short one.
        return write(
            RecordChange::Abandoned,
            failed(plan, record, RotationStep::Mint, &pending.name, now),
        );
    }
    if !hand.is_some_and(|hand| hand.verified) {
        return RotationAction::Verify;
    }
    let is_recorded = pending
        .publishing
        .as_ref()
        .is_some_and(|publishing| publishing.replaces == version && publishing.made == *made);
    if is_recorded {
        return RotationAction::Publish { keep: plan.source.is_some_and(|source| source.prunes) };
    }
    let mut next = record.clone();
    if let Some(pending) = &mut next.pending {
        pending.publishing =
            Some(PendingPublication { made: made.clone(), replaces: version.to_owned() });
    }
    write(RecordChange::Publishing, next)
}

/// Restarts workloads if that is not done yet, and begins the overlap of old credentials.
fn restart(
    plan: &RotationPlan,
    record: &RotationRecord,
    seen: &ObservedState,
    until: &mut EarliestTime,
) -> Option<RotationAction> {
    let current = record.current.as_ref().filter(|current| current.ours)?;
    let is_there = matches!(&seen.target, TargetState::There { holds: Some(_), .. });
    let is_done = record.restarted_for.as_ref() == Some(&current.name);
    if !is_there {
        return None;
    }
    if plan.restarts && !is_done {
        if let Some(retry) = record.retry_after.filter(|retry| *retry > seen.now) {
            until.or(retry);
            return None;
        }
        return Some(RotationAction::Restart);
    }
    // Workloads were restarted, or there are none to restart.
    record
        .previous
        .iter()
        .any(|old| old.after.is_none())
        .then(|| write(RecordChange::Restarted, after_restart(plan, record, seen.now)))
}

/// Record after workloads were restarted for the credential in the target.
pub fn after_restart(plan: &RotationPlan, record: &RotationRecord, now: Seconds) -> RotationRecord {
    let mut next = record.clone();
    if plan.restarts {
        next.restarted_for = next.current.as_ref().map(|current| current.name.clone());
        next.failures = 0;
        next.retry_after = None;
        next.last_result = Some("Published".to_owned());
    }
    for old in next.previous.iter_mut().filter(|old| old.after.is_none()) {
        old.after = Some(now + plan.overlap + 1);
    }
    next
}

/// Revokes the first old credential whose overlap is over and that no reader can still receive.
fn revoke(
    plan: &RotationPlan,
    record: &RotationRecord,
    seen: &ObservedState,
    until: &mut EarliestTime,
) -> Option<RotationAction> {
    if let Some(next) = landed(plan, record, seen) {
        return Some(write(RecordChange::Abandoned, next));
    }
    let prunes = plan.source.is_some_and(|source| source.prunes);
    for old in &record.previous {
        if !may_go(old, seen) {
            continue;
        }
        match old.after {
            None => {}
            Some(after) if after > seen.now => until.or(after),
            Some(_) if prunes && kept(seen).is_some_and(|kept| is_of(old, kept)) => {
                match record.retry_after.filter(|retry| *retry > seen.now) {
                    Some(retry) => until.or(retry),
                    None => return Some(RotationAction::DropOld),
                }
            }
            // A person put it there a second time, and the operator does not remove that.
            Some(_) if is_beside(old, seen) => {}
            Some(_) => return Some(gone(record, old, seen)),
        }
    }
    None
}

/// Record without writes that can no longer arrive, because the target has another version now.
/// They may have arrived before that and been read, so the overlap begins now.
fn landed(
    plan: &RotationPlan,
    record: &RotationRecord,
    seen: &ObservedState,
) -> Option<RotationRecord> {
    let TargetState::There { version, .. } = &seen.target else { return None };
    let is_over =
        |old: &RetiredCredential| old.replaces.as_ref().is_some_and(|replaces| replaces != version);
    if !record.previous.iter().any(is_over) {
        return None;
    }
    let mut next = record.clone();
    for old in next.previous.iter_mut().filter(|old| is_over(old)) {
        old.replaces = None;
        old.after = Some(seen.now + plan.overlap + 1);
    }
    Some(next)
}

/// Revokes the credential, or records that it no longer exists.
pub(super) fn gone(
    record: &RotationRecord,
    old: &RetiredCredential,
    seen: &ObservedState,
) -> RotationAction {
    let is_there = seen.existing.as_ref().is_none_or(|all| all.contains(&old.name));
    if is_there {
        return RotationAction::Revoke(old.name.clone());
    }
    let mut next = record.clone();
    next.previous.retain(|other| other.name != old.name);
    if next.last_result.as_deref() == Some("Failed Revoke") {
        next.last_result = Some("Revoked".to_owned());
    }
    write(RecordChange::Revoked, next)
}

/// Whether the target holds the credential in a second place.
pub(super) fn is_beside(old: &RetiredCredential, seen: &ObservedState) -> bool {
    let TargetState::There { beside, .. } = &seen.target else { return false };
    old.hash.as_ref().is_some_and(|hash| beside.contains(hash))
}

/// Whether the target neither holds the credential nor can come to hold it.
pub(super) fn may_go(old: &RetiredCredential, seen: &ObservedState) -> bool {
    if old.hash.is_none() && old.replaces.is_none() {
        // The credential was never published.
        return true;
    }
    match &seen.target {
        TargetState::There { holds, .. } => {
            let held = holds.as_ref().is_some_and(|held| is(old.hash.as_ref(), held));
            !held && holds.is_some() && old.replaces.is_none()
        }
        _ => false,
    }
}
