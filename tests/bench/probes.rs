//! 10,000 backends probed every 5 s by one process, beside a floor: a bare loop that opens and
//! closes as many connections per second on the same kind of runtime.
//!
//! Two processes in a network namespace: one is probed and records the times, the other probes, so
//! that processor time and memory are the prober's alone. On loopback the kernel does the work of
//! both ends in the sending process; the floor includes that, too.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::domain::vm_backends::health::{
    BackendProbe, CheckSettings, ProbeRequest, ProbeTarget,
};
use harvester_guest_operator::metrics::Metrics;
use harvester_guest_operator::prober::Prober;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpSocket;
use tokio::sync::mpsc;

use crate::namespace;

const TARGETS: u16 = 10_000;
/// Targets of one LoadBalancer.
const PER_LB: u16 = 100;
const PERIOD: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(3);
/// Time for the first probes of all targets, and a quiet period.
const WARM_UP: Duration = Duration::from_secs(10);
const MEASURED: Duration = Duration::from_secs(25);
const ROLE: &str = "BENCH_PROBES_ROLE";
const CASE: &str = "BENCH_PROBES_CASE";

/// Name; whether the probes are HTTP; how many of ten targets drop every packet.
const CASES: [(&str, bool, u16); 4] = [
    ("tcp", false, 0),
    ("tcp, 10 % silent", false, 1),
    ("tcp, all silent", false, 10),
    ("http", true, 0),
];
const FLOOR: &str = "floor: bare connects";

/// Role of this process, which starts itself again for each.
pub(crate) enum Role {
    Probed,
    Prober,
}

impl Role {
    pub(crate) fn of_this_process() -> Option<Self> {
        match std::env::var(ROLE).ok()?.as_str() {
            "probed" => Some(Self::Probed),
            _ => Some(Self::Prober),
        }
    }

    /// Runs the measurement and prints its figures, as JSON, to stdout.
    pub(crate) fn play(self) -> Result<()> {
        let case = std::env::var(CASE)?;
        // The same runtime as the operator's.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let figures = runtime.block_on(async {
            match self {
                Self::Probed => probed(&case).await,
                Self::Prober if case == FLOOR => floor().await,
                Self::Prober => prober(&case).await,
            }
        })?;
        println!("{figures}");
        Ok(())
    }
}

/// Measures every case, the floor first.
pub(crate) fn measure() -> Result<Vec<Value>> {
    let mut rows = Vec::new();
    for name in std::iter::once(FLOOR).chain(CASES.map(|case| case.0)) {
        println!("probes of {TARGETS} targets: {name}");
        let output = namespace::this_program("")?
            .env(ROLE, "probed")
            .env(CASE, name)
            .stderr(Stdio::inherit())
            .output()?;
        ensure!(output.status.success(), "{name}: {} ({})", output.status, namespace::NEEDS);
        rows.push(serde_json::from_slice(&output.stdout)?);
    }
    Ok(rows)
}

/// Prints the rows that [`measure`] returned.
pub(crate) fn print(rows: &[Value]) {
    println!(
        "\n{:>20} {:>9} {:>6} {:>9} {:>8} {:>6} {:>9} {:>9}",
        "probes", "per s", "CPU %", "µs/probe", "RSS MiB", "late", "p99 dev %", "max dev %"
    );
    for row in rows {
        let number = |name: &str| row[name].as_f64().unwrap_or(f64::NAN);
        println!(
            "{:>20} {:>9.0} {:>6.1} {:>9.1} {:>8.1} {:>6} {:>9.2} {:>9.2}",
            row["case"].as_str().unwrap_or_default(),
            number("probes_per_second"),
            number("cpu_percent"),
            number("cpu_us_per_probe"),
            number("peak_rss_mib"),
            number("late"),
            number("deviation_p99_percent"),
            number("deviation_max_percent"),
        );
    }
}

fn settings(case: &str) -> (bool, u16) {
    CASES
        .iter()
        .find(|(name, ..)| *name == case)
        .map_or((false, 0), |(_, http, holes)| (*http, *holes))
}

/// Address of target number `n`: of ten in a row, the first `silent` are silent.
fn address(n: u16, silent: u16) -> Ipv4Addr {
    let net = if n % 10 < silent { 211 } else { 210 };
    let [high, low] = (n + 256).to_be_bytes();
    Ipv4Addr::new(10, net, high, low)
}

// ---- the probed process -----------------------------------------------------------------

type Arrivals = Arc<Mutex<HashMap<IpAddr, Vec<Instant>>>>;

async fn probed(case: &str) -> Result<Value> {
    let (http, _) = settings(case);
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from(([0, 0, 0, 0], 80)))?;
    let listener = socket.listen(4096)?;
    let arrivals = Arrivals::default();
    let log = Arc::clone(&arrivals);
    tokio::spawn(async move {
        loop {
            let Ok((mut stream, _)) = listener.accept().await else { continue };
            let Ok(local) = stream.local_addr() else { continue };
            if let Ok(mut log) = log.lock() {
                log.entry(local.ip()).or_default().push(Instant::now());
            }
            if http {
                tokio::spawn(async move {
                    let mut request = [0; 512];
                    let _ = tokio::io::AsyncReadExt::read(&mut stream, &mut request).await;
                    let _ =
                        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
                    let _ = tokio::io::AsyncReadExt::read(&mut stream, &mut request).await;
                });
            }
        }
    });
    let program = std::env::current_exe()?;
    let output = tokio::task::spawn_blocking(move || {
        Command::new(program).env(ROLE, "prober").stderr(Stdio::inherit()).output()
    })
    .await??;
    ensure!(output.status.success(), "the prober failed: {}", output.status);
    let mut figures: Value = serde_json::from_slice(&output.stdout)?;
    figures["case"] = json!(case);
    if case != FLOOR
        && let Ok(log) = arrivals.lock()
    {
        deviations(&log, &mut figures);
    }
    Ok(figures)
}

