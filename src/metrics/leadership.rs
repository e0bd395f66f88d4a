//! Metrics of leadership.

use prometheus::{IntGauge, IntGaugeVec};

use super::Maker;

/// Holder of the Lease, as this process observes it.
#[derive(Clone)]
pub struct Leadership {
    /// 1 on the leader.
    pub leader: IntGauge,
    /// 1 for another controller that holds the Lease, by its identity.
    pub other_controller: IntGaugeVec,
}

impl Leadership {
    pub(super) fn new(make: &Maker<'_>) -> Result<Self, prometheus::Error> {
        Ok(Self {
            leader: make.gauge("hgo_leader", "1 on the replica that leads")?,
            other_controller: make.gauges(
                "hgo_other_controller_leads",
                "1 while another controller than this operator holds the Lease",
                &["holder"],
            )?,
        })
    }
}
