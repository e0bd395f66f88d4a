//! Tests of the address of an endpoint, and of the cases without an address.

mod matrix;

use super::super::endpoint_slices::{self, StoredSlice};
use super::super::vm::Nic;
use super::*;
use crate::network::infrastructure::Reserved;

const ANY: WantedAddresses<'_> = WantedAddresses { network: "", family: AddressFamily::V4 };
const NONE: AddressRules<'_> =
    AddressRules { own: None, reserved: &|_| None, listed: &|_| false, range: &|_| None };

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Running VM with these interfaces. The fields of an interface are its network and its addresses.
fn vm(nics: &[(&str, &[&str])]) -> Vm {
    Vm {
        uid: "v1".into(),
        node: "n1".into(),
        phase: VmPhase::Running,
        ready: VmReadiness::Ready,
        nics: nics
            .iter()
            .map(|(network, addresses)| Nic {
                network: (*network).into(),
                addresses: addresses.iter().map(|a| ip(a)).collect(),
            })
            .collect(),
        ..Vm::default()
    }
}

fn pod() -> VmPod {
    let addresses = [ip("10.52.0.9")].into();
    let (uid, vm, node) = ("p1".into(), "v1".into(), "n1".into());
    VmPod { uid, vm, node, ready: true, addresses, ..VmPod::default() }
}

/// Returns node n1 if `address` is in `foreign`. `None`: no node has the address.
fn reserved(foreign: &[&str], address: IpAddr) -> Option<Reserved> {
    foreign.iter().any(|text| ip(text) == address).then(|| Reserved::Node("n1".into()))
}

/// Address of the VM's endpoint, and whether the address comes from `last`. `last`: address that is
/// stored for the VM, if any. `None`: the VM has no endpoint.
fn found(
    vm: &Vm,
    pods: &[VmPod],
    wanted: &WantedAddresses<'_>,
    last: Option<&str>,
    foreign: &[&str],
) -> Option<(String, bool)> {
    let reserved = |address| reserved(foreign, address);
    let rules = AddressRules { own: Some(ip("10.0.0.99")), reserved: &reserved, ..NONE };
    match backend("web", vm, pods, wanted, || last.map(ip), &rules) {
        VmBackend::Endpoint { endpoint, last_known } => {
            Some((endpoint.address.to_string(), last_known))
        }
        VmBackend::NoAddress | VmBackend::Refused { .. } => None,
        VmBackend::NotRunning => panic!("it runs"),
    }
}

fn at(vm: &Vm, wanted: &WantedAddresses<'_>, foreign: &[&str]) -> Option<String> {
    let (address, last_known) = found(vm, &[pod()], wanted, None, foreign)?;
    assert!(!last_known);
    Some(address)
}

#[test]
fn an_endpoint_says_who_and_where_it_is() {
    let VmBackend::Endpoint { endpoint, last_known } =
        backend("web", &vm(&[("a/b", &["10.0.0.5"])]), &[pod()], &ANY, || None, &NONE)
    else {
        panic!("it has an address")
    };
    let expected = VmEndpoint {
        address: ip("10.0.0.5"),
        name: "web".into(),
        uid: "v1".into(),
        node: "n1".into(),
        serving: true,
        terminating: false,
    };
    assert_eq!((endpoint, last_known), (expected, false));
}

/// The address is on the network that the LoadBalancer names. If the LoadBalancer names no network,
/// the first address of the family counts.
#[test]
fn the_address_is_on_the_network_that_is_named() {
    let vm =
        vm(&[("", &["10.52.0.9"]), ("a/one", &["10.0.1.5", "fd01::5"]), ("a/two", &["fd02::5"])]);
    for (network, v4, v6) in [
        ("", Some("10.52.0.9"), Some("fd01::5")),
        ("a/one", Some("10.0.1.5"), Some("fd01::5")),
        ("a/two", None, Some("fd02::5")),
        ("b/one", None, None),
        ("one", None, None),
    ] {
        for (family, expected) in [(AddressFamily::V4, v4), (AddressFamily::V6, v6)] {
            let wanted = WantedAddresses { network, family };
            assert_eq!(at(&vm, &wanted, &[]).as_deref(), expected, "{network:?} {family:?}");
        }
    }
}

/// Addresses of nodes and of the LoadBalancer do not count as a VM's address. Traffic to such an
/// address would loop, or reach a node. A VM may report such an address for two reasons. A VM of a
/// guest cluster announces addresses of LoadBalancers, and some guests report every address that
/// they ever observed.
#[test]
fn addresses_of_nodes_and_of_the_load_balancer_are_no_vms() {
    let two = vm(&[("a/b", &["10.0.0.1", "10.0.0.99", "10.0.0.5"])]);
    assert_eq!(at(&two, &ANY, &["10.0.0.1"]).as_deref(), Some("10.0.0.5"));
    for address in ["10.0.0.99", "10.0.0.1"] {
        let only = vm(&[("a/b", &[address])]);
        assert_eq!(at(&only, &ANY, &["10.0.0.1"]), None);
        for silent in [vm(&[("a/b", &[])]), vm(&[])] {
            assert_eq!(found(&silent, &[pod()], &ANY, Some(address), &["10.0.0.1"]), None);
        }
    }
}

