//! What the leader tells of credentials. Labels name a TokenRotation, or what it rests on, and go with it.

use prometheus::{IntCounter, IntCounterVec, IntGaugeVec};

use super::Maker;
use crate::domain::credentials::rotation::Step;

/// What the leader sees of TokenRotations.
#[derive(Clone)]
pub struct Rotation {
    /// When a target's first credential ends, in seconds since the epoch.
    pub ends: IntGaugeVec,
    /// Whether one should have been replaced by now, or is only watched and ends soon.
    pub overdue: IntGaugeVec,
    /// When a credential ends that is only watched; 32 for a TokenRotation at most.
    pub watched_ends: IntGaugeVec,
    /// Whether one of those ends soon and nobody replaces it.
    pub watched_overdue: IntGaugeVec,
    /// When an API key ends, with which a Rancher is asked.
    pub key_ends: IntGaugeVec,
    /// Whether it ends soon and nobody renews it, or has ended.
    pub key_overdue: IntGaugeVec,
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
            watched_ends: make.gauges(
                "hgo_credential_watched_expiration_timestamp_seconds",
                "When a credential ends that is only watched",
                &["namespace", "rotation", "credential", "rotated"],
            )?,
            watched_overdue: make.gauges(
                "hgo_credential_watched_overdue",
                "1 where a watched credential ends soon and nobody replaces it",
                &["namespace", "rotation", "credential"],
            )?,
            key_ends: make.gauges(
                "hgo_credential_api_key_expiration_timestamp_seconds",
                "When the API key ends with which a Rancher is asked",
                &["namespace", "secret", "key"],
            )?,
            key_overdue: make.gauges(
                "hgo_credential_api_key_overdue",
                "1 where that API key ends soon and nobody renews it, or has ended",
                &["namespace", "secret", "key"],
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
        [
            &self.ends,
            &self.overdue,
            &self.watched_ends,
            &self.watched_overdue,
            &self.key_ends,
            &self.key_overdue,
            &self.rotations,
        ]
        .into_iter()
        .for_each(IntGaugeVec::reset);
    }
}
