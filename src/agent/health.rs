//! Health and metrics of a lease agent, as [`crate::http::probes`] asks for it.
//!
//! An agent that stands by is ready: it would speak as soon as nobody else does.

use std::sync::Arc;

use super::Standing;
use crate::http::probes::Process;
use crate::k8s::lease::Leadership;
use crate::metrics::{Dhcp, Metrics};

/// What the answers are made of.
#[derive(Clone)]
pub struct Health {
    /// The process's metrics.
    pub metrics: Metrics,
    /// Those of its leases.
    pub dhcp: Dhcp,
    /// How these stand.
    pub standing: Arc<Standing>,
    /// Its claim to speak.
    pub leadership: Arc<Leadership>,
}

impl Process for Health {
    fn metrics(&self) -> &Metrics {
        self.standing.show(&self.dhcp, self.leadership.is_current());
        &self.metrics
    }

    fn leadership(&self) -> &Leadership {
        &self.leadership
    }

    fn readiness(&self) -> Result<(), &'static str> {
        if self.leadership.looked() { Ok(()) } else { Err("the lease has not been seen yet") }
    }
}
