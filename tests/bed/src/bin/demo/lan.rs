//! A network with a DHCP server, from which the host leases an address for a LoadBalancer.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use testbed::kubevirt::{networks, vlan};
use testbed::net::dhcp::{DhcpServer, Kind, Scope};
use testbed::net::{Forward, Netns, Segment};
use testbed::{Bed, LeaseAgent, eventually};

use crate::PATIENCE;
use crate::objects::balancers;
use crate::world::World;

/// Programs of the network, and their Debian packages.
pub(crate) const PROGRAMS: [(&str, &str); 2] = [("ip", "iproute2"), ("dnsmasq", "dnsmasq-base")];
const OPERATORS: &str = "harvester-system";
const ACCOUNT: &str = "harvester-guest-operator-lease-agent";
const NAME: &str = "leased";
const DECLARE: [&str; 4] =
    ["annotate", "net-attach-def", "lan", "loadbalancer.harvesterhci.io/dhcp=host"];

/// The network, and the agent that leases on it. All of it ends when it is dropped.
pub(crate) struct Lan {
    agent: LeaseAgent,
    _forward: Forward,
    server: DhcpServer,
    node: Netns,
    _segment: Segment,
}

pub(crate) async fn run(bed: &Bed, world: &mut World, operator: &Path) -> Result<(Lan, String)> {
    let scope = Scope::new([10, 77, 0, 1]);
    let mut lan = Lan::start(bed, &scope, &agent_beside(operator)?).await?;
    let (address, took) = lease(bed, world).await?;
    ensure!(scope.holds(address.parse()?), "{address} is not of the server's range");
    let mac = hardware_address(&bed.admin()).await?;
    let granted = lan.server.granted_to(&mac).await?.context("the server has granted nothing")?;
    let (theirs, hostname) = (granted.address.to_string(), granted.hostname);
    ensure!(theirs == address, "{address} is published, and the server has granted {theirs}");
    let links = lan.node.ip("-o link show type macvlan").await?;
    ensure!(links.contains(&mac), "no link of the node has the lease's address {mac}: {links}");
    println!("      default/{NAME} has {address}, {took} ms after it was asked for");
    println!("      dnsmasq's file says so too: {theirs} {mac} {hostname}");
    let pid = lan.agent.process.pid();
    println!("      Played: the kubelet, which would run the Deployment's pod; process {pid} does");
    Ok((lan, format!("dnsmasq leases {address} to a LoadBalancer, after {took} ms")))
}

impl Lan {
    async fn start(bed: &Bed, scope: &Scope, program: &Path) -> Result<Self> {
        let segment = Segment::new("switch").await?;
        let node = Netns::new("node").await?;
        segment.plug(&node, "net1").await?;
        let router = segment.attach("dhcp", &scope.interface()).await?;
        let server = DhcpServer::start(Kind::Dnsmasq, &router, "eth0", scope).await?;
        println!(
            "      network namespaces: a switch, a node, and dnsmasq at {} with {} to {}",
            scope.server,
            scope.at(scope.range.0),
            scope.at(scope.range.1)
        );
        let args = declare(bed).await?;
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let forward = Forward::from(&node, bed.address()?).await?;
        let kubeconfig = bed.service_account_kubeconfig(OPERATORS, ACCOUNT, None).await?;
        let agent = LeaseAgent::start(program, &kubeconfig, &args, Some(&node)).await?;
        agent.speaks().await?;
        Ok(Self { agent, _forward: forward, server, node, _segment: segment })
    }
}

/// The agent's program, which is built into the operator's folder.
fn agent_beside(operator: &Path) -> Result<PathBuf> {
    let program = operator.with_file_name("lease-agent");
    ensure!(program.is_file(), "there is no {}; `make demo` builds it", program.display());
    Ok(program)
}

/// Declares that the host leases on the network, and returns the arguments of the agent that the
/// operator then makes.
async fn declare(bed: &Bed) -> Result<Vec<String>> {
    let network = serde_json::from_value(vlan("default", "lan", 7))?;
    networks(&bed.admin(), "default").create(&PostParams::default(), &network).await?;
    bed.kubectl(&DECLARE).await?;
    let deployments: Api<Deployment> = Api::namespaced(bed.admin(), OPERATORS);
    let made = eventually(PATIENCE, "Deployment of the agent", async || {
        let all = deployments.list(&ListParams::default()).await?.items;
        anyhow::Ok(all.into_iter().next())
    })
    .await?;
    println!("      kubectl {}: the operator makes", DECLARE.join(" "));
    println!("        deployment/{}", made.name_any());
    let pod = made.spec.and_then(|spec| spec.template.spec).context("a Deployment without pod")?;
    pod.containers.into_iter().next().and_then(|one| one.args).context("an agent without arguments")
}

/// Creates the LoadBalancer, and waits for its address.
async fn lease(bed: &Bed, world: &mut World) -> Result<(String, u128)> {
    let balancer = serde_json::from_value(json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
        "metadata": {"name": NAME, "annotations": {
            "loadbalancer.harvesterhci.io/network": "default/lan",
        }},
        "spec": {"workloadType": "cluster", "ipam": "dhcp"},
    }))?;
    let begun = Instant::now();
    balancers(&bed.admin(), "default").create(&PostParams::default(), &balancer).await?;
    let key = format!("default/{NAME}");
    let found = world.until(PATIENCE, "leased address", |scene| {
        let seen = scene.balancers.get(&key).ok_or("the LoadBalancer is not there")?;
        match (seen.now.address.clone(), seen.addressed, seen.now.reason.as_str()) {
            (Some(address), Some(at), "Leased") => Ok(Some((address, at))),
            _ => Err(format!("{:?}", seen.now)),
        }
    });
    let (address, at) = found.await?;
    Ok((address, at.saturating_duration_since(begun).as_millis()))
}

/// Hardware address by which the address is leased, of the lease's record.
async fn hardware_address(client: &Client) -> Result<String> {
    let kind = GroupVersionKind::gvk("loadbalancer.harvesterhci.io", "v1alpha1", "DHCPLease");
    let kind = ApiResource::from_gvk_with_plural(&kind, "dhcpleases");
    let records: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &kind);
    let record = records.get(NAME).await?;
    let mac = record.data["spec"]["macAddress"].as_str();
    Ok(mac.context("a DHCPLease without macAddress")?.to_owned())
}
