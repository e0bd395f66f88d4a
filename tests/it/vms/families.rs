//! IPv6, and an address that is replaced by one of the other family.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Service;
use serde_json::json;
use testbed::kubevirt::{Guest, Nic, Vm};
use testbed::{Announcer, Announcing, eventually};

use super::{SINK, annotation};
use crate::support::{Cluster, SOON};

const ASKED: &str = "kube-vip.io/loadbalancerIPs";

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_are_of_the_addresss_family() -> Result<()> {
    let cluster = Cluster::start().await?;
    for (name, subnet) in [("six", "fd10::/112"), ("four", "10.1.0.0/24")] {
        cluster.pool_for(name, json!({"subnet": subnet}), json!({})).await?;
    }
    let _operator = cluster.operator().await?;
    let _announcer = Announcer::start(cluster.client.clone(), Announcing::default());
    let spec = json!({"backendServerSelector": {"app": ["web"]}, "ipPool": "six",
        "listeners": [{"name": "dns", "port": 53, "protocol": "UDP", "backendPort": 5353}]});
    cluster.lb_with("web", spec).await?;
    let six = cluster.address("web").await?;
    ensure!(six.starts_with("fd10::"), "{six}");
    // Without VMs, the sink has the same family, too.
    cluster.waits("web", "NoRunningBackends").await?;
    ensure!(cluster.endpoints("web").await?[SINK].address == "100::1", "the sink");
    is_of(&cluster, "IPv6", &six).await?;

    let both = ["10.52.0.7", "fe80::7", "fd52::7"];
    let vm = |name: &str, addresses: &[&str]| {
        Vm::new("default", name).label("app", "web").nic(Nic::pod("eth0", addresses))
    };
    Guest::run(&cluster.client, vm("both", &both), "node-1").await?;
    let mut guest = Guest::run(&cluster.client, vm("only", &["10.52.0.8"]), "node-1").await?;
    cluster.endpoints_are("web", &[("both", "fd52::7", "ready")]).await?;
    guest.change(|vm| vm.nics = vec![Nic::pod("eth0", &["10.52.0.8", "fd52::8"])]).await?;
    let all = [("both", "fd52::7", "ready"), ("only", "fd52::8", "ready")];
    cluster.endpoints_are("web", &all).await?;
    cluster.serves("web", "Announced").await?;
    cluster.is_reached_at("web", Some(&six)).await?;

    // While another program's finalizer holds the old Service, its endpoints follow the VMs.
    let hold = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    cluster.edit::<Service>("web", hold).await?;
    cluster.patch_lb("web", json!({"spec": {"ipPool": "four"}})).await?;
    let said = cluster.waits("web", "ServiceDeleting").await?;
    ensure!(said.contains("example.com/hold"), "{said}");
    ensure!(cluster.warned("web", "ServiceDeleting").await? == said, "the Event: {said}");
    cluster.endpoints_are("web", &all).await?;
    guest.change(|vm| vm.nics = vec![Nic::pod("eth0", &["10.52.0.8", "fd52::9"])]).await?;
    let changed = [("both", "fd52::7", "ready"), ("only", "fd52::9", "ready")];
    cluster.endpoints_are("web", &changed).await?;
    is_of(&cluster, "IPv6", &six).await?;
    cluster.edit::<Service>("web", json!({"metadata": {"finalizers": null}})).await?;
    cluster.is_reached_at("web", Some("10.1.0.2")).await?;
    is_of(&cluster, "IPv4", "10.1.0.2").await?;
    let all = [("both", "10.52.0.7", "ready"), ("only", "10.52.0.8", "ready")];
    cluster.endpoints_are("web", &all).await?;
    cluster.serves("web", "Announced").await?;
    eventually(SOON, "end of the old claim", async || {
        cluster.allocated("six").await.map(|claims| claims.is_empty())
    })
    .await?;
    cluster.consistent().await
}

/// Waits until Service and slices have this family, and no other.
async fn is_of(cluster: &Cluster, family: &str, address: &str) -> Result<()> {
    let asks = |service: &Service| {
        annotation(service, ASKED) == Some(address)
            && json!(service)["spec"]["ipFamilies"] == json!([family])
    };
    cluster.service_when("web", family, asks).await?;
    eventually(SOON, &format!("slices of {family} alone"), async || {
        let slices = cluster.slices_of("default", "web").await?;
        let types: Vec<&str> = slices.iter().map(|slice| slice.address_type.as_str()).collect();
        ensure!(!types.is_empty() && types.iter().all(|type_| *type_ == family), "{types:?}");
        anyhow::Ok(true)
    })
    .await
}
