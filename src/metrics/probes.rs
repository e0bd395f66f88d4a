//! Metrics about health checks.

use prometheus::{HistogramVec, IntCounter, IntCounterVec, IntGauge};

use super::Maker;

/// Health checks of VM backends.
#[derive(Clone)]
pub struct Probes {
    /// Probes by protocol and result.
    pub done: IntCounterVec,
    /// How long a probe took, by protocol.
    pub seconds: HistogramVec,
    /// Backends that are probed, with those whose address is refused.
    pub targets: IntGauge,
    /// Verdicts that flipped, by what they became.
    pub verdicts: IntCounterVec,
    /// Probes that began later than a tenth of their period.
    pub late: IntCounter,
}

impl Probes {
    pub(super) fn new(make: &Maker<'_>) -> Result<Self, prometheus::Error> {
        Ok(Self {
            done: make.counters(
                "hgo_probes_total",
                "Probes of VM backends by protocol and result",
                &["protocol", "result"],
            )?,
            seconds: make.histograms(
                "hgo_probe_seconds",
                "How long a probe took",
                &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0],
                &["protocol"],
            )?,
            targets: make.gauge("hgo_probe_targets", "VM backends with a health check")?,
            verdicts: make.counters(
                "hgo_probe_verdicts_total",
                "Verdicts on VM backends that flipped, by what they became",
                &["verdict"],
            )?,
            late: make.counter(
                "hgo_probes_late_total",
                "Probes that began later than a tenth of their period",
            )?,
        })
    }
}
