//! Services and slices that are edited or deleted by hand, and listeners that come and go.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use testbed::kubevirt::Guest;
use testbed::{Announcer, Announcing, eventually};

use super::{annotation, version, vm};
use crate::support::{Cluster, SOON, settled};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_edited_or_deleted_by_hand_is_put_right_and_no_more_than_that() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let _operator = cluster.operator().await?;
    let _announcer = Announcer::start(cluster.client.clone(), Announcing::default());
    cluster.vm_lb("web").await?;
    Guest::run(&cluster.client, vm("web", "a", "10.52.0.7"), "node-1").await?;
    cluster.serves("web", "Announced").await?;
    let service = says(&cluster.services().get("web").await?);
    let slice = slice_says(&cluster.slices().get("web").await?);

    let ports = json!([{"name": "other", "port": 81}]);
    for patch in [
        json!({"spec": {"ports": ports}}),
        json!({"spec": {"ports": [{"name": "http", "port": 80, "targetPort": "named"}]}}),
        json!({"spec": {"type": "ClusterIP"}}),
        json!({"spec": {"type": "NodePort"}}),
        json!({"spec": {"loadBalancerIP": "10.9.9.9"}}),
        json!({"spec": {"selector": {"app": "foreign"}}}),
        json!({"metadata": {"labels": {"loadbalancer.harvesterhci.io/servicelb": null}}}),
        json!({"metadata": {"labels": {"loadbalancer.harvesterhci.io/servicelb": "false"}}}),
        json!({"metadata": {"annotations": {"kube-vip.io/loadbalancerIPs": "10.9.9.9"}}}),
        json!({"metadata": {"annotations": {"kube-vip.io/loadbalancerIPs": null}}}),
    ] {
        cluster.edit::<Service>("web", patch.clone()).await?;
        service_is(&cluster, "web", &service).await.with_context(|| patch.to_string())?;
    }
    let elsewhere = json!([{"addresses": ["10.66.6.6"], "conditions": {"ready": true}}]);
    let with_hint = json!([{
        "addresses": ["10.52.0.7"],
        "conditions": {"ready": true, "serving": true, "terminating": false},
        "zone": "there",
        "targetRef": cluster.slices().get("web").await?.endpoints.unwrap_or_default()[0].target_ref,
    }]);
    for patch in [
        json!({"endpoints": elsewhere}),
        json!({"endpoints": with_hint}),
        json!({"endpoints": []}),
        json!({"ports": [{"name": "http", "port": 9999, "protocol": "TCP"}]}),
        json!({"metadata": {"labels": {"kubernetes.io/service-name": "other"}}}),
        json!({"metadata": {"labels": {"kubernetes.io/service-name": null}}}),
        json!({"metadata": {"labels": {"loadbalancer.harvesterhci.io/servicelb": null}}}),
        json!({"metadata": {"labels": {"endpointslice.kubernetes.io/managed-by": "me"}}}),
    ] {
        cluster.edit::<EndpointSlice>("web", patch.clone()).await?;
        slice_is(&cluster, "web", &slice).await.with_context(|| patch.to_string())?;
    }
    cluster.slices().delete("web", &DeleteParams::default()).await?;
    slice_is(&cluster, "web", &slice).await?;
    let uid = cluster.services().get("web").await?.uid();
    cluster.services().delete("web", &DeleteParams::default()).await?;
    service_is(&cluster, "web", &service).await?;
    assert_ne!(cluster.services().get("web").await?.uid(), uid);
    cluster.serves("web", "Announced").await?;
    cluster.is_reached_at("web", Some("10.1.0.2")).await?;
    // The status may be from before the deletion was observed.
    settled("the LoadBalancer", async || Ok(version(&cluster.lbs().get("web").await?.metadata)))
        .await?;
    decorated(&cluster).await?;
    listeners(&cluster).await?;
    cluster.consistent().await
}

