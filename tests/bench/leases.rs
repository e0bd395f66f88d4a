//! 500 leases on one network, by one agent from a real DHCP server, beside a bare client that
//! writes as many records; and LoadBalancers one by one, through operator, agent and server.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use harvester_guest_operator::api::DHCPLease;
use kube::ResourceExt as _;
use kube::api::{
    DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use serde_json::{Value, json};
use testbed::net::dhcp::{Kind, Scope};
use testbed::{LeaseAgent, Managed, eventually};

use crate::fixture::{NETWORK, Site, identity, on_site, record};
use crate::quantiles;
use crate::support::address;

const LEASES: usize = 500;
const AT_ONCE: usize = 48;
const SINGLES: usize = 200;
const PATIENCE: Duration = Duration::from_mins(5);
/// Time for which an idle agent is measured.
const IDLE: Duration = Duration::from_mins(1);
/// Shortest lease of dnsmasq, in seconds; it is renewed after half of it.
const SHORT: u32 = 120;

/// Times, memory and CPU of leases.
pub(crate) struct Leases {
    /// Time from the creation of the first record to the last address.
    pub(crate) acquired: Duration,
    /// Time of a bare client that creates as many records and writes a status into each.
    pub(crate) floor: Duration,
    /// The agent's private memory, and all of its resident memory.
    pub(crate) own_mib: f64,
    pub(crate) rss_mib: f64,
    pub(crate) idle_cpu_percent: f64,
    /// Times from the creation of a LoadBalancer to its address.
    pub(crate) singles: Vec<Duration>,
    /// Renewals in each second of two periods in which all leases were renewed.
    pub(crate) renewals: Vec<f64>,
}

pub(crate) fn measure() -> Result<Leases> {
    let (sender, received) = mpsc::channel();
    let scope = || Scope::new([10, 77, 0, 1]).prefix(22).range(10, 1000);
    on_site(Kind::Kea, scope(), async move |mut site: Site| {
        site.program = shipped()?;
        let floor = floor(&site).await?;
        let mut agent = site.agent().await?;
        let acquired = acquire(&site).await?;
        println!("an idle agent, {} s", IDLE.as_secs());
        let idle_cpu_percent = idle(&agent.process).await?;
        let (own_mib, rss_mib) = memory(&agent.process)?;
        println!("{SINGLES} load balancers one by one");
        let singles = singles(&site).await?;
        agent.stop().await?;
        let renewals = Vec::new();
        sender.send(Leases {
            acquired,
            floor,
            own_mib,
            rss_mib,
            idle_cpu_percent,
            singles,
            renewals,
        })?;
        Ok(())
    })?;
    let mut measured = received.recv()?;
    let (sender, received) = mpsc::channel();
    on_site(Kind::Kea, scope().seconds(SHORT), async move |mut site: Site| {
        site.program = shipped()?;
        let mut agent = site.agent().await?;
        acquire(&site).await?;
        println!("renewals of leases of {SHORT} s");
        sender.send(renewals(&agent).await?)?;
        agent.stop().await
    })?;
    measured.renewals = received.recv()?;
    Ok(measured)
}

/// Path of the agent as it is shipped, built smaller than by cargo's profile for benchmarks.
pub(crate) fn shipped() -> Result<PathBuf> {
    let release = Path::new(env!("CARGO_BIN_EXE_lease-agent")).parent();
    let target = release.and_then(Path::parent).context("no folder of builds")?;
    let agent = target.join("agent/lease-agent");
    ensure!(agent.exists(), "{} is missing: `make bench` builds it", agent.display());
    Ok(agent)
}

/// Makes the first writes of each record's life, for a network without an agent.
async fn floor(site: &Site) -> Result<Duration> {
    let records = site.records();
    let began = Instant::now();
    futures::stream::iter(0..LEASES)
        .map(anyhow::Ok)
        .try_for_each_concurrent(AT_ONCE, async |n| {
            let name = format!("floor-{n}");
            let mut record = record(&name, &identity(&name))?;
            record.spec.network = format!("{NETWORK}-not");
            record.metadata.finalizers = None;
            records.create(&PostParams::default(), &record).await?;
            let address = format!("10.99.{}.{}", n / 250, n % 250 + 1);
            let status = json!({"status": {"state": "Bound", "address": address, "prefixLength": 22,
                "gateway": "10.77.0.254", "server": "10.77.0.1", "serverMAC": "02:00:00:00:00:01",
                "leaseSeconds": 3600, "expiresAt": "2026-01-01T00:00:00Z", "agent": "floor"}});
            let status = Patch::Merge(status);
            records.patch_status(&name, &PatchParams::default(), &status).await?;
            Ok(())
        })
        .await?;
    let took = began.elapsed();
    records.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    gone(site).await?;
    Ok(took)
}

async fn gone(site: &Site) -> Result<()> {
    eventually(PATIENCE, "end of all records", async || {
        site.records().list(&ListParams::default()).await.map(|list| list.items.is_empty())
    })
    .await
}

/// Creates the records, and waits until each has an address of its own. It waits by a watch, so
/// that no list burdens the API server.
async fn acquire(site: &Site) -> Result<Duration> {
    println!("{LEASES} leases at once");
    let records = site.records();
    let version = records.list(&ListParams::default()).await?.metadata.resource_version;
    let version = version.unwrap_or_default();
    let mut events = records.watch(&WatchParams::default(), &version).await?.boxed();
    let began = Instant::now();
    let create = async {
        futures::stream::iter(0..LEASES)
            .map(|n| site.lease_at(n))
            .buffer_unordered(AT_ONCE)
            .try_collect::<Vec<_>>()
            .await
    };
    let hear = async {
        let mut addresses = BTreeSet::new();
        while addresses.len() < LEASES {
            let event = events.try_next().await?.context("the watch ended")?;
            if let WatchEvent::Added(lease) | WatchEvent::Modified(lease) = event {
                addresses.extend(leased(&lease));
            }
        }
        anyhow::Ok(began.elapsed())
    };
    let (_, took) = tokio::try_join!(create, hear)?;
    let list = records.list(&ListParams::default()).await?;
    let addresses: BTreeSet<String> = list.iter().filter_map(leased).collect();
    ensure!(addresses.len() == LEASES, "{} addresses for {LEASES} leases", addresses.len());
    Ok(took)
}

fn leased(lease: &DHCPLease) -> Option<String> {
    lease.status.as_ref()?.address.clone()
}

async fn idle(process: &Managed) -> Result<f64> {
    // Work after an address: Events, and sockets that listen for a while.
    tokio::time::sleep(Duration::from_secs(30)).await;
    let cpu = || process.cpu_time().context("no CPU time");
    let (before, began) = (cpu()?, Instant::now());
    tokio::time::sleep(IDLE).await;
    Ok(cpu()?.saturating_sub(before).as_secs_f64() / began.elapsed().as_secs_f64() * 100.0)
}

/// `RssAnon` and `VmRSS`, in MiB.
fn memory(process: &Managed) -> Result<(f64, f64)> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid()))?;
    let kib = |name: &str| -> Result<f64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).context("no figure")?;
        Ok(line.split_whitespace().next().context("no figure")?.parse()?)
    };
    Ok((kib("RssAnon:")? / 1024.0, kib("VmRSS:")? / 1024.0))
}

