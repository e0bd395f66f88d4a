//! The life of admission's certificates: when which one is made, trusted, used and forgotten.
//!
//! Invariants: a certificate is served only when its authority is among those that the API server
//! was told to trust, unless there is nothing better; an authority signs only after it was trusted
//! for a while; one that signed stays trusted until it has expired. So nothing that a replica may
//! still serve is ever refused, however late it hears of a change.
//!
//! Times are offsets from the Unix epoch. The caller makes keys and carries out.

use std::collections::BTreeSet;
use std::time::Duration;

const DAY: Duration = Duration::from_hours(24);
/// How long an authority is valid.
pub const AUTHORITY_LIFE: Duration = DAY.saturating_mul(365);
/// How long a serving certificate is valid.
pub const SERVING_LIFE: Duration = DAY.saturating_mul(90);
/// Validity begins so long before a certificate is made: clocks differ, and one may be a year off.
pub const BACKDATED: Duration = DAY.saturating_mul(730);
/// A replacement is due when this part of a life is left.
const DUE_PART: u32 = 3;
/// After a configuration was seen to trust an authority, every API server gets at least this long
/// to hear of it.
pub const SETTLING: Duration = Duration::from_secs(2);
/// And at most this long, which is what it gets when nothing presses.
const LONGEST_SETTLING: Duration = Duration::from_mins(10);
/// What is gained by signing anew must be worth it.
const LEAST_GAIN: Duration = Duration::from_mins(1);
/// Names that a serving certificate is given at most.
const MOST_NAMES: usize = 20;

/// An authority that is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authority {
    /// The end of its validity.
    pub not_after: Duration,
    /// Whether its key is there and fits.
    pub signs: bool,
}

/// A serving certificate that is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serving {
    /// The end of its validity.
    pub not_after: Duration,
    /// What it is valid for.
    pub names: BTreeSet<String>,
    /// Whether its key fits, and the authority that signs has signed it.
    pub fits: bool,
}

/// What the Secret holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The authority that signs.
    pub ca: Authority,
    /// The one that will sign next, once it is trusted.
    pub next: Option<Authority>,
    /// What is served.
    pub serving: Option<Serving>,
    /// The ends of authorities that signed before.
    pub previous: Vec<Duration>,
    /// Whether the authority of what this replica serves now is any of these.
    pub knows_ours: bool,
}

/// What a step depends on besides.
#[derive(Clone, Copy, Debug)]
pub struct At<'a> {
    /// The time.
    pub now: Duration,
    /// Replacements are made so much earlier, so that replicas do not all do it at once.
    pub early: Duration,
    /// What the API server may call this replica.
    pub names: &'a BTreeSet<String>,
    /// For how long every configuration has been seen to trust the next authority.
    pub trusted_for: Option<Duration>,
}

/// What is to be done with the Secret. One at a time; each is one guarded write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make everything: nothing that could be used is there.
    Start,
    /// Add the authority of what this replica serves to the previous ones.
    Remember,
    /// Sign a serving certificate for these names.
    Renew(BTreeSet<String>),
    /// Make the authority that will sign next.
    Begin,
    /// The next authority signs from now on; the one that did so far becomes a previous one.
    Switch,
    /// Forget previous authorities that have expired.
    Forget,
    /// Nothing before that time.
    Wait(Duration),
}

/// Decides what is to be done.
pub fn plan(stored: Option<&Stored>, at: At<'_>) -> Step {
    let Some(stored) = stored else { return Step::Start };
    if !stored.knows_ours {
        return Step::Remember;
    }
    let ca_is_good = stored.ca.signs && stored.ca.not_after > at.now;
    if ca_is_good && let Some(names) = renewal(stored, at) {
        return Step::Renew(names);
    }
    let mut wake = due(stored.ca.not_after, AUTHORITY_LIFE, at.early);
    match &stored.next {
        Some(next) if next.signs && next.not_after > at.now + SERVING_LIFE / DUE_PART => {
            let patience = patience(stored, at.now);
            match at.trusted_for {
                Some(trusted) if trusted >= patience => return Step::Switch,
                Some(trusted) => wake = at.now + patience.saturating_sub(trusted),
                // Being trusted is an event, not a time.
                None => wake = at.now + LONGEST_SETTLING,
            }
        }
        Some(_) => return Step::Begin,
        None if !ca_is_good || wake <= at.now => return Step::Begin,
        None => {}
    }
    if stored.previous.iter().any(|end| *end <= at.now) {
        return Step::Forget;
    }
    let ends = stored.previous.iter().copied();
    let serving = stored.serving.iter().map(|s| due(s.not_after, SERVING_LIFE, at.early));
    let next = ends.chain(serving.filter(|due| *due > at.now)).fold(wake, Duration::min);
    Step::Wait(next)
}

/// The end of what is signed now.
pub fn serving_end(now: Duration, ca: Duration) -> Duration {
    (now + SERVING_LIFE).min(ca)
}

/// Whether this replica goes over to the stored certificate: `ours` is whether what it serves now
/// is valid and trusted, `trusted_for` how long the stored one's authority has been trusted.
pub fn adopt(ours: bool, trusted_for: Option<Duration>) -> bool {
    !ours || trusted_for.is_some_and(|trusted| trusted >= SETTLING)
}

/// Whether a replica that has just started may be asked: `trusted_for` is how long the authority of
/// what it serves has been trusted. Before anything is registered nobody asks, and nothing would be
/// registered if nobody were ready.
pub fn ready(registered: bool, trusted_for: Option<Duration>) -> bool {
    !registered || trusted_for.is_some_and(|trusted| trusted >= SETTLING)
}

/// The names to sign for, if the serving certificate must be replaced.
fn renewal(stored: &Stored, at: At<'_>) -> Option<BTreeSet<String>> {
    let Some(serving) = stored.serving.as_ref().filter(|serving| serving.fits) else {
        return Some(at.names.clone());
    };
    if !at.names.is_subset(&serving.names) {
        // Another replica may be called by other names while options change. Were its names left
        // out, the two would sign against each other for ever.
        let both: BTreeSet<String> = serving.names.union(at.names).cloned().collect();
        return Some(if both.len() > MOST_NAMES { at.names.clone() } else { both });
    }
    let gained = serving_end(at.now, stored.ca.not_after).saturating_sub(serving.not_after);
    let is_due = due(serving.not_after, SERVING_LIFE, at.early) <= at.now;
    (is_due && gained >= LEAST_GAIN).then(|| at.names.clone())
}

fn due(end: Duration, life: Duration, early: Duration) -> Duration {
    end.saturating_sub(life / DUE_PART).saturating_sub(early)
}

/// How long API servers get to hear of the next authority: as long as there is time for it.
fn patience(stored: &Stored, now: Duration) -> Duration {
    let serving = stored.serving.as_ref().filter(|s| s.fits).map_or(now, |s| s.not_after);
    let left = stored.ca.not_after.min(serving).saturating_sub(now);
    (left / 10).clamp(SETTLING, LONGEST_SETTLING)
}

#[cfg(test)]
mod tests;
