//! Tests of labels and hints, one row for each case.

use serde_json::json;

use super::super::tests::{everybody, mutated, pool, range, refusals};
use super::*;

#[test]
fn what_does_not_fit_is_refused_with_the_form_that_does() {
    let sound = json!([{"subnet": "10.0.0.0/24"}]);
    let rows = [
        (
            json!({"ranges": sound, "selector": {"scope": {}}}),
            "spec.selector.scope: must be a list: - project: \"*\", namespace: \"*\", guestCluster: \"*\"",
        ),
        (
            json!({"ranges": sound, "selector": {"scope": {"namespace": "ns"}}}),
            "spec.selector.scope: must be a list: - project: \"*\", namespace: ns,",
        ),
        (
            json!({"ranges": sound, "selector": {"scope": "ns"}}),
            "spec.selector.scope: must be a list",
        ),
        (
            json!({"ranges": sound, "selector": {"scope": ["ns"]}}),
            "spec.selector.scope[0]: must be an object",
        ),
        (
            json!({"ranges": sound, "selector": {"scope": [{"namespace": ["ns"]}]}}),
            "spec.selector.scope[0].namespace: must be text, or \"*\", not a list: leave out the dash",
        ),
        (json!({"ranges": sound, "selector": []}), "spec.selector: must be an object"),
        (
            json!({"ranges": sound, "selector": {"priority": "7"}}),
            "spec.selector.priority: must be a whole number without quotes: priority: 7",
        ),
        (
            json!({"ranges": sound, "selector": {"priority": "high"}}),
            "spec.selector.priority: must be a whole number without quotes: priority: 10",
        ),
        (
            json!({"ranges": sound, "selector": {"priority": 1.5}}),
            "spec.selector.priority: must be a whole number",
        ),
        (
            json!({"ranges": sound, "selector": {"network": ["ns/x"]}}),
            "spec.selector.network: must be namespace/name of a network, not a list",
        ),
        (
            json!({"ranges": {"subnet": "10.0.0.0/24"}}),
            "spec.ranges: must be a list: - subnet: 192.168.1.0/24",
        ),
        (json!({"ranges": []}), "spec.ranges: range can't be empty"),
        (json!({}), "spec.ranges: range can't be empty"),
        (
            json!({"ranges": ["10.0.0.0/24"]}),
            "spec.ranges[0]: must be an object: - subnet: 10.0.0.0/24",
        ),
        (json!({"ranges": [{"rangeStart": "10.0.0.1"}]}), "spec.ranges[0].subnet: is missing"),
        (
            json!({"ranges": [{"subnet": 10}]}),
            "spec.ranges[0].subnet: must be an address: \"10\", in quotes",
        ),
        (
            json!({"ranges": [{"subnet": "10.0.0.0/24", "exclude": "10.0.0.9"}]}),
            "spec.ranges[0].exclude: must be a list: [10.0.0.9]",
        ),
    ];
    for (spec, expected) in rows {
        let answer = mutated(&pool(&spec), None, None);
        let refusals = refusals(&answer);
        assert!(refusals.iter().any(|r| r.starts_with(expected)), "{spec}: {refusals:?}");
        assert_eq!(answer.object, None, "a refused request changes nothing");
        // A stored object with the refused spec can still be labelled.
        assert!(mutated(&pool(&spec), Some(&pool(&spec)), None).refusals.is_empty(), "{spec}");
    }
    for spec in [Value::Null, json!("text"), json!([]), json!({"ranges": sound})] {
        assert_eq!(refusals(&mutated(&pool(&spec), None, None)), Vec::<String>::new(), "{spec}");
    }
}

#[test]
fn labels_are_set_as_harvesters_own_webhook_does() {
    let spec = |scope: Value, network: &str| json!({"ranges": range(10, 20), "selector": {"scope": scope, "network": network}});
    let labels = |object: &Value, old: Option<&Value>, vlan| {
        let new = mutated(object, old, vlan).object.unwrap_or_else(|| object.clone());
        let label = |key: &str| text(&new, &["metadata", "labels", key]).unwrap_or_default();
        (label(LABEL_GLOBAL_POOL), label(LABEL_VID))
    };
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    let all = pool(&spec(everybody(), ""));
    let few = pool(&spec(json!([{"namespace": "ns"}]), "ns/seven"));
    assert_eq!(labels(&all, None, None), pair("true", "0"));
    assert_eq!(labels(&few, None, Some(7)), pair("false", "7"));
    assert_eq!(labels(&few, None, None), pair("false", ""));
    // A manifest that was exported from a global pool still has that pool's label.
    let mut exported = few.clone();
    exported["metadata"]["labels"] = json!({LABEL_GLOBAL_POOL: "true", "mine": "x"});
    for old in [None, Some(&few), Some(&exported)] {
        assert_eq!(labels(&exported, old, Some(7)), pair("false", "7"));
    }
    // A second mutation changes nothing more.
    let new = mutated(&few, None, Some(7)).object.unwrap();
    assert_eq!(mutated(&new, None, Some(7)).object, None);
}

#[test]
fn a_flag_by_hand_has_a_warning() {
    for place in ["labels", "annotations"] {
        let mut object = pool(&json!({"ranges": range(10, 20)}));
        object["metadata"][place] = json!({LABEL_GLOBAL_POOL: "true"});
        let answer = mutated(&object, None, None);
        assert_eq!(refusals(&answer), Vec::<String>::new());
        let warned = format!("metadata.{place}: global-ip-pool follows the scope");
        assert!(answer.warnings.iter().any(|w| w.starts_with(&warned)), "{answer:?}");
        assert!(mutated(&object, Some(&object), None).warnings.is_empty());
    }
}
