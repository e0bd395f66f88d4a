//! Listeners of a spec, and the status with the VMs behind it.

use super::super::endpoint_slices;
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
        let fault = listeners(&spec(given.clone())).unwrap_err().to_string();
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

fn endpoint(name: &str, serving: bool, terminating: bool) -> VmEndpoint {
    VmEndpoint {
        name: name.into(),
        uid: format!("uid-{name}").into(),
        serving,
        terminating,
        ..endpoint_slices::sink_endpoint(name, super::super::endpoints::AddressFamily::V4, None)
    }
}

fn vm(name: &str, serving: bool, terminating: bool) -> VmBackend {
    VmBackend::Endpoint { endpoint: endpoint(name, serving, terminating), last_known: false }
}

fn last_known(name: &str) -> VmBackend {
    VmBackend::Endpoint { endpoint: endpoint(name, true, false), last_known: true }
}

/// Groups the backends in `list` by their states. VMs whose names begin with "sick" fail their
/// health check.
fn backends(list: &[VmBackend]) -> BackendCounts {
    BackendCounts::new(list.iter().cloned(), |endpoint| !endpoint.name.starts_with("sick"))
}

#[test]
fn backends_are_counted_by_what_can_answer() {
    let found = backends(&[
        vm("z", true, false),
        VmBackend::NotRunning,
        VmBackend::NoAddress,
        vm("sick", true, false),
        // These two VMs fail their health check, but do not count as unhealthy. The first VM is not
        // ready anyway, and the second VM terminates.
        vm("sick-unready", false, false),
        vm("sick-leaving", true, true),
        vm("draining", true, true),
        last_known("b"),
        last_known("a"),
    ]);
    let names: Vec<&str> = found.endpoints.iter().map(|endpoint| &*endpoint.name).collect();
    let sorted = ["a", "b", "draining", "sick", "sick-leaving", "sick-unready", "z"];
    assert_eq!(names, sorted, "whatever the order of events");
    let serving: Vec<&str> =
        found.endpoints.iter().filter(|e| e.serving).map(|e| &*e.name).collect();
    assert_eq!(serving, ["a", "b", "draining", "z"]);
    assert_eq!((found.without_address, found.unhealthy), (1, 1));
    assert_eq!(found.last_known, ["a".into(), "b".into()]);
    assert_eq!((found.ready(), found.total(), found.addresses().count()), (3, 6, 5));
    assert_eq!(backends(&[]), BackendCounts::default());
}

/// State of a Service, and the addresses at which it is announced.
type Observed = (ServiceState, Vec<String>);

fn report((service, ingress): Observed, list: &[VmBackend]) -> ServingStatus {
    ServingStatus { backends: Some(backends(list)), ..ServingStatus::new(service, ingress) }
}

fn ours() -> Observed {
    (ServiceState::Ours, vec!["10.0.0.100".into()])
}

fn silent(service: ServiceState) -> Observed {
    (service, Vec::new())
}

/// UIs and scripts match the messages of the condition. The first three messages are those of
/// Harvester's Go controller.
#[test]
fn a_service_without_backends_gives_a_known_reason() {
    let not_running = [VmBackend::NotRunning, VmBackend::NotRunning];
    let no_address = [VmBackend::NoAddress, VmBackend::NotRunning];
    let unhealthy = [vm("sick", true, false), VmBackend::NoAddress];
    let not_ready = [vm("a", false, false), VmBackend::NoAddress];
    let both = [vm("a", false, false), vm("sick", true, false)];
    for (list, reason, beginning) in [
        (&[][..], "NoRunningBackends", "no running backend servers"),
        (&not_running, "NoRunningBackends", "no running backend servers"),
        (&[vm("a", true, true)], "NoRunningBackends", "no running backend servers"),
        (&no_address, "NoBackendAddress", "running backend servers have no IP"),
        (&unhealthy, "BackendsUnhealthy", "running backend servers are not probed as healthy"),
        (&both, "BackendsUnhealthy", "running backend servers are not probed as healthy"),
        (&not_ready, "BackendsNotReady", "running backend servers are not ready"),
    ] {
        for service in [ours(), silent(ServiceState::Ours), silent(ServiceState::Waiting)] {
            let (status, found, message) = ready(&report(service, list), "10.0.0.100");
            assert_eq!((status, found), (ConditionStatus::False, reason), "{list:?}");
            assert!(message.starts_with(beginning), "{message}");
            assert!(reason::is_ours(found));
        }
    }
}

/// `backendServers` of v1alpha1 could contain addresses, and some users still write them.
#[test]
fn an_address_for_a_name_is_reported_where_no_backend_runs() {
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

    let found = |list: &[VmBackend]| {
        let report = ServingStatus {
            selector_hint: selector_hint(&spec(&["10.0.0.5"])),
            ..report(ours(), list)
        };
        ready(&report, "10.0.0.100").2
    };
    let without_backends = "no running backend servers: the selector names the address 10.0.0.5, which selects no VM: use VM names or labels";
    assert_eq!(found(&[]), without_backends);
    assert_eq!(found(&[vm("a", true, false)]), "announced at 10.0.0.100");
}

