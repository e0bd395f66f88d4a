//! Times at which a target is probed, as offsets on one monotonic clock.
//!
//! Invariants:
//!
//! * Probes of a target are due on a fixed grid: once in each period, at the target's phase. So
//!   the times do not drift if a probe was late. Only the first probe of a target may be off the
//!   grid (see [`first`]).
//! * The phase depends on the target's identity alone. So targets spread evenly over the period,
//!   and do not move when other targets are added or removed.

use std::time::Duration;

use sha2::{Digest as _, Sha256};

/// Longest time from the addition of a target to its first probe, for a target that does not count
/// as healthy. The first probes of such targets are spread over this time, or over one period if
/// the period is shorter.
const FIRST_WITHIN: Duration = Duration::from_millis(200);

/// Position of a target's probes within each period, as a fraction of the period. The phase and the
/// period give the target's grid: one time in each period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProbePhase(u64);

impl ProbePhase {
    /// Phase of the target with this identity. The boundaries between the parts of the identity
    /// matter. For example, `ab` and `c` differ from `a` and `bc`.
    pub fn of(identity: &[&str]) -> Self {
        let mut hash = Sha256::new();
        for part in identity {
            hash.update(part);
            // 0xff occurs in no UTF-8 text, so it separates the parts.
            hash.update([0xff]);
        }
        Self(hash.finalize().first_chunk().copied().map_or(0, u64::from_be_bytes))
    }

    /// Offset into a time of length `span`: the phase, as a fraction, multiplied by `span`.
    /// The offset is less than `span`, or zero if `span` is zero.
    pub fn within(self, span: Duration) -> Duration {
        let nanos = (u128::from(self.0) * span.as_nanos()) >> 64;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// Time of the target's next probe: the first time after `now` that is on the target's grid. This
/// time is at most one period after `now`. If the period is zero, the result is `now`.
pub fn next(now: Duration, phase: ProbePhase, period: Duration) -> Duration {
    let offset = phase.within(period);
    let Some(past) = now.checked_sub(offset) else { return offset };
    let nanos = period.as_nanos();
    if nanos == 0 {
        return now;
    }
    let into = u64::try_from(past.as_nanos() % nanos).unwrap_or(0);
    now + period.saturating_sub(Duration::from_nanos(into))
}

/// Time of the first probe of a new target that does not count as healthy. This probe is not on the
/// target's grid. The first probes of all such targets are spread over the 200 ms after `now`, or
/// over one period if the period is shorter.
pub fn first(now: Duration, phase: ProbePhase, period: Duration) -> Duration {
    now + phase.within(period.min(FIRST_WITHIN))
}

#[cfg(test)]
mod tests;
