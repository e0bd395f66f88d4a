//! Real traffic: a client, VMs and a node in network namespaces, kube-proxy's own rules on the
//! node, and an announcer that binds the address there and admits its ports, as kube-vip does.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Service;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use testbed::kubevirt::{Guest, Nic, Vm, create_node};
use testbed::net::{Answer, Lan, Netns, Protocol, Responder, ask, ask_for, isolated};
use testbed::{Announcer, Announcing, KubeProxy, ProxyMode, eventually};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::support::{Cluster, LATER, SOON, ready};

const BACKEND: u16 = 8080;
const LISTENER: u16 = 80;
/// Port of a listener that is removed.
const REMOVED: u16 = 443;
/// The only address of the pool.
const VIP: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 200, 0, 100));
/// Destination of connections while no VM is ready, a closed port of the announcing node, as each
/// mode of kube-proxy writes it.
const REFUSES: [&str; 2] = ["10.200.0.1:9\n", "10.200.0.1 . 9 "];
/// Annotation that makes kube-vip ignore a Service.
const IGNORE: &str = "kube-vip.io/ignore";
/// Pause between two requests of a continuous client.
const PAUSE: Duration = Duration::from_millis(25);
/// Requests of one wait that may fail in nftables mode: while kube-proxy replaces rules, the kernel
/// does not rewrite a packet that is between them, 0.7 µs long for each change, see DESIGN.md. Then
/// the node answers, or nothing does. A fall-through of any other cause concerns all requests of
/// an attempt.
const IN_FLIGHT: usize = 2;
/// Timeout of a request that must get no answer.
const MOMENT: Duration = Duration::from_millis(300);

fn vm(name: &str, address: &str) -> Vm {
    Vm::new("default", name).label("app", "web").nic(Nic::pod("eth0", &[address]))
}

/// A client of the address, and the mode of the kube-proxy on its way.
struct Client<'a> {
    inside: &'a Netns,
    mode: ProxyMode,
}

impl Client<'_> {
    /// Waits until it gets answers of exactly these VMs; with an empty list, refusals. The node
    /// must not answer meanwhile.
    async fn hears(&self, protocol: Protocol, at: SocketAddr, whom: &[&str]) -> Result<()> {
        let named = |name: &&str| from(name);
        let mut wanted: BTreeSet<Answer> = whom.iter().map(named).collect();
        if whom.is_empty() {
            wanted.insert(Answer::Refused);
        }
        let mut from_node = Vec::new();
        eventually(LATER, &format!("answers of {whom:?} only"), async || {
            let answers = ask(self.inside, protocol, at, 12).await.map_err(|e| format!("{e:#}"))?;
            if answers.contains_key(&from("node")) {
                from_node.push(answers.clone());
            }
            if answers.keys().eq(&wanted) { Ok(true) } else { Err(format!("{answers:?}")) }
        })
        .await?;
        let heard: usize = from_node.iter().filter_map(|answers| answers.get(&from("node"))).sum();
        ensure!(heard <= self.in_flight(), "the node answered: {from_node:?}");
        Ok(())
    }
}

impl Client<'_> {
    /// Number of requests that may fail while kube-proxy replaces rules.
    fn in_flight(&self) -> usize {
        match self.mode {
            ProxyMode::Iptables => 0,
            ProxyMode::Nftables => IN_FLIGHT,
        }
    }
}

fn from(name: &str) -> Answer {
    Answer::From(name.to_owned())
}

/// Sends requests until it is stopped; every answer must come from a VM. `allowed`: number of
/// requests that may fail while kube-proxy replaces rules.
async fn ask_on(
    client: Netns,
    at: SocketAddr,
    end: Arc<AtomicBool>,
    allowed: usize,
) -> Result<usize> {
    let (mut asked, mut lost) = (0, 0);
    while !end.load(Ordering::Relaxed) {
        let answers = ask(&client, Protocol::Tcp, at, 5).await?;
        let failed: Vec<_> = answers
            .iter()
            .filter(|(answer, _)| ![from("one"), from("two")].contains(answer))
            .collect();
        lost += failed.iter().map(|(_, count)| **count).sum::<usize>();
        ensure!(lost <= allowed, "after {asked} answers: {failed:?}");
        asked += answers.values().sum::<usize>();
        sleep(PAUSE).await;
    }
    Ok(asked)
}

/// A client that sends requests continuously and counts the node's answers.
struct Overhearing {
    end: Arc<AtomicBool>,
    asking: JoinHandle<Result<(usize, usize)>>,
}

