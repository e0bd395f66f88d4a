//! An address becomes free only when it is not announced any more.

use anyhow::Result;
use harvester_guest_operator::api::LABEL_SERVICE_LB;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use testbed::kubevirt::Guest;
use testbed::{Announcer, Announcing, Call, Proxy, Start, Verdict, eventually};

use super::input::as_harvester_ships_it;
use super::{annotation, vm};
use crate::support::{Cluster, LATER, SOON, address, settled};

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_outlives_the_service_that_asks_for_it() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let only = json!({"subnet": "10.2.0.0/24", "rangeStart": "10.2.0.9", "rangeEnd": "10.2.0.9"});
    cluster.pool_for("only", only, json!({})).await?;
    let proxy = Proxy::start(&cluster.bed).await?;
    let start = || Start {
        via: Some((proxy.url().to_owned(), proxy.ca_pem().to_owned())),
        ..Start::default()
    };
    let mut operator = cluster.standby(start()).await?;
    operator.leads().await?;
    Guest::run(&cluster.client, vm("web", "a", "10.52.0.7"), "node-1").await?;
    cluster.vm_lb("web").await?;
    cluster.endpoints_are("web", &[("a", "10.52.0.7", "ready")]).await?;
    announced(&cluster, "web", "10.1.0.2").await?;
    while_the_pool_cannot_be_written(&cluster, &proxy).await?;
    settled("writes", async || Ok(ours(&proxy).len())).await?;
    proxy.reset();
    cluster.deleted("web").await?;
    // The proxy may record an answer a moment after its effect is visible.
    let order =
        ["DELETE services", "DELETE endpointslices", "PATCH ippools", "PATCH loadbalancers"];
    eventually(SOON, "all four writes", async || ours(&proxy).len() >= order.len()).await?;
    assert_eq!(ours(&proxy), order);

    // Another finalizer holds the Service.
    asking(&cluster, "held").await?;
    cluster.delete("held").await?;
    leaving(&cluster, "held").await?;
    cluster.lb_with("next", json!({"ipPool": "only"})).await?;
    cluster.waits("next", "NoAvailableIP").await?;
    assert_eq!(owner(&cluster).await?, "default/held");
    assert!(!cluster.lbs().get("held").await?.finalizers().is_empty());
    let_go(&cluster, "held").await?;
    assert_eq!(cluster.address("next").await?, "10.2.0.9");
    // The claim goes first.
    eventually(SOON, "end of held", async || {
        cluster.lbs().get_opt("held").await.map(|lb| lb.is_none())
    })
    .await?;
    cluster.deleted("next").await?;

    // An impatient user removes the LoadBalancer's finalizer.
    asking(&cluster, "stripped").await?;
    cluster.delete("stripped").await?;
    leaving(&cluster, "stripped").await?;
    strip(&cluster, "stripped").await?;
    cluster.lb_with("next", json!({"ipPool": "only"})).await?;
    cluster.waits("next", "NoAvailableIP").await?;
    assert_eq!(owner(&cluster).await?, "default/stripped");
    let_go(&cluster, "stripped").await?;
    assert_eq!(cluster.address("next").await?, "10.2.0.9");
    cluster.deleted("next").await?;

    // The same while no operator runs.
    asking(&cluster, "orphan").await?;
    operator.process.terminate(SOON).await?;
    strip(&cluster, "orphan").await?;
    cluster.delete("orphan").await?;
    let operator = cluster.standby(start()).await?;
    operator.leads().await?;
    cluster.lb_with("next", json!({"ipPool": "only"})).await?;
    cluster.waits("next", "NoAvailableIP").await?;
    assert_eq!(owner(&cluster).await?, "default/orphan");
    let_go(&cluster, "orphan").await?;
    // At the pace of the garbage collector.
    eventually(LATER, "address of the orphan", async || {
        cluster.lbs().get("next").await.map(|lb| address(&lb))
    })
    .await?;
    let services = cluster.services().get_opt("orphan").await?;
    assert!(services.is_none(), "given while a Service asks for it: {services:?}");
    cluster.consistent().await
}

