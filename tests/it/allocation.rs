//! Addresses claimed, retained and released.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use futures::{StreamExt as _, TryStreamExt as _};
use kube::ResourceExt as _;
use kube::api::ListParams;
use serde_json::json;
use testbed::{Call, Proxy, Stalls, Start, Verdict, eventually};

use crate::support::{
    Cluster, SOON, address, beside_bare_writes, lb, nothing_failed, ready, settled, shows,
    unanswered, writes,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_at_once_get_distinct_addresses_with_few_writes() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("big", json!({"subnet": "10.64.0.0/16"})).await?;
    // The operator finds them all when it starts. If they came one after the other, the number of
    // writes would depend on how fast the API server is.
    cluster.lbs_at_once((0..1_000).map(|i| format!("lb-{i}"))).await?;
    let operator = cluster.operator().await?;
    cluster.addressed(1_000).await?;

    let list = cluster.lbs().list(&ListParams::default()).await?;
    let distinct: BTreeSet<_> = list.items.iter().filter_map(address).collect();
    assert_eq!(distinct.len(), 1_000);
    let unanswered = unanswered(&operator)?;
    let per_address = (writes(&operator).await? - unanswered) / 1_000.0;
    assert!(per_address <= 1.10, "{per_address} writes per address");
    let conflicts = operator.metric("hgo_api_writes_total", &["conflict"]).await?;
    assert!(conflicts <= unanswered, "{conflicts} conflicts, {unanswered} calls unanswered");
    cluster.consistent().await?;

    cluster.delete_all().await?;
    assert!(cluster.allocated("big").await?.is_empty());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_name_created_and_deleted_500_times_never_sticks() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster
        .pool(
            "two",
            json!({"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10", "rangeEnd": "10.1.0.11"}),
        )
        .await?;
    let _operator = cluster.operator().await?;
    for _ in 0..500 {
        // The name becomes free with the end of its predecessor's finalizer.
        eventually(SOON, "free name", async || cluster.lb("same").await.map(|_| true)).await?;
        cluster.delete("same").await?;
    }
    cluster.all_gone().await?;
    eventually(SOON, "empty ledger", async || cluster.allocated("two").await.map(|a| a.is_empty()))
        .await?;
    cluster.lb("same").await?;
    cluster.address("same").await?;
    cluster.consistent().await
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_say_so_and_are_served_oldest_first_without_polling() -> Result<()> {
    let cluster = Cluster::start().await?;
    let range =
        |end: &str| json!({"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10", "rangeEnd": end});
    cluster.pool("two", range("10.1.0.11")).await?;
    let operator = cluster.operator().await?;
    for name in ["a", "b"] {
        cluster.lb(name).await?;
        cluster.address(name).await?;
    }
    for name in ["c", "d", "e"] {
        cluster.lb(name).await?;
        let message = cluster.waits(name, "NoAvailableIP").await?;
        assert!(message.contains("no available IP") && message.contains("two"), "{message}");
        // Creation times have whole seconds: make each older than the next.
        tokio::time::sleep(Duration::from_millis(1_100)).await;
    }
    shows(&operator, "hgo_pool_waiters", &["two"], |waiters| waiters == 3.0).await?;

    let before = settled("writes", async || writes(&operator).await).await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(writes(&operator).await?, before, "a write without a cause");

    let freed = cluster.address("a").await?;
    cluster.deleted("a").await?;
    assert_eq!(cluster.address("c").await?, freed);
    assert_eq!(ready(&cluster.lbs().get("d").await?).1, "NoAvailableIP");

    cluster.patch_pool("two", json!({"spec": {"ranges": [range("10.1.0.20")]}})).await?;
    cluster.address("d").await?;
    cluster.address("e").await?;
    cluster.consistent().await
}

#[tokio::test(flavor = "multi_thread")]
async fn restarts_move_no_address_and_write_nothing() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let mut operator = cluster.operator().await?;
    cluster.lbs_at_once((0..20).map(|i| format!("lb-{i}"))).await?;
    cluster.lb_with("vm", json!({})).await?;
    cluster.lb_with("dhcp", json!({"ipam": "dhcp", "workloadType": "cluster"})).await?;
    cluster.lb_with("lost", json!({"ipPool": "nowhere"})).await?;
    cluster.addressed(22).await?;
    cluster.waits("lost", "IPPoolNotFound").await?;
    cluster.waits("vm", "NoRunningBackends").await?;
    let versions = async || -> Result<Vec<_>> {
        let mut versions: Vec<_> = cluster
            .lbs()
            .list(&ListParams::default())
            .await?
            .into_iter()
            .map(|lb| (lb.name_any(), lb.resource_version()))
            .collect();
        versions.push(("pool".to_owned(), cluster.pools().get("pool").await?.resource_version()));
        Ok(versions)
    };
    let before = settled("all objects", versions).await?;
    for round in 0..5 {
        if round % 2 == 0 {
            operator.process.kill9()?;
            cluster.free_lease().await?;
        } else {
            operator.process.terminate(SOON).await?;
        }
        operator = cluster.operator().await?;
        // Its first reconcile of all objects is over when a new LoadBalancer is served.
        let probe = format!("probe-{round}");
        cluster.lb_with(&probe, json!({"ipam": "dhcp", "workloadType": "cluster"})).await?;
        cluster.address(&probe).await?;
        cluster.deleted(&probe).await?;
        assert_eq!(versions().await?, before, "round {round}");
        assert_eq!(writes(&operator).await?, 1.0, "only the probe was written");
    }
    cluster.consistent().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_gives_up_after_ten_seconds_never_has_to() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/22"})).await?;
    let _operator = cluster.operator().await?;
    let (stalls, longest) = (Stalls::watch()?, Cell::new(Duration::ZERO));
    // As the guest cloud provider does: create, then read once a second, ten times. A second in
    // which the machine stalls does not count.
    let guests = futures::stream::iter(0..200).map(anyhow::Ok).try_for_each_concurrent(
        10,
        async |i: i32| {
            let name = format!("svc-{i}");
            cluster.lb(&name).await?;
            let began = Instant::now();
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                // A read without an address is judged by the time at which it began.
                let waited = stalls.elapsed(began);
                if address(&cluster.lbs().get(&name).await?).is_some() {
                    return Ok(());
                }
                longest.set(longest.get().max(waited));
                anyhow::ensure!(began.elapsed() < SOON, "{name} gets no address");
            }
        },
    );
    let limit = Duration::from_secs(10);
    let ((), most) = beside_bare_writes(&cluster, &stalls, limit, guests).await?;
    let longest = longest.get();
    anyhow::ensure!(longest < most, "after {longest:?}, more than {most:?}, a guest gave up");
    cluster.consistent().await
}

