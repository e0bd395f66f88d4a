//! Requests of the hostile tenant: one of each kind that its role allows.

use harvester_guest_operator::api::{
    GROUP, LABEL_SERVICE_LB, LABEL_SERVICE_NAME, LABEL_SLICE_MANAGER, LB_FINALIZER, MANAGER,
};
use serde_json::{Value, json};

use super::{ASKED, HELD, HONEST, MINE, VICTIM};

/// Paths in the tenant's namespace.
pub(super) const LBS: &str =
    "/apis/loadbalancer.harvesterhci.io/v1beta1/namespaces/hostile/loadbalancers";
const SERVICES: &str = "/api/v1/namespaces/hostile/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/hostile/endpointslices";
/// Version that the API server converts, with the operator's webhook.
pub(super) const OLD: &str = "/v1alpha1/";
/// Method of a request that is a server-side apply.
pub(super) const APPLY: &str = "APPLY";

/// A request of the hostile tenant: method, path, body.
pub(super) type Request = (&'static str, String, Value);

/// LoadBalancer that the tenant works on, and the victim.
#[derive(Clone, Copy, Default)]
pub(super) struct AttackedNames<'a> {
    /// Name of the tenant's LoadBalancer.
    pub(super) name: &'a str,
    /// UID in the last answer about this LoadBalancer. Before the first answer, a guess.
    pub(super) uid: &'a str,
    /// UID of the victim. The tenant's role does not show it.
    pub(super) victim: &'a str,
}

/// A request of each kind that the role allows, for one name.
pub(super) fn requests(at: AttackedNames<'_>, round: u64) -> Vec<Request> {
    let name = at.name;
    let mut all = vec![("POST", LBS.to_owned(), whole(name, &vm_spec()))];
    all.extend(forged(at));
    let guests = json!({"workloadType": "cluster", "ipam": "pool"});
    all.push(("POST", LBS.to_owned(), whole(name, &guests)));
    all.extend(on_metadata(name, round));
    all.extend(on_status(name));
    all.extend(on_spec(name, round));
    all.extend(on_finalizers(name));
    all.extend(on_service(name));
    all.extend(on_slices(name));
    all.extend(on_vm());
    all.push(("DELETE", format!("{LBS}/{name}"), json!({})));
    all
}

/// Objects with the operator's label that name a LoadBalancer as their owner: the tenant's own, or
/// the victim. The first has the name of the operator's Service, and comes before it in a round
/// that begins with a new LoadBalancer.
fn forged(at: AttackedNames<'_>) -> Vec<Request> {
    let (forged, foreign) = (format!("{}-forged", at.name), format!("{}-foreign", at.name));
    let (own, victim) = (owner(at.name, at.uid), owner("victim", at.victim));
    vec![
        ("POST", SERVICES.to_owned(), forged_service(at.name, &own)),
        ("POST", SLICES.to_owned(), forged_slice(&forged, at.name, &own)),
        ("POST", SERVICES.to_owned(), forged_service(&forged, &own)),
        ("POST", SERVICES.to_owned(), forged_service(&foreign, &victim)),
        ("POST", SLICES.to_owned(), forged_slice(&foreign, "victim", &victim)),
        ("DELETE", format!("{SERVICES}/{forged}"), json!({})),
        ("DELETE", format!("{SERVICES}/{foreign}"), json!({})),
        ("DELETE", format!("{SLICES}/{foreign}"), json!({})),
    ]
}

fn owner(name: &str, uid: &str) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1beta1"), "kind": "LoadBalancer", "name": name, "uid": uid,
    })
}

fn forged_service(name: &str, owner: &Value) -> Value {
    json!({
        "metadata": {
            "name": name, "labels": {LABEL_SERVICE_LB: "true"}, "ownerReferences": [owner],
            "annotations": {ASKED: VICTIM},
        },
        "spec": {"type": "LoadBalancer", "loadBalancerIP": VICTIM, "ports": [{"port": 80}]},
    })
}

