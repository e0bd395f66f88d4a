//! How many clients keep out of each other's way.
//!
//! Servers drop what comes in bursts: of 491 releases within 7 ms one processed 166, and 200
//! renewals at once took five seconds of retries.

use std::time::Duration;

/// How long each client's exchange may take of a server's time.
const EACH: Duration = Duration::from_millis(8);
/// Nobody waits longer than this for its turn.
const LONGEST: Duration = Duration::from_secs(4);
/// 2^32 by the golden ratio: any run of multiples of it is spread evenly over the circle.
const GOLDEN: u32 = 0x9e37_79b9;

/// The phase of the nth client: a fraction of 2^32. Of clients that are counted through, any
/// number in a row is spread evenly.
pub const fn phase(n: u32) -> u32 {
    n.wrapping_mul(GOLDEN)
}

/// Over what time so many clients begin to ask: [`super::super::Options::start_within`].
pub fn start_within(clients: usize) -> Duration {
    EACH.saturating_mul(u32::try_from(clients).unwrap_or(u32::MAX)).min(LONGEST)
}

/// That fraction of a time.
pub(super) fn part(phase: u32, whole: Duration) -> Duration {
    let nanos = (whole.as_nanos() * u128::from(phase)) >> 32;
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Lets so many through at once, then one each `every`.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    most: u32,
    every: Duration,
    /// When the bucket would be full again.
    full: Duration,
}

impl Bucket {
    /// A full bucket.
    pub const fn new(most: u32, every: Duration) -> Self {
        Self { most, every, full: Duration::ZERO }
    }

    /// For RELEASEs, which nobody answers and nobody waits for: 10 at once, then one each 20 ms. So a
    /// server may stand still for a second and has room for what comes.
    pub const fn for_releases() -> Self {
        Self::new(10, Duration::from_millis(20))
    }

    /// Takes one. `Err`: none is left, and when there will be one.
    pub fn take(&mut self, now: Duration) -> Result<(), Duration> {
        let full = self.full.max(now) + self.every;
        let fits = now + self.every * self.most;
        if full <= fits {
            self.full = full;
            Ok(())
        } else {
            Err(now + full.saturating_sub(fits))
        }
    }
}

/// Numbers that nobody expects, from a seed: SplitMix64.
#[derive(Clone, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn word(&mut self) -> u32 {
        u32::try_from(self.roll() >> 32).unwrap_or(0)
    }

    /// A time from zero up to, not including, that.
    pub fn below(&mut self, whole: Duration) -> Duration {
        part(self.word(), whole)
    }
}

#[cfg(test)]
pub(super) mod tests;
