//! Clock for the expiry of the leadership and of leases: time since boot, suspension included.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time since boot (CLOCK_BOOTTIME). It includes the time for which the machine was suspended. A
/// change of the system time has no effect on the value.
pub fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}
