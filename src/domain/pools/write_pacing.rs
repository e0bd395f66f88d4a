//! Pauses between writes of ledgers.
//!
//! A write of a pool costs the API server CPU time in proportion to the number of claims (measured:
//! 30 ms at 1,000 claims, 120 ms at 5,000), and costs the API server's store the bytes of the whole
//! pool. So requests are gathered, and one write serves them all:
//! * Gathering ends at the latest one second after the last write, and earlier if the last write
//!   was short.
//! * Gathering also ends after a gap without new requests. The gap is longer while only releases
//!   wait, because in this case no LoadBalancer waits for an address.
//! * A single request is served at once if the last write answered at most one. So a client that
//!   sends one request after the other does not wait, whatever the size of the pool.
//!
//! Besides, a byte budget limits the average number of bytes per second. If the budget is used up,
//! the next write waits, but at most until four seconds after the last write.

use std::time::Duration;

/// Longest time to gather requests, as a multiple of the last write's duration. With 4, gathering
/// lasts at most four times as long as the write before it. So if requests keep coming, one fifth
/// of the time is spent on writes. After a write of more than 250 ms, this share is larger, because
/// gathering lasts at most `LONGEST_GATHERING`.
const REST: u32 = 4;
/// Longest time after a write for which requests are gathered for the next write.
const LONGEST_GATHERING: Duration = Duration::from_secs(1);
/// Shortest gap without new requests that ends gathering.
const QUIET: Duration = Duration::from_millis(10);
/// Divisor of the last write's duration. The result is the gap without new requests after which
/// gathering ends, but at least `QUIET`. If only releases wait, the gap is the whole duration of
/// the last write, because no LoadBalancer waits for an address. A constant gap of 10 ms would end
/// gathering too early: even many requests that arrive at random times have some such gaps. A gap
/// shorter than a write takes less time than one more write would.
const QUIET_PART: u32 = 4;
/// Bytes of ledgers that may be written per second on average. The API server's store retains all
/// writes of the last five to ten minutes. At this rate, they have up to 600 MiB. By default, the
/// store has 2 GiB.
const BYTES_PER_SECOND: u32 = 1024 * 1024;
/// Longest time for which the byte budget is saved while nothing is written. `BYTES_PER_SECOND`
/// gives 64 MiB in this time. So 64 MiB may be written at once after a long pause.
const BURST: Duration = Duration::from_secs(64);
/// Longest time after a write for which the byte budget delays the next write. In four seconds, the
/// budget grows by 4 MiB: about three ledgers of the largest size. If more than three such ledgers
/// change all the time, each is still written every four seconds. Then the average exceeds
/// `BYTES_PER_SECOND`.
const LONGEST_DEBT: Duration = Duration::from_secs(4);

/// Pace of ledger writes: gives the pause before the next write. Times are offsets on one monotonic
/// clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct WritePace {
    /// Time at which the last write ended.
    ended: Duration,
    /// Duration of the last write.
    took: Duration,
    /// Number of requests that the last write answered.
    answered: usize,
    /// Time at which the byte budget covers all bytes that were written so far.
    earned: Duration,
}

impl WritePace {
    /// Records a write of ledgers that lasted from `began` to `ended`. `bytes`: number of bytes
    /// that were written; with 0, nothing was written, and the duration counts as zero. `requests`:
    /// number of requests that the write answered.
    pub fn wrote(&mut self, began: Duration, ended: Duration, bytes: usize, requests: usize) {
        self.ended = ended;
        self.took = if bytes == 0 { Duration::ZERO } else { ended.saturating_sub(began) };
        self.answered = requests;
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let price = Duration::from_secs(1).saturating_mul(bytes) / BYTES_PER_SECOND;
        self.earned = self.earned.max(began) + price;
    }

