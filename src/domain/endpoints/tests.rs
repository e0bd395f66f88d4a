//! Which address an endpoint has, and when it has none.

use super::super::slices::{self, Slice};
use super::super::vm::Nic;
use super::*;

const ANY: Wanted<'_> = Wanted { network: "", family: Family::V4 };

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A running VM with these interfaces, each a network and its addresses.
fn vm(nics: &[(&str, &[&str])]) -> Vm {
    Vm {
        uid: "v1".into(),
        node: "n1".into(),
        phase: Phase::Running,
        ready: Readiness::Ready,
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

fn pod() -> Pod {
    Pod { uid: "p1".into(), vm: "v1".into(), node: "n1".into(), ready: true, ..Pod::default() }
}

/// The address, and whether it is one last heard of.
fn found(
    vm: &Vm,
    pods: &[Pod],
    wanted: &Wanted<'_>,
    last: Option<&str>,
    foreign: &[&str],
) -> Option<(String, bool)> {
    let foreign = |address: IpAddr| foreign.iter().any(|text| ip(text) == address);
    match backend("web", vm, pods, wanted, || last.map(ip), &foreign) {
        Backend::Endpoint { endpoint, last_known } => {
            Some((endpoint.address.to_string(), last_known))
        }
        Backend::NoAddress => None,
        Backend::NotRunning => panic!("it runs"),
    }
}

fn at(vm: &Vm, wanted: &Wanted<'_>, foreign: &[&str]) -> Option<String> {
    let (address, last_known) = found(vm, &[pod()], wanted, None, foreign)?;
    assert!(!last_known);
    Some(address)
}

#[test]
fn an_endpoint_says_who_and_where_it_is() {
    let Backend::Endpoint { endpoint, last_known } =
        backend("web", &vm(&[("a/b", &["10.0.0.5"])]), &[pod()], &ANY, || None, &|_| false)
    else {
        panic!("it has an address")
    };
    let expected = Endpoint {
        address: ip("10.0.0.5"),
        name: "web".into(),
        uid: "v1".into(),
        node: "n1".into(),
        serving: true,
        terminating: false,
    };
    assert_eq!((endpoint, last_known), (expected, false));
}

/// The network that the LoadBalancer names decides; without one, the first address that fits.
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
        for (family, expected) in [(Family::V4, v4), (Family::V6, v6)] {
            let wanted = Wanted { network, family };
            assert_eq!(at(&vm, &wanted, &[]).as_deref(), expected, "{network:?} {family:?}");
        }
    }
}

/// A guest cluster's VM announces addresses itself, and some guests report every address that
/// they ever saw: traffic must not go round in a circle, nor to a node.
#[test]
fn addresses_of_nodes_and_of_the_load_balancer_are_no_vms() {
    let two = vm(&[("a/b", &["10.0.0.1", "10.0.0.100", "10.0.0.5"])]);
    assert_eq!(at(&two, &ANY, &["10.0.0.1", "10.0.0.100"]).as_deref(), Some("10.0.0.5"));
    let only = vm(&[("a/b", &["10.0.0.100"])]);
    assert_eq!(at(&only, &ANY, &["10.0.0.100"]), None);
    let silent = vm(&[("a/b", &[])]);
    assert_eq!(found(&silent, &[pod()], &ANY, Some("10.0.0.100"), &["10.0.0.100"]), None);
}

#[test]
fn a_silent_agents_vm_keeps_its_address_while_its_pod_is_ready() {
    let silent = vm(&[("a/b", &[])]);
    let kept = Some(("10.0.0.5".to_owned(), true));
    let last = Some("10.0.0.5");
    assert_eq!(found(&silent, &[pod()], &ANY, last, &[]), kept);
    assert_eq!(found(&vm(&[]), &[pod()], &ANY, last, &[]), kept, "no interface is reported");
    let shut_down = Pod { deleting: true, ..pod() };
    assert_eq!(found(&silent, &[shut_down], &ANY, last, &[]), kept, "until it has stopped");
    for pods in [
        vec![],
        vec![Pod { ready: false, ..pod() }],
        vec![Pod { node: "n2".into(), ..pod() }],
        vec![pod(), Pod { uid: "p2".into(), created: 1, ready: false, ..pod() }],
    ] {
        assert_eq!(found(&silent, &pods, &ANY, last, &[]), None, "{pods:?}");
        // What the VM says itself needs no pod.
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
    let v6 = Wanted { network: "", family: Family::V6 };
    assert_eq!(found(&vm(&[]), &[pod()], &v6, Some("10.0.0.5"), &[]), None);
    // The LoadBalancer names another network than before.
    let named = Wanted { network: "a/two", family: Family::V4 };
    let speaks = vm(&[("a/one", &["10.0.0.5"]), ("a/two", &[])]);
    assert_eq!(found(&speaks, &[pod()], &named, Some("10.0.0.5"), &[]), None);
    let kept = Some(("10.0.2.5".to_owned(), true));
    assert_eq!(found(&speaks, &[pod()], &named, Some("10.0.2.5"), &[]), kept);
}

/// A restart under the same name is another VM: what is remembered is filed by UID.
#[test]
fn nothing_is_remembered_across_uids() {
    let before = Endpoint { uid: "v0".into(), ..slices::sink("web", Family::V4) };
    let stored = [Slice { endpoints: vec![before], ..Slice::default() }];
    let known = slices::remembered(&stored);
    let last = |vm: &Vm| known.get(&*vm.uid).map(|endpoint| endpoint.address.to_string());
    let silent = |uid: &str| Vm { uid: uid.into(), ..vm(&[]) };
    for (uid, expected) in [("v0", true), ("v1", false)] {
        let vm = silent(uid);
        let found = found(&vm, &[pod()], &ANY, last(&vm).as_deref(), &[]);
        assert_eq!(found.is_some(), expected, "{uid}");
    }
}

#[test]
fn families_are_told_apart_and_spelled_as_kubernetes_does() {
    for (address, family, name) in
        [("10.0.0.5", Family::V4, "IPv4"), ("fd00::5", Family::V6, "IPv6")]
    {
        assert_eq!((Family::of(ip(address)), family.name()), (family, name));
    }
}

mod matrix {
    mod tests;
}
