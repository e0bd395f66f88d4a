//! The ledger against the world: edited, wiped, inherited, orphaned, and under a pool that goes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harvester_guest_operator::api::{ANNOTATION_MANUAL_RELEASE, IPPoolStatus, LB_FINALIZER};
use harvester_guest_operator::domain::pools::ledger::HISTORY_LENGTH;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};
use testbed::{Call, Proxy, Stalls, Start, Verdict, eventually};

use crate::support::{Cluster, LATER, SOON, beside_bare_writes, lb, settled, shows};

/// Number of claims that [`make_orphans`] writes.
const ORPHANS: u32 = 5_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_status_edited_by_hand_is_put_right_and_no_address_moves() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let operator = cluster.operator().await?;
    for name in ["a", "b", "former"] {
        cluster.lb(name).await?;
        cluster.address(name).await?;
    }
    cluster.deleted("former").await?;
    cluster.consistent().await?;
    let status = async || Ok(timeless(cluster.pools().get("pool").await?.status));
    let before = (settled("the ledger", status).await?, cluster.addresses().await?);
    let b = cluster.lbs().get("b").await?.uid();
    for edit in [
        json!({"total": 1_000, "available": 998, "usedPercent": 1}),
        json!({"allocated": {"10.1.0.2": null}}),
        json!({"allocated": {"10.1.0.2": null}, "allocatedOwners": {"10.1.0.2": null}}),
        json!({"allocatedOwners": {"10.1.0.2": "other"}}),
        // Another owner: by name alone, then by name and UID.
        json!({"allocated": {"10.1.0.2": "default/missing"}}),
        json!({"allocated": {"10.1.0.2": "default/b"}}),
        json!({"allocated": {"10.1.0.2": "default/b"}, "allocatedOwners": {"10.1.0.2": b}}),
        // A second address for an owner that has one.
        json!({"allocated": {"10.1.0.9": "default/b"}, "allocatedOwners": {"10.1.0.9": b}}),
        json!({"allocated": {"ten.one": "default/a"}, "allocatedOwners": {"ten.two": "a"}}),
        json!({"allocatedHistory": null, "lastAllocated": "nowhere"}),
        json!({"conditions": null}),
        Value::Null,
    ] {
        let edited = cluster.patch_pool_status("pool", json!({"status": edit})).await?;
        assert_ne!(timeless(edited.status), before.0, "not an edit: {edit}");
        eventually(SOON, &format!("repair of {edit}"), async || {
            let pool = cluster.pools().get("pool").await.map_err(|e| e.to_string())?;
            let now = timeless(pool.status);
            if now == before.0 { Ok(true) } else { Err(format!("{now:#?}")) }
        })
        .await?;
        assert_eq!(cluster.addresses().await?, before.1, "{edit}");
    }
    // A second address that looks like an older version's is freed by the next sweep.
    let second = json!({"status": {"allocated": {"10.1.0.9": "default/b"}}});
    cluster.patch_pool_status("pool", second).await?;
    cluster.consistent().await?;
    assert_eq!(cluster.addresses().await?, before.1);
    for what in ["orphan", "restored"] {
        shows(&operator, "hgo_ledger_repairs_total", &[what], |count| count > 0.0).await?;
    }

    // A PUT of the whole pool without its status, as a UI or `kubectl replace` sends it.
    let mut pool = cluster.pools().get("pool").await?;
    pool.status = None;
    pool.spec.description = Some("edited".to_owned());
    let put = cluster.pools().replace("pool", &PostParams::default(), &pool).await?;
    assert_eq!(put.status.unwrap_or_default().allocated, before.0.allocated);
    cluster.lb("new").await?;
    assert_eq!(cluster.address("new").await?, "10.1.0.5", "after the last one given");
    cluster.consistent().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_wiped_without_a_leader_is_rebuilt_before_newcomers_are_served() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/25"})).await?;
    let wipes = [
        Value::Null,
        json!({"allocated": null, "allocatedOwners": null, "lastAllocated": ""}),
        json!({"allocatedOwners": null}),
    ];
    for (round, wipe) in wipes.into_iter().enumerate() {
        let mut operator = cluster.operator().await?;
        let old = cluster.addresses().await?;
        let names = |kind| (0..15).map(move |i| format!("{kind}-{round}-{i}"));
        cluster.lbs_at_once(names("old")).await?;
        cluster.addressed(old.len() + 15).await?;
        operator.process.terminate(SOON).await?;

        let before = cluster.addresses().await?;
        cluster.patch_pool_status("pool", json!({"status": wipe})).await?;
        cluster.lbs_at_once(names("new")).await?;
        let mut operator = cluster.operator().await?;
        cluster.addressed(before.len() + 15).await?;
        let after = cluster.addresses().await?;
        assert!(before.iter().all(|(name, ip)| after[name] == *ip), "{before:?} {after:?}");
        assert_eq!(after.values().collect::<BTreeSet<_>>().len(), after.len());
        cluster.consistent().await?;
        operator.process.terminate(SOON).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_go_controller_left_is_adopted_and_no_address_moves() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let finalizer = json!({"finalizers": ["wrangler.cattle.io/harvester-ipam-controller"]});
    cluster.patch_pool("pool", json!({"metadata": finalizer})).await?;
    let allocated = json!({
        "10.1.0.30": "default/guest",
        "10.1.0.20": "default/vm",
        "10.1.0.10": "default/unpublished",
    });
    // The Go controller keeps a former owner for each address.
    let mut former: BTreeMap<_, _> =
        (100..250).map(|n| (format!("10.1.0.{n}"), format!("default/gone-{n}"))).collect();
    former.insert("10.1.0.40".to_owned(), "default/former".to_owned());
    let ledger = json!({
        "total": 253, "available": 250, "lastAllocated": "10.1.0.30", "allocated": allocated,
        "allocatedHistory": former,
    });
    cluster.patch_pool_status("pool", json!({"status": ledger})).await?;
    for (name, type_, ip) in [
        ("guest", "cluster", Some("10.1.0.30")),
        ("vm", "vm", Some("10.1.0.20")),
        // The address is claimed, and the process ended before it wrote the LoadBalancer.
        ("unpublished", "cluster", None),
    ] {
        let mut lb = lb(name, &json!({"workloadType": type_, "ipam": "pool"}))?;
        lb.metadata.finalizers = Some(vec![LB_FINALIZER.to_owned()]);
        let given = |ip| json!({"ipPool": "pool", "ip": ip, "mask": "255.255.255.0", "gateway": "10.1.0.1"});
        lb.status = serde_json::from_value(json!({
            "address": ip,
            "allocatedAddress": ip.map(given),
            "conditions": [{"type": "Ready", "status": "True", "message": "", "lastUpdateTime": "2024-05-05T05:05:05Z"}],
        }))?;
        cluster.lbs().create(&PostParams::default(), &lb).await?;
    }
    let _operator = cluster.operator().await?;
    assert_eq!(cluster.address("unpublished").await?, "10.1.0.10");
    cluster.consistent().await?;
    let expected = [("guest", "10.1.0.30"), ("unpublished", "10.1.0.10"), ("vm", "10.1.0.20")];
    assert_eq!(cluster.addresses().await?, strings(expected));
    let status = cluster.pool_status("pool").await?;
    assert_eq!(json!(status.allocated), allocated);
    assert_eq!(status.allocated_history.len(), HISTORY_LENGTH, "before any release");
    for lb in cluster.lbs().list(&ListParams::default()).await? {
        eventually(SOON, &format!("owner {}", lb.name_any()), async || {
            let owners = cluster.pool_status("pool").await?.allocated_owners;
            anyhow::Ok(owners.values().any(|uid| Some(uid) == lb.uid().as_ref()))
        })
        .await?;
    }

    cluster.deleted("guest").await?;
    let status = cluster.pool_status("pool").await?;
    former.insert("10.1.0.30".to_owned(), "default/guest".to_owned());
    let newest = former.iter().skip(former.len() - HISTORY_LENGTH);
    assert_eq!(status.allocated_history, strings(newest.map(|(ip, name)| (&**ip, &**name))));
    for (name, ip) in [("new", "10.1.0.31"), ("former", "10.1.0.40"), ("guest", "10.1.0.30")] {
        cluster.lb(name).await?;
        assert_eq!(cluster.address(name).await?, ip);
    }
    cluster.consistent().await
}

