//! Tests of the size of the largest object after trimming. A usual object must lose nothing.

use serde_json::{Value, json};

use super::*;
use crate::vm_backends::listeners::selector_fault;

/// Maximum number of bytes of a trimmed object, not counting the names of listeners and a bundle of
/// certificates.
const MOST_KEPT: usize = 20 * 1024;

fn lb(object: &Value) -> LoadBalancer {
    serde_json::from_value(object.clone()).unwrap()
}

/// An object of the usual size, which trimming does not cut.
fn usual() -> Value {
    json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
        "metadata": {
            "name": "web", "namespace": "default", "uid": "u", "resourceVersion": "7",
            "annotations": {ANNOTATION_NETWORK: "default/vlan1", ANNOTATION_DHCP: "host"},
            "labels": {LABEL_CLUSTER: "c"},
            "finalizers": ["example.com/theirs", LB_FINALIZER],
        },
        "spec": {
            "workloadType": "vm", "ipam": "pool", "ipPool": "lan",
            "listeners": [{"name": "http", "port": 80, "protocol": "TCP", "backendPort": 8080}],
            "backendServerSelector": {"app": ["web", "api"]},
            "healthCheck": {"port": 8080, "protocol": "http", "path": "/", "serverName": "a.b",
                "expectedStatuses": [200]},
        },
        "status": {
            "address": "10.0.0.5",
            "allocatedAddress": {"ipPool": "lan", "ip": "10.0.0.5", "mask": "255.255.255.0"},
            "backendServers": ["10.52.0.7"],
            "endpoints": {"total": 1, "ready": 1},
            "conditions": [
                {"type": "Theirs", "status": "True", "reason": "R", "message": "m"},
                {"type": "Ready", "status": "True", "reason": "Announced", "message": "m",
                    "lastUpdateTime": "2026-01-01T00:00:00Z"},
            ],
        },
    })
}

/// Approximate number of bytes that the texts of `lb` take, with their heap overhead.
fn room(lb: &LoadBalancer) -> usize {
    fn strings(value: &Value) -> usize {
        match value {
            Value::String(text) => text.len() + size_of::<String>(),
            Value::Array(list) => list.iter().map(strings).sum(),
            Value::Object(map) => map.iter().map(|(key, v)| key.len() + strings(v)).sum(),
            _ => 8,
        }
    }
    strings(&json!(lb))
}

#[test]
fn of_a_usual_object_nothing_is_lost() {
    let mut whole = usual();
    whole["metadata"]["annotations"]["loadbalancer.harvesterhci.io/project"] = json!("c/p");
    whole["metadata"]["managedFields"] = json!([{"manager": "m"}]);
    whole["spec"]["description"] = json!("text");
    let mut trimmed = lb(&whole);
    assert!(!trim(&mut trimmed));
    assert_eq!(json!(trimmed), json!(lb(&usual())), "but what no decision takes");
}

/// Each case makes one part of the object too large.
#[test]
fn of_the_largest_object_little_is_kept() {
    let long = "x".repeat(300_000);
    let many = |n: usize| (0..n).map(|n| format!("{n}")).collect::<Vec<_>>();
    for (at, value, partial) in [
        (
            "/metadata/annotations",
            json!({ANNOTATION_NETWORK: long, "a.harvesterhci.io/b": long}),
            false,
        ),
        ("/metadata/annotations", json!({ANNOTATION_DHCP: long, ANNOTATION_CLUSTER: long}), false),
        ("/metadata/labels", json!({LABEL_CLUSTER: "c", "harvesterhci.io/other": "b"}), false),
        ("/metadata/finalizers", json!(many(20_000)), true),
        ("/spec/ipPool", json!(long), false),
        ("/spec/backendServerSelector", json!({"app": many(150_000)}), false),
        ("/spec/backendServerSelector", json!({&long: [long]}), false),
        (
            "/spec/backendServerSelector",
            json!(many(9_000).into_iter().map(|key| (key, many(3))).collect::<BTreeMap<_, _>>()),
            false,
        ),
        ("/spec/healthCheck/path", json!(long), false),
        ("/spec/healthCheck/serverName", json!(long), false),
        ("/spec/healthCheck/protocol", json!(long), false),
        ("/spec/healthCheck/expectedStatuses", json!(vec![200; 100_000]), false),
        ("/status/address", json!(long), false),
        ("/status/allocatedAddress", json!({"ip": long, "ipPool": long, "ipv6IP": long}), false),
        ("/status/backendServers", json!(many(50_000)), false),
        ("/status/conditions/1/message", json!(long), false),
        ("/status/conditions/1/reason", json!(long), false),
        ("/status/conditions/1/lastUpdateTime", json!(long), false),
        ("/status/conditions/0/message", json!(long), true),
        (
            "/status/conditions",
            json!(vec![json!({"type": "Ready", "status": "True"}); 20_000]),
            true,
        ),
    ] {
        let mut object = usual();
        *object.pointer_mut(at).unwrap() = value;
        let mut trimmed = lb(&object);
        assert_eq!(trim(&mut trimmed), partial, "{at}");
        let room = room(&trimmed);
        assert!(room <= MOST_KEPT, "{at}: {room} bytes");
        let again = trimmed.clone();
        trim(&mut trimmed);
        assert_eq!(json!(trimmed), json!(again), "{at}: a second time changes nothing");
    }
}