/// A tenant removes the label by which the operator watches the Service, and changes the type of the
/// LoadBalancer, which Harvester's CRD does not refuse. Another finalizer holds the Service, and no
/// event reports its end.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_outlives_a_service_that_is_not_watched_and_ends_after_it() -> Result<()> {
    let cluster = Cluster::start().await?;
    let only = json!({"subnet": "10.2.0.0/24", "rangeStart": "10.2.0.9", "rangeEnd": "10.2.0.9"});
    cluster.pool_for("only", only, json!({})).await?;
    as_harvester_ships_it(&cluster).await?;
    let proxy = Proxy::start(&cluster.bed).await?;
    let via = Some((proxy.url().to_owned(), proxy.ca_pem().to_owned()));
    let operator = cluster.standby(Start { via, ..Start::default() }).await?;
    operator.leads().await?;
    asking(&cluster, "held").await?;
    cluster.delete("held").await?;
    leaving(&cluster, "held").await?;

    cluster.patch_lb("held", json!({"spec": {"workloadType": "cluster"}})).await?;
    settled("calls", async || Ok(proxy.calls().iter().filter(|r| is_read(&r.call)).count()))
        .await?;
    proxy.reset();
    let unwatched = json!({"metadata": {"labels": {LABEL_SERVICE_LB: null}}});
    cluster.edit::<Service>("held", unwatched).await?;
    eventually(SOON, "a read of the Service", async || {
        let mut calls = proxy.calls().into_iter();
        anyhow::Ok(calls.any(|record| is_read(&record.call) && record.status.is_some()))
    })
    .await?;
    cluster.lb_with("next", json!({"ipPool": "only"})).await?;
    cluster.waits("next", "NoAvailableIP").await?;
    assert_eq!(owner(&cluster).await?, "default/held");

    let_go(&cluster, "held").await?;
    assert_eq!(cluster.address("next").await?, "10.2.0.9");
    eventually(SOON, "end of held", async || {
        cluster.lbs().get_opt("held").await.map(|lb| lb.is_none())
    })
    .await?;
    cluster.consistent().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_pool_gives_the_old_address_up_when_the_announcer_has_moved() -> Result<()> {
    let cluster = Cluster::start().await?;
    for (name, third) in [("old", 1), ("new", 2)] {
        let range = json!({"subnet": format!("10.{third}.0.0/24")});
        cluster.pool_for(name, range, json!({})).await?;
    }
    let mut operator = cluster.operator().await?;
    let announcer = Announcer::start(cluster.client.clone(), Announcing::default());
    Guest::run(&cluster.client, vm("web", "a", "10.52.0.7"), "node-1").await?;
    let spec = json!({"backendServerSelector": {"app": ["web"]}, "ipPool": "old"});
    cluster.lb_with("web", spec).await?;
    cluster.serves("web", "Announced").await?;
    let old = cluster.address("web").await?;

    announcer.away(true);
    cluster.patch_lb("web", json!({"spec": {"ipPool": "new"}})).await?;
    let asks = |service: &Service| {
        annotation(service, "kube-vip.io/loadbalancerIPs").unwrap_or_default().to_owned()
    };
    cluster.service_when("web", "the new address", |s| asks(s) == "10.2.0.2").await?;
    // A new leader must retain both as well.
    operator.process.kill9()?;
    cluster.free_lease().await?;
    let _operator = cluster.operator().await?;
    cluster.patch_lb("web", json!({"spec": {"listeners": [{"name": "x", "port": 81}]}})).await?;
    cluster
        .service_when("web", "the new listener", |service| {
            json!(service)["spec"]["ports"][0]["port"] == 81
        })
        .await?;
    assert_eq!(cluster.reached_at("web").await?.as_ref(), Some(&old));
    assert_eq!(cluster.address("web").await?, old);
    assert_eq!(cluster.allocated("old").await?.len(), 1);
    assert_eq!(cluster.allocated("new").await?.len(), 1);

    announcer.away(false);
    cluster.is_reached_at("web", Some("10.2.0.2")).await?;
    eventually(SOON, "end of the old claim", async || {
        cluster.allocated("old").await.map(|claims| claims.is_empty())
    })
    .await?;
    assert_eq!(cluster.address("web").await?, "10.2.0.2");
    cluster.serves("web", "Announced").await?;
    cluster.consistent().await
}

