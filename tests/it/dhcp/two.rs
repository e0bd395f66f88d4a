//! Two agents of one network, of which one is active.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use testbed::net::dhcp::{Kind, Scope};
use testbed::{LeaseAgent, Stalls, eventually};

use super::fixture::{INTERFACE, Site, on_site};
use crate::support::{LATER, beside_bare_writes};

const OTHER: &str = "net2";
/// Bound for a failover, several times the Lease's 10 s, if the API server answers at once.
const FAILOVER: Duration = Duration::from_secs(45);

/// Number of terms of an agent. An agent that stalls for longer than its leadership lasts begins a
/// new one, which is no fault.
fn terms(agent: &LeaseAgent) -> usize {
    agent.process.log().matches("the list of DHCPLeases is complete").count()
}

/// Number of an agent's terms that have ended.
fn ends(agent: &LeaseAgent) -> usize {
    agent.process.log().matches("DHCP stopped").count()
}

/// Whether an agent is in a term. On a busy machine the other may have taken over meanwhile.
fn in_term(agent: &LeaseAgent) -> bool {
    let log = agent.process.log();
    log.rfind("the list of DHCPLeases is complete") > log.rfind("DHCP stopped")
}

/// Waits until one of two is active; whether it is the first.
async fn speaker(one: &LeaseAgent, two: &LeaseAgent) -> Result<bool> {
    eventually(LATER, "active agent", async || match (terms(one), terms(two)) {
        (0, 0) => None,
        (first, _) => Some(first > 0),
    })
    .await
}

#[test]
fn of_two_agents_one_speaks_and_the_other_takes_over_in_silence() -> Result<()> {
    let scope = Scope::new([10, 77, 0, 1]).seconds(60).timers(15, 50);
    on_site(Kind::Kea, scope, async |site: Site| {
        let other = site.segment.plug(&site.host, OTHER).await?;
        let (mut one, mut two) = tokio::try_join!(site.standby(INTERFACE), site.standby(OTHER))?;
        let (mut port, mut other) = (site.port.clone(), other);
        if !speaker(&one, &two).await? {
            std::mem::swap(&mut one, &mut two);
            std::mem::swap(&mut port, &mut other);
        }
        let web = site.lease("web").await?;
        let first = site.bound("web", "address", |_| true).await?;
        site.renewed("web", &first).await?;
        let heard = site.frames_from(&other).await?;
        ensure!(heard == 0 || terms(&two) > 0, "the other one sent {heard} frames");

        // The first is stopped for longer than its leadership lasts, as with its node, and the
        // other takes over. What is asked for meanwhile waits no longer than that.
        let stalls = Stalls::watch()?;
        one.process.signal("STOP")?;
        let stopped = Instant::now();
        let served = async {
            let late = site.lease("late").await?;
            eventually(LATER, "other active agent", async || in_term(&two)).await?;
            site.bound("late", "address from the other agent", |_| true).await?;
            anyhow::Ok(late)
        };
        let (late, most) = beside_bare_writes(&site.cluster, &stalls, FAILOVER, served).await?;
        let took = stalls.elapsed(stopped);
        println!("an address from the other agent after {:.1} s", took.as_secs_f64());
        ensure!(took < most, "an address from the other agent after {took:?}, limit {most:?}");
        let taken = site.status("web").await?;
        let again = site.renewed("web", &taken).await?;
        ensure!(again.address == first.address, "{again:?}");
        site.linked(&[&web, &late]).await?;

        // After its stall, the first has a renewal that is long due. It must not send it.
        let heard = site.frames_from(&port).await?;
        let (spoken, ended) = (terms(&one), ends(&one));
        one.process.signal("CONT")?;
        eventually(LATER, "inactive agent", async || !in_term(&one) || ends(&one) > ended).await?;
        let now = site.frames_from(&port).await?;
        ensure!(now == heard || terms(&one) > spoken, "{} frames without leadership", now - heard);

        // At a signal to end, the other hands over: it releases no address and leaves no link.
        two.stop().await?;
        eventually(LATER, "first agent active again", async || terms(&one) > spoken).await?;
        let taken = site.status("web").await?;
        ensure!(taken.address == first.address, "{taken:?}");
        let again = site.renewed("web", &taken).await?;
        ensure!(again.address == first.address, "{again:?}");
        site.linked(&[&web, &late]).await?;
        one.stop().await?;
        ensure!(site.links().await?.is_empty(), "{:?}", site.links().await?);
        let last = site.status("web").await?;
        last.address.context("released by an agent that only ended")?;
        Ok(())
    })
}
