//! A guest's report of its addresses is no proof: traffic and probes go only to addresses that a VM
//! may have.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testbed::kubevirt::{Guest, Nic, Vm, create_node, networks, vlan};
use testbed::{Announcer, Announcing, eventually};
use tokio::net::TcpListener;

use super::{SINK, ports_here, vm};
use crate::support::{Cluster, SOON};

const REFUSED: &str = "BackendAddressRefused";

/// Address of the API server's own Service, in every test bed.
const API_SERVER: &str = "10.96.0.1";

#[tokio::test(flavor = "multi_thread")]
async fn on_the_pod_network_a_vm_is_at_its_pods_address_alone() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let operator = cluster.operator().await?;
    let _announcer = Announcer::start(cluster.client.clone(), Announcing::default());
    let (here, _closed, listener) = ports_here().await?;
    let port = listener.local_addr()?.port();
    let spec = json!({
        "backendServerSelector": {"app": ["web"]},
        "listeners": [{"name": "http", "port": 80, "backendPort": port}],
        "healthCheck": {"port": port, "periodSeconds": 1, "timeoutSeconds": 1},
    });
    let mut guest = Guest::run(&cluster.client, vm("web", "liar", "10.52.0.7"), "node-1").await?;
    for (number, address) in [API_SERVER, &here, "10.52.0.8"].into_iter().enumerate() {
        // Root adds it to the interface, and the agent reports it.
        guest.report(|vm| vm.nics[0].addresses = vec![address.to_owned()]).await?;
        let lb = &format!("lb-{number}");
        cluster.lb_with(lb, spec.clone()).await?;
        let said = cluster.waits(lb, REFUSED).await?;
        let expected = format!(
            "running backend servers have no IP that the operator accepts: liar reports {address}, which is no address of its pod"
        );
        assert_eq!(said, expected);
        assert_eq!(cluster.warned(lb, REFUSED).await?, said);
        cluster.endpoints_are(lb, &[(SINK, "192.0.2.1", "serving, terminating")]).await?;
        assert_eq!(operator.metric("hgo_probe_targets", &[]).await?, 0.0, "{address} is probed");
        cluster.deleted(lb).await?;
    }
    ensure!(no_connection_arrived(&listener), "the prober connected to {here}");

    // Its own address is used, reported or not.
    let both = vec![API_SERVER.to_owned(), "10.52.0.7".to_owned()];
    guest.report(|vm| vm.nics[0].addresses = both).await?;
    let spec = json!({"backendServerSelector": {"app": ["web"]}});
    cluster.lb_with("web", spec).await?;
    cluster.endpoints_are("web", &[("liar", "10.52.0.7", "ready")]).await?;
    cluster.serves("web", "Announced").await?;
    // While others serve, the refused one is named.
    let other = vm("web", "other", "10.52.0.9");
    let mut other = Guest::run(&cluster.client, other, "node-1").await?;
    other.report(|vm| vm.nics[0].addresses = vec![API_SERVER.to_owned()]).await?;
    let said = cluster.serves("web", REFUSED).await?;
    assert!(said.ends_with("other reports 10.96.0.1, which is no address of its pod"), "{said}");
    cluster.endpoints_are("web", &[("liar", "10.52.0.7", "ready")]).await
}

fn no_connection_arrived(listener: &TcpListener) -> bool {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    listener.poll_accept(&mut context).is_pending()
}

/// Creates a network with known addresses.
async fn network(cluster: &Cluster) -> Result<()> {
    let mut lan = vlan("default", "lan", 100);
    let route = json!({"mode": "manual", "cidr": "192.168.1.0/24", "gateway": "192.168.1.1",
        "connectivity": "true"});
    lan["metadata"]["annotations"] = json!({"network.harvesterhci.io/route": route.to_string()});
    let api = networks(&cluster.client, "default");
    api.create(&PostParams::default(), &serde_json::from_value(lan)?).await?;
    Ok(())
}

