//! Bad input, reported by name.

use anyhow::{Context as _, Result, ensure};
use futures::TryStreamExt as _;
use harvester_guest_operator::api::{self, LoadBalancer};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use testbed::{Call, Proxy, Start, Verdict, eventually};

use crate::schema::{create, raw};
use crate::support::{Cluster, SOON, lb, nothing_failed, unanswered};
use crate::vms::input::as_harvester_ships_it;

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_with_a_fault_names_the_field_and_costs_others_nothing() -> Result<()> {
    let cluster = Cluster::start().await?;
    let operator = cluster.operator().await?;
    let range = |third: u8, more: Value| {
        let mut range = json!({"subnet": format!("10.{third}.0.0/24")});
        range
            .as_object_mut()
            .into_iter()
            .for_each(|r| r.extend(more.as_object().cloned().unwrap_or_default()));
        range
    };
    let faults = [
        (
            "overlap",
            json!([range(1, json!({})), {"subnet": "10.1.0.128/25"}]),
            ["spec.ranges[1]:", "overlaps spec.ranges[0]"],
        ),
        (
            "multicast",
            json!([{"subnet": "224.0.0.0/24"}]),
            ["spec.ranges[0].subnet:", "multicast addresses"],
        ),
        (
            "network",
            json!([range(3, json!({"rangeStart": "10.3.0.0"}))]),
            ["spec.ranges[0].rangeStart:", "hosts are 10.3.0.1 to 10.3.0.254"],
        ),
        (
            "broadcast",
            json!([range(4, json!({"rangeEnd": "10.4.0.255"}))]),
            ["spec.ranges[0].rangeEnd:", "hosts are 10.4.0.1 to 10.4.0.254"],
        ),
        (
            "exclude",
            json!([range(5, json!({"exclude": ["10.5.0.9", "fd00::5"]}))]),
            ["spec.ranges[0].exclude[1]:", "family"],
        ),
        (
            "gateway",
            json!([range(6, json!({"gateway": "fd00::1"}))]),
            ["spec.ranges[0].gateway:", "family"],
        ),
    ];
    for (name, ranges, parts) in &faults {
        cluster.pool_with(name, json!({"ranges": ranges})).await?;
        let message = cluster.pool_says(name, "Ready", "InvalidRange").await?;
        assert!(parts.iter().all(|part| message.contains(part)), "{name}: {message}");
        let noted = cluster.warned(name, "InvalidRange").await?;
        assert_eq!(noted, message);
        cluster.lb_with(name, json!({"workloadType": "cluster", "ipPool": name})).await?;
        let waits = cluster.waits(name, "IPPoolNotReady").await?;
        assert!(waits.contains(name) && waits.contains(parts[0]), "{waits}");
        assert_eq!(cluster.pool_status(name).await?.total, 0);
    }
    // The faulty pool matches, too, but must not block a pool without faults.
    let fault =
        json!({"ranges": faults[0].1, "selector": {"priority": 9, "scope": [{"namespace": "*"}]}});
    cluster.pool_with("first", fault).await?;
    cluster.pool_says("first", "Ready", "InvalidRange").await?;
    cluster.pool("sound", json!({"subnet": "10.99.0.0/24"})).await?;
    cluster.lb("other").await?;
    assert_eq!(cluster.address("other").await?, "10.99.0.2");
    assert_eq!(cluster.addresses().await?.len(), 1);

    for (i, (name, ..)) in faults.iter().enumerate() {
        let repaired = json!({"spec": {"ranges": [{"subnet": format!("10.10{i}.0.0/24")}]}});
        cluster.patch_pool(name, repaired).await?;
        assert_eq!(cluster.address(name).await?, format!("10.10{i}.0.2"));
    }
    nothing_failed(&operator).await?;
    cluster.consistent().await
}

