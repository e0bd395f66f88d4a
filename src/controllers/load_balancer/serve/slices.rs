//! Reads, writes and deletes the EndpointSlices of a vm load balancer.

use std::sync::Arc;

use chrono::Utc;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;

use super::{MOST_STEPS, ServiceTarget, WriteObstacle, into_error, not_written};
use crate::controllers::load_balancer::ReconcileError;
use crate::domain::object_fields::rfc3339;
use crate::domain::vm_backends::endpoint_slices::{self, SlicePlan, SliceWrite, StoredSlice};
use crate::domain::vm_backends::endpoints::AddressFamily;
use crate::domain::vm_backends::ports::EndpointPort;
use crate::domain::vm_backends::readiness::BackendCounts;
use crate::domain::vm_backends::service;
use crate::domain::vm_backends::service::stored::{owners, read_slice};
use crate::k8s::CallError;
use crate::k8s::calls::ApiCalls as _;

impl ServiceTarget<'_> {
    pub(super) fn slices(&self) -> Vec<Arc<StoredSlice>> {
        let all = self.ctx.shared.views.slices.of(&self.key);
        all.filter(|slice| slice.owner == self.uid).collect()
    }

    pub(super) async fn write_slices(
        &self,
        family: AddressFamily,
        ports: &[EndpointPort],
        backends: &BackendCounts,
    ) -> Result<(), WriteObstacle> {
        let views = &self.ctx.shared.views;
        let touched = views.take_touched(&self.key);
        let mut wrote = false;
        for _ in 0..MOST_STEPS {
            let stored = self.slices();
            let announcing = self.own().and_then(|own| views.announcing_node(&own));
            let endpoints = &backends.endpoints;
            let SlicePlan { writes, complete } = endpoint_slices::plan(
                &self.name,
                family,
                ports,
                &stored,
                endpoints,
                announcing.as_ref(),
            );
            for write in writes {
                if let Err(error) = self.write_slice(family, ports, &write).await {
                    return Err(not_written(error, self.read_slice(write.name())).await);
                }
                wrote = true;
            }
            if complete {
                if wrote && let Some(touched) = touched {
                    let latency = &self.ctx.shared.metrics.endpoint_latency;
                    latency.observe(touched.elapsed().as_secs_f64());
                }
                return Ok(());
            }
        }
        Err(self.unsettled("EndpointSlices").into())
    }

    /// Updates the endpoints in the stored slices, so that traffic follows the VMs. `family`: the
    /// Service's present address family. Called while the Service cannot be changed: the spec is
    /// not valid, or `family` is not the wanted family and the Service's deletion is not complete.
    pub(super) async fn keep_endpoints(
        &self,
        family: AddressFamily,
        backends: &BackendCounts,
    ) -> Result<(), WriteObstacle> {
        let slices = self.slices();
        match self.own() {
            Some(service) if slices.iter().any(|slice| slice.family == Some(family)) => {
                self.write_slices(family, &service.backend_ports(&slices), backends).await
            }
            _ => Ok(()),
        }
    }

    async fn write_slice(
        &self,
        family: AddressFamily,
        ports: &[EndpointPort],
        write: &SliceWrite,
    ) -> Result<(), CallError> {
        let _turn = self.ctx.writes.take(self.namespace.clone()).await;
        let writer = &self.ctx.shared.writer;
        let now = rfc3339::to_millisecond(Utc::now());
        let (namespace, lb) = (&self.namespace, self.identity());
        let ports = endpoint_slices::ports_of(write.endpoints(), ports);
        let (meta, endpoints) = match write {
            SliceWrite::Create { name, endpoints } => {
                let slice = endpoint_slices::create(lb, name, family, &ports, endpoints, &now);
                let write = writer.create::<EndpointSlice>(namespace, &slice);
                (Box::pin(write).await?, endpoints)
            }
            SliceWrite::Update { name, version, endpoints } => {
                let patch = endpoint_slices::patch(lb, version, &ports, endpoints, &now);
                let write = writer.patch::<EndpointSlice>(Some(namespace), name, &patch);
                (Box::pin(write).await?, endpoints)
            }
            SliceWrite::Delete { name, version } => {
                Box::pin(writer.delete_slice(namespace, name, version)).await?;
                self.ctx.shared.views.slices.forget(&self.key, name, version);
                return Ok(());
            }
        };
        let version = meta.resource_version.unwrap_or_default();
        let slice = StoredSlice {
            name: write.name().to_owned(),
            version,
            owner: self.uid.clone(),
            family: Some(family),
            ports,
            endpoints: endpoints.clone(),
            sound: true,
            holds_settings: self
                .slices()
                .iter()
                .any(|s| s.name == write.name() && s.holds_settings),
        };
        self.store_slice(slice);
        Ok(())
    }

    /// Stores a written slice in the view.
    pub(super) fn store_slice(&self, slice: StoredSlice) {
        let (name, version) = (slice.name.clone(), slice.version.clone());
        self.ctx.shared.views.slices.store(&self.key, &name, &version, Arc::new(slice));
    }

    /// Reads a slice from the API server into the view. Removes the slice from the view if it does
    /// not exist or has another owner. `Err`: the slice has another owner, or could not be read.
    pub(super) async fn read_slice(&self, name: &str) -> Result<(), WriteObstacle> {
        let api = Api::<EndpointSlice>::namespaced(self.client(), &self.namespace);
        let Some(stored) = Box::pin(api.call_get_opt(name)).await? else {
            self.forget_slice(name);
            return Ok(());
        };
        match read_slice(&stored) {
            Some((lb, slice)) if lb == self.key && slice.owner == self.uid => {
                self.store_slice(slice);
                Ok(())
            }
            _ => {
                self.forget_slice(name);
                let whose = service::foreign(&owners(&stored.metadata), self.identity());
                Err(WriteObstacle::ForeignSlice(format!(
                    "an EndpointSlice {}/{name} exists: {}; the operator does not change it: remove it, or create the LoadBalancer under another name",
                    self.namespace,
                    whose.unwrap_or_default()
                )))
            }
        }
    }

    fn forget_slice(&self, name: &str) {
        for known in self.slices().iter().filter(|slice| slice.name == name) {
            self.ctx.shared.views.slices.forget(&self.key, name, &known.version);
        }
    }

    pub(super) async fn drop_slices(&self) -> Result<(), ReconcileError> {
        for slice in self.slices() {
            let write =
                SliceWrite::Delete { name: slice.name.clone(), version: slice.version.clone() };
            if let Err(error) = self.write_slice(AddressFamily::V4, &[], &write).await {
                match not_written(error, self.read_slice(&slice.name)).await {
                    // The slice is another owner's by now.
                    WriteObstacle::ForeignSlice(_) => {}
                    obstacle => return Err(into_error(obstacle)),
                }
            }
        }
        Ok(())
    }
}
