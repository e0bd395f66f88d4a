//! Guarded writes for DHCP agents: their Deployments, in the operator's own namespace, and the
//! annotations of their networks.

use k8s_openapi::api::apps::v1::Deployment;
use serde_json::Value;

use super::{ApiWriter, typed};
use crate::api::kubevirt::NetworkAttachmentDefinition;
use crate::k8s::CallError;
use crate::k8s::calls::{ApiWrites as _, only_if};

impl ApiWriter {
    /// Creates a Deployment. Returns the stored Deployment. Fails with a conflict if a Deployment
    /// with that name exists.
    pub async fn create_deployment(
        &self,
        namespace: &str,
        deployment: &Value,
    ) -> Result<Deployment, CallError> {
        let api = self.leading::<Deployment>(namespace)?;
        self.count::<Deployment, _>(api.call_create(&typed(deployment)?).await)
    }

    /// Replaces the Deployment `name` with `deployment`. Returns the stored Deployment. Fails with
    /// a conflict if the stored resourceVersion differs from that of `deployment`. The operator
    /// alone decides the content of this Deployment, so fields of other clients are not kept.
    pub async fn replace_deployment(
        &self,
        namespace: &str,
        name: &str,
        deployment: &Value,
    ) -> Result<Deployment, CallError> {
        let api = self.leading::<Deployment>(namespace)?;
        self.count::<Deployment, _>(api.call_replace(name, &typed(deployment)?).await)
    }

    /// Deletes a Deployment. Fails with a conflict if the Deployment's UID is not `uid`, or if its
    /// resourceVersion is not `version`.
    pub async fn delete_deployment(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        version: &str,
    ) -> Result<(), CallError> {
        let api = self.leading::<Deployment>(namespace)?;
        let params = only_if(Some(uid), Some(version));
        self.count::<Deployment, _>(api.call_delete(name, &params).await).map(drop)
    }

    /// Applies the merge patch `patch` to a NetworkAttachmentDefinition. The patch changes
    /// annotations.
    pub async fn patch_network(
        &self,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<(), CallError> {
        let namespace = Some(namespace);
        self.patch::<NetworkAttachmentDefinition>(namespace, name, patch).await.map(drop)
    }
}