/// Additions of others stay, and cause no write.
async fn decorated(cluster: &Cluster) -> Result<()> {
    let more = json!({"metadata": {"labels": {"team": "a"}, "annotations": {"note": "mine"}}});
    cluster.edit::<Service>("web", more.clone()).await?;
    let more_spec = json!({"spec": {"sessionAffinity": "ClientIP"}});
    let service = cluster.edit::<Service>("web", more_spec).await?;
    let slice = cluster.edit::<EndpointSlice>("web", more.clone()).await?;
    let lb = cluster.patch_lb("web", more).await?;
    // A later one is served: earlier changes have been observed.
    cluster.vm_lb("later").await?;
    cluster.is_reached_at("later", Some("10.1.0.3")).await?;
    let (service_now, slice_now) =
        (cluster.services().get("web").await?, cluster.slices().get("web").await?);
    assert_eq!(version(&service_now.metadata), version(&service.metadata));
    assert_eq!(version(&slice_now.metadata), version(&slice.metadata));
    assert_eq!(version(&cluster.lbs().get("web").await?.metadata), version(&lb.metadata));

    // They survive a necessary write.
    cluster
        .patch_lb("web", listen(&json!([{"name": "http", "port": 80, "backendPort": 81}])))
        .await?;
    let changed = cluster
        .service_when("web", "the new port", |service| {
            ports(service).get("http").is_some_and(|port| port.ends_with("->81"))
        })
        .await?;
    assert_eq!(annotation(&changed, "note"), Some("mine"));
    assert_eq!(changed.labels().get("team").map(String::as_str), Some("a"));
    let affinity = changed.spec.and_then(|spec| spec.session_affinity);
    assert_eq!(affinity.as_deref(), Some("ClientIP"));
    let slice = cluster.slices().get("web").await?;
    assert_eq!(slice.annotations().get("note").map(String::as_str), Some("mine"));
    Ok(())
}

/// Retained ports keep their node port, where a user requested node ports.
async fn listeners(cluster: &Cluster) -> Result<()> {
    let dns = [
        json!({"name": "dns-tcp", "port": 53, "protocol": "TCP"}),
        json!({"name": "dns-udp", "port": 53, "protocol": "UDP"}),
    ];
    let spec = json!({"backendServerSelector": {"app": ["dns"]}, "listeners": dns});
    cluster.lb_with("dns", spec).await?;
    // Without a VM the slice leads to no port of a listener.
    Guest::run(&cluster.client, vm("dns", "d", "10.52.0.53"), "node-1").await?;
    let is = async |expected: &[&str]| {
        let expected: Vec<String> = expected.iter().map(|port| (*port).to_owned()).collect();
        let service = cluster
            .service_when("dns", &format!("{expected:?}"), |service| {
                ports(service)
                    .into_iter()
                    .map(|(name, port)| format!("{name} {port}"))
                    .eq(expected.iter().cloned())
            })
            .await?;
        eventually(SOON, &format!("slice with {expected:?}"), async || {
            let slice = cluster.slices().get("dns").await.map_err(|e| e.to_string())?;
            let mut found: Vec<String> = slice
                .ports
                .iter()
                .flatten()
                .map(|port| {
                    let (name, protocol) = (port.name.clone(), port.protocol.clone());
                    let (name, protocol) = (name.unwrap_or_default(), protocol.unwrap_or_default());
                    format!("{name} {protocol} ->{}", port.port.unwrap_or_default())
                })
                .collect();
            found.sort();
            let port = |text: &String| {
                let (front, back) = text.split_once("->").unwrap_or_default();
                let words: Vec<&str> = front.split_whitespace().collect();
                format!("{} {} ->{back}", words[0], words[1])
            };
            let expected: Vec<String> = expected.iter().map(port).collect();
            if found == expected { Ok(true) } else { Err(format!("{found:?}, not {expected:?}")) }
        })
        .await?;
        anyhow::Ok(node_ports(&service))
    };
    let none = is(&["dns-tcp TCP 53->53", "dns-udp UDP 53->53"]).await?;
    assert!(none.is_empty(), "{none:?}: no user asked for node ports");
    let ask = json!({"spec": {"allocateLoadBalancerNodePorts": true}});
    cluster.edit::<Service>("dns", ask).await?;
    let first = is(&["dns-tcp TCP 53->53", "dns-udp UDP 53->53"]).await?;
    let [tcp, udp] = [first.get("TCP 53"), first.get("UDP 53")].map(Option::<&i32>::copied);
    assert!(tcp.is_some() && udp.is_some());

    // Two listeners to one port of the VMs, and in another order.
    let http = json!({"name": "http", "port": 80, "backendPort": 8080});
    let alt = json!({"name": "alt", "port": 81, "backendPort": 8080});
    cluster.patch_lb("dns", listen(&json!([http, dns[1], dns[0], alt]))).await?;
    let four =
        ["alt TCP 81->8080", "dns-tcp TCP 53->53", "dns-udp UDP 53->53", "http TCP 80->8080"];
    let second = is(&four).await?;
    assert_eq!([second.get("TCP 53"), second.get("UDP 53")], [tcp.as_ref(), udp.as_ref()]);

    // Another port of the VMs; another name; one less.
    let http = json!({"name": "http", "port": 80, "backendPort": 8081});
    let renamed = json!({"name": "renamed", "port": 81, "backendPort": 8080});
    cluster.patch_lb("dns", listen(&json!([dns[0], http, renamed]))).await?;
    let third = is(&["dns-tcp TCP 53->53", "http TCP 80->8081", "renamed TCP 81->8080"]).await?;
    for port in ["TCP 53", "TCP 80", "TCP 81"] {
        assert_eq!(third.get(port), second.get(port), "{port}");
    }
    assert_eq!(third.len(), 3);
    // A single port may have no name.
    cluster.patch_lb("dns", listen(&json!([{"port": 53, "protocol": "UDP"}]))).await?;
    let service = cluster
        .service_when("dns", "a port without a name", |service| {
            ports(service).into_iter().eq([(String::new(), "UDP 53->53".to_owned())])
        })
        .await?;
    assert_eq!(node_ports(&service).len(), 1);
    Ok(())
}

