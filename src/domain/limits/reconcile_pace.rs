//! Pace of reconciles: limits how often an object that changes all the time is reconciled.
//!
//! A tenant can change an object as often as the API server answers, and each reconcile may cost
//! several calls. Without a limit, the reconciles of all other objects wait for these calls.
//! Kubernetes' EndpointSlice controller has a similar limit
//! (`--endpointslice-updates-batch-period`). Here, the first changes of an object are never
//! delayed.

use std::collections::HashMap;
use std::time::Duration;

use super::token_bucket::TokenBucket;

/// Smallest number of buckets at which full buckets are removed. With fewer buckets, all are kept.
const FEW: usize = 1024;

/// Pace of the reconciles of several objects, each with a token bucket of its own. Times are
/// offsets on one monotonic clock.
#[derive(Debug)]
pub struct ReconcilePace {
    /// Full bucket. It counts as the bucket of an object that `buckets` does not have.
    full: TokenBucket,
    /// Buckets by the object's UID.
    buckets: HashMap<String, TokenBucket>,
    /// Number of buckets at which full buckets are removed.
    prune_at: usize,
}

impl ReconcilePace {
    /// Pace that lets each object be reconciled `most` times at once, and then once in each
    /// interval `every`.
    pub fn new(most: u32, every: Duration) -> Self {
        Self { full: TokenBucket::new(most, every), buckets: HashMap::new(), prune_at: FEW }
    }

    /// Takes a token for a reconcile of the object `uid` at the time `now`. `Err`: no token is
    /// left. The error's value is the time until which the reconcile must wait.
    pub fn take(&mut self, uid: &str, now: Duration) -> Result<(), Duration> {
        if let Some(bucket) = self.buckets.get_mut(uid) {
            return bucket.take(now);
        }
        self.prune(now);
        let mut bucket = self.full;
        let taken = bucket.take(now);
        self.buckets.insert(uid.to_owned(), bucket);
        taken
    }

    /// Removes full buckets if there are at least `prune_at` buckets. Then sets `prune_at` to twice
    /// the number of the remaining buckets, but to [`FEW`] at least.
    fn prune(&mut self, now: Duration) {
        if self.buckets.len() >= self.prune_at {
            self.buckets.retain(|_, bucket| !bucket.is_full(now));
            self.prune_at = FEW.max(2 * self.buckets.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn each_object_has_a_bucket_of_its_own() {
        let mut pace = ReconcilePace::new(2, ms(100));
        let taken = ["a", "a", "a", "b"].map(|uid| pace.take(uid, ms(7)));
        assert_eq!(taken, [Ok(()), Ok(()), Err(ms(107)), Ok(())]);
        assert_eq!(pace.take("a", ms(107)), Ok(()));
        assert_eq!(pace.take("a", ms(108)), Err(ms(207)));
    }

    #[test]
    fn objects_that_rest_take_no_memory_and_the_others_keep_their_pace() {
        let mut pace = ReconcilePace::new(1, ms(100));
        for number in 0..10 * u64::try_from(FEW).unwrap() {
            let now = ms(number);
            pace.take(&format!("uid-{number}"), now).unwrap();
            let busy = pace.take("busy", now);
            assert_eq!(
                busy,
                if number % 100 == 0 { Ok(()) } else { Err(ms(number / 100 * 100 + 100)) }
            );
        }
        assert!(pace.buckets.len() <= FEW, "{}", pace.buckets.len());
    }
}
