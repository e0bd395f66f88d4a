//! Tests of faults: in a spec by itself, or in comparison with the stored spec.

use serde_json::{Value, json};

use super::*;

#[test]
fn the_spec_is_judged_as_the_reconciler_judges_it() {
    let named = |name: &str| with(vm(), "metadata/name", json!(name));
    let listeners = |list: Value| with(vm(), "spec/listeners", list);
    let port = |n: u32| json!({"name": format!("n{n}"), "port": n});
    let selector = |selector: Value| with(vm(), "spec/backendServerSelector", selector);
    let check = |check: Value| with(vm(), "spec/healthCheck", check);
    for (object, field) in [
        (named("1web"), "metadata.name"),
        (named("a.b"), "metadata.name"),
        (named(&"a".repeat(64)), "metadata.name"),
        (listeners(json!([])), "spec.listeners"),
        (listeners(json!([{"name": "a", "port": 0}])), "spec.listeners[0].port"),
        (listeners(json!([{"name": "a", "port": 65536}])), "spec.listeners[0].port"),
        (
            listeners(json!([{"name": "a", "port": 80, "backendPort": -1}])),
            "spec.listeners[0].backendPort",
        ),
        (listeners(json!([{"name": "A", "port": 80}])), "spec.listeners[0].name"),
        (
            listeners(json!([{"name": "a", "port": 80, "protocol": "SCTP"}])),
            "spec.listeners[0].protocol",
        ),
        (
            listeners(json!([{"name": "a", "port": 80}, {"name": "a", "port": 81}])),
            "spec.listeners[1].name",
        ),
        (
            listeners(json!([{"name": "a", "port": 80}, {"name": "b", "port": 80}])),
            "spec.listeners[1].port",
        ),
        (listeners((1..=257).map(port).collect()), "spec.listeners"),
        (selector(json!({"app": vec!["v"; 65]})), "spec.backendServerSelector"),
        (selector(json!({"l".repeat(318): ["v"]})), "spec.backendServerSelector"),
        (selector(json!({"app": ["v".repeat(64)]})), "spec.backendServerSelector"),
        (check(json!({"port": 80})), "spec.healthCheck.port"),
        (check(json!({"port": 8080, "periodSeconds": -1})), "spec.healthCheck.periodSeconds"),
        (check(json!({"port": 8080, "protocol": "icmp"})), "spec.healthCheck.protocol"),
        (check(json!({"port": 8080, "path": "/x"})), "spec.healthCheck.path"),
        (
            check(json!({"port": 8080, "protocol": "https", "caBundle": "x"})),
            "spec.healthCheck.caBundle",
        ),
        (check(json!({"protocol": "tcp"})), "spec.healthCheck.port"),
        (check(json!({"port": 0, "path": "/x"})), "spec.healthCheck.path"),
        (with(with(vm(), "spec/ipam", json!("dhcp")), "spec/ipPool", json!("p")), "spec.ipPool"),
        (with(vm(), "spec/requestedAddresses", json!(["10.0.0.9"])), "spec.requestedAddresses"),
        (with(vm(), "spec/ipv6Pool", json!("p")), "spec.ipv6Pool"),
        (with(vm(), "spec/ipFamilyPolicy", json!("PreferDualStack")), "spec.ipFamilyPolicy"),
        (with(vm(), "spec/ipFamilyPolicy", json!("")), "spec.ipFamilyPolicy"),
    ] {
        let answer = create(&object, &outside());
        assert_eq!(answer.refusals.len(), 1, "{object}: {answer:?}");
        assert_eq!(answer.refusals[0].field, field, "{answer:?}");
        assert!(!answer.refusals[0].message.is_empty());
        // If an object with this fault was stored before the rule existed, a client may label the
        // object, delete it, and edit its other fields.
        let labelled = with(object.clone(), "metadata/labels", json!({"a": "b"}));
        assert!(update(&object, &labelled, &outside()).refusals.is_empty(), "{object}");
        let described = with(object.clone(), "spec/description", json!("x"));
        assert!(update(&object, &described, &outside()).refusals.is_empty(), "{object}");
        let leaving = with(described, "metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"));
        assert!(update(&vm(), &leaving, &outside()).refusals.is_empty());
        // The rules for ports do not apply to a guest's LoadBalancer, because its Services and
        // ports belong to the guest.
        let guests = with(object.clone(), "spec/workloadType", json!("cluster"));
        let is_long = object["metadata"]["name"].as_str().is_some_and(|name| name.len() > 63);
        let its_own = (field.starts_with("metadata.") && !is_long)
            || field.starts_with("spec.listeners")
            || field == "spec.backendServerSelector"
            || object["spec"]["healthCheck"] == json!({"port": 80});
        assert_eq!(create(&guests, &outside()).refusals.is_empty(), its_own, "{guests}");
    }
    for good in [
        vm(),
        guest(),
        named(&"a".repeat(63)),
        check(json!({"port": 8080})),
        with(vm(), "spec/requestedAddresses", json!([])),
        with(vm(), "spec/ipv6Pool", json!("")),
        with(vm(), "spec/ipFamilyPolicy", json!("SingleStack")),
    ] {
        assert!(create(&good, &outside()).refusals.is_empty(), "{good}");
    }
}

/// The conversion takes the `backendServers` of v1alpha1 as names of VMs, even if they are
/// addresses.
#[test]
fn an_address_in_place_of_a_vms_name_gives_a_warning() {
    let selecting = |vms: Value| {
        with(vm(), "spec/backendServerSelector", json!({"harvesterhci.io/vmName": vms}))
    };
    let old = selecting(json!(["web", "10.0.0.5"]));
    let answer = create(&old, &outside());
    assert!(answer.refusals.is_empty(), "{answer:?}");
    let warning = "backendServers (label harvesterhci.io/vmName): 10.0.0.5 is an address and selects no VM: use VM names";
    assert_eq!(answer.warnings, [warning]);
    // A stored object gets no second warning.
    let labelled = with(old.clone(), "metadata/labels", json!({"a": "b"}));
    assert_eq!(update(&old, &labelled, &outside()), AdmissionAnswer::default());
    assert_eq!(create(&selecting(json!(["web"])), &outside()), AdmissionAnswer::default());
}

#[test]
fn where_an_address_comes_from_and_what_is_behind_it_do_not_change() {
    for (field, old, new) in [
        ("ipam", json!("pool"), json!("dhcp")),
        ("ipam", json!(null), json!("dhcp")),
        ("ipam", json!("dhcp"), json!(null)),
        ("workloadType", json!(null), json!("cluster")),
        ("workloadType", json!("cluster"), json!("vm")),
    ] {
        let path = format!("spec/{field}");
        let (old, new) = (with(vm(), &path, old), with(vm(), &path, new));
        let default = if field == "ipam" { "pool" } else { "vm" };
        let refusal = format!(
            "spec.{field}: is immutable (unset means {default}): create a new LoadBalancer to change it"
        );
        assert_eq!(refusals(&update(&old, &new, &outside())), [refusal]);
    }
    let said = with(vm(), "spec/ipam", json!("pool"));
    assert!(update(&vm(), &said, &outside()).refusals.is_empty());
}
