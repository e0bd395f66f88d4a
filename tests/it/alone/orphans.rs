//! Time until LoadBalancers of one pool have their addresses, while another pool is full of
//! orphans.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use testbed::{Stalls, Start, eventually};

use crate::ledger::make_orphans;
use crate::support::{Cluster, SOON, beside_bare_writes};

/// Longest time from the beginning of leadership to an address, if the API server answers at
/// once.
const WITHIN: Duration = Duration::from_secs(3);

/// One LoadBalancer is older than the leader's term, and the other is created in the term.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_comes_within_three_seconds_of_leading_beside_any_orphans() -> Result<()> {
    let cluster = Cluster::start().await?;
    let guest = make_orphans(&cluster).await?;
    cluster.lb_with("older", guest.clone()).await?;
    let stalls = Stalls::watch()?;
    let operator = cluster.standby(Start::default()).await?;
    // Time of the last answer that showed no leadership: the term began after it.
    let led = Cell::new(Instant::now());
    let leads = async || {
        let asked = Instant::now();
        let leads = operator.metric("hgo_leader", &[]).await? == 1.0;
        if !leads {
            led.set(asked);
        }
        anyhow::Ok(leads)
    };
    let addresses = async {
        eventually(SOON, "leadership", leads).await?;
        let led = led.get();
        cluster.lb_with("newer", guest).await?;
        for name in ["older", "newer"] {
            cluster.address(name).await?;
            println!("{name} has its address {:?} after the term began", stalls.elapsed(led));
        }
        Ok(stalls.elapsed(led))
    };
    let (took, most) = beside_bare_writes(&cluster, &stalls, WITHIN, addresses).await?;
    ensure!(took < most, "{took:?}, more than {most:?}");
    let left = cluster.allocated("orphaned").await?.len();
    ensure!(left > 0, "the orphans were freed before the addresses came");
    Ok(())
}