/// An object of a newer Harvester, with values that this version does not know.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_object_does_not_affect_others() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let mut operator = cluster.operator().await?;
    cluster.lb("holder").await?;
    assert_eq!(cluster.address("holder").await?, "10.1.0.2");

    let mut crd = json!(api::crds().remove(1));
    let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
    let spec = crd.pointer_mut(spec).context("no spec in the schema")?;
    spec["properties"]["ipam"]["enum"] = json!(["pool", "dhcp", "static"]);
    // Without this, no object with an address could become one.
    spec["x-kubernetes-validations"] = Value::Null;
    let mut crd: CustomResourceDefinition = serde_json::from_value(crd)?;
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    // Others write the CRD too.
    eventually(SOON, "newer CRD", async || {
        crd.metadata.resource_version = crds.get(&crd.name_any()).await?.resource_version();
        crds.replace(&crd.name_any(), &PostParams::default(), &crd).await.map(|_| true)
    })
    .await?;

    let lbs = raw::<LoadBalancer>(&cluster);
    let newer = json!({"workloadType": "cluster", "ipam": "static"});
    eventually(SOON, "newer object", async || create(&lbs, "newer", &newer).await.map(|_| true))
        .await?;
    let ipam = async |ipam: &str| {
        let patch = Patch::Merge(json!({"spec": {"ipam": ipam}}));
        lbs.patch("holder", &PatchParams::default(), &patch).await
    };
    ipam("static").await?;
    for round in 0..2 {
        eventually(SOON, "count of unreadable objects", async || {
            operator
                .metric("hgo_unreadable_objects_total", &["LoadBalancer"])
                .await
                .map(|n| n >= 2.0)
        })
        .await?;
        let name = format!("other-{round}");
        cluster.lb(&name).await?;
        assert_eq!(cluster.address(&name).await?, format!("10.1.0.{}", 3 + round));
        // An object that cannot be read retains its claim.
        assert_eq!(cluster.allocated("pool").await?["10.1.0.2"], "default/holder");
        assert!(operator.process.is_running());
        let log = operator.process.log();
        assert!(log.contains("default/newer") && !log.contains("panicked"), "{log}");
        if round == 0 {
            operator.process.terminate(SOON).await?;
            operator = cluster.operator().await?;
        }
    }
    assert_eq!(lbs.get("newer").await?.data.get("status"), None, "it is unchanged");
    // Readable again, it is as before.
    lbs.delete("newer", &kube::api::DeleteParams::default()).await?;
    ipam("pool").await?;
    cluster.consistent().await?;
    assert_eq!(cluster.address("holder").await?, "10.1.0.2");
    cluster.deleted("holder").await?;
    cluster.consistent().await
}

#[tokio::test(flavor = "multi_thread")]
async fn its_own_account_may_do_all_that_it_does() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let orphan = json!({"status": {"allocated": {"10.1.0.9": "default/gone"}}});
    cluster.patch_pool_status("pool", orphan).await?;
    let log = Some("info,harvester_guest_operator=debug".to_owned());
    let operator = cluster.standby(Start { log, ..Start::default() }).await?;
    operator.leads().await?;
    cluster.warned("pool", "OrphanFreed").await?;
    for name in ["a", "b"] {
        cluster.lb(name).await?;
        cluster.address(name).await?;
    }
    let annotation = json!({api::ANNOTATION_MANUAL_RELEASE: "nonsense"});
    cluster.patch_pool("pool", json!({"metadata": {"annotations": annotation}})).await?;
    cluster.warned("pool", "ManualReleaseRefused").await?;
    cluster.patch_pool("pool", json!({"spec": {"ranges": [{"subnet": "10.1.0.2/32"}]}})).await?;
    cluster.lb("waiter").await?;
    cluster.waits("waiter", "NoAvailableIP").await?;
    cluster.warned("waiter", "NoAvailableIP").await?;
    for name in ["a", "b", "waiter"] {
        cluster.deleted(name).await?;
    }
    cluster.pool_deleted("pool").await?;
    assert_eq!(operator.metric("hgo_events_dropped_total", &[]).await?, 0.0);
    // An API server that has just received a kind refuses its first watch, and a watch from before.
    let excused = ["(re)initializing", "too old resource version"];
    let log = operator.process.log();
    let interrupted = log.lines().filter(|line| line.contains("watch interrupted"));
    let other = |line: &&str| !excused.iter().any(|words| line.contains(words));
    assert_eq!(interrupted.filter(other).collect::<Vec<_>>(), [""; 0]);
    nothing_failed(&operator).await?;
    let refused = || {
        let log = operator.process.log();
        let words = ["forbidden", "Forbidden", "code: 403"];
        log.lines().find(|line| words.iter().any(|word| line.contains(word))).map(str::to_owned)
    };
    assert_eq!(refused(), None);

    // The log lines are right: without its rights it writes them.
    cluster.robbed();
    let binding = "harvester-guest-operator";
    cluster.bed.kubectl(&["delete", "clusterrolebinding", binding]).await?;
    cluster.lb("refused").await?;
    eventually(SOON, "refusal", async || refused()).await.map(drop)
}

/// Objects that are larger than the part of them that a view holds, and the size of each in KiB.
const LARGE: usize = 160;
const LARGE_KIB: usize = 250;
/// Limit of the memory that they cost at the peak. All of them at once are more than twice that.
const LARGE_MIB: u64 = 64;

