//! The operator is killed after every single write, and started again. It recovers without help.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use kube::api::DeleteParams;
use serde_json::json;
use testbed::{Operator, Proxy, Start, Verdict, eventually};

use crate::support::{Cluster, SOON, address};

/// Outcome of the last write before the crash.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Last {
    /// The operator got the answer.
    Answered,
    /// The server carried it out, and the answer was lost.
    Unanswered,
}

/// A change that takes several writes.
#[derive(Clone, Copy, Debug)]
enum Change {
    Allocate,
    Release,
    Switch,
}

#[tokio::test(flavor = "multi_thread")]
async fn allocation_survives_a_crash_after_each_write() -> Result<()> {
    enumerate(Change::Allocate).await
}

#[tokio::test(flavor = "multi_thread")]
async fn release_survives_a_crash_after_each_write() -> Result<()> {
    enumerate(Change::Release).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_pool_survives_a_crash_after_each_write() -> Result<()> {
    enumerate(Change::Switch).await
}

/// The order of writes decides the state after a crash: a claim is recorded before it is published,
/// and released before its owner may go.
#[tokio::test(flavor = "multi_thread")]
async fn each_change_is_written_in_its_order() -> Result<()> {
    let cluster = Cluster::start().await?;
    let proxy = Proxy::start(&cluster.bed).await?;
    pools(&cluster).await?;
    let via = Some((proxy.url().to_owned(), proxy.ca_pem().to_owned()));
    let operator = cluster.standby(Start { via, ..Start::default() }).await?;
    operator.leads().await?;
    let (pool, lb) = ("ippools", "loadbalancers");
    for (change, order) in [
        (Change::Allocate, vec![pool, lb]),
        (Change::Switch, vec![pool, lb, pool]),
        (Change::Release, vec![pool, lb]),
    ] {
        proxy.reset();
        begin(&cluster, change).await?;
        // The switch left the address in the other pool.
        let over = async || match change {
            Change::Release => cluster.allocated("new").await.map(|a| a.is_empty()),
            _ => done(&cluster, change).await,
        };
        eventually(SOON, &format!("{change:?}"), over).await?;
        let gone = async || cluster.lbs().get_opt("lb").await.map(|lb| lb.is_none());
        if matches!(change, Change::Release) {
            eventually(SOON, "end of the LoadBalancer", gone).await?;
        }
        let writes = proxy.calls().into_iter().filter(|record| record.call.is_write());
        let writes: Vec<String> = writes
            .filter_map(|record| record.call.resource().map(str::to_owned))
            .filter(|resource| [pool, lb].contains(&resource.as_str()))
            .collect();
        assert_eq!(writes, order, "{change:?}");
    }
    Ok(())
}

/// Lets 0, 1, 2 … writes pass until the change needs no more.
async fn enumerate(change: Change) -> Result<()> {
    let cluster = Cluster::start().await?;
    let proxy = Proxy::start(&cluster.bed).await?;
    for last in [Last::Answered, Last::Unanswered] {
        let mut writes = 0;
        while crashes_after(&cluster, &proxy, change, last, writes).await? {
            writes += 1;
        }
        let least = match change {
            Change::Allocate | Change::Release => 2,
            Change::Switch => 3,
        };
        assert!(writes >= least, "{change:?} took only {writes} writes: uncounted?");
        println!("{change:?}, {last:?}: crashed after each of {writes} writes");
    }
    Ok(())
}

/// Runs one crash. Returns whether it interrupted the change.
async fn crashes_after(
    cluster: &Cluster,
    proxy: &Proxy,
    change: Change,
    last: Last,
    writes: usize,
) -> Result<bool> {
    // Pools of its own, so that each round begins with unused pools.
    for (name, third) in [("old", 1), ("new", 2)] {
        cluster.pool_for(name, json!({"subnet": format!("10.{third}.0.0/24")}), json!({})).await?;
    }
    if !matches!(change, Change::Allocate) {
        let mut operator = cluster.operator().await?;
        cluster.lb_with("lb", json!({"workloadType": "cluster", "ipPool": "old"})).await?;
        cluster.address("lb").await?;
        operator.process.terminate(SOON).await?;
    }
    proxy.clear_rule();
    let via = Some((proxy.url().to_owned(), proxy.ca_pem().to_owned()));
    let mut operator = cluster.standby(Start { via, ..Start::default() }).await?;
    operator.leads().await?;
    let cut = cut_after(proxy, &["ippools", "loadbalancers"], last, writes);
    begin(cluster, change).await?;
    let cut_short = eventually(SOON, "end or cut of the change", async || {
        if cut.load(Ordering::SeqCst) > writes {
            return anyhow::Ok(Some(true));
        }
        Ok(done(cluster, change).await?.then_some(false))
    })
    .await?;
    operator.process.kill9()?;
    proxy.clear_rule();

    cluster.free_lease().await?;
    let mut operator = cluster.operator().await?;
    let what = format!("{change:?} after {writes} writes, {last:?}");
    eventually(SOON, &what, async || done(cluster, change).await).await?;
    cluster.consistent().await?;
    clean_up(cluster, &mut operator).await?;
    Ok(cut_short)
}

async fn pools(cluster: &Cluster) -> Result<()> {
    for (name, third) in [("old", 1), ("new", 2)] {
        let range = json!({"subnet": format!("10.{third}.0.0/24")});
        cluster.pool_for(name, range, json!({})).await?;
    }
    Ok(())
}

/// Lets so many writes of these resources pass, then cuts every call. Counts the attempted writes.
pub(crate) fn cut_after(
    proxy: &Proxy,
    resources: &'static [&'static str],
    last: Last,
    writes: usize,
) -> Arc<AtomicUsize> {
    let tried = Arc::new(AtomicUsize::new(0));
    let counter = tried.clone();
    proxy.set_rule(move |call| {
        let ours = call.resource().is_some_and(|resource| resources.contains(&resource));
        if !call.is_write() || !ours {
            let over = counter.load(Ordering::SeqCst) > writes;
            return if over { Verdict::CutBefore } else { Verdict::Pass };
        }
        let number = counter.fetch_add(1, Ordering::SeqCst) + 1;
        if number > writes {
            Verdict::CutBefore
        } else if number == writes && matches!(last, Last::Unanswered) {
            // The operator's reaction is cut, too.
            counter.fetch_add(1, Ordering::SeqCst);
            Verdict::CutAfter
        } else {
            Verdict::Pass
        }
    });
    tried
}

