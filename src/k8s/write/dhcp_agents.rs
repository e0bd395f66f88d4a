//! Guarded writes for DHCP agents: their Deployments, in the operator's own namespace, and the
//! annotations of their networks.

use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{DeleteParams, Preconditions};
use kube::{Api, Resource};
use serde_json::Value;

use super::{ApiWriter, typed};
use crate::api::kubevirt::NetworkAttachmentDefinition;
use crate::k8s::CallError;
use crate::k8s::calls::ApiWrites as _;

const DEPLOYMENT: &str = "Deployment";

impl ApiWriter {
    /// Creates a Deployment. Returns the stored Deployment. Fails with a conflict if a Deployment
    /// with that name exists.
    pub async fn create_deployment(
        &self,
        namespace: &str,
        deployment: &Value,
    ) -> Result<Deployment, CallError> {
        self.check_leadership()?;
        let api = Api::<Deployment>::namespaced(self.client.clone(), namespace);
        let written = api.call_create(&typed(DEPLOYMENT, deployment)?).await;
        self.count(DEPLOYMENT, written)
    }

    /// Replaces the Deployment `name` with `deployment`. Returns the stored Deployment. Fails with
    /// a conflict if the stored resourceVersion differs from that of `deployment`. No other client
    /// writes this Deployment, so no field of another client is lost.
    pub async fn replace_deployment(
        &self,
        namespace: &str,
        name: &str,
        deployment: &Value,
    ) -> Result<Deployment, CallError> {
        self.check_leadership()?;
        let api = Api::<Deployment>::namespaced(self.client.clone(), namespace);
        let written = api.call_replace(name, &typed(DEPLOYMENT, deployment)?).await;
        self.count(DEPLOYMENT, written)
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
        self.check_leadership()?;
        let api = Api::<Deployment>::namespaced(self.client.clone(), namespace);
        let only =
            Preconditions { uid: Some(uid.to_owned()), resource_version: Some(version.to_owned()) };
        let params = DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
        self.count(DEPLOYMENT, api.call_delete(name, &params).await).map(drop)
    }
}

impl ApiWriter {
    /// Applies the merge patch `patch` to a NetworkAttachmentDefinition. The patch changes
    /// annotations.
    pub async fn patch_network(
        &self,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<(), CallError> {
        const KIND: &str = "NetworkAttachmentDefinition";
        let list = NetworkAttachmentDefinition::url_path(&(), Some(namespace));
        self.patch::<NetworkAttachmentDefinition>(KIND, &list, name, patch, None).await.map(drop)
    }
}
