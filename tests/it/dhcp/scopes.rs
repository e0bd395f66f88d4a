//! Servers that are remote, have too few addresses, or grant without end.

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result, ensure};
use testbed::eventually;
use testbed::net::Segment;
use testbed::net::dhcp::{DhcpServer, Kind, Relay, Scope};

use super::fixture::{Site, on_site};
use crate::support::LATER;

/// The server of the segment is behind a relaying router.
#[test]
fn a_server_behind_a_relay_grants_renews_and_takes_back() -> Result<()> {
    let scope = Scope::new([10, 77, 0, 1]).seconds(60).timers(15, 50);
    on_site(Kind::Kea, scope, async |mut site: Site| {
        site.server.stop().await?;
        let there = Segment::new("beyond").await?;
        let (here, beyond) = (Ipv4Addr::new(10, 77, 0, 254), Ipv4Addr::new(10, 88, 0, 1));
        let router = site.segment.attach("router", &format!("{here}/24")).await?;
        there.plug(&router, "eth1").await?;
        router.ip("address add 10.88.0.254/24 dev eth1").await?;
        router.sysctl("net/ipv4/ip_forward", "1").await?;
        let machine = there.attach("server", &format!("{beyond}/24")).await?;
        machine.ip("route add default via 10.88.0.254").await?;
        let mut server = DhcpServer::start(Kind::Kea, &machine, "eth0", &site.scope).await?;
        let _relay = Relay::start(&router, here, beyond).await?;

        let _agent = site.agent().await?;
        let mac = site.lease("web").await?.mac.to_string();
        let first = site.bound("web", "address", |_| true).await?;
        ensure!(first.server == Some(beyond.to_string()), "{first:?}");
        let granted = server.granted_to(&mac).await?.context("not in the server's file")?;
        ensure!(Some(granted.address.to_string()) == first.address, "{granted:?}, {first:?}");
        let renewed = site.renewed("web", &first).await?;
        ensure!(renewed.address == first.address, "{renewed:?}");
        site.deleted("web").await?;
        eventually(LATER, "release of the address", async || {
            server.granted_to(&mac).await.map(|granted| granted.is_none())
        })
        .await
    })
}

/// A client without an offer repeats its request, reports that, and gets the address when it is
/// free.
#[test]
fn a_range_of_one_address_serves_one_after_the_other() -> Result<()> {
    on_site(Kind::Dnsmasq, Scope::new([10, 77, 0, 1]).range(100, 100), async |site: Site| {
        let agent = site.agent().await?;
        site.lease("first").await?;
        let address = site.address("first").await?;
        site.lease("second").await?;
        eventually(LATER, "second lease without an offer", async || {
            let status = site.status("second").await.map_err(|error| error.to_string())?;
            let ready = status.conditions.first().and_then(|ready| ready.reason.clone());
            if ready.as_deref() == Some("NoOffer") { Ok(true) } else { Err(format!("{status:?}")) }
        })
        .await?;
        site.deleted("first").await?;
        ensure!(site.address("second").await? == address, "there is no other");
        ensure!(agent.metric("hgo_dhcp_retries_total").await? >= 1.0, "it did not ask again");
        Ok(())
    })
}

/// A lease without end has no time in its record, outlives its agent, and is released all the same.
async fn endless(mut site: Site) -> Result<()> {
    let mut agent = site.agent().await?;
    let mac = site.lease("web").await?.mac.to_string();
    let first = site.bound("web", "address", |_| true).await?;
    ensure!(first.lease_seconds.is_none() && first.expires_at.is_none(), "{first:?}");
    ensure!(site.server.granted_to(&mac).await?.is_some(), "not in the server's file");
    site.kill(&mut agent).await?;
    let agent = site.agent().await?;
    eventually(LATER, "word from the server", async || {
        agent.metric("hgo_dhcp_renew_seconds_count").await.map(|renewed| renewed >= 1.0)
    })
    .await?;
    let again = site.status("web").await?;
    ensure!(again.address == first.address && again.expires_at.is_none(), "{again:?}");
    site.deleted("web").await?;
    eventually(LATER, "release of the address", async || {
        site.server.granted_to(&mac).await.map(|granted| granted.is_none())
    })
    .await
}

#[test]
fn a_lease_of_dnsmasq_without_end() -> Result<()> {
    on_site(Kind::Dnsmasq, Scope::new([10, 77, 0, 1]).seconds(u32::MAX), endless)
}

#[test]
fn a_lease_of_kea_without_end() -> Result<()> {
    on_site(Kind::Kea, Scope::new([10, 77, 0, 1]).seconds(u32::MAX), endless)
}
