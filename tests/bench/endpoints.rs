//! Endpoints at scale: 500 vm LoadBalancers and 20,000 VMs with their pods, beside a bare client
//! that writes the same EndpointSlices.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use harvester_guest_operator::api::LoadBalancer;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{
    DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::core::DynamicObject;
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use testbed::kubevirt::{install_kubevirt, instances};
use testbed::{Bed, Operator, Start, eventually};

use crate::guests;

const LBS: usize = 500;
const VMS: usize = 20_000;
const EACH: usize = VMS / LBS;
/// Changes of readiness measured one by one, and under way at the same time.
const CHANGES: usize = 1_000;
const AT_ONCE: usize = 48;
const PATIENCE: Duration = Duration::from_mins(5);

/// Times, memory and CPU of endpoints.
pub(crate) struct Endpoints {
    /// Time from the start of the process to its lists of VMs and pods.
    pub(crate) listed: Duration,
    /// Time from these lists to the first and the last of the slices.
    pub(crate) first_slice: Duration,
    pub(crate) all_slices: Duration,
    /// Time of a bare client that creates the same slices.
    pub(crate) floor_slices: Duration,
    pub(crate) peak_rss_mib: f64,
    /// CPU of the operator for a lasting change of a VM: slice and status.
    pub(crate) cpu_ms_for_good: f64,
    /// CPU of the operator for a VM that changes and changes back at once.
    pub(crate) cpu_ms_a_change: f64,
    /// CPU of the operator for a change of a VM that changes no slice.
    pub(crate) cpu_ms_no_change: f64,
    /// Times from the write of the VM to the slice, as a client observes both.
    pub(crate) changes: Vec<Duration>,
    /// Times from a bare client's patch of a slice of the same size to its watch event.
    pub(crate) floor_changes: Vec<Duration>,
    pub(crate) slice_writes: f64,
}

pub(crate) async fn measure(bed: &Bed, binary: &Path) -> Result<Endpoints> {
    install_kubevirt(bed).await?;
    let client = bed.admin();
    println!("{VMS} VMs with pods, {LBS} load balancers (a minute or two)");
    guests::pool(&client, "bench", "10.64.0.0/16").await?;
    populate(&client).await?;
    let floor_slices = floor_slices(&client).await?;
    let floor_changes = floor_changes(&client).await?;
    drop_slices(&client).await?;

    let began = Instant::now();
    let mut operator = Operator::start(bed, binary, Start::default()).await?;
    let listed = eventually(PATIENCE, "list of VMs", async || {
        operator.process.log().contains("virtual machines listed").then(|| began.elapsed())
    })
    .await?;
    let ready = async || operator.metric("hgo_endpoints", &["\"ready\""]).await;
    let first = eventually(PATIENCE, "first slice", async || {
        Ok::<_, anyhow::Error>((ready().await? >= EACH as f64).then(|| began.elapsed()))
    })
    .await?;
    let all = eventually(PATIENCE, "all slices", async || {
        let have = ready().await.map_err(|e| e.to_string())?;
        if have >= VMS as f64 { Ok(Some(began.elapsed())) } else { Err(format!("{have}")) }
    })
    .await?;
    check(&client).await?;
    settled(&operator).await?;

    println!("{CHANGES} changes of VMs");
    let writes = async || operator.metric("hgo_api_writes_total", &["EndpointSlice"]).await;
    let before = writes().await?;
    let cpu = cpu_time(&operator);
    let changes = changes(&client).await?;
    settled(&operator).await?;
    let cpu_of_changes = cpu_time(&operator).saturating_sub(cpu);
    let slice_writes = writes().await? - before;

    let cpu = cpu_time(&operator);
    for ready in [false, true] {
        for lb in 0..LBS {
            set_ready(&instances(&client, "default"), lb * EACH, ready).await?;
        }
        settled(&operator).await?;
    }
    let cpu_for_good = cpu_time(&operator).saturating_sub(cpu);

    let before = writes().await?;
    let cpu = cpu_time(&operator);
    heartbeats(&client).await?;
    settled(&operator).await?;
    let cpu_of_heartbeats = cpu_time(&operator).saturating_sub(cpu);
    let more = writes().await? - before;
    ensure!(more < 0.5, "heartbeats were written to {more} slices");

    let peak_rss_mib = operator.process.peak_rss_kib().unwrap_or(0) as f64 / 1024.0;
    delete_lbs(&client).await?;
    guests::delete_pool(&client, "bench").await?;
    operator.process.terminate(Duration::from_secs(5)).await?;
    Ok(Endpoints {
        listed,
        first_slice: first.saturating_sub(listed),
        all_slices: all.saturating_sub(listed),
        floor_slices,
        peak_rss_mib,
        cpu_ms_for_good: cpu_for_good.as_secs_f64() * 1e3 / (2 * LBS) as f64,
        cpu_ms_a_change: cpu_of_changes.as_secs_f64() * 1e3 / (2 * CHANGES) as f64,
        cpu_ms_no_change: cpu_of_heartbeats.as_secs_f64() * 1e3 / CHANGES as f64,
        changes,
        floor_changes,
        slice_writes,
    })
}