/// Times of LoadBalancers, each created when the previous one has its address.
async fn singles(site: &Site) -> Result<Vec<Duration>> {
    let _operator = site.operator(600).await?;
    let lbs = site.cluster.lbs();
    let version = lbs.list(&ListParams::default()).await?.metadata.resource_version;
    let version = version.unwrap_or_default();
    let mut events = lbs.watch(&WatchParams::default(), &version).await?.boxed();
    let mut times = Vec::new();
    for n in 0..SINGLES {
        let name = format!("single-{n}");
        let began = Instant::now();
        site.ask(&name).await?;
        loop {
            match events.try_next().await?.context("the watch ended")? {
                WatchEvent::Modified(lb) if lb.name_any() == name && address(&lb).is_some() => {
                    break;
                }
                _ => {}
            }
        }
        times.push(began.elapsed());
    }
    Ok(times)
}

/// Renewals in each second, by the agent's own counter, for a little more than a lease's time: from
/// the first second in which one is due.
async fn renewals(agent: &LeaseAgent) -> Result<Vec<f64>> {
    let count = async || agent.metric("hgo_dhcp_renew_seconds_count").await;
    let mut clock = tokio::time::interval(Duration::from_secs(1));
    let (mut each, mut last) = (Vec::new(), count().await?);
    let wanted = 2.0 * LEASES as f64;
    while each.iter().sum::<f64>() < wanted && each.len() < 4 * SHORT as usize {
        clock.tick().await;
        let now = count().await?;
        each.push(now - last);
        last = now;
    }
    Ok(each)
}

/// Prints the measurements, and returns them as JSON.
pub(crate) fn print(measured: &Leases) -> Value {
    let seconds = |time: Duration| time.as_secs_f64();
    let singles = quantiles(&measured.singles);
    let renewals: f64 = measured.renewals.iter().sum();
    let fullest = measured.renewals.iter().copied().fold(0.0, f64::max);
    let fullest_percent = fullest / LEASES as f64 * 100.0;
    println!("\n{LEASES} leases on one network, probes of half a second");
    println!(
        "all have an address       {:>8.2} s, floor {:.2} s",
        seconds(measured.acquired),
        seconds(measured.floor)
    );
    println!(
        "the agent: its own memory {:>8.1} MiB, with its program {:.1} MiB",
        measured.own_mib, measured.rss_mib
    );
    println!("the agent: CPU when idle  {:>8.2} %", measured.idle_cpu_percent);
    println!("one by one, create to address: {singles}");
    println!(
        "renewals: {renewals} in {} s, {fullest} in the fullest second, {fullest_percent:.1} % of all",
        measured.renewals.len()
    );
    json!({
        "acquired_seconds": seconds(measured.acquired),
        "floor_seconds": seconds(measured.floor),
        "own_mib": measured.own_mib,
        "rss_mib": measured.rss_mib,
        "idle_cpu_percent": measured.idle_cpu_percent,
        "create_to_address": singles,
        "renewals": renewals,
        "renewals_seconds": measured.renewals.len(),
        "fullest_second_percent": fullest_percent,
    })
}
