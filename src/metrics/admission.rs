//! Metrics of admission.

use prometheus::{HistogramVec, IntCounter, IntCounterVec, IntGaugeVec};

use super::MetricMaker;

metric_set! {
    /// Metrics of the webhooks that the API server calls, and of their certificates.
    pub struct AdmissionMetrics {
        /// Requests to the webhooks, by webhook (the label `call`), kind of object and verdict.
        pub requests: IntCounterVec = counters(
            "hgo_admission_requests_total",
            "Requests of the API server by call, kind and verdict",
            &["call", "kind", "verdict"],
        );
        /// Seconds that the check or the conversion of an object took, by webhook (the label
        /// `call`). The arrival of the request and its wait for a turn are not included. A request
        /// that is refused by an HTTP status is not measured.
        pub seconds: HistogramVec = histograms(
            "hgo_admission_seconds",
            "Time that an answer took, without reading the request",
            &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0],
            &["call"],
        );
        /// TLS handshakes that failed or took too long.
        pub handshakes_failed: IntCounter = counter(
            "hgo_admission_handshake_errors_total",
            "TLS handshakes that failed or took too long",
        );
        /// Time when each certificate of the webhooks expires, in seconds since the epoch.
        pub certificate_expiry: IntGaugeVec = gauges(
            "hgo_certificate_expiration_timestamp_seconds",
            "End of a certificate's validity",
            &["certificate"],
        );
        /// Corrections of a webhook configuration, or of the CRD with the conversion webhook, after
        /// another client changed the object. The label `kind` is the kind of the object.
        pub repairs: IntCounterVec = counters(
            "hgo_registration_repairs_total",
            "Configurations changed by another client and corrected",
            &["kind"],
        );
    }
}
