//! Tests of requests and their answers, rule by rule.

mod pools;
mod properties;
mod spec;
mod status;

use serde_json::json;

use super::*;
use crate::admission::Operation;
use crate::load_balancer::facts::Project;

const NETWORK: &str = "loadbalancer.harvesterhci.io/network";
const PROJECT: &str = "loadbalancer.harvesterhci.io/project";
const NAMESPACE: &str = "loadbalancer.harvesterhci.io/namespace";
const CLUSTER: &str = "loadbalancer.harvesterhci.io/cluster";
const MANAGEMENT: &str = "cloudprovider.harvesterhci.io/managementNetwork";
const LABEL: &str = "cloudprovider.harvesterhci.io/cluster";

/// A LoadBalancer in namespace `ns`.
#[allow(clippy::needless_pass_by_value)] // The caller writes a literal.
pub(super) fn lb(spec: Value) -> Value {
    json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
        "metadata": {"name": "web", "namespace": "ns"}, "spec": spec,
    })
}

pub(super) fn vm() -> Value {
    lb(json!({"listeners": [{"name": "http", "port": 80, "protocol": "TCP", "backendPort": 8080}]}))
}

pub(super) fn guest() -> Value {
    lb(json!({"workloadType": "cluster"}))
}

/// Returns the object with this value at the path.
pub(super) fn with(mut object: Value, path: &str, value: Value) -> Value {
    let mut at = &mut object;
    for part in path.split('/') {
        at = &mut at[part];
    }
    *at = value;
    object
}

pub(super) fn request<'a>(old: Option<&'a Value>, object: &'a Value) -> AdmissionRequest<'a> {
    AdmissionRequest {
        operation: if old.is_some() { Operation::Update } else { Operation::Create },
        subresource: "",
        namespace: "ns",
        name: "web",
        by_operator: false,
        in_v1alpha1: false,
        object: Some(object),
        old,
    }
}

pub(super) fn outside() -> LbRuleFacts {
    known(Project::Outside)
}

fn known(project: Project) -> LbRuleFacts {
    LbRuleFacts {
        around: LbSurroundings { project, vm_network: None, ..LbSurroundings::default() },
        ..LbRuleFacts::default()
    }
}

fn refusals(answer: &AdmissionAnswer) -> Vec<String> {
    answer.refusals.iter().map(ToString::to_string).collect()
}

fn create(object: &Value, known: &LbRuleFacts) -> AdmissionAnswer {
    validate(&request(None, object), known)
}

fn update(old: &Value, object: &Value, known: &LbRuleFacts) -> AdmissionAnswer {
    validate(&request(Some(old), object), known)
}

#[test]
fn annotations_say_what_counts() {
    let ours = || Project::In("local/ours".into());
    for (project, type_, given, label, expected) in [
        (ours(), "vm", json!({}), None, json!({NAMESPACE: "ns", PROJECT: "local/ours"})),
        (
            ours(),
            "vm",
            json!({PROJECT: "*", NAMESPACE: "*", NETWORK: "*", CLUSTER: "*"}),
            None,
            json!({NAMESPACE: "ns", PROJECT: "local/ours", NETWORK: "*", CLUSTER: "*"}),
        ),
        (Project::Outside, "vm", json!({PROJECT: "local/theirs"}), None, json!({NAMESPACE: "ns"})),
        (
            Project::Unknown,
            "vm",
            json!({PROJECT: "local/theirs"}),
            None,
            json!({NAMESPACE: "ns", PROJECT: "local/theirs"}),
        ),
        (
            Project::Outside,
            "cluster",
            json!({"a/b": "c"}),
            Some("guest"),
            json!({"a/b": "c", NAMESPACE: "ns", NETWORK: "ns/vms", CLUSTER: "guest"}),
        ),
        (
            Project::Outside,
            "cluster",
            json!({NETWORK: "ns/own", CLUSTER: "x"}),
            Some("guest"),
            json!({NAMESPACE: "ns", NETWORK: "ns/own", CLUSTER: "x"}),
        ),
        (
            Project::Outside,
            "cluster",
            json!({MANAGEMENT: "ns/mgmt", NETWORK: ""}),
            None,
            json!({NAMESPACE: "ns", NETWORK: "ns/mgmt", MANAGEMENT: "ns/mgmt"}),
        ),
        // A vm LoadBalancer has no management network, and no guest cluster.
        (
            Project::Outside,
            "vm",
            json!({MANAGEMENT: "ns/mgmt"}),
            Some("guest"),
            json!({NAMESPACE: "ns", MANAGEMENT: "ns/mgmt"}),
        ),
    ] {
        let mut object = with(vm(), "metadata/annotations", given.clone());
        object["spec"]["workloadType"] = json!(type_);
        if let Some(label) = label {
            object["metadata"]["labels"] = json!({LABEL: label});
        }
        let mut known = known(project);
        known.around.vm_network = (type_ == "cluster").then(|| "ns/vms".into());
        let answer = mutate(&request(None, &object), &known);
        let changed = answer.object.as_ref().unwrap_or(&object);
        assert_eq!(changed["metadata"]["annotations"], expected, "{given}");
        let claims = given.get(PROJECT).is_some_and(|given| expected.get(PROJECT) != Some(given));
        let says =
            answer.warnings.iter().any(|warning| warning.starts_with("annotation project: "));
        assert_eq!(says, claims, "{given}: {:?}", answer.warnings);
        // A wrong value that the stored object already has gives no warning.
        let again = mutate(&request(Some(&object), &object), &known);
        assert_eq!(again.warnings, Vec::<String>::new(), "{given}");
    }
}

