//! All cloud credentials that an API key may see, as far as they have been read.
//!
//! Invariants: what was read longest ago is read next, a few at a time, so that many cost no more
//! than few; what is no longer listed is forgotten; what was known of one stays until it is read
//! again, also what an earlier leader has recorded.

use std::collections::BTreeMap;

use super::super::token::Says;
use super::watched::{self, Watched};
use super::{Seconds, status};
use api::WatchedCredential;

/// What came of reading one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A token, whose end may be known.
    Says(Says),
    /// Why nothing is known of it.
    Nothing(String),
}

/// What is known, by the name of the Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    known: BTreeMap<String, Entry>,
    /// How often one was read.
    reads: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Entry {
    title: String,
    name: String,
    ends: Option<Seconds>,
    unknown: Option<String>,
    /// Which of all reads its last one was.
    read: Option<u64>,
}

impl Census {
    /// What was recorded before, and by others.
    pub fn recorded(before: &[WatchedCredential]) -> Self {
        let entry = |one: &WatchedCredential| {
            let entry = Entry {
                title: one.title.clone().unwrap_or_default(),
                name: one.name.clone(),
                ends: watched::end(one),
                unknown: one.unknown.clone(),
                read: None,
            };
            Some((one.credential.clone()?, entry))
        };
        Self { known: before.iter().filter_map(entry).collect(), reads: 0 }
    }

    /// Which there are, by name and title.
    pub fn listed(&mut self, all: impl IntoIterator<Item = (String, String)>) {
        let mut before = std::mem::take(&mut self.known);
        for (name, title) in all {
            let entry = before.remove(&name).unwrap_or_default();
            self.known.insert(name, Entry { title, ..entry });
        }
    }

    /// Those that are to be read next.
    pub fn next(&self, most: usize) -> Vec<String> {
        let mut all: Vec<(&String, &Entry)> = self.known.iter().collect();
        all.sort_by_key(|(_, entry)| entry.read);
        all.into_iter().take(most).map(|(name, _)| name.clone()).collect()
    }

    /// One was read. When a dead one has ended nobody says: what was told of it first stays.
    pub fn read(&mut self, name: &str, found: Found, now: Seconds) {
        let Some(entry) = self.known.get_mut(name) else { return };
        self.reads += 1;
        entry.read = Some(self.reads);
        match found {
            Found::Says(says) => {
                let told = watched::short(&says.name);
                let is_over = |end: Option<Seconds>| end.is_some_and(|end| end <= now);
                let is_known = is_over(says.expires) && is_over(entry.ends) && entry.name == told;
                if !is_known {
                    entry.ends = says.expires;
                }
                entry.name = told;
                entry.unknown = None;
            }
            Found::Nothing(why) => entry.unknown = Some(watched::reason(&why)),
        }
    }

    /// How many there are, and how many of them have not been read yet.
    pub fn count(&self) -> (usize, usize) {
        let unread = self.known.values().filter(|entry| entry.read.is_none()).count();
        (self.known.len(), unread)
    }

    /// What is told of them.
    pub fn told(&self, is_rotated: impl Fn(&str) -> bool) -> Watched {
        let told = |(name, entry): (&String, &Entry)| WatchedCredential {
            user: String::new(),
            name: entry.name.clone(),
            credential: Some(watched::short(name)),
            title: Some(watched::short(&entry.title)).filter(|title| !title.is_empty()),
            expires_at: entry.ends.map(status::time),
            rotated: is_rotated(name),
            unknown: entry.unknown.clone(),
        };
        Watched::of(self.known.iter().map(told).collect())
    }
}

#[cfg(test)]
mod tests;
