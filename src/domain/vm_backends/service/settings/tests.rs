//! Tests of the fields that are carried from one Service to the next, and of fields that are not.

use super::super::tests::{fresh, listeners, plan, read, wanted};
use super::super::{ServicePlan, WantedService};
use super::*;
use crate::network::host_links::NetworkReach;
use crate::vm_backends::ports::ListenerPort;

/// Merge patch with settings that users make on a Service.
fn set() -> Value {
    json!({
        "metadata": {
            "labels": {"team": "blue"},
            "annotations": {
                "field.cattle.io/description": "mine", "kube-vip.io/hwaddr": "00:00:6c:0d:5a:be",
            },
        },
        "spec": {
            "allocateLoadBalancerNodePorts": true, "externalTrafficPolicy": "Local",
            "internalTrafficPolicy": "Local", "loadBalancerClass": "kube-vip.io/kube-vip-class",
            "loadBalancerSourceRanges": ["10.0.0.0/8"], "publishNotReadyAddresses": true,
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
            "trafficDistribution": "PreferClose",
        },
    })
}

/// Merge patch with fields that the API server assigns, and fields that other programs write.
fn allotted() -> Value {
    json!({
        "metadata": {
            "uid": "svc-1", "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z",
            "finalizers": ["example.com/hold"], "managedFields": [{}],
            "annotations": {"kube-vip.io/vipHost": "n1"},
        },
        "spec": {
            "clusterIP": "10.53.0.9", "clusterIPs": ["10.53.0.9"], "healthCheckNodePort": 32000,
            "externalIPs": ["8.8.8.8"], "selector": {"app": "evil"},
        },
        "status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.100"}]}},
    })
}

fn stored(wanted: &WantedService<'_>) -> Value {
    let mut service = fresh(wanted);
    json_patch::merge(&mut service, &set());
    json_patch::merge(&mut service, &allotted());
    service["spec"]["ports"][0]["nodePort"] = json!(30_080);
    service["spec"]["ports"][0]["appProtocol"] = json!("http");
    service
}

#[test]
fn the_next_service_has_what_users_set_and_what_the_server_allotted_and_nothing_else() {
    let listeners = listeners();
    let next = wanted("10.0.0.101", &listeners);
    let made = applied(fresh(&next), &of(&stored(&wanted("10.0.0.100", &listeners))).text);
    let mut expected = fresh(&next);
    json_patch::merge(&mut expected, &set());
    expected["metadata"]["annotations"][MADE_WITH_POLICY] = json!("Local");
    expected["spec"]["ports"][0]["nodePort"] = json!(30_080);
    expected["spec"]["ports"][0]["appProtocol"] = json!("http");
    for field in ["clusterIP", "clusterIPs", "healthCheckNodePort"] {
        expected["spec"][field] = allotted()["spec"][field].clone();
    }
    assert_eq!(made, expected);
    // The new Service needs no further write.
    assert_eq!(plan(Some(&read(&made)), &next), ServicePlan::Keep);
    // If another Service has the cluster IP or a node port by now, the new Service must request
    // neither. `without_allotted` removes them from the request.
    let anew = without_allotted(made);
    for field in ["clusterIP", "clusterIPs", "healthCheckNodePort"] {
        expected["spec"].as_object_mut().unwrap().remove(field);
    }
    expected["spec"]["ports"][0].as_object_mut().unwrap().remove("nodePort");
    assert_eq!(anew, expected);
}

#[test]
fn ports_that_are_no_more_and_addresses_of_the_other_family_are_left_behind() {
    let before = listeners();
    let after = [before[1].clone(), ListenerPort { port: 443, ..before[0].clone() }];
    let next = wanted("fd00::101", &after);
    let made = applied(fresh(&next), &of(&stored(&wanted("10.0.0.100", &before))).text);
    assert_eq!(made["spec"]["ports"], fresh(&next)["spec"]["ports"]);
    assert_eq!(made["spec"]["ipFamilies"], json!(["IPv6"]));
    assert_eq!(made["spec"].get("clusterIP"), None);
    assert_eq!(made["spec"].get("clusterIPs"), None);
    assert_eq!(made["spec"]["externalTrafficPolicy"], "Local");
}

/// Hints name the interface for kube-vip. Hints that the operator made from a network are not
/// carried to the next Service. Hints of a user are carried, and the operator then adds no hints of
/// its own.
#[test]
fn hints_are_carried_where_they_are_a_users() {
    let listeners = listeners();
    let attachment = super::super::NetworkAttachment { bridge: "mgmt-br".into(), vlan: 0 };
    let plain = wanted("10.0.0.100", &listeners);
    let on = WantedService {
        network: "apps/mgmt",
        attachment: Some(&attachment),
        link: NetworkReach::Ready,
        ..plain.clone()
    };
    let hint = |service: &Value, key: &str| service["metadata"]["annotations"].get(key).cloned();
    let off = applied(fresh(&plain), &of(&stored(&on)).text);
    assert_eq!(hint(&off, ASKED_INTERFACE), None);
    assert_eq!(hint(&off, ANNOTATION_NETWORK), None);
    let mut by_hand = stored(&plain);
    by_hand["metadata"]["annotations"][ASKED_INTERFACE] = json!("eth7");
    let kept = applied(fresh(&on), &of(&by_hand).text);
    assert_eq!(hint(&kept, ASKED_INTERFACE), Some(json!("eth7")));
    assert_eq!(hint(&kept, ANNOTATION_NETWORK), None, "it was not made from a network");
}

