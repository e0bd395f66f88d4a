//! Time at which a credential is replaced.
//!
//! Invariants:
//!
//! * A replacement is not due before a hundredth of the credential's lifetime is over, so that a
//!   credential with wrong times is not replaced again and again.
//! * The replacement is due at the expiry of the credential at the latest, whatever the maintenance
//!   window is.
//! * The same credential has the same time of replacement in each call.

use sha2::{Digest as _, Sha256};

use super::Seconds;

const MINUTE: Seconds = 60;
const DAY: Seconds = 86_400;
/// Weekday of the epoch, a Thursday, counted from Monday as 0.
const EPOCH_DAY: Seconds = 3;

/// Rules of a spec for the time of a replacement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplacementSchedule {
    /// Share of the lifetime that is left at the replacement, in percent.
    pub left_percent: Seconds,
    /// Minimum time that is left at the replacement, in seconds. The minimum applies if
    /// `left_percent` gives less time. A minimum above half of the lifetime counts as half.
    pub minimum_left: Seconds,
    /// Maximum time by which jitter moves the replacement to an earlier time, in percent of the
    /// lifetime.
    pub jitter_percent: Seconds,
    /// Window in which a replacement may begin. If the window opens after
    /// [`ReplacementTimes::latest`], the replacement is due at that time. `None`: a replacement may
    /// begin at any time.
    pub window: Option<MaintenanceWindow>,
    /// Whether the rotation is paused.
    pub paused: bool,
}

/// A maintenance window, in UTC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaintenanceWindow {
    /// Start of the window, in minutes after midnight.
    pub start: Seconds,
    /// Length of the window, in minutes.
    pub minutes: Seconds,
    /// Days on which the window starts, Monday first.
    pub days: [bool; 7],
}

/// Times of a replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplacementTimes {
    /// Time at which the replacement is due.
    pub at: Seconds,
    /// Latest time for the replacement, whatever the maintenance window is. The condition Expiring
    /// is True from this time on.
    pub latest: Seconds,
}

/// Times for the replacement of a credential that is valid from `issued` to `end`. `seed`: text
/// that decides how much of the jitter applies. The same text always gives the same times.
pub fn due(
    schedule: &ReplacementSchedule,
    issued: Seconds,
    end: Seconds,
    seed: &str,
) -> ReplacementTimes {
    let life = (end - issued).max(1);
    let margin = (life * schedule.left_percent / 100).max(schedule.minimum_left.min(life / 2));
    let jitter = share(life * schedule.jitter_percent / 100, seed);
    let first = issued + (life / 100).max(1);
    let at = (end - margin - jitter).max(first);
    let latest = (end - margin / 2).max(at);
    let opens = schedule.window.as_ref().map_or(at, |window| next_open(window, at));
    ReplacementTimes { at: opens.min(latest), latest }
}

/// First time at which the window is open, at `from` or later. If the window never opens: `from`.
fn next_open(window: &MaintenanceWindow, from: Seconds) -> Seconds {
    let today = from.div_euclid(DAY);
    // The search begins yesterday, because yesterday's window may last until today. The search
    // covers the next seven days, so that it reaches each weekday.
    (today - 1..=today + 7)
        .filter(|day| window.days[index(*day)])
        .map(|day| day * DAY + window.start * MINUTE)
        .find(|start| start + window.minutes * MINUTE > from)
        .map_or(from, |start| start.max(from))
}

fn index(day: Seconds) -> usize {
    usize::try_from((day + EPOCH_DAY).rem_euclid(7)).unwrap_or_default()
}

/// Part of `whole`, from 0 to less than `whole`. The same seed always gives the same part.
fn share(whole: Seconds, seed: &str) -> Seconds {
    let hash = Sha256::digest(seed.as_bytes());
    let number = hash.iter().take(4).fold(0, |number: i64, byte| number << 8 | i64::from(*byte));
    let product = (i128::from(whole) * i128::from(number)) >> 32;
    Seconds::try_from(product).unwrap_or_default()
}

#[cfg(test)]
mod tests;