#[test]
fn an_overwritten_annotation_gives_a_warning() {
    let object = with(vm(), "metadata/annotations", json!({PROJECT: "local/theirs"}));
    for (project, warning) in [
        (
            Project::In("local/ours".into()),
            "annotation project: set to \"local/ours\", the namespace's project, not to \"local/theirs\"",
        ),
        (
            Project::Outside,
            "annotation project: removed: the namespace is in no project, not in \"local/theirs\"",
        ),
    ] {
        assert_eq!(mutate(&request(None, &object), &known(project)).warnings, [warning]);
    }
}

#[test]
fn a_health_check_says_what_its_defaults_are() {
    let filled = |check: Value, old: Option<&Value>| {
        let object = with(vm(), "spec/healthCheck", check);
        let answer = mutate(&request(old, &object), &outside());
        let changed = answer.object.unwrap_or(object)["spec"]["healthCheck"].clone();
        (changed, answer.warnings)
    };
    let full = json!({"port": 8080, "successThreshold": 1, "failureThreshold": 3, "periodSeconds": 5, "timeoutSeconds": 3});
    let (check, warnings) = filled(json!({"port": 8080, "periodSeconds": 0}), None);
    assert_eq!(check, full);
    assert!(warnings[0].contains("2, 2, 1 s, 1 s") && warnings[0].len() <= 120, "{warnings:?}");
    let own = with(full.clone(), "periodSeconds", json!(9));
    assert_eq!(filled(own.clone(), None), (own, vec![]));
    for none in [
        json!({}),
        json!({"port": 0}),
        json!({"port": -1}),
        json!(null),
        json!("x"),
        json!({"port": "x"}),
    ] {
        assert_eq!(filled(none.clone(), None).0, none);
    }
    // Mutation fills in the fields that a client omits in an update, and gives no warning.
    let stored = with(vm(), "spec/healthCheck", full.clone());
    assert_eq!(filled(json!({"port": 8080}), Some(&stored)), (full, vec![]));
    let guest = with(guest(), "spec/healthCheck", json!({"port": 80}));
    let after = mutate(&request(None, &guest), &outside()).object.unwrap();
    assert_eq!(after["spec"], guest["spec"], "a guest looks after its own");
}

#[test]
fn what_was_stored_is_filled_in_only_when_it_is_edited() {
    let stored = with(vm(), "spec/healthCheck", json!({"port": 8080}));
    let labelled = with(stored.clone(), "metadata/labels", json!({"a": "b"}));
    let after = mutate(&request(Some(&stored), &labelled), &outside()).object.unwrap();
    assert_eq!(after["spec"], stored["spec"]);
}

