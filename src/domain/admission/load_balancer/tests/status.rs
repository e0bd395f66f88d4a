//! Tests of the ownership of the status.

use serde_json::{Value, json};

use super::*;
use crate::limits::text::LONGEST_TEXT;
use api::ANNOTATION_ALLOCATED;

fn stored_guest() -> Value {
    with(
        guest(),
        "status",
        json!({
            "address": "10.1.0.2",
            "allocatedAddress": {"ipPool": "p", "ip": "10.1.0.2", "mask": "255.255.255.0", "gateway": "10.1.0.1", "ipv6Pool": "six"},
            "addresses": ["10.1.0.2"],
            "observedGeneration": 7,
            "conditions": [
                {"type": "Mine", "status": "True"},
                {"type": "Ready", "status": "True", "reason": "Allocated", "lastUpdateTime": "2026-01-01T00:00:00Z"},
            ],
        }),
    )
}

fn stored_vm() -> Value {
    with(
        vm(),
        "status",
        json!({
            "address": "10.1.0.3",
            "allocatedAddress": {"ipPool": "p", "ip": "10.1.0.3", "mask": "255.255.255.0", "gateway": "10.1.0.1"},
            "backendServers": ["10.52.0.7"],
            "endpoints": {"total": 1, "ready": 0},
            "conditions": [{"type": "Ready", "status": "False", "reason": "BackendsNotReady", "message": "m"}],
        }),
    )
}

/// Returns the object that is stored after a request, without its annotations, and the warnings.
fn after(old: &Value, new: &Value, known: &LbRuleFacts) -> (Value, Vec<String>) {
    let answer = mutate(&request(Some(old), new), known);
    assert!(answer.refusals.is_empty(), "{answer:?}");
    let mut object = answer.object.unwrap_or_else(|| new.clone());
    let judged = validate(&request(Some(old), &object), known);
    assert!(judged.refusals.is_empty(), "{:?}", judged.refusals);
    object["metadata"].as_object_mut().unwrap().remove("annotations");
    (object, answer.warnings)
}

#[test]
fn what_a_client_leaves_out_stays() {
    for stored in [stored_guest(), stored_vm()] {
        let status = |status: Value| with(stored.clone(), "status", status);
        let without = |field: &str| {
            let mut object = stored.clone();
            object["status"].as_object_mut().unwrap().remove(field);
            object
        };
        let mut none = stored.clone();
        none.as_object_mut().unwrap().remove("status");
        let mut cases = vec![
            none,
            status(json!(null)),
            status(json!({})),
            // A Go client sends unset fields in this form.
            status(json!({"allocatedAddress": {}, "address": "", "backendServers": null})),
            with(stored.clone(), "status/allocatedAddress", json!({})),
            with(stored.clone(), "status/allocatedAddress/mask", json!("")),
        ];
        for field in [
            "allocatedAddress",
            "addresses",
            "backendServers",
            "endpoints",
            "observedGeneration",
            "conditions",
        ] {
            cases.push(without(field));
        }
        for case in cases {
            assert_eq!(after(&stored, &case, &outside()), (stored.clone(), vec![]), "{case}");
        }
    }
    let stored = stored_vm();
    let silent = with(stored.clone(), "status/address", json!(null));
    assert_eq!(after(&stored, &silent, &outside()).0, stored, "a vm's address is the operator's");
}

#[test]
fn conditions_of_others_are_theirs() {
    let stored = stored_guest();
    let ready = stored["status"]["conditions"][1].clone();
    let set = |list: Value| with(stored.clone(), "status/conditions", list);
    let other = json!({"type": "Other", "status": "False"});
    for (sent, kept) in [
        (json!([]), stored["status"]["conditions"].clone()),
        (json!([ready]), json!([ready])),
        (json!([other, ready]), json!([other, ready])),
        // A client removed the condition Ready. Mutation puts the condition back at its old place.
        (json!([other]), json!([other, ready])),
        (json!([other, {"type": "Third"}]), json!([other, ready, {"type": "Third"}])),
        // A client dropped a field of the condition Ready.
        (json!([{"type": "Ready", "status": "True", "reason": "Allocated"}]), json!([ready])),
    ] {
        assert_eq!(after(&stored, &set(sent.clone()), &outside()).0, set(kept), "{sent}");
    }
}