#[test]
fn a_vm_that_may_have_none_of_its_addresses_is_refused_with_the_first() {
    let refused = |vm: &Vm, pods: &[VmPod]| match backend("web", vm, pods, &ANY, || None, &NONE) {
        VmBackend::Refused { address, fault, .. } => Some((address.to_string(), fault)),
        VmBackend::NoAddress => None,
        other => panic!("{other:?}"),
    };
    let liar = vm(&[("", &["10.53.0.1", "10.52.0.8"])]);
    let first = Some(("10.53.0.1".to_owned(), AddressFault::NotOfPod));
    assert_eq!(refused(&liar, &[pod()]), first);
    // As long as no address of the VM's pods is known, the VM's address is not refused.
    for pods in [vec![], vec![VmPod { addresses: Box::default(), ..pod() }]] {
        assert_eq!(refused(&liar, &pods), None);
    }
    assert_eq!(refused(&vm(&[("", &["fd00::1"])]), &[pod()]), None, "of the other family");
    let honest = vm(&[("", &["10.53.0.1", "10.52.0.9"])]);
    assert_eq!(at(&honest, &ANY, &[]).as_deref(), Some("10.52.0.9"));
}

#[test]
fn a_silent_agents_vm_keeps_its_address_while_its_pod_is_ready() {
    let silent = vm(&[("a/b", &[])]);
    let kept = Some(("10.0.0.5".to_owned(), true));
    let last = Some("10.0.0.5");
    assert_eq!(found(&silent, &[pod()], &ANY, last, &[]), kept);
    assert_eq!(found(&vm(&[]), &[pod()], &ANY, last, &[]), kept, "no interface is reported");
    let shut_down = VmPod { deleting: true, ..pod() };
    assert_eq!(found(&silent, &[shut_down], &ANY, last, &[]), kept, "until it has stopped");
    for pods in [
        vec![],
        vec![VmPod { ready: false, ..pod() }],
        vec![VmPod { node: "n2".into(), ..pod() }],
        vec![pod(), VmPod { uid: "p2".into(), created: 1, ready: false, ..pod() }],
    ] {
        assert_eq!(found(&silent, &pods, &ANY, last, &[]), None, "{pods:?}");
        // An address that the VM reports now counts even if no pod is ready.
        let speaks = vm(&[("a/b", &["10.0.0.6"])]);
        let says = Some(("10.0.0.6".to_owned(), false));
        assert_eq!(found(&speaks, &pods, &ANY, last, &[]), says);
    }
    assert_eq!(found(&silent, &[pod()], &ANY, None, &[]), None, "never heard of");
    let moved = vm(&[("a/b", &["10.0.0.6"])]);
    let news = Some(("10.0.0.6".to_owned(), false));
    assert_eq!(found(&moved, &[pod()], &ANY, last, &[]), news, "news wins");
}

#[test]
fn a_last_known_address_is_of_the_family_and_not_of_another_network() {
    let v6 = WantedAddresses { network: "", family: AddressFamily::V6 };
    assert_eq!(found(&vm(&[]), &[pod()], &v6, Some("10.0.0.5"), &[]), None);
    // The LoadBalancer names network `a/two`, but the VM reports the last address on `a/one`.
    let named = WantedAddresses { network: "a/two", family: AddressFamily::V4 };
    let speaks = vm(&[("a/one", &["10.0.0.5"]), ("a/two", &[])]);
    assert_eq!(found(&speaks, &[pod()], &named, Some("10.0.0.5"), &[]), None);
    let kept = Some(("10.0.2.5".to_owned(), true));
    assert_eq!(found(&speaks, &[pod()], &named, Some("10.0.2.5"), &[]), kept);
}

/// A tenant who may write EndpointSlices can store the address of another tenant's load balancer
/// for its own VM. Then the VM reports this address, or its guest agent is silent.
#[test]
fn a_stored_address_of_another_load_balancer_counts_only_if_the_status_lists_it() {
    let theirs = ip("10.0.0.50");
    let reserved =
        |address: IpAddr| (address == theirs).then(|| Reserved::OwnIngress("other/lb".into()));
    for vm in [vm(&[("a/b", &["10.0.0.50"])]), vm(&[("a/b", &[])]), vm(&[])] {
        for is_listed in [true, false] {
            let rules = AddressRules { reserved: &reserved, listed: &|_| is_listed, ..NONE };
            let found = backend("web", &vm, &[pod()], &ANY, || Some(theirs), &rules);
            assert_eq!(matches!(found, VmBackend::Endpoint { .. }), is_listed, "{found:?}");
        }
    }
}

/// A VM that restarts under the same name gets a new UID. The last address is stored by UID, so the
/// restarted VM has no last address.
#[test]
fn nothing_is_remembered_across_uids() {
    let before = VmEndpoint {
        uid: "v0".into(),
        terminating: false,
        ..endpoint_slices::sink_endpoint("web", AddressFamily::V4, None)
    };
    let stored = [StoredSlice { endpoints: vec![before], ..StoredSlice::default() }];
    let known = endpoint_slices::remembered(&stored);
    let last = |vm: &Vm| known.get(&*vm.uid).map(|endpoint| endpoint.address.to_string());
    let silent = |uid: &str| Vm { uid: uid.into(), ..vm(&[]) };
    for (uid, expected) in [("v0", true), ("v1", false)] {
        let vm = silent(uid);
        let found = found(&vm, &[pod()], &ANY, last(&vm).as_deref(), &[]);
        assert_eq!(found.is_some(), expected, "{uid}");
    }
}

#[test]
fn families_are_distinguished_and_spelled_as_kubernetes_does() {
    for (address, family, name) in
        [("10.0.0.5", AddressFamily::V4, "IPv4"), ("fd00::5", AddressFamily::V6, "IPv6")]
    {
        assert_eq!((AddressFamily::of(ip(address)), family.name()), (family, name));
    }
}
