//! A Harvester as the Go controller leaves it, with each of its known faults.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use harvester_guest_operator::api::LoadBalancer;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};
use testbed::kubevirt::{self, Vm};
use testbed::{Stalls, eventually};

use super::harvester::{FINALIZERS, Harvester};
use super::upgrades::created;
use crate::other_controller::REMOVAL_FAILS;
use crate::support::{Cluster, LATER, SERVED_AGAIN, SOON, beside_bare_writes};

/// LoadBalancers and VMs, each VM with an instance. With 2,000 and 5,000 the test passes as well.
const LBS: u32 = 200;
const VMS: usize = 500;
/// LoadBalancers of which each fault has one.
const EACH: u32 = 50;
const LB_FINALIZER: &str = "wrangler.cattle.io/harvester-lb-controller";

/// State of the LoadBalancer with a number.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// The ledger lacks its address.
    NoRecord,
    /// Deleted, and held by its finalizer, because the Go controller fails to remove it.
    HalfDeleted,
    NoFinalizer,
    /// Address of the next one, published a second time.
    Double,
}

fn fault(number: u32) -> Fault {
    match number % EACH {
        0 => Fault::NoRecord,
        1 => Fault::HalfDeleted,
        2 => Fault::NoFinalizer,
        3 => Fault::Double,
        _ => Fault::None,
    }
}

fn ip(number: u32) -> String {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 1, 100, 0)) + number).to_string()
}

fn published(number: u32) -> String {
    ip(number + u32::from(fault(number) == Fault::Double))
}

fn lb(number: u32) -> Result<LoadBalancer> {
    let finalizers = match fault(number) {
        Fault::NoFinalizer => json!([]),
        _ => json!([LB_FINALIZER]),
    };
    let annotations = match fault(number) {
        Fault::HalfDeleted => json!({REMOVAL_FAILS: ""}),
        _ => json!({}),
    };
    let allocated = json!({
        "ipPool": "pool", "ip": published(number), "mask": "255.255.0.0", "gateway": "10.1.0.1",
    });
    Ok(serde_json::from_value(json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
        "metadata": {
            "name": format!("w-{number}"), "namespace": "default", "finalizers": finalizers,
            "annotations": annotations,
        },
        "spec": {"workloadType": "cluster", "ipam": "pool"},
        "status": {
            "address": published(number), "allocatedAddress": allocated,
            "conditions": [{"type": "Ready", "status": "True", "message": ""}],
        },
    }))?)
}

/// Stores the LoadBalancers and the ledger. Claims have no UID, and some are of LoadBalancers that are gone.
async fn lbs(cluster: &Cluster) -> Result<()> {
    cluster.pool("pool", json!({"subnet": "10.1.0.0/16", "gateway": "10.1.0.1"})).await?;
    let (api, params) = (cluster.lbs(), PostParams::default());
    futures::stream::iter(0..LBS)
        .map(anyhow::Ok)
        .try_for_each_concurrent(16, async |number| {
            api.create(&params, &lb(number)?).await?;
            if fault(number) == Fault::HalfDeleted {
                api.delete(&format!("w-{number}"), &DeleteParams::default()).await?;
            }
            Ok(())
        })
        .await?;
    let recorded = |number: &u32| !matches!(fault(*number), Fault::NoRecord | Fault::Double);
    let claims = (0..LBS).filter(recorded).map(|i| (ip(i), json!(format!("default/w-{i}"))));
    let orphans = (0..LBS / EACH).map(|i| (ip(LBS + i), json!(format!("default/gone-{i}"))));
    let allocated: serde_json::Map<String, Value> = claims.chain(orphans).collect();
    let status = json!({
        "total": 65_533, "available": 65_533 - allocated.len(),
        "lastAllocated": ip(LBS), "allocated": allocated,
    });
    eventually(SOON, "ledger", async || {
        let mut pool = cluster.pools().get("pool").await?;
        pool.status = Some(serde_json::from_value(status.clone())?);
        Ok::<_, anyhow::Error>(cluster.pools().replace("pool", &params, &pool).await.is_ok())
    })
    .await
}

