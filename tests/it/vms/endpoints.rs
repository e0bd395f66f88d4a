//! Every way in which a VM stops to answer, or only seems to.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use testbed::kubevirt::{Guest, Nic, Outcome, Phase, Ready, Vm};
use testbed::{Announcer, Announcing, Operator, Stalls, eventually};

use super::watching::Versions;
use super::{SINK, vm};
use crate::support::{Cluster, SOON, beside_bare_writes};

const LATENCY: &str = "hgo_endpoint_latency_seconds";
/// Limit of the time until a stopped VM is out, if the API server answers at once.
const LIMIT: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_vm_is_out_of_the_slice_within_two_seconds() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let operator = cluster.operator().await?;
    cluster.vm_lb("web").await?;
    Guest::run(&cluster.client, vm("web", "steady", "10.52.0.6"), "node-1").await?;
    let guest = Guest::run(&cluster.client, vm("web", "a", "10.52.0.7"), "node-1").await?;
    let versions = Versions::of(&cluster, "web").await?;
    versions.first("endpoint", |version| version.state("a") == "ready").await?;
    let before = latency(&operator).await?;
    let stalls = Stalls::watch()?;
    let stopping = stops(guest, &versions, &stalls);
    let (mut times, most) =
        beside_bare_writes(&cluster, &stalls, LIMIT, Box::pin(stopping)).await?;
    for (what, times) in ["shut down", "failed", "deleted"].iter().zip(&mut times) {
        times.sort();
        println!("{what}: from the first write to the slice, median {:?}", times[times.len() / 2]);
        let slowest = times.iter().max().copied().unwrap_or_default();
        ensure!(slowest <= most, "{what}: {slowest:?}, more than {most:?}");
    }
    let slowest = times.iter().flatten().max().copied().unwrap_or_default();
    println!("30 stops: from the first write to the slice, p99 {slowest:?}");
    println!("{}", in_words(&before, &latency(&operator).await?));
    Ok(())
}

/// Stops the VM 30 times, in each of three ways in turn. Returns the times until it is out, by way.
async fn stops(
    mut guest: Guest,
    versions: &Versions,
    stalls: &Stalls,
) -> Result<[Vec<Duration>; 3]> {
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..30 {
        let uid = guest.uid().to_owned();
        versions
            .first("endpoint of the run", |version| {
                version.endpoints.get("a").is_some_and(|e| e.uid == uid && e.state == "ready")
            })
            .await?;
        versions.clear();
        let began = Instant::now();
        let kind = round % 3;
        match kind {
            // From inside; by its end; by a deletion.
            0 => guest.shut_down().await?,
            1 => guest.change(|vm| vm.phase = Phase::Failed).await?,
            _ => guest.terminate().await?,
        }
        let over = |state: &str| if kind == 2 { state != "ready" } else { state.is_empty() };
        let seen = versions.first("end of the endpoint", |v| over(v.state("a"))).await?;
        // Stalls of the machine are not the operator's.
        let still = stalls.between(began, seen.at);
        times[kind].push(seen.at.duration_since(began).saturating_sub(still));
        for version in versions.all() {
            ensure!(version.state("steady") == "ready", "the other one: {version:?}");
        }
        guest.restart("node-1").await?;
    }
    Ok(times)
}

const BOUNDS: [&str; 11] =
    ["0.0025", "0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1", "2", "5"];

/// The operator's own measurement, from the watch event to the write: count and sum, and the count
/// within each bound.
async fn latency(operator: &Operator) -> Result<Vec<f64>> {
    let mut measured = vec![
        operator.metric(&format!("{LATENCY}_count"), &[]).await?,
        operator.metric(&format!("{LATENCY}_sum"), &[]).await?,
    ];
    for le in BOUNDS {
        let part = format!("le=\"{le}\"");
        measured.push(operator.metric(&format!("{LATENCY}_bucket"), &[&part]).await?);
    }
    Ok(measured)
}

