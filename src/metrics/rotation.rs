//! What the leader tells of credentials. Labels name a TokenRotation and go with it.

use prometheus::{IntCounter, IntCounterVec, IntGaugeVec};

use super::Maker;
use crate::domain::rotation::Step;

/// What the leader sees of TokenRotations.
#[derive(Clone)]
pub struct Rotation {
    /// When a target's first credential ends, in seconds since the epoch.
    pub ends: IntGaugeVec,
    /// Whether one should have been replaced by now, or is only watched and ends soon.
    pub overdue: IntGaugeVec,
    /// TokenRotations by the reason of their condition Ready.
    pub rotations: IntGaugeVec,
    /// Credentials that were published.
    pub published: IntCounter,
    /// Steps that failed.
    pub failures: IntCounterVec,
    /// Credentials that were revoked.
    pub revoked: IntCounter,
}

impl Rotation {
    pub(super) fn new(make: &Maker<'_>) -> Result<Self, prometheus::Error> {
        let of = ["namespace", "rotation", "rotated"];
        let failures = make.counters(
            "hgo_credential_failures_total",
            "Steps of replacing a credential that failed",
            &["step"],
        )?;
        for step in Step::ALL {
            let _ = failures.with_label_values(&[step.word()]);
        }
        Ok(Self {
            ends: make.gauges(
                "hgo_credential_expiration_timestamp_seconds",
                "When the first credential of a TokenRotation's target ends",
                &of,
            )?,
            overdue: make.gauges(
                "hgo_credential_overdue",
                "1 where a credential should have been replaced, or ends soon and is only watched",
                &of,
            )?,
            rotations: make.gauges(
                "hgo_credential_rotations",
                "TokenRotations by reason",
                &["reason"],
            )?,
            published: make.counter(
                "hgo_credential_publications_total",
                "Credentials that were seen where they are read, after this process put them there",
            )?,
            failures,
            revoked: make
                .counter("hgo_credential_revocations_total", "Credentials that were revoked")?,
        })
    }

    /// Ends all series that name a TokenRotation.
    pub fn reset(&self) {
        [&self.ends, &self.overdue, &self.rotations].into_iter().for_each(IntGaugeVec::reset);
    }
}
