//! Spreading of the messages of many clients over time, because servers drop messages that come in
//! bursts. For example, one server processed only 166 of 491 RELEASEs that came within 7 ms, and
//! 200 renewals at once needed five seconds of retries.

use std::time::Duration;

use crate::limits::token_bucket::TokenBucket;

/// Rate limit of RELEASEs: 10 at once, then one every 20 ms. A server does not answer a RELEASE, so
/// the client does not notice a lost one. At this rate, a server that stops for a second gets at
/// most 60 RELEASEs in that second, and can buffer them.
pub const RELEASES: TokenBucket = TokenBucket::new(10, Duration::from_millis(20));
/// Time that a server is assumed to need for the messages of one client.
const EACH: Duration = Duration::from_millis(8);
/// Maximum time over which clients that begin together spread their first messages.
const LONGEST: Duration = Duration::from_secs(4);
/// 2^32 divided by the golden ratio. The first multiples of this number, modulo 2^32, are spread
/// evenly.
const GOLDEN: u32 = 0x9e37_79b9;

/// Phase of the client with number `n`: its position in a time range, in units of 1/2^32 of the
/// range. Clients with consecutive numbers are spread evenly over the range.
pub const fn phase(n: u32) -> u32 {
    n.wrapping_mul(GOLDEN)
}

/// Time over which clients that begin together spread their first messages. `clients`: number of
/// these clients. The result is for [`super::super::ClientOptions::start_within`].
pub fn start_within(clients: usize) -> Duration {
    EACH.saturating_mul(u32::try_from(clients).unwrap_or(u32::MAX)).min(LONGEST)
}

/// Part of the time `whole`: `whole` times `phase`, divided by 2^32.
pub(super) fn part(phase: u32, whole: Duration) -> Duration {
    let nanos = (whole.as_nanos() * u128::from(phase)) >> 32;
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Generator of pseudorandom numbers from a seed (SplitMix64). The crate `rand` would add more code
/// to the privileged agent than this type.
#[derive(Clone, Debug)]
pub(super) struct JitterRng(u64);

impl JitterRng {
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

    /// Random time, from zero to less than `whole`.
    pub fn below(&mut self, whole: Duration) -> Duration {
        part(self.word(), whole)
    }
}

#[cfg(test)]
pub(super) mod tests;
