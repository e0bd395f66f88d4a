//! Tests of reservations: their addresses, their objects, and their duration.

use super::*;
use crate::pools::ranges::PoolRanges;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn nets(texts: &[&str]) -> Vec<IpNet> {
    let net = |text: &&str| text.parse().unwrap_or_else(|_| IpNet::from(ip(text)));
    texts.iter().map(net).collect()
}

fn cluster() -> Infrastructure {
    let mut all = Infrastructure::default();
    for (object, claims) in [
        (Reserved::Node("n1".into()), &["10.0.0.11", "fd00::11"][..]),
        (Reserved::PodNetwork("n1".into()), &["10.52.0.0/24", "fd52::/64"]),
        (Reserved::ServiceNetwork("kubernetes".into()), &["10.53.0.0/16"]),
        (Reserved::ClusterIp("default/kubernetes".into()), &["10.53.0.1"]),
        (Reserved::Management("harvester-system/vip".into()), &["10.0.0.10"]),
        (Reserved::Ingress("kube-system/ingress-expose".into()), &["10.0.0.10"]),
        (Reserved::Ingress("default/foreign".into()), &["10.0.0.30"]),
        (Reserved::OwnIngress("default/web".into()), &["10.0.0.50"]),
    ] {
        let claims = nets(claims);
        assert_eq!(all.set(&object, claims.clone()).len(), claims.len());
    }
    all
}

#[test]
fn the_object_with_the_smallest_network_is_named() {
    let all = cluster();
    for (address, why) in [
        ("10.0.0.11", "an address of Node n1"),
        ("fd00::11", "an address of Node n1"),
        ("::ffff:10.0.0.11", "an address of Node n1"),
        ("10.52.0.7", "in the pod network of Node n1"),
        ("fd52::7", "in the pod network of Node n1"),
        ("10.53.0.1", "the cluster IP of Service default/kubernetes"),
        ("10.53.255.1", "in the service network (ServiceCIDR kubernetes)"),
        ("10.0.0.10", "the management address (ConfigMap harvester-system/vip)"),
        ("10.0.0.50", "the load-balancer address of Service default/web"),
    ] {
        let found = all.why_reserved(ip(address)).map(ToString::to_string);
        assert_eq!(found.as_deref(), Some(why), "{address}");
    }
    for free in ["10.0.0.12", "10.52.1.7", "10.54.0.1", "fd00::12", "fd53::1", "192.168.1.5"] {
        assert_eq!(all.why_reserved(ip(free)), None, "{free}");
    }
}

#[test]
fn every_object_that_claims_an_address_is_found() {
    let all = cluster();
    let whose = |address| all.reservations(ip(address)).cloned().collect::<Vec<_>>();
    assert_eq!(
        whose("10.53.0.1"),
        [
            Reserved::ClusterIp("default/kubernetes".into()),
            Reserved::ServiceNetwork("kubernetes".into())
        ]
    );
    assert!(matches!(whose("10.0.0.10")[..], [Reserved::Management(_), Reserved::Ingress(_)]));
    assert!(whose("10.54.0.1").is_empty());
}

#[test]
fn an_address_is_reserved_until_the_last_object_lets_go() {
    let mut all = cluster();
    let vip = ip("10.0.0.10");
    let management = Reserved::Management("harvester-system/vip".into());
    let ingress = Reserved::Ingress("kube-system/ingress-expose".into());
    assert_eq!(all.set(&management, []), nets(&["10.0.0.10"]));
    assert_eq!(all.why_reserved(vip), Some(&ingress));
    assert_eq!(all.set(&ingress, nets(&["10.0.0.20"])), nets(&["10.0.0.20", "10.0.0.10"]));
    assert_eq!(all.why_reserved(vip), None);
    assert_eq!(all.why_reserved(ip("10.0.0.20")), Some(&ingress));
    assert!(all.set(&ingress, nets(&["10.0.0.20", "10.0.0.20"])).is_empty(), "the same as before");
}

#[test]
fn nothing_is_left_of_objects_that_are_gone() {
    let mut all = cluster();
    let objects: Vec<Reserved> = all.entries().map(|(object, _)| object.clone()).collect();
    assert_eq!(objects.len(), 8);
    for object in objects {
        assert!(!all.set(&object, []).is_empty(), "{object:?}");
    }
    assert_eq!(all.why_reserved(ip("10.53.0.1")), None);
    assert!(all.by_network.is_empty() && all.by_object.is_empty() && all.lengths.is_empty());
}

#[test]
fn addresses_of_nodes_are_distinguished() {
    let all = cluster();
    assert!(all.is_node(ip("10.0.0.11")));
    assert!(all.is_node(ip("::ffff:10.0.0.11")));
    assert!(!all.is_node(ip("10.0.0.10")));
    assert!(!all.is_node(ip("10.52.0.7")));
}

#[test]
fn pools_hold_back_what_is_the_clusters_but_its_own_load_balancers() {
    let held_back = cluster().held_back();
    let shown: Vec<String> = held_back.iter().map(|(net, what)| format!("{net}: {what}")).collect();
    assert_eq!(
        shown,
        [
            "10.0.0.10/32: the management address (ConfigMap harvester-system/vip)",
            "10.0.0.11/32: an address of Node n1",
            "10.0.0.30/32: the load-balancer address of Service default/foreign",
            "10.52.0.0/24: in the pod network of Node n1",
            "10.53.0.0/16: in the service network (ServiceCIDR kubernetes)",
            "fd00::11/128: an address of Node n1",
            "fd52::/64: in the pod network of Node n1",
        ]
    );
}

#[test]
fn networks_are_found_that_have_addresses_of_the_ranges() {
    let held_back = cluster().held_back();
    for (first, last, expected) in [
        ("10.0.0.2", "10.0.0.9", &[][..]),
        ("10.0.0.11", "10.0.0.11", &["10.0.0.11/32"]),
        ("10.0.0.2", "10.0.0.254", &["10.0.0.10/32", "10.0.0.11/32", "10.0.0.30/32"]),
        ("10.53.7.1", "10.53.7.9", &["10.53.0.0/16"]),
        ("10.52.0.250", "10.53.0.9", &["10.52.0.0/24", "10.53.0.0/16"]),
        ("10.51.0.0", "10.52.0.0", &["10.52.0.0/24"]),
        ("fd52::ffff", "fd52::ffff", &["fd52::/64"]),
    ] {
        let subnet = if first.contains(':') { "fd00::/8" } else { "10.0.0.0/8" };
        let range = api::Range {
            subnet: subnet.into(),
            range_start: Some(first.into()),
            range_end: Some(last.into()),
            gateway: Some(if first.contains(':') { "fd00::1" } else { "10.255.0.1" }.into()),
            ..Default::default()
        };
        let found = PoolRanges::parse(&[range]).unwrap().held_back(&held_back);
        assert_eq!(found.keys().copied().collect::<Vec<_>>(), nets(expected), "{first}");
    }
}
