//! Metrics of health checks.

use prometheus::{HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use super::MetricMaker;

metric_set! {
    /// Metrics of the health checks of VM backends.
    pub struct ProbeMetrics {
        /// Probes by protocol and result.
        pub done: IntCounterVec = counters(
            "hgo_probes_total",
            "Probes of VM backends by protocol and result",
            &["protocol", "result"],
        );
        /// Seconds that a probe took, by protocol.
        pub seconds: HistogramVec = histograms(
            "hgo_probe_seconds",
            "Time that a probe took",
            &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0],
            &["protocol"],
        );
        /// Number of probe targets, including those whose address must not be probed.
        pub targets: IntGauge = gauge("hgo_probe_targets", "VM backends with a health check");
        /// Changes of a probe target's verdict between healthy and unhealthy, by the new verdict.
        pub verdicts: IntCounterVec = counters(
            "hgo_probe_verdicts_total",
            "Verdicts on VM backends that flipped, by the new verdict",
            &["verdict"],
        );
        /// Probes that started later than planned, by more than a tenth of their period.
        pub late: IntCounter = counter(
            "hgo_probes_late_total",
            "Probes that started later than a tenth of their period",
        );
        /// Number of probe targets that count as healthy because their failures are doubted. The
        /// label `second_opinion` is `reached` if another replica reaches most of the targets that
        /// it was asked to probe, and otherwise `none`.
        doubted: IntGaugeVec = gauges(
            "hgo_probe_targets_doubted",
            "VM backends that fail but stay endpoints, because most fail at once, by the second opinion",
            &["second_opinion"],
        );
    }
}

impl ProbeMetrics {
    /// Counts `count` probe targets whose verdict changed. `healthy`: whether the new verdict is
    /// healthy.
    pub fn flipped(&self, healthy: bool, count: usize) {
        let verdict = if healthy { "healthy" } else { "unhealthy" };
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        self.verdicts.with_label_values(&[verdict]).inc_by(count);
    }

    /// Sets the metric of doubted failures. `held`: number of probe targets that count as healthy
    /// because their failures are doubted. `reached`: whether another replica reaches most of the
    /// targets that it was asked to probe. `reached` is `false` if no replica has answered.
    pub fn doubt(&self, held: usize, reached: bool) {
        let of = |it: bool| if it { "reached" } else { "none" };
        let held = i64::try_from(held).unwrap_or(i64::MAX);
        self.doubted.with_label_values(&[of(reached)]).set(held);
        self.doubted.with_label_values(&[of(!reached)]).set(0);
    }
}
