//! The announcer's part: an address is announced by kube-vip 1.2's rule, and `status.address`
//! always follows the published address.

use anyhow::Result;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};
use testbed::kubevirt::{Guest, Nic, Vm, create_node, host_links, networks, vlan};
use testbed::{Announcer, Announcing, eventually};

use super::{SINK, annotation, vm};
use crate::support::{Cluster, SOON, address, listeners, ready};

const ASKED: &str = "kube-vip.io/loadbalancerIPs";
const INTERFACE: &str = "kube-vip.io/serviceInterface";
const NETWORK: &str = "loadbalancer.harvesterhci.io/network";

#[tokio::test(flavor = "multi_thread")]
async fn an_address_leads_to_ready_vms_and_is_said_where_it_is_announced() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let _operator = cluster.operator().await?;
    let how = Announcing { leased: Some("192.168.7.9".to_owned()), ..Announcing::default() };
    let announcer = Announcer::start(cluster.client.clone(), how);
    cluster.vm_lb("web").await?;
    let said = cluster.waits("web", "NoRunningBackends").await?;
    assert!(said.starts_with("no running backend servers"), "{said}");
    // Announced all the same, so that the node itself does not answer; but not Ready.
    cluster.is_reached_at("web", Some("10.1.0.2")).await?;
    cluster.endpoints_are("web", &[(SINK, "192.0.2.1", "serving, terminating")]).await?;
    let uid = &cluster.endpoints("web").await?[SINK].uid;
    assert_eq!(uid, "dummy347-546a-4642-9da6-5608endpoint", "the Go controller's");

    let guest = Guest::run(&cluster.client, vm("web", "a", "10.52.0.7"), "node-1").await?;
    cluster.serves("web", "Announced").await?;
    cluster.endpoints_are("web", &[("a", "10.52.0.7", "ready")]).await?;
    assert_eq!(cluster.endpoints("web").await?["a"].uid, guest.uid());
    let status = cluster.lbs().get("web").await?.status.unwrap_or_default();
    assert_eq!(status.backend_servers, Some(vec!["10.52.0.7".to_owned()]));
    assert_eq!(json!(status.endpoints), json!({"total": 1, "ready": 1}));

    announcer.away(true);
    cluster.announce("web", &["10.1.0.99"]).await?;
    cluster.is_reached_at("web", Some("10.1.0.99")).await?;
    cluster.serves("web", "Announced").await?;
    cluster.announce("web", &["10.1.0.98", "10.1.0.97"]).await?;
    cluster.is_reached_at("web", Some("10.1.0.98")).await?;
    cluster.announce("web", &[]).await?;
    cluster.waits("web", "NotAnnounced").await?;
    cluster.is_reached_at("web", None).await?;
    assert_eq!(address(&cluster.lbs().get("web").await?).as_deref(), Some("10.1.0.2"));
    announcer.away(false);
    cluster.is_reached_at("web", Some("10.1.0.2")).await?;
    cluster.serves("web", "Announced").await?;

    leased(&cluster, &announcer).await?;
    for name in ["web", "leased"] {
        cluster.deleted(name).await?;
    }
    cluster.consistent().await
}

