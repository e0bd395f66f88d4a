//! Inventory of all cloud credentials that an API key may read, with the results of earlier reads.
//!
//! Invariants:
//!
//! * Only a few credentials are read in one reconcile, so that the number of calls does not grow
//!   with the number of credentials. Those that were not read for the longest time come first.
//! * A credential that is no longer listed is removed.
//! * The entry of a listed credential stays until the credential is read again, even if an earlier
//!   leader recorded the entry.

use std::collections::BTreeMap;

use super::super::timestamp;
use super::super::token::TokenClaims;
use super::Seconds;
use super::watched::{self, WatchedCredentials};
use api::WatchedCredential;

/// Known state of all cloud credentials, by the name of their Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CredentialInventory {
    known: BTreeMap<String, InventoryEntry>,
    /// Number of reads of cloud credentials since this inventory was made.
    reads: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct InventoryEntry {
    /// Entry of the cloud credential for `status.watched`. The field `rotated` is not used here.
    shown: WatchedCredential,
    /// Value of the inventory's `reads` after the last read of this cloud credential. `None`: the
    /// cloud credential was not read since the inventory was made.
    read: Option<u64>,
}

impl CredentialInventory {
    /// Inventory with the entries of a status, which an earlier leader may have written. All of
    /// these entries count as not read.
    pub fn from_status(before: &[WatchedCredential]) -> Self {
        let entry = |one: &WatchedCredential| {
            let entry = InventoryEntry { shown: one.clone(), read: None };
            Some((one.credential.clone()?, entry))
        };
        Self { known: before.iter().filter_map(entry).collect(), reads: 0 }
    }

    /// Replaces the set of credentials. `all`: name and title of each credential that Rancher
    /// lists. A credential that was known before keeps its entry.
    pub fn set_list(&mut self, all: impl IntoIterator<Item = (String, String)>) {
        let mut before = std::mem::take(&mut self.known);
        for (name, title) in all {
            let mut entry = before.remove(&name).unwrap_or_default();
            entry.shown.credential = Some(watched::cut_name(&name));
            entry.shown.title = Some(watched::cut_name(&title)).filter(|title| !title.is_empty());
            self.known.insert(name, entry);
        }
    }

    /// Names of at most `most` credentials to read next. Credentials that were not read yet come
    /// first. The others follow, the oldest read first.
    pub fn next_to_read(&self, most: usize) -> Vec<String> {
        let mut all: Vec<(&String, &InventoryEntry)> = self.known.iter().collect();
        all.sort_by_key(|(_, entry)| entry.read);
        all.into_iter().take(most).map(|(name, _)| name.clone()).collect()
    }

    /// Stores the result of a read of the cloud credential `name`. Nothing is stored for a cloud
    /// credential that is not in the inventory. `found`: name and times of the token in the cloud
    /// credential; the error says why they are not known. After an error, the token's name and
    /// expiry from an earlier read stay.
    ///
    /// If Rancher does not say when a token has ended, `found` contains the time of the read as the
    /// token's expiry. So each read gives a later expiry. Therefore a stored expiry that has passed
    /// is not replaced by another past expiry of the same token.
    pub fn store_read(&mut self, name: &str, found: Result<TokenClaims, String>, now: Seconds) {
        let Some(InventoryEntry { shown, read }) = self.known.get_mut(name) else { return };
        self.reads += 1;
        *read = Some(self.reads);
        match found {
            Ok(claims) => {
                let name = watched::cut_name(&claims.name);
                let is_over = |end: Option<Seconds>| end.is_some_and(|end| end <= now);
                let was_over = is_over(watched::expiry(shown)) && shown.name == name;
                if !(was_over && is_over(claims.expires)) {
                    shown.expires_at = claims.expires.map(timestamp::rfc3339);
                }
                shown.name = name;
                shown.unknown = None;
            }
            Err(why) => shown.unknown = Some(watched::cut_reason(&why)),
        }
    }

    /// Number of credentials that were not read since this inventory was made.
    pub fn unread(&self) -> usize {
        self.known.values().filter(|entry| entry.read.is_none()).count()
    }

    /// Credentials as a status lists them. `is_rotated`: function that says whether a TokenRotation
    /// replaces the credential with the given name.
    pub fn watched(&self, is_rotated: impl Fn(&str) -> bool) -> WatchedCredentials {
        let watched = |(name, entry): (&String, &InventoryEntry)| WatchedCredential {
            rotated: is_rotated(name),
            ..entry.shown.clone()
        };
        WatchedCredentials::of(self.known.iter().map(watched).collect())
    }
}

#[cfg(test)]
mod tests;
