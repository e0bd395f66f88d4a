//! A tenant fills its objects up to the API server's limits. That costs little memory, and does
//! not delay others.

use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use harvester_guest_operator::api::kubevirt::{
    LABEL_GUEST_CLUSTER, LAUNCHER, TOPOLOGY_REGION, TOPOLOGY_ZONE,
};
use harvester_guest_operator::api::{
    LABEL_SERVICE_LB, LABEL_SERVICE_NAME, LABEL_SLICE_MANAGER, LoadBalancer, MANAGER,
};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{ListParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use testbed::kubevirt::instances;
use testbed::{Operator, eventually};

use crate::support::{Cluster, LATER, SOON, ready};
use crate::vms::input::as_harvester_ships_it;
use crate::vms::raw;

/// Objects of one tenant.
const HOSTILE: usize = 1_000;
/// Slices of the same tenant, and as many VMs and pods.
const LARGE: u32 = 20;
/// Size in bytes of the texts of one of these. The API server stores 1.5 MiB of an object.
const LARGE_TEXT: usize = 1200 * 1024;
/// LoadBalancer that owns the slices. A guest cluster serves it, so the operator deletes none.
const OWNER: &str = "h-0002";
/// Number of the tenant's calls at the same time.
const CALLS_AT_ONCE: usize = 4;
/// Limit of the memory that the LoadBalancers cost, at the peak, and of the memory that the slices,
/// VMs and pods cost beyond that.
const MOST_MIB: u64 = 20;
/// Limit of the memory that the lists of all of them cost the next leader.
const MOST_LISTED_MIB: u64 = 30;
/// Longest wait of another tenant for an address while they are created. It begins when a bare
/// client's watch has the object. It does not contain the API server's own time: 0.3 s on an idle
/// machine, 0.5 s with every core busy.
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// Successive calls until an object has its address: the create and its admission, the claim, the
/// Service, the status, and the read.
const CALLS: u32 = 6;
/// Bare writes meanwhile, one after another.
const WRITES: usize = 100;
/// Size of an object's texts in bytes; each object is about that large.
const TEXT: usize = 32 * 1024;
const FINALIZERS: usize = 300;

/// An object that no schema and no admission has checked: stored before them, or under Harvester's
/// own CRD.
fn hostile(number: usize) -> Result<LoadBalancer> {
    let name = format!("h-{number:04}");
    let long = "x".repeat(TEXT);
    let many: Vec<String> = (0..TEXT / 16).map(|n| format!("{number}-{n}")).collect();
    let mut lb = json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
        "metadata": {"name": name, "namespace": "hostile"},
        "spec": {"workloadType": "cluster", "ipam": "pool"},
    });
    let vm = |selector: Value| {
        json!({
            "workloadType": "vm", "ipam": "pool", "backendServerSelector": selector,
            "listeners": [{"name": "http", "port": 80, "protocol": "TCP"}],
        })
    };
    match number % 5 {
        0 => lb["spec"] = vm(json!({"app": many})),
        1 => {
            let keys = many.iter().take(many.len() / 2).map(|key| (key.clone(), json!(["v"])));
            lb["spec"] = vm(Value::Object(keys.collect()));
        }
        2 => {
            lb["metadata"]["annotations"] = json!({
                "loadbalancer.harvesterhci.io/cluster": long,
                "harvesterhci.io/any": long,
            });
        }
        3 => {
            let theirs = |n: usize| format!("example.com/{number}-{n:050}");
            lb["metadata"]["finalizers"] = (0..FINALIZERS).map(theirs).collect();
        }
        _ => {
            lb["status"] = json!({"conditions": [
                {"type": "Theirs", "status": "True", "message": long},
            ]});
        }
    }
    Ok(serde_json::from_value(lb)?)
}

/// A slice in the form of the operator's. No object has the name and the UID of one endpoint.
fn large_slice(number: u32, owner: &str) -> Value {
    let half = "x".repeat(LARGE_TEXT / 2);
    let endpoint = |name: &str, uid: &str| {
        json!({
            "addresses": ["10.52.0.7"], "conditions": {"ready": true},
            "targetRef": {"name": name, "uid": uid},
        })
    };
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": format!("large-{number}"),
            "labels": {
                LABEL_SERVICE_NAME: OWNER, LABEL_SERVICE_LB: "true", LABEL_SLICE_MANAGER: MANAGER,
            },
            "ownerReferences": [{
                "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
                "name": OWNER, "uid": owner,
            }],
        },
        "addressType": "IPv4", "ports": [],
        "endpoints": [endpoint("vm", "uid"), endpoint(&half, &half)],
    })
}

