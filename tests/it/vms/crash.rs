//! The operator is killed after each write for a LoadBalancer of VMs, and started again.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use anyhow::Result;
use kube::ResourceExt as _;
use kube::api::ListParams;
use serde_json::json;
use testbed::kubevirt::Guest;
use testbed::{Announcer, Announcing, Operator, Proxy, Start, eventually};

use super::{ports_here, version, vm};
use crate::crash::{Last, cut_after};
use crate::support::{Cluster, SOON, ready, settled, writes};

/// Kinds that a LoadBalancer of VMs consists of.
pub(super) const KINDS: [&str; 4] = ["ippools", "loadbalancers", "services", "endpointslices"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Create,
    Delete,
}

#[tokio::test(flavor = "multi_thread")]
async fn creation_and_deletion_survive_a_crash_after_each_write() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let proxy = Proxy::start(&cluster.bed).await?;
    Guest::run(&cluster.client, vm("web", "a", "10.52.0.7"), "node-1").await?;
    let mut operator = start(&cluster, &proxy).await?;
    for last in [Last::Answered, Last::Unanswered] {
        let mut crashes = [0, 0];
        for (change, crashes) in [Change::Create, Change::Delete].into_iter().zip(&mut crashes) {
            while crashes_after(&cluster, &proxy, &mut operator, change, last, *crashes).await? {
                *crashes += 1;
            }
        }
        println!("{last:?}: crashed after each of {crashes:?} writes");
        assert!(crashes.iter().all(|writes| *writes >= 4), "uncounted?");
    }
    Ok(())
}

pub(super) async fn start(cluster: &Cluster, proxy: &Proxy) -> Result<Operator> {
    let via = Some((proxy.url().to_owned(), proxy.ca_pem().to_owned()));
    let operator = cluster.standby(Start { via, ..Start::default() }).await?;
    operator.leads().await?;
    Ok(operator)
}

/// Runs one crash. Returns whether it interrupted the change.
async fn crashes_after(
    cluster: &Cluster,
    proxy: &Proxy,
    operator: &mut Operator,
    change: Change,
    last: Last,
    writes: usize,
) -> Result<bool> {
    if change == Change::Delete {
        cluster.vm_lb("web").await?;
        eventually(SOON, "service", async || done(cluster, Change::Create).await).await?;
    }
    let cut = cut_after(proxy, &KINDS, last, writes);
    match change {
        Change::Create => drop(cluster.vm_lb("web").await?),
        Change::Delete => cluster.delete("web").await?,
    }
    let cut_short = eventually(SOON, "end or cut of the change", async || {
        if cut.load(Ordering::SeqCst) > writes {
            return anyhow::Ok(Some(true));
        }
        Ok(done(cluster, change).await?.then_some(false))
    })
    .await?;
    operator.process.kill9()?;
    proxy.clear_rule();
    cluster.free_lease().await?;

    *operator = start(cluster, proxy).await?;
    let what = format!("{change:?} after {writes} writes, {last:?}");
    eventually(SOON, &what, async || done(cluster, change).await).await?;
    cluster.consistent().await?;
    if change == Change::Create {
        cluster.deleted("web").await?;
        eventually(SOON, "end of all of it", async || done(cluster, Change::Delete).await).await?;
    }
    Ok(cut_short)
}

