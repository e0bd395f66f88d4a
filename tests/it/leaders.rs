//! Leader election and takeover, and two leaders at once, which do no harm.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harvester_guest_operator::api::ANNOTATION_LEASE_SECONDS;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use testbed::{Proxy, Start, Verdict, eventually};

use crate::support::{Cluster, LATER, SOON, address, shows, writes};

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_killed_in_a_burst_loses_nothing() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("big", json!({"subnet": "10.64.0.0/16"})).await?;
    let mut leader = cluster.operator().await?;
    let standby = cluster.standby(Start::default()).await?;
    standby.ready().await?;
    let burst = cluster.lbs_at_once((0..1_000).map(|i| format!("lb-{i}")));
    let kill = async {
        let given = "hgo_time_to_address_seconds_count";
        eventually(LATER, "first addresses", async || {
            anyhow::Ok(
                leader.metric(given, &[]).await? + standby.metric(given, &[]).await? >= 200.0,
            )
        })
        .await?;
        leader.process.kill9()?;
        let killed = Instant::now();
        // The standby has at least this LoadBalancer to serve.
        cluster.lb("after").await?;
        shows(&standby, given, &[], |count| count > 0.0).await?;
        // Printed, not asserted: a busy machine is no fault.
        println!("from the leader's death to the standby's first address: {:?}", killed.elapsed());
        Ok(())
    };
    tokio::try_join!(burst, kill)?;
    cluster.addressed(1_001).await?;
    let list = cluster.lbs().list(&ListParams::default()).await?;
    let distinct: BTreeSet<_> = list.items.iter().filter_map(address).collect();
    assert_eq!(distinct.len(), 1_001);
    cluster.consistent().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_leader_gives_the_lease_back() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let mut leader =
        cluster.standby(Start { identity: Some("first".into()), ..Start::default() }).await?;
    leader.leads().await?;
    let second =
        cluster.standby(Start { identity: Some("second".into()), ..Start::default() }).await?;
    second.ready().await?;
    assert_eq!(second.metric("hgo_leader", &[]).await?, 0.0);
    let status = leader.process.terminate(SOON).await?;
    assert!(status.success(), "{status}");
    assert!(leader.process.log().contains("Lease released"));
    second.leads().await?;
    cluster.lb("lb").await?;
    cluster.address("lb").await?;
    let lease = leases(&cluster).get("harvester-load-balancer").await?;
    let for_replicas = lease.annotations().get(ANNOTATION_LEASE_SECONDS);
    assert_eq!(for_replicas.map(String::as_str), Some("10"), "as configured");
    let lease = lease.spec.unwrap_or_default();
    assert_eq!(lease.holder_identity.as_deref(), Some("second"));
    assert_eq!(lease.lease_transitions, Some(2));
    assert_eq!(lease.lease_duration_seconds, Some(45), "for the Go controller");
    Ok(())
}

/// The Go controller's Lease lasts 45 s from its last change, by the clock of this process.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_another_process_renews_is_respected() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let theirs: Lease = serde_json::from_value(json!({
        "metadata": {"name": "harvester-load-balancer"},
        "spec": {"holderIdentity": "go-controller", "leaseDurationSeconds": 45},
    }))?;
    leases(&cluster).create(&PostParams::default(), &theirs).await?;
    let operator = cluster.standby(Start::default()).await?;
    operator.ready().await?;
    cluster.lb("lb").await?;
    // Long after a Lease of the operator's own duration would have expired.
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(operator.metric("hgo_leader", &[]).await?, 0.0);
    assert_eq!(writes(&operator).await?, 0.0);
    let freed = Patch::Merge(json!({"spec": {"holderIdentity": ""}}));
    leases(&cluster).patch("harvester-load-balancer", &PatchParams::default(), &freed).await?;
    operator.leads().await?;
    cluster.address("lb").await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_cut_off_from_its_lease_stops_writing_before_another_begins() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let proxy = Proxy::start(&cluster.bed).await?;
    let via = Some((proxy.url().to_owned(), proxy.ca_pem().to_owned()));
    let cut_off = cluster.standby(Start { via, ..Start::default() }).await?;
    cut_off.leads().await?;
    let other = cluster.standby(Start::default()).await?;
    other.ready().await?;
    proxy.set_rule(|call| match call.resource() {
        Some("leases") => Verdict::CutBefore,
        _ => Verdict::Pass,
    });
    other.leads().await?;
    shows(&cut_off, "hgo_leader", &[], |leads| leads == 0.0).await?;
    let before = writes(&cut_off).await?;
    cluster.lbs_at_once((0..20).map(|i| format!("lb-{i}"))).await?;
    cluster.addressed(20).await?;
    assert_eq!(writes(&cut_off).await?, before);

    // It observes its Lease again, and stands by.
    proxy.clear_rule();
    cut_off.ready().await?;
    cluster.lb("after").await?;
    cluster.address("after").await?;
    assert_eq!(writes(&cut_off).await?, before);
    cluster.consistent().await
}

