//! Leased addresses that may not be published.

use super::*;
use api::{IPPoolSpec, Range};

const NETWORK: &str = "default/vlan7";

fn vlan(vlan: u16) -> Segment {
    Segment::Vlan("br".into(), vlan)
}

fn lease(ip: &str) -> LeasedAddress {
    let gateway = Some("10.7.0.1".parse().unwrap());
    LeasedAddress { ip: ip.parse().unwrap(), mask: None, gateway, network: NETWORK.into() }
}

fn world() -> AddressUses {
    AddressUses {
        segment: vlan(7),
        pools: Vec::new(),
        others: Vec::new(),
        reserved: Vec::new(),
        range: None,
        published: false,
    }
}

fn pool(network: &str, segment: Segment, global: bool) -> PoolSegment {
    let range = Range {
        subnet: "10.7.0.0/24".into(),
        range_start: Some("10.7.0.100".into()),
        range_end: Some("10.7.0.199".into()),
        gateway: Some("10.7.0.254".into()),
        ..Range::default()
    };
    let mut spec = IPPoolSpec { ranges: vec![range], ..IPPoolSpec::default() };
    let any = || Some("*".to_owned());
    let all = api::Scope { project: any(), namespace: any(), guest_cluster: any() };
    spec.selector = Some(api::Selector {
        network: Some(network.into()),
        scope: global.then(|| vec![all]),
        ..Default::default()
    });
    PoolSegment { facts: Arc::new(PoolFacts::new("p", 0, &spec)), segment }
}

#[test]
fn what_a_pool_may_give_out_is_not_published() {
    let with =
        |pool, ip: &str| why_unusable(&lease(ip), &AddressUses { pools: vec![pool], ..world() });
    for pool in
        [pool("x", vlan(7), false), pool("", vlan(9), true), pool("x", Segment::Unlisted, false)]
    {
        assert!(with(pool.clone(), "10.7.0.150").unwrap().contains("IPPool p"));
        assert!(with(pool.clone(), "10.7.0.254").unwrap().contains("gateway"));
        assert_eq!(with(pool.clone(), "10.7.0.99"), None);
        // An address that is published already stays published.
        let published = AddressUses { pools: vec![pool], published: true, ..world() };
        assert_eq!(why_unusable(&lease("10.7.0.150"), &published), None);
    }
    assert_eq!(with(pool("x", vlan(8), false), "10.7.0.150"), None, "another segment");
    let unlisted = AddressUses { segment: Segment::Unlisted, ..world() };
    assert!(why_unusable(&lease("10.7.0.9"), &unlisted).is_some());
}

#[test]
fn a_gateway_is_not_published() {
    assert!(why_unusable(&lease("10.7.0.1"), &world()).is_some());
    assert_eq!(why_unusable(&lease("10.7.0.9"), &world()), None);
}

#[test]
fn what_the_cluster_itself_has_is_never_published() {
    use Reserved::{ClusterIp, Ingress, Management, Node, OwnIngress, PodNetwork, ServiceNetwork};
    let name = || "secret/name".to_owned();
    let why = |reserved: Reserved, published: bool| {
        let world =
            AddressUses { reserved: vec![OwnIngress(name()), reserved], published, ..world() };
        why_unusable(&lease("10.7.0.9"), &world)
    };
    for (reserved, says) in [
        (Management(name()), "10.7.0.9 is the cluster's management address"),
        (Node(name()), "10.7.0.9 is a node's own address"),
        (ClusterIp(name()), "10.7.0.9 is the address of a Service"),
        (ServiceNetwork(name()), "10.7.0.9 is in the cluster's service network"),
        (PodNetwork(name()), "10.7.0.9 is in the cluster's pod network"),
    ] {
        for published in [false, true] {
            assert_eq!(why(reserved.clone(), published).as_deref(), Some(says), "{reserved:?}");
        }
    }
    // Tenants choose the addresses of their Services. So a Service with the address prevents its
    // publication, but an address that is already published is not withdrawn.
    assert!(why(Ingress(name()), false).is_some());
    assert_eq!(why(Ingress(name()), true), None);
    // The Service belongs to a LoadBalancer: to this one, or to another one. Then `others` contains
    // the other LoadBalancer.
    assert_eq!(why(OwnIngress(name()), false), None);
}

#[test]
fn what_the_network_does_not_have_is_not_published() {
    let range = |cidr: &str, gateway: &str| {
        Some(NetworkRange { cidr: cidr.parse().unwrap(), gateway: gateway.parse().ok() })
    };
    let why = |range, published| {
        why_unusable(&lease("10.7.0.9"), &AddressUses { range, published, ..world() })
            .unwrap_or_default()
    };
    assert_eq!(why(range("10.7.0.0/24", "10.7.0.1"), false), "");
    assert_eq!(
        why(range("10.8.0.0/24", ""), false),
        format!("10.7.0.9 is outside 10.8.0.0/24, the addresses of network {NETWORK}")
    );
    assert!(why(range("10.7.0.0/24", "10.7.0.9"), false).contains("is the gateway of network"));
    assert_eq!(why(range("fd00::/64", ""), false), "", "the other family says nothing");
    assert_eq!(why(range("10.8.0.0/24", "10.7.0.9"), true), "", "what is in use stays");
}

/// Exactly one of two LoadBalancers with the same address publishes it. The LoadBalancer to which a
/// pool allocated the address has precedence.
#[test]
fn an_address_is_published_for_one() {
    let other = |by_pool, publishes, older| OtherHolder {
        segment: Some(vlan(7)),
        by_pool,
        publishes,
        older,
    };
    for (mine, theirs, older) in [
        (false, false, false),
        (false, false, true),
        (true, false, true),
        (false, true, true),
        (true, true, true),
        (true, true, false),
    ] {
        let me =
            AddressUses { published: mine, others: vec![other(false, theirs, older)], ..world() };
        let them =
            AddressUses { published: theirs, others: vec![other(false, mine, !older)], ..world() };
        let kept_back = |world| why_unusable(&lease("10.7.0.9"), world).is_some();
        assert_ne!(kept_back(&me), kept_back(&them), "{mine} {theirs} {older}");
        let by_pool = AddressUses { others: vec![other(true, true, false)], ..me.clone() };
        assert!(kept_back(&by_pool));
    }
    let elsewhere = OtherHolder { segment: Some(vlan(8)), ..other(true, true, true) };
    assert_eq!(
        why_unusable(&lease("10.7.0.9"), &AddressUses { others: vec![elsewhere], ..world() }),
        None
    );
}
