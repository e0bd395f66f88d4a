//! Tests of warnings, one row for each case.

use serde_json::{Value, json};

use super::super::tests::{everybody, judged, pool};
use super::*;
use crate::network::infrastructure::Reserved;

#[test]
fn what_will_surprise_is_said_in_a_line() {
    let plain = json!([{"project": "*", "namespace": "ns", "guestCluster": "*"}]);
    let of = |range: Value, selector: Value| {
        let selector = if selector.is_null() { json!({"scope": plain}) } else { selector };
        pool(&json!({"ranges": [range], "selector": selector}))
    };
    let known = PoolRuleFacts {
        has_network: Some(false),
        missing: vec!["gone".into()],
        infrastructure: [("10.0.0.15/32".parse().unwrap(), Reserved::Node("n1".into()))].into(),
        ..PoolRuleFacts::default()
    };
    let at = |first: &str, last: &str| json!({"subnet": "10.0.0.0/24", "rangeStart": first, "rangeEnd": last});
    let calm = at("10.0.0.20", "10.0.0.29");
    for (object, expected) in [
        (of(calm.clone(), Value::Null), ""),
        (
            of(at("10.0.0.1", "10.0.0.9"), Value::Null),
            "spec.ranges[0]: the gateway 10.0.0.1 lies within",
        ),
        (
            of(json!({"subnet": "10.0.0.0/24"}), Value::Null),
            "without rangeStart and rangeEnd every host of 10.0.0.0/24",
        ),
        (
            of(json!({"subnet": "10.0.0.7/24", "rangeStart": "10.0.0.20"}), Value::Null),
            "10.0.0.7/24 means the whole network 10.0.0.0/24",
        ),
        (of(json!({"subnet": "10.0.0.0/31"}), Value::Null), "10.0.0.0/31 is a pair of hosts"),
        (of(json!({"subnet": "10.0.0.7/32"}), Value::Null), ""),
        (
            of(json!({"subnet": "169.254.7.0/24", "rangeStart": "169.254.7.9"}), Value::Null),
            "spec.ranges[0].subnet: 169.254.7.0/24 is link-local: routers do not forward it",
        ),
        (
            of(json!({"subnet": "fe80::/64", "rangeStart": "fe80::9"}), Value::Null),
            "spec.ranges[0].subnet: fe80::/64 is link-local",
        ),
        (
            of(
                json!({"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.20", "gateway": "10.9.0.1"}),
                Value::Null,
            ),
            "gateway: 10.9.0.1 is outside",
        ),
        (
            of(at("10.0.0.10", "10.0.0.19"), Value::Null),
            "10.0.0.15 is held back: it is an address of Node n1",
        ),
        (of(calm.clone(), json!({})), "spec.selector.scope is empty: only"),
        (
            of(calm.clone(), json!({"scope": [{"project": "*"}]})),
            "scope[0].namespace is empty and admits no LoadBalancer",
        ),
        (
            of(calm.clone(), json!({"scope": [{"project": "*", "namespace": "gone"}]})),
            "namespace: gone does not exist",
        ),
        (
            of(calm.clone(), json!({"scope": [{"project": "c:p", "namespace": "ns"}]})),
            "project is written cluster/project",
        ),
        (
            of(calm.clone(), json!({"scope": [plain[0], plain[0]]})),
            "scope[1] repeats spec.selector.scope[0]",
        ),
        (
            of(
                calm.clone(),
                json!({"scope": [{"project": "*", "namespace": "*", "guestCluster": "c"}]}),
            ),
            "any tenant may name that guestCluster",
        ),
        (of(calm.clone(), json!({"network": "ns/none", "scope": plain})), "ns/none does not exist"),
        (
            of(calm.clone(), json!({"network": "ns/none", "scope": everybody()})),
            "serves every network",
        ),
        (
            of(json!({"subnet": "10.0.0.20/32", "exclude": ["10.0.0.20"]}), Value::Null),
            "no address is left",
        ),
    ] {
        let warnings = judged(&object, None, &known).warnings;
        match expected {
            "" => assert_eq!(warnings, Vec::<String>::new(), "{object}"),
            text => assert!(warnings.iter().any(|w| w.contains(text)), "{text}: {warnings:?}"),
        }
        assert!(warnings.iter().all(|w| w.chars().count() <= 120), "{warnings:?}");
    }
}

/// An entry without a namespace admits no LoadBalancer, so no tenant can use it.
#[test]
fn an_entry_without_a_namespace_is_not_open_to_any_tenant() {
    let entry = json!({"project": "*", "guestCluster": "c"});
    let range = json!({"subnet": "10.0.1.0/24"});
    let object = pool(&json!({"ranges": [range], "selector": {"scope": [entry]}}));
    let warnings = judged(&object, None, &PoolRuleFacts::default()).warnings;
    let has = |text: &str| warnings.iter().any(|warning| warning.contains(text));
    assert!(has("admits no LoadBalancer") && !has("any tenant"), "{warnings:?}");
}
