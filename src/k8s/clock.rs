//! Owns time by which claims and leases are judged: since the machine started, suspension included.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time since the machine started. It never jumps, and goes on while the machine sleeps.
pub fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}