impl Cluster {
    /// Gives the cluster addresses of its own: a node's, the management address, and that of a
    /// Service `theirs` of another tenant. The node's pods are in 10.52.0.0/24.
    pub(crate) async fn infrastructure(
        &self,
        node: &str,
        management: &str,
        theirs: &str,
    ) -> Result<()> {
        create_node(&self.client, "node-1", &[], node).await?;
        let nodes = Api::<Node>::all(self.client.clone());
        let pods = json!({"spec": {"podCIDR": "10.52.0.0/24", "podCIDRs": ["10.52.0.0/24"]}});
        nodes.patch("node-1", &PatchParams::default(), &Patch::Merge(pods)).await?;
        let vip =
            json!({"metadata": {"name": "vip"}, "data": {"enabled": "true", "ip": management}});
        let maps = Api::<ConfigMap>::namespaced(self.client.clone(), "harvester-system");
        maps.create(&PostParams::default(), &serde_json::from_value(vip)?).await?;
        announced(self, "theirs", theirs).await
    }
}

/// Creates an announced Service of another tenant.
async fn announced(cluster: &Cluster, name: &str, at: &str) -> Result<()> {
    let service = json!({"metadata": {"name": name},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}});
    let api = Api::<Service>::namespaced(cluster.client.clone(), "default");
    api.create(&PostParams::default(), &serde_json::from_value(service)?).await?;
    cluster.announce(name, &[at]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn on_other_networks_no_vm_is_at_an_address_of_the_cluster() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    network(&cluster).await?;
    cluster.infrastructure("192.168.1.11", "192.168.1.10", "192.168.1.50").await?;
    let operator = cluster.operator().await?;
    let _announcer = Announcer::start(cluster.client.clone(), Announcing::default());
    cluster.vm_lb("web").await?;
    let on_lan = |address: &str| {
        Vm::new("default", "a").label("app", "web").nic(Nic::attached("eth0", "lan", &[address]))
    };
    let mut guest = Guest::run(&cluster.client, on_lan("192.168.1.5"), "node-1").await?;
    cluster.serves("web", "Announced").await?;
    // The tenant reads what kind of object has the address, and only the log names the object.
    for (address, why, object) in [
        (API_SERVER, "the address of a Service", "the cluster IP of Service default/kubernetes"),
        (
            "10.96.7.7",
            "in the cluster's service network",
            "in the service network (ServiceCIDR kubernetes)",
        ),
        ("10.52.0.9", "in the cluster's pod network", "in the pod network of Node node-1"),
        ("192.168.1.11", "a node's own address", "an address of Node node-1"),
        (
            "192.168.1.10",
            "the cluster's management address",
            "the management address (ConfigMap harvester-system/vip)",
        ),
        (
            "192.168.1.50",
            "the address of a Service",
            "the load-balancer address of Service default/theirs",
        ),
        ("10.1.0.2", "the load balancer's own", ""),
        ("192.168.1.1", "the gateway of network default/lan", ""),
        ("192.168.2.5", "outside 192.168.1.0/24 of network default/lan", ""),
    ] {
        guest.report(|vm| vm.nics[0].addresses = vec![address.to_owned()]).await?;
        let expected = format!("a reports {address}, which is {why}");
        eventually(SOON, &expected, async || {
            let said = cluster.waits("web", REFUSED).await.map_err(|e| format!("{e:#}"))?;
            if said.ends_with(&expected) { Ok(true) } else { Err(said) }
        })
        .await?;
        cluster.endpoints_are("web", &[(SINK, "192.0.2.1", "serving, terminating")]).await?;
        let is_logged = async || operator.process.log().contains(object);
        eventually(SOON, &format!("log of {address}"), is_logged).await?;
    }
    guest.report(|vm| vm.nics[0].addresses = vec!["192.168.1.5".to_owned()]).await?;
    cluster.serves("web", "Announced").await.map(drop)
}

