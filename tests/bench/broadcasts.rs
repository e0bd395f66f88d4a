//! Cost of leases while broadcasts on the network are for others: broadcasts to a segment with an
//! agent and its links, beside as many to a segment of the same form without an agent.
//!
//! The links' share is spent in threads of the kernel, which the agent's own CPU time does not
//! show. So the cost is the CPU time of the sender (a frame is received where it was sent), of the
//! kernel's workers and of the agent. Unlike elapsed time, that depends little on other work of the
//! machine; other work on the same workers is in the floor as well, whose windows alternate with
//! the others.

use std::fs;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _};
use nix::ifaddrs::getifaddrs;
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};
use testbed::eventually;
use testbed::net::dhcp::{Kind, Scope};
use testbed::net::{Netns, Segment};

use crate::fixture::{Site, on_site};
use crate::leases::shipped;

const LEASES: [usize; 3] = [0, 500, 1_000];
/// Broadcasts per second, and the time of one window.
const RATE: u32 = 200;
const WINDOW: Duration = Duration::from_secs(4);
/// Windows of each kind with the links, and as many without.
const ROUNDS: usize = 5;
const AT_ONCE: usize = 48;
const PATIENCE: Duration = Duration::from_mins(5);
/// Time after which an agent is idle: it has asked by ARP which station announces each address.
const SETTLED: Duration = Duration::from_secs(40);

/// Cost of broadcasts with so many leases, as a share of one core.
pub(crate) struct Row {
    leases: usize,
    what: &'static str,
    ours: f64,
    floor: f64,
    /// Share of the agent itself.
    agent: f64,
}

pub(crate) fn measure() -> Result<Vec<Row>> {
    let (rows, received) = mpsc::channel();
    let scope = Scope::new([10, 77, 0, 1]).prefix(21).range(10, 1_900);
    on_site(Kind::Kea, scope, async move |mut site: Site| {
        site.program = shipped()?;
        let mut agent = site.agent().await?;
        let sender = site.segment.attach("sender", "10.77.7.250/21").await?;
        let twin = Segment::new("twin").await?;
        twin.plug(&site.host, "net8").await?;
        twin.attach("idle", "10.77.0.1/21").await?;
        let floor = twin.attach("sender", "10.77.7.250/21").await?;
        let pid = agent.process.pid();
        let mut there = 0;
        for leases in LEASES {
            println!("{RATE} broadcasts a second with {leases} leases");
            futures::stream::iter(there..leases)
                .map(|n| site.lease_at(n))
                .buffer_unordered(AT_ONCE)
                .try_collect::<Vec<_>>()
                .await?;
            there = leases;
            eventually(PATIENCE, "addresses", async || {
                let bound = agent.metric("hgo_dhcp_leases{state=\"Bound\"}").await;
                bound.map(|bound| bound >= leases as f64)
            })
            .await?;
            tokio::time::sleep(SETTLED).await;
            for (what, frame) in [("ARP", arp()), ("DHCP", dhcp())] {
                rows.send(row(leases, what, &frame, pid, [&sender, &floor]).await?)?;
            }
        }
        agent.stop().await
    })?;
    Ok(received.try_iter().collect())
}

/// An ARP request for 10.77.7.251 by a station without a lease.
fn arp() -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0xaa, 0, 0, 0, 1, 0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1]);
    frame.extend([2, 0xaa, 0, 0, 0, 1, 10, 77, 7, 250, 0, 0, 0, 0, 0, 0, 10, 77, 7, 251]);
    frame.resize(60, 0);
    frame
}

/// A server's answer to the client of another station, with the BROADCAST flag: to port 68 of all
/// stations.
fn dhcp() -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0xaa, 0, 0, 0, 1, 0x08, 0x00]);
    // UDP without a checksum.
    frame.extend([0x45, 0, 1, 16, 0, 0, 0, 0, 64, 17, 103, 151, 10, 77, 7, 250]);
    frame.extend([255, 255, 255, 255]);
    frame.extend([0, 67, 0, 68, 0, 252, 0, 0]);
    frame.extend([2, 1, 6, 0, 1, 2, 3, 4, 0, 0, 0x80, 0]);
    frame.extend([0; 16]);
    frame.extend([2, 0xbb, 0, 0, 0, 1]);
    frame.extend([0; 10 + 192]);
    frame.extend([0x63, 0x82, 0x53, 0x63, 53, 1, 5, 255]);
    frame
}

