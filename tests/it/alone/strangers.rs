//! Unknown callers: their traffic costs little, and delays no other caller.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::api::LoadBalancer;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use testbed::{Operator, Stalls, http_get};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::client::TlsStream;

use super::waits::NeighbourWaits;
use crate::admission::hostile_requests::{
    CONVERSION, GROUP, MUTATION, VALIDATION, conversion, hostile, repeated, review,
};
use crate::admission::wire::{greet, post};
use crate::admission::{Probe, itself};
use crate::support::{Cluster, SOON, address as address_of, beside_bare_writes, lb};

/// Limit of the memory that any traffic costs, above the operator's memory at rest.
const MEMORY_KIB: u64 = 100 * 1024;
/// Limit of the peak RSS among strangers that do all they can for a while, in KiB.
const MOST_RSS: u64 = 80 * 1024;
/// Limit of the CPU time for one request in a program that is not optimized. `make bench` holds the
/// optimized one to a second.
const CPU: Duration = Duration::from_secs(6);
/// Duration of the strangers' traffic in seconds, by an environment variable for long runs.
const SECONDS: (&str, u64) = ("STRANGERS_SECONDS", 6);

async fn started(cluster: &Cluster) -> Result<(Operator, SocketAddr, String)> {
    let operator = cluster.standby(itself()).await?;
    operator.leads().await?;
    cluster.registered().await?;
    let address = operator.admission.context("no admission")?;
    Ok((operator, address, cluster.material().await?.bundle()))
}

/// Source address that is not the API server's.
const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 66);

/// Connects from a stranger's address.
async fn dial(address: SocketAddr) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((STRANGER, 0).into())?;
    Ok(socket.connect(address).await?)
}

async fn stranger(address: SocketAddr, bundle: &str) -> Result<TlsStream<TcpStream>> {
    greet(dial(address).await?, bundle, None).await
}

fn load_balancer(version: &str, name: &str) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/{version}"), "kind": "LoadBalancer",
        "metadata": {"name": name, "namespace": "default", "labels": {"a": "b"}},
        "spec": {
            "workloadType": "vm", "ipam": "pool", "description": "one of many",
            "listeners": [{"name": "a", "port": 80, "protocol": "TCP", "backendPort": 8080}],
            "backendServerSelector": {"harvesterhci.io/vmName": ["vm-1", "vm-2"], "app": ["web"]},
        },
        "status": {"address": "10.0.0.1", "conditions": [
            {"type": "Ready", "status": "True", "reason": "Allocated", "message": "it is there"},
        ]},
    })
}

