//! Upgrades of Harvester that put its CRDs, its webhook and the Go controller back, while the operator
//! serves.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harvester_guest_operator::api;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::core::Status;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use testbed::{Stalls, Start, eventually};

use super::harvester::{CONTROLLER, Harvester};
use crate::support::{Cluster, LATER, SERVED_AGAIN, SOON, beside_bare_writes, shows};

const IP_POOLS: &str = "ippools.loadbalancer.harvesterhci.io";
const CRDS: [&str; 2] = [IP_POOLS, "loadbalancers.loadbalancer.harvesterhci.io"];
/// LoadBalancers that come and go.
const GUESTS: usize = 200;
/// Guest clusters that create and delete them at the same time.
const CLUSTERS: usize = 8;
const RECORD: &str = "loadbalancer.harvesterhci.io/form-before-takeover";

fn crds(cluster: &Cluster) -> Api<CustomResourceDefinition> {
    Api::all(cluster.client.clone())
}

/// Puts versions in the place of a CRD's.
async fn put(cluster: &Cluster, name: &str, versions: &Value) -> Result<()> {
    let patch = Patch::Merge(json!({"spec": {"versions": versions}}));
    crds(cluster).patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Whether the pool has the condition that its CRD is replaced, and its message.
async fn said(cluster: &Cluster) -> Result<Option<String>> {
    let conditions = cluster.pool_status("pool").await?.conditions;
    let found = conditions.into_iter().find(|condition| condition.type_ == "CRDReplaced");
    Ok(found.map(|condition| condition.message.unwrap_or_default()))
}

/// Answer of the API server in an error.
fn status(error: &anyhow::Error) -> Option<&Status> {
    match error.downcast_ref() {
        Some(kube::Error::Api(status)) => Some(status),
        _ => None,
    }
}

/// Whether an error is no refusal: no answer, a failure of the API server, a webhook that answers too
/// late, or a kind that is not served for a moment. A webhook without an endpoint is a refusal.
fn is_passing(error: &anyhow::Error) -> bool {
    match error.downcast_ref() {
        Some(kube::Error::Api(status)) if status.message.contains("failed calling webhook") => {
            ["deadline exceeded", "Client.Timeout", "handshake timeout"]
                .iter()
                .any(|late| status.message.contains(late))
        }
        Some(kube::Error::Api(status)) => status.code >= 500 || [404, 429].contains(&status.code),
        Some(kube::Error::HyperError(_) | kube::Error::Service(_)) => true,
        _ => false,
    }
}

/// Creates a LoadBalancer, and tries again unless it is refused, as clients do: a change of a CRD
/// interrupts its kind for a moment.
pub(super) async fn created(cluster: &Cluster, name: &str) -> Result<()> {
    eventually(SOON, &format!("creation of {name}"), async || match cluster.lb(name).await {
        Err(error) if is_passing(&error) => Err(format!("{error:#}")),
        Err(error) if status(&error).is_some_and(Status::is_already_exists) => Ok(Some(Ok(()))),
        made => Ok(Some(made.map(drop))),
    })
    .await?
}

/// Creates and deletes LoadBalancers one after the other, and returns the longest time to an address.
async fn guest(
    cluster: &Cluster,
    number: usize,
    stalls: &Stalls,
    (served, over): (&AtomicUsize, &AtomicBool),
) -> Result<Duration> {
    let (mut longest, mut round) = (Duration::ZERO, 0);
    while !over.load(Ordering::Relaxed) || served.load(Ordering::Relaxed) < GUESTS {
        let name = format!("guest-{number}-{round}");
        let since = Instant::now();
        created(cluster, &name).await?;
        cluster.address(&name).await?;
        longest = longest.max(stalls.elapsed(since));
        eventually(SOON, &format!("deletion of {name}"), async || {
            match cluster.delete(&name).await {
                Err(error) if status(&error).is_some_and(Status::is_not_found) => Ok(true),
                done => done.map(|()| true),
            }
        })
        .await?;
        eventually(SOON, &format!("end of {name}"), async || {
            cluster.lbs().get_opt(&name).await.map(|lb| lb.is_none())
        })
        .await?;
        served.fetch_add(1, Ordering::Relaxed);
        round += 1;
    }
    Ok(longest)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_of_harvester_while_guests_come_and_go_loses_no_claim() -> Result<()> {
    let stalls = Stalls::watch()?;
    let harvester = Harvester::start().await?;
    let cluster = harvester.cluster.clone();
    let before = harvester.populated().await?;
    harvester.install().await?;
    let mut theirs = Vec::new();
    for name in CRDS {
        let mut versions = serde_json::to_value(crds(&cluster).get(name).await?.spec.versions)?;
        // Only the operator's forms have rules.
        crate::forms::drop_keys(&mut versions, &["x-kubernetes-validations"]);
        put(&cluster, name, &versions).await?;
        theirs.push(versions);
    }
    let (ok, text) = harvester.takeover(&["--apply", "--adopt-crds"]).await?;
    ensure!(ok, "{text}");
    for name in CRDS {
        ensure!(text.contains(&format!("replace the form of CRD {name}")), "{text}");
    }

    let (served, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let more = async |count: usize| {
        let until = served.load(Ordering::Relaxed) + count;
        eventually(LATER, &format!("{until} served LoadBalancers"), async || {
            let now = served.load(Ordering::Relaxed);
            if now >= until { Ok(true) } else { Err(now.to_string()) }
        })
        .await
    };
    let guests = futures::future::try_join_all(
        (0..CLUSTERS).map(|number| guest(&cluster, number, &stalls, (&served, &over))),
    );
    let upgrade = async {
        more(GUESTS / 8).await?;
        // The CRDs, the webhook and the Go controller are back, in this order.
        for (name, versions) in CRDS.into_iter().zip(&theirs) {
            put(&cluster, name, versions).await?;
        }
        harvester.started_again().await?;
        for name in CRDS {
            let note = cluster.warned(name, "CRDReplaced").await?;
            ensure!(note.contains("takeover --apply"), "{note}");
        }
        eventually(SOON, "the pool's condition", async || said(&cluster).await).await?;
        ensure!(harvester.metric("hgo_crd_replaced", &[IP_POOLS]).await? == 1.0, "no metric");
        harvester.ready(CONTROLLER, true).await?;
        more(GUESTS / 8).await?;
        harvester.leads("operator").await?;

        // The Go controller gets the Lease all the same, as when no replica reached the API server for 45 s.
        harvester.lease_to_go().await?;
        let note = cluster.warned(CONTROLLER, "OtherControllerLeads").await?;
        ensure!(note.contains("scale that controller's Deployment to 0"), "{note}");
        more(GUESTS / 8).await?;

        let (ok, text) = harvester.takeover(&["--apply"]).await?;
        ensure!(ok, "{text}");
        harvester.leads("operator").await?;
        eventually(SOON, "the end of the pool's condition", async || {
            said(&cluster).await.map(|said| said.is_none())
        })
        .await?;
        more(GUESTS / 8).await?;
        over.store(true, Ordering::Relaxed);
        anyhow::Ok(())
    };
    let work = async { tokio::try_join!(guests, upgrade) };
    let ((longest, ()), most) =
        beside_bare_writes(&cluster, &stalls, SERVED_AGAIN, Box::pin(work)).await?;
    let longest = longest.into_iter().max().unwrap_or_default();
    println!("{served:?} LoadBalancers came and went, the slowest was served after {longest:?}");
    ensure!(longest < most, "an address took {longest:?}, and may take {most:?}");
    harvester.addresses_are(&before).await?;
    cluster.consistent().await?;
    harvester.end().await;
    Ok(())
}

/// The operator puts its form back, where that is allowed, once: a form that comes back at once is only named.
#[tokio::test(flavor = "multi_thread")]
async fn a_crd_that_was_replaced_is_put_back_where_that_is_allowed() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24", "gateway": "10.1.0.1"})).await?;
    crate::forms::serve_as_harvester_does(&cluster).await?;
    let theirs = serde_json::to_value(crds(&cluster).get(IP_POOLS).await?.spec.versions)?;
    let ours = api::crds().into_iter().find(|crd| crd.name_any() == IP_POOLS);
    let ours = serde_json::to_value(ours.map(|crd| crd.spec.versions))?;
    let is_ours = async || {
        let stored = crds(&cluster).get(IP_POOLS).await?;
        anyhow::Ok(serde_json::to_value(stored.spec.versions)? == ours)
    };
    // Harvester's own form, which nothing has replaced, is left alone.
    let options = vec!["--repair-crds".to_owned()];
    let operator = cluster.standby(Start { options, ..Start::default() }).await?;
    operator.leads().await?;
    created(&cluster, "a").await?;
    cluster.address("a").await?;
    shows(&operator, "hgo_crd_replaced", &[IP_POOLS], |replaced| replaced == 0.0).await?;
    ensure!(!is_ours().await?, "Harvester's form was replaced");

    // As `takeover --adopt-crds` records it.
    let record = json!({"versions": [], "managedBy": "Helm", "release": ["harvester", "h"]});
    let patch = json!({"metadata": {"annotations": {RECORD: record.to_string()}}});
    crds(&cluster).patch(IP_POOLS, &PatchParams::default(), &Patch::Merge(patch)).await?;
    eventually(SOON, "the operator's form", is_ours).await?;
    shows(&operator, "hgo_crd_repairs_total", &[IP_POOLS], |repairs| repairs == 1.0).await?;
    let stored = crds(&cluster).get(IP_POOLS).await?;
    let record: Value = serde_json::from_str(&stored.annotations()[RECORD])?;
    ensure!(record["versions"] == theirs, "the way back leads to another form");
    ensure!(record["release"] == json!(["harvester", "h"]), "{record}");
    eventually(SOON, "no condition", async || said(&cluster).await.map(|said| said.is_none()))
        .await?;
    created(&cluster, "b").await?;
    cluster.address("b").await?;

    put(&cluster, IP_POOLS, &theirs).await?;
    eventually(SOON, "the pool's condition", async || said(&cluster).await).await?;
    shows(&operator, "hgo_crd_replaced", &[IP_POOLS], |replaced| replaced == 1.0).await?;
    created(&cluster, "c").await?;
    cluster.address("c").await?;
    ensure!(operator.metric("hgo_crd_repairs_total", &[IP_POOLS]).await? == 1.0, "in turns");
    let unique: BTreeSet<String> = cluster.addresses().await?.into_values().collect();
    ensure!(unique.len() == 3, "{unique:?}");
    cluster.consistent().await
}
