//! Conversion between both versions, through the real API server.

use std::collections::BTreeMap;

use anyhow::Result;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testbed::eventually;

use super::{Converter, asks, converts, crd, create, lb, lbs, replace};
use crate::leases::{Agent, NETWORK};
use crate::support::{Cluster, SOON};

const TRAVELS: &str = "loadbalancer.harvesterhci.io/v1beta1-fields";

async fn converting() -> Result<(Cluster, Converter)> {
    let cluster = Cluster::start().await?;
    let converter = Converter::start().await?;
    replace(&cluster, crd(asks(&converter))?).await?;
    converts(&cluster).await?;
    Ok((cluster, converter))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_is_the_same_in_both_versions_and_edits_go_both_ways() -> Result<()> {
    let (cluster, _converter) = converting().await?;
    let (old, new) = (lbs(&cluster, "v1alpha1"), lbs(&cluster, "v1beta1"));
    let merge = async |api: &kube::Api<_>, name: &str, patch: Value| {
        let answer: Result<kube::api::DynamicObject, _> =
            api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        answer.map(|object| json!(object))
    };

    // Written in v1alpha1, read in v1beta1.
    let spec = json!({
        "ipam": "pool", "description": "old", "backendServers": ["vm-1", "vm-2"],
        "listeners": [{"name": "web", "port": 80, "protocol": "TCP", "backendPort": 8080}],
        "healthCheck": {"port": 8080, "successThreshold": 1, "failureThreshold": 2,
            "PeriodSeconds": 7, "timeoutSeconds": 3},
    });
    let made = create(&old, lb("v1alpha1", "old", &spec)).await?;
    assert_eq!(made["spec"], spec);
    let read = json!(new.get("old").await?);
    assert_eq!(
        read["spec"]["backendServerSelector"],
        json!({"harvesterhci.io/vmName": ["vm-1", "vm-2"]})
    );
    assert_eq!(read["spec"]["healthCheck"]["periodSeconds"], 7);
    assert_eq!(read["metadata"].get("annotations"), None);

    // Written in v1beta1 with all that v1alpha1 lacks, edited in v1alpha1.
    let spec = json!({
        "ipam": "pool", "workloadType": "vm", "ipPool": "somewhere",
        "listeners": [{"name": "web", "port": 443, "protocol": "TCP", "backendPort": 8443}],
        "backendServerSelector": {"app": ["web"], "tier": ["a", "b"]},
        "healthCheck": {"port": 8443, "protocol": "https", "path": "/healthz", "expectedStatuses": [200]},
    });
    create(&new, lb("v1beta1", "new", &spec)).await?;
    let status = json!({"status": {"allocatedAddress": {"ip": "10.1.2.3", "ipPool": "somewhere"},
        "address": "10.1.2.3", "endpoints": {"total": 3, "ready": 2}}});
    merge(&new, "new", status.clone()).await?;
    let shown = json!(old.get("new").await?);
    assert_eq!(shown["spec"]["healthCheck"]["PeriodSeconds"], 5);
    assert_eq!(shown["status"], json!({"address": "10.1.2.3"}));
    assert!(shown["metadata"]["annotations"][TRAVELS].is_string(), "{shown:#}");
    merge(&old, "new", json!({"spec": {"description": "edited"}})).await?;
    merge(&old, "new", json!({"spec": {"healthCheck": {"PeriodSeconds": 30}}})).await?;
    let read = json!(new.get("new").await?);
    let mut expected = spec.clone();
    expected["description"] = json!("edited");
    expected["healthCheck"]["periodSeconds"] = json!(30);
    assert_eq!(read["spec"], expected);
    assert_eq!(read["status"], status["status"]);
    assert_eq!(read["metadata"].get("annotations"), None);

    // A whole object is read and sent back.
    let whole = old.get("new").await?;
    let sent = json!(old.replace("new", &PostParams::default(), &whole).await?);
    assert_eq!(sent["metadata"]["resourceVersion"], read["metadata"]["resourceVersion"]);
    merge(&old, "new", json!({"spec": {"backendServers": ["vm-9"]}})).await?;
    let read = json!(new.get("new").await?);
    assert_eq!(read["spec"]["backendServerSelector"], json!({"harvesterhci.io/vmName": ["vm-9"]}));

    // Changes that v1alpha1 forbids too.
    let refused = merge(&old, "new", json!({"spec": {"ipam": "dhcp"}})).await.unwrap_err();
    assert!(refused.to_string().contains("spec.ipam is immutable"), "{refused}");

    // Lists hold all objects, in either version.
    for api in [&old, &new] {
        let names: Vec<_> = api.list(&ListParams::default()).await?.items;
        let names: Vec<_> = names.into_iter().filter_map(|o| o.metadata.name).collect();
        assert_eq!(names, ["new", "old"]);
    }
    // Server-side apply retains unnamed fields.
    let apply = json!({"apiVersion": "loadbalancer.harvesterhci.io/v1alpha1", "kind": "LoadBalancer",
        "spec": {"ipam": "pool", "description": "applied"}});
    let applied =
        old.patch("new", &PatchParams::apply("test").force(), &Patch::Apply(apply)).await?;
    assert_eq!(json!(applied)["spec"]["description"], "applied");
    let read = json!(new.get("new").await?);
    assert_eq!(
        (&read["spec"]["description"], &read["spec"]["ipPool"]),
        (&json!("applied"), &json!("somewhere"))
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_are_given_and_shown_in_v1alpha1_and_outlive_its_writes() -> Result<()> {
    let (cluster, converter) = converting().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let _operator = cluster.operator().await?;
    cluster.lbs_at_once((0..20).map(|n| format!("lb-{n}"))).await?;
    cluster.addressed(20).await?;
    let before: BTreeMap<String, String> = cluster.addresses().await?;
    let old = lbs(&cluster, "v1alpha1");
    for mut object in old.list(&ListParams::default()).await?.items {
        let name = object.metadata.name.clone().unwrap_or_default();
        assert_eq!(object.data["status"]["address"], json!(before[&name]));
        object.data["spec"]["description"] = json!("touched");
        old.replace(&name, &PostParams::default(), &object).await?;
    }
    assert_eq!(cluster.addresses().await?, before);
    cluster.consistent().await?;
    let lb = cluster.lbs().get("lb-7").await?;
    assert_eq!(lb.spec.description.as_deref(), Some("touched"));
    assert_eq!(lb.spec.workload_type, Some(harvester_guest_operator::api::WorkloadType::Cluster));

    // A LoadBalancer made in v1alpha1 is for VMs, and waits for an announcer.
    let spec = json!({"ipam": "pool", "backendServers": ["vm-1"],
        "listeners": [{"name": "a", "port": 80, "protocol": "TCP"}]});
    create(&old, super::lb("v1alpha1", "vm", &spec)).await?;
    eventually(SOON, "claim", async || {
        let lb = cluster.lbs().get("vm").await?;
        anyhow::Ok(lb.status.and_then(|status| status.allocated_address).is_some())
    })
    .await?;
    let shown = json!(old.get("vm").await?);
    assert_eq!(
        shown["spec"],
        json!({"ipam": "pool", "backendServers": ["vm-1"],
        "listeners": [{"name": "a", "port": 80, "protocol": "TCP"}]})
    );

    // A LoadBalancer whose address the host leases.
    let _agent = Agent::start(&cluster, NETWORK).await?;
    cluster.dhcp_lb("leased", &[]).await?;
    cluster.grant("leased", "10.7.0.20").await?;
    cluster.publishes("leased", "10.7.0.20").await?;
    let mut object = old.get("leased").await?;
    assert_eq!(object.data["spec"]["ipam"], json!("dhcp"));
    assert_eq!(object.data["status"]["address"], json!("10.7.0.20"));
    object.data["spec"]["description"] = json!("touched");
    old.replace("leased", &PostParams::default(), &object).await?;
    let lb = cluster.publishes("leased", "10.7.0.20").await?;
    assert_eq!(lb.spec.description.as_deref(), Some("touched"));
    cluster.grant("leased", "10.7.0.21").await?;
    cluster.publishes("leased", "10.7.0.21").await?;
    assert_eq!(json!(old.get("leased").await?)["status"]["address"], json!("10.7.0.21"));
    println!("{} conversion reviews", converter.asked.load(std::sync::atomic::Ordering::Relaxed));
    Ok(())
}
