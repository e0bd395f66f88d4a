//! What a network's agent counts and measures.

use prometheus::{Histogram, IntCounter, IntGauge, IntGaugeVec};

use super::Maker;

/// An agent's metrics.
#[derive(Clone)]
pub struct Dhcp {
    /// 1 on the agent that speaks for its network.
    pub speaks: IntGauge,
    /// Leases by state.
    pub leases: IntGaugeVec,
    /// Seconds until the first lease ends unless it is renewed.
    pub first_expiry: IntGauge,
    /// From the first question to an address that may be used.
    pub acquire_seconds: Histogram,
    /// From the first question for more time to the answer.
    pub renew_seconds: Histogram,
    /// Refusals by servers.
    pub naks: IntCounter,
    /// Addresses that somebody else had.
    pub declines: IntCounter,
    /// Questions that were repeated.
    pub retries: IntCounter,
    /// Frames that passed the kernel's filter and were nobody's.
    pub frames_dropped: IntCounter,
    /// Servers that granted what is leased now.
    pub servers: IntGauge,
    /// Addresses that were lost, and that a station still announces.
    pub still_announced: IntGauge,
}

impl Dhcp {
    pub(super) fn new(make: &Maker<'_>) -> Result<Self, prometheus::Error> {
        let seconds = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0];
        Ok(Self {
            speaks: make.gauge("hgo_dhcp_speaks", "1 on the agent that speaks for its network")?,
            leases: make.gauges("hgo_dhcp_leases", "Leases by state", &["state"])?,
            first_expiry: make.gauge(
                "hgo_dhcp_first_expiry_seconds",
                "Until the first lease ends unless it is renewed",
            )?,
            acquire_seconds: make.histogram(
                "hgo_dhcp_acquire_seconds",
                "From the first question to an address that may be used",
                &seconds,
            )?,
            renew_seconds: make.histogram(
                "hgo_dhcp_renew_seconds",
                "From the first question for more time to the answer",
                &seconds,
            )?,
            naks: make.counter("hgo_dhcp_naks_total", "Refusals by DHCP servers")?,
            declines: make
                .counter("hgo_dhcp_declines_total", "Addresses that turned out to be another's")?,
            retries: make.counter("hgo_dhcp_retries_total", "Questions that were repeated")?,
            frames_dropped: make.counter(
                "hgo_dhcp_frames_dropped_total",
                "Frames to a DHCP client that were no answer to any of the agent's",
            )?,
            servers: make
                .gauge("hgo_dhcp_servers", "DHCP servers that granted what is leased now")?,
            still_announced: make.gauge(
                "hgo_dhcp_still_announced",
                "Addresses that are no longer leased, and that a station still announces",
            )?,
        })
    }
}
