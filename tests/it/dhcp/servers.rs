//! A lease's life with each of the four servers: the server's view is read from its lease file.

use anyhow::{Context as _, Result, bail, ensure};
use testbed::net::dhcp::{Kind, Message, Scope};
use testbed::{LeaseAgent, eventually};

use super::fixture::{INTERFACE, Site, link, on_site};
use crate::support::LATER;

/// Rounds in which a server that grants one address after the other returns to each.
const ROUNDS: usize = 6;

/// A scope with a renewal within seconds (a T1 before a quarter of the lease would be ignored), and
/// a lease that outlives a long stall of the machine.
fn short(kind: Kind) -> Scope {
    let scope = Scope::new([10, 77, 0, 1]);
    match kind {
        // dnsmasq has no shorter leases.
        Kind::Dnsmasq => scope.seconds(120).timers(30, 50),
        _ => scope.seconds(60).timers(15, 30),
    }
}

async fn life(mut site: Site) -> Result<()> {
    let kind = site.server.kind();
    let mut agent = site.agent().await?;

    // Acquired: the server's file shows the client and its identity.
    let web = site.lease("web").await?;
    let mac = web.mac.to_string();
    let first = site.bound("web", "address", |_| true).await?;
    let address = first.address.clone().context("no address")?;
    let granted = site.server.granted_to(&mac).await?.context("not in the server's file")?;
    ensure!(granted.address.to_string() == address, "{granted:?}, not {address}");
    ensure!(site.scope.holds(granted.address), "{granted:?}");
    ensure!(granted.hostname == "web", "{granted:?}");
    if kind != Kind::Udhcpd {
        ensure!(
            granted.client_id == web.client_id.as_ref().map(ToString::to_string),
            "{granted:?}"
        );
    }
    ensure!(first.server == Some(site.scope.server.to_string()), "{first:?}");
    ensure!(first.prefix_length == Some(24), "{first:?}");
    ensure!(first.gateway == Some(site.scope.at(254).to_string()), "{first:?}");
    ensure!(first.name_servers == [site.scope.at(253).to_string()], "{first:?}");

    // A macvlan of its own, to which no broadcast is copied, without an address, and with ARP off.
    site.linked(&[&web]).await?;
    let shown = site.host.ip(&format!("-d address show {}", link(&web))).await?;
    ensure!(shown.contains("macvlan mode source") && !shown.contains("inet"), "{shown}");
    ensure!(shown.contains("NOARP") && shown.contains("LOWER_UP"), "{shown}");
    // The interface accepts frames to the lease's hardware address.
    let taken = site.host.command("bridge", &["fdb", "show", "dev", INTERFACE]).await?;
    ensure!(taken.lines().any(|line| line.starts_with(&mac) && line.contains("self")), "{taken}");
    ensure!(
        shown.contains(&mac) && shown.contains("hgo-lease-agent-default-lan-e1714d09 default/web"),
        "{shown}"
    );

    // Renewed.
    let renewed = site.renewed("web", &first).await?;
    ensure!(renewed.address == first.address, "{renewed:?}");
    let acquired = async |agent: &LeaseAgent| agent.metric("hgo_dhcp_acquire_seconds_count").await;
    ensure!(acquired(&agent).await? == 1.0, "not counted as acquired");

    // The agent is killed, its link is changed, and another one continues.
    site.kill(&mut agent).await?;
    site.host.ip(&format!("link set dev {} arp on", link(&web))).await?;
    let agent = site.agent().await?;
    let resumed = site.renewed("web", &renewed).await?;
    ensure!(resumed.name_servers == first.name_servers, "{resumed:?}");
    ensure!(resumed.address == first.address, "{resumed:?}");
    ensure!(acquired(&agent).await? == 0.0, "acquired again");
    let shown = site.host.ip(&format!("address show {}", link(&web))).await?;
    ensure!(shown.contains("NOARP"), "not repaired: {shown}");
    site.linked(&[&web]).await?;

    // The server restarts.
    let scope = site.scope.clone();
    site.server.restart(&scope).await?;
    let after = site.renewed("web", &resumed).await?;
    ensure!(after.address == first.address, "{after:?}");

    // The server gets another range, and refuses.
    site.server.stop().await?;
    site.server.forget()?;
    let moved = if kind == Kind::Isc {
        // dhcpd refuses only addresses of another subnet.
        Scope { server: [10, 78, 0, 1].into(), ..site.scope.clone() }.range(200, 202)
    } else {
        site.scope.clone().range(200, 202)
    };
    site.server.readdress(&moved).await?;
    let elsewhere = site
        .bound("web", "address of the new range", |status| {
            let address = status.address.as_deref().and_then(|address| address.parse().ok());
            address.is_some_and(|address| moved.holds(address))
        })
        .await?;
    let refused = site.server.logged(Message::Nak);
    ensure!(refused != Some(false), "no refusal:\n{}", site.server.log());
    ensure!(agent.metric("hgo_dhcp_naks_total").await? >= 1.0, "no refusal counted");
    let address = elsewhere.address.context("no address")?;

    // Released: the server's file shows it.
    site.deleted("web").await?;
    site.linked(&[]).await?;
    eventually(LATER, "release of the address", async || {
        site.server.granted_to(&mac).await.map(|granted| granted.is_none())
    })
    .await?;

    // A neighbour takes the address. Sooner or later the server offers it again, at once if it
    // remembers the client, and gets a DHCPDECLINE.
    let _neighbour = site.segment.attach("neighbour", &format!("{address}/24")).await?;
    for _ in 0..ROUNDS {
        site.lease("web").await?;
        let other = site.address("web").await?;
        ensure!(other != address, "the neighbour's address was taken");
        if agent.metric("hgo_dhcp_declines_total").await? >= 1.0 {
            let heard = site.server.logged(Message::Decline);
            ensure!(heard != Some(false), "no DHCPDECLINE:\n{}", site.server.log());
            return Ok(());
        }
        site.deleted("web").await?;
    }
    bail!("the neighbour's address was never handed back:\n{}", site.server.log())
}

fn lives(kind: Kind) -> Result<()> {
    on_site(kind, short(kind), life)
}

#[test]
fn a_lease_of_dnsmasq_from_its_first_packet_to_its_last() -> Result<()> {
    lives(Kind::Dnsmasq)
}

#[test]
fn a_lease_of_kea_from_its_first_packet_to_its_last() -> Result<()> {
    lives(Kind::Kea)
}

#[test]
fn a_lease_of_isc_dhcpd_from_its_first_packet_to_its_last() -> Result<()> {
    lives(Kind::Isc)
}

#[test]
fn a_lease_of_udhcpd_from_its_first_packet_to_its_last() -> Result<()> {
    lives(Kind::Udhcpd)
}
