//! Operator, agent and server together, from a LoadBalancer to the server's lease file and back.

use anyhow::{Context as _, Result, ensure};
use testbed::eventually;
use testbed::net::dhcp::{Kind, Scope};

use super::fixture::{Site, on_site};
use crate::support::LATER;

/// A LoadBalancer gets an address of the server, retains it when it is recreated within the grace,
/// and releases it when it is not.
#[test]
fn a_load_balancer_has_an_address_of_the_server() -> Result<()> {
    on_site(Kind::Dnsmasq, Scope::new([10, 77, 0, 1]), async |mut site: Site| {
        let _agent = site.agent().await?;
        let operator = site.operator(600).await?;
        site.ask("web").await?;
        let first = site.has("web").await?;
        ensure!(site.scope.holds(first.parse()?), "{first}");
        let holder = site.records().get("web").await?.spec.mac_address;
        let granted = site.server.granted_to(&holder).await?.context("no grant")?;
        ensure!(granted.address.to_string() == first, "{granted:?}, and {first} is published");
        let link = format!("lb{}", holder.replace(':', ""));
        ensure!(site.links().await? == [link], "{:?}", site.links().await?);

        site.cluster.deleted("web").await?;
        site.ask("web").await?;
        let again = site.has("web").await?;
        ensure!(again == first, "{first} became {again} within the grace");

        // Leaders differ in their grace.
        drop(operator);
        site.cluster.free_lease().await?;
        let _operator = site.operator(1).await?;
        site.cluster.deleted("web").await?;
        eventually(LATER, "end of the record", async || {
            site.records().get_opt("web").await.map(|record| record.is_none())
        })
        .await?;
        let left = site.server.granted_to(&holder).await?;
        ensure!(left.is_none(), "the record is gone, and the server still has {left:?}");
        site.linked(&[]).await
    })
}
