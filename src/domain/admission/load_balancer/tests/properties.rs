//! Properties that hold for every object, even for a malformed object.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;

fn any_value() -> impl Strategy<Value = Value> {
    let words = prop_oneof![
        Just(String::new()),
        Just("pool".to_owned()),
        Just("dhcp".to_owned()),
        Just("vm".to_owned()),
        Just("cluster".to_owned()),
        Just("10.1.0.2".to_owned()),
        Just("0.0.0.0".to_owned()),
        Just("Ready".to_owned()),
        Just("True".to_owned()),
        ".{0,8}",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0_i64..70_000).prop_map(Value::from),
        words.prop_map(Value::from),
    ];
    let keys = prop::sample::select(vec![
        "metadata",
        "spec",
        "status",
        "annotations",
        "labels",
        "finalizers",
        "deletionTimestamp",
        "ipam",
        "ipPool",
        "workloadType",
        "listeners",
        "port",
        "backendPort",
        "name",
        "protocol",
        "healthCheck",
        "successThreshold",
        "backendServerSelector",
        "address",
        "allocatedAddress",
        "ip",
        "conditions",
        "type",
        "endpoints",
        NETWORK,
        PROJECT,
        NAMESPACE,
        CLUSTER,
        LABEL,
        "x",
    ]);
    leaf.prop_recursive(4, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(keys.clone(), inner, 0..6).prop_map(|map| Value::Object(
                map.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()
            )),
        ]
    })
}

/// An object whose parts may be of any type.
fn any_object() -> impl Strategy<Value = Value> {
    (any_value(), any_value(), any_value()).prop_map(
        |(metadata, spec, status)| json!({"metadata": metadata, "spec": spec, "status": status}),
    )
}

fn any_status() -> impl Strategy<Value = Value> {
    let ip = || prop::option::of((1_u8..9).prop_map(|last| format!("10.1.0.{last}")));
    let condition = (prop::sample::select(vec!["Ready", "Mine", "Other"]), any::<bool>());
    let conditions = prop::collection::btree_map(
        condition.clone().prop_map(|(type_, _)| type_),
        condition.prop_map(|(_, on)| on),
        0..3,
    );
    (ip(), ip(), conditions, prop::option::of(0_i32..5), any::<bool>()).prop_map(
        |(address, claim, conditions, ready, leased)| {
            let mut status = Map::new();
            if let Some(address) = address {
                status.insert("address".into(), json!(address));
            }
            if let Some(claim) = claim {
                let ip = if leased { "0.0.0.0".to_owned() } else { claim };
                status.insert(
                    "allocatedAddress".into(),
                    json!({"ip": ip, "ipPool": "p", "mask": "m", "ipv6Pool": "six"}),
                );
            }
            if let Some(ready) = ready {
                status.insert("endpoints".into(), json!({"total": 5, "ready": ready}));
                status.insert("backendServers".into(), json!(["10.52.0.7"]));
                status.insert("observedGeneration".into(), json!(ready));
            }
            if !conditions.is_empty() {
                let list: Vec<Value> = conditions
                    .into_iter()
                    .map(|(type_, on)| {
                        let status = if on { "True" } else { "False" };
                        let mut condition = json!({"type": type_, "status": status});
                        if type_ == "Ready" {
                            condition["newer"] = json!("field");
                        }
                        condition
                    })
                    .collect();
                status.insert("conditions".into(), json!(list));
            }
            Value::Object(status)
        },
    )
}

/// An object that could be stored.
fn any_lb() -> impl Strategy<Value = Value> {
    let listener =
        (1_i64..4).prop_map(|n| json!({"name": format!("l{n}"), "port": n, "protocol": "TCP"}));
    (
        any::<bool>(),
        any::<bool>(),
        prop::collection::vec(listener, 1..2),
        prop::option::of(1_i64..4),
        any_status(),
        prop::option::of(prop::sample::select(vec!["", "*", "local/ours", "local/theirs"])),
    )
        .prop_map(|(guest, dhcp, listeners, check, status, project)| {
            let mut object = lb(json!({
                "workloadType": if guest { "cluster" } else { "vm" },
                "ipam": if dhcp { "dhcp" } else { "pool" },
                "listeners": listeners,
            }));
            if let Some(port) =
                check.filter(|port| json!(port) == object["spec"]["listeners"][0]["port"])
            {
                object["spec"]["healthCheck"] = json!({"port": port});
            }
            if let Some(project) = project {
                object["metadata"]["annotations"] = json!({PROJECT: project, NETWORK: project});
            }
            object["metadata"]["labels"] = json!({LABEL: "guest"});
            object["status"] = status;
            object
        })
}

