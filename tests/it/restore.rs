//! Restores from a backup, and addresses that outlive their record: names survive restores, and a
//! published address of a LoadBalancer stays reserved.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::api::{ANNOTATION_KEEP_ORPHANS, IPPool, LoadBalancer};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use testbed::{Start, eventually};

use crate::admission::itself;
use crate::forms::serve_as_harvester_does;
use crate::support::{Cluster, LATER, SOON, ready, shows};

/// Name of the LoadBalancer of VMs. The others are of a guest cluster.
const VM: &str = "vm";
/// Fields of an object's metadata that a backup keeps. The others are the API server's.
const KEPT: [&str; 5] = ["name", "namespace", "labels", "annotations", "finalizers"];

/// Exports an object as a backup has it: without the API server's fields, and without its status
/// unless `status` is set. The finalizers stay, as in the output of `kubectl get -o yaml`.
fn exported<K: serde::Serialize + kube::Resource>(object: &K, status: bool) -> Result<Value> {
    let mut exported = serde_json::to_value(object)?;
    let metadata = exported["metadata"].as_object_mut().context("no metadata")?;
    metadata.retain(|key, _| KEPT.contains(&&**key));
    if !status {
        exported.as_object_mut().context("no object")?.remove("status");
    }
    Ok(exported)
}

/// Exports all pools and LoadBalancers, then deletes them.
async fn lost(cluster: &Cluster, status: bool) -> Result<(Vec<Value>, Vec<Value>)> {
    let pools = cluster.pools().list(&ListParams::default()).await?;
    let lbs = cluster.lbs().list(&ListParams::default()).await?;
    let backup = (
        pools.iter().map(|pool| exported(pool, status)).collect::<Result<_>>()?,
        lbs.iter().map(|lb| exported(lb, status)).collect::<Result<_>>()?,
    );
    for lb in &lbs {
        cluster.delete(&lb.name_any()).await?;
    }
    cluster.all_gone().await?;
    for pool in &pools {
        cluster.pool_deleted(&pool.name_any()).await?;
    }
    Ok(backup)
}

async fn create_pools(cluster: &Cluster, pools: &[Value]) -> Result<()> {
    for pool in pools {
        let pool: IPPool = serde_json::from_value(pool.clone())?;
        cluster.pools().create(&PostParams::default(), &pool).await?;
    }
    Ok(())
}

async fn create_lbs<'a>(cluster: &Cluster, lbs: impl IntoIterator<Item = &'a Value>) -> Result<()> {
    for lb in lbs {
        let lb: LoadBalancer = serde_json::from_value(lb.clone())?;
        cluster.lbs().create(&PostParams::default(), &lb).await?;
    }
    Ok(())
}

