//! The import of addresses from kube-vip's ConfigMap.

use std::collections::BTreeMap;

use anyhow::Result;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use testbed::eventually;

use crate::support::{Cluster, SOON};

const DONE: &str = "loadbalancer.harvesterhci.io/after-conversion";
const REPORT: &str = "loadbalancer.harvesterhci.io/conversion-report";

fn maps(cluster: &Cluster) -> Api<ConfigMap> {
    Api::namespaced(cluster.client.clone(), "kube-system")
}

async fn config(cluster: &Cluster, data: &[(&str, &str)]) -> Result<()> {
    let data: BTreeMap<_, _> = data.iter().copied().collect();
    let map = serde_json::from_value(json!({"metadata": {"name": "kubevip"}, "data": data}))?;
    maps(cluster).create(&PostParams::default(), &map).await?;
    Ok(())
}

/// Waits until the ConfigMap is marked, and returns the report.
async fn report(cluster: &Cluster) -> Result<String> {
    eventually(SOON, "mark on the ConfigMap", async || {
        let map = maps(cluster).get("kubevip").await?;
        let done = map.annotations().get(DONE).is_some_and(|done| done == "true");
        anyhow::Ok(done.then(|| map.annotations()[REPORT].clone()))
    })
    .await
}

async fn again(cluster: &Cluster) -> Result<()> {
    let patch = json!({"metadata": {"annotations": {DONE: null}}});
    maps(cluster).patch("kubevip", &PatchParams::default(), &Patch::Merge(&patch)).await?;
    Ok(())
}

async fn pools(cluster: &Cluster) -> Result<Vec<String>> {
    let pools = cluster.pools().list(&ListParams::default()).await?;
    Ok(pools.iter().map(kube::ResourceExt::name_any).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_become_pools_once_and_who_has_one_keeps_it() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool_for("mine", json!({"subnet": "10.7.0.0/24"}), json!({"scope": []})).await?;
    config(
        &cluster,
        &[
            ("range-default", "10.1.0.10-10.1.0.30, 10.1.0.nonsense"),
            ("cidr-other", "10.2.0.0/24"),
            ("cidr-taken", "10.7.0.0/25"),
            ("cidr-global", "10.3.0.0/24"),
            ("search-order", "desc"),
            ("kubevip-services", r#"{"services":[{"vip":"10.3.0.9","serviceName":"registry"}]}"#),
        ],
    )
    .await?;
    // From before there were claims: it has an address, and no pool records it.
    let spec = json!({"workloadType": "cluster", "ipam": "pool"});
    let mut old = cluster.lb_with("old", spec).await?;
    old.status = Some(serde_json::from_value(json!({"address": "10.1.0.22"}))?);
    cluster.lbs().replace("old", &PostParams::default(), &old).await?;

    let mut operator = cluster.operator().await?;
    let said = report(&cluster).await?;
    assert_eq!(pools(&cluster).await?, ["default", "global", "mine", "other"]);
    assert_eq!(cluster.address("old").await?, "10.1.0.22");
    eventually(SOON, "claim", async || {
        cluster.allocated("default").await.map(|a| a.contains_key("10.1.0.22"))
    })
    .await?;
    for line in
        ["created: IPPool default", "10.1.0.nonsense", "IPPool mine", "not pools: search-order"]
    {
        assert!(said.contains(line), "{said}");
    }
    let global = cluster.pools().get("global").await?;
    assert_eq!(global.spec.ranges[0].exclude, Some(vec!["10.3.0.9".to_owned()]));
    cluster.warned("kubevip", "KubeVipImportIncomplete").await?;

    // Marked: not changed. Unmarked: no pool is made twice, and a missing one is made again.
    cluster.pool_deleted("other").await?;
    operator.process.terminate(SOON).await?;
    let mut operator = cluster.operator().await?;
    assert_eq!(pools(&cluster).await?, ["default", "global", "mine"]);
    operator.process.terminate(SOON).await?;
    again(&cluster).await?;
    let before = cluster.pools().get("default").await?;
    let _operator = cluster.operator().await?;
    let said = report(&cluster).await?;
    assert!(said.contains("exists already: IPPool default"), "{said}");
    assert_eq!(pools(&cluster).await?, ["default", "global", "mine", "other"]);
    assert_eq!(cluster.pools().get("default").await?.spec, before.spec);
    assert_eq!(cluster.address("old").await?, "10.1.0.22");
    cluster.consistent().await
}

/// A pool was made, and the process ended before it could mark the ConfigMap.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_cut_short_is_finished_by_the_next() -> Result<()> {
    let cluster = Cluster::start().await?;
    config(&cluster, &[("cidr-default", "10.1.0.0/24"), ("cidr-global", "10.2.0.0/24")]).await?;
    let spec = json!({
        "ranges": [{"subnet": "10.1.0.0/24"}],
        "selector": {"scope": [{"project": "*", "namespace": "default", "guestCluster": "*"}]},
    });
    let pool = serde_json::from_value(json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "IPPool",
        "metadata": {"name": "default"}, "spec": spec,
    }))?;
    cluster.pools().create(&PostParams::default(), &pool).await?;
    let mut old = cluster.lb("old").await?;
    old.status = Some(serde_json::from_value(json!({"address": "10.1.0.77"}))?);
    cluster.lbs().replace("old", &PostParams::default(), &old).await?;
    let _operator = cluster.operator().await?;
    report(&cluster).await?;
    assert_eq!(pools(&cluster).await?, ["default", "global"]);
    eventually(SOON, "former address", async || {
        cluster
            .allocated("default")
            .await
            .map(|a| a.get("10.1.0.77").is_some_and(|n| n == "default/old"))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_config_map_or_the_right_to_read_it_nothing_is_held_up() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let mut operator = cluster.operator().await?;
    operator.process.terminate(SOON).await?;
    cluster.robbed();
    let role = "harvester-guest-operator-kube-vip";
    cluster.bed.kubectl(&["-n", "kube-system", "delete", "rolebinding", role]).await?;
    config(&cluster, &[("cidr-default", "10.1.0.0/24")]).await?;
    let operator = cluster.operator().await?;
    cluster.lb("web").await?;
    cluster.address("web").await?;
    eventually(SOON, "log of it", async || operator.process.log().contains("is not imported"))
        .await?;
    assert_eq!(pools(&cluster).await?, ["pool"]);
    Ok(())
}