/// An EndpointSlice of a Service that leads to the victim's address. The reference to a VM is
/// complete, and there is no such VM.
fn forged_slice(name: &str, service: &str, owner: &Value) -> Value {
    let endpoint = json!({
        "addresses": [VICTIM], "hostname": MINE,
        "conditions": {"ready": true, "serving": true, "terminating": false},
        "targetRef": {
            "kind": "VirtualMachineInstance", "namespace": "hostile", "name": "liar",
            "uid": owner["uid"],
        },
    });
    let mut labels = labels(service);
    labels[LABEL_SERVICE_LB] = json!("true");
    json!({
        "metadata": {"name": name, "labels": labels, "ownerReferences": [owner]},
        "addressType": "IPv4", "endpoints": [endpoint], "ports": [{"port": 8080}],
    })
}

fn on_metadata(name: &str, round: u64) -> Vec<Request> {
    let annotated = |key: &str, value: &str| {
        let key = format!("{GROUP}/{key}");
        change(name, json!({"metadata": {"annotations": {key: value}}}))
    };
    let old = |patch: Value| ("PATCH", format!("{LBS}/{name}").replace("/v1beta1/", OLD), patch);
    let carried = json!({"spec": {"ipPool": "theirs"}, "status": {"allocatedAddress": claim()}});
    vec![
        annotated("allocated-address", &format!("theirs/{VICTIM}")),
        annotated("namespace", "theirs"),
        annotated("network", "theirs/vlan1"),
        annotated("network", "default/lan"),
        annotated("project", "*"),
        annotated("cluster", &"x".repeat(60_000)),
        old(json!({"spec": {"description": round.to_string()}})),
        old(json!({"metadata": {"annotations": {
            format!("{GROUP}/v1beta1-fields"): carried.to_string(),
        }}})),
        change(name, json!({"metadata": {"labels": {"round": round.to_string()}}})),
    ]
}

fn on_status(name: &str) -> Vec<Request> {
    let status = |status: Value| change(name, json!({"status": status}));
    vec![
        status(json!({"allocatedAddress": claim()})),
        status(json!({"address": VICTIM})),
        status(Value::Null),
        applied(name, &json!({})),
        applied(name, &json!({"status": {"allocatedAddress": claim()}})),
    ]
}

fn on_spec(name: &str, round: u64) -> Vec<Request> {
    let spec = |spec: Value| change(name, json!({"spec": spec}));
    let port = 1 + round % 60_000;
    vec![
        spec(json!({"ipPool": "theirs"})),
        spec(json!({"ipPool": null, "ipam": "dhcp"})),
        spec(json!({"ipam": "pool"})),
        spec(json!({"backendServerSelector": {"app": ["honest"]}})),
        spec(json!({"backendServerSelector": {"app": ["liar"]}})),
        spec(json!({"healthCheck": {"port": port, "periodSeconds": 1}})),
        spec(json!({"listeners": [
            {"name": "http", "port": port, "protocol": "TCP", "backendPort": 8080},
        ]})),
    ]
}

/// Finalizers of the operator and of the tenant: each of the four sets.
fn on_finalizers(name: &str) -> Vec<Request> {
    let finalizers = |list: &[&str]| change(name, json!({"metadata": {"finalizers": list}}));
    vec![
        finalizers(&[]),
        finalizers(&[LB_FINALIZER]),
        finalizers(&[LB_FINALIZER, HELD]),
        finalizers(&[HELD]),
    ]
}