    /// Time from `now` for which further requests are gathered before the next write. Zero: the
    /// write may begin at once. `waiting`: requests that wait for this write.
    pub fn pause(&self, now: Duration, waiting: WaitingRequests) -> Duration {
        let affordable = self.earned.saturating_sub(BURST).min(self.ended + LONGEST_DEBT);
        let debt = affordable.saturating_sub(now);
        if !debt.is_zero() {
            return debt;
        }
        if waiting.count <= 1 && self.answered <= 1 {
            return Duration::ZERO;
        }
        let gap = if waiting.for_an_address { self.took / QUIET_PART } else { self.took };
        let rested = self.ended + self.took.saturating_mul(REST).min(LONGEST_GATHERING);
        let quiet = waiting.last + QUIET.max(gap);
        rested.min(quiet).saturating_sub(now)
    }
}

/// Requests that wait for the next write of ledgers.
#[derive(Clone, Copy, Debug)]
pub struct WaitingRequests {
    /// Number of requests.
    pub count: usize,
    /// Whether a LoadBalancer waits for an address that the write can give.
    pub for_an_address: bool,
    /// Time when the last request came.
    pub last: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pools::ledger::LEDGER_BYTES;

    const MIB: usize = 1024 * 1024;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// Pace after a write of a small ledger from time 0 to `took`.
    fn after(took: Duration, requests: usize) -> WritePace {
        let mut pace = WritePace::default();
        pace.wrote(ms(0), took, 1_000, requests);
        pace
    }

    /// Requests of which at least one is for an address.
    fn claims(count: usize, last: Duration) -> WaitingRequests {
        WaitingRequests { count, for_an_address: true, last }
    }

    fn releases(count: usize, last: Duration) -> WaitingRequests {
        WaitingRequests { for_an_address: false, ..claims(count, last) }
    }

    #[test]
    fn who_asks_alone_never_waits() {
        let first = WritePace::default();
        assert_eq!(first.pause(ms(0), claims(5, ms(0))), ms(0), "nothing was written yet");
        for alone in [claims, releases] {
            for took in [ms(5), ms(100), ms(9_000)] {
                assert_eq!(after(took, 1).pause(took, alone(1, took)), ms(0), "{took:?}");
            }
            let rested = Duration::from_secs(2);
            assert_eq!(after(ms(100), 500).pause(rested, alone(1, rested)), ms(0), "after a rest");
        }
    }

    #[test]
    fn who_comes_with_others_or_after_them_waits_for_more() {
        let pace = after(ms(20), 50);
        assert_eq!(pace.pause(ms(20), claims(1, ms(20))), QUIET);
        assert_eq!(pace.pause(ms(25), claims(7, ms(22))), ms(7), "as long as they keep coming");
        assert_eq!(pace.pause(ms(32), claims(7, ms(22))), ms(0), "no more requests came");
        assert_eq!(pace.pause(ms(95), claims(7, ms(94))), ms(5), "until the server has rested");
        assert_eq!(pace.pause(ms(100), claims(7, ms(100))), ms(0));
        assert_eq!(after(ms(20), 1).pause(ms(20), claims(2, ms(20))), QUIET);
    }

    #[test]
    fn releases_wait_through_longer_gaps_until_a_claim_comes() {
        let pace = after(ms(20), 50);
        assert_eq!(pace.pause(ms(32), releases(7, ms(22))), ms(10));
        assert_eq!(pace.pause(ms(42), releases(7, ms(22))), ms(0), "no more requests came");
        assert_eq!(pace.pause(ms(32), claims(8, ms(22))), ms(0), "a claim came, and no more");
        assert_eq!(pace.pause(ms(95), releases(7, ms(94))), ms(5), "until the server has rested");
        assert_eq!(pace.pause(ms(100), releases(7, ms(100))), ms(0));
    }

