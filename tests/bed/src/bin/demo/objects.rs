//! Reads and creates the operator's objects as plain JSON, as any client without its types would.

use anyhow::Result;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

const GROUP: &str = "loadbalancer.harvesterhci.io";
const VERSION: &str = "v1beta1";

/// A pool, with the fields that the demo shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pool {
    pub(crate) name: String,
    pub(crate) total: i64,
    pub(crate) available: i64,
    pub(crate) used_percent: Option<i64>,
    pub(crate) ready: String,
    pub(crate) reason: String,
}

/// A LoadBalancer, with the fields that the demo shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Balancer {
    /// Namespace and name.
    pub(crate) key: String,
    pub(crate) uid: String,
    /// Pool of its address, else the pool that it names.
    pub(crate) pool: String,
    pub(crate) address: Option<String>,
    pub(crate) ready: String,
    pub(crate) reason: String,
}

pub(crate) fn pools(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &resource("IPPool", "ippools"))
}

pub(crate) fn all_balancers(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &resource("LoadBalancer", "loadbalancers"))
}

pub(crate) fn balancers(client: &Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &resource("LoadBalancer", "loadbalancers"))
}

/// Creates the LoadBalancer that a guest cluster's cloud provider creates; `pool` is the pool that
/// it names.
pub(crate) async fn create(api: &Api<DynamicObject>, name: &str, pool: Option<&str>) -> Result<()> {
    api.create(&PostParams::default(), &balancer(name, pool)?).await?;
    Ok(())
}

/// Waits until creations take their usual time: for 2 seconds after a kind was established, an API
/// server delays every creation by 2 seconds, a dry run too.
pub(crate) async fn creations_flow(api: &Api<DynamicObject>) -> Result<()> {
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    api.create(&dry, &balancer("dry-run", None)?).await?;
    Ok(())
}

fn balancer(name: &str, pool: Option<&str>) -> Result<DynamicObject> {
    let mut spec = json!({"workloadType": "cluster", "ipam": "pool"});
    if let Some(pool) = pool {
        spec["ipPool"] = pool.into();
    }
    Ok(serde_json::from_value(json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": "LoadBalancer",
        "metadata": {"name": name},
        "spec": spec,
    }))?)
}

impl Pool {
    pub(crate) fn read(object: &DynamicObject) -> Self {
        let status = &object.data["status"];
        let (ready, reason) = condition(status);
        Self {
            name: object.name_any(),
            total: status["total"].as_i64().unwrap_or_default(),
            available: status["available"].as_i64().unwrap_or_default(),
            used_percent: status["usedPercent"].as_i64(),
            ready,
            reason,
        }
    }
}

impl Balancer {
    pub(crate) fn read(object: &DynamicObject) -> Self {
        let status = &object.data["status"];
        let (ready, reason) = condition(status);
        let claim = &status["allocatedAddress"];
        let pool = text(&claim["ipPool"]).or_else(|| text(&object.data["spec"]["ipPool"]));
        Self {
            key: format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any()),
            uid: object.uid().unwrap_or_default(),
            pool: pool.unwrap_or_default(),
            address: text(&claim["ip"]),
            ready,
            reason,
        }
    }
}

fn resource(kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, VERSION, kind), plural)
}

/// Status and reason of the condition `Ready`, empty without the condition.
fn condition(status: &Value) -> (String, String) {
    let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let ready = conditions.iter().find(|condition| condition["type"] == "Ready");
    let field = |name| ready.and_then(|ready| text(&ready[name])).unwrap_or_default();
    (field("status"), field("reason"))
}

fn text(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}