#[tokio::test(flavor = "multi_thread")]
async fn orphans_are_freed_at_start_and_cost_no_namesake_its_address() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let mut operator = cluster.operator().await?;
    cluster.lb("lb").await?;
    assert_eq!(cluster.address("lb").await?, "10.1.0.2");
    cluster.lb_with("leases", json!({"workloadType": "cluster", "ipam": "dhcp"})).await?;
    assert_eq!(cluster.address("leases").await?, "0.0.0.0");
    operator.process.terminate(SOON).await?;
    let orphans = json!({
        "allocated": {
            "10.1.0.50": "default/gone",
            "10.1.0.51": "nowhere/gone",
            "10.1.0.52": "not a name",
            "10.1.0.53": "default/lb",
            "10.1.0.54": "default/lb",
            // From before a change of `spec.ipam`, written by Harvester's CRD, which drops UIDs.
            "10.1.0.55": "default/leases",
        },
        "allocatedOwners": {"10.1.0.51": "7", "10.1.0.53": "8"},
    });
    cluster.patch_pool_status("pool", json!({"status": orphans})).await?;
    let operator = cluster.operator().await?;
    cluster.consistent().await?;
    assert_eq!(
        cluster.allocated("pool").await?,
        strings([("10.1.0.2", "default/lb")]),
        "a claim in use was released"
    );
    assert_eq!(cluster.address("lb").await?, "10.1.0.2");
    let note = cluster.warned("pool", "OrphanFreed").await?;
    assert!(note.contains("10.1.0.5") && note.contains("no longer exists"), "{note}");
    // The two of `lb` are no orphans, only second addresses of a name that exists.
    shows(&operator, "hgo_ledger_repairs_total", &["orphan"], |count| count == 4.0).await?;
    Ok(())
}

