//! How often a ledger is written, and how failures are retried.
//!
//! A write of a pool costs the API server in proportion to the pool (measured: 30 ms of its
//! CPU at 1,000 claims, 120 ms at 5,000), so under load requests are gathered between two
//! writes for a time that grows with the ledger. A lone request never waits.

use std::time::Duration;

/// Gathering for each ledger entry written: a ledger takes at most about an eighth of one
/// core of the API server.
const PER_ENTRY: Duration = Duration::from_micros(200);
/// Nobody waits longer than this for a ledger write to begin.
const LONGEST_GATHERING: Duration = Duration::from_secs(1);

/// When the next ledger write may begin. Times are offsets on one monotonic clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    next: Duration,
}

impl Pace {
    /// Notes a write of ledgers with so many entries. A server that took longer than they
    /// explain is busy, and is left alone for as long again.
    pub fn wrote(&mut self, began: Duration, ended: Duration, entries: usize) {
        let entries = u32::try_from(entries).unwrap_or(u32::MAX);
        let pause = PER_ENTRY.saturating_mul(entries).max(ended.saturating_sub(began));
        self.next =
            ended + if entries == 0 { Duration::ZERO } else { pause.min(LONGEST_GATHERING) };
    }

    /// How long to gather from `now`.
    pub fn pause(&self, now: Duration) -> Duration {
        self.next.saturating_sub(now)
    }
}

/// A budget: so many at once, and then one in each interval. Times are offsets on one monotonic
/// clock.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    at_once: u32,
    interval: Duration,
    /// When all of it is there again.
    full: Duration,
}

impl Budget {
    /// A budget that is there as a whole.
    pub const fn new(at_once: u32, interval: Duration) -> Self {
        Self { at_once, interval, full: Duration::ZERO }
    }

    /// Takes one, if there is one.
    pub fn take(&mut self, now: Duration) -> bool {
        let full = self.full.max(now) + self.interval;
        let is_there = full.saturating_sub(now) <= self.interval * self.at_once;
        if is_there {
            self.full = full;
        }
        is_there
    }
}

/// The delay before attempt `failures + 1`: doubling from `first`, at most `most`, with
/// `jitter` in 0.0 to 1.0 taking off up to half.
pub fn backoff(failures: u32, first: Duration, most: Duration, jitter: f64) -> Duration {
    let doubled = first.saturating_mul(1_u32.checked_shl(failures.min(20)).unwrap_or(u32::MAX));
    doubled.min(most).mul_f64(1.0 - jitter.clamp(0.0, 1.0) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn the_first_write_and_one_after_a_rest_begin_at_once() {
        let mut pace = Pace::default();
        assert_eq!(pace.pause(ms(0)), ms(0));
        pace.wrote(ms(0), ms(10), 500);
        assert_eq!(pace.pause(ms(10)), ms(100));
        assert_eq!(pace.pause(ms(200)), ms(0));
    }

    #[test]
    fn what_wrote_nothing_costs_nothing() {
        let mut pace = Pace::default();
        pace.wrote(ms(0), ms(70), 0);
        assert_eq!(pace.pause(ms(70)), ms(0));
    }

    #[test]
    fn a_slow_server_is_left_alone_but_nobody_waits_longer_than_the_bound() {
        let mut pace = Pace::default();
        pace.wrote(ms(0), ms(300), 10);
        assert_eq!(pace.pause(ms(300)), ms(300));
        pace.wrote(ms(0), ms(9_000), 10);
        assert_eq!(pace.pause(ms(9_000)), LONGEST_GATHERING);
        pace.wrote(ms(0), ms(10), 1_000_000);
        assert_eq!(pace.pause(ms(10)), LONGEST_GATHERING);
    }

    #[test]
    fn a_budget_has_so_many_at_once_and_then_one_in_each_interval() {
        let mut budget = Budget::new(3, ms(100));
        let mut taken = |from: u64, to: u64| (from..to).filter(|n| budget.take(ms(*n))).count();
        assert_eq!(taken(1_000, 1_100), 3);
        assert_eq!(taken(1_100, 2_100), 10);
        assert_eq!(taken(9_000, 9_010), 3);
    }

    #[test]
    fn backoff_doubles_up_to_its_bound_and_jitter_only_shortens() {
        let delay = |n, jitter| backoff(n, ms(10), ms(1_000), jitter);
        assert_eq!((delay(0, 0.0), delay(1, 0.0), delay(3, 0.0)), (ms(10), ms(20), ms(80)));
        assert_eq!(delay(40, 0.0), ms(1_000));
        assert_eq!(delay(0, 1.0), ms(5));
    }
}
