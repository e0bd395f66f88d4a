//! What the leader tells of addresses that the host leases.

use prometheus::{IntCounterVec, IntGaugeVec};

use super::Maker;

/// What the leader sees of leased addresses. Agents have metrics of their own.
#[derive(Clone)]
pub struct Leasing {
    /// Records by state.
    pub records: IntGaugeVec,
    /// Whether a network's agent is there.
    pub agents: IntGaugeVec,
    /// Addresses that nobody has renewed in time, by network.
    pub overdue: IntGaugeVec,
    /// Addresses published, moved and withdrawn.
    pub changes: IntCounterVec,
}

impl Leasing {
    pub(super) fn new(make: &Maker<'_>) -> Result<Self, prometheus::Error> {
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
                "1 where the network's DHCP agent is there, else 0",
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