async fn vms(cluster: &Cluster) -> Result<()> {
    let machines = kubevirt::machines(&cluster.client, "default");
    let instances = kubevirt::instances(&cluster.client, "default");
    futures::stream::iter(0..VMS)
        .map(anyhow::Ok)
        .try_for_each_concurrent(16, async |number| {
            let vm = Vm::new("default", &format!("vm-{number}"));
            for (api, mut object, finalizer) in [
                (&machines, vm.machine(), FINALIZERS[0]),
                (&instances, vm.instance(), FINALIZERS[1]),
            ] {
                object["metadata"]["finalizers"] = json!([finalizer]);
                api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
            }
            Ok(())
        })
        .await
}

/// Creates LoadBalancers one after the other, and returns the longest time to an address.
async fn guests(cluster: &Cluster, stalls: &Stalls, over: &AtomicBool) -> Result<Duration> {
    let (mut longest, mut number) = (Duration::ZERO, 0);
    while !over.load(Ordering::Relaxed) {
        let name = format!("guest-{number}");
        let since = Instant::now();
        created(cluster, &name).await?;
        cluster.address(&name).await?;
        let took = stalls.elapsed(since);
        longest = longest.max(took);
        number += 1;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    println!("{number} addresses were given meanwhile, the slowest after {longest:?}");
    Ok(longest)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_harvester_with_each_known_fault_keeps_its_addresses() -> Result<()> {
    let stalls = Stalls::watch()?;
    let harvester = Harvester::start().await?;
    let cluster = harvester.cluster.clone();
    lbs(&cluster).await?;
    vms(&cluster).await?;
    harvester.install().await?;

    let count = |wanted: Fault| (0..LBS).filter(|number| fault(*number) == wanted).count();
    let keep = count(Fault::None) + count(Fault::NoRecord) + count(Fault::NoFinalizer);
    let (ok, plan) = harvester.takeover(&[]).await?;
    ensure!(ok && plan.contains(&format!("{keep} LoadBalancers keep their address")), "{plan}");
    for found in [
        "LoadBalancer default/w-0 publishes 10.1.100.0, which the ledger lacks: the operator \
         records it",
        "LoadBalancer default/w-1: is being deleted",
        "LoadBalancer default/w-2: lacks the finalizer",
        "LoadBalancer default/w-3: has 10.1.100.4, which another LoadBalancer keeps, and gets",
        "is recorded for LoadBalancer default/gone-0, which does not have it: the operator \
         releases it",
    ] {
        ensure!(plan.contains(found), "{found}\n{plan}");
    }
    let over = AtomicBool::new(false);
    let (began, options) = (Instant::now(), ["--apply", "--finalizers-per-second", "200"]);
    let ran = async {
        let ran = harvester.takeover(&options).await;
        over.store(true, Ordering::Relaxed);
        ran
    };
    let work = async { tokio::try_join!(ran, guests(&cluster, &stalls, &over)) };
    let (((ok, _), longest), most) =
        beside_bare_writes(&cluster, &stalls, SERVED_AGAIN, Box::pin(work)).await?;
    println!("{LBS} LoadBalancers and {VMS} VMs taken over in {:?}", began.elapsed());
    ensure!(ok, "the take-over failed");
    ensure!(longest < most, "an address took {longest:?}, and may take {most:?}");
    ensure!(harvester.held().await? == 0, "a VM that is deleted now would stay");

    eventually(LATER, "the end of what was half deleted", async || {
        let left = cluster.lbs().get_opt("w-1").await?;
        anyhow::Ok(left.is_none())
    })
    .await?;
    eventually(LATER, "an address of its own for each", async || {
        let now = cluster.addresses().await?;
        let unique: BTreeSet<&String> = now.values().collect();
        anyhow::Ok(unique.len() == now.len() && !now.contains_key("w-1"))
    })
    .await?;
    cluster.consistent().await?;
    let now = cluster.addresses().await?;
    for number in 0..LBS {
        let has = now.get(&format!("w-{number}"));
        match fault(number) {
            Fault::HalfDeleted => ensure!(has.is_none(), "w-{number} is still there"),
            Fault::Double => {
                let has = has.with_context(|| format!("w-{number} has no address"))?;
                ensure!(*has != published(number), "w-{number} kept the address of another");
            }
            _ => ensure!(has == Some(&published(number)), "w-{number} moved to {has:?}"),
        }
    }
    let during = now;
    let (ok, text) = harvester.takeover(&["--undo", "--apply"]).await?;
    ensure!(ok, "{text}");
    harvester.leads("go").await?;
    harvester.addresses_are(&during).await?;
    harvester.end().await;
    Ok(())
}