async fn begin(cluster: &Cluster, change: Change) -> Result<()> {
    match change {
        Change::Allocate => cluster
            .lb_with("lb", json!({"workloadType": "cluster", "ipPool": "old"}))
            .await
            .map(drop),
        Change::Release => cluster.delete("lb").await,
        Change::Switch => {
            cluster.patch_lb("lb", json!({"spec": {"ipPool": "new"}})).await.map(drop)
        }
    }
}

async fn done(cluster: &Cluster, change: Change) -> Result<bool> {
    let lb = cluster.lbs().get_opt("lb").await?;
    let (old, new) = (cluster.allocated("old").await?, cluster.allocated("new").await?);
    let at = lb.as_ref().and_then(address).unwrap_or_default();
    Ok(match change {
        Change::Allocate => at == "10.1.0.2" && old.len() == 1,
        Change::Release => lb.is_none() && old.is_empty(),
        Change::Switch => at == "10.2.0.2" && old.is_empty() && new.len() == 1,
    })
}

async fn clean_up(cluster: &Cluster, operator: &mut Operator) -> Result<()> {
    if cluster.lbs().get_opt("lb").await?.is_some() {
        cluster.deleted("lb").await?;
    }
    for name in ["old", "new"] {
        assert!(cluster.allocated(name).await?.is_empty());
        cluster.pools().delete(name, &DeleteParams::default()).await?;
        eventually(SOON, "end of the pool", async || {
            cluster.pools().get_opt(name).await.map(|p| p.is_none())
        })
        .await?;
    }
    operator.process.terminate(SOON).await?;
    Ok(())
}
