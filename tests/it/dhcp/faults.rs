//! Faults on the wire: cables, missing servers, lying servers.

use std::io::Write as _;

use anyhow::{Context as _, Result, ensure};
use chrono::{DateTime, FixedOffset, TimeDelta};
use harvester_guest_operator::api::DHCPLeaseStatus;
use rustix::process::{Pid, Signal, kill_process};
use testbed::eventually;
use testbed::net::dhcp::{DhcpServer, Kind, Scope};

use super::fixture::{Site, on_site};
use crate::support::LATER;

/// The server of a lease is gone, and another server of its kind runs without the lease.
async fn rebound(mut site: Site) -> Result<()> {
    let kind = site.server.kind();
    let agent = site.agent().await?;
    let web = site.lease("web").await?;
    let first = site.bound("web", "address", |_| true).await?;
    let other = Scope { server: site.scope.at(2), ..site.scope.clone() };
    let there = site.segment.attach("other", &other.interface()).await?;
    site.server.stop().await?;
    let mut second = DhcpServer::start(kind, &there, "eth0", &other).await?;
    let rebound = site
        .bound("web", "lease of the other server", |status| {
            status.server == Some(other.server.to_string())
        })
        .await?;
    let granted = second.granted_to(&web.mac.to_string()).await?.context("not in its file")?;
    ensure!(Some(granted.address.to_string()) == rebound.address, "{granted:?}, {rebound:?}");
    if kind != Kind::Kea && kind != Kind::Udhcpd {
        // These grant a free address to a client that requests it; the other two choose a new one.
        ensure!(rebound.address == first.address, "{rebound:?}, not {first:?}");
    }
    drop(agent);
    Ok(())
}

/// The server is silent from T1 on, and T2 is soon. dnsmasq has no shorter leases; with the others
/// an unanswered request is repeated after half of the lease's remaining time.
fn silent(kind: Kind) -> Result<()> {
    let scope = Scope::new([10, 77, 0, 1]);
    let scope = match kind {
        Kind::Dnsmasq => scope.seconds(120).timers(30, 34),
        _ => scope.seconds(40).timers(10, 13),
    };
    on_site(kind, scope, rebound)
}

#[test]
fn dnsmasq_is_gone_and_another_one_takes_over() -> Result<()> {
    silent(Kind::Dnsmasq)
}

#[test]
fn kea_is_gone_and_another_one_takes_over() -> Result<()> {
    silent(Kind::Kea)
}

#[test]
fn isc_dhcpd_is_gone_and_another_one_takes_over() -> Result<()> {
    silent(Kind::Isc)
}

#[test]
fn udhcpd_is_gone_and_another_one_takes_over() -> Result<()> {
    silent(Kind::Udhcpd)
}

/// The cable is out for less than a lease, then for longer.
#[test]
fn a_cable_is_pulled_for_less_and_for_longer_than_a_lease() -> Result<()> {
    let scope = Scope::new([10, 77, 0, 1]).seconds(60).timers(50, 55);
    on_site(Kind::Isc, scope, async |site: Site| {
        let agent = site.agent().await?;
        let web = site.lease("web").await?;
        let first = site.bound("web", "address", |_| true).await?;
        site.segment.cable(&site.port, false).await?;
        eventually(LATER, "report of the cable", async || {
            agent.process.log().contains("carries=false")
        })
        .await?;
        ensure!(site.status("web").await?.address == first.address, "given up too early");
        // In again: the agent checks the address at once, not only at T1.
        site.segment.cable(&site.port, true).await?;
        let again = site.renewed("web", &first).await?;
        ensure!(again.address == first.address, "{again:?}");
        ensure!(end(&again)? - end(&first)? < TimeDelta::seconds(40), "{again:?} after {first:?}");

        site.segment.cable(&site.port, false).await?;
        eventually(LATER, "loss of the address", async || {
            site.status("web").await.map(|status| status.address.is_none())
        })
        .await?;
        let lost = site.status("web").await?;
        let reason = lost.conditions.first().and_then(|ready| ready.reason.clone());
        ensure!(reason.as_deref() == Some("Expired"), "{lost:?}");
        site.segment.cable(&site.port, true).await?;
        let back = site.bound("web", "address", |_| true).await?;
        ensure!(back.address == first.address, "{back:?}, not {first:?}");
        site.linked(&[&web]).await
    })
}

fn end(status: &DHCPLeaseStatus) -> Result<DateTime<FixedOffset>> {
    let end = status.expires_at.as_deref().context("no end")?;
    Ok(DateTime::parse_from_rfc3339(end)?)
}

/// The interface disappears and comes back, as with a recreated bridge.
#[test]
fn an_interface_that_comes_back_gets_its_links_again() -> Result<()> {
    let scope = Scope::new([10, 77, 0, 1]);
    on_site(Kind::Kea, scope, async |site: Site| {
        let agent = site.agent().await?;
        let web = site.lease("web").await?;
        let first = site.bound("web", "address", |_| true).await?;
        // Another program deletes a link.
        site.host.ip(&format!("link delete {}", super::fixture::link(&web))).await?;
        site.linked(&[&web]).await?;
        site.host.ip("link delete net1").await?;
        eventually(LATER, "log of the interface", async || {
            agent.process.log().contains("the interface was removed")
        })
        .await?;
        ensure!(site.status("web").await?.address == first.address, "given up too early");
        site.segment.plug(&site.host, "net1").await?;
        site.linked(&[&web]).await?;
        let again = site.renewed("web", &first).await?;
        ensure!(again.address == first.address, "{again:?}");
        Ok(())
    })
}

/// More link changes than the kernel queues for a stopped agent, among them a deletion.
#[test]
fn what_the_kernel_could_not_tell_is_looked_for() -> Result<()> {
    on_site(Kind::Kea, Scope::new([10, 77, 0, 1]), async |site: Site| {
        let agent = site.agent().await?;
        let web = site.lease("web").await?;
        site.bound("web", "address", |_| true).await?;
        let mut changes = tempfile::NamedTempFile::new()?;
        for n in 0..3_000 {
            writeln!(changes, "link set dev net1 alias number-{n}")?;
        }
        writeln!(changes, "link delete {}", super::fixture::link(&web))?;
        let stopped = Stopped::new(agent.process.pid())?;
        site.host.ip(&format!("-batch {}", changes.path().display())).await?;
        drop(stopped);
        eventually(LATER, "log of lost notifications", async || {
            agent.process.log().contains("the kernel dropped link notifications")
        })
        .await?;
        site.linked(&[&web]).await?;
        // And it works on.
        let other = site.lease("other").await?;
        site.bound("other", "address", |_| true).await?;
        site.linked(&[&web, &other]).await
    })
}

/// A process that is stopped until this is dropped.
struct Stopped(Pid);

impl Stopped {
    fn new(process: u32) -> Result<Self> {
        let pid = Pid::from_raw(process.try_into()?).context("no process")?;
        kill_process(pid, Signal::Stop)?;
        Ok(Self(pid))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::Cont);
    }
}