impl Overhearing {
    fn start(client: &Netns) -> Self {
        let (client, end) = (client.clone(), Arc::new(AtomicBool::new(false)));
        let over = end.clone();
        let asking = tokio::spawn(async move {
            let (mut asked, mut from_node) = (0, 0);
            while !over.load(Ordering::Relaxed) {
                let at = SocketAddr::new(VIP, LISTENER);
                let answers = ask_for(&client, Protocol::Tcp, at, 1, MOMENT).await?;
                from_node += answers.get(&from("node")).copied().unwrap_or_default();
                asked += 1;
                // With many thousand connections a minute, ports are reused while VMs remember
                // them.
                sleep(PAUSE).await;
            }
            Ok((asked, from_node))
        });
        Self { end, asking }
    }

    /// Ends it, and checks that the node never answered.
    async fn never_heard_the_node(self) -> Result<()> {
        self.end.store(true, Ordering::Relaxed);
        let (asked, from_node) = self.asking.await??;
        ensure!(from_node == 0, "the node answered {from_node} times of {asked}");
        println!("asked {asked} times, and the node never answered");
        Ok(())
    }
}

/// The node's uplink, and the machine beyond it: every packet that arrives there has left the node.
struct Uplink(Netns);

impl Uplink {
    async fn new(host: &Netns) -> Result<Self> {
        let beyond = Netns::new("beyond").await?;
        let there = beyond.path();
        host.ip(&format!("link add uplink type veth peer name eth0 netns {}", there.display()))
            .await?;
        beyond.sysctl("net/ipv6/conf/eth0/disable_ipv6", "1").await?;
        host.sysctl("net/ipv6/conf/uplink/disable_ipv6", "1").await?;
        beyond.ip("address add 10.201.0.254/24 dev eth0").await?;
        beyond.ip("link set eth0 up").await?;
        host.ip("address add 10.201.0.1/24 dev uplink").await?;
        host.ip("link set uplink up").await?;
        host.ip("route add default via 10.201.0.254").await?;
        Ok(Self(beyond))
    }

    /// Number of frames received so far.
    async fn frames(&self) -> Result<u64> {
        let links: Value = serde_json::from_str(&self.0.ip("-s -j link show dev eth0").await?)?;
        links[0]["stats64"]["rx"]["packets"].as_u64().context("no counter")
    }
}

/// Namespaces and responders that both modes of kube-proxy share.
struct Node {
    host: Netns,
    client: Netns,
    lan: Arc<Lan>,
    uplink: Uplink,
    first: Responder,
}

#[test]
fn the_address_leads_to_ready_vms_only() -> Result<()> {
    isolated(async |host: Netns| {
        let lan = Arc::new(Lan::new(&host, "br0", "10.200.0.1/24").await?);
        let one = lan.attach("vm1", "10.200.0.11").await?;
        let two = lan.attach("vm2", "10.200.0.12").await?;
        let node = Node {
            host: host.clone(),
            client: lan.attach("client", "10.200.0.50").await?,
            lan: lan.clone(),
            uplink: Uplink::new(&host).await?,
            first: Responder::start(&one, "one", BACKEND).await?,
        };
        let _second = Responder::start(&two, "two", BACKEND).await?;
        // Servers of the node itself on the same ports, such as its dashboard.
        let _node = Responder::start(&host, "node", LISTENER).await?;
        let _removed = Responder::start(&host, "node", REMOVED).await?;

        let cluster = Cluster::start().await?;
        create_node(&cluster.client, "node-1", &[], "10.200.0.1").await?;
        let (lan, announced_by) = (Some(lan.clone()), Some("node-1".to_owned()));
        let announcing = Announcing { lan, node: announced_by, ..Announcing::default() };
        let announcer = Announcer::start(cluster.client.clone(), announcing);
        let range = json!({"subnet": "10.200.0.0/24", "rangeStart": VIP, "rangeEnd": VIP});
        cluster.pool("pool", range).await?;
        let _operator = cluster.operator().await?;
        // Connection tracking may remember a client's connections to the node for a while: each
        // mode gets a new client that must get no answer of the node.
        for (mode, address) in
            [(ProxyMode::Iptables, "10.200.0.51"), (ProxyMode::Nftables, "10.200.0.52")]
        {
            let other = node.lan.attach("other", address).await?;
            let proxy = KubeProxy::start(&cluster.bed, &host, "node-1", mode).await?;
            let served = leads_to_ready_vms(&node, &other, &cluster, &announcer, mode).await;
            served.with_context(|| format!("{mode:?}"))?;
            let barred = source_ranges(&node, &other, &cluster, mode).await;
            barred.with_context(|| format!("{mode:?}"))?;
            proxy.stop().await?;
        }
        cluster.consistent().await
    })
}