fn listen(listeners: &Value) -> Value {
    json!({"spec": {"listeners": listeners}})
}

/// Ports by name: protocol, port, target.
fn ports(service: &Service) -> BTreeMap<String, String> {
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
    ports
        .iter()
        .map(|port| {
            let protocol = port.protocol.as_deref().unwrap_or_default();
            let target = json!(port.target_port);
            let target = target.as_str().map_or_else(|| target.to_string(), str::to_owned);
            let text = format!("{protocol} {}->{target}", port.port);
            (port.name.clone().unwrap_or_default(), text)
        })
        .collect()
}

/// Node ports by protocol and port.
fn node_ports(service: &Service) -> BTreeMap<String, i32> {
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
    ports
        .iter()
        .filter_map(|port| {
            let key = format!("{} {}", port.protocol.as_deref().unwrap_or_default(), port.port);
            Some((key, port.node_port?))
        })
        .collect()
}

/// Fields of a Service that the operator sets.
fn says(service: &Service) -> Value {
    let spec = service.spec.clone().unwrap_or_default();
    json!({
        "labels": service.labels(),
        "annotations": service.annotations(),
        "owners": service.owner_references(),
        "type": spec.type_,
        "selector": spec.selector,
        "address": spec.load_balancer_ip,
        "ports": ports(service),
    })
}

/// Fields of a slice that the operator sets.
fn slice_says(slice: &EndpointSlice) -> Value {
    let owners = slice.owner_references();
    let endpoints = &slice.endpoints;
    json!([slice.labels(), owners, slice.address_type, slice.ports, endpoints])
}

async fn service_is(cluster: &Cluster, name: &str, expected: &Value) -> Result<()> {
    cluster
        .service_when(name, &expected.to_string(), |service| says(service) == *expected)
        .await
        .map(drop)
}

async fn slice_is(cluster: &Cluster, name: &str, expected: &Value) -> Result<()> {
    eventually(SOON, &format!("slice {name} with {expected}"), async || {
        let slice = cluster.slices().get(name).await.map_err(|e| e.to_string())?;
        let found = slice_says(&slice);
        if found == *expected { Ok(true) } else { Err(found.to_string()) }
    })
    .await
}
