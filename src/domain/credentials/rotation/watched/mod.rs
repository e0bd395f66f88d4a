//! Credentials that a status lists with their expiry: watched ones, and those that children
//! replace.
//!
//! Invariants:
//!
//! * Credentials that expire and are not replaced come first, with the earliest expiry at the top.
//!   So a full status omits the credentials that matter least.
//! * The number of omitted credentials is reported.

use super::super::timestamp;
use super::super::token::TokenClaims;
use super::Seconds;
use api::WatchedCredential;

/// Maximum number of credentials that a status lists.
const MOST: usize = 32;
/// Maximum number of credentials that a message names.
const MOST_NAMED: usize = 3;
const LONGEST_NAME: usize = 253;
const LONGEST_REASON: usize = 400;

/// Credentials of a target, as `status.watched` lists them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchedCredentials {
    /// Listed credentials, the most urgent first.
    pub listed: Vec<WatchedCredential>,
    /// Number of credentials that `listed` omits, because the status is full.
    pub beyond: usize,
}

impl WatchedCredentials {
    /// Lists the most urgent credentials of a target, at most `MOST`, and counts the others.
    pub fn of(mut all: Vec<WatchedCredential>) -> Self {
        all.sort_by_key(rank);
        let beyond = all.len().saturating_sub(MOST);
        all.truncate(MOST);
        Self { listed: all, beyond }
    }

    /// Earliest expiry of a credential in `listed` that is not replaced. `None`: no such credential
    /// has a known expiry.
    pub fn first_expiry(&self) -> Option<Seconds> {
        self.listed.iter().filter(|one| !one.rotated).filter_map(expiry).min()
    }

    /// Number of credentials in `listed` whose expiry could not be read.
    pub fn unknown_count(&self) -> usize {
        self.listed.iter().filter(|one| one.unknown.is_some()).count()
    }

    /// Text about the credentials in `listed` that expire by `at` and are not replaced. The text
    /// names the first `MOST_NAMED` of them, and counts the others. The text is empty if there are
    /// no such credentials. `now`: present time, which decides between `expired` and `expires`.
    pub fn expiring_by(&self, at: Seconds, now: Seconds) -> String {
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

/// Whether a credential expires by `at` and is not replaced.
pub fn is_near(one: &WatchedCredential, at: Seconds) -> bool {
    !one.rotated && expiry(one).is_some_and(|end| end <= at)
}

/// Expiry of a credential. `None`: the credential does not expire, or its expiry is not known.
pub fn expiry(one: &WatchedCredential) -> Option<Seconds> {
    one.expires_at.as_deref().and_then(timestamp::parse_rfc3339)
}

/// Sort key. The order:
///
/// 1. Credentials that expire and are not replaced, the earliest expiry first.
/// 2. Credentials that are not replaced, and whose expiry could not be read.
/// 3. Credentials that expire and are replaced, the earliest expiry first.
/// 4. All other credentials.
fn rank(one: &WatchedCredential) -> (u8, Seconds) {
    match (expiry(one), one.rotated) {
        (Some(end), false) => (0, end),
        (None, false) if one.unknown.is_some() => (1, 0),
        (Some(end), true) => (2, end),
        (None, _) => (3, 0),
    }
}

fn phrase(one: &WatchedCredential, now: Seconds) -> String {
    let verb = if is_near(one, now) { "expired" } else { "expires" };
    let when = format!("{verb} at {}", one.expires_at.as_deref().unwrap_or_default());
    let title = one.title.as_ref().map(|title| format!(" ({title})")).unwrap_or_default();
    match &one.credential {
        Some(credential) => format!("cloud credential {credential}{title} {when}"),
        None if one.user.is_empty() => format!("the credential {when}"),
        None => format!("the credential of user {:?} {when}", one.user),
    }
}

/// Keeps the first reported expiry of each expired credential. If Rancher does not say when a token
/// ended, the time of the read is taken as the expiry, so each read gives a later expiry. `before`:
/// list in the earlier status. If the entry of a credential in `before` also has a past expiry,
/// `watched` gets the expiry of that entry.
pub fn keep_first_expiries(
    watched: &mut WatchedCredentials,
    before: &[WatchedCredential],
    now: Seconds,
) {
    for one in watched.listed.iter_mut().filter(|one| expiry(one).is_some_and(|end| end <= now)) {
        let same = |old: &&WatchedCredential| {
            (&old.credential, &old.user, &old.name) == (&one.credential, &one.user, &one.name)
                && expiry(old).is_some_and(|end| end <= now)
        };
        if let Some(old) = before.iter().find(same) {
            one.expires_at.clone_from(&old.expires_at);
        }
    }
}

/// Entry of `status.watched` that lists a token or a client certificate. `user`: name of the
/// kubeconfig's user that has the token or certificate. `user` is empty for a token that is in no
/// kubeconfig.
pub fn token_entry(user: &str, claims: &TokenClaims) -> WatchedCredential {
    WatchedCredential {
        user: cut_name(user),
        name: cut_name(&claims.name),
        expires_at: claims.expires.map(timestamp::rfc3339),
        ..WatchedCredential::default()
    }
}

/// Entry of `status.watched` that lists a credential with an unknown expiry. `user`: name of the
/// kubeconfig's user that has the credential. `why`: reason why the expiry is not known.
pub fn unknown_entry(user: &str, why: &str) -> WatchedCredential {
    WatchedCredential {
        user: cut_name(user),
        unknown: Some(cut_reason(why)),
        ..WatchedCredential::default()
    }
}

/// Name for a status: `text` without control characters, cut to the length that a status accepts.
pub(super) fn cut_name(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(LONGEST_NAME).collect()
}

/// Reason why an expiry is not known, as a status states it: `text` with a space for each control
/// character, cut to `LONGEST_REASON` characters.
pub(super) fn cut_reason(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LONGEST_REASON).collect()
}

#[cfg(test)]
mod tests;