async fn leads_to_ready_vms(
    node: &Node,
    other: &Netns,
    cluster: &Cluster,
    announcer: &Announcer,
    mode: ProxyMode,
) -> Result<()> {
    let client = Client { inside: &node.client, mode };
    let listener = |name: &str, port: u16, protocol: &str| json!({"name": name, "port": port, "protocol": protocol, "backendPort": BACKEND});
    let (tcp, udp) = (listener("tcp", LISTENER, "TCP"), listener("udp", LISTENER, "UDP"));
    let listeners = json!([tcp, udp, listener("removed", REMOVED, "TCP")]);
    let selector = json!({"app": ["web"]});
    let at = SocketAddr::new(VIP, LISTENER);

    // The node has the address, and no VM runs: the node must not answer for them, from the first
    // moment on.
    let overhearing = Overhearing::start(other);
    let spec = json!({"listeners": listeners, "backendServerSelector": selector});
    // kube-proxy has its rules before the announcer may observe the Service, however long it takes.
    announcer.away(true);
    cluster.lb_with("web", spec).await?;
    rules(node, mode, "rules for the address", |rules| rules.contains(&VIP.to_string())).await?;
    announcer.away(false);
    // Connections that begin before the announcing node is known go to an address that never
    // answers. The node's connection tracking holds that for two minutes, for each packet from the
    // same port of the same client. Only `other` connects so early, and it does not check for
    // refusals.
    rules(node, mode, "rules for the announcing node", |rules| {
        REFUSES.iter().any(|refuses| rules.contains(refuses))
    })
    .await?;
    client.hears(Protocol::Tcp, at, &[]).await?;
    client.hears(Protocol::Udp, at, &[]).await?;
    // Connections that began before the announcing node was known may continue a moment longer.
    eventually(SOON, "refusals of which nothing leaves the node", async || {
        let before = node.uplink.frames().await.map_err(|e| format!("{e:#}"))?;
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            client.hears(protocol, at, &[]).await.map_err(|e| format!("{e:#}"))?;
        }
        let left = node.uplink.frames().await.map_err(|e| format!("{e:#}"))? - before;
        if left == 0 { Ok(true) } else { Err(format!("{left} frames")) }
    })
    .await?;

    let run = |name, address| Guest::run(&cluster.client, vm(name, address), "node-1");
    let mut guest_one = run("vm1", "10.200.0.11").await?;
    let mut guest_two = run("vm2", "10.200.0.12").await?;
    client.hears(Protocol::Tcp, at, &["one", "two"]).await?;
    client.hears(Protocol::Udp, at, &["one", "two"]).await?;

    // One of two is drained, and no client notices.
    let end = Arc::new(AtomicBool::new(false));
    let asking = tokio::spawn(ask_on(node.client.clone(), at, end.clone(), client.in_flight()));
    guest_two.terminate().await?;
    client.hears(Protocol::Tcp, at, &["one"]).await?;
    guest_two.vanish().await?;
    cluster.waits_for_endpoints("web", (1, 1)).await?;
    client.hears(Protocol::Tcp, at, &["one"]).await?;
    end.store(true, Ordering::Relaxed);
    let asked = asking.await?.context("while one of two was drained")?;
    println!("{asked} connections while one of two was drained");

    guest_one.pause(true).await?;
    client.hears(Protocol::Tcp, at, &[]).await?;
    client.hears(Protocol::Udp, at, &[]).await?;
    guest_one.pause(false).await?;
    client.hears(Protocol::Tcp, at, &["one"]).await?;
    client.hears(Protocol::Udp, at, &["one"]).await?;

    // A VM that answers no probe gets no traffic, although KubeVirt reports it ready.
    let mut again = run("vm2", "10.200.0.12").await?;
    client.hears(Protocol::Tcp, at, &["one", "two"]).await?;
    let check = json!({"port": BACKEND, "protocol": "http", "periodSeconds": 1,
        "failureThreshold": 2, "timeoutSeconds": 1});
    cluster.patch_lb("web", json!({"spec": {"healthCheck": check}})).await?;
    node.first.healthy(false);
    client.hears(Protocol::Tcp, at, &["two"]).await?;
    node.first.healthy(true);
    client.hears(Protocol::Tcp, at, &["one", "two"]).await?;
    overhearing.never_heard_the_node().await?;

    // A listener is removed, and the node has that port.
    let services = Api::<Service>::default_namespaced(cluster.client.clone());
    let former = services.get("web").await?.uid();
    cluster.patch_lb("web", json!({"spec": {"listeners": [tcp, udp]}})).await?;
    eventually(SOON, "another Service", async || {
        let now = services.get_opt("web").await?.filter(|service| service.uid() != former);
        anyhow::Ok(now.is_some_and(|service| !service.annotations().contains_key(IGNORE)))
    })
    .await?;
    // The announcer may bind the address now, and kube-proxy may be late on a busy machine.
    rules(node, mode, "rules without the removed listener", |rules| {
        let mut of_address =
            rules.lines().filter(|line| line.contains(&VIP.to_string())).peekable();
        of_address.peek().is_some() && of_address.all(|line| !line.contains("removed"))
    })
    .await?;
    client.hears(Protocol::Tcp, at, &["one", "two"]).await?;
    // kube-vip drops other packets a moment after it has bound the address.
    eventually(SOON, "silence of the removed port", async || {
        let removed = SocketAddr::new(VIP, REMOVED);
        let answers = ask_for(&node.client, Protocol::Tcp, removed, 5, MOMENT).await;
        let answers = answers.map_err(|e| format!("{e:#}"))?;
        if answers.keys().eq([&Answer::Silence]) { Ok(true) } else { Err(format!("{answers:?}")) }
    })
    .await?;

    for guest in [&mut guest_one, &mut again] {
        guest.terminate().await?;
        guest.vanish().await?;
    }
    Ok(())
}