#[test]
fn what_people_write_by_mistake_gets_a_hint() {
    for (path, value, refusal) in [
        ("ipam", json!("ippool"), "spec.ipam: \"ippool\" is not valid: use pool (or dhcp)"),
        ("ipam", json!("DHCP"), "spec.ipam: \"DHCP\" is not valid: use dhcp (or pool)"),
        ("ipam", json!("static"), "spec.ipam: \"static\" is not valid: use pool or dhcp"),
        (
            "workloadType",
            json!("VM"),
            "spec.workloadType: \"VM\" is not valid: use vm (or cluster)",
        ),
        (
            "workloadType",
            json!("Cluster"),
            "spec.workloadType: \"Cluster\" is not valid: use cluster (or vm)",
        ),
        (
            "workloadType",
            json!("guest"),
            "spec.workloadType: \"guest\" is not valid: use cluster (or vm)",
        ),
        (
            "workloadType",
            json!("pod"),
            "spec.workloadType: \"pod\" is not valid: use vm or cluster",
        ),
        (
            "listeners",
            json!({"http": {"port": 80}}),
            "spec.listeners: it is a map: use a list, [{name: http, port: 80, backendPort: 8080}]",
        ),
        (
            "listeners",
            json!([{"port": "80"}]),
            "spec.listeners[0].port: \"80\" is text: write 80, without quotes",
        ),
        (
            "listeners",
            json!([{"port": 80}, {"port": 81, "backendPort": "http"}]),
            "spec.listeners[1].backendPort: \"http\" is text: use a number; port names are not resolved",
        ),
        (
            "healthCheck",
            json!({"port": "8080"}),
            "spec.healthCheck.port: \"8080\" is text: write 8080, without quotes",
        ),
        (
            "healthCheck",
            json!({"periodSeconds": "5s"}),
            "spec.healthCheck.periodSeconds: \"5s\" is text: use a number; port names are not resolved",
        ),
        (
            "backendServerSelector",
            json!({"app": "web"}),
            "spec.backendServerSelector[app]: \"web\" is not a list: use [\"web\"]",
        ),
        (
            "backendServerSelector",
            json!({"tier": 1}),
            "spec.backendServerSelector[tier]: 1 is not a list: use [\"1\"]",
        ),
        (
            "backendServerSelector",
            json!({"matchLabels": {"app": "web"}}),
            "spec.backendServerSelector[matchLabels]: is not supported here: write each label and its values, app: [web, api]",
        ),
        (
            "backendServerSelector",
            json!(["app=web"]),
            "spec.backendServerSelector: [\"app=web\"] is not a map: use label: [value, ...]",
        ),
    ] {
        let object = with(vm(), &format!("spec/{path}"), value.clone());
        let answer = mutate(&request(None, &object), &outside());
        assert_eq!(refusals(&answer), [refusal], "{path} {value}");
        assert_eq!(answer.object, None, "what is refused is not changed");
        // A stored object with this mistake can still be labelled.
        let labelled = with(object.clone(), "metadata/labels", json!({"a": "b"}));
        assert!(mutate(&request(Some(&object), &labelled), &outside()).refusals.is_empty());
    }
    for (path, value) in [
        ("ipam", json!("pool")),
        ("ipam", json!("")),
        ("ipam", json!(null)),
        ("ipam", json!(7)),
        ("workloadType", json!("cluster")),
        ("listeners", json!(null)),
        ("listeners", json!("x")),
        ("healthCheck", json!(null)),
        ("backendServerSelector", json!({"app": ["web"]})),
        ("backendServerSelector", json!({})),
        ("backendServerSelector", json!([])),
    ] {
        let object = with(vm(), &format!("spec/{path}"), value.clone());
        let answer = mutate(&request(None, &object), &outside());
        assert!(answer.refusals.is_empty(), "{path} {value}: {:?}", answer.refusals);
    }
}

#[test]
fn the_operator_and_deletions_pass() {
    let (old, new) = (vm(), with(lb(json!({"ipam": "x"})), "status", json!({"address": "x"})));
    let operator = AdmissionRequest { by_operator: true, ..request(Some(&old), &new) };
    let deletion = AdmissionRequest {
        operation: Operation::Delete,
        object: None,
        ..request(Some(&old), &new)
    };
    for request in [operator, deletion] {
        assert_eq!(asks(&request), None);
        assert_eq!(mutate(&request, &outside()), AdmissionAnswer::default());
        assert_eq!(validate(&request, &outside()), AdmissionAnswer::default());
    }
}

