//! `make bench`: the operator beside a floor, on one control plane, in one run.
//!
//! The floor is a bare client that does the minimum of writes: it creates each LoadBalancer, writes
//! it once, and writes the pool once for every 500. The figure to compare is the ratio.
//!
//! `cargo bench --bench bench -- PART...` measures only the parts named: probes, allocator, worst,
//! leases, broadcasts, addresses, singles, endpoints, admission, rotations. `rotations=200`
//! measures fewer of them.
#![allow(clippy::print_stdout, clippy::cast_precision_loss)] // A report is printed, and rounded.

mod admission;
mod allocator;
mod broadcasts;
mod endpoints;
#[path = "../it/dhcp/fixture.rs"]
#[allow(dead_code, unused_imports, reason = "tests use the rest of it")]
mod fixture;
mod floor;
mod guests;
mod hostile;
#[path = "../it/admission/hostile_requests.rs"]
mod hostile_requests;
mod leases;
#[path = "../it/probes/namespace.rs"]
mod namespace;
mod probes;
mod rotations;
#[path = "../it/support/mod.rs"]
#[allow(dead_code, unused_imports, reason = "tests use the rest of it")]
mod support;
mod table;
#[path = "../it/admission/wire.rs"]
mod wire;
mod worst;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};
use testbed::{Bed, Operator, Options, Start, install};

/// LoadBalancers at once, and how often each size is measured.
const SIZES: [(usize, usize); 3] = [(200, 3), (1_000, 3), (5_000, 1)];
/// LoadBalancers one by one.
const SINGLES: usize = 200;
/// LoadBalancers that have left a pool before others come one by one.
const LEFT: [usize; 3] = [0, 1_000, 5_000];

fn main() -> Result<()> {
    // `cargo test --benches` starts this program too. A benchmark takes minutes.
    if std::env::args().any(|arg| arg == "--test") {
        return Ok(());
    }
    // The benchmark of probes starts this program again, once as the prober and once as its
    // targets.
    if let Some(role) = probes::Role::of_this_process() {
        return role.play();
    }
    let named: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let part_of = |name: &str| name.split('=').next().unwrap_or_default().to_owned();
    let wanted = |part: &str| named.is_empty() || named.iter().any(|name| part_of(name) == part);
    let counted = named.iter().find_map(|name| name.strip_prefix("rotations="));
    let rotations = counted.map_or(Ok(rotations::ROTATIONS), str::parse)?;
    // This part runs first, while nothing else runs.
    let mut report = serde_json::Map::new();
    if wanted("probes") {
        let rows = probes::measure()?;
        probes::print(&rows);
        report.insert("probes".to_owned(), json!(rows));
    }
    if wanted("allocator") {
        report.insert("allocator".to_owned(), table::allocator(&allocator::measure()));
    }
    if wanted("worst") {
        report.insert("worst".to_owned(), table::worst(&worst::measure()));
    }
    if wanted("leases") {
        report.insert("leases".to_owned(), leases::print(&leases::measure()?));
    }
    if wanted("broadcasts") {
        report.insert("broadcasts".to_owned(), broadcasts::print(&broadcasts::measure()?));
    }
    let parts = PARTS.into_iter().filter(|part| wanted(part)).collect::<Vec<_>>();
    if !parts.is_empty() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        report.extend(runtime.block_on(on_a_bed(&parts, rotations))?);
    }
    let folder = testbed::repository().join("target");
    // Cargo has not made the folder if it builds elsewhere (`CARGO_TARGET_DIR`).
    std::fs::create_dir_all(&folder)?;
    let path = folder.join("bench.json");
    std::fs::write(&path, serde_json::to_string_pretty(&report)?)?;
    println!("\nwritten to {}", path.display());
    Ok(())
}

/// Parts of the benchmark that run on a control plane.
const PARTS: [&str; 5] = ["addresses", "singles", "endpoints", "admission", "rotations"];

async fn on_a_bed(parts: &[&str], rotations: usize) -> Result<serde_json::Map<String, Value>> {
    println!("starting a control plane (built first if it is not cached: about 5 minutes)");
    let bed = Bed::start(Options::default()).await?;
    install(&bed).await?;
    let binary = Path::new(env!("CARGO_BIN_EXE_harvester-guest-operator"));
    let mut report = serde_json::Map::new();
    for part in parts {
        let value = match *part {
            "addresses" => addresses(&bed, binary).await?,
            "singles" => singles(&bed, binary).await?,
            "endpoints" => table::endpoints(&endpoints::measure(&bed, binary).await?),
            "rotations" => table::rotations(&rotations::measure(&bed, binary, rotations).await?),
            _ => calls(&bed, binary).await?,
        };
        report.insert((*part).to_owned(), value);
    }
    bed.stop().await?;
    Ok(report)
}

async fn addresses(bed: &Bed, binary: &Path) -> Result<Value> {
    let mut rows = Vec::new();
    for (count, times) in SIZES {
        for round in 1..=times {
            println!("{count} at once, round {round} of {times}");
            let floor = floor::at_once(&bed.admin(), count).await?;
            let ours = ours_at_once(bed, binary, count).await?;
            rows.push(table::AtOnce { count, floor, ours });
        }
    }
    Ok(table::addresses(&rows))
}

