//! No replica is alive. Requests that only remove something pass; requests that admission would
//! judge are refused, above all a change of a status.

use anyhow::{Result, bail, ensure};
use harvester_guest_operator::api::{LB_FINALIZER, LoadBalancer, POOL_FINALIZER};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testbed::eventually;

use super::itself;
use crate::support::{Cluster, SOON, lb};

const STRIPPED: &str = r#"{"metadata": {"finalizers": null}}"#;

/// Checks that a request was refused because no webhook answered.
fn refused<T>(answer: Result<T, impl Into<anyhow::Error>>, what: &str) -> Result<()> {
    let Err(error) = answer else { bail!("{what} passed") };
    let error = error.into();
    ensure!(format!("{error:#}").contains("failed calling webhook"), "{what}: {error:#}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn with_no_replica_alive_what_leaves_may_go_and_a_status_stays() -> Result<()> {
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
    refused(lbs.patch("stays", &params, &strip).await, "the finalizer of one that stays")?;
    refused(cluster.pools().delete("used", &DeleteParams::default()).await, "a pool in use")?;

    // A LoadBalancer in deletion: its status is guarded to the end, its finalizer can be removed.
    lbs.delete("goes", &DeleteParams::default()).await?;
    refused(lbs.patch("goes", &params, &merge(&forged)).await, "the status of one that leaves")?;
    let both = json!({"metadata": {"finalizers": null}, "status": null});
    refused(lbs.patch("goes", &params, &merge(&both)).await, "both at a time")?;
    lbs.patch("goes", &params, &strip).await?;
    ensure!(lbs.get_opt("goes").await?.is_none(), "it stays");

    let pools = cluster.pools();
    pools.delete("unused", &DeleteParams::default()).await?;
    let ledger = json!({"status": {"allocated": {"10.2.0.9": "default/x"}}});
    let forged = pools.patch_status("unused", &params, &merge(&ledger)).await;
    refused(forged, "the ledger of one that leaves")?;
    pools.patch("unused", &params, &strip).await?;
    ensure!(pools.get_opt("unused").await?.is_none(), "the pool stays");

    namespaces.delete("team", &DeleteParams::default()).await?;
    eventually(SOON, "deletion of what is in the namespace", async || {
        let theirs = of_team.get("theirs").await?;
        anyhow::Ok(theirs.metadata.deletion_timestamp.is_some())
    })
    .await?;
    of_team.patch("theirs", &params, &strip).await?;
    eventually(SOON, "end of the namespace", async || {
        namespaces.get_opt("team").await.map(|found| found.is_none())
    })
    .await
}
