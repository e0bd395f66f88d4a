//! Guarded writes for the migration from older software. The written objects are pools that are
//! imported from kube-vip's ConfigMap, this ConfigMap itself, and CRDs. A CRD's status lists the
//! stored versions.

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::core::ObjectMeta;
use serde_json::Value;

use super::ApiWriter;
use crate::api::IPPool;
use crate::k8s::CallError;
use crate::k8s::calls::ApiWrites as _;

impl ApiWriter {
    /// Creates an IPPool. Returns the stored IPPool. Fails with a conflict if an IPPool with that
    /// name exists.
    pub async fn create_pool(&self, pool: &IPPool) -> Result<IPPool, CallError> {
        self.check_leadership()?;
        let api = Api::<IPPool>::all(self.client.clone());
        self.count::<IPPool, _>(api.call_create(pool).await)
    }

    /// Applies the merge patch `patch` to a ConfigMap. Returns the ConfigMap's new metadata.
    pub async fn patch_config_map(
        &self,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<ObjectMeta, CallError> {
        self.patch::<ConfigMap>(Some(namespace), name, patch, None).await
    }

    /// Applies the merge patch `patch` to a CustomResourceDefinition, without its status. Returns
    /// the new metadata.
    pub async fn patch_crd(&self, name: &str, patch: &Value) -> Result<ObjectMeta, CallError> {
        self.patch::<CustomResourceDefinition>(None, name, patch, None).await
    }

    /// Applies the merge patch `patch` to a CustomResourceDefinition's status. Returns the new
    /// metadata.
    pub async fn patch_crd_status(
        &self,
        name: &str,
        patch: &Value,
    ) -> Result<ObjectMeta, CallError> {
        self.patch::<CustomResourceDefinition>(None, name, patch, Some("status")).await
    }
}