/// A new LoadBalancer gets its address within the 10 s after which a guest gives up, however many
/// claims are to be looked up, beside seven other tests. `alone::orphans` has a shorter limit.
#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_orphans_are_freed_without_delay_for_others() -> Result<()> {
    let cluster = Cluster::start().await?;
    let guest = make_orphans(&cluster).await?;
    let stalls = Stalls::watch()?;
    let operator = cluster.operator().await?;
    let addresses = async {
        let mut longest = Duration::ZERO;
        for name in ["first", "second", "third"] {
            let asked = Instant::now();
            cluster.lb_with(name, guest.clone()).await?;
            cluster.address(name).await?;
            longest = longest.max(stalls.elapsed(asked));
            let left = cluster.allocated("orphaned").await?.len();
            ensure!(name != "first" || left > 0, "the orphans were freed before the first address");
        }
        Ok(longest)
    };
    let limit = Duration::from_secs(10);
    let (took, most) = beside_bare_writes(&cluster, &stalls, limit, addresses).await?;
    ensure!(took < most, "{took:?}, more than {most:?}");
    eventually(LATER, "release of the orphans", async || {
        cluster.allocated("orphaned").await.map(|left| left.is_empty())
    })
    .await?;
    let freed = f64::from(ORPHANS);
    shows(&operator, "hgo_ledger_repairs_total", &["orphan"], |count| count == freed).await?;
    cluster.consistent().await
}

