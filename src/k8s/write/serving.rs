//! Guarded writes for vm LoadBalancers: Services, and the deletion of EndpointSlices.

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::Value;

use super::{ApiWriter, typed};
use crate::k8s::CallError;
use crate::k8s::calls::{ApiWrites as _, only_if};

impl ApiWriter {
    /// Creates a Service. Returns the stored Service. Fails with a conflict if a Service with that
    /// name exists.
    pub async fn create_service(
        &self,
        namespace: &str,
        service: &Value,
    ) -> Result<Service, CallError> {
        let api = self.leading::<Service>(namespace)?;
        self.count::<Service, _>(api.call_create(&typed(service)?).await)
    }

    /// Applies the merge patch `patch` to the metadata and the spec of a Service. Returns the
    /// changed Service.
    pub async fn patch_service(
        &self,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<Service, CallError> {
        let api = self.leading::<Service>(namespace)?;
        self.count::<Service, _>(api.call_patch(name, patch).await)
    }

    /// Applies the merge patch `patch` to the status and the annotations of a Service. Returns the
    /// changed Service.
    pub async fn patch_service_status(
        &self,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<Service, CallError> {
        let api = self.leading::<Service>(namespace)?;
        self.count::<Service, _>(api.call_patch_status(name, patch).await)
    }

    /// Deletes a Service. Fails with a conflict if the Service's UID is not `uid`, or if its
    /// resourceVersion is not `version`. Returns the Service if a finalizer delays the deletion.
    /// `None`: the Service is gone.
    pub async fn delete_service(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        version: &str,
    ) -> Result<Option<Service>, CallError> {
        let api = self.leading::<Service>(namespace)?;
        let params = only_if(Some(uid), Some(version));
        let answer = self.count::<Service, _>(api.call_delete(name, &params).await)?;
        // If the Service is gone, the answer is a status, or the Service's last state. If a
        // finalizer delays the deletion, the answer is the Service with its deletion time.
        Ok(answer.filter(|service| {
            service.metadata.deletion_timestamp.is_some()
                && service.metadata.finalizers.as_ref().is_some_and(|f| !f.is_empty())
        }))
    }

    /// Deletes an EndpointSlice. Fails with a conflict if the EndpointSlice's resourceVersion is
    /// not `version`.
    pub async fn delete_slice(
        &self,
        namespace: &str,
        name: &str,
        version: &str,
    ) -> Result<(), CallError> {
        let api = self.leading::<EndpointSlice>(namespace)?;
        let params = only_if(None, Some(version));
        self.count::<EndpointSlice, _>(api.call_delete(name, &params).await).map(drop)
    }
}
