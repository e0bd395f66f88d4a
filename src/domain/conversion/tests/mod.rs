//! Tests of each field's rule, of edits between conversions, and of annotations with other content.

mod model;

use serde_json::{Value, json};

use super::*;
use crate::admission::{AdmissionRequest, Operation, Refusal, load_balancer};

const ALPHA: Version = Version::V1alpha1;
const BETA: Version = Version::V1beta1;

#[allow(clippy::needless_pass_by_value)]
fn object(version: Version, spec: Value, status: Value) -> Value {
    json!({
        "apiVersion": version.to_string(), "kind": "LoadBalancer",
        "metadata": {"name": "web", "namespace": "default", "uid": "u"},
        "spec": spec, "status": status,
    })
}

fn beta(spec: Value) -> Value {
    object(BETA, spec, json!({}))
}

fn to(object: &Value, version: Version) -> Value {
    convert(object.clone(), version).unwrap()
}

fn travelling(object: &Value) -> &str {
    object["metadata"]["annotations"][ANNOTATION_V1BETA1_FIELDS].as_str().unwrap_or_default()
}

/// Converts `stored` to v1alpha1, edits the result, and converts it back.
fn edited(stored: &Value, edit: impl FnOnce(&mut Value)) -> Value {
    let mut shown = to(stored, ALPHA);
    edit(&mut shown);
    to(&shown, BETA)
}

#[test]
fn an_object_in_the_version_asked_for_is_returned_as_it_is() {
    for text in [travelling(&Value::Null), "{\"spec\":{\"ipPool\":\"a\"}}", "?"] {
        let mut object = beta(json!({"ipam": "pool", "unknown": 1}));
        object["metadata"]["annotations"] = json!({ANNOTATION_V1BETA1_FIELDS: text});
        assert_eq!(to(&object, BETA), object);
    }
}

#[test]
fn what_is_no_load_balancer_of_either_version_is_refused() {
    for strange in [
        json!({}),
        json!(null),
        json!([1]),
        json!({"apiVersion": 1}),
        json!({"apiVersion": "loadbalancer.harvesterhci.io/v1"}),
        json!({"apiVersion": "v1beta1"}),
    ] {
        let error = convert(strange, BETA).unwrap_err().to_string();
        assert!(error.contains("are loadbalancer.harvesterhci.io/v1alpha1"), "{error}");
    }
}

#[test]
fn a_guest_clusters_load_balancer_shows_what_v1alpha1_has() {
    let stored = object(
        BETA,
        json!({"workloadType": "cluster", "ipam": "pool", "ipPool": "vlan7"}),
        json!({"address": "10.0.0.7", "allocatedAddress": {"ipPool": "vlan7", "ip": "10.0.0.7"},
            "conditions": [{"type": "Ready", "status": "True", "reason": "Allocated"}]}),
    );
    let shown = to(&stored, ALPHA);
    assert_eq!(shown["spec"], json!({"ipam": "pool"}));
    assert_eq!(shown["status"]["address"], "10.0.0.7");
    assert_eq!(shown["status"]["conditions"], stored["status"]["conditions"]);
    assert_eq!(shown["status"].as_object().unwrap().len(), 2);
    assert_eq!(
        travelling(&shown),
        r#"{"spec":{"ipPool":"vlan7","workloadType":"cluster"},"status":{"allocatedAddress":{"ip":"10.0.0.7","ipPool":"vlan7"}}}"#
    );
    assert_eq!(to(&shown, BETA), stored);
}

#[test]
fn an_object_that_v1alpha1_can_say_carries_nothing() {
    let stored = beta(json!({
        "ipam": "dhcp", "description": "d",
        "listeners": [{"name": "a", "port": 80, "protocol": "TCP", "backendPort": 8080}],
        "backendServerSelector": {LABEL_VM_NAME: ["vm-1", "vm-2"]},
        "healthCheck": {"port": 8080, "successThreshold": 1, "failureThreshold": 2,
            "periodSeconds": 7, "timeoutSeconds": 4},
    }));
    let shown = to(&stored, ALPHA);
    assert_eq!(shown["metadata"], stored["metadata"]);
    assert_eq!(shown["spec"]["backendServers"], json!(["vm-1", "vm-2"]));
    assert_eq!(shown["spec"]["healthCheck"]["PeriodSeconds"], 7);
    assert_eq!(shown["spec"]["healthCheck"].as_object().unwrap().len(), 5);
    assert_eq!(to(&shown, BETA), stored);
}