/// Checks an address that the announcer leases.
async fn leased(cluster: &Cluster, announcer: &Announcer) -> Result<()> {
    let spec = json!({"ipam": "dhcp", "backendServerSelector": {"app": ["leased"]}});
    cluster.lb_with("leased", spec).await?;
    Guest::run(&cluster.client, vm("leased", "b", "10.52.0.8"), "node-1").await?;
    cluster.serves("leased", "Announced").await?;
    cluster.is_reached_at("leased", Some("192.168.7.9")).await?;
    let service = cluster.services().get("leased").await?;
    assert_eq!(annotation(&service, ASKED), Some("0.0.0.0"));
    let asked = service.spec.and_then(|spec| spec.load_balancer_ip);
    assert_eq!(asked.as_deref(), Some("0.0.0.0"));
    assert_eq!(address(&cluster.lbs().get("leased").await?).as_deref(), Some("0.0.0.0"));
    // Another lease.
    announcer.away(true);
    cluster.announce("leased", &["192.168.7.10"]).await?;
    cluster.is_reached_at("leased", Some("192.168.7.10")).await?;
    announcer.away(false);
    cluster.is_reached_at("leased", Some("192.168.7.9")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_decides_on_pool_hints_and_addresses() -> Result<()> {
    let cluster = Cluster::start().await?;
    // Not global: a global pool ignores networks.
    let scope = json!([{"project": "", "namespace": "*", "guestCluster": ""}]);
    for (name, id) in [("vlan100", 100), ("vlan200", 200), ("flat", 0)] {
        let network = vlan("default", name, id);
        let api = networks(&cluster.client, "default");
        api.create(&PostParams::default(), &serde_json::from_value(network)?).await?;
        let selector = json!({"network": format!("default/{name}"), "scope": scope});
        let subnet = json!({"subnet": format!("10.{id}.0.0/24")});
        cluster.pool_for(name, subnet, selector).await?;
    }
    let _operator = cluster.operator().await?;
    let announcer = Announcer::start(
        cluster.client.clone(),
        Announcing { away: true, ..Announcing::default() },
    );
    let on = |network: &str| json!({NETWORK: format!("default/{network}")});
    let spec = json!({"backendServerSelector": {"app": ["web"]}});
    cluster.annotated("web", on("vlan100"), spec.clone()).await?;
    cluster.annotated("flat", on("flat"), spec).await?;
    let vm = Vm::new("default", "a")
        .label("app", "web")
        .nic(Nic::pod("eth0", &["10.52.0.7"]))
        .nic(Nic::attached("lan", "default/vlan100", &["fe80::1", "192.168.100.7"]))
        .nic(Nic::attached("wan", "vlan200", &["192.168.200.7"]));
    Guest::run(&cluster.client, vm, "node-1").await?;

    cluster.endpoints_are("web", &[("a", "192.168.100.7", "ready")]).await?;
    let said = cluster.waits("flat", "NoBackendAddress").await?;
    assert!(said.starts_with("running backend servers have no IP"), "{said}");
    let hints = |service: &k8s_openapi::api::core::v1::Service| {
        let says = |key| annotation(service, key).unwrap_or_default().to_owned();
        [says(ASKED), says(INTERFACE), says(NETWORK)]
    };
    let hinted = async |name: &str, expected: [&str; 3]| {
        cluster
            .service_when(name, &format!("{expected:?}"), |service| hints(service) == expected)
            .await
    };
    // Nodes have no link for a VLAN, and a bridge for untagged traffic.
    hinted("web", ["10.100.0.2", "", ""]).await?;
    hinted("flat", ["10.0.0.2", "mgmt-br", "default/flat"]).await?;

    // The network of VMs may change. An address is announced where its pool's addresses are unique.
    let network = |network: Value| json!({"metadata": {"annotations": {NETWORK: network}}});
    cluster.patch_lb("web", network(json!("default/vlan200"))).await?;
    cluster.endpoints_are("web", &[("a", "192.168.200.7", "ready")]).await?;
    hinted("web", ["10.100.0.2", "", ""]).await?;
    cluster.patch_lb("web", network(json!("default/flat"))).await?;
    cluster.patch_lb("web", network(Value::Null)).await?;
    cluster.endpoints_are("web", &[("a", "10.52.0.7", "ready")]).await?;
    hinted("web", ["10.100.0.2", "", ""]).await?;
    cluster.patch_lb("web", network(json!("default/vlan100"))).await?;
    cluster.endpoints_are("web", &[("a", "192.168.100.7", "ready")]).await?;

    announcer.away(false);
    let said = cluster.serves("web", "Announced").await?;
    assert!(said.contains("nodes have no link for VLAN 100 of mgmt-br"), "{said}");
    cluster.patch_lb("web", network(json!("default/vlan200"))).await?;
    // The endpoints show that the change was observed.
    cluster.endpoints_are("web", &[("a", "192.168.200.7", "ready")]).await?;
    let said = cluster.serves("web", "NetworkMismatch").await?;
    assert!(said.starts_with("the LoadBalancer keeps 10.100.0.2: "), "{said}");
    cluster
        .patch_lb(
            "web",
            json!({"spec": {"listeners": [
                {"name": "http", "port": 80, "backendPort": 8080},
                {"name": "more", "port": 81, "backendPort": 8081},
            ]}}),
        )
        .await?;
    let service = cluster
        .service_when("web", "two ports", |service| {
            service.spec.as_ref().and_then(|s| s.ports.as_ref()).is_some_and(|p| p.len() == 2)
        })
        .await?;
    assert_eq!(hints(&service), ["10.100.0.2", "", ""]);
    cluster.serves("web", "NetworkMismatch").await.map(drop)
}

/// kube-vip fails on an interface that its node lacks, and reads it once per Service.
#[tokio::test(flavor = "multi_thread")]
async fn a_vlan_is_announced_on_its_link_where_each_control_plane_node_has_one() -> Result<()> {
    let cluster = Cluster::start().await?;
    let control_plane = [("node-role.kubernetes.io/control-plane", "true")];
    for (node, labels, address) in [
        ("node-1", &control_plane[..], "10.0.0.1"),
        ("node-2", &control_plane[..], "10.0.0.2"),
        ("worker", &[], "10.0.0.3"),
    ] {
        create_node(&cluster.client, node, labels, address).await?;
    }
    let network = serde_json::from_value(vlan("default", "vlan100", 100))?;
    networks(&cluster.client, "default").create(&PostParams::default(), &network).await?;
    let scope = json!([{"project": "", "namespace": "*", "guestCluster": ""}]);
    let selector = json!({"network": "default/vlan100", "scope": scope});
    cluster.pool_for("pool", json!({"subnet": "10.100.0.0/24"}), selector).await?;
    host_links(&cluster.client, 100, &[("node-1", true), ("node-2", false)]).await?;
    let _operator = cluster.operator().await?;
    let announcer = Announcer::start(
        cluster.client.clone(),
        Announcing { away: true, ..Announcing::default() },
    );
    let on = json!({NETWORK: "default/vlan100"});
    let spec = json!({"backendServerSelector": {"app": ["web"]}});
    let nic = Nic::attached("lan", "default/vlan100", &["10.100.0.77"]);
    let guest = Vm::new("default", "a").label("app", "web").nic(nic);
    Guest::run(&cluster.client, guest, "node-1").await?;
    // One after the other, so that each has the address that its name stands for.
    cluster.annotated("early", on.clone(), spec.clone()).await?;
    cluster.service_when("early", "existence", |_| true).await?;
    cluster.annotated("late", on, spec).await?;
    let first = cluster.service_when("late", "existence", |_| true).await?;
    assert_eq!(annotation(&first, INTERFACE), None, "node-2 has no link");
    cluster.announce("early", &["10.100.0.2"]).await?;
    let says = async |name: &str, expected: &str| {
        eventually(SOON, &format!("{expected:?} of {name}"), async || {
            let said = ready(&cluster.lbs().get(name).await.map_err(|e| e.to_string())?);
            if said.2.contains(expected) { Ok(true) } else { Err(format!("{said:?}")) }
        })
        .await
    };
    says("early", "nodes node-2 have no working link for VLAN 100 of mgmt-br").await?;

    host_links(&cluster.client, 100, &[("node-1", true), ("node-2", true)]).await?;
    let hinted = |service: &k8s_openapi::api::core::v1::Service| {
        annotation(service, INTERFACE) == Some("mgmt-br.100")
    };
    let anew = cluster.service_when("late", "the link", hinted).await?;
    assert_ne!(anew.metadata.uid, first.metadata.uid, "kube-vip would not read it again");
    // An announced address stays on its interface, and the condition says how to move it.
    says("early", "before nodes had the link mgmt-br.100: delete the Service").await?;
    announcer.away(false);
    says("late", "announced at 10.100.0.3").await?;
    cluster.services().delete("early", &DeleteParams::default()).await?;
    cluster.service_when("early", "the link", hinted).await?;
    // A node loses the link: the address stays on it, and the condition says so.
    host_links(&cluster.client, 100, &[("node-1", true), ("node-2", false)]).await?;
    says("late", "announced at 10.100.0.3, on mgmt-br.100: nodes node-2 have no working link")
        .await?;
    cluster.service_when("late", "the link", hinted).await?;
    cluster.consistent().await
}

/// Isolated networks may have the same range. Addresses of their vm LoadBalancers are announced on
/// the nodes' one default interface, where each must belong to one LoadBalancer.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_is_unique_where_it_is_announced_whatever_pool_and_annotation_say() -> Result<()>
{
    let cluster = Cluster::start().await?;
    for (name, id) in [("a", 100), ("b", 200)] {
        let network = serde_json::from_value(vlan("default", name, id))?;
        networks(&cluster.client, "default").create(&PostParams::default(), &network).await?;
        let selector = json!({"network": format!("default/{name}")});
        cluster.pool_for(name, json!({"subnet": "10.5.1.0/24"}), selector).await?;
    }
    let _operator = cluster.operator().await?;
    let of = |pool: &str| json!({"workloadType": "vm", "ipPool": pool, "listeners": listeners()});
    for (lb, pool, ip) in
        [("one", "a", "10.5.1.2"), ("two", "b", "10.5.1.3"), ("three", "a", "10.5.1.4")]
    {
        cluster.lb_with(lb, of(pool)).await?;
        assert_eq!(cluster.address(lb).await?, ip, "{lb}");
    }
    // Guests announce on the network of their VMs: each is a network of its own.
    let guest = |pool: &str| json!({"workloadType": "cluster", "ipPool": pool});
    for (lb, pool) in [("guest-a", "a"), ("guest-b", "b")] {
        let network = json!({NETWORK: format!("default/{pool}")});
        cluster.annotated(lb, network, guest(pool)).await?;
    }
    assert_eq!(cluster.address("guest-a").await?, "10.5.1.5");
    assert_eq!(cluster.address("guest-b").await?, "10.5.1.4", "as three's, on another network");
    // A new LoadBalancer that names another network than its pool's gets no address there.
    cluster.annotated("stray", json!({NETWORK: "default/b"}), of("a")).await?;
    let said = cluster.waits("stray", "NetworkMismatch").await?;
    assert!(said.contains(r#"IPPool "a" is on network "default/a""#), "{said}");
    cluster.patch_lb("stray", json!({"metadata": {"annotations": {NETWORK: null}}})).await?;
    assert_eq!(cluster.address("stray").await?, "10.5.1.6");
    Ok(())
}
