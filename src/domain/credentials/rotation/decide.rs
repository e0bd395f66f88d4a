//! What is next, from what is recorded and what is seen.

use super::beside::{drop_foreign, is_of, kept, occupied_until};
use super::strangers::{find, is_unseen, number};
use super::{
    Act, Change, Current, Hand, Held, IN_OTHER_HANDS, LOOK_AGAIN, Old, Pending, Plan, Publishing,
    Record, Seconds, Seen, Step, Target, deletion, due, failed, term,
};

/// Decides.
pub fn decide(plan: &Plan, record: &Record, seen: &Seen) -> Act {
    if plan.deleting.is_some() {
        return deletion::leave(plan, record, seen);
    }
    // A target that tells nothing decides nothing.
    if matches!(seen.target, Target::Unknown) {
        return Act::Wait(Some(seen.now + LOOK_AGAIN));
    }
    if let Some(act) = settle(plan, record, seen) {
        return act;
    }
    if plan.schedule.paused {
        return Act::Wait(None);
    }
    let mut until = Until::default();
    replace(plan, record, seen, &mut until)
        .or_else(|| tell(plan, record, seen, &mut until))
        .or_else(|| revoke(plan, record, seen, &mut until))
        .or_else(|| drop_foreign(plan, record, seen, &mut until))
        .unwrap_or(Act::Wait(until.0))
}

/// The first of several times.
#[derive(Default)]
pub(super) struct Until(pub(super) Option<Seconds>);

impl Until {
    pub(super) fn or(&mut self, at: Seconds) {
        self.0 = Some(self.0.map_or(at, |until| until.min(at)));
    }
}

/// Brings the record up to what the target holds, and to what there is.
pub(super) fn settle(plan: &Plan, record: &Record, seen: &Seen) -> Option<Act> {
    if let Target::There { holds: Some(held), .. } = &seen.target {
        if is(record.publishing().map(|publishing| &publishing.made.hash), held) {
            return Some(write(Change::Published, published(plan, record, seen.now)));
        }
        if !record.current.as_ref().is_some_and(|current| is_same(plan, current, held)) {
            return Some(write(Change::Adopted, adopted(plan, record, seen, held)));
        }
        if let Some(next) = term::retimed(record, held, seen.now) {
            return Some(write(Change::Retimed, next));
        }
    }
    find(plan, record, seen)
}

/// Whether the target still holds what is recorded. One that is only watched is known by what it says of itself: it may
/// be a password, which a hash in a status would give away.
fn is_same(plan: &Plan, current: &Current, held: &Held) -> bool {
    if plan.source.is_some() {
        return current.hash == held.hash;
    }
    let is_asked_for = held.term.is_some() || held.is_unseen;
    let ends_alike = is_asked_for || current.expires == held.says.expires;
    current.name == held.says.name && ends_alike
}

fn is(hash: Option<&String>, held: &Held) -> bool {
    hash.is_some_and(|hash| *hash == held.hash)
}

pub(super) fn write(change: Change, record: Record) -> Act {
    Act::Write(change, Box::new(record))
}

impl Record {
    fn publishing(&self) -> Option<&Publishing> {
        self.pending.as_ref()?.publishing.as_ref()
    }

    pub(super) fn knows(&self, name: &str) -> bool {
        self.current.as_ref().is_some_and(|current| current.name == name)
            || self.pending.as_ref().is_some_and(|pending| pending.name == name)
            || self.previous.iter().any(|old| old.name == name)
    }
}