/// A node of a guest cluster, on a network whose name no object has.
fn large_vm(number: u32) -> Value {
    let (part, rest) = (LARGE_TEXT / 12, LARGE_TEXT / 12 * 10);
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {
            "name": format!("large-{number}"), "labels": {LABEL_GUEST_CLUSTER: "hostile"},
            "annotations": {TOPOLOGY_REGION: "x".repeat(part), TOPOLOGY_ZONE: "x".repeat(part)},
        },
        "spec": {"networks": [{"name": "lan", "multus": {"networkName": "x".repeat(rest)}}]},
        "status": {"phase": "Running", "interfaces": [{"name": "lan"}, {"name": "lan"}]},
    })
}

/// A pod of a VM whose UID no object has. `managedFields` repeats the UID. The garbage collector
/// deletes the pod, and the finalizer keeps it.
fn large_pod(number: u32) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("large-{number}"), "labels": {LAUNCHER.0: LAUNCHER.1},
            "finalizers": ["example.com/theirs"],
            "ownerReferences": [{
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
                "name": "vm", "uid": "x".repeat(LARGE_TEXT / 2), "controller": true,
            }],
        },
        "spec": {"containers": [{"name": "compute", "image": "virt-launcher"}]},
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_hostile_objects_cost_little_and_delay_none() -> Result<()> {
    let cluster = Cluster::start().await?;
    raw::namespace(&cluster.client, "hostile").await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/16"})).await?;
    as_harvester_ships_it(&cluster).await?;
    let mut operator = cluster.operator().await?;
    let (_, quiet) = one_by_one(&cluster, "quiet", 20).await?;
    let at_rest = peak(&operator)?;

    let theirs = Api::<LoadBalancer>::namespaced(cluster.client.clone(), "hostile");
    let flood = stream::iter(0..HOSTILE).map(anyhow::Ok).try_for_each_concurrent(
        CALLS_AT_ONCE,
        async |number| {
            let made = theirs.create(&PostParams::default(), &hostile(number)?).await;
            made.with_context(|| format!("object {number}")).map(drop)
        },
    );
    let (flood, bare, loud) =
        tokio::join!(flood, bare_writes(&cluster), one_by_one(&cluster, "loud", 20));
    flood?;
    let (bare, (after_event, loud)) = (bare?, loud?);
    // Some at a time: a list of all is 32 MB.
    let all = stream::iter(0..HOSTILE).map(anyhow::Ok);
    all.try_for_each_concurrent(CALLS_AT_ONCE, async |number| {
        let name = format!("h-{number:04}");
        eventually(LATER, &format!("an answer to {name}"), async || {
            theirs.get(&name).await.map(|lb| !ready(&lb).0.is_empty())
        })
        .await
    })
    .await?;
    let cost = (peak(&operator)? - at_rest) / 1024;
    println!(
        "{HOSTILE} hostile objects: {cost} MiB; another's address after {quiet:?}, meanwhile {loud:?} at most, \
         and {after_event:?} at most after its event; a bare write {bare:?} at most"
    );
    ensure!(cost < MOST_MIB, "{cost} MiB");
    ensure!(
        after_event < LONGEST_WAIT + CALLS * bare,
        "another tenant waited for {after_event:?} after the event, a bare write for {bare:?}"
    );

    // A value over a limit is reported, and selects nothing.
    let lb = theirs.get("h-0000").await?;
    let said = ready(&lb).2;
    ensure!(said.contains("spec.backendServerSelector: more than 64 values"), "{said}");
    let lb = theirs.get("h-0001").await?;
    let said = ready(&lb).2;
    ensure!(said.contains("spec.backendServerSelector: more than 16 labels"), "{said}");
    // List entries of others stay in the object, whether the operator holds them in memory or not.
    let lb = theirs.get("h-0003").await?;
    let finalizers = lb.metadata.finalizers.unwrap_or_default();
    assert_eq!(finalizers.len(), FINALIZERS + 1, "and the operator's own");
    let lb = theirs.get("h-0004").await?;
    let status = lb.status.unwrap_or_default();
    ensure!(status.allocated_address.is_some(), "no address");
    let length = status
        .conditions
        .iter()
        .find(|c| c.type_ == "Theirs")
        .and_then(|c| c.message.as_ref().map(String::len));
    assert_eq!(length, Some(TEXT));

    let before = peak(&operator)?;
    create_large(&cluster).await?;
    has_slices(&operator).await?;
    let cost = (peak(&operator)? - before) / 1024;
    println!("{LARGE} slices, VMs and pods of {LARGE_TEXT} bytes: {cost} MiB");
    ensure!(cost < MOST_MIB, "{cost} MiB");

    operator.process.kill9()?;
    cluster.free_lease().await?;
    let next = cluster.operator().await?;
    has_slices(&next).await?;
    let cost = (peak(&next)? - at_rest) / 1024;
    println!("the lists of all of them by the next leader: {cost} MiB");
    ensure!(cost < MOST_LISTED_MIB, "{cost} MiB");
    Ok(())
}

