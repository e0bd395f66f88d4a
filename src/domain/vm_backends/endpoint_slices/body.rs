//! Bodies of requests that write EndpointSlices: whole objects, or merge patches.
//!
//! Endpoints are serialized directly, and not through a tree of JSON values. For a change of one VM
//! in a slice of 100 endpoints, building that tree was a third of the work.

use std::net::IpAddr;

use serde::Serialize;
use serde_json::{Value, json};

use super::super::endpoints::{AddressFamily, VmEndpoint};
use super::super::lb_identity::{LbIdentity, owner_reference};
use super::super::ports::EndpointPort;
use api::{LABEL_SERVICE_LB, LABEL_SERVICE_NAME, LABEL_SLICE_MANAGER, MANAGER};

/// Annotation with a time, from which kube-proxy computes its metric of programming latency. In
/// Kubernetes, this is the time of the last event that changed the slice's endpoints. The operator
/// sets it to the time of its write.
const TRIGGERED: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// Body of a request that writes an EndpointSlice.
#[derive(Debug, Serialize)]
pub struct SliceBody<'a> {
    /// JSON object with all fields except `endpoints`.
    #[serde(flatten)]
    head: Value,
    endpoints: Vec<EndpointBody<'a>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct EndpointBody<'a> {
    addresses: [IpAddr; 1],
    conditions: EndpointConditions,
    /// Reference to the endpoint's VM. The sink is no VM, so its reference has no `kind`. The sink
    /// still has a reference, because Harvester's Go controller expects one in every endpoint.
    target_ref: TargetRef<'a>,
    #[serde(skip_serializing_if = "str::is_empty")]
    node_name: &'a str,
}

#[derive(Debug, Serialize)]
struct EndpointConditions {
    ready: bool,
    serving: bool,
    terminating: bool,
}

#[derive(Debug, Serialize)]
struct TargetRef<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    kind: &'a str,
    namespace: &'a str,
    name: &'a str,
    uid: &'a str,
}

/// Body of a new EndpointSlice of the LoadBalancer `lb`. `name`: name of the slice. `triggered`:
/// time (RFC 3339) for the annotation `TRIGGERED`.
pub fn create<'a>(
    lb: LbIdentity<'a>,
    name: &str,
    family: AddressFamily,
    ports: &[EndpointPort],
    endpoints: &'a [VmEndpoint],
    triggered: &str,
) -> SliceBody<'a> {
    let head = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": lb.namespace,
            "labels": labels(lb),
            "annotations": {TRIGGERED: triggered},
            "ownerReferences": [owner_reference(lb)],
        },
        "addressType": family.name(),
        "ports": written(ports),
    });
    body(lb, head, endpoints)
}

/// Merge patch that replaces the ports and endpoints of a stored slice of the LoadBalancer `lb`,
/// and sets the operator's labels. `version`: resourceVersion that the stored slice must have.
/// `triggered`: time (RFC 3339) for the annotation `TRIGGERED`.
pub fn patch<'a>(
    lb: LbIdentity<'a>,
    version: &str,
    ports: &[EndpointPort],
    endpoints: &'a [VmEndpoint],
    triggered: &str,
) -> SliceBody<'a> {
    let head = json!({
        "metadata": {
            "resourceVersion": version,
            "labels": labels(lb),
            "annotations": {TRIGGERED: triggered},
        },
        "ports": written(ports),
    });
    body(lb, head, endpoints)
}

fn body<'a>(lb: LbIdentity<'a>, head: Value, endpoints: &'a [VmEndpoint]) -> SliceBody<'a> {
    SliceBody { head, endpoints: endpoints.iter().map(|endpoint| of(lb, endpoint)).collect() }
}

fn of<'a>(lb: LbIdentity<'a>, endpoint: &'a VmEndpoint) -> EndpointBody<'a> {
    EndpointBody {
        addresses: [endpoint.address],
        conditions: EndpointConditions {
            ready: endpoint.ready(),
            serving: endpoint.serving,
            terminating: endpoint.terminating,
        },
        target_ref: TargetRef {
            kind: if endpoint.is_sink() { "" } else { "VirtualMachineInstance" },
            namespace: lb.namespace,
            name: &endpoint.name,
            uid: &endpoint.uid,
        },
        node_name: &endpoint.node,
    }
}

fn labels(lb: LbIdentity<'_>) -> Value {
    json!({
        LABEL_SERVICE_NAME: lb.name,
        LABEL_SERVICE_LB: "true",
        LABEL_SLICE_MANAGER: MANAGER,
    })
}

fn written(ports: &[EndpointPort]) -> Vec<Value> {
    ports.iter().map(|p| json!({"name": p.name, "protocol": p.protocol, "port": p.port})).collect()
}
