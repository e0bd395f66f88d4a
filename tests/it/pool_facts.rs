//! Admission's facts about pools, on a replica that does not lead: collected from a real API
//! server, by direct requests.

use std::sync::Arc;

use anyhow::Result;
use harvester_guest_operator::domain::admission::{AdmissionAnswer, AdmissionRequest, Operation};
use harvester_guest_operator::domain::dhcp_lease::DhcpNetworks;
use harvester_guest_operator::http::admission::{AdmissionStage, RuleSources, pools};
use harvester_guest_operator::k8s::read::ApiReader;
use harvester_guest_operator::k8s::views::Views;
use harvester_guest_operator::metrics::Metrics;
use serde_json::{Value, json};
use testbed::eventually;

use crate::support::{Cluster, SOON, pool};

fn range(third: usize, first: usize, last: usize) -> Value {
    json!({
        "subnet": format!("10.{third}.0.0/24"),
        "rangeStart": format!("10.{third}.0.{first}"),
        "rangeEnd": format!("10.{third}.0.{last}"),
    })
}

async fn ask(
    at: &RuleSources,
    operation: Operation,
    name: &str,
    object: Option<&Value>,
    old: Option<&Value>,
) -> Result<AdmissionAnswer> {
    let request = AdmissionRequest {
        operation,
        subresource: "",
        namespace: "",
        name,
        by_operator: false,
        in_v1alpha1: false,
        object,
        old,
    };
    Ok(pools::decide(at, AdmissionStage::Validation, &request).await)
}

/// Sources of a replica that does not lead.
fn replica(cluster: &Cluster) -> Result<RuleSources> {
    let client = &cluster.client;
    let metrics = Metrics::new()?;
    Ok(RuleSources {
        reader: ApiReader::new(client.clone()),
        views: Views::start(client, "harvester-system", DhcpNetworks::default(), &metrics),
        leadership: Arc::default(),
    })
}

fn refusal(answer: &AdmissionAnswer) -> String {
    answer.refusals.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_knows_what_pools_want_and_who_would_lose_an_address() -> Result<()> {
    let cluster = Cluster::start().await?;
    let _operator = cluster.operator().await?;
    let at = replica(&cluster)?;
    cluster.pool_for("held", range(1, 10, 19), json!({})).await?;
    for lb in ["one", "two"] {
        let named = json!({"workloadType": "cluster", "ipPool": "held"});
        cluster.lb_with(lb, named).await?;
        cluster.address(lb).await?;
    }
    let known = async |what: &str, is: &dyn Fn(&str) -> bool| {
        eventually(SOON, what, async || {
            let overlapping = pool("new", &json!({"ranges": [range(1, 15, 24)]}))?;
            let object = serde_json::to_value(overlapping)?;
            let answer = ask(&at, Operation::Create, "new", Some(&object), None).await?;
            anyhow::Ok(is(&refusal(&answer)))
        })
        .await
    };
    known("the pool's ranges", &|said| said.contains("10.1.0.15 to 10.1.0.19")).await?;
    // A changed spec is read again; claims in between do not count as a change.
    cluster.patch_pool("held", json!({"spec": {"ranges": [range(1, 10, 14)]}})).await?;
    known("the ranges as they are now", &str::is_empty).await?;
    cluster.patch_pool("held", json!({"spec": {"ranges": [range(1, 10, 19)]}})).await?;
    known("the ranges as they were", &|said| said.contains("10.1.0.15 to 10.1.0.19")).await?;

    let stored = async || anyhow::Ok(serde_json::to_value(cluster.pools().get("held").await?)?);
    let old = stored().await?;
    let mut shrunk = old.clone();
    shrunk["spec"]["ranges"] = json!([range(1, 11, 19)]);
    let said = refusal(&ask(&at, Operation::Update, "held", Some(&shrunk), Some(&old)).await?);
    assert!(said.starts_with("spec.ranges: allocated IP 10.1.0.10 (default/one)"), "{said}");
    let said = refusal(&ask(&at, Operation::Delete, "held", None, Some(&old)).await?);
    assert!(said.contains("10.1.0.10 (default/one), 10.1.0.11 (default/two)"), "{said}");
    // A LoadBalancer that the view does not show yet is read from the API server; an orphan
    // blocks nothing.
    let mut orphaned = old.clone();
    orphaned["status"]["allocated"] = json!({"10.1.0.12": "default/gone", "10.1.0.13": "no name"});
    assert_eq!(
        ask(&at, Operation::Delete, "held", None, Some(&orphaned)).await?,
        AdmissionAnswer::default()
    );
    orphaned["status"]["allocated"] = json!({"10.1.0.10": "default/one"});
    orphaned["status"]["allocatedOwners"] = json!({"10.1.0.10": "another uid"});
    assert_eq!(
        ask(&at, Operation::Delete, "held", None, Some(&orphaned)).await?,
        AdmissionAnswer::default()
    );
    let mut released = old.clone();
    released["metadata"]["annotations"] =
        json!({"loadbalancer.harvesterhci.io/manuallyReleaseIP": "10.1.0.10: default/one"});
    let said = ask(&at, Operation::Update, "held", Some(&released), Some(&old)).await?;
    assert!(said.refusals.is_empty(), "{said:?}");
    assert!(said.warnings[0].contains("LoadBalancer default/one exists"), "{said:?}");

    // A deleted pool is removed from the view.
    for lb in ["one", "two"] {
        cluster.deleted(lb).await?;
    }
    cluster.pool_deleted("held").await?;
    // A pool in deletion conflicts with no other, and is in the view until it is gone.
    known("the deletion of the pool", &str::is_empty).await?;
    eventually(SOON, "the end of the pool", async || anyhow::Ok(at.views.pools().is_empty())).await
}

/// `make bench` measures the time of this.
#[tokio::test(flavor = "multi_thread")]
async fn among_a_hundred_pools_the_one_in_the_way_is_named() -> Result<()> {
    let cluster = Cluster::start().await?;
    for n in 0..100 {
        let ranges = json!({"ranges": [range(n, 10, 19), range(n, 30, 39), range(n, 50, 59)]});
        cluster.pool_with(&format!("pool-{n:02}"), ranges).await?;
    }
    let at = replica(&cluster)?;
    eventually(SOON, "all pools", async || anyhow::Ok(at.views.pools().len() == 100)).await?;
    let asked = async |last: usize| {
        let new = pool("new", &json!({"ranges": [range(99, 60, 99), range(72, last, last)]}))?;
        let object = serde_json::to_value(new)?;
        anyhow::Ok(refusal(&ask(&at, Operation::Create, "new", Some(&object), None).await?))
    };
    assert_eq!(asked(29).await?, "");
    let refused = asked(30).await?;
    assert!(refused.contains("IPPool pool-72"), "{refused}");
    Ok(())
}
