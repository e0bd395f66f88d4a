//! Listeners and selectors of a spec.

use super::*;
use api;

fn spec(listeners: Vec<api::Listener>) -> LoadBalancerSpec {
    LoadBalancerSpec { listeners, ..LoadBalancerSpec::default() }
}

fn listener(name: &str, protocol: &str, port: i32, backend_port: Option<i32>) -> api::Listener {
    api::Listener { name: name.into(), protocol: protocol.into(), port, backend_port }
}

#[test]
fn listeners_are_read_with_the_backend_port_that_is_meant() {
    for (given, expected) in [(None, 80), (Some(0), 80), (Some(8080), 8080), (Some(65535), 65535)] {
        let read = listeners(&spec(vec![listener("http", "TCP", 80, given)])).unwrap();
        let expected = ListenerPort {
            name: "http".into(),
            protocol: "TCP".into(),
            port: 80,
            backend_port: expected,
        };
        assert_eq!(read, [expected], "{given:?}");
    }
    // A single listener needs no name. Two protocols may have the same port, and two listeners the
    // same backend port.
    for good in [
        vec![listener("", "UDP", 1, None)],
        vec![listener("a", "TCP", 53, None), listener("b", "UDP", 53, None)],
        vec![listener("a", "TCP", 80, Some(8080)), listener("b", "TCP", 81, Some(8080))],
        vec![listener("0-a", "TCP", 80, None), listener(&"x".repeat(63), "TCP", 81, None)],
    ] {
        let read = listeners(&spec(good.clone())).unwrap();
        assert_eq!(read.len(), good.len(), "in the order given");
        assert!(read.iter().zip(&good).all(|(read, good)| read.name == good.name));
    }
}

/// Harvester's own CRD accepts specs with all of these faults, so the operator itself must find
/// them.
#[test]
fn a_fault_names_the_field_and_what_is_wrong_with_it() {
    let good = || listener("http", "TCP", 80, None);
    let second = |name: &str, protocol: &str, port, backend| {
        vec![good(), listener(name, protocol, port, backend)]
    };
    for (given, words) in [
        (vec![], &["spec.listeners:", "at least one"][..]),
        (vec![listener("a", "TCP", 0, None)], &["spec.listeners[0].port: 0 must be 1 to 65535"]),
        (vec![listener("a", "TCP", -1, None)], &["spec.listeners[0].port: -1 "]),
        (second("a", "TCP", 65536, None), &["spec.listeners[1].port: 65536 "]),
        (second("a", "TCP", 81, Some(-8)), &["spec.listeners[1].backendPort: -8 "]),
        (second("a", "TCP", 81, Some(70_000)), &["spec.listeners[1].backendPort: 70000 "]),
        (second("a", "SCTP", 81, None), &["spec.listeners[1].protocol: \"SCTP\"", "TCP or UDP"]),
        (second("a", "tcp", 81, None), &["spec.listeners[1].protocol: \"tcp\""]),
        (second("a", "", 81, None), &["spec.listeners[1].protocol: \"\""]),
        (second("", "TCP", 81, None), &["spec.listeners[1].name: \"\"", "only a single listener"]),
        (second("Web", "TCP", 81, None), &["spec.listeners[1].name: \"Web\""]),
        (second("a_b", "TCP", 81, None), &["spec.listeners[1].name: \"a_b\""]),
        (second("-a", "TCP", 81, None), &["spec.listeners[1].name: \"-a\""]),
        (second("a-", "TCP", 81, None), &["spec.listeners[1].name: \"a-\""]),
        (second("é", "TCP", 81, None), &["spec.listeners[1].name: \"é\""]),
        (second(&"x".repeat(64), "TCP", 81, None), &["spec.listeners[1].name: \"xxx", "63"]),
        (
            second("http", "TCP", 81, None),
            &["spec.listeners[1].name: \"http\"", "spec.listeners[0]"],
        ),
        (second("a", "TCP", 80, None), &["spec.listeners[1].port: TCP 80", "spec.listeners[0]"]),
    ] {
        let fault = listeners(&spec(given.clone())).unwrap_err();
        assert!(fault.starts_with(words[0]), "{given:?}: {fault}");
        assert!(words.iter().all(|word| fault.contains(word)), "{given:?}: {fault}");
    }
}

#[test]
fn a_name_that_no_service_can_have_is_reported() {
    for good in ["a", "web", "web-1", &"x".repeat(63)] {
        assert_eq!(name_fault(good), None, "{good}");
    }
    for bad in ["", "1web", "-web", "web-", "web.apps", "Web", &"x".repeat(64)] {
        let fault = name_fault(bad).unwrap();
        assert!(
            fault.starts_with("metadata.name: ") && fault.contains(&format!("{bad:?}")),
            "{fault}"
        );
    }
}

#[test]
fn ports_of_endpoints_are_the_backends_and_sorted() {
    let spec = spec(vec![listener("z", "TCP", 1, Some(90)), listener("a", "UDP", 2, Some(91))]);
    let port = |name: &str, protocol: &str, port| EndpointPort {
        name: name.into(),
        protocol: protocol.into(),
        port,
    };
    let expected = [port("a", "UDP", 91), port("z", "TCP", 90)];
    assert_eq!(ports(&listeners(&spec).unwrap()), expected);
}

#[test]
fn only_a_vm_load_balancer_with_a_selector_selects() {
    let some = VmSelector::from([("app".to_owned(), vec!["web".to_owned()])]);
    for (workload, given, expected) in [
        (None, Some(some.clone()), true),
        (Some(WorkloadType::Vm), Some(some.clone()), true),
        (Some(WorkloadType::Cluster), Some(some.clone()), false),
        (None, Some(VmSelector::new()), false),
        (None, Some(VmSelector::from([("app".to_owned(), vec!["x".to_owned(); 65])])), false),
        (None, None, false),
    ] {
        let mut lb = LoadBalancer::default();
        lb.spec.workload_type = workload;
        lb.spec.backend_server_selector = given;
        assert_eq!(selector(&lb), expected.then_some(&some), "{lb:?}");
        assert_eq!(is_vm(&lb), workload != Some(WorkloadType::Cluster));
    }
}

/// `backendServers` of v1alpha1 could contain addresses, and some users still write them.
#[test]
fn an_address_for_a_name_is_found() {
    let spec = |names: &[&str]| LoadBalancerSpec {
        backend_server_selector: Some(
            [(LABEL_VM_NAME.to_owned(), names.iter().copied().map(str::to_owned).collect())].into(),
        ),
        ..LoadBalancerSpec::default()
    };
    assert_eq!(address_for_name(&spec(&["web", "10.0.0.5"])), Some("10.0.0.5"));
    assert_eq!(address_for_name(&spec(&["fd00::5"])), Some("fd00::5"));
    assert_eq!(address_for_name(&spec(&["web", "10", "a.b"])), None);
    assert_eq!(address_for_name(&LoadBalancerSpec::default()), None);

    let hint =
        "the selector names the address 10.0.0.5, which selects no VM: use VM names or labels";
    assert_eq!(selector_hint(&spec(&["10.0.0.5"])).as_deref(), Some(hint));
    assert_eq!(selector_hint(&spec(&["web"])), None);
}