/// An object with a fault has the same fault after trimming.
#[test]
fn faults_survive() {
    let many = |n: usize| (0..n).map(|n| format!("v{n}")).collect::<Vec<_>>();
    let keys = |n: usize| many(n).into_iter().map(|k| (k, many(1))).collect::<BTreeMap<_, _>>();
    for (selector, fault) in [
        (json!({"app": many(64)}), None),
        (json!(keys(16)), None),
        (json!({"a": many(32), "b": many(32)}), None),
        (json!({"l".repeat(317): ["v".repeat(63)]}), None),
        (json!({"app": many(65)}), Some("more than 64 values in all")),
        (json!({"a": many(33), "b": many(32)}), Some("more than 64 values in all")),
        (json!(keys(17)), Some("more than 16 labels")),
        (json!({"l".repeat(318): ["v"]}), Some("is longer than 317 characters")),
        (json!({"app": ["v".repeat(64)]}), Some("is longer than 63 characters")),
    ] {
        let mut object = usual();
        object["spec"]["backendServerSelector"] = selector.clone();
        let mut lb = lb(&object);
        for _ in 0..2 {
            let found = selector_fault(&lb.spec);
            let is = match (&found, fault) {
                (Some(found), Some(fault)) => found.contains(fault),
                (None, None) => true,
                _ => false,
            };
            assert!(is, "{found:?}, not {fault:?}");
            trim(&mut lb);
        }
    }
    let listener = |n: usize| json!({"name": format!("n{n}"), "port": n + 1});
    for (count, fits) in [(256, true), (257, false), (20_000, false)] {
        let mut object = usual();
        object["spec"]["listeners"] = (0..count).map(listener).collect();
        let mut lb = lb(&object);
        trim(&mut lb);
        let found = crate::vm_backends::listeners::listeners(&lb.spec);
        assert_eq!(found.is_ok(), fits, "{count}: {found:?}");
    }
}

#[test]
fn a_list_and_its_digest_stand_for_the_same() {
    let list = |n: usize| (0..n).map(|n| format!("10.0.0.{n}")).collect::<Vec<_>>();
    for n in [0, 1, 16, 17, 1_000] {
        let mut object = usual();
        object["status"]["backendServers"] = json!(list(n));
        let mut lb = lb(&object);
        trim(&mut lb);
        let kept = lb.status.unwrap().backend_servers.unwrap();
        assert!(kept.len() <= 16);
        assert!(is_list(&kept, &list(n)) && is_list(&list(n), &list(n)), "{n}");
        for other in [list(n + 1), list(n).into_iter().skip(1).collect()] {
            assert!(!is_list(&kept, &other) || other == list(n), "{n}");
        }
        for (at, address) in list(n + 1).iter().enumerate() {
            // The text of the first addresses has no room for the last of a thousand.
            assert!(at > 600 || lists(&kept, address) == (at < n), "{address} of {n}");
        }
        assert!(!lists(&kept, "10.0.0.") && !lists(&kept, "10.0.0.1000"), "{n}");
    }
}