/// Waits until the operator has all slices. Each has one endpoint that the operator keeps.
async fn has_slices(operator: &Operator) -> Result<()> {
    eventually(SOON, "all slices", async || {
        let kept = operator.metric("hgo_endpoints", &["\"ready\""]).await?;
        anyhow::Ok(kept >= f64::from(LARGE))
    })
    .await
}

/// Creates the slices, VMs and pods. A slice is created after the VM and the pod of its number.
async fn create_large(cluster: &Cluster) -> Result<()> {
    let client = &cluster.client;
    let owner = Api::<LoadBalancer>::namespaced(client.clone(), "hostile").get(OWNER).await?;
    let owner = owner.uid().context("no UID")?;
    let vms = instances(client, "hostile");
    let pods = Api::<Pod>::namespaced(client.clone(), "hostile");
    let slices = Api::<EndpointSlice>::namespaced(client.clone(), "hostile");
    let new = PostParams::default();
    let all = stream::iter(0..LARGE).map(anyhow::Ok);
    all.try_for_each_concurrent(CALLS_AT_ONCE, async |number| {
        vms.create(&new, &serde_json::from_value(large_vm(number))?).await?;
        pods.create(&new, &serde_json::from_value(large_pod(number))?).await?;
        slices.create(&new, &serde_json::from_value(large_slice(number, &owner))?).await?;
        anyhow::Ok(())
    })
    .await
}

/// Longest waits of another tenant for an address: since a bare client's watch has had the object,
/// and since before its creation. Until the watch has it, the API server is late, not the operator:
/// it sends all events of a kind through one stream from etcd, which waits its turn like a request.
async fn one_by_one(cluster: &Cluster, name: &str, count: usize) -> Result<(Duration, Duration)> {
    let version = cluster.lbs().list_metadata(&ListParams::default().limit(1)).await?.metadata;
    let version = version.resource_version.unwrap_or_default();
    let mut events = pin!(cluster.lbs().watch(&WatchParams::default(), &version).await?);
    let (mut longest, mut longest_in_all) = (Duration::ZERO, Duration::ZERO);
    for number in 0..count {
        let name = format!("{name}-{number}");
        let began = Instant::now();
        cluster.lb(&name).await?;
        let event = async {
            while let Some(event) = events.try_next().await? {
                if matches!(&event, WatchEvent::Added(lb) if lb.name_any() == name) {
                    return Ok(Instant::now());
                }
            }
            bail!("the watch ended")
        };
        let address = async {
            cluster.address(&name).await?;
            anyhow::Ok(Instant::now())
        };
        let (event, address) = tokio::try_join!(event, address)?;
        longest = longest.max(address.saturating_duration_since(event));
        longest_in_all = longest_in_all.max(address - began);
    }
    Ok((longest, longest_in_all))
}

/// Longest of some writes without admission and controllers.
async fn bare_writes(cluster: &Cluster) -> Result<Duration> {
    let maps = Api::<ConfigMap>::namespaced(cluster.client.clone(), "hostile");
    let mut longest = Duration::ZERO;
    for number in 0..WRITES {
        let map = json!({"metadata": {"name": format!("bare-{number}")}});
        let began = Instant::now();
        maps.create(&PostParams::default(), &serde_json::from_value(map)?).await?;
        longest = longest.max(began.elapsed());
    }
    Ok(longest)
}

/// Peak memory of the operator, in KiB.
fn peak(operator: &Operator) -> Result<u64> {
    operator.process.peak_rss_kib().context("no figure of memory")
}
