//! The DHCP servers, each with a client of another project.

use anyhow::{Context as _, Result, ensure};
use testbed::net::dhcp::{DhcpServer, Kind, Scope};
use testbed::net::{Netns, Segment};

/// Gets a lease with a host name, and returns the hardware address.
async fn lease(client: &Netns, hostname: &str) -> Result<String> {
    let name = format!("hostname:{hostname}");
    let args =
        ["udhcpc", "-i", "eth0", "-f", "-q", "-n", "-t", "20", "-s", "/bin/true", "-x", &name];
    client.command("busybox", &args).await?;
    let shown = client.ip("-o link show eth0").await?;
    let mac = shown.split("link/ether ").nth(1).context("no hardware address")?;
    Ok(mac.split(' ').next().unwrap_or_default().to_owned())
}

async fn serves(kind: Kind) -> Result<()> {
    let segment = Segment::new("switch").await?;
    let scope = Scope::new([10, 77, 0, 1]);
    let there = segment.attach("server", "10.77.0.1/24").await?;
    let client = Netns::new("client").await?;
    segment.plug(&client, "eth0").await?;
    let mut server = DhcpServer::start(kind, &there, "eth0", &scope).await?;
    let mac = lease(&client, "probe").await.with_context(|| server.log())?;
    let granted = server.granted_to(&mac).await?;
    let granted = granted.with_context(|| format!("nothing for {mac}:\n{}", server.log()))?;
    ensure!(scope.holds(granted.address) && granted.hostname == "probe", "{granted:?}");
    // It retains leases, until they are removed.
    server.restart(&scope).await?;
    let again = server.granted_to(&mac).await?.context("forgotten by a restart")?;
    ensure!(again.address == granted.address, "{again:?}");
    server.stop().await?;
    server.forget()?;
    server.restart(&scope).await?;
    ensure!(server.granted_to(&mac).await?.is_none(), "not forgotten");
    Ok(())
}

#[tokio::test]
async fn dnsmasq_serves_and_remembers() -> Result<()> {
    serves(Kind::Dnsmasq).await
}

#[tokio::test]
async fn kea_serves_and_remembers() -> Result<()> {
    serves(Kind::Kea).await
}

#[tokio::test]
async fn isc_dhcpd_serves_and_remembers() -> Result<()> {
    serves(Kind::Isc).await
}

#[tokio::test]
async fn udhcpd_serves_and_remembers() -> Result<()> {
    serves(Kind::Udhcpd).await
}
