//! Token bucket: limits how often something is done.
//!
//! The crate `governor` is not used, because it reads a clock itself. Here the time is an argument,
//! as in all decisions.

use std::time::Duration;

/// Token bucket. A full bucket has `most` tokens, and one token is added in each interval `every`,
/// up to `most`. Times are offsets on one monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    most: u32,
    every: Duration,
    /// Time at which the bucket will have `most` tokens, if no further token is taken.
    full: Duration,
}

impl TokenBucket {
    /// Full bucket with `most` tokens. One token is added in each interval `every`, up to `most`.
    pub const fn new(most: u32, every: Duration) -> Self {
        Self { most, every, full: Duration::ZERO }
    }

    /// Takes a token at the time `now`. `Err`: no token is left. The error's value is the time at
    /// which the next token is added.
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

    /// Whether the bucket has all its tokens at the time `now`.
    pub fn is_full(&self, now: Duration) -> bool {
        self.full <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn a_bucket_has_so_many_at_once_and_then_one_in_each_interval() {
        let mut bucket = TokenBucket::new(3, ms(100));
        let mut taken =
            |from: u64, to: u64| (from..to).filter(|n| bucket.take(ms(*n)).is_ok()).count();
        assert_eq!(taken(1_000, 1_100), 3);
        assert_eq!(taken(1_100, 2_100), 10);
        assert_eq!(taken(9_000, 9_010), 3);
        assert!(!bucket.is_full(ms(9_299)) && bucket.is_full(ms(9_300)));
    }
}
