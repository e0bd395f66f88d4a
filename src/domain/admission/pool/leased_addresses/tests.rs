//! Tests of ranges that include addresses leased by DHCP.

use serde_json::{Value, json};

use super::super::tests::{everybody, judged, pool, range, refusals};
use super::*;

const VLAN: &str = "ns/seven";

fn segment(name: &str) -> Segment {
    Segment::Named(name.to_owned())
}

fn leased(last: u8, network: &str) -> Leased {
    let ip = Ipv4Addr::new(10, 0, 0, last);
    Leased { ip, name: format!("ns/lb-{last}"), segment: segment(network) }
}

fn known(leased: Vec<Leased>) -> PoolRuleFacts {
    PoolRuleFacts { leased, segment: segment(VLAN), ..PoolRuleFacts::default() }
}

#[test]
fn no_new_range_takes_a_leased_address_in() {
    let new =
        |first, last| pool(&json!({"ranges": range(first, last), "selector": {"network": VLAN}}));
    let refusals = |object: &Value, old: Option<Value>, known: &PoolRuleFacts| {
        refusals(&judged(object, old.as_ref(), known))
    };
    let some = known(vec![leased(15, VLAN), leased(12, VLAN), leased(30, VLAN)]);
    assert_eq!(
        refusals(&new(10, 20), None, &some),
        [
            "spec.ranges[0]: a DHCP server of this network leased 10.0.0.12 (ns/lb-12), 10.0.0.15 (ns/lb-15): \
             give the pool addresses that the server does not give out, or add these to exclude"
        ]
    );
    let many = known((10..=16).map(|last| leased(last, VLAN)).collect());
    assert!(
        refusals(&new(10, 20), None, &many)[0].contains("10.0.0.12 (ns/lb-12) and 4 more: give")
    );
    // These ranges are allowed: beside the leased addresses, on another network, or with `exclude`.
    assert_eq!(refusals(&new(20, 29), None, &some), [""; 0]);
    assert_eq!(refusals(&new(10, 20), None, &known(vec![leased(15, "ns/other")])), [""; 0]);
    let mut excluded = new(10, 20);
    excluded["spec"]["ranges"][0]["exclude"] = json!(["10.0.0.12", "10.0.0.15"]);
    assert_eq!(refusals(&excluded, None, &some), [""; 0]);
    // A stored pool can still be changed in other ways, but must not include more leased addresses.
    assert_eq!(refusals(&new(10, 21), Some(new(10, 20)), &some), [""; 0]);
    assert!(
        refusals(&new(10, 30), Some(new(10, 20)), &some)[0]
            .contains("leased 10.0.0.30 (ns/lb-30): give")
    );
    // If the pool's network changes, every leased address in its ranges counts as new.
    let elsewhere = pool(&json!({"ranges": range(10, 20), "selector": {"network": "ns/six"}}));
    assert!(refusals(&new(10, 20), Some(elsewhere), &some)[0].contains("10.0.0.12"));
}

#[test]
fn a_global_pool_meets_the_leases_of_all_networks_and_an_unknown_one_may_be_any() {
    let there = known(vec![leased(15, "ns/other")]);
    let new = pool(&json!({"ranges": range(10, 20), "selector": {"network": VLAN}}));
    assert_eq!(refusals(&judged(&new, None, &there)), [""; 0]);
    let global = pool(&json!({"ranges": range(10, 20), "selector": {"scope": everybody()}}));
    assert!(refusals(&judged(&global, None, &there))[0].contains("10.0.0.15 (ns/lb-15)"));
    let unlisted = PoolRuleFacts { segment: Segment::Unlisted, ..there };
    assert!(refusals(&judged(&new, None, &unlisted))[0].contains("10.0.0.15 (ns/lb-15)"));
}