fn cpu_time(operator: &Operator) -> Duration {
    operator.process.cpu_time().unwrap_or_default()
}

fn lbs(client: &Client) -> Api<LoadBalancer> {
    Api::namespaced(client.clone(), "default")
}

fn slices(client: &Client) -> Api<EndpointSlice> {
    Api::namespaced(client.clone(), "default")
}

fn vm_name(index: usize) -> String {
    format!("web-{}-{}", index / EACH, index % EACH)
}

async fn populate(client: &Client) -> Result<()> {
    let vmis = instances(client, "default");
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let at_once = |range: std::ops::Range<usize>| futures::stream::iter(range).map(anyhow::Ok);
    at_once(0..VMS)
        .try_for_each_concurrent(AT_ONCE, async |index| {
            let vmi: DynamicObject = serde_json::from_value(vmi(index, true))?;
            let uid = vmis.create(&PostParams::default(), &vmi).await?.uid().unwrap_or_default();
            let (pod, status) = pod(index, &uid);
            let name = format!("virt-launcher-{}", vm_name(index));
            pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
            let status = Patch::Merge(json!({"status": status}));
            pods.patch_status(&name, &PatchParams::default(), &status).await?;
            Ok(())
        })
        .await?;
    at_once(0..LBS)
        .try_for_each_concurrent(AT_ONCE, async |index| {
            let lb = json!({
                "apiVersion": "loadbalancer.harvesterhci.io/v1beta1",
                "kind": "LoadBalancer",
                "metadata": {"name": format!("web-{index}"), "namespace": "default"},
                "spec": {
                    "workloadType": "vm",
                    "listeners": [{"name": "http", "port": 80, "protocol": "TCP", "backendPort": 8080}],
                    "backendServerSelector": {
                        "app": [format!("web-{index}")], "harvesterhci.io/creator": ["harvester"],
                    },
                },
            });
            lbs(client).create(&PostParams::default(), &serde_json::from_value(lb)?).await?;
            Ok(())
        })
        .await
}

