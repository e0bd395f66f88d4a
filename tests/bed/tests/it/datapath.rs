//! Packets follow Services, through namespaces of the test's own.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use testbed::kubevirt::create_node;
use testbed::net::{Answer, Answers, Lan, Netns, Protocol, Responder, ask, isolated};
use testbed::{Announcer, Announcing, Bed, KubeProxy, Options, ProxyMode, eventually};

const SOON: Duration = Duration::from_mins(2);
/// Longer deadline: kube-proxy's first rules can take half a minute.
const LATER: Duration = Duration::from_mins(4);
const VIP: &str = "10.200.0.100";
const PORT: u16 = 8080;
const BACKEND_PORT: u16 = 9000;

fn link(path: impl AsRef<Path>) -> Option<String> {
    Some(fs::read_link(path).ok()?.to_string_lossy().into_owned())
}

fn own_namespace() -> String {
    link("/proc/thread-self/ns/net").unwrap()
}

/// Whether any process is in the namespace, or this process could still enter it.
fn is_held(namespace: &str) -> bool {
    let all = |dir: &str| fs::read_dir(dir).unwrap().filter_map(Result::ok).map(|e| e.path());
    let processes = all("/proc").map(|process| process.join("ns/net"));
    let threads = all("/proc/self/task").map(|thread| thread.join("ns/net"));
    let mut held = processes.chain(threads).chain(all("/proc/self/fd"));
    held.any(|path| link(path).as_deref() == Some(namespace))
}

/// Waits for the end of a namespace. Threads that worked inside may take a moment to end.
fn goes(namespace: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let gone = eventually(SOON, "end of a namespace", async || !is_held(namespace));
    runtime.block_on(gone).unwrap();
}

fn names(answers: &Answers) -> BTreeSet<Answer> {
    answers.keys().cloned().collect()
}

fn only(names: &[&str]) -> BTreeSet<Answer> {
    names.iter().map(|&name| Answer::From(name.to_owned())).collect()
}

#[test]
fn a_namespace_is_of_its_own_and_goes_with_its_owner() {
    let outside = own_namespace();
    let inside = isolated(async |host: Netns| {
        let here = own_namespace();
        assert_eq!(host.run(|| Ok(own_namespace())).await?, here);
        assert_eq!(tokio::task::spawn_blocking(own_namespace).await?, here);
        assert_eq!(tokio::spawn(async { own_namespace() }).await?, here);
        let links = host.ip("-brief link").await?;
        assert!(links.starts_with("lo ") && links.lines().count() == 1, "{links}");
        assert!(host.ip("link set nonsense up").await.is_err());
        assert!(host.run(|| -> Result<()> { panic!("on purpose") }).await.is_err());
        Ok(here)
    })
    .unwrap();
    assert_ne!(inside, outside);
    assert_eq!(own_namespace(), outside);
    goes(&inside);
}

#[test]
fn a_test_that_panics_leaves_no_namespace() {
    let (sender, sent) = mpsc::channel();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        isolated(async move |host: Netns| {
            let lan = Lan::new(&host, "br0", "10.200.0.1/24").await?;
            let machine = lan.attach("machine", "10.200.0.11").await?;
            let _responder = Responder::start(&machine, "machine", 80).await?;
            sender.send((own_namespace(), machine.run(|| Ok(own_namespace())).await?))?;
            panic!("on purpose");
            #[allow(unreachable_code)]
            Ok(())
        })
    }));
    assert!(panicked.is_err());
    let (host, machine) = sent.recv().unwrap();
    goes(&host);
    goes(&machine);
}

#[test]
fn machines_on_a_lan_answer_each_other() {
    isolated(async |host: Netns| {
        let lan = Lan::new(&host, "br0", "10.200.0.1/24").await?;
        let one = lan.attach("one", "10.200.0.11").await?;
        let two = lan.attach("two", "10.200.0.12").await?;
        let responder = Responder::start(&one, "one", 80).await?;
        let there: SocketAddr = "10.200.0.11:80".parse()?;
        for protocol in [Protocol::Tcp, Protocol::Http, Protocol::Udp] {
            let answers = ask(&two, protocol, there, 2).await?;
            assert_eq!(
                answers,
                Answers::from([(Answer::From("one".to_owned()), 2)]),
                "{protocol:?}"
            );
        }
        assert!(responder.peers().iter().all(|peer| peer.to_string() == "10.200.0.12"));
        responder.healthy(false);
        let sick = ask(&host, Protocol::Http, there, 1).await?;
        assert!(format!("{sick:?}").contains("503"), "{sick:?}");
        drop(responder);
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            eventually(SOON, "refusal", async || {
                let answers = ask(&two, protocol, there, 1).await?;
                anyhow::Ok(answers.contains_key(&Answer::Refused))
            })
            .await?;
        }
        let nowhere = ask(&two, Protocol::Udp, "10.200.0.99:80".parse()?, 1).await?;
        assert!(!nowhere.contains_key(&Answer::Refused), "{nowhere:?}");
        Ok(())
    })
    .unwrap();
}

