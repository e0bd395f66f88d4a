//! Credentials of others: made under a name that looks like one given here, or put into a
//! target of which nothing is known.

use super::decide::write;
use super::{Act, Change, Current, Old, Plan, Record, Seen, Target};

/// Numbers further than this beyond the last one were not given here: those who can make a credential by such
/// a name could use up all numbers.
const FURTHEST_AHEAD: u64 = 1_000;

/// Records a credential that no record knew of.
pub(super) fn find(plan: &Plan, record: &Record, seen: &Seen) -> Option<Act> {
    let unknown = |name: &&String| !record.knows(name);
    let (found, number) = seen
        .existing
        .iter()
        .flatten()
        .filter(unknown)
        .find_map(|name| Some((name, number(plan, record, name)?)))?;
    let mut next = record.clone();
    // Its maker may have published it, and lost the record.
    next.previous.push(Old {
        name: found.clone(),
        after: Some(seen.now + plan.overlap + 1),
        ..Old::default()
    });
    next.serial = next.serial.max(number);
    Some(write(Change::Found, next))
}

/// The number in the name of what was made by this plan. `None`: it was not, or its number is so far ahead
/// that another maker has given it.
pub(super) fn number(plan: &Plan, record: &Record, name: &str) -> Option<u64> {
    let number = name.strip_prefix(&plan.prefix)?.strip_prefix('-')?;
    let number = number.parse().ok().filter(|read: &u64| read.to_string() == number)?;
    (1..=record.serial.saturating_add(FURTHEST_AHEAD)).contains(&number).then_some(number)
}

/// Tells whether nothing is known of a credential that came from elsewhere: it may end at any time.
pub(super) fn is_unseen(record: &Record, seen: &Seen) -> bool {
    let Target::There { holds: Some(held), .. } = &seen.target else { return false };
    let known = |c: &Current| c.ours || c.expires.is_some() || c.kept_alive;
    held.is_unseen && !record.current.as_ref().is_some_and(known)
}