/// Endpoints follow the VMs of a LoadBalancer that has its address, while another one waits for a
/// claim in the same pool. Neither is a guest's LoadBalancer with an address left to itself.
async fn while_the_pool_cannot_be_written(cluster: &Cluster, proxy: &Proxy) -> Result<()> {
    cluster.lb("guest").await?;
    assert_eq!(cluster.address("guest").await?, "10.1.0.3");
    let is_pool_write = |call: &Call| call.is_write() && call.resource() == Some("ippools");
    proxy.set_rule(move |call| {
        let message = "out of order".to_owned();
        let refused = Verdict::Refuse { code: 500, reason: "InternalError", message };
        if is_pool_write(call) { refused } else { Verdict::Pass }
    });
    proxy.reset();
    cluster.lb("late").await?;
    eventually(SOON, "five refused writes of the pool", async || {
        anyhow::Ok(proxy.calls().iter().filter(|record| is_pool_write(&record.call)).count() >= 5)
    })
    .await?;
    cluster.patch_lb("guest", json!({"metadata": {"finalizers": null}})).await?;
    eventually(SOON, "a finalizer of guest", async || {
        cluster.lbs().get("guest").await.map(|lb| !lb.finalizers().is_empty())
    })
    .await?;
    let mut guest = Guest::run(&cluster.client, vm("web", "b", "10.52.0.8"), "node-1").await?;
    let both = [("a", "10.52.0.7", "ready"), ("b", "10.52.0.8", "ready")];
    cluster.endpoints_are("web", &both).await?;
    guest.shut_down().await?;
    cluster.endpoints_are("web", &both[..1]).await?;
    proxy.clear_rule();
    assert_eq!(cluster.address("late").await?, "10.1.0.4");
    cluster.deleted("guest").await?;
    cluster.deleted("late").await
}

/// Whether the call reads the Service `held`.
fn is_read(call: &Call) -> bool {
    (call.method.as_str(), call.resource(), call.name()) == ("GET", Some("services"), Some("held"))
}

/// Accepted writes of the operator's own objects, in order.
fn ours(proxy: &Proxy) -> Vec<String> {
    let kinds = ["services", "endpointslices", "ippools", "loadbalancers"];
    proxy
        .calls()
        .into_iter()
        .filter(|record| record.call.is_write() && record.status.is_some_and(|code| code < 300))
        .filter_map(|record| {
            let resource = record.call.resource().filter(|r| kinds.contains(r))?;
            Some(format!("{} {resource}", record.call.method))
        })
        .collect()
}

/// Creates a LoadBalancer with the only address, announced, and with a held Service.
async fn asking(cluster: &Cluster, name: &str) -> Result<()> {
    cluster.lb_with(name, json!({"ipPool": "only"})).await?;
    announced(cluster, name, "10.2.0.9").await?;
    let hold = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    cluster.edit::<Service>(name, hold).await.map(drop)
}

async fn announced(cluster: &Cluster, name: &str, at: &str) -> Result<()> {
    cluster.service_when(name, "existence", |_| true).await?;
    cluster.announce(name, &[at]).await?;
    cluster.is_reached_at(name, Some(at)).await
}

/// Waits until the Service is in deletion.
async fn leaving(cluster: &Cluster, name: &str) -> Result<()> {
    cluster
        .service_when(name, "a deletion", |service| service.metadata.deletion_timestamp.is_some())
        .await
        .map(drop)
}

async fn let_go(cluster: &Cluster, name: &str) -> Result<()> {
    cluster.edit::<Service>(name, json!({"metadata": {"finalizers": null}})).await.map(drop)
}

async fn strip(cluster: &Cluster, name: &str) -> Result<()> {
    let none: Value = json!({"metadata": {"finalizers": null}});
    cluster.patch_lb(name, none).await.map(drop)
}

/// Owner of the only address.
async fn owner(cluster: &Cluster) -> Result<String> {
    Ok(cluster.allocated("only").await?.remove("10.2.0.9").unwrap_or_default())
}
