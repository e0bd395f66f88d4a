//! The operator is killed after every single write in the life of a leased address, and started
//! again; and two operators that both consider themselves leader.

use std::sync::atomic::Ordering;

use anyhow::Result;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::DeleteParams;
use testbed::{Proxy, Start, eventually};

use super::{Agent, NETWORK, grace, uid};
use crate::crash::{Last, cut_after};
use crate::support::{Cluster, SOON, address};

const KINDS: [&str; 2] = ["dhcpleases", "loadbalancers"];

/// A change that takes several writes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    /// Created, leased, published.
    Begin,
    /// The server granted another address.
    Move,
    /// Deleted, and created again.
    Return,
    /// Deleted, and released.
    End,
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_survives_a_crash_after_each_write() -> Result<()> {
    enumerate(&[Change::Begin, Change::Move]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_return_and_an_end_survive_a_crash_after_each_write() -> Result<()> {
    enumerate(&[Change::Return, Change::End]).await
}

async fn enumerate(changes: &[Change]) -> Result<()> {
    let cluster = Cluster::start().await?;
    let proxy = Proxy::start(&cluster.bed).await?;
    let _agent = Agent::start(&cluster, NETWORK).await?;
    for change in changes {
        for last in [Last::Answered, Last::Unanswered] {
            let mut writes = 0;
            while crashes_after(&cluster, &proxy, *change, last, writes).await? {
                writes += 1;
            }
            let least = match change {
                Change::Move => 1,
                Change::Begin => 2,
                Change::End => 3,
                Change::Return => 4,
            };
            assert!(writes >= least, "{change:?} took only {writes} writes: uncounted?");
            println!("{change:?}, {last:?}: crashed after each of {writes} writes");
        }
    }
    Ok(())
}

fn grace_of(change: Change) -> u32 {
    if change == Change::End { 0 } else { 86_400 }
}

/// Runs one crash. Returns whether it interrupted the change.
async fn crashes_after(
    cluster: &Cluster,
    proxy: &Proxy,
    change: Change,
    last: Last,
    writes: usize,
) -> Result<bool> {
    let mut before = String::new();
    if change != Change::Begin {
        let mut operator = cluster.standby(grace(grace_of(change))).await?;
        operator.leads().await?;
        cluster.dhcp_lb("web", &[]).await?;
        cluster.grant("web", "10.7.0.20").await?;
        cluster.publishes("web", "10.7.0.20").await?;
        before = uid(&cluster.record("web").await?);
        operator.process.terminate(SOON).await?;
    }
    proxy.clear_rule();
    let via = Some((proxy.url().to_owned(), proxy.ca_pem().to_owned()));
    let mut operator = cluster.standby(Start { via, ..grace(grace_of(change)) }).await?;
    operator.leads().await?;
    let cut = cut_after(proxy, &KINDS, last, writes);
    let is_cut = || cut.load(Ordering::SeqCst) > writes;
    begin(cluster, change, &is_cut).await?;
    let cut_short = eventually(SOON, "end or cut of the change", async || {
        if is_cut() {
            return anyhow::Ok(Some(true));
        }
        Ok(done(cluster, change, &before).await?.then_some(false))
    })
    .await?;
    operator.process.kill9()?;
    proxy.clear_rule();

    free_lease(cluster).await?;
    let mut operator = cluster.standby(grace(grace_of(change))).await?;
    operator.leads().await?;
    if cut_short {
        go_on(cluster, change).await?;
    }
    let what = format!("{change:?} after {writes} writes, {last:?}");
    eventually(SOON, &what, async || done(cluster, change, &before).await).await?;
    // One record, one owner.
    let records = cluster.records().list(&kube::api::ListParams::default()).await?;
    assert!(records.items.len() <= 1, "{what}: {records:?}");
    clean_up(cluster).await?;
    operator.process.terminate(SOON).await?;
    free_lease(cluster).await?;
    Ok(cut_short)
}

/// Makes the guest's and the agent's part of a change, as long as the operator does its own.
async fn begin(cluster: &Cluster, change: Change, is_cut: &impl Fn() -> bool) -> Result<()> {
    match change {
        Change::Begin => {
            cluster.dhcp_lb("web", &[]).await?;
            let seen = eventually(SOON, "record or cut", async || {
                let record = cluster.records().get_opt("web").await?;
                anyhow::Ok((record.is_some() || is_cut()).then(|| record.is_some()))
            })
            .await?;
            if seen {
                cluster.grant("web", "10.7.0.20").await?;
            }
        }
        Change::Move => drop(cluster.grant("web", "10.7.0.21").await?),
        Change::Return => {
            cluster.delete("web").await?;
            let gone = eventually(SOON, "end or cut", async || {
                let gone = cluster.lbs().get_opt("web").await?.is_none();
                anyhow::Ok((gone || is_cut()).then_some(gone))
            })
            .await?;
            if gone {
                // A LoadBalancer that returns before its deletion was noted needs fewer writes.
                eventually(SOON, "note of the end, or cut", async || {
                    let record = cluster.records().get_opt("web").await?;
                    let noted = record.is_some_and(|record| record.spec.release_after.is_some());
                    anyhow::Ok(noted || is_cut())
                })
                .await?;
                cluster.dhcp_lb("web", &[]).await?;
            }
        }
        Change::End => cluster.delete("web").await?,
    }
    Ok(())
}

/// Makes the rest of the change, after the crash.
async fn go_on(cluster: &Cluster, change: Change) -> Result<()> {
    match change {
        Change::Begin => {
            cluster.grant("web", "10.7.0.20").await?;
        }
        Change::Move | Change::End => {}
        Change::Return => {
            // Either it is still in deletion, or it was created again before the crash.
            let again = eventually(SOON, "one that stays, or none", async || {
                let lb = cluster.lbs().get_opt("web").await?;
                anyhow::Ok(match lb {
                    None => Some(true),
                    Some(lb) => lb.metadata.deletion_timestamp.is_none().then_some(false),
                })
            })
            .await?;
            if again {
                cluster.dhcp_lb("web", &[]).await?;
            }
        }
    }
    Ok(())
}

async fn done(cluster: &Cluster, change: Change, before: &str) -> Result<bool> {
    let lb = cluster.lbs().get_opt("web").await?;
    let record = cluster.records().get_opt("web").await?;
    let published = lb.as_ref().and_then(address);
    Ok(match change {
        Change::Begin => published.as_deref() == Some("10.7.0.20"),
        Change::Move => {
            published.as_deref() == Some("10.7.0.21")
                && record.is_some_and(|record| uid(&record) == before)
        }
        Change::Return => {
            let stays = lb.is_some_and(|lb| lb.metadata.deletion_timestamp.is_none());
            let kept = |record: &harvester_guest_operator::api::DHCPLease| {
                uid(record) == before && record.spec.release_after.is_none()
            };
            stays && published.as_deref() == Some("10.7.0.20") && record.as_ref().is_some_and(kept)
        }
        Change::End => {
            let going = record.is_none_or(|record| record.metadata.deletion_timestamp.is_some());
            lb.is_none() && going
        }
    })
}

async fn free_lease(cluster: &Cluster) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), "kube-system");
    match leases.delete("harvester-load-balancer", &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        other => other.map(drop).map_err(Into::into),
    }
}

