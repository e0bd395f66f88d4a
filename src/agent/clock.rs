//! Owns time as the agent sees it: since the machine started, suspension included.

use std::time::Duration;

use chrono::{DateTime, FixedOffset, Utc};
use rustix::time::{ClockId, clock_gettime};

/// Time since the machine started. It never jumps, and goes on while the machine sleeps.
pub(super) fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Time of day, for records only.
pub(super) fn wall() -> DateTime<FixedOffset> {
    Utc::now().fixed_offset()
}
