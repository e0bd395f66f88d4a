//! Tests of the addresses that a guest may and may not report for itself.

use std::cell::Cell;

use super::*;

const LAN: &str = "default/vlan1";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn reserved(address: IpAddr) -> Option<Reserved> {
    let object = match address.to_string().as_str() {
        "10.53.0.1" => Reserved::ClusterIp("default/kubernetes".into()),
        "10.52.3.7" => Reserved::PodNetwork("n1".into()),
        "192.168.1.11" => Reserved::Node("n1".into()),
        "192.168.1.10" => Reserved::Management("harvester-system/vip".into()),
        "192.168.1.50" => Reserved::Ingress("other/web".into()),
        "192.168.1.51" => Reserved::OwnIngress("other/lb".into()),
        _ => return None,
    };
    Some(object)
}

fn range(network: &str) -> Option<NetworkRange> {
    let gateway = Some(ip("192.168.1.1"));
    (network == LAN).then(|| NetworkRange { cidr: "192.168.1.0/24".parse().unwrap(), gateway })
}

fn pod(ended: bool, addresses: &[&str]) -> VmPod {
    VmPod { ended, addresses: addresses.iter().map(|text| ip(text)).collect(), ..VmPod::default() }
}

/// `had`: whether the VM had the address before, according to its slice and to the status.
fn said(address: &str, network: &str, pods: &[VmPod], had: bool) -> Option<String> {
    judged(address, network, pods, had, had)
}

fn judged(
    address: &str,
    network: &str,
    pods: &[VmPod],
    in_slice: bool,
    listed: bool,
) -> Option<String> {
    let own = Some(ip("192.168.1.99"));
    let rules = AddressRules { own, reserved: &reserved, listed: &|_| listed, range: &range };
    fault(ip(address), network, pods, &rules, || in_slice).map(|fault| fault.to_string())
}

#[test]
fn on_the_pod_network_only_the_pods_own_addresses_count() {
    let pods = [pod(true, &["10.52.3.9"]), pod(false, &["10.52.3.7", "fd52::7"])];
    // The kubelet reports these addresses for the VM's running pod, so the VM may have them.
    assert_eq!(said("10.52.3.7", "", &pods, false), None);
    assert_eq!(said("fd52::7", "", &pods, false), None);
    for other in ["10.52.3.8", "10.52.3.9", "10.53.0.1", "192.168.1.11", "192.168.1.5", "8.8.8.8"] {
        assert_eq!(
            said(other, "", &pods, true).as_deref(),
            Some("no address of its pod"),
            "{other}"
        );
    }
    assert!(said("10.52.3.7", "", &[], true).is_some(), "without a pod there is no address");
}

/// A tenant can create a pod with the label and the owner of a VM's pod. If this pod is on the
/// host's network, the kubelet reports the addresses of the node for it.
#[test]
fn an_address_of_a_node_is_no_vms_even_if_a_pod_of_the_vm_has_it() {
    let forged = [pod(false, &["192.168.1.11", "192.168.1.10", "10.52.3.7"])];
    for (address, why) in [
        ("192.168.1.11", Some("a node's own address")),
        ("192.168.1.10", Some("the cluster's management address")),
        ("10.52.3.7", None),
    ] {
        assert_eq!(said(address, "", &forged, true).as_deref(), why, "{address}");
    }
}

#[test]
fn on_other_networks_no_address_of_the_cluster_does() {
    let pods = [pod(false, &["10.52.3.7"])];
    for (address, why) in [
        ("10.53.0.1", "the address of a Service"),
        ("10.52.3.7", "in the cluster's pod network"),
        ("192.168.1.11", "a node's own address"),
        ("192.168.1.10", "the cluster's management address"),
        ("192.168.1.99", "the load balancer's own"),
        ("192.168.1.1", "the gateway of network default/vlan1"),
        ("192.168.2.5", "outside 192.168.1.0/24 of network default/vlan1"),
    ] {
        // Each of these addresses is refused even if the VM had it before.
        assert_eq!(said(address, LAN, &pods, true).as_deref(), Some(why), "{address}");
    }
    assert_eq!(said("192.168.1.5", LAN, &pods, false), None);
    assert_eq!(said("fd00::5", LAN, &pods, false), None, "the range says nothing of IPv6");
    assert_eq!(said("192.168.2.5", "default/vlan2", &pods, false), None, "its range is not known");
    assert!(said("10.53.0.1", "default/vlan2", &pods, false).is_some());
}

/// Tenants choose the addresses of their Services. A tenant may choose the address of a VM that is
/// already an endpoint. This VM must stay an endpoint.
#[test]
fn a_load_balancer_gets_no_address_that_a_vm_was_at_before() {
    for address in ["192.168.1.50", "192.168.1.51"] {
        assert!(said(address, LAN, &[], false).is_some(), "{address}");
        assert_eq!(said(address, LAN, &[], true), None, "{address}");
    }
}

/// A tenant who may write EndpointSlices can store another tenant's address there for its own VM.
/// The list in the status has no UIDs, so the address in it may be another VM's.
#[test]
fn slice_and_status_together_show_that_a_vm_had_an_address() {
    for address in ["192.168.1.50", "192.168.1.51"] {
        for (in_slice, listed) in [(true, false), (false, true)] {
            let why = judged(address, LAN, &[], in_slice, listed);
            assert_eq!(why.as_deref(), Some("the address of a Service"), "{in_slice} {listed}");
        }
        assert_eq!(judged(address, LAN, &[], true, true), None, "{address}");
    }
}

/// A VM may report many addresses, and the status lists those of all VMs.
#[test]
fn the_status_is_searched_only_for_an_address_that_a_slice_has() {
    let searches = Cell::new(0);
    let listed = |_: IpAddr| {
        searches.set(searches.get() + 1);
        true
    };
    let rules = AddressRules { own: None, reserved: &reserved, listed: &listed, range: &range };
    let address = ip("192.168.1.50");
    assert!(fault(address, LAN, &[], &rules, || false).is_some());
    assert_eq!(searches.get(), 0);
    assert_eq!(fault(address, LAN, &[], &rules, || true), None);
    assert_eq!(searches.get(), 1);
}
