//! Tests of rules that depend on other objects: pools, and guest clusters that are being removed.

use serde_json::{Value, json};

use super::*;
use api;

fn pool(scope: &Value) -> CandidatePool {
    let selector: api::Selector = serde_json::from_value(json!({"scope": scope})).unwrap();
    CandidatePool { selector: PoolSelector::new(Some(&selector)), ..CandidatePool::default() }
}

#[test]
fn a_pool_that_is_named_must_admit_it() {
    let naming = with(vm(), "spec/ipPool", json!("theirs"));
    let there = |pool: CandidatePool| LbRuleFacts { named: NamedPool::There(pool), ..outside() };
    let theirs = pool(&json!([{"namespace": "theirs"}]));
    let refusal = r#"spec.ipPool: it names "theirs", whose scope does not admit {network:"" project:"" namespace:"ns" cluster:""}: name another, or ask the admin of the pool"#;
    assert_eq!(refusals(&create(&naming, &there(theirs.clone()))), [refusal]);
    assert_eq!(refusals(&update(&vm(), &naming, &there(theirs.clone()))), [refusal]);
    // A LoadBalancer that has an address of the pool retains this address.
    let holding = with(
        naming.clone(),
        "status",
        json!({"allocatedAddress": {"ipPool": "theirs", "ip": "10.1.0.2"}}),
    );
    let described = with(holding.clone(), "spec/description", json!("x"));
    assert!(update(&holding, &described, &there(theirs.clone())).refusals.is_empty());
    let unknown = LbRuleFacts { named: NamedPool::There(theirs.clone()), ..LbRuleFacts::default() };
    assert!(create(&naming, &unknown).refusals.is_empty(), "its project is not known yet");
    // A change of the cluster label moves the LoadBalancer to another guest cluster.
    let of = |cluster: &str| {
        with(with(guest(), "spec/ipPool", json!("p")), "metadata/labels", json!({LABEL: cluster}))
    };
    let one = pool(&json!([{"namespace": "ns", "guestCluster": "one"}]));
    assert!(create(&of("one"), &there(one.clone())).refusals.is_empty());
    assert_eq!(update(&of("one"), &of("two"), &there(one)).refusals.len(), 1);

    let ours = pool(&json!([{"namespace": "ns"}]));
    assert_eq!(create(&naming, &there(ours.clone())), AdmissionAnswer::default());
    for (known, warning) in [
        (
            LbRuleFacts { named: NamedPool::Missing, ..outside() },
            "spec.ipPool: IPPool \"theirs\" does not exist yet; the LoadBalancer waits for it",
        ),
        (
            there(CandidatePool { idle: Some("it is being deleted".into()), ..ours.clone() }),
            "spec.ipPool: theirs allocates no addresses: it is being deleted",
        ),
        (
            there(CandidatePool { full: true, ..ours.clone() }),
            "spec.ipPool: theirs has no available IP now; the LoadBalancer waits for one",
        ),
    ] {
        let answer = create(&naming, &known);
        assert_eq!((refusals(&answer), answer.warnings), (vec![], vec![warning.to_owned()]));
    }
    let mismatch = NoAddressReason::NetworkMismatch {
        pool: "theirs".into(),
        pool_network: "ns/a".into(),
        network: "ns/b".into(),
    };
    let elsewhere = there(CandidatePool { mismatch: Some(mismatch.clone()), ..ours });
    let refusal = format!("metadata.annotations[{NETWORK}]: {}", mismatch.message());
    assert_eq!(refusals(&create(&naming, &elsewhere)), [refusal]);
    assert_eq!(refusals(&update(&holding, &described, &elsewhere)), [""; 0], "it stays");
}