#[test]
fn a_setting_of_the_service_that_does_not_fit_is_reported() {
    let found = |found: Observed, list: &[VmBackend], misfit: SettingMisfit, last: Option<&str>| {
        let default_interface = last.map(str::to_owned);
        let misfit = Some(misfit);
        let (status, reason, message) = ready(
            &ServingStatus { default_interface, misfit, ..report(found, list) },
            "10.0.0.100",
        );
        assert!(reason::is_ours(reason));
        (status, reason, message)
    };
    let one = [vm("a", true, false)];
    let local = || SettingMisfit::NoLocalBackend("local".into());
    let ranges = || SettingMisfit::SourceRanges("ranges".into());
    let (yes, no) = (ConditionStatus::True, ConditionStatus::False);
    // The reason is the same whether or not the Service's status still contains the address.
    for service in [ours(), silent(ServiceState::Ours)] {
        assert_eq!(found(service, &one, local(), None), (no, "NoLocalBackend", "local".into()));
    }
    assert_eq!(found(ours(), &[], local(), None).1, "NoRunningBackends");
    let bypassed = (yes, "SourceRangesBypassed", "ranges".to_owned());
    assert_eq!(found(ours(), &one, ranges(), Some("no link")), bypassed);
    assert_eq!(found(silent(ServiceState::Ours), &one, ranges(), None).1, "NotAnnounced");
    assert_eq!(found(ours(), &[last_known("a")], ranges(), None).1, "LastKnownAddress");
}

/// The condition of a LoadBalancer with several faults reports the fault that must be corrected
/// first.
#[test]
fn the_first_obstacle_is_the_one_that_is_reported() {
    let none: &[VmBackend] = &[];
    let one: &[VmBackend] = &[vm("a", true, false)];
    let mute: &[VmBackend] = &[last_known("a"), vm("b", true, false), vm("c", false, false)];
    let (yes, no) = (ConditionStatus::True, ConditionStatus::False);
    let waiting = || silent(ServiceState::Ours);
    for (service, list, unchecked, status, reason, beginning) in [
        (
            silent(ServiceState::Faulty("listeners".into())),
            None,
            true,
            no,
            "InvalidSpec",
            "listeners",
        ),
        (
            silent(ServiceState::Faulty("listeners".into())),
            Some(none),
            true,
            no,
            "InvalidSpec",
            "listeners",
        ),
        (
            silent(ServiceState::Foreign("whose".into())),
            Some(none),
            true,
            no,
            "ServiceConflict",
            "whose",
        ),
        (silent(ServiceState::Refused("why".into())), Some(one), true, no, "ServiceRefused", "why"),
        (ours(), None, true, no, "VMsUnknown", "virtual machines cannot be listed"),
        (ours(), Some(none), true, no, "NoRunningBackends", "no running"),
        (waiting(), Some(one), true, no, "NotAnnounced", "the Service asks for 10.0.0.100;"),
        (
            silent(ServiceState::Waiting),
            Some(one),
            true,
            no,
            "NotAnnounced",
            "the Service asks for 10.0.0.100;",
        ),
        (ours(), Some(mute), true, yes, "InvalidHealthCheck", "health is not checked: port"),
        (ours(), Some(mute), false, yes, "LastKnownAddress", "guest agents report no address"),
        (ours(), Some(one), true, yes, "InvalidHealthCheck", "health is not checked: port"),
        (ours(), Some(one), false, yes, "Announced", "announced at 10.0.0.100"),
    ] {
        let (service, ingress) = service;
        let report = ServingStatus {
            backends: list.map(backends),
            health_fault: unchecked.then(|| "port".to_owned()),
            ..ServingStatus::new(service, ingress)
        };
        let (found_status, found, message) = ready(&report, "10.0.0.100");
        assert_eq!((found_status, found), (status, reason), "{report:?}");
        assert!(message.starts_with(beginning), "{message}");
        assert!(reason::is_ours(found));
    }
}

#[test]
fn a_long_list_of_silent_guests_is_cut_short() {
    for (count, expected) in [
        (1, "vm-0"),
        (5, "vm-0, vm-1, vm-2, vm-3, vm-4"),
        (7, "vm-0, vm-1, vm-2, vm-3, vm-4 and 2 more"),
    ] {
        let list: Vec<VmBackend> = (0..count).map(|n| last_known(&format!("vm-{n}"))).collect();
        let (_, _, message) = ready(&report(ours(), &list), "10.0.0.100");
        let beginning = "guest agents report no address, so the last known one is used: ";
        assert_eq!(message, format!("{beginning}{expected}"));
    }
}

/// The announced address is reported even if the Service cannot be changed now.
#[test]
fn the_published_address_is_the_first_that_is_announced() {
    let ingress = || vec!["10.0.0.100".to_owned(), "fd00::100".to_owned()];
    for service in [ServiceState::Ours, ServiceState::Faulty(String::new()), ServiceState::Waiting]
    {
        assert_eq!(report((service, ingress()), &[]).announced(), Some("10.0.0.100"));
    }
    assert_eq!(report(silent(ServiceState::Ours), &[]).announced(), None);
}