/// A VMI about as large as KubeVirt's.
fn vmi(index: usize, ready: bool) -> Value {
    let node = format!("node-{}", index % 16);
    let address = address(index);
    let status = if ready { "True" } else { "False" };
    let filler: Vec<Value> = (0..12)
        .map(|i| {
            json!({"name": format!("feature-{i}"), "bootOrder": i, "disk": {"bus": "virtio"},
                "tag": "a text of the length that such descriptions have in practice"})
        })
        .collect();
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {
            "name": vm_name(index),
            "namespace": "default",
            "labels": {
                "app": format!("web-{}", index / EACH),
                "harvesterhci.io/creator": "harvester",
                "harvesterhci.io/vmName": vm_name(index),
                "kubevirt.io/nodeName": node,
                "guestcluster.harvesterhci.io/name": format!("guest-{}", index % 50),
                "tag.harvesterhci.io/team": format!("team-{}", index % 9),
            },
        },
        "spec": {
            "domain": {"devices": {"disks": filler}},
            "networks": [{"name": "default", "multus": {"networkName": "default/vlan100"}}],
        },
        "status": {
            "phase": "Running",
            "nodeName": node,
            "conditions": [
                {"type": "Ready", "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"},
                {"type": "AgentConnected", "status": "True"},
                {"type": "LiveMigratable", "status": "True"},
            ],
            "interfaces": [
                {"name": "default", "ipAddress": address, "ipAddresses": [address, "fe80::1"],
                    "mac": "52:54:00:00:00:01", "infoSource": "domain, guest-agent"},
                {"interfaceName": "cni0", "ipAddress": "10.42.0.1", "ipAddresses": ["10.42.0.1"]},
            ],
        },
    })
}

fn address(index: usize) -> String {
    format!("10.{}.{}.{}", 128 + index / 50_000, index / 250, index % 250 + 1)
}

fn pod(index: usize, uid: &str) -> (Value, Value) {
    let env: Vec<Value> = (0..20)
        .map(|i| json!({"name": format!("VARIABLE_{i}"), "value": "a value of the usual length"}))
        .collect();
    let pod = json!({
        "metadata": {
            "name": format!("virt-launcher-{}", vm_name(index)),
            "labels": {"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": uid},
            "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
                "name": vm_name(index), "uid": uid, "controller": true}],
        },
        "spec": {
            "nodeName": format!("node-{}", index % 16),
            "containers": [{"name": "compute", "image": "virt-launcher", "env": env}],
        },
    });
    let status = json!({
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "Initialized", "status": "True"}],
    });
    (pod, status)
}

/// Slice that a bare client writes for one LoadBalancer.
fn floor_slice(index: usize, changed: bool) -> Value {
    let endpoints: Vec<Value> = (index * EACH..(index + 1) * EACH)
        .map(|vm| {
            let serves = !(changed && vm == index * EACH);
            json!({
                "addresses": [address(vm)],
                "conditions": {"ready": serves, "serving": serves, "terminating": false},
                "nodeName": format!("node-{}", vm % 16),
                "targetRef": {"kind": "VirtualMachineInstance", "namespace": "default",
                    "name": vm_name(vm), "uid": "00000000-0000-0000-0000-000000000000"},
            })
        })
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": format!("web-{index}"), "namespace": "default",
            "labels": {"kubernetes.io/service-name": format!("web-{index}"), "floor": "true"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": endpoints,
    })
}

async fn floor_slices(client: &Client) -> Result<Duration> {
    let began = Instant::now();
    futures::stream::iter(0..LBS)
        .map(anyhow::Ok)
        .try_for_each_concurrent(24, async |index| {
            let slice = serde_json::from_value(floor_slice(index, false))?;
            slices(client).create(&PostParams::default(), &slice).await?;
            Ok(())
        })
        .await?;
    Ok(began.elapsed())
}

/// Times of a bare client. A VM's change is two writes: one of the VM, and one of the slice.
async fn floor_changes(client: &Client) -> Result<Vec<Duration>> {
    let vmis = instances(client, "default");
    let version = slices(client).list(&ListParams::default().limit(1)).await?;
    let version = version.metadata.resource_version.unwrap_or_default();
    let mut events = slices(client).watch(&WatchParams::default(), &version).await?.boxed();
    let mut times = Vec::new();
    for change in 0..CHANGES {
        let index = change % LBS;
        let began = Instant::now();
        set_ready(&vmis, index * EACH, false).await?;
        let endpoints = &floor_slice(index, (change / LBS).is_multiple_of(2))["endpoints"];
        let patch = Patch::Merge(json!({"endpoints": endpoints}));
        slices(client).patch(&format!("web-{index}"), &PatchParams::default(), &patch).await?;
        seen(&mut events, index).await?;
        times.push(began.elapsed());
        set_ready(&vmis, index * EACH, true).await?;
    }
    Ok(times)
}

