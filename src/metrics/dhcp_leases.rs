//! Metrics of the leader for addresses that the host leases.

use prometheus::{IntCounterVec, IntGaugeVec};

use super::MetricMaker;

metric_set! {
    /// Metrics of leased addresses, as the leader observes them. Agents have other metrics.
    pub struct LeasingMetrics {
        /// Number of DHCPLeases, by state.
        pub records: IntGaugeVec = gauges("hgo_dhcp_records", "DHCPLeases by state", &["state"]);
        /// 1 for a network with an active DHCP agent, 0 for a network without one. A network has a
        /// series in these cases:
        /// * There is a DHCPLease for the network.
        /// * The network is declared, and a LoadBalancer waits for a lease on it.
        pub agents: IntGaugeVec = gauges(
            "hgo_dhcp_agent_up",
            "1 where the network has an active DHCP agent, else 0",
            &["network"],
        );
        /// Number of leased addresses with less than an eighth of their lease time left, by
        /// network.
        pub overdue: IntGaugeVec = gauges(
            "hgo_dhcp_leases_overdue",
            "Leased addresses with less than an eighth of their time left",
            &["network"],
        );
        /// Changes of leased addresses. The label `change` is `published`, `moved` or `withdrawn`.
        pub changes: IntCounterVec = counters_from_zero(
            "hgo_dhcp_address_changes_total",
            "Leased addresses of LoadBalancers that were published, moved or withdrawn",
            "change",
            ["published", "moved", "withdrawn"],
        );
    }
}
