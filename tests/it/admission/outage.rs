//! No replica is alive. Requests that only remove something pass; requests that admission would
//! judge are refused, above all a change of a status, until the commands in README turn admission
//! off.

use anyhow::{Context as _, Result, bail, ensure};
use harvester_guest_operator::api::{LB_FINALIZER, LoadBalancer, POOL_FINALIZER};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testbed::eventually;

use super::itself;
use crate::documents::blocks::block_with;
use crate::support::{Cluster, SOON, lb};

const STRIPPED: &str = r#"{"metadata": {"finalizers": null}}"#;

/// Checks that a request was refused because no webhook answered.
fn refused<T>(answer: Result<T, impl Into<anyhow::Error>>, what: &str) -> Result<()> {
    let Err(error) = answer else { bail!("{what} passed") };
    let error = error.into();
    ensure!(format!("{error:#}").contains("failed calling webhook"), "{what}: {error:#}");
    Ok(())
}

/// Runs the commands in README that turn admission off, as they are shown there. New objects are
/// refused before, and pass after.
async fn turned_off_by_readme(cluster: &Cluster) -> Result<()> {
    let range = || json!({"subnet": "10.3.0.0/24", "gateway": "10.3.0.1"});
    refused(cluster.pool("late", range()).await, "a new pool")?;
    refused(cluster.lb("late").await, "a new LoadBalancer")?;
    let commands = block_with("README.md", "webhookconfiguration").context("no such commands")?;
    println!("{commands}{}", cluster.bed.shell(&commands).await?);
    let bundles = cluster.bundles().await?;
    ensure!(bundles.is_empty(), "webhooks are left: {bundles:?}");
    // The API server reads its configurations from a cache.
    let pool = async || cluster.pool("late", range()).await.map(|_| true);
    eventually(SOON, "a new pool", pool).await?;
    let lb = async || cluster.lb("late").await.map(|_| true);
    eventually(SOON, "a new LoadBalancer", lb).await
}

#[tokio::test(flavor = "multi_thread")]
async fn with_no_replica_alive_what_leaves_may_go_and_readme_lets_the_rest_pass() -> Result<()> {
    let cluster = Cluster::start().await?;
    let mut operator = cluster.standby(itself()).await?;
    operator.leads().await?;
    cluster.registered().await?;
    cluster.pool("used", json!({"subnet": "10.1.0.0/24", "gateway": "10.1.0.1"})).await?;
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let team = serde_json::from_value(json!({"metadata": {"name": "team"}}))?;
    namespaces.create(&PostParams::default(), &team).await?;
    let of_team = Api::<LoadBalancer>::namespaced(cluster.client.clone(), "team");
    let mut theirs = lb("theirs", &json!({"workloadType": "cluster"}))?;
    theirs.metadata.namespace = Some("team".to_owned());
    of_team.create(&PostParams::default(), &theirs).await?;
    for name in ["stays", "goes"] {
        cluster.lb(name).await?;
        cluster.address(name).await?;
    }
    eventually(SOON, "finalizer", async || {
        let found = of_team.get("theirs").await?.metadata.finalizers.unwrap_or_default();
        anyhow::Ok(found.iter().any(|name| name == LB_FINALIZER))
    })
    .await?;
    cluster
        .pool_for("unused", json!({"subnet": "10.2.0.0/24", "gateway": "10.2.0.1"}), json!({}))
        .await?;
    let held = json!({"metadata": {"finalizers": [POOL_FINALIZER]}});
    cluster.patch_pool("unused", held).await?;
    operator.process.kill9()?;

    let params = PatchParams::default();
    let merge = |patch: &Value| Patch::Merge(patch.clone());
    let strip = Patch::Merge(serde_json::from_str::<Value>(STRIPPED)?);
    let forged = json!({"status": {"allocatedAddress": {"ip": "10.1.0.77"}}});
    // Requests that admission would judge are refused.
    let lbs = cluster.lbs();
    refused(cluster.lb("new").await, "a new one")?;
    refused(lbs.patch("stays", &params, &merge(&forged)).await, "a status")?;
    refused(
        lbs.patch("stays", &params, &strip).await,
        "the finalizer of a LoadBalancer that is not in deletion",
    )?;
    refused(cluster.pools().delete("used", &DeleteParams::default()).await, "a pool in use")?;

    // A LoadBalancer in deletion: its status is guarded to the end, its finalizer can be removed.
    lbs.delete("goes", &DeleteParams::default()).await?;
    refused(
        lbs.patch("goes", &params, &merge(&forged)).await,
        "the status of a LoadBalancer in deletion",
    )?;
    let both = json!({"metadata": {"finalizers": null}, "status": null});
    refused(lbs.patch("goes", &params, &merge(&both)).await, "both at a time")?;
    lbs.patch("goes", &params, &strip).await?;
    ensure!(lbs.get_opt("goes").await?.is_none(), "it stays");

    let pools = cluster.pools();
    pools.delete("unused", &DeleteParams::default()).await?;
    let ledger = json!({"status": {"allocated": {"10.2.0.9": "default/x"}}});
    let forged = pools.patch_status("unused", &params, &merge(&ledger)).await;
    refused(forged, "the ledger of a pool in deletion")?;
    pools.patch("unused", &params, &strip).await?;
    ensure!(pools.get_opt("unused").await?.is_none(), "the pool stays");

    namespaces.delete("team", &DeleteParams::default()).await?;
    eventually(SOON, "deletion of the namespace's objects", async || {
        let theirs = of_team.get("theirs").await?;
        anyhow::Ok(theirs.metadata.deletion_timestamp.is_some())
    })
    .await?;
    of_team.patch("theirs", &params, &strip).await?;
    eventually(SOON, "end of the namespace", async || {
        namespaces.get_opt("team").await.map(|found| found.is_none())
    })
    .await?;
    turned_off_by_readme(&cluster).await
}
