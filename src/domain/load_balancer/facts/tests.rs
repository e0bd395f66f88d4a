//! Tests of the facts of a LoadBalancer, including facts that another object contradicts.

use super::*;
use api::{ANNOTATION_PROJECT, AllocatedAddress, Condition, LoadBalancerStatus};

fn lb(annotations: &[(&str, &str)], guest: bool) -> LoadBalancer {
    let mut lb = LoadBalancer::default();
    lb.spec.workload_type = guest.then_some(WorkloadType::Cluster);
    lb.metadata.annotations = Some(pairs(annotations));
    lb
}

fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

/// A tenant may write any annotation. Only the Namespace object determines whether there is a
/// project, and which one.
#[test]
fn the_namespace_decides_on_the_project() {
    let lb = lb(&[(ANNOTATION_PROJECT, "local/theirs")], false);
    for (project, expected) in [
        (Project::In("local/ours".into()), "local/ours"),
        (Project::Outside, ""),
        (Project::Unknown, ""),
    ] {
        let around = LbSurroundings { project, vm_network: None, ..LbSurroundings::default() };
        assert_eq!(requirement(&lb, &around).project, expected, "{around:?}");
    }
}

#[test]
fn guests_fall_back_to_their_management_network_and_then_to_their_vms() {
    let network = |annotations: &[(&str, &str)], guest| {
        let around =
            LbSurroundings { vm_network: Some("ns/vms".into()), ..LbSurroundings::default() };
        requirement(&lb(annotations, guest), &around).network
    };
    let both = [(ANNOTATION_NETWORK, ""), (ANNOTATION_MANAGEMENT_NETWORK, "ns/mgmt")];
    assert_eq!((network(&both, true).as_str(), network(&both, false).as_str()), ("ns/mgmt", ""));
    assert_eq!((network(&[], true).as_str(), network(&[], false).as_str()), ("ns/vms", ""));
    assert_eq!(network(&[(ANNOTATION_NETWORK, "ns/own")], true), "ns/own");
}

#[test]
fn vms_are_asked_for_a_network_only_where_nothing_else_names_one() {
    let asked = |annotations: &[(&str, &str)], labels: &[(&str, &str)], guest| {
        let mut lb = lb(annotations, guest);
        lb.metadata.labels = Some(pairs(labels));
        asks_vms_for_network(&lb)
    };
    let label = [(LABEL_CLUSTER, "guest")];
    assert_eq!(asked(&[], &label, true).as_deref(), Some("guest"));
    assert_eq!(asked(&[(ANNOTATION_NETWORK, "")], &label, true).as_deref(), Some("guest"));
    let annotated = [(ANNOTATION_CLUSTER, "annotated")];
    assert_eq!(asked(&annotated, &label, true).as_deref(), Some("annotated"));
    assert_eq!(asked(&annotated, &[], true).as_deref(), Some("annotated"));
    assert_eq!(asked(&[(ANNOTATION_CLUSTER, "kubernetes")], &[], true), None);
    for (annotations, labels, guest) in [
        (&[(ANNOTATION_NETWORK, "ns/own")][..], &label[..], true),
        (&[(ANNOTATION_MANAGEMENT_NETWORK, "ns/mgmt")], &label, true),
        (&[], &label, false),
        (&[], &[], true),
        (&[], &[(LABEL_CLUSTER, "")], true),
        (&[], &[(LABEL_CLUSTER, "kubernetes")], true),
    ] {
        assert_eq!(asked(annotations, labels, guest), None, "{annotations:?} {labels:?} {guest}");
    }
}

fn publish(lb: &mut LoadBalancer, pool: &str) {
    let (ip_pool, ip) = (Some(pool.to_owned()), Some("10.0.0.5".to_owned()));
    let allocated = AllocatedAddress { ip_pool, ip, ..AllocatedAddress::default() };
    lb.status.get_or_insert_default().allocated_address = Some(allocated);
}