/// The guest treats a LoadBalancer without `status.address` as one that does not exist, and then
/// never deletes it.
#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_deletes_only_what_has_an_address_leaves_nothing_behind() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let _operator = cluster.operator().await?;
    for (i, ipam) in (0..50).zip(["pool", "dhcp"].iter().cycle()) {
        let name = format!("svc-{i}");
        cluster.lb_with(&name, json!({"workloadType": "cluster", "ipam": ipam})).await?;
        cluster.address(&name).await?;
        let seen = cluster.lbs().get(&name).await?;
        if seen.status.is_some_and(|s| s.address.is_some_and(|a| !a.is_empty())) {
            cluster.delete(&name).await?;
        }
    }
    cluster.all_gone().await?;
    assert!(cluster.allocated("pool").await?.is_empty());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_workload_type_gets_what_its_reader_expects() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    cluster.pool_for("six", json!({"subnet": "fd00:1::/64"}), json!({})).await?;
    let _operator = cluster.operator().await?;
    let status = async |name: &str, spec: serde_json::Value| {
        cluster.lb_with(name, spec).await?;
        cluster.address(name).await?;
        let lb = cluster.lbs().get(name).await?;
        anyhow::Ok((serde_json::to_value(lb.status.clone())?, ready(&lb)))
    };
    let (guest, is_ready) = status("guest", json!({"workloadType": "cluster"})).await?;
    assert_eq!(
        guest["allocatedAddress"],
        json!({"ipPool": "pool", "ip": "10.1.0.2", "mask": "255.255.255.0", "gateway": "10.1.0.1"})
    );
    assert_eq!(guest["address"], "10.1.0.2");
    assert_eq!((is_ready.0.as_str(), is_ready.1.as_str()), ("True", "Allocated"));

    let (vm, _) = status("vm", json!({})).await?;
    assert_eq!(vm["allocatedAddress"]["ip"], "10.1.0.3");
    assert_eq!(vm.get("address"), None, "an address without an announcer is not published");
    cluster.waits("vm", "NoRunningBackends").await?;

    let (dhcp, _) = status("dhcp", json!({"workloadType": "cluster", "ipam": "dhcp"})).await?;
    assert_eq!(dhcp["allocatedAddress"], json!({"ip": "0.0.0.0"}));
    assert_eq!(dhcp["address"], "0.0.0.0", "to the guest an empty one would not exist");

    let (six, _) = status("six", json!({"workloadType": "cluster", "ipPool": "six"})).await?;
    assert_eq!(six["allocatedAddress"]["ip"], "fd00:1::2");
    cluster.deleted("dhcp").await?;
    cluster.consistent().await
}

/// The guest cloud provider writes `status.address` by a plain update of the whole object.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_guest_writes_to_its_address_stays() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let _operator = cluster.operator().await?;
    cluster.lb("guest").await?;
    cluster.address("guest").await?;
    let mut guest = cluster.lbs().get("guest").await?;
    guest.status.get_or_insert_default().address = Some("192.0.2.7".to_owned());
    cluster.lbs().replace("guest", &kube::api::PostParams::default(), &guest).await?;
    cluster.lb("after").await?;
    cluster.address("after").await?;
    let guest = cluster.lbs().get("guest").await?;
    assert_eq!(guest.status.and_then(|s| s.address).as_deref(), Some("192.0.2.7"));
    Ok(())
}

