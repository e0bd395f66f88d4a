//! Services whose end another program's finalizer delays, after a change of `spec.ipam` or of the
//! type. Harvester's CRD does not refuse these changes. Admission is off here.

use anyhow::Result;
use harvester_guest_operator::api::{ANNOTATION_NETWORK, LABEL_SERVICE_LB};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use testbed::eventually;
use testbed::kubevirt::Guest;

use super::input::as_harvester_ships_it;
use super::{ports_here, vm};
use crate::leases::{Agent, NETWORK};
use crate::support::{Cluster, SOON, settled};

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_kept_and_said_while_the_service_that_asks_for_it_ends() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    as_harvester_ships_it(&cluster).await?;
    let _operator = cluster.operator().await?;
    Guest::run(&cluster.client, vm("web", "a", "10.52.0.7"), "node-1").await?;
    cluster.vm_lb("web").await?;
    announced(&cluster, "web", "10.1.0.2").await?;
    cluster.endpoints_are("web", &[("a", "10.52.0.7", "ready")]).await?;
    hold(&cluster, "web").await?;

    cluster.patch_lb("web", json!({"spec": {"ipam": "dhcp"}})).await?;
    let said = cluster.waits("web", "ServiceDeleting").await?;
    assert!(said.contains("example.com/hold"), "{said}");
    assert_eq!(cluster.address("web").await?, "10.1.0.2");
    assert_eq!(cluster.allocated("pool").await?.len(), 1);
    assert_eq!(cluster.reached_at("web").await?.as_deref(), Some("10.1.0.2"));
    Guest::run(&cluster.client, vm("web", "b", "10.52.0.8"), "node-1").await?;
    let both = [("a", "10.52.0.7", "ready"), ("b", "10.52.0.8", "ready")];
    cluster.endpoints_are("web", &both).await?;

    let_go(&cluster, "web").await?;
    cluster.publishes("web", "0.0.0.0").await?;
    eventually(SOON, "end of the claim", async || {
        cluster.allocated("pool").await.map(|claims| claims.is_empty())
    })
    .await?;
    cluster.consistent().await
}

/// The type changes first, then the pool, so the guest gets its new address at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_outlives_the_service_of_a_former_type_that_asks_for_it() -> Result<()> {
    let cluster = Cluster::start().await?;
    for (name, third) in [("old", 1), ("new", 2)] {
        cluster.pool_for(name, json!({"subnet": format!("10.{third}.0.0/24")}), json!({})).await?;
    }
    as_harvester_ships_it(&cluster).await?;
    let _operator = cluster.operator().await?;
    let spec = json!({"backendServerSelector": {"app": ["web"]}, "ipPool": "old"});
    cluster.lb_with("web", spec).await?;
    announced(&cluster, "web", "10.1.0.2").await?;
    hold(&cluster, "web").await?;

    cluster.patch_lb("web", json!({"spec": {"workloadType": "cluster"}})).await?;
    let is_ending = |service: &Service| service.metadata.deletion_timestamp.is_some();
    cluster.service_when("web", "its deletion", is_ending).await?;
    cluster.patch_lb("web", json!({"spec": {"ipPool": "new"}})).await?;
    cluster.publishes("web", "10.2.0.2").await?;
    let left = settled("claims", async || cluster.allocated("old").await).await?;
    assert_eq!(left.keys().collect::<Vec<_>>(), ["10.1.0.2"]);

    let_go(&cluster, "web").await?;
    eventually(SOON, "end of the former claim", async || {
        cluster.allocated("old").await.map(|claims| claims.is_empty())
    })
    .await?;
    cluster.consistent().await
}

/// A VM that becomes healthy meanwhile gets traffic.
#[tokio::test(flavor = "multi_thread")]
async fn health_checks_go_on_while_the_service_that_asks_for_a_claim_ends() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    as_harvester_ships_it(&cluster).await?;
    let _operator = cluster.operator().await?;
    let (here, _closed, listener) = ports_here().await?;
    let port = listener.local_addr()?.port();
    let spec = json!({
        "backendServerSelector": {"app": ["web"]},
        "listeners": [{"name": "http", "port": 80, "backendPort": port}],
        "healthCheck": {"port": port, "periodSeconds": 1, "timeoutSeconds": 1},
    });
    cluster.lb_with("web", spec).await?;
    announced(&cluster, "web", "10.1.0.2").await?;
    hold(&cluster, "web").await?;
    cluster.patch_lb("web", json!({"spec": {"ipam": "dhcp"}})).await?;
    cluster.waits("web", "ServiceDeleting").await?;

    Guest::run(&cluster.client, vm("web", "a", &here), "node-1").await?;
    cluster.endpoints_are("web", &[("a", here.as_str(), "ready")]).await?;
    let_go(&cluster, "web").await?;
    cluster.publishes("web", "0.0.0.0").await?;
    cluster.consistent().await
}

/// The pool that the LoadBalancer names does not exist, so it has no address in the meantime. A user
/// removes the label by which the operator watches the Service.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_kept_while_the_service_that_is_announced_at_it_ends() -> Result<()> {
    let cluster = Cluster::start().await?;
    as_harvester_ships_it(&cluster).await?;
    let _agent = Agent::start(&cluster, NETWORK).await?;
    let _operator = cluster.operator().await?;
    let spec = json!({"ipam": "dhcp", "backendServerSelector": {"app": ["web"]}});
    cluster.annotated("web", json!({ANNOTATION_NETWORK: NETWORK}), spec).await?;
    cluster.grant("web", "10.7.0.20").await?;
    cluster.publishes("web", "10.7.0.20").await?;
    announced(&cluster, "web", "10.7.0.20").await?;
    hold(&cluster, "web").await?;

    cluster.patch_lb("web", json!({"spec": {"ipam": "pool", "ipPool": "later"}})).await?;
    cluster.waits("web", "IPPoolNotFound").await?;
    for labels in [json!({}), json!({LABEL_SERVICE_LB: null})] {
        cluster.edit::<Service>("web", json!({"metadata": {"labels": labels}})).await?;
        settled("web", async || Ok(cluster.lbs().get("web").await?.resource_version())).await?;
        assert_eq!(cluster.reached_at("web").await?.as_deref(), Some("10.7.0.20"), "{labels}");
        let record = cluster.records().get("web").await?;
        assert_eq!(record.metadata.deletion_timestamp, None, "{labels}");
    }

    let_go(&cluster, "web").await?;
    cluster.is_reached_at("web", None).await?;
    cluster.let_go("web").await?;
    cluster.record_gone("web").await?;
    cluster.consistent().await
}

/// Waits until the LoadBalancer has a Service, which is then announced at the address.
async fn announced(cluster: &Cluster, name: &str, at: &str) -> Result<()> {
    cluster.service_when(name, "existence", |_| true).await?;
    cluster.announce(name, &[at]).await?;
    cluster.is_reached_at(name, Some(at)).await
}

async fn hold(cluster: &Cluster, service: &str) -> Result<()> {
    let hold = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    cluster.edit::<Service>(service, hold).await.map(drop)
}

async fn let_go(cluster: &Cluster, service: &str) -> Result<()> {
    let none: Value = json!({"metadata": {"finalizers": null}});
    cluster.edit::<Service>(service, none).await.map(drop)
}