/// Waits until kube-proxy's rules are as wanted.
async fn rules(
    node: &Node,
    mode: ProxyMode,
    what: &str,
    wanted: impl Fn(&str) -> bool,
) -> Result<()> {
    let (program, args): (&str, &[&str]) = match mode {
        ProxyMode::Iptables => ("iptables-save", &["-t", "nat"]),
        ProxyMode::Nftables => ("nft", &["list", "table", "ip", "kube-proxy"]),
    };
    eventually(SOON, what, async || anyhow::Ok(wanted(&node.host.command(program, args).await?)))
        .await
}

/// Source ranges keep clients from VMs. With iptables they do not keep them from the node, and the
/// condition says so.
async fn source_ranges(
    node: &Node,
    other: &Netns,
    cluster: &Cluster,
    mode: ProxyMode,
) -> Result<()> {
    let at = SocketAddr::new(VIP, LISTENER);
    let client = Client { inside: &node.client, mode };
    let mut guest = Guest::run(&cluster.client, vm("vm1", "10.200.0.11"), "node-1").await?;
    client.hears(Protocol::Tcp, at, &["one"]).await?;
    let services = Api::<Service>::default_namespaced(cluster.client.clone());
    let set = async |ranges: Value| {
        let patch = json!({"spec": {"loadBalancerSourceRanges": ranges}});
        services.patch("web", &PatchParams::default(), &Patch::Merge(patch)).await
    };
    set(json!(["10.200.0.50/32"])).await?;
    let (blocked, expected) = match mode {
        ProxyMode::Iptables => (from("node"), "iptables"),
        ProxyMode::Nftables => (Answer::Silence, "nftables"),
    };
    eventually(SOON, &format!("{blocked:?} for a blocked client, {expected}"), async || {
        let answers = ask_for(other, Protocol::Tcp, at, 5, MOMENT).await;
        let answers = answers.map_err(|e| format!("{e:#}"))?;
        if answers.keys().eq([&blocked]) { Ok(true) } else { Err(format!("{answers:?}")) }
    })
    .await?;
    client.hears(Protocol::Tcp, at, &["one"]).await?;
    let why = eventually(SOON, "SourceRangesBypassed of web", async || {
        let is = ready(&cluster.lbs().get("web").await?);
        anyhow::Ok((is.0 == "True" && is.1 == "SourceRangesBypassed").then_some(is.2))
    })
    .await?;
    ensure!(why.contains("on TCP 80, UDP 80:"), "{why}");
    guest.terminate().await?;
    guest.vanish().await?;
    cluster.deleted("web").await?;
    let gone =
        async || anyhow::Ok(!node.host.ip("address show dev br0").await?.contains("10.200.0.100"));
    eventually(SOON, "end of the address", gone).await
}