/// Writes that another client's write has overtaken: each is decided again on the current object.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_write_is_decided_again_on_the_current_object_and_is_no_failure() -> Result<()> {
    let cluster = Cluster::start().await?;
    let proxy = Proxy::start(&cluster.bed).await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let via = Some((proxy.url().to_owned(), proxy.ca_pem().to_owned()));
    let operator = cluster.standby(Start { via, ..Start::default() }).await?;
    operator.leads().await?;
    let of_web = |call: &Call| {
        call.resource() == Some("loadbalancers") && call.name() == Some("web") && !call.is_watch()
    };
    let methods = || -> Vec<String> {
        let calls = proxy.calls().into_iter().map(|record| record.call);
        calls.filter(of_web).map(|call| call.method).collect()
    };
    let refuse_two = || {
        proxy.reset();
        let refused = AtomicUsize::new(0);
        proxy.set_rule(move |call| {
            if of_web(call) && call.is_write() && refused.fetch_add(1, Ordering::SeqCst) < 2 {
                let message = "the object has been modified".to_owned();
                return Verdict::Refuse { code: 409, reason: "Conflict", message };
            }
            Verdict::Pass
        });
    };
    let expected = ["PATCH", "GET", "PATCH", "GET", "PATCH"];
    refuse_two();
    cluster.lb("web").await?;
    cluster.address("web").await?;
    assert_eq!(methods(), expected, "publication");
    refuse_two();
    cluster.deleted("web").await?;
    assert_eq!(methods(), expected, "end");
    cluster.consistent().await?;
    nothing_failed(&operator).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_gets_its_former_address_back_while_it_is_free() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let mut operator = cluster.operator().await?;
    for name in ["a", "b", "c"] {
        cluster.lb(name).await?;
        cluster.address(name).await?;
    }
    let former = cluster.address("b").await?;
    cluster.deleted("b").await?;
    operator.process.kill9()?;
    cluster.free_lease().await?;
    let _operator = cluster.operator().await?;
    cluster.lb("d").await?;
    assert_ne!(cluster.address("d").await?, former, "others take the next one");
    cluster.lb("b").await?;
    assert_eq!(cluster.address("b").await?, former);
    Ok(())
}

/// The reconciles of one LoadBalancer would delay those of all others.
#[tokio::test(flavor = "multi_thread")]
async fn a_loadbalancer_that_changes_all_the_time_is_reconciled_once_a_second() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("one", json!({"subnet": "10.1.0.0/24"})).await?;
    cluster.pool_for("two", json!({"subnet": "10.2.0.5/32"}), json!({})).await?;
    let operator = cluster.operator().await?;
    cluster.lb("busy").await?;
    cluster.address("busy").await?;
    let reconciles = async || operator.metric("hgo_reconcile_seconds_count", &[]).await;
    let (before, began) = (settled("reconciles", reconciles).await?, Instant::now());
    for round in 0..300 {
        cluster.patch_lb("busy", json!({"spec": {"description": round.to_string()}})).await?;
    }
    cluster.patch_lb("busy", json!({"spec": {"ipPool": "two"}})).await?;
    eventually(SOON, "address of the last change", async || {
        cluster.address("busy").await.map(|address| address == "10.2.0.5")
    })
    .await?;
    let most = 20.0 + began.elapsed().as_secs_f64();
    let made = reconciles().await? - before;
    assert!(made <= most, "{made} reconciles, at most {most}");
    cluster.consistent().await?;
    nothing_failed(&operator).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_pool_claims_the_new_address_before_the_old_is_freed() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("one", json!({"subnet": "10.1.0.0/24"})).await?;
    cluster.pool_for("two", json!({"subnet": "10.2.0.5/32"}), json!({})).await?;
    let _operator = cluster.operator().await?;
    cluster.lb("mover").await?;
    assert_eq!(cluster.address("mover").await?, "10.1.0.2");
    cluster.patch_lb("mover", json!({"spec": {"ipPool": "two"}})).await?;
    eventually(SOON, "new address", async || {
        cluster.address("mover").await.map(|a| a == "10.2.0.5")
    })
    .await?;
    cluster.consistent().await?;
    let moved = cluster.lbs().get("mover").await?;
    assert_eq!(moved.status.and_then(|s| s.address).as_deref(), Some("10.2.0.5"));

    // The pool that it names is full: it retains its address, and its condition gives the reason.
    cluster
        .lbs()
        .create(
            &kube::api::PostParams::default(),
            &lb("stays", &json!({"workloadType": "cluster", "ipPool": "one"}))?,
        )
        .await?;
    let kept = cluster.address("stays").await?;
    cluster.patch_lb("stays", json!({"spec": {"ipPool": "two"}})).await?;
    eventually(SOON, "notice", async || {
        let is = ready(&cluster.lbs().get("stays").await?);
        anyhow::Ok(is.0 == "True" && is.1 == "NoAvailableIP" && is.2.contains(&kept))
    })
    .await?;
    assert_eq!(cluster.address("stays").await?, kept);

    // It moves when an address is free.
    cluster.deleted("mover").await?;
    eventually(SOON, "move", async || cluster.address("stays").await.map(|a| a == "10.2.0.5"))
        .await?;
    cluster.consistent().await
}
