//! Objects of the Go controller are taken over: no address moves.

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::api::LoadBalancer;
use harvester_guest_operator::domain::vm_backends::endpoint_slices::SINK_UID;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt as _;
use kube::api::PostParams;
use serde_json::{Value, json};
use testbed::kubevirt::Guest;
use testbed::{Announcer, Announcing, eventually};

use super::watching::Versions;
use super::{SINK, annotation, vm};
use crate::support::{Cluster, SOON};

const LABEL: &str = "loadbalancer.harvesterhci.io/servicelb";

#[tokio::test(flavor = "multi_thread")]
async fn what_the_go_controller_left_is_adopted_and_no_address_moves() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let ledger = json!({"status": {
        "total": 253, "available": 251, "lastAllocated": "10.1.0.51",
        "allocated": {"10.1.0.50": "default/web", "10.1.0.51": "default/idle"},
    }});
    cluster.patch_pool_status("pool", ledger).await?;
    let _announcer = Announcer::start(cluster.client.clone(), Announcing::default());
    let guest = Guest::run(&cluster.client, vm("web", "a", "10.52.0.7"), "node-1").await?;
    let leftover = json!({
        "addresses": ["10.52.0.7"],
        "conditions": {"ready": true},
        "targetRef": {"namespace": "default", "name": "a", "uid": guest.uid()},
    });
    left_behind(&cluster, "web", "10.1.0.50", Some(leftover)).await?;
    left_behind(&cluster, "idle", "10.1.0.51", None).await?;
    let before = found(&cluster).await?;
    let versions = Versions::of(&cluster, "web").await?;

    let _operator = cluster.operator().await?;
    cluster.endpoints_are("web", &[("a", "10.52.0.7", "ready")]).await?;
    cluster.endpoints_are("idle", &[(SINK, "192.0.2.1", "serving, terminating")]).await?;
    cluster.serves("web", "Announced").await?;
    cluster.waits("idle", "NoRunningBackends").await?;
    for name in ["web", "idle"] {
        let slice = cluster.slices().get(name).await?;
        let by = slice.labels().get("endpointslice.kubernetes.io/managed-by");
        assert_eq!(by.map(String::as_str), Some("harvester-guest-operator"));
        assert_eq!(slice.labels().get(LABEL).map(String::as_str), Some("true"));
        assert_eq!(cluster.slices_of("default", name).await?.len(), 1);
    }
    for (name, ip) in [("web", "10.1.0.50"), ("idle", "10.1.0.51")] {
        let asked = |service: &Service| {
            annotation(service, "kube-vip.io/loadbalancerIPs").map(str::to_owned)
        };
        cluster.service_when(name, "the annotation", |s| asked(s).as_deref() == Some(ip)).await?;
        assert_eq!(cluster.address(name).await?, ip);
        cluster.is_reached_at(name, Some(ip)).await?;
    }
    assert_eq!(found(&cluster).await?, before, "the same objects and node ports");
    for version in versions.all() {
        ensure!(version.endpoints.contains_key("a") && !version.gone, "{version:?}");
    }
    eventually(SOON, "owners in the ledger", async || {
        cluster.pool_status("pool").await.map(|status| status.allocated_owners.len() == 2)
    })
    .await?;
    cluster.consistent().await?;
    // And it is released like the operator's own.
    cluster.deleted("idle").await?;
    assert_eq!(cluster.allocated("pool").await?.len(), 1);
    assert!(cluster.services().get_opt("idle").await?.is_none());
    assert!(cluster.slices().get_opt("idle").await?.is_none());
    Ok(())
}

/// UIDs, and fields that the API server set on the Services.
async fn found(cluster: &Cluster) -> Result<Vec<Value>> {
    let mut found = Vec::new();
    for name in ["web", "idle"] {
        let service = cluster.services().get(name).await?;
        let slice = cluster.slices().get(name).await?;
        let spec = service.spec.clone().unwrap_or_default();
        found.push(json!([
            service.uid(),
            slice.uid(),
            spec.cluster_ip,
            spec.ports,
            spec.load_balancer_ip,
            service.status,
        ]));
    }
    Ok(found)
}

/// Creates LoadBalancer, Service and slice as version 1.8 writes them.
async fn left_behind(
    cluster: &Cluster,
    name: &str,
    ip: &str,
    endpoint: Option<Value>,
) -> Result<()> {
    let condition = json!({
        "type": "Ready", "status": if endpoint.is_some() { "True" } else { "False" },
        "message": if endpoint.is_some() { "" } else { "no running backend servers" },
        "lastUpdateTime": "2026-08-20T10:00:00Z",
    });
    let servers: Vec<&Value> = endpoint.iter().map(|e| &e["addresses"][0]).collect();
    let lb: LoadBalancer = serde_json::from_value(json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1",
        "kind": "LoadBalancer",
        "metadata": {
            "name": name,
            "namespace": "default",
            "finalizers": ["wrangler.cattle.io/harvester-lb-controller"],
            "annotations": {"loadbalancer.harvesterhci.io/namespace": "default"},
        },
        "spec": {
            "workloadType": "vm",
            "ipam": "pool",
            "ipPool": "pool",
            "listeners": [
                {"name": "http", "port": 80, "protocol": "TCP", "backendPort": 8080},
                {"name": "dns", "port": 53, "protocol": "UDP", "backendPort": 53},
            ],
            "backendServerSelector": {"app": [name]},
            "healthCheck": {},
        },
        "status": {
            "address": ip,
            "allocatedAddress":
                {"ipPool": "pool", "ip": ip, "mask": "255.255.255.0", "gateway": "10.1.0.1"},
            "backendServers": servers,
            "conditions": [condition],
        },
    }))?;
    let lb = cluster.lbs().create(&PostParams::default(), &lb).await?;
    let owner = json!([{
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1",
        "kind": "LoadBalancer",
        "name": name,
        "uid": lb.uid().context("no UID")?,
    }]);
    let dummy = json!({
        "addresses": ["10.52.0.255"],
        "conditions": {"ready": true},
        "targetRef": {"namespace": "default", "name": "dummy", "uid": SINK_UID},
    });
    let endpoints: Vec<Value> = std::iter::once(dummy).chain(endpoint).collect();
    let slice: EndpointSlice = serde_json::from_value(json!({
        "metadata": {
            "name": name,
            "ownerReferences": owner,
            "labels": {"kubernetes.io/service-name": name, LABEL: "true"},
        },
        "addressType": "IPv4",
        "ports": [
            {"name": "http", "protocol": "TCP", "port": 8080},
            {"name": "dns", "protocol": "UDP", "port": 53},
        ],
        "endpoints": endpoints,
    }))?;
    cluster.slices().create(&PostParams::default(), &slice).await?;
    let service: Service = serde_json::from_value(json!({
        "metadata": {"name": name, "ownerReferences": owner, "labels": {LABEL: "true"}},
        "spec": {
            "type": "LoadBalancer",
            "loadBalancerIP": ip,
            "ports": [
                {"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080},
                {"name": "dns", "protocol": "UDP", "port": 53, "targetPort": 53},
            ],
        },
    }))?;
    cluster.services().create(&PostParams::default(), &service).await?;
    cluster
        .service_when(name, "an announcement", |service| {
            json!(service)["status"]["loadBalancer"]["ingress"][0]["ip"] == ip
        })
        .await
        .map(drop)
}
