//! Health and metrics of a lease agent, as [`crate::http::health_endpoints`] reads them.
//!
//! A standby agent is ready, because it takes over as soon as no other agent holds the network's
//! Lease.

use std::sync::Arc;

use super::ExpiryGauge;
use crate::http::health_endpoints::Process;
use crate::k8s::leadership::Leadership;
use crate::metrics::{DhcpMetrics, Metrics};

/// Sources of the agent's answers to health and metrics requests.
#[derive(Clone)]
pub struct AgentHealth {
    /// Metrics of this process.
    pub metrics: Metrics,
    /// Metrics of the DHCP leases that this process holds.
    pub dhcp: DhcpMetrics,
    /// Earliest expiry of the DHCP leases that this agent holds. Each request for metrics computes
    /// the remaining time from this expiry.
    pub expiry: Arc<ExpiryGauge>,
    /// State that says whether this process holds the network's Lease.
    pub leadership: Arc<Leadership>,
}

impl Process for AgentHealth {
    fn metrics(&self) -> &Metrics {
        self.expiry.show(&self.dhcp, self.leadership.is_current());
        &self.metrics
    }

    fn leadership(&self) -> &Leadership {
        &self.leadership
    }

    fn readiness(&self) -> Result<(), &'static str> {
        if self.leadership.has_finished_round() {
            Ok(())
        } else {
            Err("the Lease of the network has not been read yet")
        }
    }
}