#[tokio::test(flavor = "multi_thread")]
async fn objects_that_are_read_whole_are_held_a_few_at_a_time() -> Result<()> {
    let cluster = Cluster::start().await?;
    as_harvester_ships_it(&cluster).await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/16"})).await?;
    let mut operator = cluster.operator().await?;
    let quiet = operator.process.peak_rss_kib().context("no figure of memory")?;
    operator.process.terminate(SOON).await?;

    let names = || (0..LARGE).map(|number| format!("large-{number}"));
    let message = "x".repeat(LARGE_KIB * 1024);
    futures::stream::iter(names().map(anyhow::Ok))
        .try_for_each_concurrent(8, async |name| {
            let mut large = lb(&name, &json!({"workloadType": "cluster", "ipam": "pool"}))?;
            let theirs = json!({"type": "Theirs", "status": "True", "message": message});
            large.status = Some(serde_json::from_value(json!({"conditions": [theirs]}))?);
            cluster.lbs().create(&PostParams::default(), &large).await?;
            Ok(())
        })
        .await?;
    let operator = cluster.operator().await?;
    for name in names() {
        cluster.address(&name).await?;
    }
    let cost = (operator.process.peak_rss_kib().context("no figure of memory")? - quiet) / 1024;
    println!("{LARGE} large objects cost {cost} MiB");
    ensure!(cost < LARGE_MIB, "{cost} MiB");
    Ok(())
}

/// The API server does not answer the writes of large LoadBalancers: two are in progress, the
/// others wait, and small LoadBalancers wait for none of them.
#[tokio::test(flavor = "multi_thread")]
async fn large_objects_are_published_and_finalized_two_at_a_time_beside_small_ones() -> Result<()> {
    const COUNT: u8 = 10;
    const AT_ONCE: f64 = 2.0;
    const SMALL: [&str; 3] = ["first", "second", "third"];
    let cluster = Cluster::start().await?;
    let proxy = Proxy::start(&cluster.bed).await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let via = Some((proxy.url().to_owned(), proxy.ca_pem().to_owned()));
    let operator = cluster.standby(Start { via, ..Start::default() }).await?;
    operator.leads().await?;
    let of_large = |call: &Call| {
        call.resource() == Some("loadbalancers")
            && call.name().is_some_and(|name| name.starts_with("large-"))
    };
    let hold = || {
        proxy.reset();
        proxy.set_rule(move |call| {
            let is_held = of_large(call) && call.is_write();
            if is_held { Verdict::Hang } else { Verdict::Pass }
        });
    };
    let writes = || anyhow::Ok(f64::from(u32::try_from(proxy.writes(of_large))?));
    // The ledger has answered all large LoadBalancers, so nothing but a turn delays their writes.
    let all_are_due = async |claims: usize| {
        eventually(SOON, "writes of large objects", async || {
            let ledger = cluster.allocated("pool").await?;
            anyhow::Ok(ledger.len() == claims && writes()? >= AT_ONCE)
        })
        .await
    };
    // Another write starts only when a write has timed out. The writes are counted before the log
    // is read, so that the log has each timeout that let a counted write start.
    let check = |step: &str| {
        let found = writes()?;
        let most = AT_ONCE + unanswered(&operator)?;
        ensure!(found <= most, "{step}: {found} writes of large objects, more than {most}");
        ensure!(found < f64::from(COUNT), "{step}: the small ones came after all large ones");
        anyhow::Ok(())
    };
    let names = || (0..COUNT).map(|number| format!("large-{number}"));

    hold();
    let text = "x".repeat(16 * 1024);
    for name in names() {
        let mut large = lb(&name, &json!({"workloadType": "cluster", "ipam": "pool"}))?;
        large.metadata.annotations = Some([("example.com/text".to_owned(), text.clone())].into());
        cluster.lbs().create(&PostParams::default(), &large).await?;
    }
    all_are_due(usize::from(COUNT)).await?;
    for name in SMALL {
        cluster.lb(name).await?;
        cluster.address(name).await?;
    }
    check("publication")?;
    proxy.clear_rule();
    cluster.addressed(usize::from(COUNT) + SMALL.len()).await?;

    hold();
    for name in names() {
        cluster.delete(&name).await?;
    }
    all_are_due(SMALL.len()).await?;
    for name in SMALL {
        cluster.deleted(name).await?;
    }
    check("finalization")?;
    proxy.clear_rule();
    cluster.all_gone().await
}