/// Waits until the LoadBalancers of `before` have the same addresses as then.
async fn have(cluster: &Cluster, before: &BTreeMap<String, String>) -> Result<()> {
    eventually(SOON, "the addresses from before", async || {
        let now = cluster.addresses().await.map_err(|e| e.to_string())?;
        let kept = before.iter().all(|(lb, ip)| now.get(lb) == Some(ip));
        if kept { Ok(true) } else { Err(format!("{now:?}, before {before:?}")) }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_in_any_order_gives_each_name_its_address() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let _operator = cluster.operator().await?;
    restores_in_any_order(&cluster, false).await
}

/// A pool of this form is created with the status that the backup has.
#[tokio::test(flavor = "multi_thread")]
async fn a_restore_on_harvesters_form_gives_each_name_its_address() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    serve_as_harvester_does(&cluster).await?;
    let _operator = cluster.operator().await?;
    restores_in_any_order(&cluster, false).await
}

/// Admission removes the status from a LoadBalancer that is created.
#[tokio::test(flavor = "multi_thread")]
async fn a_restore_through_admission_gives_each_name_its_address() -> Result<()> {
    let cluster = Cluster::start().await?;
    let operator = cluster.standby(itself()).await?;
    operator.leads().await?;
    cluster.registered().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    restores_in_any_order(&cluster, true).await
}

/// Restores pools and LoadBalancers with and without status, pools first and last. `is_guarded`:
/// whether admission guards the status.
async fn restores_in_any_order(cluster: &Cluster, is_guarded: bool) -> Result<()> {
    // So that addresses do not follow from names or order.
    for name in ["x", "n3", "y", "n0", VM, "n2", "z", "n1"] {
        if name == VM {
            cluster.lb_with(name, json!({"backendServerSelector": {"app": [name]}})).await?;
        } else {
            cluster.lb(name).await?;
        }
        cluster.address(name).await?;
    }
    for name in ["x", "y", "z"] {
        cluster.deleted(name).await?;
    }
    let before = cluster.addresses().await?;
    for (status, pools_first) in [(false, true), (false, false), (true, true), (true, false)] {
        let (pools, lbs) = lost(cluster, status).await?;
        // A LoadBalancer without an earlier address is created while others wait for theirs.
        let newcomer = async || cluster.lb("newcomer").await;
        if pools_first {
            create_pools(cluster, &pools).await?;
            create_lbs(cluster, lbs.iter().rev()).await?;
            newcomer().await?;
        } else {
            newcomer().await?;
            create_lbs(cluster, &lbs).await?;
            // Without admission, a restored status shows a published address.
            let is_published = status && !is_guarded;
            for name in before.keys() {
                // The condition of VMs with an address is about their Service.
                if is_published && name == VM {
                    continue;
                }
                let reason = if is_published { "IPPoolNotFound" } else { "NoMatchedIPPool" };
                eventually(SOON, &format!("{reason} of {name}"), async || {
                    let lb = cluster.lbs().get(name).await.map_err(|e| e.to_string())?;
                    let said = ready(&lb);
                    if said.1 == reason { Ok(true) } else { Err(format!("{said:?}")) }
                })
                .await?;
            }
            create_pools(cluster, &pools).await?;
        }
        have(cluster, &before).await?;
        let other = cluster.address("newcomer").await?;
        assert!(!before.values().any(|ip| *ip == other), "{other}");
        cluster.deleted("newcomer").await?;
        cluster.consistent().await?;
    }
    Ok(())
}

/// A LoadBalancer went after its finalizer was removed: another object has its name, and its claim.
#[tokio::test(flavor = "multi_thread")]
async fn a_load_balancer_made_again_under_its_name_has_its_address_again() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let mut operator = cluster.operator().await?;
    for name in ["a", "b", "c"] {
        cluster.lb(name).await?;
        cluster.address(name).await?;
    }
    let before = cluster.addresses().await?;
    let strip = async |name: &str| {
        cluster.patch_lb(name, json!({"metadata": {"finalizers": null}})).await?;
        cluster.deleted(name).await
    };
    for name in ["c", "a"] {
        strip(name).await?;
        cluster.lb(name).await?;
    }
    have(&cluster, &before).await?;
    // The same, while no operator runs.
    operator.process.kill9()?;
    cluster.free_lease().await?;
    for name in ["b", "a"] {
        strip(name).await?;
    }
    for name in ["b", "a"] {
        cluster.lb(name).await?;
    }
    let _operator = cluster.operator().await?;
    have(&cluster, &before).await?;
    cluster.consistent().await
}

/// A pool's finalizer was removed while LoadBalancers publish its addresses.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_published_stays_reserved_when_its_pool_is_gone() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("old", json!({"subnet": "10.1.0.0/24"})).await?;
    let mut operator = cluster.operator().await?;
    for name in ["one", "two"] {
        cluster.lb(name).await?;
        cluster.address(name).await?;
    }
    let before = cluster.addresses().await?;
    let strip = json!({"metadata": {"finalizers": null}});
    cluster.pools().delete("old", &kube::api::DeleteParams::default()).await?;
    cluster.patch_pool("old", strip).await?;
    cluster.pool_gone("old").await?;
    for restarted in [false, true] {
        if restarted {
            operator.process.kill9()?;
            cluster.free_lease().await?;
            operator = cluster.operator().await?;
        }
        // The pool does not admit them, and contains their addresses all the same.
        let scope = json!([{"namespace": "default"}, {"namespace": "kube-system"}]);
        let name = format!("new-{restarted}");
        cluster.pool_for(&name, json!({"subnet": "10.1.0.0/29"}), json!({"scope": scope})).await?;
        cluster.lb(&format!("lb-{restarted}")).await?;
        assert_eq!(cluster.address(&format!("lb-{restarted}")).await?, "10.1.0.4");
        have(&cluster, &before).await?;
        shows(&operator, "hgo_shared_addresses", &[], |shared| shared == 0.0).await?;
        let status = cluster.pool_status(&name).await?;
        assert_eq!((status.total, status.available), (5, 2), "two are held back, one is claimed");
        cluster.deleted(&format!("lb-{restarted}")).await?;
        cluster.pool_deleted(&name).await?;
    }
    // Once its LoadBalancer is gone, an address is free.
    cluster.pool("new", json!({"subnet": "10.1.0.0/29"})).await?;
    cluster.deleted("one").await?;
    eventually(SOON, "4 available", async || {
        let available = cluster.pool_status("new").await.map_err(|e| e.to_string())?.available;
        if available == 4 { Ok(true) } else { Err(available.to_string()) }
    })
    .await
}