fn in_words(before: &[f64], after: &[f64]) -> String {
    let measured: Vec<f64> =
        after.iter().zip(before).map(|(after, before)| after - before).collect();
    let (count, mean) = (measured[0], measured[1] / measured[0] * 1_000.0);
    let within = |share: f64| {
        let at = measured[2..].iter().position(|within| *within >= share * count);
        at.map_or("more", |at| BOUNDS[at])
    };
    let (most, nearly_all) = (within(0.9), within(0.99));
    format!(
        "from event to slice, {count} changes: mean {mean:.1} ms, p90 within {most} s, p99 within {nearly_all} s"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_says_what_its_vm_and_pod_say() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let _operator = cluster.operator().await?;
    let _announcer = Announcer::start(cluster.client.clone(), Announcing::default());
    cluster.vm_lb("web").await?;
    let steady = ("steady", "10.52.0.6", "ready");
    Guest::run(&cluster.client, vm("web", "steady", "10.52.0.6"), "node-1").await?;
    let mut guest = Guest::create(&cluster.client, vm("web", "a", "10.52.0.7")).await?;
    guest.schedule("node-1").await?;
    cluster.endpoints_are("web", &[steady]).await?;
    guest.boot().await?;
    let is = async |state: &str| {
        cluster.endpoints_are("web", &[("a", "10.52.0.7", state), steady]).await
    };
    is("ready").await?;
    guest.pause(true).await?;
    is("not ready").await?;
    guest.pause(false).await?;
    is("ready").await?;
    guest.ready(Ready::no("ReadinessProbeFailed")).await?;
    is("not ready").await?;
    cluster.waits_for_endpoints("web", (2, 1)).await?;
    guest.ready(Ready::yes()).await?;
    is("ready").await?;
    // The node is lost, and the VM's state is unknown.
    guest.change(|vm| vm.phase = Phase::Unknown).await?;
    is("not ready").await?;
    guest.change(|vm| vm.phase = Phase::Running).await?;
    is("ready").await?;

    guest.terminate().await?;
    is("serving, terminating").await?;
    cluster.waits_for_endpoints("web", (1, 1)).await?;
    let status = cluster.lbs().get("web").await?.status.unwrap_or_default();
    assert_eq!(status.backend_servers, Some(vec!["10.52.0.6".to_owned()]));
    guest.vanish().await?;
    cluster.endpoints_are("web", &[steady]).await?;
    let before = guest.uid().to_owned();
    let again = vm("web", "a", "10.52.0.9");
    let mut guest = Guest::run(&cluster.client, again, "node-2").await?;
    cluster.endpoints_are("web", &[("a", "10.52.0.9", "ready"), steady]).await?;
    let uid = cluster.endpoints("web").await?["a"].uid.clone();
    assert!(uid == guest.uid() && uid != before);
    guest.restart("node-1").await?;
    // Without this wait, the endpoint may be the previous run's.
    let uid = guest.uid().to_owned();
    eventually(SOON, "endpoint of the new run", async || {
        let found = cluster.endpoints("web").await.map_err(|e| format!("{e:#}"))?;
        let is = found.get("a").map(|seen| seen.uid.clone());
        if is.as_ref() == Some(&uid) { Ok(true) } else { Err(format!("{is:?}")) }
    })
    .await?;
    cluster.endpoints_are("web", &[("a", "10.52.0.9", "ready"), steady]).await?;

    // It belongs to another LoadBalancer now, and comes back.
    guest.change(|vm| drop(vm.labels.insert("app".to_owned(), "other".to_owned()))).await?;
    cluster.endpoints_are("web", &[steady]).await?;
    guest.change(|vm| drop(vm.labels.insert("app".to_owned(), "web".to_owned()))).await?;
    cluster.endpoints_are("web", &[("a", "10.52.0.9", "ready"), steady]).await?;
    silent_agent(&cluster).await
}

/// The address of a VM on a VLAN is not known without the guest agent.
async fn silent_agent(cluster: &Cluster) -> Result<()> {
    cluster.vm_lb("lan").await?;
    let vm = Vm::new("default", "b").label("app", "lan");
    let vm = vm.nic(Nic::attached("lan", "default/vlan1", &["192.168.1.5"]));
    let mut guest = Guest::create(&cluster.client, vm).await?;
    guest.schedule("node-1").await?;
    guest.boot().await?;
    let said = cluster.waits("lan", "NoBackendAddress").await?;
    assert!(said.starts_with("running backend servers have no IP"), "{said}");
    guest.agent(true).await?;
    cluster.serves("lan", "Announced").await?;
    guest.agent(false).await?;
    let said = cluster.serves("lan", "LastKnownAddress").await?;
    assert!(said.ends_with(": b"), "{said}");
    cluster.endpoints_are("lan", &[("b", "192.168.1.5", "ready")]).await?;
    // The agent comes back with another address.
    guest
        .change(|vm| {
            vm.agent = true;
            vm.nics[0].addresses = vec!["192.168.1.6".to_owned()];
        })
        .await?;
    cluster.endpoints_are("lan", &[("b", "192.168.1.6", "ready")]).await?;
    cluster.serves("lan", "Announced").await?;
    // An address is not remembered longer than the pod is ready.
    guest.agent(false).await?;
    cluster.serves("lan", "LastKnownAddress").await?;
    guest.ready(Ready::no("ContainersNotReady")).await?;
    cluster.waits("lan", "NoBackendAddress").await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migrating_vm_keeps_its_one_endpoint() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let _operator = cluster.operator().await?;
    cluster.vm_lb("web").await?;
    let mut guest = Guest::run(&cluster.client, vm("web", "a", "10.52.0.7"), "node-0").await?;
    let versions = Versions::of(&cluster, "web").await?;
    versions.first("endpoint", |version| version.state("a") == "ready").await?;
    let mut here = "node-0".to_owned();
    for (round, outcome) in
        [Outcome::Failed, Outcome::Succeeded, Outcome::Aborted, Outcome::Succeeded]
            .into_iter()
            .enumerate()
    {
        versions.clear();
        let target = format!("node-{}", round + 1);
        guest.begin_migration(&target).await?;
        guest.end_migration(outcome).await?;
        if outcome == Outcome::Succeeded {
            here = target;
        }
        // After another VM's endpoint, all earlier changes have been observed.
        let marker = format!("marker-{round}");
        let other = vm("web", &marker, &format!("10.52.1.{round}"));
        Guest::run(&cluster.client, other, "node-0").await?;
        let last = versions.first("marker", |v| v.state(&marker) == "ready").await?;
        let at = &last.endpoints.get("a").context("no endpoint")?.node;
        assert_eq!(at, &here, "{outcome:?}");
        for version in versions.all() {
            let sink = version.endpoints.contains_key(SINK);
            let served = version.state("a") == "ready" && !sink;
            ensure!(served && !version.gone, "{outcome:?}: {version:?}");
        }
    }
    // The remaining VM is unchanged.
    assert_eq!(cluster.endpoints("web").await?["a"].uid, guest.uid());
    Ok(())
}
