//! Reports another controller that holds the Lease instead of this operator, by log, Event and
//! metric. A LoadBalancer that the other controller leaves without an address and without a
//! condition gets a condition that names that controller.
//!
//! While the other controller holds the Lease, this module also removes the status subresource of
//! IPPool. With this subresource, the API server would drop the claims that the other controller
//! writes into the status of pools.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client, ResourceExt as _};
use kube_runtime::reflector::ObjectRef;

use super::calls::{ApiCalls as _, ApiWrites as _};
use super::events::EventRecorder;
use super::leadership::Leadership;
use super::views::Views;
use super::write::ApiWriter;
use crate::domain::load_balancer::status;
use crate::domain::reason;
use crate::domain::takeover::crds::without_status;
use crate::metrics::Metrics;

/// Interval between two searches for LoadBalancers that have neither an address nor a condition
/// from the holder of the Lease.
const SEARCH_INTERVAL: Duration = Duration::from_secs(2);
/// Interval between two checks whether IPPool's CRD has the status subresource.
const CHECK_FORM: Duration = Duration::from_secs(10);
/// Name of IPPool's CRD.
const IP_POOLS: &str = "ippools.loadbalancer.harvesterhci.io";
/// Age in seconds at which a LoadBalancer without an address and without a condition gets the
/// condition that names the holder of the Lease. The age leaves enough time to a working
/// controller, which writes an address or a condition within two seconds.
const UNANSWERED: i64 = 10;

/// Task that reports another controller that holds the Lease instead of this operator. The Lease is
/// for leader election. Every replica runs this task.
pub struct LeaseHolderWatch {
    /// Client for IPPool's CRD.
    pub client: Client,
    /// Namespace and name of the Lease for leader election.
    pub lease: (String, String),
    /// Source of the identity of the Lease's holder.
    pub leadership: Arc<Leadership>,
    /// Source of the LoadBalancers that may get the condition that names the Lease's holder.
    pub views: Views,
    /// Writer of the condition that names the Lease's holder.
    pub writer: ApiWriter,
    /// Sender of the Event that names the Lease's holder.
    pub events: EventRecorder,
    /// Metrics of this process.
    pub metrics: Metrics,
}

impl LeaseHolderWatch {
    /// Reports every other controller that holds the Lease instead of this operator, until the
    /// process ends. The reports are log lines, Events, metrics and conditions.
    pub async fn run(self) {
        let mut other = self.leadership.other_controller();
        loop {
            let holder = other.borrow_and_update().clone();
            self.metrics.leadership.other_controller.reset();
            if let Some(holder) = &holder {
                self.metrics.leadership.other_controller.with_label_values(&[holder]).set(1);
                let suffix = self.without_subresource().await;
                self.report_holder(holder, suffix);
            }
            let (is_held, holder) = (holder.is_some(), holder.unwrap_or_default());
            tokio::select! {
                changed = other.changed() => if changed.is_err() { return },
                () = self.answer_for(&holder), if is_held => {}
                () = self.watch_subresource(&holder), if is_held => {}
            }
        }
    }

    fn report_holder(&self, holder: &str, suffix: &str) {
        let (namespace, name) = &self.lease;
        let note = format!("{}{suffix}", reason::other_controller(holder));
        tracing::warn!(lease = format!("{namespace}/{name}"), holder, "{note}");
        let lease = ObjectRef::<Lease>::new(name).within(namespace);
        self.events.warning(lease.into(), reason::OTHER_CONTROLLER, note);
    }

    /// Checks IPPool's CRD after each interval [`CHECK_FORM`], and removes the status subresource
    /// again if a chart or an admin has added it. Reports each removal, and each failure. `holder`:
    /// identity of the other controller that holds the Lease. Does not return.
    async fn watch_subresource(&self, holder: &str) {
        loop {
            tokio::time::sleep(CHECK_FORM).await;
            let suffix = self.without_subresource().await;
            if !suffix.is_empty() {
                self.report_holder(holder, suffix);
            }
        }
    }

    /// Removes the status subresource from IPPool's CRD. With this subresource, the API server
    /// would drop the status that the Go controller writes, because that controller does not write
    /// to the subresource (`pkg/ipam/store/store.go`, `Reserve`).
    ///
    /// Returns the end of a message. This text says that the subresource was removed, or that it
    /// could not be removed. The text is empty if the CRD had no status subresource.
    async fn without_subresource(&self) -> &'static str {
        let removal = async {
            let api = Api::<CustomResourceDefinition>::all(self.client.clone());
            let stored = serde_json::to_value(api.call_get(IP_POOLS).await?)?;
            let Some(patch) = without_status(&stored) else { return anyhow::Ok("") };
            api.call_patch(IP_POOLS, &patch).await?;
            Ok(reason::STATUS_KEPT)
        };
        removal.await.unwrap_or_else(|error| {
            tracing::warn!(crd = IP_POOLS, %error, "cannot remove IPPool's status subresource");
            reason::STATUS_DROPPED
        })
    }

    /// Writes the condition that names the Lease's holder to LoadBalancers, after each interval
    /// [`SEARCH_INTERVAL`]. Does not return. `holder`: identity of the other controller that holds
    /// the Lease. A LoadBalancer gets the condition if all of these hold:
    /// * The LoadBalancer has existed for at least [`UNANSWERED`] seconds.
    /// * The LoadBalancer is not being deleted.
    /// * The LoadBalancer has no address.
    /// * The LoadBalancer has no condition `Ready`, or its `Ready` already reports another
    ///   controller.
    async fn answer_for(&self, holder: &str) {
        loop {
            tokio::time::sleep(SEARCH_INTERVAL).await;
            let now = Timestamp::now();
            for lb in self.views.load_balancers.state() {
                let age = lb.creation_timestamp().map_or(0, |t| now.as_second() - t.0.as_second());
                if age < UNANSWERED {
                    continue;
                }
                let Some(patch) = status::unanswered(&lb, holder, &now.to_string()) else {
                    continue;
                };
                let namespace = lb.namespace().unwrap_or_default();
                // If the holder has written to the LoadBalancer since the view observed it, the
                // LoadBalancer has another version, and the API server refuses the patch.
                let written =
                    self.writer.patch_lb_condition(&namespace, &lb.name_any(), &patch).await;
                if let Err(error) = written {
                    let lb = format!("{namespace}/{}", lb.name_any());
                    tracing::debug!(lb, %error, "cannot write the condition of the LoadBalancer");
                }
            }
        }
    }
}
