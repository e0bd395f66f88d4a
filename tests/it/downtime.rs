//! All replicas are down while guests come and go and pools are edited. Admission is off, so that
//! nothing is refused meanwhile.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::DeleteParams;
use serde_json::json;
use testbed::{Start, eventually};

use crate::support::{Cluster, SOON, address, ready};

#[tokio::test(flavor = "multi_thread")]
async fn a_day_without_any_replica_is_made_up_for() -> Result<()> {
    let cluster = Cluster::start().await?;
    let services: Api<Service> = Api::namespaced(cluster.client.clone(), "default");
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    for (name, subnet) in
        [("other", "10.2.0.0/24"), ("doomed", "10.3.0.0/24"), ("stripped", "10.4.0.0/24")]
    {
        cluster.pool_for(name, json!({"subnet": subnet}), json!({})).await?;
    }
    let mut leader = cluster.operator().await?;
    let mut standby = cluster.standby(Start::default()).await?;
    standby.ready().await?;
    let of = |pool: &str| json!({"workloadType": "cluster", "ipPool": pool});
    for name in ["gone", "leaving", "again", "moves", "stays"] {
        cluster.lb_with(name, of("pool")).await?;
        cluster.address(name).await?;
    }
    for name in ["doomed", "stripped"] {
        cluster.lb_with(name, of(name)).await?;
        cluster.address(name).await?;
    }
    cluster.lb_with("vms", json!({"ipPool": "other"})).await?;
    cluster.address("vms").await?;
    eventually(SOON, "Service", async || services.get_opt("vms").await.map(|s| s.is_some()))
        .await?;
    let before = cluster.addresses().await?;
    for replica in [&mut standby, &mut leader] {
        replica.process.terminate(SOON).await?;
    }

    // Guests go, with and without their finalizer, come, and change.
    let finalizers = json!({"metadata": {"finalizers": null}});
    for name in ["gone", "again"] {
        cluster.patch_lb(name, finalizers.clone()).await?;
        cluster.deleted(name).await?;
    }
    cluster.delete("leaving").await?;
    cluster.lb_with("again", of("pool")).await?;
    cluster.patch_lb("moves", json!({"spec": {"ipPool": "other"}})).await?;
    for name in ["new-1", "new-2"] {
        cluster.lb_with(name, of("pool")).await?;
    }
    services.delete("vms", &DeleteParams::default()).await?;
    // Pools are edited: without the address of one who stays, without their record, deleted.
    let ranges = json!([{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.100"}]);
    cluster.patch_pool("pool", json!({"spec": {"ranges": ranges}})).await?;
    let lost = json!({"status": {"allocated": null, "allocatedOwners": null}});
    cluster.patch_pool_status("other", lost).await?;
    for name in ["doomed", "stripped"] {
        cluster.pools().delete(name, &DeleteParams::default()).await?;
    }
    cluster.patch_pool("stripped", finalizers.clone()).await?;
    cluster.pool_gone("stripped").await?;

    let _operator = cluster.operator().await?;
    for name in ["new-1", "new-2"] {
        let given = cluster.address(name).await?;
        ensure!(given.starts_with("10.1.0.10"), "{name} has {given}, outside of the pool");
    }
    ensure!(cluster.address("again").await? == before["again"], "another address than before");
    for name in ["stays", "doomed", "stripped", "vms"] {
        let now = cluster.address(name).await?;
        ensure!(now == before[name], "{name} has {now} instead of {}", before[name]);
    }
    eventually(SOON, "move", async || {
        let now = address(&cluster.lbs().get("moves").await?);
        anyhow::Ok(now.is_some_and(|ip| ip.starts_with("10.2.")))
    })
    .await?;
    eventually(SOON, "end of what was being deleted", async || {
        cluster.lbs().get_opt("leaving").await.map(|lb| lb.is_none())
    })
    .await?;
    eventually(SOON, "Service", async || services.get_opt("vms").await.map(|s| s.is_some()))
        .await?;
    // What waits for a person says so.
    let note = cluster.warned("pool", "OrphanFreed").await?;
    let freed = format!("{} was freed: it was held for default/gone", before["gone"]);
    ensure!(note.contains(&freed), "{note}");
    let note = cluster.warned("other", "LedgerRepaired").await?;
    ensure!(note.contains(&before["vms"]), "{note}");
    let said = cluster.pool_says("doomed", "Ready", "Deleting").await?;
    ensure!(said.contains("1 addresses"), "{said}");
    eventually(SOON, "IPPoolNotFound of stripped", async || {
        let said = ready(&cluster.lbs().get("stripped").await.map_err(|e| e.to_string())?);
        if said.1 == "IPPoolNotFound" { Ok(true) } else { Err(format!("{said:?}")) }
    })
    .await?;

    // The person makes the pool again, and gives up the other one.
    cluster.pool_for("stripped", json!({"subnet": "10.4.0.0/24"}), json!({})).await?;
    cluster.deleted("doomed").await?;
    cluster.pool_gone("doomed").await?;
    cluster.consistent().await?;
    let now = cluster.addresses().await?;
    ensure!(now["stripped"] == before["stripped"], "{now:?}");
    Ok(())
}