/// The target holds what was on its way there.
fn published(plan: &Plan, record: &Record, now: Seconds) -> Record {
    let mut next = record.clone();
    let Some(pending) = next.pending.take() else { return next };
    let Some(Publishing { made, .. }) = pending.publishing else { return next };
    // Whole seconds were cut off at both ends.
    retire(&mut next, (!plan.tells).then_some(now + plan.overlap + 1));
    if pending.requests.leaked.is_some() {
        for old in &mut next.previous {
            old.after = Some(now);
        }
        next.done.leaked = pending.requests.leaked;
    }
    if pending.requests.rotate.is_some() {
        next.done.rotate = pending.requests.rotate;
    }
    next.current = Some(Current {
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

/// What was in the target is to be revoked, if it was made here.
fn retire(next: &mut Record, after: Option<Seconds>) {
    if let Some(old) = next.current.take().filter(|current| current.ours) {
        let (name, hash) = (old.name, Some(old.hash));
        next.previous.push(Old { name, hash, after, ..Old::default() });
    }
}

/// Somebody else has put something into the target: another credential, or an old one again.
fn adopted(plan: &Plan, record: &Record, seen: &Seen, held: &Held) -> Record {
    let mut next = record.clone();
    abandon(plan, &mut next, seen.now);
    let after = Some(seen.now + plan.overlap + 1);
    retire(&mut next, after);
    // Whoever changed it tells whoever must know.
    for old in next.previous.iter_mut().filter(|old| old.after.is_none()) {
        old.after = after;
    }
    let by_hash = next.previous.iter().position(|old| is(old.hash.as_ref(), held));
    // One of ours whose record was lost says its name itself.
    let named = |name: &String| *name == held.says.name;
    let by_name = || next.previous.iter().position(|old| old.hash.is_none() && named(&old.name));
    let again = by_hash.or_else(by_name).map(|at| next.previous.remove(at).name);
    let made_here = |name: &&String| named(name) && number(plan, record, name).is_some();
    let lost = || seen.existing.iter().flatten().find(made_here).cloned();
    let ours = again.or_else(lost);
    next.current = Some(Current {
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

/// What is on its way is not wanted any more. Once it was sent, somebody may have read it.
pub(super) fn abandon(plan: &Plan, next: &mut Record, now: Seconds) {
    let Some(Pending { name, publishing, .. }) = next.pending.take() else { return };
    next.previous.push(match publishing {
        None => Old { name, after: Some(now), ..Old::default() },
        Some(Publishing { made, replaces }) => Old {
            name,
            hash: Some(made.hash),
            after: Some(now + plan.overlap + 1),
            replaces: Some(replaces),
            ..Old::default()
        },
    });
}

/// Makes and publishes another one, if it is time.
fn replace(plan: &Plan, record: &Record, seen: &Seen, until: &mut Until) -> Option<Act> {
    let (version, empty) = match &seen.target {
        Target::Unknown => return None,
        Target::Absent => ("", true),
        // What nobody can have seen yet need not wait until it can be written.
        Target::Unfit(_) => {
            until.or(seen.now + LOOK_AGAIN);
            let never_sent = record.pending.as_ref().is_some_and(|p| p.publishing.is_none());
            return never_sent.then(|| given_up(plan, record, seen.now));
        }
        Target::There { version, holds, .. } => (version.as_str(), holds.is_none()),
    };
    let retry = record.retry_after.filter(|retry| *retry > seen.now);
    if let Some(pending) = &record.pending {
        let hand = seen.hand.as_ref().filter(|hand| hand.name == pending.name);
        // Or it was begun before the issuer kept alive what is there.
        if plan.source.is_none() || record.is_kept_alive() && !record.is_asked() {
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
    if !(is_due || empty || is_gone || is_unseen || !requests.is_none()) {
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
    next.pending = Some(Pending { name, since: seen.now, requests, publishing: None });
    match occupied_until(plan, record, seen).filter(|at| {
        let ends = record.current.as_ref().and_then(|current| current.expires);
        !leaked && ends.is_none_or(|end| end > *at)
    }) {
        Some(at) if at > seen.now => {
            until.or(at);
            None
        }
        Some(_) => Some(Act::DropOld),
        None => Some(write(Change::Named, next)),
    }
}

fn given_up(plan: &Plan, record: &Record, now: Seconds) -> Act {
    let mut next = record.clone();
    abandon(plan, &mut next, now);
    write(Change::Abandoned, next)
}

/// One step further with what is on its way.
fn go_on(
    plan: &Plan,
    record: &Record,
    pending: &Pending,
    hand: Option<&Hand>,
    version: &str,
    now: Seconds,
) -> Act {
    let readable = plan.source.is_some_and(|source| source.readable);
    let made = match hand {
        // Whoever has it in hand may be another who believes to lead: of two that give up each
        // other's at once, neither would ever publish.
        None if !readable && now < pending.since + IN_OTHER_HANDS => {
            return Act::Wait(Some(pending.since + IN_OTHER_HANDS));
        }
        // Whoever had it is no more, and nobody can have it again.
        None if !readable => return given_up(plan, record, now),
        None | Some(Hand { made: None, .. }) => return Act::Mint(pending.name.clone()),
        Some(Hand { made: Some(made), .. }) => made,
    };
    let end = made.expires.unwrap_or(made.issued + plan.presumed);
    if now - made.issued > (end - made.issued) / 2 {
        // It has waited too long, or was granted hardly any time.
        return write(Change::Abandoned, failed(plan, record, Step::Mint, &pending.name, now));
    }
    if !hand.is_some_and(|hand| hand.verified) {
        return Act::Verify;
    }
    let is_recorded = pending
        .publishing
        .as_ref()
        .is_some_and(|publishing| publishing.replaces == version && publishing.made == *made);
    if is_recorded {
        return Act::Publish { keep: plan.source.is_some_and(|source| source.prunes) };
    }
    let mut next = record.clone();
    if let Some(pending) = &mut next.pending {
        pending.publishing = Some(Publishing { made: made.clone(), replaces: version.to_owned() });
    }
    write(Change::Publishing, next)
}

/// Has workloads read it, if they have not yet, and lets time begin for the old ones.
fn tell(plan: &Plan, record: &Record, seen: &Seen, until: &mut Until) -> Option<Act> {
    let current = record.current.as_ref().filter(|current| current.ours)?;
    let is_there = matches!(&seen.target, Target::There { holds: Some(_), .. });
    let is_told = record.told.as_ref() == Some(&current.name);
    if !is_there {
        return None;
    }
    if plan.tells && !is_told {
        if let Some(retry) = record.retry_after.filter(|retry| *retry > seen.now) {
            until.or(retry);
            return None;
        }
        return Some(Act::Tell);
    }
    // They were told, or nobody is to be told any more.
    record
        .previous
        .iter()
        .any(|old| old.after.is_none())
        .then(|| write(Change::Told, told(plan, record, seen.now)))
}

/// What is recorded when workloads were told of what the target holds.
pub fn told(plan: &Plan, record: &Record, now: Seconds) -> Record {
    let mut next = record.clone();
    if plan.tells {
        next.told = next.current.as_ref().map(|current| current.name.clone());
        next.failures = 0;
        next.retry_after = None;
        next.last_result = Some("Published".to_owned());
    }
    for old in next.previous.iter_mut().filter(|old| old.after.is_none()) {
        old.after = Some(now + plan.overlap + 1);
    }
    next
}

/// Revokes the first old one whose time is over, and that nobody can come to read.
fn revoke(plan: &Plan, record: &Record, seen: &Seen, until: &mut Until) -> Option<Act> {
    if let Some(next) = landed(plan, record, seen) {
        return Some(write(Change::Abandoned, next));
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
                    None => return Some(Act::DropOld),
                }
            }
            // It was put there a second time, and is not the operator's to take out.
            Some(_) if is_beside(old, seen) => {}
            Some(_) => return Some(gone(record, old, seen)),
        }
    }
    None
}

/// Writes that can no more arrive, because the target is another by now. They may have arrived before
/// that, and been read: time begins only now.
fn landed(plan: &Plan, record: &Record, seen: &Seen) -> Option<Record> {
    let Target::There { version, .. } = &seen.target else { return None };
    let is_over = |old: &Old| old.replaces.as_ref().is_some_and(|replaces| replaces != version);
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

/// Revokes it, or records that it is gone.
pub(super) fn gone(record: &Record, old: &Old, seen: &Seen) -> Act {
    let is_there = seen.existing.as_ref().is_none_or(|all| all.contains(&old.name));
    if is_there {
        return Act::Revoke(old.name.clone());
    }
    let mut next = record.clone();
    next.previous.retain(|other| other.name != old.name);
    if next.last_result.as_deref() == Some("Failed Revoke") {
        next.last_result = Some("Revoked".to_owned());
    }
    write(Change::Revoked, next)
}

/// Whether somebody has put it into the target a second time.
pub(super) fn is_beside(old: &Old, seen: &Seen) -> bool {
    let Target::There { beside, .. } = &seen.target else { return false };
    old.hash.as_ref().is_some_and(|hash| beside.contains(hash))
}

/// Whether the target neither holds it nor can come to hold it.
pub(super) fn may_go(old: &Old, seen: &Seen) -> bool {
    if old.hash.is_none() && old.replaces.is_none() {
        // It was never sent anywhere.
        return true;
    }
    match &seen.target {
        Target::There { holds, .. } => {
            let held = holds.as_ref().is_some_and(|held| is(old.hash.as_ref(), held));
            !held && holds.is_some() && old.replaces.is_none()
        }
        _ => false,
    }
}