/// Deviations of the time between two arrivals at a target from the period, in percent of the
/// period. Two things do not count: the first probes, which are off the grid, and the first period,
/// which their burst disturbs.
fn deviations(log: &HashMap<IpAddr, Vec<Instant>>, figures: &mut Value) {
    let Some(began) = log.values().filter_map(|times| times.first()).min().copied() else { return };
    let calm = |times: &&Instant| times.duration_since(began) > PERIOD;
    let deviation = |pair: &[Instant]| {
        let gap = pair[1].duration_since(pair[0]).as_secs_f64();
        (gap / PERIOD.as_secs_f64() - 1.0).abs() * 100.0
    };
    let mut all = Vec::new();
    for times in log.values() {
        let times: Vec<Instant> = times.iter().filter(calm).copied().collect();
        all.extend(times.windows(2).map(deviation));
    }
    all.sort_by(f64::total_cmp);
    figures["targets_seen"] = json!(log.len());
    figures["intervals"] = json!(all.len());
    figures["deviation_p99_percent"] = json!(all.get(all.len() * 99 / 100));
    figures["deviation_max_percent"] = json!(all.last());
}

// ---- the probing process ----------------------------------------------------------------

async fn prober(case: &str) -> Result<Value> {
    let (http, silent) = settings(case);
    let request = ProbeRequest { path: "/".to_owned(), expected: Vec::new(), server_name: None };
    let check = CheckSettings {
        probe: if http { BackendProbe::Http(request) } else { BackendProbe::Tcp },
        port: 80,
        success_threshold: 1,
        failure_threshold: 3,
        period: PERIOD,
        timeout: TIMEOUT,
    };
    let metrics = Metrics::new()?;
    let (sender, mut changed) = mpsc::unbounded_channel();
    let (prober, scheduler) = Prober::new(metrics.clone(), move |lb| {
        let _ = sender.send(lb.to_owned());
    });
    for lb in 0..TARGETS / PER_LB {
        let targets: Vec<ProbeTarget> = (lb * PER_LB..(lb + 1) * PER_LB)
            .map(|n| ProbeTarget {
                id: format!("3f0c52de-8a11-4b7e-9d7b-{n:012}"),
                address: address(n, silent).into(),
                assume_healthy: false,
            })
            .collect();
        prober.set(&format!("lb-{lb}"), &check, &targets)?;
    }
    tokio::spawn(scheduler.run());
    tokio::spawn(async move { while changed.recv().await.is_some() {} });
    let (late, all) = (|| metrics.probes.late.get(), || probes(&metrics));
    tokio::time::sleep(WARM_UP).await;
    let (late_before, before) = (late(), all()?);
    let mut figures = window(|| Ok(all()? - before)).await?;
    figures["late"] = json!(late() - late_before);
    Ok(figures)
}

/// Ended probes by the public counter.
fn probes(metrics: &Metrics) -> Result<f64> {
    let text = metrics.render()?;
    let lines = text.lines().filter(|line| line.starts_with("hgo_probes_total{"));
    Ok(lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
}

async fn floor() -> Result<Value> {
    let count = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counter = Arc::clone(&count);
    tokio::spawn(async move {
        let per_second = u32::from(TARGETS) / u32::try_from(PERIOD.as_secs()).unwrap_or(1);
        let mut clock = tokio::time::interval(Duration::from_secs(1) / per_second);
        for n in (0..TARGETS).cycle() {
            clock.tick().await;
            let connect = async {
                let socket = TcpSocket::new_v4()?;
                socket.set_zero_linger()?;
                socket.connect((address(n, 0), 80).into()).await
            };
            if connect.await.is_ok() {
                counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let made = || count.load(std::sync::atomic::Ordering::Relaxed);
    let before = made();
    window(|| Ok((made() - before) as f64)).await
}

/// CPU, memory and probes of this process in the measured time.
async fn window(done: impl Fn() -> Result<f64>) -> Result<Value> {
    let (cpu_before, began) = (cpu()?, Instant::now());
    tokio::time::sleep(MEASURED).await;
    let (cpu, seconds, done) = (cpu()? - cpu_before, began.elapsed().as_secs_f64(), done()?);
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("VmHWM")?;
    let peak_kib: f64 = peak.split_whitespace().next().context("VmHWM")?.parse()?;
    Ok(json!({
        "probes_per_second": done / seconds,
        "cpu_percent": cpu / seconds * 100.0,
        "cpu_us_per_probe": cpu / done * 1e6,
        "peak_rss_mib": peak_kib / 1024.0,
    }))
}

/// Processor time of this process so far, in seconds, user and kernel mode together.
fn cpu() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(')').context("stat")?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
    // A tick is 10 ms on every Linux that matters here.
    Ok(ticks.sum::<Result<f64, _>>()? / 100.0)
}