#[test]
fn settings_that_are_too_long_are_carried_without_annotations_and_nonsense_changes_nothing() {
    let listeners = listeners();
    let wanted = wanted("10.0.0.100", &listeners);
    let mut long = stored(&wanted);
    long["metadata"]["annotations"]["note"] = json!("x".repeat(LONGEST));
    let CarriedSettings { text, lost } = of(&long);
    assert!(text.len() < 2_000, "{}", text.len());
    assert_eq!(lost, Some("annotations"));
    assert_eq!(of(&stored(&wanted)).lost, None);
    let made = applied(fresh(&wanted), &text);
    let annotations = made["metadata"]["annotations"].as_object().unwrap();
    assert!(
        annotations.keys().eq([ASKED_ADDRESS, MADE_WITH_PORTS, MADE_WITH_POLICY]),
        "{annotations:?}"
    );
    assert_eq!(made["metadata"]["labels"]["team"], "blue");
    assert_eq!(made["spec"]["sessionAffinity"], "ClientIP");
    for nonsense in ["", "{", "[]", "7", "{\"spec\": 7, \"metadata\": []}"] {
        assert_eq!(applied(fresh(&wanted), nonsense), fresh(&wanted), "{nonsense:?}");
    }
}

/// A Service with fewer source ranges refuses some clients. A Service without ranges would let all
/// clients in.
#[test]
fn settings_that_are_too_long_without_annotations_keep_the_first_source_ranges() {
    let listeners = listeners();
    let wanted = wanted("10.0.0.100", &listeners);
    let range = |n: u32| json!(format!("10.{}.{}.0/24", n / 256, n % 256));
    let all: Vec<Value> = (0..20_000).map(range).collect();
    let mut long = stored(&wanted);
    let carried = |service: &Value| {
        let CarriedSettings { text, lost } = of(service);
        let made = applied(fresh(&wanted), &text);
        let ranges = made["spec"][SOURCE_RANGES].as_array().cloned().unwrap_or_default();
        (text.len(), lost.unwrap_or_default(), ranges)
    };
    long["metadata"]["labels"]["long"] = json!("x".repeat(LONGEST));
    let (length, lost, ranges) = carried(&long);
    assert!(length < 2_000, "{length}");
    assert_eq!((lost, ranges), ("annotations and labels", vec![json!("10.0.0.0/8")]));
    long["spec"][SOURCE_RANGES] = json!(all);
    let (length, lost, ranges) = carried(&long);
    assert_eq!(lost, "annotations, labels and source ranges");
    assert!((LONGEST - 32..=LONGEST).contains(&length), "{length}");
    assert!(ranges.len() > 10_000 && all.starts_with(&ranges), "{}", ranges.len());
    // The API server refuses such a text, but the operator does not remove the last range.
    long["spec"]["loadBalancerClass"] = json!("x".repeat(LONGEST));
    assert_eq!(carried(&long).2, all[..1]);
}

/// The API server may refuse a text that is not too long by itself.
#[test]
fn settings_without_annotations_and_labels_keep_all_source_ranges() {
    let listeners = listeners();
    let wanted = wanted("10.0.0.100", &listeners);
    let stored = stored(&wanted);
    let CarriedSettings { text, lost } = without_metadata(&stored);
    assert_eq!(lost, Some("annotations and labels"));
    assert!(text.len() < of(&stored).text.len(), "{text}");
    let made = applied(fresh(&wanted), &text);
    assert_eq!(made["spec"][SOURCE_RANGES], set()["spec"][SOURCE_RANGES]);
    assert_eq!(made["metadata"]["labels"], fresh(&wanted)["metadata"]["labels"]);
    assert_eq!(made["metadata"]["annotations"].get("field.cattle.io/description"), None);
}

/// A user who may write EndpointSlices can forge the stored settings. Forged settings change only
/// the fields that users may set on a Service.
#[test]
fn forged_settings_do_not_touch_what_the_operator_owns() {
    let listeners = listeners();
    let wanted = wanted("10.0.0.100", &listeners);
    let forged = json!({
        "metadata": {"name": "x", "namespace": "kube-system", "ownerReferences": [],
            "labels": {api::LABEL_SERVICE_LB: "false"},
            "annotations": {ASKED_ADDRESS: "8.8.8.8"}},
        "spec": {"type": "ExternalName", "externalName": "x", "externalIPs": ["8.8.8.8"],
            "selector": {"app": "x"}, "loadBalancerIP": "8.8.8.8",
            "ports": [{"port": 80, "protocol": "TCP", "targetPort": 22, "name": "x"}]},
    });
    assert_eq!(applied(fresh(&wanted), &forged.to_string()), fresh(&wanted));
}