#[test]
fn what_v1alpha1_requires_is_always_there() {
    let shown = to(&beta(json!({"listeners": [{"port": 80}], "healthCheck": {"port": 80}})), ALPHA);
    assert_eq!(
        shown["spec"],
        json!({
            "ipam": "pool",
            "listeners": [{"name": "", "port": 80, "protocol": "TCP"}],
            "healthCheck": {"port": 80, "successThreshold": 1, "failureThreshold": 3,
                "PeriodSeconds": 5, "timeoutSeconds": 3},
        })
    );
}

#[test]
fn an_edit_of_the_health_check_changes_what_was_edited() {
    let health = json!({"port": 8443, "protocol": "https", "path": "/healthz", "caBundle": "PEM"});
    let stored = beta(json!({"healthCheck": health}));
    let period = edited(&stored, |shown| shown["spec"]["healthCheck"]["PeriodSeconds"] = json!(30));
    let mut expected = health;
    expected["periodSeconds"] = json!(30);
    assert_eq!(period["spec"], json!({"healthCheck": expected}));

    let gone = edited(&stored, |shown| {
        shown["spec"].as_object_mut().unwrap().remove("healthCheck");
    });
    assert_eq!(gone["spec"], json!({}));
}

#[test]
fn backend_servers_replace_the_selector_only_when_they_were_edited() {
    for selector in [
        json!({"app": ["web"]}),
        json!({LABEL_VM_NAME: ["a"], "app": ["web"]}),
        json!({LABEL_VM_NAME: []}),
        json!({}),
        json!(null),
        json!({LABEL_VM_NAME: ["a", "b"]}),
    ] {
        let stored = beta(json!({"ipam": "pool", "backendServerSelector": selector}));
        let touched = edited(&stored, |shown| shown["spec"]["description"] = json!("touched"));
        assert_eq!(touched["spec"]["backendServerSelector"], selector);
        let other = edited(&stored, |shown| shown["spec"]["backendServers"] = json!(["c"]));
        assert_eq!(other["spec"]["backendServerSelector"], json!({LABEL_VM_NAME: ["c"]}));
        assert_eq!(travelling(&other), "");
    }
    let stored = beta(json!({"backendServerSelector": {LABEL_VM_NAME: ["a"], "app": ["web"]}}));
    let none = edited(&stored, |shown| drop(shown["spec"]["backendServers"].take()));
    assert_eq!(none["spec"].get("backendServerSelector"), None);
}