/// Whether all objects exist, once; after a deletion, whether none is left.
async fn done(cluster: &Cluster, change: Change) -> Result<bool> {
    let lb = cluster.lbs().get_opt("web").await?;
    let service = cluster.services().get_opt("web").await?;
    let slices = cluster.slices_of("default", "web").await?;
    let claims = cluster.allocated("pool").await?;
    if change == Change::Delete {
        return Ok(lb.is_none() && service.is_none() && slices.is_empty() && claims.is_empty());
    }
    let endpoints = cluster.endpoints("web").await?;
    let states: Vec<_> = endpoints.iter().map(|(name, e)| (name.as_str(), &*e.state)).collect();
    let (Some(lb), Some(service)) = (lb, service) else { return Ok(false) };
    let counts = lb.status.as_ref().and_then(|status| status.endpoints);
    Ok(claims.len() == 1
        && service.owner_references().iter().any(|owner| Some(&owner.uid) == lb.uid().as_ref())
        && slices.len() == 1
        && states == [("a", "ready")]
        && counts.is_some_and(|counts| (counts.total, counts.ready) == (1, 1))
        && ready(&lb).1 == "NotAnnounced")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_leader_rewrites_nothing_when_nothing_changed() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let mut first = cluster.operator().await?;
    let how = Announcing { leased: Some("192.168.7.9".to_owned()), ..Announcing::default() };
    let _announcer = Announcer::start(cluster.client.clone(), how);
    // With VMs, without, at a leased address, with two protocols, healthy and not.
    cluster.vm_lb("web").await?;
    cluster.vm_lb("empty").await?;
    let leased = json!({"ipam": "dhcp", "backendServerSelector": {"app": ["web"]}});
    cluster.lb_with("leased", leased).await?;
    let two = json!({
        "backendServerSelector": {"app": ["web"]},
        "listeners": [
            {"name": "a", "port": 53, "protocol": "UDP"},
            {"name": "b", "port": 53, "protocol": "TCP"},
        ],
    });
    cluster.lb_with("two", two).await?;
    for (name, address) in [("a", "10.52.0.7"), ("b", "10.52.0.8")] {
        Guest::run(&cluster.client, vm("web", name, address), "node-1").await?;
    }
    let (here, closed, listener) = ports_here().await?;
    Guest::run(&cluster.client, vm("checked", "c", &here), "node-1").await?;
    for (name, port) in
        [("sick", closed.local_addr()?.port()), ("healthy", listener.local_addr()?.port())]
    {
        let spec = json!({
            "backendServerSelector": {"app": ["checked"]},
            "listeners": [{"name": "http", "port": 80, "backendPort": port}],
            "healthCheck": {"port": port},
        });
        cluster.lb_with(name, spec).await?;
    }
    for (name, count) in [("web", 2), ("leased", 2), ("two", 2), ("healthy", 1)] {
        cluster.waits_for_endpoints(name, (count, count)).await?;
        cluster.serves(name, "Announced").await?;
    }
    cluster.waits("sick", "BackendsUnhealthy").await?;
    cluster.waits("empty", "NoRunningBackends").await?;
    for name in ["empty", "sick"] {
        eventually(SOON, &format!("address of {name}"), async || {
            cluster.reached_at(name).await.map(|address| address.is_some())
        })
        .await?;
    }
    let second = cluster.standby(Start::default()).await?;
    second.ready().await?;
    let before = settled("all objects", async || versions(&cluster).await).await?;
    first.process.kill9()?;
    second.leads().await?;
    // A later one, which is reconciled after all existing ones.
    eventually(SOON, "VMs of the new leader", async || {
        second.process.log().contains("virtual machines listed")
    })
    .await?;
    cluster.lb_with("after", json!({"workloadType": "cluster"})).await?;
    cluster.address("after").await?;
    let sent = writes(&second).await?;
    cluster.deleted("after").await?;
    let mut after = versions(&cluster).await?;
    after.retain(|name, _| !name.contains("after"));
    assert_eq!(before, after);
    // The claim of the last one, and its publication.
    assert!(sent <= 2.0, "{sent} writes");
    Ok(())
}

async fn versions(cluster: &Cluster) -> Result<BTreeMap<String, String>> {
    let all = ListParams::default();
    let mut found = BTreeMap::new();
    for lb in cluster.lbs().list(&all).await? {
        found.insert(format!("LoadBalancer {}", lb.name_any()), version(&lb.metadata));
    }
    for service in cluster.services().list(&all).await? {
        found.insert(format!("Service {}", service.name_any()), version(&service.metadata));
    }
    for slice in cluster.slices().list(&all).await? {
        found.insert(format!("EndpointSlice {}", slice.name_any()), version(&slice.metadata));
    }
    Ok(found)
}