#[test]
fn what_the_operator_writes_no_other_client_changes() {
    for (stored, changes) in [
        (
            stored_guest(),
            vec![
                ("status/allocatedAddress/ip", json!("10.1.0.9"), "status.allocatedAddress.ip"),
                ("status/allocatedAddress/ipPool", json!("q"), "status.allocatedAddress.ipPool"),
                (
                    "status/allocatedAddress/gateway",
                    json!("10.1.0.254"),
                    "status.allocatedAddress.gateway",
                ),
                (
                    "status/allocatedAddress/ipv6IP",
                    json!("fd00::1"),
                    "status.allocatedAddress.ipv6IP",
                ),
                ("status/allocatedAddress", json!("10.1.0.9"), "status.allocatedAddress"),
                ("status/addresses", json!(["10.1.0.9"]), "status.addresses"),
                ("status/observedGeneration", json!(8), "status.observedGeneration"),
                ("status/backendServers", json!(["10.1.0.9"]), "status.backendServers"),
                ("status/endpoints", json!({"total": 1, "ready": 1}), "status.endpoints.ready"),
                (
                    "status/conditions",
                    json!([{"type": "Ready", "status": "False", "reason": "Allocated", "lastUpdateTime": "2026-01-01T00:00:00Z"}]),
                    "status.conditions[Ready].status",
                ),
                (
                    "status/conditions",
                    json!([{"type": "Ready", "status": "True"}, {"type": "Ready", "status": "False"}]),
                    "status.conditions[Ready]",
                ),
                ("status", json!("x"), "status"),
            ],
        ),
        (
            stored_vm(),
            vec![
                ("status/address", json!("10.1.0.9"), "status.address"),
                ("status/endpoints/ready", json!(1), "status.endpoints.ready"),
                ("status/backendServers", json!(["10.52.0.8"]), "status.backendServers"),
            ],
        ),
        // No address is allocated yet.
        (
            vm(),
            vec![
                ("status/address", json!("10.1.0.9"), "status.address"),
                (
                    "status/allocatedAddress",
                    json!({"ip": "10.1.0.9", "ipPool": "p"}),
                    "status.allocatedAddress.ip",
                ),
                (
                    "status/conditions",
                    json!([{"type": "Ready", "status": "True"}]),
                    "status.conditions[Ready].status",
                ),
            ],
        ),
    ] {
        for (path, value, field) in changes {
            let sent = with(stored.clone(), path, value.clone());
            let changed = mutate(&request(Some(&stored), &sent), &outside()).object.unwrap();
            let leaving =
                with(changed.clone(), "metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"));
            for changed in [changed, leaving] {
                let answer = validate(&request(Some(&stored), &changed), &outside());
                let refusal = answer.refusals.iter().find(|refusal| refusal.field == field);
                let refusal = refusal.unwrap_or_else(|| panic!("{path} {value}: {answer:?}"));
                assert!(refusal.message.starts_with("only the operator writes it: "), "{refusal}");
                assert!(
                    refusal.message.ends_with("; remove status from what you send"),
                    "{refusal}"
                );
            }
        }
    }
    let stored = stored_guest();
    let sent = with(stored.clone(), "status/allocatedAddress/ip", json!("10.1.0.9"));
    let answer = validate(&request(Some(&stored), &sent), &outside());
    assert_eq!(
        answer.refusals[0].to_string(),
        "status.allocatedAddress.ip: only the operator writes it: it is \"10.1.0.2\", not \"10.1.0.9\"; remove status from what you send"
    );
}

/// The cloud provider writes the address that the guest announces. After a change of pools, the
/// guest still announces the old address. Admission must not refuse this update, and must not
/// publish the old address.
#[test]
fn a_guest_is_reached_at_its_claim() {
    let stored = stored_guest();
    let sent = |address: Value| with(stored.clone(), "status/address", address);
    for address in [json!("10.1.0.2"), json!(""), json!(null)] {
        let result = after(&stored, &sent(address.clone()), &outside());
        assert_eq!(result, (stored.clone(), vec![]), "{address}");
        // Without mutation, validation admits an empty address.
        let answer = validate(&request(Some(&stored), &sent(address.clone())), &outside());
        assert_eq!(refusals(&answer), Vec::<String>::new(), "{address}");
    }
    let mut omitted = stored.clone();
    omitted["status"].as_object_mut().unwrap().remove("address");
    assert_eq!(after(&stored, &omitted, &outside()), (stored.clone(), vec![]));
    // During a change of pools, the status still has the former address.
    let moving = sent(json!("10.1.0.9"));
    assert_eq!(after(&moving, &sent(json!("")), &outside()), (stored.clone(), vec![]));
    for address in ["10.1.0.9", "127.0.0.1", "example.com"] {
        let (object, warnings) = after(&stored, &sent(json!(address)), &outside());
        assert_eq!(object, stored, "{address}");
        let warning = format!(
            "status.address stays \"10.1.0.2\": \"{address}\" is not the claimed address, 10.1.0.2"
        );
        assert_eq!(warnings, [warning]);
        // Without mutation, validation refuses the address.
        let answer = validate(&request(Some(&stored), &sent(json!(address))), &outside());
        assert_eq!(answer.refusals[0].field, "status.address");
    }
    let early = with(guest(), "status", json!({"address": "10.1.0.9"}));
    let (object, warnings) = after(&guest(), &early, &outside());
    assert_eq!(object["status"], json!({}));
    assert_eq!(
        warnings,
        ["status.address stays unset: \"10.1.0.9\" is not a claimed address: none is claimed yet"]
    );
    // The stored address is empty. Now the guest publishes its claimed address.
    let withdrawn = sent(json!(""));
    assert_eq!(after(&withdrawn, &stored, &outside()).0, stored);
    // An address that is empty already stays as it is until the reconciler fills the field.
    assert_eq!(after(&withdrawn, &withdrawn, &outside()), (withdrawn.clone(), vec![]));
}

