//! A foreign Service or EndpointSlice is not changed, and the LoadBalancer of that name names its
//! owner.

use std::collections::BTreeMap;

use anyhow::Result;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};
use testbed::eventually;

use super::vm;
use crate::support::{Cluster, LATER, ready};

/// Ways in which the name of a Service can be taken.
const TAKEN: [&str; 4] = ["selecting", "owned", "bare", "labelled"];

#[tokio::test(flavor = "multi_thread")]
async fn what_another_made_is_left_as_it_is_and_the_name_is_taken_when_it_is_free() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let _operator = cluster.operator().await?;
    others(&cluster).await?;
    let before = objects(&cluster).await?;
    for name in TAKEN.into_iter().chain(["sliced", "left"]) {
        cluster.vm_lb(name).await?;
    }
    for (name, whose) in [
        ("selecting", "a Service default/selecting exists: it names no owner"),
        ("owned", "a Service default/owned exists: it belongs to ConfigMap keeper"),
        ("bare", "a Service default/bare exists: it names no owner"),
        ("labelled", "a Service default/labelled exists: it names no owner"),
        ("left", "a Service default/left exists: it names no owner"),
        ("sliced", "an EndpointSlice default/sliced exists: it names no owner"),
    ] {
        let said = cluster.waits(name, "ServiceConflict").await?;
        assert!(said.starts_with(whose), "{name}: {said}");
        let warned = cluster.warned(name, "ServiceConflict").await?;
        assert_eq!(warned, said);
    }
    // A LoadBalancer that never served goes without a trace.
    cluster.deleted("left").await?;
    // A VM comes: no endpoint of it must get under another's Service.
    let guest =
        testbed::kubevirt::Guest::run(&cluster.client, vm("bare", "a", "10.52.0.7"), "node-1");
    guest.await?;
    cluster.waits_for_endpoints("bare", (1, 1)).await?;
    assert_eq!(objects(&cluster).await?, before, "nothing was written");

    for name in TAKEN.into_iter().chain(["left"]) {
        cluster.services().delete(name, &DeleteParams::default()).await?;
    }
    cluster.slices().delete("sliced", &DeleteParams::default()).await?;
    for name in TAKEN.into_iter().chain(["sliced"]) {
        eventually(LATER, &format!("service by {name}"), async || {
            let lb = cluster.lbs().get(name).await.map_err(|e| e.to_string())?;
            let is = ready(&lb);
            let serves = ["NotAnnounced", "NoRunningBackends"].contains(&is.1.as_str());
            if serves { Ok(true) } else { Err(format!("{is:?}")) }
        })
        .await?;
        let uid = cluster.lbs().get(name).await?.uid();
        let service = cluster.services().get(name).await?;
        assert_eq!(service.owner_references().first().map(|o| o.uid.clone()), uid);
        assert_eq!(cluster.endpoints(name).await?.len(), 1);
    }
    disowned(&cluster).await
}

/// Checks an object of the operator without its owner reference.
async fn disowned(cluster: &Cluster) -> Result<()> {
    let no_owner = json!({"metadata": {"ownerReferences": null}});
    for kind in ["Service", "EndpointSlice"] {
        cluster.vm_lb("disowned").await?;
        cluster.waits("disowned", "NoRunningBackends").await?;
        if kind == "Service" {
            cluster.edit::<Service>("disowned", no_owner.clone()).await?;
        } else {
            cluster.edit::<EndpointSlice>("disowned", no_owner.clone()).await?;
        }
        let said = cluster.waits("disowned", "ServiceConflict").await?;
        assert!(
            said.contains(&format!("{kind} default/disowned exists: it names no owner")),
            "{said}"
        );
        if kind == "EndpointSlice" {
            is_corrected(cluster).await?;
        }
        cluster.deleted("disowned").await?;
        if kind == "Service" {
            cluster.services().delete("disowned", &DeleteParams::default()).await?;
        } else {
            cluster.slices().delete("disowned", &DeleteParams::default()).await?;
        }
    }
    Ok(())
}

/// Checks that the Service is corrected even while the EndpointSlice of its name is another owner's.
async fn is_corrected(cluster: &Cluster) -> Result<()> {
    let asked = "kube-vip.io/loadbalancerIPs";
    let before = cluster.services().get("disowned").await?;
    let address = before.annotations().get(asked).cloned();
    let other = json!({"metadata": {"annotations": {asked: "10.1.0.200"}}});
    cluster.edit::<Service>("disowned", other).await?;
    eventually(LATER, "the Service's own address", async || {
        let service = cluster.services().get("disowned").await?;
        anyhow::Ok(
            service.uid() != before.uid() && service.annotations().get(asked) == address.as_ref(),
        )
    })
    .await?;
    let said = cluster.waits("disowned", "ServiceConflict").await?;
    assert!(said.contains("EndpointSlice default/disowned exists"), "{said}");
    Ok(())
}

/// Content of all Services and slices that are not the operator's, by name.
async fn objects(cluster: &Cluster) -> Result<BTreeMap<String, Value>> {
    let mut all = BTreeMap::new();
    for service in cluster.services().list(&ListParams::default()).await? {
        all.insert(format!("Service {}", service.name_any()), json!(service));
    }
    for slice in cluster.slices().list(&ListParams::default()).await? {
        // The cluster's own controller manages the slices of Services with a selector.
        let by_cluster = slice.name_any().starts_with("selecting-");
        if !by_cluster {
            all.insert(format!("EndpointSlice {}", slice.name_any()), json!(slice));
        }
    }
    Ok(all)
}

async fn others(cluster: &Cluster) -> Result<()> {
    let keeper: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "keeper"}}))?;
    let keeper = cluster.all::<ConfigMap>().create(&PostParams::default(), &keeper).await?;
    let owner = json!([{
        "apiVersion": "v1", "kind": "ConfigMap", "name": "keeper", "uid": keeper.uid(),
    }]);
    let ports = json!([{"name": "http", "port": 80}]);
    for (metadata, spec) in [
        (json!({"name": "selecting"}), json!({"ports": ports, "selector": {"app": "selecting"}})),
        (json!({"name": "owned", "ownerReferences": owner}), json!({"ports": ports})),
        (json!({"name": "bare"}), json!({"ports": ports, "type": "LoadBalancer"})),
        (
            json!({
                "name": "labelled",
                "labels": {"loadbalancer.harvesterhci.io/servicelb": "true"},
            }),
            json!({"ports": ports}),
        ),
        (json!({"name": "left"}), json!({"ports": ports, "clusterIP": "None"})),
    ] {
        let service = json!({"metadata": metadata, "spec": spec});
        let service: Service = serde_json::from_value(service)?;
        cluster.services().create(&PostParams::default(), &service).await?;
    }
    let slice: EndpointSlice = serde_json::from_value(json!({
        "metadata": {"name": "sliced", "labels": {"kubernetes.io/service-name": "sliced"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.99.0.1"]}],
    }))?;
    cluster.slices().create(&PostParams::default(), &slice).await?;
    Ok(())
}
