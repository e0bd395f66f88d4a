//! Metrics of the leader for credentials. A series whose labels name a TokenRotation, or an object
//! that the TokenRotation needs, is removed with the TokenRotation.

use prometheus::{IntCounter, IntCounterVec, IntGaugeVec};

use super::MetricMaker;
use crate::domain::credentials::rotation::RotationStep;

/// Labels of the series for the target of a TokenRotation.
const TARGET: [&str; 3] = ["namespace", "rotation", "rotated"];

metric_set! {
    /// Metrics of TokenRotations, as the leader observes them.
    pub struct RotationMetrics {
        /// Earliest expiry of the credentials in the target of a TokenRotation, in seconds since
        /// the epoch.
        pub expiries: IntGaugeVec = gauges(
            "hgo_credential_expiration_timestamp_seconds",
            "Expiry of the first credential in a TokenRotation's target",
            &TARGET,
        );
        /// 1 for a TokenRotation whose credential should have been replaced before now. Also 1 if
        /// the credential is only watched, and has expired or expires soon. 0 for every other
        /// TokenRotation.
        pub overdue: IntGaugeVec = gauges(
            "hgo_credential_overdue",
            "1 where a credential should have been replaced, or expires soon and is only watched",
            &TARGET,
        );
        /// Expiry of each watched credential that the status of a TokenRotation lists, in seconds
        /// since the epoch. A status lists at most 32. The label `rotated` says whether another
        /// TokenRotation replaces the credential.
        pub watched_expiries: IntGaugeVec = gauges(
            "hgo_credential_watched_expiration_timestamp_seconds",
            "Expiry of a credential that is only watched",
            &["namespace", "rotation", "credential", "rotated"],
        );
        /// 1 for a watched credential that no TokenRotation replaces, and that has expired or
        /// expires soon. 0 for any other watched credential. A credential without an expiry has no
        /// series.
        pub watched_overdue: IntGaugeVec = gauges(
            "hgo_credential_watched_overdue",
            "1 where a watched credential expires soon and is not replaced",
            &["namespace", "rotation", "credential"],
        );
        /// Expiry of each API key for a Rancher, in seconds since the epoch.
        pub key_expiries: IntGaugeVec = gauges(
            "hgo_credential_api_key_expiration_timestamp_seconds",
            "Expiry of the API key for a Rancher",
            &["namespace", "secret", "key"],
        );
        /// 1 for an API key that has expired, that Rancher rejects, or that expires soon and is not
        /// renewed. 0 for any other API key. An API key without an expiry has no series.
        pub key_overdue: IntGaugeVec = gauges(
            "hgo_credential_api_key_overdue",
            "1 where that API key expires soon and is not renewed, or has expired",
            &["namespace", "secret", "key"],
        );
        /// Number of TokenRotations, by the reason of their condition `Ready`. `New`: there is no
        /// such condition yet.
        pub rotations: IntGaugeVec = gauges(
            "hgo_credential_rotations",
            "TokenRotations by reason",
            &["reason"],
        );
        /// Credentials that this process wrote into their target, and then observed there.
        pub published: IntCounter = counter(
            "hgo_credential_publications_total",
            "Credentials that this process wrote into their target and then observed there",
        );
        /// Failed steps of the replacement of credentials, by step.
        pub failures: IntCounterVec = counters_from_zero(
            "hgo_credential_failures_total",
            "Failed steps of the replacement of credentials",
            "step",
            RotationStep::ALL.map(RotationStep::word),
        );
        /// Credentials that were revoked.
        pub revoked: IntCounter = counter(
            "hgo_credential_revocations_total",
            "Credentials that were revoked",
        );
    }
}

impl RotationMetrics {
    /// Removes all series of TokenRotations.
    pub fn reset(&self) {
        [
            &self.expiries,
            &self.overdue,
            &self.watched_expiries,
            &self.watched_overdue,
            &self.key_expiries,
            &self.key_overdue,
            &self.rotations,
        ]
        .into_iter()
        .for_each(IntGaugeVec::reset);
    }
}