async fn row(
    leases: usize,
    what: &'static str,
    frame: &[u8],
    agent: u32,
    [with, without]: [&Netns; 2],
) -> Result<Row> {
    let (mut ours, mut floor, mut agents) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (all, own) = window(with, frame.to_vec(), Some(agent)).await?;
        ours.push(all);
        agents.push(own);
        floor.push(window(without, frame.to_vec(), None).await?.0);
    }
    let [ours, floor, agent] = [ours, floor, agents].map(median);
    Ok(Row { leases, what, ours, floor, agent })
}

fn median(mut shares: Vec<f64>) -> f64 {
    shares.sort_by(f64::total_cmp);
    shares.get(shares.len() / 2).copied().unwrap_or_default()
}

/// Sends broadcasts for one window. Returns the share of a core that they took in all, and in the
/// agent.
async fn window(from: &Netns, frame: Vec<u8>, agent: Option<u32>) -> Result<(f64, f64)> {
    from.run(move || {
        let socket = open("eth0")?;
        let agent = agent.map(|pid| format!("/proc/{pid}/task"));
        let own = || agent.as_ref().map_or(Ok(0), |tasks| sum(Path::new(tasks), |_| true));
        let rest = || Ok::<_, anyhow::Error>(cpu(Path::new("/proc/thread-self"))? + workers()?);
        let (before, own_before) = (rest()?, own()?);
        let began = Instant::now();
        for n in 1..=RATE * u32::try_from(WINDOW.as_secs())? {
            socket.send(&frame)?;
            let next = began + Duration::from_secs(1) / RATE * n;
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        let own = own()?.saturating_sub(own_before);
        let all = rest()?.saturating_sub(before) + own;
        // On a busy machine the broadcasts take longer, and cost the same.
        let share = |nanos: u64| nanos as f64 / WINDOW.as_nanos() as f64;
        Ok((share(all), share(own)))
    })
    .await
}

fn open(interface: &str) -> Result<Socket> {
    // The socket receives nothing.
    let socket = Socket::new(Domain::PACKET, Type::RAW, None)?;
    let address = getifaddrs()?.find_map(|one| {
        let address = *one.address?.as_link_addr()?;
        (one.interface_name == interface).then_some(address)
    });
    nix::sys::socket::bind(socket.as_raw_fd(), &address.context("no interface")?)?;
    Ok(socket)
}

/// CPU time of the kernel's workers, in nanoseconds.
fn workers() -> Result<u64> {
    sum(Path::new("/proc"), |name| name.starts_with("kworker") || name.starts_with("ksoftirqd"))
}

/// CPU time in nanoseconds of the threads or processes of a folder whose name matches.
fn sum(folder: &Path, is: impl Fn(&str) -> bool) -> Result<u64> {
    let mut nanos = 0;
    for entry in fs::read_dir(folder)? {
        let task = entry?.path();
        // A task that has ended meanwhile counts as zero.
        let Ok(name) = fs::read_to_string(task.join("comm")) else { continue };
        if is(&name) {
            nanos += cpu(&task).unwrap_or_default();
        }
    }
    Ok(nanos)
}

/// CPU time of a thread, in nanoseconds.
fn cpu(task: &Path) -> Result<u64> {
    let times = fs::read_to_string(task.join("schedstat"))?;
    Ok(times.split_whitespace().next().context("no CPU time")?.parse()?)
}

/// Prints the rows, and returns them as JSON.
pub(crate) fn print(rows: &[Row]) -> Value {
    println!("\n{RATE} broadcasts a second that are for others, in % of a core, kernel included");
    println!(
        "{:>8} {:>6} {:>8} {:>8} {:>8} {:>16}",
        "leases", "", "ours", "floor", "more", "of it the agent"
    );
    let report = rows.iter().map(|row| {
        let [ours, floor, agent] = [row.ours, row.floor, row.agent].map(|share| share * 100.0);
        let (leases, what, more) = (row.leases, row.what, ours - floor);
        println!("{leases:>8} {what:>6} {ours:>8.2} {floor:>8.2} {more:>8.2} {agent:>16.2}");
        json!({"leases": leases, "what": what, "percent": ours, "floor_percent": floor, "agent_percent": agent})
    });
    report.collect()
}
