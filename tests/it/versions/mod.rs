//! Two versions of `LoadBalancer`: the API server with the CRD, with and without a conversion
//! webhook, and old objects that earlier CRDs left in its store.

mod converted;
mod converter;
mod migration;
mod served;
mod unconverted;

use anyhow::Result;
use harvester_guest_operator::api;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use testbed::eventually;

use crate::support::{Cluster, SOON};
use converter::Converter;

/// Name of the CRD.
const CRD: &str = "loadbalancers.loadbalancer.harvesterhci.io";

fn crds(cluster: &Cluster) -> Api<CustomResourceDefinition> {
    Api::all(cluster.client.clone())
}

/// LoadBalancers of the namespace `default`, without a schema.
fn lbs(cluster: &Cluster, version: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(api::GROUP, version, "LoadBalancer");
    let resource = ApiResource::from_gvk_with_plural(&kind, "loadbalancers");
    Api::namespaced_with(cluster.client.clone(), "default", &resource)
}

async fn create(api: &Api<DynamicObject>, object: Value) -> Result<Value> {
    let object = serde_json::from_value(object)?;
    Ok(json!(api.create(&PostParams::default(), &object).await?))
}

fn lb(version: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": format!("{}/{version}", api::GROUP), "kind": "LoadBalancer",
        "metadata": {"name": name, "namespace": "default"}, "spec": spec,
    })
}

/// The operator's CRD, after a change of it.
fn crd(change: impl FnOnce(&mut Value)) -> Result<CustomResourceDefinition> {
    let mut crd = json!(api::crds().remove(1));
    change(&mut crd["spec"]);
    Ok(serde_json::from_value(crd)?)
}

/// Replaces the installed CRD.
async fn replace(cluster: &Cluster, mut crd: CustomResourceDefinition) -> Result<()> {
    eventually(SOON, "new CRD", async || {
        crd.metadata.resource_version = crds(cluster).get(CRD).await?.resource_version();
        crds(cluster).replace(CRD, &PostParams::default(), &crd).await.map(|_| true)
    })
    .await
}

/// Waits until objects of v1alpha1 are converted. An empty list would not show it.
pub(crate) async fn converts(cluster: &Cluster) -> Result<()> {
    let spec = json!({"ipam": "pool", "backendServers": ["vm-1"],
        "listeners": [{"name": "a", "port": 80, "protocol": "TCP"}]});
    let object: DynamicObject = serde_json::from_value(lb("v1alpha1", "probe", &spec))?;
    let (old, dry) = (lbs(cluster, "v1alpha1"), PostParams { dry_run: true, ..Default::default() });
    eventually(SOON, "conversion", async || old.create(&dry, &object).await.map(|_| true)).await
}

/// Makes the API server call this converter.
fn asks(converter: &Converter) -> impl FnOnce(&mut Value) {
    let config = json!({"url": converter.url, "caBundle": converter.bundle});
    |spec| spec["conversion"]["webhook"]["clientConfig"] = config
}

async fn stored_versions(cluster: &Cluster) -> Result<Vec<String>> {
    let status = crds(cluster).get(CRD).await?.status;
    Ok(status.and_then(|status| status.stored_versions).unwrap_or_default())
}