/// Sends one request on a connection of its own.
async fn ask(address: SocketAddr, bundle: &str, path: &str, body: &str) -> Result<(u16, String)> {
    let mut stream = stranger(address, bundle).await?;
    let (code, _, said) = timeout(SOON, post(&mut stream, path, body.as_bytes())).await??;
    Ok((code, said))
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_costs_much_memory_or_time() -> Result<()> {
    let cluster = Cluster::start().await?;
    let (operator, address, bundle) = started(&cluster).await?;
    let rest = operator.process.peak_rss_kib().context("no RSS")?;
    let used = || operator.process.cpu_time().context("no CPU time");

    // A list of ten thousand, which no API server sends in one review, and an object of the largest
    // size.
    let many = repeated(10_000, |n| load_balancer("v1beta1", &format!("lb-{n}")).to_string());
    let mut large = load_balancer("v1beta1", "large");
    large["metadata"]["annotations"] = json!({"a": "x".repeat((3 << 20) - 2_000)});
    for (what, objects, count) in
        [("ten thousand", many, 10_000), ("the largest", large.to_string(), 1)]
    {
        let before = used()?;
        let (code, said) =
            ask(address, &bundle, CONVERSION, &conversion(&format!("[{objects}]"))).await?;
        let took = used()?.saturating_sub(before);
        ensure!(code == 200, "{what}: {code} {said:.300}");
        let answer: Value = serde_json::from_str(&said)?;
        let converted = answer["response"]["convertedObjects"].as_array().map_or(0, Vec::len);
        ensure!(converted == count, "{what}: {converted} {}", answer["response"]["result"]);
        let peak = operator.process.peak_rss_kib().context("no RSS")?;
        println!("{what}: {took:?} of CPU, peak RSS {rest} -> {peak} KiB");
    }
    for (what, path, body, expected) in hostile() {
        let before = used()?;
        let (code, said) = ask(address, &bundle, path, &body).await.context(what)?;
        let took = used()?.saturating_sub(before);
        let peak = operator.process.peak_rss_kib().context("no RSS")?;
        let size = body.len() >> 10;
        println!(
            "{what}, {size} KiB: {code}, {took:?} of CPU, peak RSS {rest} -> {peak} KiB; {said:.150}"
        );
        assert_eq!(code, expected, "{what}: {said:.300}");
        assert!(took < CPU, "{what}: {took:?} of CPU");
        assert!(peak < rest + MEMORY_KIB, "{what}: {rest} -> {peak} KiB");
    }
    // A body with too large a Content-Length is refused before it arrives; a body without a length,
    // as soon as it is not small.
    for (head, code) in
        [("Content-Length: 9000000000", "413"), ("Transfer-Encoding: chunked", "411")]
    {
        for path in [MUTATION, CONVERSION] {
            let mut stream = stranger(address, &bundle).await?;
            let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n");
            stream.write_all(head.as_bytes()).await?;
            if head.contains("chunked") {
                // One chunk without an end: the operator does not wait for more.
                let chunk = format!("{:x}\r\n{}\r\n", 1 << 16, "x".repeat(1 << 16));
                stream.write_all(chunk.as_bytes()).await?;
                stream.flush().await?;
            }
            let mut said = vec![0; 12];
            timeout(SOON, stream.read_exact(&mut said)).await??;
            assert_eq!(said, format!("HTTP/1.1 {code}").as_bytes(), "{head}");
        }
    }
    let peak = operator.process.peak_rss_kib().context("no RSS")?;
    ensure!(peak < rest + MEMORY_KIB, "{rest} -> {peak} KiB");
    Probe::new(&cluster.client)?.once().await?;
    Ok(())
}

/// Silent connections, more than the limit, and large bodies that do not arrive.
#[tokio::test(flavor = "multi_thread")]
async fn a_small_request_does_not_wait_for_strangers() -> Result<()> {
    let cluster = Cluster::start().await?;
    let (_operator, address, bundle) = started(&cluster).await?;
    let stalls = Stalls::watch()?;
    let mut silent = Vec::new();
    for _ in 0..1_150 {
        silent.push(dial(address).await?);
    }
    let mut slow = Vec::new();
    for (path, size) in [(CONVERSION, 8 << 20), (CONVERSION, 8 << 20), (VALIDATION, 8 << 20)] {
        let mut stream = stranger(address, &bundle).await?;
        let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n");
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(&vec![b' '; 1 << 20]).await?;
        slow.push(stream);
    }
    // All at once, so that the API server must open new connections.
    let spec = json!({"workloadType": "cluster", "ipam": "pool"});
    let created = async {
        let mut creating = JoinSet::new();
        for n in 0..20 {
            let (lbs, lb) = (cluster.lbs(), lb(&format!("web-{n}"), &spec)?);
            creating.spawn(async move {
                let began = std::time::Instant::now();
                lbs.create(&PostParams::default(), &lb).await.map(|_| (began, began.elapsed()))
            });
        }
        let mut slowest = Duration::ZERO;
        while let Some(created) = creating.join_next().await {
            let (began, took) = created??;
            let stood_still = stalls.between(began, began + took);
            slowest = slowest.max(took.saturating_sub(stood_still));
        }
        Ok(slowest)
    };
    // It took 6.1 s once.
    let limit = Duration::from_secs(1);
    let (slowest, most) = beside_bare_writes(&cluster, &stalls, limit, created).await?;
    println!("slowest of 20 creations: {slowest:?}");
    ensure!(slowest < most, "{slowest:?}, more than {most:?}");
    Ok(())
}

/// Large answers that their callers do not read. The objects have the requested version already, so
/// they cost little CPU time.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_request_does_not_wait_long_for_answers_that_are_not_read() -> Result<()> {
    let cluster = Cluster::start().await?;
    let (operator, address, bundle) = started(&cluster).await?;
    let rest = operator.process.peak_rss_kib().context("no RSS")?;
    let stalls = Stalls::watch()?;
    let text = "x".repeat(2_700_000);
    let object = format!(r#"{{"apiVersion":"{GROUP}/v1alpha1","x":"{text}"}}"#);
    let body: Arc<str> = conversion(&format!("[{object},{object},{object}]")).into();
    let (sender, mut answered) = tokio::sync::mpsc::unbounded_channel();
    let mut unread = JoinSet::new();
    for _ in 0..6 {
        let (body, bundle, sender) = (body.clone(), bundle.clone(), sender.clone());
        unread.spawn(async move {
            let mut stream = stranger(address, &bundle).await?;
            let head = format!("Host: x\r\nContent-Length: {}\r\n\r\n", body.len());
            stream.write_all(format!("POST {CONVERSION} HTTP/1.1\r\n{head}").as_bytes()).await?;
            stream.write_all(body.as_bytes()).await?;
            stream.flush().await?;
            stream.read_u8().await?;
            let _ = sender.send(stream);
            anyhow::Ok(())
        });
    }
    let _first = timeout(SOON, answered.recv()).await?.context("no answer")?;
    let objects = repeated(100, |_| load_balancer("v1beta1", "web").to_string());
    let large = conversion(&format!("[{objects}]"));
    let mut stream = greet(TcpStream::connect(address).await?, &bundle, None).await?;
    let asked = async {
        let began = Instant::now();
        let answer = timeout(SOON, post(&mut stream, CONVERSION, large.as_bytes())).await??;
        Ok((answer, stalls.elapsed(began)))
    };
    let limit = Duration::from_secs(10);
    let (((code, _, said), took), most) =
        beside_bare_writes(&cluster, &stalls, limit, asked).await?;
    let peak = operator.process.peak_rss_kib().context("no RSS")?;
    println!("the answer after {took:?}, peak RSS {rest} -> {peak} KiB");
    ensure!(code == 200, "{code} {said:.300}");
    // Three answers of strangers come before, each for a second. Without a limit each has 5 s.
    ensure!(took < most, "{took:?}, more than {most:?}");
    ensure!(peak < rest + MEMORY_KIB, "{rest} -> {peak} KiB");
    Ok(())
}

/// Checks that each LoadBalancer has an address of its own, and that no endpoint exists that the
/// test did not ask for: the LoadBalancers are of guest clusters and have none.
async fn nothing_gained(cluster: &Cluster) -> Result<()> {
    let mut holders = BTreeMap::new();
    for lb in Api::<LoadBalancer>::all(cluster.client.clone()).list(&ListParams::default()).await? {
        // The address of an object in deletion is free before its finalizer is removed.
        if lb.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let Some(ip) = address_of(&lb) else { continue };
        ensure!(ip.starts_with("10.1.0."), "{} has {ip}", lb.name_any());
        let other = holders.insert(ip.clone(), lb.name_any());
        ensure!(other.is_none(), "{ip}: {other:?} and {}", lb.name_any());
    }
    ensure!(holders.values().any(|name| name == "warm"), "{holders:?}");
    let slices = Api::<EndpointSlice>::all(cluster.client.clone());
    for slice in slices.list(&ListParams::default()).await? {
        ensure!(slice.name_any() == "kubernetes", "endpoints of {}", slice.name_any());
    }
    Ok(())
}

/// Behaviour of a stranger, repeated.
#[derive(Clone, Copy, Debug)]
enum Habit {
    /// Connections without a byte.
    Silence,
    /// Bytes that are neither TLS nor HTTP.
    Noise,
    /// Invalid requests over TLS.
    Garbage,
    /// A head sent byte by byte.
    SlowHead,
    /// A large body that does not arrive.
    SlowBody,
    /// A body over the limit.
    Oversized,
    /// A valid review.
    Review,
    /// A list to convert.
    Conversion,
    /// Scrapes.
    Metrics,
}

const HABITS: [Habit; 9] = [
    Habit::Silence,
    Habit::Noise,
    Habit::Garbage,
    Habit::SlowHead,
    Habit::SlowBody,
    Habit::Oversized,
    Habit::Review,
    Habit::Conversion,
    Habit::Metrics,
];

impl Habit {
    /// Acts once. The operator decides how it ends.
    async fn act(self, ports: [SocketAddr; 2], bundle: &str) -> Result<()> {
        let [admission, metrics] = ports;
        match self {
            Self::Silence => {
                let mut held = Vec::new();
                for _ in 0..100 {
                    held.push(dial(admission).await?);
                    held.push(dial(metrics).await?);
                }
                sleep(Duration::from_millis(200)).await;
            }
            Self::Noise => {
                for port in ports {
                    let mut stream = dial(port).await?;
                    stream.write_all(&[0xa5; 2_000]).await?;
                    let _ = timeout(Duration::from_millis(50), stream.read_u8()).await;
                }
            }
            Self::Garbage => drop(ask(admission, bundle, VALIDATION, "{\"kind\":[").await?),
            Self::SlowHead => {
                let mut streams = [dial(metrics).await?, dial(metrics).await?];
                for byte in b"GET /metrics" {
                    for stream in &mut streams {
                        stream.write_all(&[*byte]).await?;
                    }
                    sleep(Duration::from_millis(50)).await;
                }
            }
            Self::SlowBody => {
                let mut stream = stranger(admission, bundle).await?;
                let head = "Host: x\r\nContent-Length: 8000000\r\n\r\n";
                stream
                    .write_all(format!("POST {CONVERSION} HTTP/1.1\r\n{head}").as_bytes())
                    .await?;
                for _ in 0..20 {
                    stream.write_all(&[b' '; 10_000]).await?;
                    sleep(Duration::from_millis(100)).await;
                }
            }
            Self::Oversized => {
                drop(ask(admission, bundle, CONVERSION, &" ".repeat(9 << 20)).await);
            }
            Self::Review => {
                let pool = r#"{"metadata":{"name":"web"},"spec":{"ranges":[]}}"#;
                drop(ask(admission, bundle, VALIDATION, &review("ippools", pool)).await?);
            }
            Self::Conversion => {
                let objects = repeated(100, |_| load_balancer("v1beta1", "web").to_string());
                let body = conversion(&format!("[{objects}]"));
                drop(ask(admission, bundle, CONVERSION, &body).await?);
            }
            Self::Metrics => {
                drop(http_get(metrics, "/metrics").await?);
            }
        }
        sleep(Duration::from_millis(20)).await;
        Ok(())
    }
}

/// All habits at once, on both ports, while a tenant creates and deletes.
#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_is_served_while_strangers_do_what_they_can() -> Result<()> {
    let seconds = std::env::var(SECONDS.0).map_or(Ok(SECONDS.1), |text| text.parse())?;
    let cluster = Cluster::start().await?;
    let (operator, address, bundle) = started(&cluster).await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    cluster.lb("warm").await?;
    cluster.address("warm").await?;
    let lasting = Duration::from_secs(seconds);
    let quiet = NeighbourWaits::measure(&cluster, "default", Instant::now() + lasting / 2).await?;
    let rest = operator.process.peak_rss_kib().context("no RSS")?;

    let over = Arc::new(AtomicBool::new(false));
    let ports = [address, operator.http];
    let mut strangers = JoinSet::new();
    for habit in HABITS.into_iter().cycle().take(HABITS.len() * 2) {
        let (over, bundle) = (over.clone(), bundle.clone());
        strangers.spawn(async move {
            let mut acted = 0_u32;
            while !over.load(Ordering::Relaxed) {
                // A closed connection of a stranger is expected.
                let _ = habit.act(ports, &bundle).await;
                acted += 1;
            }
            (habit, acted)
        });
    }
    let watching = async {
        while !over.load(Ordering::Relaxed) {
            nothing_gained(&cluster).await?;
            sleep(Duration::from_millis(250)).await;
        }
        anyhow::Ok(())
    };
    let measuring = async {
        let waits = NeighbourWaits::measure_beside(&cluster, "default", lasting, &quiet).await;
        let ready = operator.get("/readyz").await;
        over.store(true, Ordering::Relaxed);
        anyhow::Ok((waits?, ready?))
    };
    let (watched, measured) = tokio::join!(watching, measuring);
    let acted = strangers.join_all().await;
    let (loud, (code, _)) = measured?;
    watched?;
    let peak = operator.process.peak_rss_kib().context("no RSS")?;
    println!("quiet: {quiet}; among strangers: {loud}; peak RSS {rest} -> {peak} KiB; {acted:?}");
    ensure!(code == 200, "not ready: {code}");
    ensure!(peak < MOST_RSS, "{rest} -> {peak} KiB");
    loud.ensure_near(&quiet)?;
    cluster.consistent().await?;
    nothing_gained(&cluster).await
}
