//! Metrics of the leader for addresses that the host leases.

use prometheus::{IntCounterVec, IntGaugeVec};

use super::MetricMaker;

/// Leased addresses, as the leader observes them. Agents have other metrics.
#[derive(Clone)]
pub struct LeasingMetrics {
    /// Number of DHCPLeases, by state.
    pub records: IntGaugeVec,
    /// 1 for a network with an active DHCP agent, 0 for a network without one.
    pub agents: IntGaugeVec,
    /// Number of leased addresses with less than an eighth of their lease time left, by network.
    pub overdue: IntGaugeVec,
    /// Changes of leased addresses. The label `change` is `published`, `moved` or `withdrawn`.
    pub changes: IntCounterVec,
}

impl LeasingMetrics {
    pub(super) fn new(make: &MetricMaker<'_>) -> Result<Self, prometheus::Error> {
        let changes = make.counters(
            "hgo_dhcp_address_changes_total",
            "Leased addresses of LoadBalancers that were published, moved or withdrawn",
            &["change"],
        )?;
        for change in ["published", "moved", "withdrawn"] {
            let _ = changes.with_label_values(&[change]);
        }
        Ok(Self {
            records: make.gauges("hgo_dhcp_records", "DHCPLeases by state", &["state"])?,
            agents: make.gauges(
                "hgo_dhcp_agent_up",
                "1 where the network has an active DHCP agent, else 0",
                &["network"],
            )?,
            overdue: make.gauges(
                "hgo_dhcp_leases_overdue",
                "Leased addresses with less than an eighth of their time left",
                &["network"],
            )?,
            changes,
        })
    }
}
