//! Settings of users on a Service, stored on an EndpointSlice while there is no Service.

use k8s_openapi::api::core::v1::Service as FullService;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::{ServiceTarget, WriteObstacle, not_written};
use crate::domain::vm_backends::service::settings::{self, CarriedSettings, SETTINGS};
use crate::domain::vm_backends::service::{StoredService, delay_announcement};
use crate::k8s::CallError;
use crate::k8s::calls::ApiCalls as _;

/// Whether the settings of a deleted Service are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeptSettings {
    /// The settings are kept for the next Service.
    Kept,
    /// The settings are deleted with the Service.
    Dropped,
}

impl ServiceTarget<'_> {
    /// Stores the users' settings of a Service in an annotation of one of its slices. `uid`: UID of
    /// the Service. Returns the Service from which the settings were read. The caller may delete
    /// only this version of the Service. `None`: the Service with this UID is gone.
    ///
    /// Settings that no slice can store are lost, and the loss is logged. `Err`: the Service could
    /// not be read, or a repeated write may succeed.
    pub(super) async fn keep_settings(
        &self,
        uid: &str,
    ) -> Result<Option<StoredService>, WriteObstacle> {
        let api = Api::<FullService>::namespaced(self.client(), &self.namespace);
        let service = Box::pin(api.call_get_opt(&self.name)).await?;
        let Some(service) = service.filter(|service| service.uid().as_deref() == Some(uid)) else {
            self.read_service().await?;
            return Ok(None);
        };
        self.store_service(&service);
        let service = json!(service);
        let CarriedSettings { text, mut lost } = settings::of(&service);
        let mut written = self.annotate_slice(|_| true, &json!(text)).await;
        if let Err(WriteObstacle::Refused(why)) = &written {
            // Perhaps the settings are too long together with the other annotations of the slice.
            // The next Service must not lose its source ranges, because it would let all clients
            // in.
            let reduced = settings::without_metadata(&service);
            if reduced.text != text {
                tracing::warn!(
                    lb = self.key,
                    why,
                    "settings of the Service are refused, trying without annotations and labels"
                );
                lost = reduced.lost;
                written = self.annotate_slice(|_| true, &json!(reduced.text)).await;
            }
        }
        // Even if the settings cannot be written, the Service is deleted. Otherwise an address that
        // the LoadBalancer has lost would stay announced.
        match written {
            Ok(true) => {
                if let Some(lost) = lost {
                    tracing::warn!(
                        lb = self.key,
                        lost,
                        "settings of the Service are lost: the next Service cannot have them"
                    );
                }
            }
            Ok(false) => {
                tracing::warn!(
                    lb = self.key,
                    "settings of the Service are lost: there is no EndpointSlice to keep them"
                );
            }
            Err(WriteObstacle::Error(error)) => return Err(WriteObstacle::Error(error)),
            Err(
                WriteObstacle::Refused(why)
                | WriteObstacle::ForeignSlice(why)
                | WriteObstacle::ForeignService(why),
            ) => {
                tracing::warn!(lb = self.key, why, "settings of the Service are lost");
            }
        }
        Ok(self.stored())
    }

    /// Creates the Service. If a slice stores users' settings of the deleted Service, the new one
    /// gets these settings. If the API server refuses the Service with these settings, a second try
    /// asks for no particular cluster IPs and node ports.
    pub(super) async fn create_service(&self, service: Value) -> Result<FullService, CallError> {
        let settings = self.settings().await?;
        let writer = &self.ctx.shared.writer;
        let _turn = self.ctx.writes.take(self.namespace.clone()).await;
        let Some(settings) = settings else {
            let service = delay_announcement(service);
            return Box::pin(writer.create_service(&self.namespace, &service)).await;
        };
        let service = delay_announcement(settings::applied(service, &settings));
        match Box::pin(writer.create_service(&self.namespace, &service)).await {
            Err(error) if error.refusal().is_some() => {
                let service = settings::without_allotted(service);
                Box::pin(writer.create_service(&self.namespace, &service)).await
            }
            other => other,
        }
    }

    async fn settings(&self) -> Result<Option<String>, CallError> {
        let api = Api::<EndpointSlice>::namespaced(self.client(), &self.namespace);
        for slice in self.slices().iter().filter(|slice| slice.holds_settings) {
            if let Some(stored) = Box::pin(api.call_get_opt(&slice.name)).await? {
                return Ok(stored.annotations().get(SETTINGS).cloned());
            }
        }
        Ok(None)
    }

    /// Removes the settings from the slices, after the new Service has got them.
    pub(super) async fn forget_settings(&self) -> Result<(), WriteObstacle> {
        while self.annotate_slice(|holds_settings| holds_settings, &Value::Null).await? {}
        Ok(())
    }

    /// Writes `settings` into the annotation [`SETTINGS`] of the first slice for which `is_so`
    /// returns `true`. Returns `false` if there is no such slice. `settings`: null removes the
    /// annotation. The argument of `is_so` says whether the slice has settings.
    async fn annotate_slice(
        &self,
        is_so: impl Fn(bool) -> bool,
        settings: &Value,
    ) -> Result<bool, WriteObstacle> {
        let slices = self.slices();
        let Some(slice) = slices.iter().find(|slice| is_so(slice.holds_settings)) else {
            return Ok(false);
        };
        let patch = json!({"metadata": {
            "resourceVersion": slice.version,
            "annotations": {SETTINGS: settings},
        }});
        let _turn = self.ctx.writes.take(self.namespace.clone()).await;
        let writer = &self.ctx.shared.writer;
        let namespace = Some(self.namespace.as_str());
        let write = writer.patch::<EndpointSlice>(namespace, &slice.name, &patch);
        match Box::pin(write).await {
            Ok(meta) => {
                let version = meta.resource_version.unwrap_or_default();
                self.store_slice(slice.annotated(version, !settings.is_null()));
                Ok(true)
            }
            Err(error) => Err(not_written(error, self.read_slice(&slice.name)).await),
        }
    }
}
