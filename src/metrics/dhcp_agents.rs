//! Metrics of the DHCP agent of one network.

use prometheus::{Histogram, IntCounter, IntGauge, IntGaugeVec};

use super::MetricMaker;

/// Bounds in seconds of the buckets of two histograms: [`DhcpMetrics::acquire_seconds`] and
/// [`DhcpMetrics::renew_seconds`].
const SECONDS: [f64; 13] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0];

metric_set! {
    /// Metrics of one DHCP agent and of the leases on its network.
    pub struct DhcpMetrics {
        /// 1 on the agent that holds the network's Lease, 0 on the standbys.
        pub speaks: IntGauge = gauge(
            "hgo_dhcp_speaks",
            "1 on the agent that is active for its network",
        );
        /// Number of leases on the network, by state.
        pub leases: IntGaugeVec = gauges("hgo_dhcp_leases", "Leases by state", &["state"]);
        /// Seconds until the next expiry of a lease on the network, if no lease is renewed until
        /// then. 0 if no lease expires.
        pub first_expiry: IntGauge = gauge(
            "hgo_dhcp_first_expiry_seconds",
            "Time until the first lease expires unless it is renewed",
        );
        /// Seconds from the start of a search for an address until the client may use an address. A
        /// search starts shortly before the first DISCOVER, or when the former address is lost.
        pub acquire_seconds: Histogram = histogram(
            "hgo_dhcp_acquire_seconds",
            "Time from the start of a search for an address to one that may be used",
            &SECONDS,
        );
        /// Seconds from the first request to renew a lease to the answer of a server.
        pub renew_seconds: Histogram = histogram(
            "hgo_dhcp_renew_seconds",
            "Time from the first request to extend a lease to the answer",
            &SECONDS,
        );
        /// DHCPNAKs that DHCP servers sent.
        pub naks: IntCounter = counter("hgo_dhcp_naks_total", "Refusals by DHCP servers");
        /// Addresses that were declined because another host uses them.
        pub declines: IntCounter = counter(
            "hgo_dhcp_declines_total",
            "Addresses declined because another host uses them",
        );
        /// DHCP messages that the agent sent again, because no server had answered.
        pub retries: IntCounter = counter("hgo_dhcp_retries_total", "Requests that were repeated");
        /// Frames that the kernel's filter passed to the agent, but that are not a valid answer to
        /// one of the agent's clients.
        pub frames_dropped: IntCounter = counter(
            "hgo_dhcp_frames_dropped_total",
            "Frames to a DHCP client that answer no client of the agent",
        );
        /// Number of DHCP servers that granted the current leases.
        pub servers: IntGauge = gauge(
            "hgo_dhcp_servers",
            "DHCP servers that granted the current leases",
        );
        /// Addresses that the agent no longer leases, while a host on the network still announces
        /// them.
        pub still_announced: IntGauge = gauge(
            "hgo_dhcp_still_announced",
            "Addresses that are no longer leased, and that a station still announces",
        );
    }
}
