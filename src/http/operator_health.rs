//! Health and metrics of the operator, as [`super::health_endpoints`] reads them.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::health_endpoints::Process;
use crate::api::{LoadBalancer, READY};
use crate::domain::vm_backends::endpoints::VmEndpoint;
use crate::k8s::leadership::Leadership;
use crate::k8s::views::Views;
use crate::metrics::Metrics;

/// Sources of the operator's answers to health and metrics requests.
#[derive(Clone)]
pub struct OperatorHealth {
    /// The process's metrics.
    pub metrics: Metrics,
    /// Leadership: whether this process holds the Lease.
    pub leadership: Arc<Leadership>,
    /// Views of the cluster.
    pub views: Views,
    /// Whether admission can answer. Also true if admission is off.
    pub admission: watch::Receiver<bool>,
    /// Cancelled when the process begins to shut down.
    pub ending: CancellationToken,
}

impl Process for OperatorHealth {
    fn metrics(&self) -> &Metrics {
        let leads = self.leadership.is_current();
        self.metrics.leadership.leader.set(i64::from(leads));
        self.metrics.load_balancers.reset();
        self.metrics.endpoints.reset();
        if leads {
            self.count();
        }
        &self.metrics
    }

    fn leadership(&self) -> &Leadership {
        &self.leadership
    }

    fn readiness(&self) -> Result<(), &'static str> {
        // To answer the first list of LoadBalancers, the API server may need the operator's own
        // conversion webhook. The API server calls this webhook only on ready replicas. So a
        // replica that waited for the first list before it reported ready would never become ready.
        if !self.views.is_synced() && !self.views.await_conversion() {
            return Err(
                "the first lists of LoadBalancers, IPPools and Namespaces are not complete",
            );
        }
        if !self.views.pools_are_read() && !self.views.await_conversion() {
            return Err("the IPPools have not been read yet");
        }
        if !*self.admission.borrow() {
            return Err("admission cannot answer yet");
        }
        if self.ending.is_cancelled() {
            return Err("the operator is shutting down");
        }
        Ok(())
    }
}

impl OperatorHealth {
    fn count(&self) {
        let mut counts: HashMap<(String, String), i64> = HashMap::new();
        for lb in self.views.load_balancers.state() {
            *counts.entry(state(&lb)).or_default() += 1;
        }
        for ((ready, reason), count) in counts {
            self.metrics.load_balancers.with_label_values(&[ready, reason]).set(count);
        }
        let endpoints = &self.metrics.endpoints;
        self.views.slices.for_each(|slice| {
            for endpoint in slice.endpoints.iter().filter(|endpoint| !endpoint.is_sink()) {
                endpoints.with_label_values(&[endpoint_state(endpoint)]).inc();
            }
        });
    }
}

fn endpoint_state(endpoint: &VmEndpoint) -> &'static str {
    match (endpoint.ready(), endpoint.terminating) {
        (true, _) => "ready",
        (false, true) => "terminating",
        (false, false) => "not_ready",
    }
}

/// Status and reason of a LoadBalancer's condition Ready, as labels of a metric. Without the
/// condition, the status is `Unknown`. The reason is `Other` if it is absent or is not one of the
/// operator's, so that the label has a limited number of values.
fn state(lb: &LoadBalancer) -> (String, String) {
    let ready = lb.status.as_ref().and_then(|s| s.conditions.iter().find(|c| c.type_ == READY));
    let reason = ready.and_then(|c| c.reason.clone()).unwrap_or_default();
    let reason = if crate::domain::reason::is_ours(&reason) { reason } else { "Other".to_owned() };
    (ready.map_or_else(|| "Unknown".to_owned(), |c| format!("{:?}", c.status)), reason)
}