#[test]
fn a_guest_that_leases_says_where_unless_it_is_anothers() {
    let leasing = with(guest(), "status", json!({"allocatedAddress": {"ip": "0.0.0.0"}}));
    let at = |address: &str| with(leasing.clone(), "status/address", json!(address));
    assert_eq!(after(&leasing, &at("10.9.0.7"), &outside()), (at("10.9.0.7"), vec![]));
    assert_eq!(after(&at("10.9.0.7"), &at("10.9.0.8"), &outside()), (at("10.9.0.8"), vec![]));
    let taken =
        LbRuleFacts { taken_by: Some("the address of another LoadBalancer".into()), ..outside() };
    let (object, warnings) = after(&at("10.9.0.7"), &at("10.1.0.2"), &taken);
    assert_eq!(object, at("10.9.0.7"));
    assert_eq!(
        warnings,
        ["status.address stays \"10.9.0.7\": 10.1.0.2 is the address of another LoadBalancer"]
    );
    assert_eq!(
        after(&leasing, &at("x"), &outside()).1,
        ["status.address stays unset: \"x\" is not an IP address"]
    );
    // A guest that empties the field gets `0.0.0.0` back, which no other object can use.
    assert_eq!(after(&at("10.9.0.7"), &at(""), &taken), (at("0.0.0.0"), vec![]));
    // An address that is already stored is not checked, even if another object uses it.
    assert_eq!(after(&at("10.1.0.2"), &at("10.1.0.2"), &taken), (at("10.1.0.2"), vec![]));
}

/// The address in a backup's status may belong to another object now.
#[test]
fn a_new_object_brings_no_status() {
    for backup in [stored_guest(), stored_vm()] {
        let answer = mutate(&request(None, &backup), &outside());
        assert_eq!(
            answer.warnings,
            [
                "status: only the operator writes it: the sent status is dropped, an address is claimed again"
            ]
        );
        let new = answer.object.unwrap();
        let foreign = json!([{"type": "Mine", "status": "True"}]);
        match backup["status"].get("endpoints") {
            Some(_) => assert_eq!(new.get("status"), None),
            None => assert_eq!(new["status"], json!({"conditions": foreign})),
        }
        assert!(validate(&request(None, &new), &outside()).refusals.is_empty());
        let asks = &new["metadata"]["annotations"][ANNOTATION_ALLOCATED];
        let claim = &backup["status"]["allocatedAddress"];
        let (pool, ip) = (claim["ipPool"].as_str().unwrap(), claim["ip"].as_str().unwrap());
        assert_eq!(*asks, json!(format!("{pool}/{ip}")), "it asks for the same address");
        // Without mutation, validation refuses the status.
        assert!(!validate(&request(None, &backup), &outside()).refusals.is_empty());
    }
    let typed = with(guest(), "status", json!({"allocatedAddress": {}}));
    let answer = mutate(&request(None, &typed), &outside());
    assert_eq!(answer.warnings, Vec::<String>::new());
    assert_eq!(answer.object.unwrap()["status"], typed["status"]);
}

/// Each refusal repeats the names above its field, and a caller chooses the names.
#[test]
fn a_long_path_in_a_refusal_is_cut() {
    let name = "x".repeat(100_000);
    let new = with(vm(), "status", json!({name.as_str(): {"a": 1, "b": 2}}));
    let refusals = update(&vm(), &new, &outside()).refusals;
    assert_eq!(refusals.len(), 2, "{}", refusals.len());
    for refusal in refusals {
        assert_eq!(refusal.field.len(), LONGEST_TEXT);
    }
}
