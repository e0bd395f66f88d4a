//! Tests of ranges that overlap networks of pods and Services.

use serde_json::{Value, json};

use super::super::tests::{judged, pool, range, refusals};
use super::*;
use crate::network::Segment;
use crate::network::infrastructure::Reserved;

fn known(networks: &[(&str, Reserved)]) -> PoolRuleFacts {
    let all = networks.iter().map(|(net, what)| (net.parse().unwrap(), what.clone()));
    PoolRuleFacts { infrastructure: all.collect(), ..PoolRuleFacts::default() }
}

#[test]
fn a_range_is_refused_where_nothing_of_it_is_left() {
    let new = |first, last| pool(&json!({"ranges": range(first, last)}));
    let services = Reserved::ServiceNetwork("kubernetes".into());
    let some = known(&[
        ("10.0.0.0/28", services.clone()),
        ("10.0.0.16/28", Reserved::PodNetwork("n1".into())),
        ("10.0.0.40/32", Reserved::Node("n1".into())),
    ]);
    let answers = |object: &Value, old: Option<Value>| judged(object, old.as_ref(), &some);
    assert_eq!(
        refusals(&answers(&new(2, 15), None)),
        [
            "spec.ranges[0]: 10.0.0.2 is in the service network (ServiceCIDR kubernetes), whose addresses are never given out: \
             use addresses of the network where load balancers are announced"
        ]
    );
    assert_eq!(refusals(&answers(&new(10, 31), None)).len(), 1, "in two of them, as a whole");
    // Ranges that lie only partly in a network of pods or Services are not refused, nor are other
    // ranges. Warnings name the addresses that are held back.
    for (first, last, warnings) in [
        (
            10,
            32,
            &[
                "addresses of 10.0.0.0/28 are held back: each is in the service network (ServiceCIDR kubernetes)",
                "addresses of 10.0.0.16/28 are held back: each is in the pod network of Node n1",
            ][..],
        ),
        (40, 40, &["10.0.0.40 is held back: it is an address of Node n1"]),
        (50, 60, &[]),
    ] {
        let answer = answers(&new(first, last), None);
        assert_eq!(refusals(&answer), [""; 0], "{first} to {last}");
        let said = answer.warnings.iter().filter(|warning| warning.contains("held back"));
        assert!(said.eq(warnings), "{first} to {last}: {:?}", answer.warnings);
    }
    // A stored pool with a range that lies in a network of the cluster can still be changed.
    let mut another = new(2, 15);
    another["spec"]["ranges"]
        .as_array_mut()
        .unwrap()
        .extend(range(50, 60).as_array().cloned().unwrap());
    assert_eq!(refusals(&answers(&another, Some(new(2, 15)))), [""; 0]);
    assert_eq!(refusals(&answers(&new(2, 14), Some(new(2, 15)))), [""; 0]);
    assert_eq!(refusals(&answers(&new(2, 15), Some(new(50, 60)))).len(), 1);
    // While the networks are unknown, no range is refused because of them.
    assert_eq!(refusals(&judged(&new(2, 15), None, &PoolRuleFacts::default())), [""; 0]);
    // A pool on a tagged VLAN may have addresses of the pod and service networks.
    let apart = PoolRuleFacts { segment: Segment::Vlan("vlan-br".into(), 100), ..some };
    let answer = judged(&new(2, 15), None, &apart);
    assert_eq!(refusals(&answer), [""; 0]);
    let said = answer.warnings.iter().filter(|warning| warning.contains("10.0.0.0/28"));
    let warning = "usable by guest clusters only: 10.0.0.0/28 is in the service network (ServiceCIDR kubernetes)";
    assert!(said.eq([warning]), "{:?}", answer.warnings);
}
