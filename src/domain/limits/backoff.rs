//! Delays between retries.
//!
//! The crate `backon` is not used, because it runs the retries of one function, and draws the
//! jitter itself. Here the caller counts the failures of each object. The jitter is an argument,
//! because a decision draws no random number.

use std::time::Duration;

/// Delay before the next attempt: `first`, doubled for each of the `failures` (at most 20 times),
/// but not more than `most`. `jitter`, from 0.0 to 1.0, shortens the result by up to half.
pub fn backoff(failures: u32, first: Duration, most: Duration, jitter: f64) -> Duration {
    let doubled = first.saturating_mul(1 << failures.min(20));
    doubled.min(most).mul_f64(1.0 - jitter.clamp(0.0, 1.0) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_its_bound_and_jitter_only_shortens() {
        let ms = Duration::from_millis;
        let delay = |n, jitter| backoff(n, ms(10), ms(1_000), jitter);
        assert_eq!((delay(0, 0.0), delay(1, 0.0), delay(3, 0.0)), (ms(10), ms(20), ms(80)));
        assert_eq!(delay(40, 0.0), ms(1_000));
        assert_eq!(delay(0, 1.0), ms(5));
    }
}