/// Later facts count as well, except for addresses that tenants choose.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_becomes_the_clusters_is_no_vms_any_more() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let _operator = cluster.operator().await?;
    let _announcer = Announcer::start(cluster.client.clone(), Announcing::default());
    cluster.vm_lb("web").await?;
    let nic = Nic::attached("eth0", "lan", &["192.168.1.5"]);
    let vm = Vm::new("default", "a").label("app", "web").nic(nic);
    Guest::run(&cluster.client, vm, "node-1").await?;
    let is_there = async || {
        cluster.serves("web", "Announced").await?;
        cluster.endpoints_are("web", &[("a", "192.168.1.5", "ready")]).await
    };
    is_there().await?;

    announced(&cluster, "theirs", "192.168.1.5").await?;
    create_node(&cluster.client, "node-2", &[], "192.168.1.5").await?;
    let said = cluster.waits("web", REFUSED).await?;
    assert!(said.ends_with("which is a node's own address"), "{said}");
    // Without the node, the Service had the address first.
    let nodes = Api::<Node>::all(cluster.client.clone());
    nodes.delete("node-2", &kube::api::DeleteParams::default()).await?;
    let said = eventually(SOON, "another reason", async || {
        let said = cluster.waits("web", REFUSED).await.map_err(|e| format!("{e:#}"))?;
        if said.contains("node") { Err(said) } else { Ok(Some(said)) }
    })
    .await?;
    assert!(said.ends_with("which is the address of a Service"), "{said}");
    let services = Api::<Service>::namespaced(cluster.client.clone(), "default");
    services.delete("theirs", &kube::api::DeleteParams::default()).await?;
    is_there().await?;

    // The network turns out to have other addresses.
    network(&cluster).await?;
    let route = |route: Value| {
        let patch = json!({"metadata": {"annotations": {"network.harvesterhci.io/route": route}}});
        let api = networks(&cluster.client, "default");
        async move { api.patch("lan", &PatchParams::default(), &Patch::Merge(patch)).await }
    };
    route(json!(json!({"cidr": "192.168.7.0/24"}).to_string())).await.context("route")?;
    let said = cluster.waits("web", REFUSED).await?;
    assert!(said.ends_with("outside 192.168.7.0/24 of network default/lan"), "{said}");
    route(Value::Null).await.context("route")?;
    is_there().await
}

/// Guest of VM `a`, at whose address LoadBalancer `web` serves. The operator and an announcer must
/// run.
async fn serving_guest(cluster: &Cluster) -> Result<Guest> {
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    cluster.vm_lb("web").await?;
    let nic = Nic::attached("eth0", "lan", &["192.168.1.5"]);
    let vm = Vm::new("default", "a").label("app", "web").nic(nic);
    let guest = Guest::run(&cluster.client, vm, "node-1").await?;
    cluster.serves("web", "Announced").await?;
    Ok(guest)
}

/// Tenants choose the addresses of their Services.
#[tokio::test(flavor = "multi_thread")]
async fn an_established_endpoint_outlives_a_service_that_is_announced_at_its_address() -> Result<()>
{
    let cluster = Cluster::start().await?;
    let _operator = cluster.operator().await?;
    let _announcer = Announcer::start(cluster.client.clone(), Announcing::default());
    let mut guest = serving_guest(&cluster).await?;
    announced(&cluster, "theirs", "192.168.1.5").await?;
    // A later change, after which all earlier ones have been observed.
    guest.pause(true).await?;
    cluster
        .endpoints_are(
            "web",
            &[("a", "192.168.1.5", "not ready"), (SINK, "192.0.2.1", "serving, terminating")],
        )
        .await?;
    guest.pause(false).await?;
    cluster.endpoints_are("web", &[("a", "192.168.1.5", "ready")]).await
}

/// Tenants who may write EndpointSlices choose the endpoints that are stored there.
#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_a_tenant_wrote_is_no_address_that_the_vm_had() -> Result<()> {
    let cluster = Cluster::start().await?;
    let _operator = cluster.operator().await?;
    let _announcer = Announcer::start(cluster.client.clone(), Announcing::default());
    let mut guest = serving_guest(&cluster).await?;
    announced(&cluster, "theirs", "192.168.1.50").await?;
    guest.report(|vm| vm.nics[0].addresses = vec!["192.168.1.50".to_owned()]).await?;
    cluster.waits("web", REFUSED).await?;
    let forged = json!({
        "addresses": ["192.168.1.50"],
        "conditions": {"ready": true, "serving": true, "terminating": false},
        "targetRef": {"kind": "VirtualMachineInstance", "namespace": "default", "name": "a",
            "uid": guest.uid()},
    });
    cluster.edit::<EndpointSlice>("web", json!({"endpoints": [forged]})).await?;
    cluster.endpoints_are("web", &[(SINK, "192.0.2.1", "serving, terminating")]).await
}