/// An address that was leased before a change of `spec.ipam` is no claim.
#[test]
fn vms_determine_the_pool_of_a_guest_without_network_pool_and_claim() {
    let needs = |change: fn(&mut LoadBalancer)| {
        let mut lb = lb(&[], true);
        lb.metadata.labels = Some(pairs(&[(LABEL_CLUSTER, "guest")]));
        change(&mut lb);
        needs_vms_for_pool(&lb)
    };
    assert!(needs(|_| ()));
    assert!(needs(|lb| lb.spec.ip_pool = Some(String::new())));
    assert!(needs(|lb| publish(lb, "")));
    assert!(!needs(|lb| publish(lb, "pool")));
    assert!(!needs(|lb| lb.spec.ip_pool = Some("pool".to_owned())));
    assert!(!needs(|lb| lb.spec.ipam = Some(Ipam::Dhcp)));
    assert!(!needs(|lb| lb.spec.workload_type = None));
    assert!(!needs(|lb| lb.metadata.labels = None));
    assert!(!needs(|lb| lb.metadata.annotations = Some(pairs(&[(ANNOTATION_NETWORK, "ns/own")]))));
}

#[test]
fn the_status_lists_the_addresses_of_backends_and_no_others() {
    let mut lb = lb(&[], false);
    let lists = |lb: &LoadBalancer, address: &str| lists_backend(lb, address.parse().unwrap());
    assert!(!lists(&lb, "10.0.0.5"), "no status");
    let backend_servers = Some(vec!["10.0.0.5".to_owned(), "fd00::5".to_owned()]);
    lb.status = Some(LoadBalancerStatus { backend_servers, ..LoadBalancerStatus::default() });
    assert!(lists(&lb, "10.0.0.5") && lists(&lb, "fd00::5"));
    assert!(!lists(&lb, "10.0.0.50") && !lists(&lb, "10.0.0.6"));
}

/// A Service may still ask for the claim after a change of `spec.ipam`, until the claim is released.
#[test]
fn a_ledger_is_checked_against_every_published_claim() {
    let entry = |ipam, pool: &str, ip: &str| {
        let mut lb = lb(&[], false);
        lb.spec.ipam = Some(ipam);
        let (ip_pool, ip) = (Some(pool.to_owned()), Some(ip.to_owned()));
        let allocated = AllocatedAddress { ip_pool, ip, ..AllocatedAddress::default() };
        lb.status = Some(LoadBalancerStatus {
            allocated_address: Some(allocated),
            ..LoadBalancerStatus::default()
        });
        lb_entry(&lb).map(|entry| (entry.published.is_some(), entry.deleting))
    };
    assert_eq!(entry(Ipam::Pool, "pool", "10.0.0.5"), Some((true, false)));
    assert_eq!(entry(Ipam::Pool, "", ""), Some((false, false)));
    assert_eq!(entry(Ipam::Dhcp, "pool", "10.0.0.5"), Some((true, true)));
    assert_eq!(entry(Ipam::Dhcp, "", "0.0.0.0"), None);
}

#[test]
fn the_status_shows_whether_a_ledger_has_the_load_balancer() {
    let lb = |pool: Option<&str>, ip: Option<&str>, reason: &str| {
        let mut lb = lb(&[], false);
        let (ip_pool, ip) = (pool.map(str::to_owned), ip.map(str::to_owned));
        let reason = Some(reason.to_owned());
        lb.status = Some(LoadBalancerStatus {
            allocated_address: Some(AllocatedAddress {
                ip_pool,
                ip,
                ..AllocatedAddress::default()
            }),
            conditions: vec![Condition { type_: READY.to_owned(), reason, ..Condition::default() }],
            ..LoadBalancerStatus::default()
        });
        lb
    };
    assert!(!is_in_ledger(&LoadBalancer::default()), "new");
    for (pool, ip, reason, expected) in [
        (Some("pool"), Some("10.0.0.5"), "Announced", true),
        (None, None, "NoAvailableIP", true),
        (None, None, "DHCPPending", false),
        // Its address is leased, so a reason of pools is out of date.
        (None, Some("0.0.0.0"), "NoAvailableIP", false),
        (None, Some("10.7.0.20"), "Leased", false),
    ] {
        assert_eq!(is_in_ledger(&lb(pool, ip, reason)), expected, "{pool:?} {ip:?} {reason}");
    }
}
