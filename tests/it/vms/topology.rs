//! Region and zone of a VM's node are written to its annotations.

use anyhow::Result;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use testbed::eventually;
use testbed::kubevirt::{Guest, Outcome, create_node};

use super::{version, vm};
use crate::support::{Cluster, SOON};

const REGION: &str = "topology.kubernetes.io/region";
const ZONE: &str = "topology.kubernetes.io/zone";

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_is_annotated_with_its_nodes_topology_and_again_when_that_changes() -> Result<()> {
    let cluster = Cluster::start().await?;
    let client = &cluster.client;
    create_node(client, "node-1", &[(REGION, "eu"), (ZONE, "eu-1")], "10.0.0.1").await?;
    create_node(client, "node-2", &[(REGION, "eu"), (ZONE, "eu-2")], "10.0.0.2").await?;
    create_node(client, "node-3", &[(REGION, "us")], "10.0.0.3").await?;
    create_node(client, "silent", &[], "10.0.0.4").await?;
    // Before the operator starts, and while it runs.
    let mut guest = Guest::run(client, vm("web", "a", "10.52.0.7"), "node-1").await?;
    let rancher = vm("web", "rancher", "10.52.0.8")
        .label("harvesterhci.io/creator", "docker-machine-driver-harvester");
    let rancher = Guest::run(client, rancher, "node-1").await?;
    let by_hand = vm("web", "by-hand", "10.52.0.9").annotation(ZONE, "mine");
    let by_hand = Guest::run(client, by_hand, "silent").await?;
    let before = version(&rancher.instance().await?.metadata);
    let _operator = cluster.operator().await?;
    annotated(&guest, Some("eu"), Some("eu-1")).await?;
    let second = Guest::run(client, vm("web", "b", "10.52.0.10"), "node-2").await?;
    annotated(&second, Some("eu"), Some("eu-2")).await?;

    guest.begin_migration("node-2").await?;
    guest.end_migration(Outcome::Failed).await?;
    annotated(&guest, Some("eu"), Some("eu-1")).await?;
    guest.begin_migration("node-2").await?;
    guest.end_migration(Outcome::Succeeded).await?;
    annotated(&guest, Some("eu"), Some("eu-2")).await?;
    guest.begin_migration("node-3").await?;
    guest.end_migration(Outcome::Succeeded).await?;
    annotated(&guest, Some("us"), None).await?;

    relabel(&cluster, "node-2", "eu-9").await?;
    annotated(&second, Some("eu"), Some("eu-9")).await?;
    relabel(&cluster, "node-3", "us-1").await?;
    annotated(&guest, Some("us"), Some("us-1")).await?;
    relabel(&cluster, "node-1", "eu-7").await?;
    // A VM that is annotated after the change was observed.
    let last = Guest::run(client, vm("web", "c", "10.52.0.11"), "node-1").await?;
    annotated(&last, Some("eu"), Some("eu-7")).await?;
    assert_eq!(version(&rancher.instance().await?.metadata), before, "Harvester's own");
    annotated(&by_hand, None, Some("mine")).await
}

async fn annotated(guest: &Guest, region: Option<&str>, zone: Option<&str>) -> Result<()> {
    let name = &guest.vm().name;
    eventually(SOON, &format!("{name} in {region:?}, {zone:?}"), async || {
        let vmi = guest.instance().await.map_err(|e| format!("{e:#}"))?;
        let says = |key: &str| vmi.annotations().get(key).map(String::as_str);
        let is = (says(REGION), says(ZONE));
        if is == (region, zone) { Ok(true) } else { Err(format!("{is:?}")) }
    })
    .await
}

async fn relabel(cluster: &Cluster, node: &str, zone: &str) -> Result<()> {
    let labels = json!({"metadata": {"labels": {ZONE: zone}}});
    let nodes = Api::<Node>::all(cluster.client.clone());
    nodes.patch(node, &PatchParams::default(), &Patch::Merge(labels)).await?;
    Ok(())
}
