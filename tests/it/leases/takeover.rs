//! The host takes over a lease of kube-vip, played, for a Service: the order of steps, and the
//! client identity.

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::api::{ANNOTATION_DHCP, ANNOTATION_NETWORK};
use k8s_openapi::api::core::v1::Service;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use testbed::eventually;

use super::{Agent, declare};
use crate::support::{Cluster, SOON, address};

const NETWORK: &str = "default/vlan8";
const MAC: &str = "00:00:6c:0d:5a:be";
const ADDRESS: &str = "10.7.0.88";

async fn annotate(cluster: &Cluster, name: &str, annotations: Value) -> Result<()> {
    let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
    cluster.lbs().patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Takes over a LoadBalancer for whose Service an announcer leases: it retains its address, and the
/// operator requests it from the server after the Service is gone, as the same client.
pub(super) async fn of_a_service(cluster: &Cluster) -> Result<()> {
    let spec = json!({"backendServerSelector": {"app": ["web"]}});
    cluster.dhcp_lb_with("old", &[(ANNOTATION_NETWORK, NETWORK)], spec).await?;
    cluster.publishes("old", "0.0.0.0").await?;
    let services: Api<Service> = Api::namespaced(cluster.client.clone(), "default");
    let service = eventually(SOON, "Service", async || services.get_opt("old").await).await?;
    // As kube-vip writes it. The finalizer holds the Service, so that the test can check the order.
    let leasing = json!({"metadata": {
        "annotations": {"kube-vip.io/hwaddr": MAC, "kube-vip.io/requestedIP": ADDRESS},
        "finalizers": ["example.com/slow"],
    }});
    services.patch("old", &PatchParams::default(), &Patch::Merge(&leasing)).await?;

    // The network is declared, and an agent is active: that alone changes no address.
    declare(&cluster.client, NETWORK).await?;
    let _agent = Agent::start(cluster, NETWORK).await?;
    cluster.dhcp_lb("new", &[(ANNOTATION_NETWORK, NETWORK)]).await?;
    cluster.grant("new", "10.7.0.87").await?;
    cluster.publishes("new", "10.7.0.87").await?;
    ensure!(address(&cluster.lbs().get("old").await?).as_deref() == Some("0.0.0.0"), "taken over");

    annotate(cluster, "old", json!({ANNOTATION_DHCP: "host"})).await?;
    cluster.waits("old", "DHCPTakeover").await?;
    let lb = cluster.lbs().get("old").await?;
    let noted =
        ["kube-vip.io/hwaddr", "kube-vip.io/requestedIP"].map(|key| lb.annotations().get(key));
    ensure!(noted == [Some(&MAC.to_owned()), Some(&ADDRESS.to_owned())], "{noted:?}");
    eventually(SOON, "Service that goes", async || {
        let service = services.get("old").await?;
        anyhow::Ok(service.metadata.deletion_timestamp.is_some())
    })
    .await?;
    // While the Service exists, kube-vip may still hold the lease.
    cluster.dhcp_lb("other", &[(ANNOTATION_NETWORK, NETWORK)]).await?;
    cluster.grant("other", "10.7.0.86").await?;
    cluster.publishes("other", "10.7.0.86").await?;
    ensure!(cluster.records().get_opt("old").await?.is_none(), "the server is asked too early");
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    services.patch("old", &PatchParams::default(), &free).await?;

    let record = cluster.grant("old", ADDRESS).await?;
    let spec = &record.spec;
    ensure!((spec.mac_address.as_str(), spec.client_id.as_str()) == (MAC, ""), "{spec:?}");
    ensure!(spec.requested_address.as_deref() == Some(ADDRESS), "{spec:?}");
    cluster.publishes("old", ADDRESS).await?;
    eventually(SOON, "Service with the address", async || {
        let now = services.get_opt("old").await?;
        let now = now.filter(|now| now.uid() != service.uid()).and_then(|now| now.spec);
        anyhow::Ok(now.and_then(|spec| spec.load_balancer_ip).as_deref() == Some(ADDRESS))
    })
    .await?;
    same_client(cluster).await
}

/// Two with the same client identity: the second reports the first, and gets its turn when that is
/// gone.
async fn same_client(cluster: &Cluster) -> Result<()> {
    let ask = [(ANNOTATION_NETWORK, NETWORK), ("kube-vip.io/hwaddr", MAC)];
    cluster.dhcp_lb("second", &ask).await?;
    let why = cluster.waits("second", "DHCPIdentityTaken").await?;
    ensure!(why.contains("default/old") && why.contains(MAC), "{why}");
    ensure!(cluster.records().get_opt("second").await?.is_none(), "two records of one client");
    annotate(cluster, "second", json!({"kube-vip.io/hwaddr": "3c:ec:ef:01:02:03"})).await?;
    let why = cluster.waits("second", "InvalidAnnotation").await?;
    ensure!(why.contains("metadata.annotations[kube-vip.io/hwaddr]"), "{why}");
    annotate(cluster, "second", json!({"kube-vip.io/hwaddr": "02:00:5e:10:00:01"})).await?;
    cluster.grant("second", "10.7.0.85").await?;
    cluster.publishes("second", "10.7.0.85").await?;
    // With an address it retains its client identity.
    annotate(cluster, "second", json!({"kube-vip.io/hwaddr": "02:00:5e:10:00:02"})).await?;
    cluster.grant("second", "10.7.0.84").await?;
    cluster.publishes("second", "10.7.0.84").await?;
    let record = cluster.records().get("second").await?;
    ensure!(record.spec.mac_address == "02:00:5e:10:00:01", "{record:?}");
    // A new record has the other identity, once the former address is released.
    cluster.take_away("second", "Lost").await?;
    cluster.let_go("second").await.context("the record stays")?;
    let record = eventually(SOON, "record of the other client", async || {
        let record = cluster.records().get_opt("second").await?;
        anyhow::Ok(record.filter(|record| record.metadata.deletion_timestamp.is_none()))
    })
    .await?;
    ensure!(record.spec.mac_address == "02:00:5e:10:00:02", "{record:?}");
    Ok(())
}