async fn clean_up(cluster: &Cluster) -> Result<()> {
    if cluster.lbs().get_opt("web").await?.is_some() {
        cluster.deleted("web").await?;
    }
    if let Some(record) = cluster.records().get_opt("web").await? {
        if record.metadata.deletion_timestamp.is_none() {
            cluster.delete_record("web").await?;
        }
        cluster.let_go("web").await?;
    }
    cluster.record_gone("web").await
}

/// Two operators that each lead by a Lease of their own: the API server refuses a write that the
/// other's has overtaken, and the result is one.
#[tokio::test(flavor = "multi_thread")]
async fn two_leaders_do_one_work() -> Result<()> {
    let cluster = Cluster::start().await?;
    let _agent = Agent::start(&cluster, NETWORK).await?;
    let first = cluster.standby(grace(86_400)).await?;
    first.leads().await?;
    let lease = Some("kube-system/another".to_owned());
    // The chart's role names one Lease: the test adds the second.
    cluster.robbed();
    let role = serde_json::json!({"rules": [{"apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"], "verbs": ["get", "create", "update"]}]});
    let roles: Api<k8s_openapi::api::rbac::v1::Role> =
        Api::namespaced(cluster.client.clone(), "kube-system");
    let patch = kube::api::Patch::Merge(role);
    roles.patch("harvester-guest-operator", &kube::api::PatchParams::default(), &patch).await?;
    let second = cluster.standby(Start { lease, ..grace(86_400) }).await?;
    second.leads().await?;
    for round in 0..5_u8 {
        cluster.dhcp_lb("web", &[]).await?;
        let record = cluster.record("web").await?;
        let ip = format!("10.7.0.{}", 20 + round);
        cluster.grant("web", &ip).await?;
        cluster.publishes("web", &ip).await?;
        cluster.deleted("web").await?;
        cluster.is_left("web", true).await?;
        assert_eq!(uid(&record), uid(&cluster.record("web").await?), "round {round}");
    }
    Ok(())
}