/// etcd is restored from a backup under a leader and a standby. Resource versions repeat with other
/// content, and watches from greater versions deliver no event. Guests go on announcing what their
/// LoadBalancers published before.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_published_before_etcd_was_restored_is_given_to_no_other() -> Result<()> {
    let cluster = Cluster::start_here().await?;
    // 10.1.0.2 to 10.1.0.14.
    cluster.pool("pool", json!({"subnet": "10.1.0.0/28"})).await?;
    let mut leader = cluster.operator().await?;
    let mut standby = cluster.standby(Start::default()).await?;
    standby.ready().await?;
    for name in ["kept", "deleted"] {
        cluster.lb(name).await?;
        cluster.address(name).await?;
    }
    let backup = cluster.bed.back_up()?;
    let lost: Vec<String> = (0..11).map(|n| format!("lost-{n}")).collect();
    for name in &lost {
        cluster.lb(name).await?;
        cluster.address(name).await?;
    }
    cluster.deleted("deleted").await?;
    cluster.lb("later").await?;
    cluster.address("later").await?;
    let before = cluster.addresses().await?;
    ensure!(before["later"] == "10.1.0.3", "it has not the last address: {before:?}");
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), "kube-system");
    let lease = async || leases.get("harvester-load-balancer").await;
    // Each has read a Lease that the backup does not have.
    let mut version = lease().await?.resource_version();
    for _ in 0..2 {
        let newer = async || {
            let now = lease().await?.resource_version();
            anyhow::Ok(std::mem::replace(&mut version, now.clone()) != now)
        };
        eventually(SOON, "renewal of the Lease", newer).await?;
    }
    // An API server that starts answers before it has read any role.
    cluster.robbed();
    cluster.bed.restore(backup).await?;
    for replica in [&mut leader, &mut standby] {
        let status = replica.process.wait(LATER).await?;
        let log = replica.process.log();
        ensure!(!status.success() && log.contains("resourceVersion went back from"), "{log}");
        // A released Lease would be newer for the other replica than the one that it read before.
        ensure!(!log.contains("Lease released"), "{log}");
        for line in [
            "LoadBalancer default/lost-0 had 10.1.0.4 of IPPool pool and is not in the restored etcd: the address stays",
            "LoadBalancer default/later had 10.1.0.3 of IPPool pool and is not in the restored etcd, where LoadBalancer default/deleted has",
            "LoadBalancer default/deleted with 10.1.0.3 of IPPool pool was deleted before etcd was restored",
        ] {
            ensure!(log.contains(line), "{line}\n{log}");
        }
    }
    cluster.free_lease().await?;
    let _operator = cluster.operator().await?;
    let note = cluster.warned("pool", "OrphansKept").await?;
    ensure!(note.contains("10.1.0.4 of default/lost-0"), "{note}");
    // The rest of the pool is in use by guests.
    cluster.lb("newcomer").await?;
    cluster.waits("newcomer", "NoAvailableIP").await?;
    let (again, gone) = lost.split_at(10);
    for name in again {
        cluster.lb(name).await?;
        ensure!(cluster.address(name).await? == before[name], "{name} has another address");
    }
    ensure!(cluster.address("kept").await? == before["kept"], "it has another address");
    cluster.waits("newcomer", "NoAvailableIP").await?;
    // A person decides that the last one does not come back.
    let annotations = json!({"metadata": {"annotations": {ANNOTATION_KEEP_ORPHANS: null}}});
    cluster.patch_pool("pool", annotations).await?;
    ensure!(cluster.address("newcomer").await? == before[&gone[0]], "it has another address");
    cluster.consistent().await
}
