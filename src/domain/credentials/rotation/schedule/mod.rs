//! When a credential is replaced.
//!
//! Invariants: never before a hundredth of its life is over, so that one that is wrong about its
//! time is not replaced in a loop; always before it ends, whatever window there is; the same
//! answer for the same credential, however often it is asked for.

use sha2::{Digest as _, Sha256};

use super::Seconds;

const MINUTE: Seconds = 60;
const DAY: Seconds = 86_400;
/// The epoch began on a Thursday.
const EPOCH_DAY: Seconds = 3;

/// When, as a spec asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Share of its life that is left, in percent.
    pub left_percent: Seconds,
    /// But no less than that, up to half of its life.
    pub minimum_left: Seconds,
    /// Up to so much of its life earlier, in percent.
    pub jitter_percent: Seconds,
    /// Only then, if that is not too late.
    pub window: Option<Window>,
    /// Not at all.
    pub paused: bool,
}

/// A time of day that comes again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// When it begins, in minutes after midnight.
    pub start: Seconds,
    /// How long it lasts, in minutes.
    pub minutes: Seconds,
    /// On which days it begins, Monday first.
    pub days: [bool; 7],
}

/// When a credential is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// When.
    pub at: Seconds,
    /// When at the latest, window or not: from then on it is told that it is about to end.
    pub latest: Seconds,
}

/// The time to replace a credential. `seed` moves it by its share of the jitter.
pub fn due(schedule: &Schedule, issued: Seconds, end: Seconds, seed: &str) -> Due {
    let life = (end - issued).max(1);
    let margin = (life * schedule.left_percent / 100).max(schedule.minimum_left.min(life / 2));
    let jitter = share(life * schedule.jitter_percent / 100, seed);
    let first = issued + (life / 100).max(1);
    let at = (end - margin - jitter).max(first);
    let latest = (end - margin / 2).max(at);
    let opens = schedule.window.as_ref().map_or(at, |window| next_open(window, at));
    Due { at: opens.min(latest), latest }
}

/// The first time from then on at which the window is open.
fn next_open(window: &Window, from: Seconds) -> Seconds {
    let today = from.div_euclid(DAY);
    // One that began yesterday may last until today; and within a week each day comes.
    (today - 1..=today + 7)
        .filter(|day| window.days[index(*day)])
        .map(|day| day * DAY + window.start * MINUTE)
        .find(|start| start + window.minutes * MINUTE > from)
        .map_or(from, |start| start.max(from))
}

fn index(day: Seconds) -> usize {
    usize::try_from((day + EPOCH_DAY).rem_euclid(7)).unwrap_or_default()
}

/// A part of the whole, always the same for the same seed.
fn share(whole: Seconds, seed: &str) -> Seconds {
    let hash = Sha256::digest(seed.as_bytes());
    let number = hash.iter().take(4).fold(0, |number: i64, byte| number << 8 | i64::from(*byte));
    let product = (i128::from(whole) * i128::from(number)) >> 32;
    Seconds::try_from(product).unwrap_or_default()
}

#[cfg(test)]
mod tests;
