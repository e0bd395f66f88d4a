//! What is done before a TokenRotation that is being deleted may go.

use super::decide::{Until, abandon, find, gone, is_beside, may_go, settle, write};
use super::{Act, Change, Old, Plan, Record, SURELY_ANSWERED, Seen, Target};

/// What is on its way is revoked, and so is what was replaced, in its time; what the target holds
/// only if the spec says so.
pub(super) fn leave(plan: &Plan, record: &Record, seen: &Seen) -> Act {
    if matches!(seen.target, Target::Unknown) {
        return Act::Wait(Some(seen.now + super::LOOK_AGAIN));
    }
    // What is revoked whatever the target holds is not adopted again.
    let news = if plan.revokes { find(plan, record, seen) } else { settle(plan, record, seen) };
    if let Some(act) = news {
        return act;
    }
    if let Some(pending) = &record.pending {
        let mut next = record.clone();
        let answered = pending.since + SURELY_ANSWERED;
        abandon(plan, &mut next, seen.now);
        for old in next.previous.iter_mut().filter(|old| old.replaces.is_some()) {
            old.after = old.after.max(Some(answered));
        }
        return write(Change::Abandoned, next);
    }
    if plan.revokes
        && let Some(current) = record.current.as_ref().filter(|current| current.ours)
    {
        let mut next = record.clone();
        let (name, hash) = (current.name.clone(), Some(current.hash.clone()));
        next.previous.push(Old { name, hash, after: Some(seen.now), ..Old::default() });
        next.current = None;
        return write(Change::Abandoned, next);
    }
    let mut until = Until::default();
    for old in &record.previous {
        // Nobody reads a target that is gone.
        let after = old.after.filter(|_| !plan.revokes && seen.target != Target::Absent);
        match after {
            Some(after) if after > seen.now => until.or(after),
            // Somebody still reads it: it is published, and stays.
            _ if !plan.revokes && (is_held(old, seen) || is_beside(old, seen)) => {}
            _ if plan.revokes || may_leave(old, seen) => return gone(record, old, seen),
            _ => until.or(seen.now + SURELY_ANSWERED),
        }
    }
    until.0.map_or(Act::Finish, |until| Act::Wait(Some(until)))
}

fn is_held(old: &Old, seen: &Seen) -> bool {
    let Target::There { holds: Some(held), .. } = &seen.target else { return false };
    old.hash.as_ref() == Some(&held.hash)
}

/// A write that may have been under way has been answered by the time that was recorded.
fn may_leave(old: &Old, seen: &Seen) -> bool {
    let answered = Old { replaces: None, ..old.clone() };
    matches!(seen.target, Target::Absent | Target::Unfit(_)) || may_go(&answered, seen)
}
