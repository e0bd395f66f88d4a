//! Objects that are stored in the old version, and the way back.

use anyhow::Result;
use kube::api::ListParams;
use serde_json::{Value, json};
use testbed::{Start, eventually};

use super::{CRD, Converter, asks, crd, crds, create, lb, lbs, replace, stored_versions};
use crate::leases::{Agent, NETWORK};
use crate::support::{Cluster, LATER, SOON};

const OBJECTS: usize = 30;

/// Makes a CRD as it was when v1alpha1 was stored.
fn older(spec: &mut Value) {
    for version in spec["versions"].as_array_mut().into_iter().flatten() {
        version["storage"] = json!(version["name"] == "v1alpha1");
        version["served"] = version["storage"].clone();
    }
    spec["conversion"] = json!({"strategy": "None"});
}

/// A cluster whose objects were stored before v1beta1 was.
async fn old_store(objects: usize) -> Result<Cluster> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    // A new CRD object, whose `storedVersions` do not contain v1beta1.
    cluster.bed.kubectl(&["delete", "crd", CRD]).await?;
    eventually(SOON, "older CRD", async || {
        crds(&cluster).create(&kube::api::PostParams::default(), &crd(older)?).await?;
        anyhow::Ok(true)
    })
    .await?;
    cluster.bed.crds_established().await?;
    let old = lbs(&cluster, "v1alpha1");
    for n in 0..objects {
        let spec = json!({"ipam": "pool", "backendServers": [format!("vm-{n}")],
            "listeners": [{"name": "a", "port": 80, "protocol": "TCP"}],
            "healthCheck": {"port": 80, "successThreshold": 1, "failureThreshold": 3,
                "PeriodSeconds": 5, "timeoutSeconds": 3}});
        let made =
            async || create(&old, lb("v1alpha1", &format!("lb-{n}"), &spec)).await.map(|_| true);
        eventually(SOON, "old object", made).await?;
    }
    Ok(cluster)
}

#[tokio::test(flavor = "multi_thread")]
async fn old_objects_are_read_and_written_anew_and_the_old_version_can_go() -> Result<()> {
    let cluster = old_store(OBJECTS).await?;
    let converter = Converter::start().await?;
    assert_eq!(stored_versions(&cluster).await?, ["v1alpha1"]);

    replace(&cluster, crd(asks(&converter))?).await?;
    assert_eq!(stored_versions(&cluster).await?, ["v1alpha1", "v1beta1"]);
    let _operator = cluster.operator().await?;
    eventually(LATER, "end of the old version in the store", async || {
        stored_versions(&cluster).await.map(|versions| versions == ["v1beta1"])
    })
    .await?;
    // No conversion any more, and the CRD does not even have the old version.
    replace(
        &cluster,
        crd(|spec| {
            spec["versions"].as_array_mut().into_iter().for_each(|versions| versions.truncate(1));
            spec["conversion"] = json!({"strategy": "None"});
        })?,
    )
    .await?;
    drop(converter);
    let new = lbs(&cluster, "v1beta1");
    let all = eventually(SOON, "list without the old version", async || {
        new.list(&ListParams::default()).await.map(Some)
    });
    assert_eq!(all.await?.items.len(), OBJECTS);
    let one = json!(lbs(&cluster, "v1beta1").get("lb-7").await?);
    assert_eq!(one["spec"]["backendServerSelector"], json!({"harvesterhci.io/vmName": ["vm-7"]}));
    assert_eq!(one["spec"]["healthCheck"]["periodSeconds"], 5);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_conversion_the_list_of_stored_versions_stays() -> Result<()> {
    let cluster = Cluster::start().await?;
    let patch = json!({"status": {"storedVersions": ["v1alpha1", "v1beta1"]}});
    let params = kube::api::PatchParams::default();
    crds(&cluster).patch_status(CRD, &params, &kube::api::Patch::Merge(&patch)).await?;
    let operator = cluster.operator().await?;
    eventually(SOON, "log of it", async || {
        operator.process.log().contains("has no conversion webhook")
    })
    .await?;
    assert_eq!(stored_versions(&cluster).await?, ["v1alpha1", "v1beta1"]);
    // It works meanwhile.
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    cluster.lb("web").await?;
    cluster.address("web").await?;

    let converter = Converter::start().await?;
    replace(&cluster, crd(asks(&converter))?).await?;
    eventually(LATER, "end of the old version in the store", async || {
        stored_versions(&cluster).await.map(|versions| versions == ["v1beta1"])
    })
    .await
}

/// The Service leads only to ready replicas, and without conversion there is no list to become
/// ready with.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_to_convert_is_ready_before_objects_can_be_listed() -> Result<()> {
    let cluster = old_store(3).await?;
    replace(&cluster, crd(|_| ())?).await?;
    let operator = cluster.standby(Start::default()).await?;
    operator.ready().await?;
    assert!(!operator.process.log().contains("ledgers loaded"), "{}", operator.process.log());
    // Conversion works.
    let converter = Converter::start().await?;
    replace(&cluster, crd(asks(&converter))?).await?;
    operator.leads().await?;
    eventually(SOON, "claims", async || {
        cluster.allocated("pool").await.map(|allocated| allocated.len() == 3)
    })
    .await
}

/// Harvester's own CRD, in place of the operator's: the fields that it knows are the same.
#[tokio::test(flavor = "multi_thread")]
async fn under_harvesters_own_crd_addresses_are_what_they_were() -> Result<()> {
    let cluster = Cluster::start().await?;
    let converter = Converter::start().await?;
    replace(&cluster, crd(asks(&converter))?).await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let mut operator = cluster.operator().await?;
    cluster.lbs_at_once((0..10).map(|n| format!("lb-{n}"))).await?;
    let _agent = Agent::start(&cluster, NETWORK).await?;
    cluster.dhcp_lb("leased", &[]).await?;
    cluster.grant("leased", "10.7.0.20").await?;
    cluster.addressed(11).await?;
    let before = cluster.addresses().await?;
    operator.process.terminate(SOON).await?;
    let mut theirs = json!(crd(asks(&converter))?);
    drop_keys(&mut theirs["spec"]["versions"]);
    replace(&cluster, serde_json::from_value(theirs)?).await?;
    for (name, address) in &before {
        let lb =
            eventually(SOON, "answer", async || cluster.lbs().get(name).await.map(Some)).await?;
        let status = lb.status.unwrap_or_default();
        assert_eq!(status.address.as_ref(), Some(address));
        assert_eq!(status.allocated_address.and_then(|a| a.ip).as_ref(), Some(address));
        let old = lbs(&cluster, "v1alpha1");
        let shown =
            eventually(SOON, "answer in v1alpha1", async || old.get(name).await.map(Some)).await?;
        let shown = json!(shown);
        assert_eq!(shown["status"]["address"], json!(address));
    }
    Ok(())
}

/// Removes keys that Harvester's chart does not have.
fn drop_keys(value: &mut Value) {
    const OURS: [&str; 12] = [
        "x-kubernetes-validations",
        "default",
        "nullable",
        "addresses",
        "endpoints",
        "observedGeneration",
        "requestedAddresses",
        "ipv6Pool",
        "ipFamilyPolicy",
        "expectedStatuses",
        "serverName",
        "caBundle",
    ];
    match value {
        Value::Object(map) => {
            map.retain(|key, _| !OURS.contains(&key.as_str()));
            map.values_mut().for_each(drop_keys);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_keys),
        _ => {}
    }
}