#[test]
fn an_edit_in_v1beta1_wins_over_what_v1alpha1_had() {
    let old = object(ALPHA, json!({"ipam": "pool", "backendServers": []}), json!({}));
    let mut stored = to(&old, BETA);
    let carried = &stored["metadata"]["annotations"][ANNOTATION_V1ALPHA1_FIELDS];
    assert_eq!(*carried, r#"{"spec":{"backendServers":[]}}"#);
    assert_eq!(to(&stored, ALPHA), old);
    stored["spec"]["backendServerSelector"] = json!({LABEL_VM_NAME: ["a"]});
    let shown = to(&stored, ALPHA);
    assert_eq!(shown["spec"]["backendServers"], json!(["a"]));
    assert_eq!(shown["metadata"].get("annotations"), None);
}

/// A client that sends the object without annotations loses the fields that the annotations
/// carried.
#[test]
fn without_the_annotation_only_v1alpha1s_fields_are_there() {
    let stored = object(
        BETA,
        json!({"workloadType": "cluster", "ipam": "pool"}),
        json!({"address": "10.0.0.7", "allocatedAddress": {"ip": "10.0.0.7"}}),
    );
    let bare = edited(&stored, |shown| drop(shown["metadata"]["annotations"].take()));
    assert_eq!(bare["spec"], json!({"ipam": "pool"}));
    assert_eq!(bare["status"], json!({"address": "10.0.0.7"}));
}

#[test]
fn a_text_that_is_not_ours_stays_and_says_nothing() {
    // The conversion writes no text with so many values or maps.
    let values = json!({"spec": {"x": vec![0; 60_000]}}).to_string();
    let maps = json!({"spec": {"x": vec![json!({}); 5_000]}}).to_string();
    for text in [
        "",
        "?",
        "{",
        "[]",
        "null",
        "{\"spec\":5}",
        "{\"speck\":{}}",
        "{\"kept\":{}}",
        values.as_str(),
        maps.as_str(),
    ] {
        let mut sent = object(ALPHA, json!({"ipam": "pool"}), json!({}));
        sent["metadata"]["annotations"] = json!({ANNOTATION_V1BETA1_FIELDS: text, "a": "b"});
        let stored = to(&sent, BETA);
        assert_eq!(stored["metadata"], sent["metadata"], "{text}");
        assert_eq!(stored["spec"], sent["spec"]);
        assert_eq!(to(&stored, ALPHA), sent);
        // The text stays even if the conversion writes `workloadType` into the same annotation.
        let mut stored = beta(json!({"workloadType": "vm"}));
        stored["metadata"]["annotations"] = json!({ANNOTATION_V1BETA1_FIELDS: text, "a": "b"});
        assert_eq!(to(&to(&stored, ALPHA), BETA), stored, "{text}");
    }
}

#[test]
fn values_of_another_type_do_not_travel() {
    for text in [
        r#"{"spec":{"workloadType":5}}"#,
        r#"{"spec":{"workloadType":"root"}}"#,
        r#"{"spec":{"ipam":"anything"}}"#,
        r#"{"spec":{"ipPool":["a"]}}"#,
        r#"{"spec":{"healthCheck":{"port":"x"}}}"#,
        r#"{"spec":{"backendServerSelector":{"a":"b"}}}"#,
        r#"{"status":{"allocatedAddress":"10.0.0.1"}}"#,
        r#"{"status":{"endpoints":{"total":"many"}}}"#,
    ] {
        let mut sent = object(ALPHA, json!({"ipam": "pool"}), json!({}));
        sent["metadata"]["annotations"] = json!({ANNOTATION_V1BETA1_FIELDS: text});
        let stored = to(&sent, BETA);
        assert_eq!(stored["spec"], json!({"ipam": "pool"}), "{text}");
        assert_eq!(stored["status"], json!({}), "{text}");
        serde_json::from_value::<api::LoadBalancer>(stored).unwrap();
    }
}

/// A field that the client sent in v1alpha1 has precedence over an annotation that contradicts it.
#[test]
fn what_travels_never_overrules_what_is_said() {
    let mut sent = object(
        ALPHA,
        json!({"ipam": "dhcp", "description": "mine", "backendServers": ["a"]}),
        json!({"address": "10.0.0.1"}),
    );
    let text = json!({
        "spec": {"ipam": "pool", "description": "other", "backendServerSelector": {"x": ["y"]}},
        "status": {"address": "10.0.0.2"}, "unset": ["spec.ipam", "spec", "status"],
    });
    sent["metadata"]["annotations"] = json!({ANNOTATION_V1BETA1_FIELDS: text.to_string()});
    let stored = to(&sent, BETA);
    assert_eq!(
        stored["spec"],
        json!({"ipam": "dhcp", "description": "mine", "backendServerSelector": {LABEL_VM_NAME: ["a"]}})
    );
    assert_eq!(stored["status"], json!({"address": "10.0.0.1"}));
}

/// Refusals of admission for an update from the stored object `old` to `new`, both in v1beta1.
/// `version`: version of the client's request. If it is v1alpha1, the API server converts the stored
/// object to v1alpha1 and back before it calls admission.
fn asked(version: Version, old: &Value, new: &Value) -> Vec<Refusal> {
    let old = &to(&to(old, version), BETA);
    let request = AdmissionRequest {
        operation: Operation::Update,
        subresource: "",
        namespace: "default",
        name: "web",
        by_operator: false,
        in_v1alpha1: version == ALPHA,
        object: Some(new),
        old: Some(old),
    };
    load_balancer::validate(&request, &load_balancer::LbRuleFacts::default()).refusals
}

fn annotations_size(object: &Value) -> usize {
    let annotations = object["metadata"]["annotations"].as_object();
    annotations.into_iter().flatten().map(|(k, v)| k.len() + v.as_str().unwrap().len()).sum()
}

#[test]
fn what_does_not_fit_is_left_out_the_status_first() {
    let servers: Vec<String> =
        (0..20_000).map(|n| format!("10.{}.{}.1", n / 250, n % 250)).collect();
    let mut stored = object(
        BETA,
        json!({"workloadType": "vm", "ipam": "pool", "healthCheck": {"port": 1, "caBundle": "x".repeat(60_000)}}),
        json!({"allocatedAddress": {"ip": "10.0.0.1"}, "backendServers": servers}),
    );
    let shown = to(&stored, ALPHA);
    assert!(annotations_size(&shown) <= 256 * 1024);
    let mut back = to(&shown, BETA);
    assert_eq!(back["status"]["backendServers"].take(), json!(null));
    stored["status"]["backendServers"].take();
    stored["status"].as_object_mut().unwrap().remove("backendServers");
    back["status"].as_object_mut().unwrap().remove("backendServers");
    assert_eq!(back, stored);
    assert!(annotations::lost(&back, ANNOTATION_V1BETA1_FIELDS).is_empty());

    // The annotation has no room for the fields of the spec. The text of the annotation shows
    // admission that the write has lost a field.
    stored["metadata"]["annotations"] = json!({"big": "x".repeat(256 * 1024 - 200)});
    let shown = to(&stored, ALPHA);
    assert!(annotations_size(&shown) <= 256 * 1024);
    let back = to(&shown, BETA);
    let lost = annotations::lost(&back, ANNOTATION_V1BETA1_FIELDS);
    assert_eq!(lost, ["spec.healthCheck"]);
    let answer = asked(ALPHA, &stored, &back);
    let refusal = answer.iter().find(|refusal| refusal.field == "spec.healthCheck");
    assert!(refusal.unwrap().message.contains("write it in v1beta1"), "{answer:?}");
    // The client drops the annotation with the name of the lost field.
    let mut dropped = back.clone();
    dropped["metadata"].as_object_mut().unwrap().remove("annotations");
    let answer = asked(ALPHA, &stored, &dropped);
    assert!(answer.iter().any(|refusal| refusal.field == "spec.healthCheck"), "{answer:?}");
    // If an object that has lost a field was stored nevertheless, a client can still change it in
    // v1beta1.
    let mut labelled = back.clone();
    labelled["metadata"]["labels"] = json!({"a": "b"});
    assert_eq!(asked(BETA, &back, &labelled), []);
    assert_eq!(to(&to(&back, ALPHA), BETA)["spec"], back["spec"]);

    // The annotation has no room for any field, nor for a field's name.
    stored["metadata"]["annotations"] = json!({"big": "x".repeat(256 * 1024 - 10)});
    let shown = to(&stored, ALPHA);
    assert!(annotations_size(&shown) <= 256 * 1024);
    let back = to(&shown, BETA);
    assert_eq!(annotations::lost(&back, ANNOTATION_V1BETA1_FIELDS), Vec::<String>::new());
    assert_eq!(back["spec"].get("workloadType"), None);
    let fields = |refusals: Vec<Refusal>| -> Vec<String> {
        refusals.into_iter().map(|refusal| refusal.field).collect()
    };
    assert_eq!(fields(asked(ALPHA, &stored, &back)), ["metadata.annotations"]);
    let mut shorter = back.clone();
    shorter["metadata"]["annotations"] = json!({"big": "x"});
    assert_eq!(fields(asked(ALPHA, &stored, &shorter)), ["metadata.annotations"]);
    // A client can neither store such annotations nor extend them. It can shorten them in v1beta1.
    let mut small = stored.clone();
    small["metadata"]["annotations"] = json!({"big": "x"});
    assert_eq!(fields(asked(BETA, &small, &stored)), ["metadata.annotations"]);
    let mut longer = stored.clone();
    longer["metadata"]["annotations"]["b"] = json!("c");
    assert_eq!(fields(asked(BETA, &stored, &longer)), ["metadata.annotations"]);
    assert_eq!(asked(BETA, &stored, &stored), []);
    assert_eq!(asked(BETA, &stored, &small), []);
    assert_eq!(asked(ALPHA, &small, &small), []);
}