async fn singles(bed: &Bed, binary: &Path) -> Result<Value> {
    let mut rows = Vec::new();
    for left in LEFT {
        println!("{SINGLES} one by one in a pool that {left} have left");
        let ours = ours_after(bed, binary, left).await?;
        // Of the API server in that state: its garbage collector has more to do after 5,000.
        let floor = floor::one_by_one(&bed.admin(), SINGLES).await?;
        rows.push(table::Singles { left, floor, ours });
    }
    Ok(table::singles(&rows))
}

async fn calls(bed: &Bed, binary: &Path) -> Result<Value> {
    let mut report = table::admission(&admission::measure(bed, binary).await?);
    let costs = hostile::measure(binary).await?;
    report["hostile"] = table::hostile(&costs);
    hostile::check(&costs)?;
    Ok(report)
}

/// Cost of one burst with the operator: times, writes, conflicts, memory and CPU.
pub(crate) struct Ours {
    pub(crate) created: Duration,
    pub(crate) addressed: Duration,
    pub(crate) deleted: Duration,
    pub(crate) lb_writes: f64,
    pub(crate) pool_writes: f64,
    pub(crate) delete_pool_writes: f64,
    pub(crate) conflicts: f64,
    pub(crate) peak_rss_mib: f64,
    pub(crate) cpu: Duration,
    pub(crate) delete_cpu: Duration,
}

async fn ours_at_once(bed: &Bed, binary: &Path, count: usize) -> Result<Ours> {
    let client = bed.admin();
    guests::pool(&client, "bench", "10.64.0.0/16").await?;
    let mut operator = Operator::start(bed, binary, Start::default()).await?;
    operator.leads().await?;
    let before = writes(&operator).await?;
    let cpu_before = operator.process.cpu_time().unwrap_or_default();

    let began = Instant::now();
    guests::create(&client, count).await?;
    let created = began.elapsed();
    // The operator's own counter is asked, so that no watch of ours burdens the API server.
    while operator.metric("hgo_time_to_address_seconds_count", &[]).await? < count as f64 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let addressed = began.elapsed();
    let cpu_addressed = operator.process.cpu_time().unwrap_or_default();
    let after = writes(&operator).await?;
    guests::all_distinct(&client, count).await?;

    let began = Instant::now();
    guests::delete_all(&client, count).await?;
    guests::wait_until_gone(&client).await?;
    let deleted = began.elapsed();
    let cpu_deleted = operator.process.cpu_time().unwrap_or_default();
    let last = writes(&operator).await?;
    let peak_rss_mib = operator.process.peak_rss_kib().unwrap_or(0) as f64 / 1024.0;
    guests::delete_pool(&client, "bench").await?;
    operator.process.terminate(Duration::from_secs(5)).await?;
    Ok(Ours {
        created,
        addressed,
        deleted,
        lb_writes: after.0 - before.0,
        pool_writes: after.1 - before.1,
        delete_pool_writes: last.1 - after.1,
        conflicts: after.2 - before.2,
        peak_rss_mib,
        cpu: cpu_addressed.saturating_sub(cpu_before),
        delete_cpu: cpu_deleted.saturating_sub(cpu_addressed),
    })
}

async fn writes(operator: &Operator) -> Result<(f64, f64, f64)> {
    let name = "hgo_api_writes_total";
    Ok((
        operator.metric(name, &["LoadBalancer"]).await?,
        operator.metric(name, &["IPPool"]).await?,
        operator.metric(name, &["conflict"]).await?,
    ))
}

/// Times to an address with the operator, one LoadBalancer at a time, in a pool that `left` have
/// left.
async fn ours_after(bed: &Bed, binary: &Path, left: usize) -> Result<Vec<Duration>> {
    let client = bed.admin();
    guests::pool(&client, "bench", "10.64.0.0/16").await?;
    let mut operator = Operator::start(bed, binary, Start::default()).await?;
    operator.leads().await?;
    guests::create(&client, left).await?;
    while operator.metric("hgo_time_to_address_seconds_count", &[]).await? < left as f64 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    guests::delete_all(&client, left).await?;
    guests::wait_until_gone(&client).await?;
    let times = guests::create_and_watch(&client, SINGLES).await?;
    guests::delete_all(&client, SINGLES).await?;
    guests::wait_until_gone(&client).await?;
    guests::delete_pool(&client, "bench").await?;
    operator.process.terminate(Duration::from_secs(5)).await?;
    Ok(times)
}

/// Quantiles of a sorted list, in milliseconds.
pub(crate) fn quantiles(times: &[Duration]) -> Value {
    let mut times = times.to_vec();
    times.sort_unstable();
    let at = |share: usize| {
        let index = (times.len() * share / 100).min(times.len().saturating_sub(1));
        times.get(index).map_or(0.0, |t| t.as_secs_f64() * 1e3)
    };
    json!({"p50_ms": at(50), "p90_ms": at(90), "p99_ms": at(99)})
}