/// The API server does not answer lookups of orphans: eight are in progress, the others wait, and a
/// new LoadBalancer waits for none of them.
#[tokio::test(flavor = "multi_thread")]
async fn orphans_are_looked_up_eight_at_a_time_beside_the_work() -> Result<()> {
    const AT_ONCE: usize = 8;
    let cluster = Cluster::start().await?;
    let proxy = Proxy::start(&cluster.bed).await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let claims = (10..110).map(|i| (format!("10.1.0.{i}"), json!(format!("default/gone-{i}"))));
    let allocated = Value::Object(claims.collect());
    cluster.patch_pool_status("pool", json!({"status": {"allocated": allocated}})).await?;
    let is_lookup = |call: &Call| call.name().is_some_and(|name| name.starts_with("gone-"));
    proxy.set_rule(move |call| if is_lookup(call) { Verdict::Hang } else { Verdict::Pass });
    let via = Some((proxy.url().to_owned(), proxy.ca_pem().to_owned()));
    let operator = cluster.standby(Start { via, ..Start::default() }).await?;
    operator.leads().await?;
    let lookups = || -> Vec<Instant> {
        let calls = proxy.calls().into_iter().filter(|record| is_lookup(&record.call));
        calls.map(|record| record.at).collect()
    };
    eventually(SOON, "lookups", async || anyhow::Ok(lookups().len() >= AT_ONCE)).await?;
    for name in ["first", "second", "third"] {
        cluster.lb(name).await?;
        cluster.address(name).await?;
    }
    // Another lookup starts only when one of the first times out.
    if let [first, .., next] = lookups().get(..=AT_ONCE).unwrap_or_default() {
        let after = next.duration_since(*first);
        ensure!(after > Duration::from_secs(1), "lookup {} after {after:?}", AT_ONCE + 1);
    }
    proxy.clear_rule();
    let names = ["first", "second", "third"].map(|name| format!("default/{name}"));
    eventually(LATER, "release of the orphans", async || {
        let left = cluster.allocated("pool").await?;
        anyhow::Ok(left.len() == names.len() && left.values().all(|owner| names.contains(owner)))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_admin_can_free_an_orphan_and_only_that() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let _operator = cluster.operator().await?;
    cluster.lb("lb").await?;
    assert_eq!(cluster.address("lb").await?, "10.1.0.2");
    let ask = async |text: Value| {
        let annotations = json!({"annotations": {ANNOTATION_MANUAL_RELEASE: text}});
        cluster.patch_pool("pool", json!({"metadata": annotations})).await.map(drop)
    };
    let settled = async |what: &str| {
        eventually(SOON, what, async || {
            let pool = cluster.pools().get("pool").await.map_err(|e| e.to_string())?;
            let asked = pool.annotations().contains_key(ANNOTATION_MANUAL_RELEASE);
            let conditions = pool.status.unwrap_or_default().conditions;
            let says = conditions.iter().any(|c| c.type_ == "ManualRelease");
            if asked || says { Err(format!("{asked} {conditions:?}")) } else { Ok(true) }
        })
        .await
    };
    let orphan = json!({"allocated": {"10.1.0.9": "default/gone"}});
    cluster.patch_pool_status("pool", json!({"status": orphan})).await?;
    ask(json!("10.1.0.9: default/gone")).await?;
    settled("release of the orphan").await?;
    let only_lb = strings([("10.1.0.2", "default/lb")]);
    assert_eq!(cluster.allocated("pool").await?, only_lb);
    ask(json!("10.1.0.9: default/gone")).await?;
    settled("answer to a repeated request").await?;

    for (text, reason, parts) in [
        ("10.1.0.2 default/lb", "InvalidAnnotation", [ANNOTATION_MANUAL_RELEASE, "default/web"]),
        ("10.1.0.2: default/web", "OtherOwner", ["held by default/lb", "not by default/web"]),
        ("10.1.0.2: default/lb", "StillInUse", ["default/lb", "10.1.0.2"]),
    ] {
        ask(json!(text)).await?;
        let message = cluster.pool_says("pool", "ManualRelease", reason).await?;
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        cluster.warned("pool", "ManualReleaseRefused").await?;
        assert_eq!(cluster.allocated("pool").await?, only_lb);
        if reason != "StillInUse" {
            ask(Value::Null).await?;
            settled("end of the notice").await?;
        }
    }
    // The message of the refusal promises that deletion is enough.
    cluster.deleted("lb").await?;
    settled("release of the former address").await?;
    assert!(cluster.allocated("pool").await?.is_empty());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_is_deleted_gives_out_nothing_and_stays_until_all_is_back() -> Result<()> {
    let cluster = Cluster::start().await?;
    for (name, subnet) in [("held", "10.1.0.0/24"), ("unused", "10.2.0.0/24")] {
        cluster.pool_for(name, json!({"subnet": subnet}), json!({})).await?;
    }
    let mut operator = cluster.operator().await?;
    let named = json!({"workloadType": "cluster", "ipPool": "held"});
    for name in ["a", "b"] {
        cluster.lb_with(name, named.clone()).await?;
        cluster.address(name).await?;
    }
    cluster.pool_deleted("unused").await?;
    cluster.pools().delete("held", &DeleteParams::default()).await?;
    let message = cluster.pool_says("held", "Ready", "Deleting").await?;
    assert!(message.contains('2'), "{message}");
    cluster.lb_with("late", named).await?;
    let message = cluster.waits("late", "IPPoolNotReady").await?;
    assert!(message.contains("held") && message.contains("being deleted"), "{message}");

    cluster.deleted("a").await?;
    // A change of leaders does not lose the release.
    operator.process.kill9()?;
    cluster.free_lease().await?;
    let _operator = cluster.operator().await?;
    cluster.pool_says("held", "Ready", "Deleting").await?;
    assert_eq!(cluster.allocated("held").await?, strings([("10.1.0.3", "default/b")]));
    cluster.deleted("b").await?;
    cluster.pool_gone("held").await?;
    cluster.waits("late", "IPPoolNotFound").await?;
    cluster.pool_for("held", json!({"subnet": "10.3.0.0/24"}), json!({})).await?;
    assert_eq!(cluster.address("late").await?, "10.3.0.2");
    cluster.consistent().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_shrinks_under_an_address_leaves_it_alone_and_never_gives_it_again()
-> Result<()> {
    let cluster = Cluster::start().await?;
    let range =
        |end: &str| json!({"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10", "rangeEnd": end});
    cluster.pool("pool", range("10.1.0.12")).await?;
    let mut operator = cluster.operator().await?;
    for name in ["x", "y", "z"] {
        cluster.lb(name).await?;
        cluster.address(name).await?;
    }
    let before = cluster.addresses().await?;
    let resize = async |end: &str| {
        cluster.patch_pool("pool", json!({"spec": {"ranges": [range(end)]}})).await.map(drop)
    };
    let counts = async |total: i64, available: i64, allocated: usize| {
        eventually(SOON, &format!("{available} of {total}"), async || {
            let status = cluster.pool_status("pool").await.map_err(|e| e.to_string())?;
            let found = (status.total, status.available, status.allocated.len());
            assert!(status.available >= 0, "{found:?}");
            if found == (total, available, allocated) {
                Ok(true)
            } else {
                Err(format!("{found:?}"))
            }
        })
        .await
    };
    counts(3, 0, 3).await?;
    resize("10.1.0.10").await?;
    counts(1, 0, 3).await?;
    operator.process.kill9()?;
    cluster.free_lease().await?;
    let _operator = cluster.operator().await?;
    cluster.lb("d").await?;
    cluster.waits("d", "NoAvailableIP").await?;
    assert_eq!(cluster.addresses().await?, before);
    counts(1, 0, 3).await?;

    cluster.deleted("z").await?;
    counts(1, 0, 2).await?;
    cluster.lb("z").await?;
    cluster.waits("z", "NoAvailableIP").await?;
    cluster.deleted("y").await?;
    cluster.waits("d", "NoAvailableIP").await?;
    assert_eq!(cluster.addresses().await?, strings([("x", "10.1.0.10")]));
    resize("10.1.0.11").await?;
    assert_eq!(cluster.address("d").await?, "10.1.0.11", "the older waiter is served first");
    cluster.waits("z", "NoAvailableIP").await?;
    counts(2, 0, 2).await?;
    cluster.consistent().await
}

/// Creates the pools `orphaned` and `other`, and writes [`ORPHANS`] claims of LoadBalancers that do
/// not exist into the ledger of `orphaned`. Returns the spec of a LoadBalancer that takes its
/// address from `other`.
pub(crate) async fn make_orphans(cluster: &Cluster) -> Result<Value> {
    cluster.pool_with("orphaned", json!({"ranges": [{"subnet": "10.2.0.0/16"}]})).await?;
    cluster.pool_with("other", json!({"ranges": [{"subnet": "10.3.0.0/24"}]})).await?;
    let first = u32::from(Ipv4Addr::new(10, 2, 1, 0));
    let claims = (0..ORPHANS)
        .map(|i| (Ipv4Addr::from(first + i).to_string(), json!(format!("default/gone-{i}"))));
    let allocated = Value::Object(claims.collect());
    cluster.patch_pool_status("orphaned", json!({"status": {"allocated": allocated}})).await?;
    Ok(json!({"workloadType": "cluster", "ipPool": "other"}))
}

fn timeless(status: Option<IPPoolStatus>) -> IPPoolStatus {
    let mut status = status.unwrap_or_default();
    for condition in &mut status.conditions {
        condition.last_update_time = None;
        condition.last_transition_time = None;
    }
    status
}

fn strings<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> BTreeMap<String, String> {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}
