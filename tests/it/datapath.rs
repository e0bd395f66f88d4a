//! Real traffic: a client, VMs and a node in network namespaces, kube-proxy's own rules on the
//! node, and an announcer that binds the address there, as kube-vip does.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use testbed::kubevirt::{Guest, Nic, Vm, create_node};
use testbed::net::{Answer, Lan, Netns, Protocol, Responder, ask, isolated};
use testbed::{Announcer, Announcing, KubeProxy, eventually};

use crate::support::{Cluster, LATER};

const BACKEND: u16 = 8080;
const LISTENER: u16 = 80;

fn vm(name: &str, address: &str) -> Vm {
    Vm::new("default", name).label("app", "web").nic(Nic::pod("eth0", &[address]))
}

/// Waits until whoever asks the address hears these and nobody else. The node must not have
/// answered in between.
async fn heard(client: &Netns, protocol: Protocol, at: SocketAddr, whom: &[&str]) -> Result<()> {
    let wanted: BTreeSet<String> = whom.iter().map(|name| (*name).to_owned()).collect();
    let mut from_node = None;
    eventually(LATER, &format!("answers of {whom:?} only"), async || {
        let answers = ask(client, protocol, at, 12).await.map_err(|e| format!("{e:#}"))?;
        let got: BTreeSet<String> = answers
            .keys()
            .filter_map(|answer| match answer {
                Answer::From(name) => Some(name.clone()),
                _ => None,
            })
            .collect();
        if got.contains("node") {
            from_node = Some(answers.clone());
        }
        // Nobody is heard, or nobody is missed.
        let whole = whom.is_empty() || got.len() == answers.len();
        if got == wanted && whole { Ok(true) } else { Err(format!("{answers:?}")) }
    })
    .await?;
    ensure!(from_node.is_none(), "the node answered: {from_node:?}");
    Ok(())
}

fn from(name: &str) -> Answer {
    Answer::From(name.to_owned())
}

/// Asks without a pause until told to end; every answer must be a VM's.
async fn ask_on(client: Netns, at: SocketAddr, end: Arc<AtomicBool>) -> Result<usize> {
    let mut asked = 0;
    while !end.load(Ordering::Relaxed) {
        let answers = ask(&client, Protocol::Tcp, at, 5).await?;
        let failed: Vec<_> = answers
            .iter()
            .filter(|(answer, _)| ![from("one"), from("two")].contains(answer))
            .collect();
        ensure!(failed.is_empty(), "after {asked} good answers: {failed:?}");
        asked += answers.values().sum::<usize>();
    }
    Ok(asked)
}

#[test]
fn the_address_leads_to_ready_vms_and_to_nobody_else() -> Result<()> {
    isolated(async |host: Netns| {
        let lan = Arc::new(Lan::new(&host, "br0", "10.200.0.1/24").await?);
        let one = lan.attach("vm1", "10.200.0.11").await?;
        let two = lan.attach("vm2", "10.200.0.12").await?;
        let client = lan.attach("client", "10.200.0.50").await?;
        let first = Responder::start(&one, "one", BACKEND).await?;
        let _second = Responder::start(&two, "two", BACKEND).await?;
        // What a node runs itself on the same port, such as its dashboard.
        let _node = Responder::start(&host, "node", LISTENER).await?;

        let cluster = Cluster::start().await?;
        create_node(&cluster.client, "node-1", &[], "10.200.0.1").await?;
        let _proxy = KubeProxy::start(&cluster.bed, &host, "node-1").await?;
        let announcing = Announcing { lan: Some(lan.clone()), ..Announcing::default() };
        let _announcer = Announcer::start(cluster.client.clone(), announcing);
        let range = json!({"subnet": "10.200.0.0/24", "rangeStart": "10.200.0.100"});
        cluster.pool("pool", range).await?;
        let _operator = cluster.operator().await?;
        let listeners = json!([
            {"name": "tcp", "port": LISTENER, "protocol": "TCP", "backendPort": BACKEND},
            {"name": "udp", "port": LISTENER, "protocol": "UDP", "backendPort": BACKEND},
        ]);
        let selector = json!({"app": ["web"]});
        cluster
            .lb_with("web", json!({"listeners": listeners, "backendServerSelector": selector}))
            .await?;
        let at = SocketAddr::new(cluster.address("web").await?.parse()?, LISTENER);

        // The address is the node's, and no VM runs: the node must not answer for them. It does
        // from when the announcer binds the address to when kube-proxy has read the Service.
        eventually(LATER, "end of the node's answers", async || {
            let status = cluster.lbs().get("web").await?.status.unwrap_or_default();
            let answers = ask(&client, Protocol::Tcp, at, 3).await?;
            anyhow::Ok(status.address.is_some() && !answers.contains_key(&from("node")))
        })
        .await?;
        heard(&client, Protocol::Tcp, at, &[]).await?;

        let mut guest_one = Guest::run(&cluster.client, vm("vm1", "10.200.0.11"), "node-1").await?;
        let mut guest_two = Guest::run(&cluster.client, vm("vm2", "10.200.0.12"), "node-1").await?;
        heard(&client, Protocol::Tcp, at, &["one", "two"]).await?;
        heard(&client, Protocol::Udp, at, &["one", "two"]).await?;

        // One of two is drained, and nobody notices.
        let end = Arc::new(AtomicBool::new(false));
        let asking = tokio::spawn(ask_on(client.clone(), at, end.clone()));
        guest_two.terminate().await?;
        heard(&client, Protocol::Tcp, at, &["one"]).await?;
        guest_two.vanish().await?;
        cluster.waits_for_endpoints("web", (1, 1)).await?;
        heard(&client, Protocol::Tcp, at, &["one"]).await?;
        end.store(true, Ordering::Relaxed);
        let asked = asking.await?.context("while one of two was drained")?;
        println!("{asked} connections while one of two was drained, none failed");

        guest_one.pause(true).await?;
        heard(&client, Protocol::Tcp, at, &[]).await?;
        guest_one.pause(false).await?;
        heard(&client, Protocol::Tcp, at, &["one"]).await?;

        // What answers no probe gets no traffic, though KubeVirt calls it ready.
        let _again = Guest::run(&cluster.client, vm("vm2", "10.200.0.12"), "node-1").await?;
        heard(&client, Protocol::Tcp, at, &["one", "two"]).await?;
        let check = json!({"port": BACKEND, "protocol": "http", "periodSeconds": 1,
            "failureThreshold": 2, "timeoutSeconds": 1});
        cluster.patch_lb("web", json!({"spec": {"healthCheck": check}})).await?;
        first.healthy(false);
        heard(&client, Protocol::Tcp, at, &["two"]).await?;
        first.healthy(true);
        heard(&client, Protocol::Tcp, at, &["one", "two"]).await?;

        cluster.deleted("web").await?;
        cluster.consistent().await
    })
}