/// A slow API server: the Lease is renewed, but each time after the leadership has expired.
/// Requests in between must not wait for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_leadership_that_is_renewed_too_late_ends_its_term_and_all_its_tasks() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/22"})).await?;
    let proxy = Proxy::start(&cluster.bed).await?;
    let via = Some((proxy.url().to_owned(), proxy.ca_pem().to_owned()));
    let options = ["--lease-duration", "3"].map(str::to_owned).to_vec();
    let operator = cluster.standby(Start { via, options, ..Start::default() }).await?;
    operator.leads().await?;
    // Two calls per round, the next round 0.8 s later: leadership of 2.5 s is renewed after 3 s.
    proxy.set_rule(|call| match call.resource() {
        Some("leases") => Verdict::Delay(Duration::from_millis(550)),
        _ => Verdict::Pass,
    });
    for index in 0..100 {
        cluster.lb(&format!("lb-{index}")).await?;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    eventually(SOON, "end of a term", async || {
        operator.process.log().contains("controllers stopped")
    })
    .await?;
    proxy.clear_rule();
    cluster.addressed(100).await?;
    cluster.consistent().await
}

#[tokio::test(flavor = "multi_thread")]
async fn two_leaders_at_once_never_give_one_address_twice() -> Result<()> {
    let cluster = Cluster::start().await?;
    // Small, so that every address changes hands; two, so that both leaders choose.
    for (name, subnet, priority) in [("a", "10.1.0.0/27", 2), ("b", "10.2.0.0/27", 1)] {
        let any = json!({"priority": priority, "scope": [{"project": "", "namespace": "*", "guestCluster": ""}]});
        cluster.pool_for(name, json!({"subnet": subnet}), any).await?;
    }
    let first = cluster.operator().await?;
    let mut second = cluster.second_leader(Start::default()).await?;

    let over = AtomicBool::new(false);
    let guests = futures::future::try_join_all((0..12).map(|guest| {
        let (cluster, over) = (&cluster, &over);
        async move {
            let mut round = 0;
            while !over.load(Ordering::Relaxed) {
                let name = format!("lb-{guest}-{}", round % 7);
                cluster.lb(&name).await?;
                if round % 3 != 0 {
                    cluster.address(&name).await?;
                }
                cluster.deleted(&name).await?;
                round += 1;
            }
            anyhow::Ok(round)
        }
    }));
    let watch = async {
        let began = Instant::now();
        let mut looks = 0;
        // Until both have written.
        let both =
            async || anyhow::Ok(writes(&first).await? > 20.0 && writes(&second).await? > 20.0);
        while began.elapsed() < Duration::from_secs(10) || !both().await? {
            ensure!(began.elapsed() < LATER, "one of them writes nothing");
            let list = cluster.lbs().list(&ListParams::default()).await?;
            let mut seen = BTreeSet::new();
            // A LoadBalancer in deletion has released its address before it goes.
            let alive = list.items.iter().filter(|lb| lb.metadata.deletion_timestamp.is_none());
            for ip in alive.filter_map(address) {
                ensure!(seen.insert(ip.clone()), "{ip} was given twice");
            }
            looks += 1;
        }
        over.store(true, Ordering::Relaxed);
        anyhow::Ok(looks)
    };
    let (rounds, looks) = tokio::try_join!(guests, watch)?;
    println!("{} rounds of guests, {looks} looks", rounds.iter().sum::<i32>());
    // Back to one leader, which repairs the differences between two.
    second.process.terminate(SOON).await?;
    cluster.lbs_at_once((0..10).map(|i| format!("last-{i}"))).await?;
    cluster.addressed(10).await?;
    cluster.consistent().await
}

/// Requests are refused from the fifth conflict on, and repeated until the pool is written.
#[tokio::test(flavor = "multi_thread")]
async fn twenty_conflicts_in_a_row_lose_no_request_and_make_one_event() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let proxy = Proxy::start(&cluster.bed).await?;
    let via = Some((proxy.url().to_owned(), proxy.ca_pem().to_owned()));
    let operator = cluster.standby(Start { via, ..Start::default() }).await?;
    operator.leads().await?;
    let refused = Arc::new(AtomicUsize::new(0));
    let count = refused.clone();
    proxy.set_rule(move |call| {
        let pool_write = call.is_write() && call.resource() == Some("ippools");
        if pool_write && count.fetch_add(1, Ordering::SeqCst) < 20 {
            let message = "the object has been modified".to_owned();
            return Verdict::Refuse { code: 409, reason: "Conflict", message };
        }
        Verdict::Pass
    });
    cluster.lbs_at_once((0..5).map(|i| format!("lb-{i}"))).await?;
    cluster.addressed(5).await?;
    assert!(refused.load(Ordering::SeqCst) > 20);
    cluster.consistent().await?;

    let events: Api<Event> = Api::all(cluster.client.clone());
    let of_pool = async || -> Result<Vec<Event>> {
        let list = events.list(&ListParams::default()).await?;
        let is_pool =
            |e: &Event| e.regarding.as_ref().is_some_and(|r| r.kind.as_deref() == Some("IPPool"));
        Ok(list.items.into_iter().filter(is_pool).collect())
    };
    let events = eventually(SOON, "event", async || {
        anyhow::Ok(Some(of_pool().await?).filter(|events| !events.is_empty()))
    })
    .await?;
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0].reason.as_deref(), Some("LedgerContended"));
    Ok(())
}

fn leases(cluster: &Cluster) -> Api<Lease> {
    Api::namespaced(cluster.client.clone(), "kube-system")
}
