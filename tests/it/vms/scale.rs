//! A thousand VMs behind one address.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use kube::ResourceExt as _;
use serde_json::json;
use testbed::kubevirt::{Guest, Nic, Phase, Ready, Vm};
use testbed::{Announcer, Announcing, Operator, eventually};

use super::watching::Versions;
use super::{raw, version, vm};
use crate::support::{Cluster, LATER, settled};

const FLAPS: usize = 5;
/// Interval of the flaps, an input of the scenario.
const PACE: Duration = Duration::from_millis(200);

#[tokio::test(flavor = "multi_thread")]
async fn a_flapping_vm_among_a_thousand_costs_one_slice_write_for_each_change() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let operator = cluster.operator().await?;
    let _announcer = Announcer::start(cluster.client.clone(), Announcing::default());
    futures::stream::iter(0..1_000_usize)
        .map(anyhow::Ok)
        .try_for_each_concurrent(32, async |number| steady(&cluster, number).await)
        .await?;
    let mut guest = Guest::run(&cluster.client, vm("web", "flaps", "10.55.0.1"), "node-1").await?;
    cluster.vm_lb("web").await?;
    cluster.waits_for_endpoints("web", (1_001, 1_001)).await?;
    cluster.serves("web", "Announced").await?;
    let reconciles = operator.metric("hgo_reconcile_seconds_count", &[]).await?;
    println!("{reconciles} reconciles from the creation to the announcement");
    assert!(reconciles < 20.0, "{reconciles} reconciles: the last ones of them were delayed");

    let sizes: Vec<usize> = sizes(&cluster).await?.into_values().collect();
    assert_eq!((sizes.len(), sizes.iter().sum::<usize>()), (11, 1_001), "{sizes:?}");
    assert!(sizes.iter().all(|size| *size <= 100), "{sizes:?}");
    let created = count(&operator, "EndpointSlice").await?;
    println!("{created} slice writes for 1,001 VMs that were there before");

    let [slices, services, lbs] = settled("writes", async || counts(&operator).await).await?;
    let before = versions(&cluster).await?;
    let service = version(&cluster.services().get("web").await?.metadata);
    let record = Versions::of(&cluster, "web").await?;
    record.clear();
    for _ in 0..FLAPS {
        for ready in [false, true] {
            let state = if ready { Ready::yes() } else { Ready::no("ReadinessProbeFailed") };
            tokio::time::sleep(PACE).await;
            guest.ready(state).await?;
        }
    }
    cluster.waits_for_endpoints("web", (1_001, 1_001)).await?;
    // Down and up are two changes; the last one must be observed.
    eventually(LATER, "last of the flaps", async || {
        let last = record.all().last().map(|last| last.state("flaps").to_owned());
        if last.as_deref() == Some("ready") { Ok(true) } else { Err(format!("{last:?}")) }
    })
    .await?;
    // A write is counted at its answer, and observed at its watch event.
    let ([slices, services, lbs], _) = settled("writes", async || {
        let now = counts(&operator).await?;
        Ok(([now[0] - slices, now[1] - services, now[2] - lbs], record.all().len()))
    })
    .await?;
    println!(
        "{FLAPS} flaps: {slices} slice writes, {lbs} of the LoadBalancer, {services} of the Service"
    );
    assert!(slices <= 2.0 * f64::from(u32::try_from(FLAPS)?), "{slices} slice writes");
    assert!(lbs <= 2.0 * f64::from(u32::try_from(FLAPS)?), "{lbs} writes of the LoadBalancer");
    assert_eq!(services, 0.0);
    assert_eq!(version(&cluster.services().get("web").await?.metadata), service);
    let written = record.all();
    assert_eq!(f64::from(u32::try_from(written.len())?), slices, "every write is a version");
    for version in &written {
        ensure!(
            version.slice == written[0].slice && !version.state("flaps").is_empty(),
            "{version:?}"
        );
    }
    let after = versions(&cluster).await?;
    let changed: Vec<&String> =
        after.iter().filter(|(name, at)| before.get(*name) != Some(*at)).map(|(n, _)| n).collect();
    assert_eq!(changed, [&written.first().context("nothing was written")?.slice]);

    // One VM less: its slice changes, and no other.
    let before = after;
    guest.stop().await?;
    cluster.waits_for_endpoints("web", (1_000, 1_000)).await?;
    let after = versions(&cluster).await?;
    let same = after.iter().filter(|(name, at)| before.get(*name) == Some(*at)).count();
    assert!(same >= 10 && same + 1 >= after.len(), "{same} of {} are untouched", after.len());
    Ok(())
}

async fn steady(cluster: &Cluster, number: usize) -> Result<()> {
    let name = format!("vm-{number:04}");
    let address = format!("10.54.{}.{}", number / 250, number % 250 + 1);
    let vm = Vm {
        phase: Phase::Running,
        ready: Some(Ready::yes()),
        agent: true,
        node: Some("node-1".to_owned()),
        ..Vm::new("default", &name).label("app", "web").nic(Nic::pod("eth0", &[&address]))
    };
    let uid = raw::create(&cluster.client, &vm).await?;
    let pod = raw::launcher(&vm, 1, "node-1", true);
    raw::create_pod(&cluster.client, &vm, &uid, &pod).await?;
    raw::write_pod(&cluster.client, &vm, &pod).await
}

async fn count(operator: &Operator, kind: &str) -> Result<f64> {
    operator.metric("hgo_api_writes_total", &[&format!("kind=\"{kind}\""), "outcome=\"ok\""]).await
}

async fn counts(operator: &Operator) -> Result<[f64; 3]> {
    Ok([
        count(operator, "EndpointSlice").await?,
        count(operator, "Service").await?,
        count(operator, "LoadBalancer").await?,
    ])
}

async fn sizes(cluster: &Cluster) -> Result<BTreeMap<String, usize>> {
    let slices = cluster.slices_of("default", "web").await?;
    let size = |slice: &k8s_openapi::api::discovery::v1::EndpointSlice| {
        slice.endpoints.as_ref().map_or(0, Vec::len)
    };
    Ok(slices.iter().map(|slice| (slice.name_any(), size(slice))).collect())
}

async fn versions(cluster: &Cluster) -> Result<BTreeMap<String, String>> {
    let slices = cluster.slices_of("default", "web").await?;
    Ok(slices.iter().map(|slice| (slice.name_any(), version(&slice.metadata))).collect())
}