/// The object after a Go client has read and written it: fields unknown to the client are gone.
fn through_go(object: &Value) -> Value {
    let mut object = object.clone();
    let Some(status) = object["status"].as_object_mut() else { return object };
    let known = |map: &mut Map<String, Value>, fields: &[&str]| {
        map.retain(|k, _| fields.contains(&k.as_str()));
    };
    known(status, &["address", "allocatedAddress", "backendServers", "conditions"]);
    let allocated = status.entry("allocatedAddress").or_insert(json!({}));
    known(allocated.as_object_mut().unwrap(), &["ipPool", "ip", "mask", "gateway"]);
    for condition in
        status.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten()
    {
        known(
            condition.as_object_mut().unwrap(),
            &["type", "status", "reason", "message", "lastUpdateTime", "lastTransitionTime"],
        );
    }
    object
}

fn any_known() -> impl Strategy<Value = LbRuleFacts> {
    let project = prop_oneof![
        Just(Project::Unknown),
        Just(Project::Outside),
        Just(Project::In("local/ours".into())),
    ];
    (project, any::<bool>(), any::<bool>()).prop_map(|(project, network, taken)| LbRuleFacts {
        around: LbSurroundings {
            project,
            vm_network: network.then(|| "ns/vms".into()),
            ..LbSurroundings::default()
        },
        taken_by: taken.then(|| "the address of another LoadBalancer".into()),
        ..LbRuleFacts::default()
    })
}

/// Whether two values differ only in blank fields.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        _ if is_blank(a) && is_blank(b) => true,
        (Value::Object(x), Value::Object(y)) => x.keys().chain(y.keys()).all(|key| {
            same(x.get(key).unwrap_or(&Value::Null), y.get(key).unwrap_or(&Value::Null))
        }),
        _ => a == b,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_a_reason_to_panic(
        old in prop::option::of(any_object()),
        new in prop_oneof![any_object(), any_value()],
        known in any_known(),
    ) {
        let request = request(old.as_ref(), &new);
        asks(&request);
        let first = mutate(&request, &known);
        let judged = validate(&request, &known);
        for warning in first.warnings.iter().chain(&judged.warnings) {
            prop_assert!(warning.chars().count() <= 120, "{warning}");
        }
        for refusal in first.refusals.iter().chain(&judged.refusals) {
            prop_assert!(!refusal.message.contains('\n') && refusal.to_string().len() < 1_200, "{refusal}");
        }
        // Mutating the result again changes nothing.
        if let Some(object) = &first.object {
            let again = mutate(&super::request(old.as_ref(), object), &known);
            prop_assert_eq!(again.object, None);
        }
    }

    #[test]
    fn a_client_that_knows_less_changes_nothing(stored in any_lb(), known in any_known()) {
        // The stored object must be a result of mutation, as every object that passed admission is.
        let first = mutate(&request(None, &with(stored.clone(), "status", json!(null))), &known);
        let status = stored["status"].clone();
        let stored = with(first.object.unwrap_or(stored), "status", status);
        for sent in [through_go(&stored), with(stored.clone(), "status", json!(null))] {
            let answer = mutate(&request(Some(&stored), &sent), &known);
            prop_assert_eq!(&answer.warnings, &Vec::<String>::new());
            let after = answer.object.unwrap_or(sent);
            prop_assert!(same(&after, &stored), "{} {}", after, stored);
            prop_assert!(validate(&request(Some(&stored), &after), &known).refusals.is_empty());
        }
    }

    #[test]
    fn what_mutation_makes_of_a_good_object_is_accepted(
        old in prop::option::of(any_lb()), new in any_lb(), known in any_known(),
    ) {
        let new = match &old {
            // Only the guest's address may differ: the rest of the status belongs to the operator.
            Some(old) => {
                let address = new["status"]["address"].clone();
                let new = with(new, "status", old["status"].clone());
                let new = with(new, "spec", old["spec"].clone());
                if is_guest(old) { with(new, "status/address", address) } else { new }
            }
            None => new,
        };
        let answer = mutate(&request(old.as_ref(), &new), &known);
        prop_assert_eq!(&answer.refusals, &vec![]);
        let after = answer.object.unwrap_or(new);
        let judged = validate(&request(old.as_ref(), &after), &known);
        prop_assert_eq!(judged.refusals, vec![]);
    }
}
