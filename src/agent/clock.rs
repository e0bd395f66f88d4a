//! The agent's clocks: time since the machine started, including the time of suspension, and the
//! time of day.

use chrono::{DateTime, FixedOffset, Utc};

pub(super) use crate::k8s::clock::now;

/// Current time of day. Only the times in records use this clock. Deadlines use `now`.
pub(super) fn wall() -> DateTime<FixedOffset> {
    Utc::now().fixed_offset()
}