#[test]
fn only_what_a_rule_takes_is_looked_up() {
    let asked = |old: Option<&Value>, object: &Value| {
        let asks = asks(&request(old, object)).unwrap();
        (asks.pool, asks.pools, asks.address)
    };
    let naming = with(vm(), "spec/ipPool", json!("p"));
    let labelled = |object: &Value| with(object.clone(), "metadata/labels", json!({"a": "b"}));
    assert_eq!(asked(None, &vm()), (None, true, None));
    assert_eq!(asked(None, &naming), (Some("p".into()), false, None));
    assert_eq!(asked(Some(&naming), &labelled(&naming)), (None, false, None));
    assert_eq!(asked(Some(&vm()), &labelled(&vm())), (None, false, None));
    let on = |lb: &Value, network: &str| {
        with(lb.clone(), "metadata/annotations", json!({NETWORK: network}))
    };
    let holding =
        with(vm(), "status", json!({"allocatedAddress": {"ipPool": "p", "ip": "10.1.0.2"}}));
    for (old, new, pool) in [
        (on(&holding, "ns/a"), on(&holding, "ns/b"), Some("p")),
        (holding.clone(), on(&holding, "ns/b"), Some("p")),
        (on(&holding, "ns/a"), labelled(&on(&holding, "ns/a")), None),
        (on(&vm(), "ns/a"), on(&vm(), "ns/b"), None),
    ] {
        let asks = asks(&request(Some(&old), &new)).unwrap();
        assert_eq!(asks.claimed.as_deref(), pool, "{old} to {new}");
    }
    let dhcp = with(guest(), "spec/ipam", json!("dhcp"));
    assert_eq!(asked(None, &dhcp), (None, false, None));
    let leasing = with(dhcp, "status", json!({"allocatedAddress": {"ip": "0.0.0.0"}}));
    let leased = with(leasing.clone(), "status/address", json!("10.9.0.7"));
    assert_eq!(asked(Some(&leasing), &leased), (None, false, "10.9.0.7".parse().ok()));
    assert_eq!(asked(Some(&leased), &leased).2, None);
    // Another form of the same address.
    let mapped = with(leasing.clone(), "status/address", json!("::ffff:10.9.0.7"));
    assert_eq!(asked(Some(&leasing), &mapped).2, "10.9.0.7".parse().ok());
    assert_eq!(asks(&request(None, &lb(json!({"listeners": "x"})))), None);
}

/// Invalid settings of the DHCP client are refused. A valid change after the address was leased
/// gives a warning, because the change takes effect only after the LoadBalancer is created again.
#[test]
fn who_asks_the_dhcp_server_is_judged() {
    let ask = |mac: &str| {
        let dhcp = with(vm(), "spec/ipam", json!("dhcp"));
        with(dhcp, "metadata/annotations", json!({"kube-vip.io/hwaddr": mac}))
    };
    let refused = create(&ask("3c:ec:ef:01:02:03"), &outside()).refusals;
    assert_eq!(refused[0].field, "metadata.annotations[kube-vip.io/hwaddr]");
    assert!(create(&ask("00:00:6c:0d:5a:be"), &outside()).refusals.is_empty());
    let has = |lb| with(lb, "status", json!({"allocatedAddress": {"ip": "10.7.0.9"}}));
    let before = has(ask("02:00:00:00:00:01"));
    let answer = update(&before, &has(ask("02:00:00:00:00:02")), &outside());
    assert!(
        answer.warnings[0].contains("no effect on the present lease: delete the LoadBalancer"),
        "{answer:?}"
    );
    let free = |mac| update(&ask("02:00:00:00:00:01"), &ask(mac), &outside());
    assert_eq!(free("02:00:00:00:00:02"), AdmissionAnswer::default());
    assert_eq!(free("nonsense").refusals.len(), 1);
    // A LoadBalancer with an address from a pool has no DHCP client, so the settings are not
    // checked.
    let pool = with(ask("nonsense"), "spec/ipam", json!("pool"));
    assert!(create(&pool, &outside()).refusals.is_empty());
}

/// A client may remove the operator's finalizer, and gets a warning. Nothing is lost, because the
/// operator releases the address later.
#[test]
fn a_finalizer_may_be_taken_off() {
    let stored = with(vm(), "metadata/finalizers", json!([LB_FINALIZER]));
    let answer = update(&stored, &vm(), &outside());
    assert!(answer.refusals.is_empty());
    assert!(answer.warnings[0].starts_with("metadata.finalizers: "), "{answer:?}");
    assert_eq!(update(&vm(), &vm(), &outside()), AdmissionAnswer::default());
}