/// The address is reserved on the LoadBalancer's network too, where another tenant's pool may have
/// it.
#[test]
fn the_network_of_one_that_has_an_address_stays_the_network_of_its_pool() {
    let on = |network: &str, pool_network: &str| {
        let selector: api::Selector =
            serde_json::from_value(json!({"network": pool_network})).unwrap();
        let mismatch = NoAddressReason::NetworkMismatch {
            pool: "p".into(),
            pool_network: pool_network.into(),
            network: network.into(),
        };
        CandidatePool {
            selector: PoolSelector::new(Some(&selector)),
            mismatch: Some(mismatch).filter(|_| network != pool_network),
            ..CandidatePool::default()
        }
    };
    let holding = with(
        with(vm(), "status", json!({"allocatedAddress": {"ipPool": "p", "ip": "10.1.0.2"}})),
        "metadata/annotations",
        json!({NETWORK: "ns/a"}),
    );
    let moved = with(holding.clone(), "metadata/annotations", json!({NETWORK: "ns/b"}));
    let claimed = |pool| LbRuleFacts { claimed: NamedPool::There(pool), ..outside() };
    let refusal = format!(
        "metadata.annotations[{NETWORK}]: {}",
        on("ns/b", "ns/a").mismatch.unwrap().message()
    );
    let elsewhere = claimed(on("ns/b", "ns/a"));
    assert_eq!(refusals(&update(&holding, &moved, &elsewhere)), std::slice::from_ref(&refusal));
    for fits in [on("ns/b", "ns/b"), on("ns/b", "")] {
        assert_eq!(refusals(&update(&holding, &moved, &claimed(fits))), [""; 0]);
    }
    // It moves to a pool of its new network, if that pool has an address for it.
    let moved = with(moved, "spec/ipPool", json!("q"));
    let of_all = CandidatePool { mismatch: None, ..pool(&json!([])) };
    for (named, expected) in [
        (NamedPool::There(of_all.clone()), vec![]),
        (NamedPool::There(CandidatePool { full: true, ..of_all }), vec![refusal.clone()]),
        (NamedPool::Missing, vec![refusal]),
    ] {
        let known = LbRuleFacts { named, ..elsewhere.clone() };
        assert_eq!(refusals(&update(&holding, &moved, &known)), expected);
    }
}

#[test]
fn one_that_no_pool_admits_gets_a_warning() {
    let pools = |pools: &[CandidatePool]| LbRuleFacts {
        pools: Some(pools.iter().map(|pool| pool.selector.clone()).collect()),
        ..outside()
    };
    let theirs = pool(&json!([{"namespace": "theirs"}]));
    let any = pool(&json!([{"project": "*", "namespace": "*", "guestCluster": "*"}]));
    let warnings = create(&vm(), &pools(std::slice::from_ref(&theirs))).warnings;
    assert_eq!(
        warnings,
        [
            r#"no IPPool admits this LoadBalancer now, so it waits: {network:"" project:"" namespace:"ns" cluster:""}"#
        ]
    );
    assert_eq!(create(&vm(), &pools(&[theirs.clone(), any])), AdmissionAnswer::default());
    assert_eq!(create(&vm(), &outside()), AdmissionAnswer::default(), "pools are not known");
    let long = with(vm(), "metadata/annotations", json!({NETWORK: "n".repeat(300)}));
    let warnings = create(&long, &pools(&[theirs])).warnings;
    assert_eq!(warnings[0].chars().count(), 120);
}

#[test]
fn a_guest_cluster_that_is_being_removed_gets_no_new_load_balancer() {
    let removal =
        NoAddressReason::ClusterRemoved { cluster: "guest".into(), vm: "ns/node-1".into() };
    let known = LbRuleFacts { removal: Some(removal), ..outside() };
    let refusal = "metadata.labels[cloudprovider.harvesterhci.io/cluster]: the vm ns/node-1 shows guest cluster guest is being removed: its LoadBalancers get no new address until its VMs are gone";
    assert_eq!(refusals(&create(&guest(), &known)), [refusal]);
    let described = with(guest(), "spec/description", json!("x"));
    assert!(update(&guest(), &described, &known).refusals.is_empty(), "what is there stays");
}
