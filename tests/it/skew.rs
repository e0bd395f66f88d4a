//! Two versions of the operator at one time, in a rolling update or a downgrade: objects, CRDs and
//! the Lease have what this version does not know.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::Resource;
use serde_json::json;
use testbed::{Start, eventually};

use harvester_guest_operator::api::{IPPool, LoadBalancer};

use crate::support::{Cluster, SOON, lb, pool};

const GROUP: &str = "loadbalancer.harvesterhci.io";

/// Adds a field to spec and status of a CRD, in each version.
async fn with_newer_field(cluster: &Cluster, plural: &str) -> Result<()> {
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let name = format!("{plural}.{GROUP}");
    let mut crd = serde_json::to_value(crds.get(&name).await?)?;
    for version in crd["spec"]["versions"].as_array_mut().context("no versions")? {
        let properties = &mut version["schema"]["openAPIV3Schema"]["properties"];
        for part in ["spec", "status"] {
            properties[part]["properties"]["newer"] = json!({"type": "string"});
        }
    }
    let patch = Patch::Merge(json!({"spec": {"versions": crd["spec"]["versions"]}}));
    crds.patch(&name, &PatchParams::default(), &patch).await?;
    Ok(())
}

fn untyped<K: Resource<DynamicType = ()>>(client: &kube::Client) -> Api<DynamicObject> {
    let kind = ApiResource::erase::<K>(&());
    match K::plural(&()).as_ref() {
        "ippools" => Api::all_with(client.clone(), &kind),
        _ => Api::namespaced_with(client.clone(), "default", &kind),
    }
}

/// Writes what a newer version would: fields, a condition, an annotation. Waits until the API server
/// serves the fields.
async fn as_a_newer_version<K: Resource<DynamicType = ()>>(
    cluster: &Cluster,
    name: &str,
) -> Result<()> {
    let api = untyped::<K>(&cluster.client);
    let condition = json!({"type": "Newer", "status": "True", "reason": "Newer", "message": "new"});
    eventually(SOON, &format!("newer fields of {name}"), async || {
        let mut conditions = api.get(name).await?.data["status"]["conditions"].clone();
        let all = conditions.as_array_mut().context("no conditions")?;
        if !all.iter().any(|c| c["type"] == "Newer") {
            all.push(condition.clone());
        }
        let patch = Patch::Merge(json!({
            "metadata": {"annotations": {"newer": "kept"}},
            "spec": {"newer": "kept"},
            "status": {"newer": "kept", "conditions": conditions},
        }));
        api.patch(name, &PatchParams::default(), &patch).await?;
        if K::plural(&()) == "ippools" {
            api.patch_status(name, &PatchParams::default(), &patch).await?;
        }
        anyhow::Ok(missing(&api.get(name).await?).is_empty())
    })
    .await
}

/// Parts of a newer version that the object has not.
fn missing(object: &DynamicObject) -> Vec<&'static str> {
    let annotations = object.metadata.annotations.clone().unwrap_or_default();
    let conditions = object.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let parts = [
        ("annotation", annotations.contains_key("newer")),
        ("spec", object.data["spec"]["newer"] == "kept"),
        ("status", object.data["status"]["newer"] == "kept"),
        ("condition", conditions.iter().any(|c| c["type"] == "Newer" && c["message"] == "new")),
    ];
    parts.into_iter().filter(|(_, is)| !is).map(|(part, _)| part).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_newer_version_has_written_survives_an_older_one() -> Result<()> {
    let cluster = Cluster::start().await?;
    for plural in ["ippools", "loadbalancers"] {
        with_newer_field(&cluster, plural).await?;
    }
    let replica = |identity: &str| Start { identity: Some(identity.into()), ..Start::default() };
    let mut newer = cluster.standby(replica("newer")).await?;
    newer.leads().await?;
    for (name, third) in [("pool", 1), ("other", 2)] {
        let ranges = json!([{"subnet": format!("10.{third}.0.0/24")}]);
        cluster
            .pools()
            .create(&PostParams::default(), &pool(name, &json!({"ranges": ranges}))?)
            .await?;
    }
    let spec = json!({"workloadType": "cluster", "ipPool": "pool"});
    for name in ["guest", "stays"] {
        cluster.lbs().create(&PostParams::default(), &lb(name, &spec)?).await?;
        cluster.address(name).await?;
    }
    let stays = cluster.address("stays").await?;
    for name in ["pool", "other"] {
        as_a_newer_version::<IPPool>(&cluster, name).await?;
    }
    for name in ["guest", "stays"] {
        as_a_newer_version::<LoadBalancer>(&cluster, name).await?;
    }
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), "kube-system");
    let note = Patch::Merge(json!({"metadata": {"annotations": {"newer": "kept"}}}));
    leases.patch("harvester-load-balancer", &PatchParams::default(), &note).await?;

    // The Lease goes from one to the other and back. Each writes every object.
    let mut older = cluster.standby(replica("older")).await?;
    older.ready().await?;
    newer.process.terminate(SOON).await?;
    for (leader, pool) in [(&mut older, "other"), (&mut newer, "pool")] {
        if pool == "pool" {
            *leader = cluster.standby(replica("newer")).await?;
        }
        leader.leads().await?;
        cluster.patch_lb("guest", json!({"spec": {"ipPool": pool}})).await?;
        eventually(SOON, &format!("address of {pool}"), async || {
            let lb = serde_json::to_value(cluster.lbs().get("guest").await?)?;
            anyhow::Ok(lb["status"]["allocatedAddress"]["ipPool"] == pool)
        })
        .await?;
        cluster.consistent().await?;
        for name in ["pool", "other"] {
            let lost = missing(&untyped::<IPPool>(&cluster.client).get(name).await?);
            ensure!(lost.is_empty(), "IPPool {name} has lost {lost:?}");
        }
        for name in ["guest", "stays"] {
            let lost = missing(&untyped::<LoadBalancer>(&cluster.client).get(name).await?);
            ensure!(lost.is_empty(), "LoadBalancer {name} has lost {lost:?}");
        }
        let lease = leases.get("harvester-load-balancer").await?;
        let annotations = lease.metadata.annotations.unwrap_or_default();
        ensure!(annotations.contains_key("newer"), "the Lease has lost it: {annotations:?}");
        ensure!(cluster.address("stays").await? == stays, "it has another address");
        leader.process.terminate(SOON).await?;
    }
    Ok(())
}