    #[test]
    fn a_gap_that_costs_less_than_a_quarter_of_a_write_is_waited_through() {
        let pace = after(ms(100), 50);
        assert_eq!(pace.pause(ms(120), claims(7, ms(110))), ms(15));
        assert_eq!(pace.pause(ms(135), claims(7, ms(110))), ms(0), "no more requests came");
        let fast = after(ms(5), 50);
        assert_eq!(fast.pause(ms(5), claims(7, ms(5))), QUIET, "a write that takes no time");
    }

    #[test]
    fn a_slow_server_gets_pauses_and_no_wait_exceeds_the_bound() {
        let pace = after(ms(9_000), 50);
        for many in [claims, releases] {
            let coming = |now: Duration| pace.pause(now, many(50, now));
            assert_eq!(coming(ms(9_000)), LONGEST_GATHERING);
            assert_eq!(coming(ms(9_995)), ms(5));
            assert_eq!(coming(ms(10_000)), ms(0));
        }
    }

    #[test]
    fn what_wrote_nothing_costs_nothing() {
        let mut pace = WritePace::default();
        pace.wrote(ms(0), ms(70), 0, 50);
        assert_eq!(pace.pause(ms(70), claims(50, ms(70))), ms(0));
    }

    /// Writes `ledgers` ledgers of the largest size again and again, from time 0 to `end`. Returns
    /// the number of bytes that were written, and the longest pause.
    fn keep_writing(pace: &mut WritePace, ledgers: usize, end: Duration) -> (usize, Duration) {
        let (mut now, mut written, mut longest) = (ms(0), 0, ms(0));
        loop {
            let pause = pace.pause(now, claims(1, now));
            longest = longest.max(pause);
            now += pause;
            if now >= end {
                return (written, longest);
            }
            pace.wrote(now, now + ms(50), ledgers * LEDGER_BYTES, 1);
            written += ledgers * LEDGER_BYTES;
            now += ms(60);
        }
    }

    /// Even if LoadBalancers are created one after the other, in three of the largest pools, the
    /// writes do not fill the API server's store.
    #[test]
    fn the_bytes_of_up_to_three_full_pools_are_bounded() {
        const HOUR: Duration = Duration::from_hours(1);
        for ledgers in 1..=3 {
            let mut pace = WritePace::default();
            let (written, longest) = keep_writing(&mut pace, ledgers, HOUR);
            let bound = (3_600 + 64) * MIB + 2 * ledgers * LEDGER_BYTES;
            assert!(written <= bound, "{ledgers}: {written} bytes, more than {bound}");
            assert!(longest <= LONGEST_DEBT, "{ledgers}: {longest:?}");
            // After a rest, the bytes of one burst may be written at once, and no more.
            let (now, mut at_once) = (HOUR + Duration::from_secs(100_000), 0);
            while pace.pause(now, claims(1, now)) == ms(0) {
                pace.wrote(now, now, LEDGER_BYTES, 1);
                at_once += LEDGER_BYTES;
            }
            assert!((60 * MIB..=66 * MIB).contains(&at_once), "{ledgers}: {at_once}");
        }
    }

    #[test]
    fn more_than_three_full_pools_are_each_written_every_four_seconds() {
        for ledgers in [4, 10, 20] {
            let mut pace = WritePace::default();
            let (written, longest) = keep_writing(&mut pace, ledgers, Duration::from_mins(5));
            let least = 300 / 4 * ledgers * LEDGER_BYTES;
            let most = 64 * MIB + least + ledgers * LEDGER_BYTES;
            assert!((least..=most).contains(&written), "{ledgers}: {written}, {least} to {most}");
            assert!(longest <= LONGEST_DEBT, "{ledgers}: {longest:?}");
        }
    }

    #[test]
    fn many_full_pools_at_once_are_waited_for_no_longer_than_the_bound() {
        let mut pace = WritePace::default();
        pace.wrote(ms(0), ms(500), 1_000_000_000, 50);
        assert_eq!(pace.pause(ms(500), claims(1, ms(500))), LONGEST_DEBT);
    }
}
