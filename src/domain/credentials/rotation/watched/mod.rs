//! Credentials that are only watched: which are told, and which end soon.
//!
//! Invariants: those that end soonest and that nobody replaces come first, so that what is left out
//! where there are too many is what matters least; how many were left out is told.

use super::super::token::Says;
use super::{Seconds, status};
use api::WatchedCredential;

/// As many as a status lists.
const MOST: usize = 32;
/// As many as a sentence names.
const MOST_NAMED: usize = 3;
const LONGEST_NAME: usize = 253;
const LONGEST_REASON: usize = 400;

/// What is told of a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    /// The first of them.
    pub listed: Vec<WatchedCredential>,
    /// How many more there are.
    pub beyond: usize,
}

impl Watched {
    /// Of all credentials of a target those that matter most.
    pub fn of(mut all: Vec<WatchedCredential>) -> Self {
        all.sort_by_key(rank);
        let beyond = all.len().saturating_sub(MOST);
        all.truncate(MOST);
        Self { listed: all, beyond }
    }

    /// When the first ends that nobody replaces.
    pub fn first_end(&self) -> Option<Seconds> {
        self.listed.iter().filter(|one| !one.rotated).filter_map(end).min()
    }

    /// How many of those that are listed do not say when they end.
    pub fn unknown(&self) -> usize {
        self.listed.iter().filter(|one| one.unknown.is_some()).count()
    }

    /// Those that end by then and that nobody replaces, in words.
    pub fn ending_by(&self, at: Seconds, now: Seconds) -> String {
        let near: Vec<&WatchedCredential> =
            self.listed.iter().filter(|one| is_near(one, at)).collect();
        let mut words: Vec<String> =
            near.iter().take(MOST_NAMED).map(|one| phrase(one, now)).collect();
        if near.len() > MOST_NAMED {
            words.push(format!("{} others", near.len() - MOST_NAMED));
        }
        words.join(", ")
    }
}

/// Whether one ends by then, and nobody replaces it.
pub fn is_near(one: &WatchedCredential, at: Seconds) -> bool {
    !one.rotated && end(one).is_some_and(|end| end <= at)
}

/// When one ends, if that is known.
pub fn end(one: &WatchedCredential) -> Option<Seconds> {
    one.expires_at.as_deref().and_then(status::seconds)
}

/// Ends that nobody prevents; ends that nobody knows; those that somebody prevents; none.
fn rank(one: &WatchedCredential) -> (u8, Seconds) {
    match (end(one), one.rotated) {
        (Some(end), false) => (0, end),
        (None, false) if one.unknown.is_some() => (1, 0),
        (Some(end), true) => (2, end),
        (None, _) => (3, 0),
    }
}

fn phrase(one: &WatchedCredential, now: Seconds) -> String {
    let verb = if is_near(one, now) { "ended" } else { "ends" };
    let when = format!("{verb} at {}", one.expires_at.as_deref().unwrap_or_default());
    let title = one.title.as_ref().map(|title| format!(" ({title})")).unwrap_or_default();
    match &one.credential {
        Some(credential) => format!("cloud credential {credential}{title} {when}"),
        None if one.user.is_empty() => format!("it {when}"),
        None => format!("that of user {:?} {when}", one.user),
    }
}

/// When a dead credential ended, nobody says: what was told of it first stays.
pub fn steady(watched: &mut Watched, before: &[WatchedCredential], now: Seconds) {
    for one in watched.listed.iter_mut().filter(|one| end(one).is_some_and(|end| end <= now)) {
        let same = |old: &&WatchedCredential| {
            (&old.credential, &old.user, &old.name) == (&one.credential, &one.user, &one.name)
                && end(old).is_some_and(|end| end <= now)
        };
        if let Some(old) = before.iter().find(same) {
            one.expires_at.clone_from(&old.expires_at);
        }
    }
}

/// What is told of a token.
pub fn token(user: &str, says: &Says) -> WatchedCredential {
    WatchedCredential {
        user: short(user),
        name: short(&says.name),
        expires_at: says.expires.map(status::time),
        ..WatchedCredential::default()
    }
}

/// What is told of a user whose credential does not say when it ends.
pub fn unknown(user: &str, why: &str) -> WatchedCredential {
    WatchedCredential {
        user: short(user),
        unknown: Some(reason(why)),
        ..WatchedCredential::default()
    }
}

/// A name, as long as a status takes it, and without what would break a line.
pub(super) fn short(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(LONGEST_NAME).collect()
}

/// A reason, as long as a status takes it.
pub(super) fn reason(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LONGEST_REASON).collect()
}

#[cfg(test)]
mod tests;