fn on_service(name: &str) -> Vec<Request> {
    let (service, own) = (format!("{SERVICES}/{name}"), format!("{SERVICES}/{name}-own"));
    let merge = |patch: Value| ("PATCH", service.clone(), patch);
    vec![
        merge(json!({"spec": {"loadBalancerIP": VICTIM}})),
        merge(json!({"spec": {"externalIPs": [VICTIM]}})),
        merge(json!({"spec": {"selector": {"app": "mine"}}})),
        merge(json!({"spec": {"type": "ClusterIP"}})),
        merge(json!({"metadata": {
            "annotations": {ASKED: VICTIM}, "ownerReferences": [], "labels": null,
        }})),
        merge(json!({"status": {"loadBalancer": {"ingress": [{"ip": VICTIM}]}}})),
        (
            "POST",
            SERVICES.to_owned(),
            json!({
                "metadata": {"name": name}, "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]},
            }),
        ),
        merge(json!({"metadata": {"annotations": {ASKED: VICTIM}}})),
        ("DELETE", service.clone(), json!({})),
        (
            "POST",
            SERVICES.to_owned(),
            json!({
                "metadata": {"name": format!("{name}-own"), "annotations": {
                    ASKED: VICTIM, "kube-vip.io/allow-reconcile-without-endpoints": "true",
                }},
                "spec": {"type": "LoadBalancer", "loadBalancerIP": VICTIM, "ports": [{"port": 80}]},
            }),
        ),
        ("DELETE", own, json!({})),
    ]
}

fn on_slices(name: &str) -> Vec<Request> {
    // The operator's first slice for IPv4 has the name of its Service.
    let (slice, theirs) = (format!("{SLICES}/{name}-mine"), format!("{SLICES}/{name}"));
    let mine = json!([{"addresses": [HONEST], "hostname": MINE}]);
    vec![
        (
            "POST",
            SLICES.to_owned(),
            json!({
                "metadata": {"name": format!("{name}-mine"), "labels": labels(name)},
                "addressType": "IPv4", "endpoints": [{"addresses": [HONEST]}], "ports": [{"port": 8080}],
            }),
        ),
        ("PATCH", slice.clone(), json!({"endpoints": [{"addresses": ["10.96.0.1"]}]})),
        ("DELETE", slice, json!({})),
        ("PATCH", theirs.clone(), json!({"endpoints": mine})),
        ("PATCH", theirs.clone(), json!({"ports": [{"port": 22}]})),
        (
            "PUT",
            theirs,
            json!({
                "metadata": {"name": name, "labels": labels(name)},
                "addressType": "IPv4", "endpoints": mine, "ports": [{"port": 8080}],
            }),
        ),
        ("DELETE", format!("{SLICES}?labelSelector={LABEL_SERVICE_NAME}={name}"), json!({})),
    ]
}

/// Labels of the tenant's VM, so that it is selected as another VM is.
fn on_vm() -> [Request; 2] {
    let instance = "/apis/kubevirt.io/v1/namespaces/hostile/virtualmachineinstances/liar";
    let labelled =
        |pairs: Value| ("PATCH", instance.to_owned(), json!({"metadata": {"labels": pairs}}));
    [
        labelled(json!({"app": "honest", "harvesterhci.io/vmName": "honest"})),
        labelled(json!({"app": "liar", "harvesterhci.io/vmName": null})),
    ]
}

fn whole(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1beta1"), "kind": "LoadBalancer",
        "metadata": {"name": name}, "spec": spec,
    })
}

fn vm_spec() -> Value {
    json!({
        "workloadType": "vm", "ipam": "pool", "backendServerSelector": {"app": ["liar"]},
        "listeners": [{"name": "http", "port": 80, "protocol": "TCP", "backendPort": 8080}],
    })
}

/// The victim's claim, as a status shows it.
fn claim() -> Value {
    json!({"ipPool": "theirs", "ip": VICTIM})
}

/// Labels of the operator's slices, except the one by which the operator finds them.
fn labels(service: &str) -> Value {
    json!({LABEL_SERVICE_NAME: service, LABEL_SLICE_MANAGER: MANAGER})
}

/// A merge patch of the LoadBalancer.
fn change(name: &str, patch: Value) -> Request {
    ("PATCH", format!("{LBS}/{name}"), patch)
}

/// A server-side apply of the LoadBalancer, with these fields too.
fn applied(name: &str, fields: &Value) -> Request {
    let mut body = whole(name, &vm_spec());
    for (field, value) in fields.as_object().into_iter().flatten() {
        body[field] = value.clone();
    }
    (APPLY, format!("{LBS}/{name}?fieldManager=mine&force=true"), body)
}