/// Writes a slice with these endpoints, each with whether it is ready.
async fn slice(client: &Client, endpoints: &[(&str, bool)]) -> Result<()> {
    let endpoints: Vec<_> = endpoints
        .iter()
        .map(|(address, ready)| {
            json!({"addresses": [address], "conditions": {"ready": ready, "serving": ready}})
        })
        .collect();
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "web", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "web", "port": BACKEND_PORT, "protocol": "TCP"}],
    });
    Api::<EndpointSlice>::default_namespaced(client.clone())
        .patch("web", &PatchParams::apply("test").force(), &Patch::Apply(slice))
        .await?;
    Ok(())
}

async fn service(client: &Client) -> Result<()> {
    let service = json!({
        "metadata": {"name": "web", "annotations": {"kube-vip.io/loadbalancerIPs": VIP}},
        "spec": {"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false, "ports": [
            {"name": "web", "port": PORT, "targetPort": BACKEND_PORT, "protocol": "TCP"},
        ]},
    });
    Api::<Service>::default_namespaced(client.clone())
        .create(&PostParams::default(), &serde_json::from_value(service)?)
        .await?;
    Ok(())
}

#[test]
fn a_client_reaches_ready_backends_through_the_address_and_nothing_else() {
    isolated(async |host: Netns| {
        let lan = Arc::new(Lan::new(&host, "br0", "10.200.0.1/24").await?);
        let vm1 = lan.attach("vm1", "10.200.0.11").await?;
        let vm2 = lan.attach("vm2", "10.200.0.12").await?;
        let client = lan.attach("client", "10.200.0.50").await?;
        let _one = Responder::start(&vm1, "one", BACKEND_PORT).await?;
        let _two = Responder::start(&vm2, "two", BACKEND_PORT).await?;
        let _host = Responder::start(&host, "host", PORT).await?;

        let bed = Bed::start(Options::default()).await?;
        let admin = bed.admin();
        create_node(&admin, "node-1", &[], "10.200.0.1").await?;
        let proxy = KubeProxy::start(&bed, &host, "node-1", ProxyMode::Nftables).await?;
        let how = Announcing { lan: Some(lan), ..Announcing::default() };
        let _announcer = Announcer::start(admin.clone(), how);
        slice(&admin, &[("10.200.0.11", true), ("10.200.0.12", true)]).await?;
        service(&admin).await?;

        let vip = SocketAddr::new(VIP.parse()?, PORT);
        let reaches = async |what: &str, deadline, wanted: BTreeSet<Answer>| {
            eventually(deadline, what, async || {
                let seen = ask(&client, Protocol::Tcp, vip, 20).await.map_err(|e| e.to_string())?;
                if names(&seen) == wanted { Ok(true) } else { Err(format!("{seen:?}")) }
            })
            .await
        };
        reaches("both backends", LATER, only(&["one", "two"])).await?;
        slice(&admin, &[("10.200.0.11", false), ("10.200.0.12", true)]).await?;
        reaches("second backend alone", SOON, only(&["two"])).await?;
        // The host listens on that port on all its addresses, and the address is one of them.
        slice(&admin, &[("10.200.0.11", false), ("10.200.0.12", false)]).await?;
        reaches("refusal", SOON, BTreeSet::from([Answer::Refused])).await?;
        // The same with iptables: kube-proxy refuses after kube-vip's filter has admitted. As on a
        // node, the address is bound when kube-proxy has its rules already: kube-vip puts its own
        // before them.
        let is_bound = async || anyhow::Ok(host.ip("address show dev br0").await?.contains(VIP));
        slice(&admin, &[]).await?;
        eventually(SOON, "end of the address", async || is_bound().await.map(|is| !is)).await?;
        proxy.stop().await?;
        let _proxy = KubeProxy::start(&bed, &host, "node-1", ProxyMode::Iptables).await?;
        slice(&admin, &[("10.200.0.11", true)]).await?;
        reaches("first backend alone", SOON, only(&["one"])).await?;
        slice(&admin, &[("10.200.0.11", false), ("10.200.0.12", false)]).await?;
        reaches("the host itself", SOON, only(&["host"])).await?;
        slice(&admin, &[("10.200.0.11", true), ("10.200.0.12", false)]).await?;
        reaches("first backend alone", SOON, only(&["one"])).await?;

        assert!(is_bound().await?);
        slice(&admin, &[]).await?;
        eventually(SOON, "end of the address", async || is_bound().await.map(|is| !is)).await?;
        slice(&admin, &[("10.200.0.12", true)]).await?;
        reaches("second backend alone", SOON, only(&["two"])).await?;
        let services = Api::<Service>::default_namespaced(admin.clone());
        services.delete("web", &DeleteParams::default()).await?;
        eventually(SOON, "end of the address", async || is_bound().await.map(|is| !is)).await?;
        bed.stop().await
    })
    .unwrap();
}