async fn set_ready(vmis: &Api<DynamicObject>, vm: usize, ready: bool) -> Result<()> {
    let conditions = &vmi(vm, ready)["status"]["conditions"];
    let patch = Patch::Merge(json!({"status": {"conditions": conditions}}));
    vmis.patch(&vm_name(vm), &PatchParams::default(), &patch).await?;
    Ok(())
}

async fn seen(
    events: &mut (impl futures::Stream<Item = kube::Result<WatchEvent<EndpointSlice>>> + Unpin),
    lb: usize,
) -> Result<EndpointSlice> {
    let name = format!("web-{lb}");
    loop {
        match events.try_next().await?.context("the watch ended")? {
            WatchEvent::Modified(slice) if slice.name_any() == name => return Ok(slice),
            _ => {}
        }
    }
}

/// Makes one VM of each LoadBalancer in turn not ready, and ready again; returns the times.
async fn changes(client: &Client) -> Result<Vec<Duration>> {
    let vmis = instances(client, "default");
    let version = slices(client).list(&ListParams::default().limit(1)).await?;
    let version = version.metadata.resource_version.unwrap_or_default();
    let mut events = slices(client).watch(&WatchParams::default(), &version).await?.boxed();
    let mut times = Vec::new();
    for change in 0..CHANGES {
        let vm = change % LBS * EACH;
        for ready in [false, true] {
            let began = Instant::now();
            set_ready(&vmis, vm, ready).await?;
            seen(&mut events, change % LBS).await?;
            times.push(began.elapsed());
        }
    }
    Ok(times)
}

/// Writes changes of VMs that change no slice.
async fn heartbeats(client: &Client) -> Result<()> {
    let vmis = instances(client, "default");
    for change in 0..CHANGES {
        let patch = Patch::Merge(json!({"status": {"heartbeat": change}}));
        vmis.patch(&vm_name(change), &PatchParams::default(), &patch).await?;
    }
    Ok(())
}

/// Waits until the operator has no more writes to make.
async fn settled(operator: &Operator) -> Result<()> {
    let mut last = -1.0;
    eventually(PATIENCE, "rest", async || {
        // Counts in statuses may be a second late.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let writes = operator.metric("hgo_api_writes_total", &[]).await?;
        anyhow::Ok(std::mem::replace(&mut last, writes).to_bits() == writes.to_bits())
    })
    .await
}

/// Checks that every LoadBalancer leads to its own VMs, all ready.
async fn check(client: &Client) -> Result<()> {
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    let ours = ListParams::default().labels("loadbalancer.harvesterhci.io/servicelb=true");
    for slice in slices(client).list(&ours).await? {
        for endpoint in slice.endpoints.iter().flatten() {
            let name = endpoint.target_ref.as_ref().and_then(|t| t.name.clone());
            let name = name.unwrap_or_default();
            ensure!(name.starts_with(&format!("{}-", slice.name_any())), "{name} is elsewhere");
            ensure!(endpoint.conditions.as_ref().and_then(|c| c.ready) == Some(true), "{name}");
            *found.entry(slice.name_any()).or_default() += 1;
        }
    }
    ensure!(found.len() == LBS && found.values().all(|n| *n == EACH), "{found:?}");
    Ok(())
}

async fn drop_slices(client: &Client) -> Result<()> {
    let all = DeleteParams::default();
    let floor = ListParams::default().labels("floor=true");
    slices(client).delete_collection(&all, &floor).await?;
    eventually(PATIENCE, "end of slices", async || {
        slices(client).list(&floor).await.map(|l| l.items.is_empty())
    })
    .await
}

async fn delete_lbs(client: &Client) -> Result<()> {
    let all = DeleteParams::default();
    lbs(client).delete_collection(&all, &ListParams::default()).await?;
    eventually(PATIENCE, "end of load balancers", async || {
        lbs(client).list(&ListParams::default()).await.map(|l| l.items.is_empty())
    })
    .await
}
