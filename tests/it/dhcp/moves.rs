//! Requests that a remote client loses when agents, servers and cables move, and the address at the
//! end, one line each.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::api::DHCPLeaseStatus;
use testbed::eventually;
use testbed::net::dhcp::{DhcpServer, Kind, Scope};
use testbed::net::{Netns, Segment};
use tokio::time::sleep;

use super::fixture::{Site, on_site};
use super::router::{Client, HOLE, Requests, client_and_announcer, echo};
use crate::support::LATER;

/// Interface of the second node, on a bridge of its own.
const OTHER: &str = "net2";

/// Short leases, which Kea grants.
fn scope() -> Scope {
    Scope::new([10, 77, 0, 1]).seconds(20).timers(5, 12)
}

/// Waits until the record's condition gives this reason.
async fn says(site: &Site, reason: &str) -> Result<DHCPLeaseStatus> {
    eventually(LATER, &format!("reason {reason}"), async || {
        let status = site.status("web").await.map_err(|error| error.to_string())?;
        let ready = status.conditions.first().and_then(|ready| ready.reason.as_deref());
        if ready == Some(reason) { Ok(Some(status)) } else { Err(format!("{status:?}")) }
    })
    .await
}

/// Gives the announcer the record's address, as kube-vip has a VM Service's. The client then uses
/// that address.
async fn follow(site: &Site, announcer: &Netns, at: &Mutex<Ipv4Addr>) -> Result<Ipv4Addr> {
    let held = || at.lock().map_err(|_| anyhow::anyhow!("poisoned"));
    let address: Ipv4Addr = site.address("web").await?.parse()?;
    announcer.ip(&format!("address add {address}/32 dev eth0")).await?;
    *held()? = address;
    Ok(address)
}

fn row(what: &str, requests: Requests, address: Ipv4Addr) {
    let Requests { sent, lost, hole } = requests;
    println!("| {what} | {lost} of {sent}, {hole} in a row | {address} |");
}

#[test]
fn with_keep_no_request_is_lost_whatever_moves() -> Result<()> {
    on_site(Kind::Kea, scope(), async |mut site: Site| {
        site.options = vec!["--on-lease-loss", "keep"];
        let (_outside, behind, announcer) = client_and_announcer(&site).await?;
        // Another node: its bridge is connected to the first one's.
        let second = Segment::new("second").await?;
        second.plug(&site.host, OTHER).await?;
        second.plug(site.segment.switch(), "uplink").await?;
        site.segment.switch().ip("link set uplink master br0 up").await?;

        let mut agent = site.agent().await?;
        site.lease("web").await?;
        let mut status = site.bound("web", "address", |_| true).await?;
        let address: Ipv4Addr = status.address.clone().context("no address")?.parse()?;
        announcer.ip(&format!("address add {address}/32 dev eth0")).await?;
        let _echo = echo(&announcer, address, site.scope.server).await?;
        let at = Arc::new(Mutex::new(address));
        for what in [
            "three renewals",
            "agent killed and started anew",
            "agent moved to another node",
            "agent's cable out for less than a lease",
            "server away for longer than a lease, onLeaseLoss Keep",
        ] {
            let client = Client::start(&behind, &at);
            match what {
                "three renewals" => {
                    for _ in 0..2 {
                        status = site.renewed("web", &status).await?;
                    }
                }
                "agent killed and started anew" => {
                    site.kill(&mut agent).await?;
                    agent = site.agent().await?;
                }
                "agent moved to another node" => {
                    site.kill(&mut agent).await?;
                    agent = site.standby(OTHER).await?;
                    agent.speaks().await?;
                }
                "agent's cable out for less than a lease" => {
                    second.cable("port0", false).await?;
                    sleep(Duration::from_secs(6)).await;
                    second.cable("port0", true).await?;
                }
                _ => {
                    site.server.process.signal("STOP")?;
                    let kept = says(&site, "Kept").await?;
                    ensure!(kept.address == status.address, "{kept:?}");
                    site.server.process.signal("CONT")?;
                }
            }
            status = site.renewed("web", &status).await?;
            sleep(Duration::from_secs(2)).await;
            let requests = client.stop().await?;
            row(what, requests, address);
            ensure!(requests.sent > 100 && requests.hole <= HOLE, "{what}: {requests:?}");
            ensure!(status.address == Some(address.to_string()), "{what}: {status:?}");
        }
        Ok(())
    })
}

/// The record loses its address before another host may get it, and the announcer follows.
#[test]
fn a_server_that_goes_away_or_moves_takes_the_address_along() -> Result<()> {
    on_site(Kind::Kea, scope(), async |mut site: Site| {
        let (_outside, behind, announcer) = client_and_announcer(&site).await?;
        let _agent = site.agent().await?;
        site.lease("web").await?;
        let address: Ipv4Addr = site.address("web").await?.parse()?;
        announcer.ip(&format!("address add {address}/32 dev eth0")).await?;
        let _first = echo(&announcer, address, site.scope.server).await?;
        let at = Arc::new(Mutex::new(address));
        let client = Client::start(&behind, &at);
        site.server.process.signal("STOP")?;
        says(&site, "Expired").await?;
        announcer.ip(&format!("address del {address}/32 dev eth0")).await?;
        sleep(Duration::from_secs(2)).await;
        site.server.process.signal("CONT")?;
        let back = follow(&site, &announcer, &at).await?;
        let requests = client.stop().await?;
        row("server away for longer than a lease, onLeaseLoss Withdraw", requests, back);
        ensure!(back == address && requests.hole > HOLE, "{back}, not {address}: {requests:?}");

        let client = Client::start(&behind, &at);
        let scope = Scope { server: site.scope.at(2), range: (200, 219), ..scope() };
        let there = site.segment.attach("other", &scope.interface()).await?;
        site.server.stop().await?;
        let _server = DhcpServer::start(Kind::Kea, &there, "eth0", &scope).await?;
        eventually(LATER, "loss of the address", async || {
            let status = site.status("web").await.map_err(|error| error.to_string())?;
            let left = status.address != Some(address.to_string());
            if left { Ok(true) } else { Err(format!("{status:?}")) }
        })
        .await?;
        announcer.ip(&format!("address del {address}/32 dev eth0")).await?;
        let moved = follow(&site, &announcer, &at).await?;
        let _second = echo(&announcer, moved, site.scope.server).await?;
        row("server moved to another range", client.stop().await?, moved);
        ensure!(moved.octets()[3] >= 200, "{moved} is not of the other range");
        let client = Client::start(&behind, &at);
        let status = site.status("web").await?;
        site.renewed("web", &status).await?;
        let requests = client.stop().await?;
        ensure!(requests.hole <= HOLE, "after the move: {requests:?}");
        Ok(())
    })
}
