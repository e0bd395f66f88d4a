//! Counts of backends, and the condition `Ready` that follows from them and from the Service.

use super::super::endpoint_slices;
use super::*;

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
        for service in [ours(), silent(ServiceState::Ours)] {
            let (status, found, message) = ready(&report(service, list), "10.0.0.100");
            assert_eq!((status, found), (ConditionStatus::False, reason), "{list:?}");
            assert!(message.starts_with(beginning), "{message}");
            assert!(reason::is_ours(found));
        }
    }
}

#[test]
fn a_hint_about_the_selector_is_reported_where_no_backend_runs() {
    let hint = "the selector names the address 10.0.0.5, which selects no VM";
    let found = |list: &[VmBackend]| {
        let report = ServingStatus { selector_hint: Some(hint.to_owned()), ..report(ours(), list) };
        ready(&report, "10.0.0.100").2
    };
    assert_eq!(found(&[]), format!("no running backend servers: {hint}"));
    assert_eq!(found(&[vm("a", true, false)]), "announced at 10.0.0.100");
}

#[test]
fn a_setting_of_the_service_that_does_not_fit_is_reported() {
    let found = |found: Observed, list: &[VmBackend], misfit: SettingMisfit, last: Option<&str>| {
        let misplacement = last.map(str::to_owned);
        let misfit = Some(misfit);
        let (status, reason, message) =
            ready(&ServingStatus { misplacement, misfit, ..report(found, list) }, "10.0.0.100");
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
            (ServiceState::Waiting(None), vec!["10.0.0.100".into()]),
            Some(none),
            true,
            no,
            "ServiceDeleting",
            "the Service is being deleted",
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
fn the_finalizer_that_delays_the_end_of_a_service_is_named() {
    let waits = silent(ServiceState::Waiting(Some("example.com/hold".to_owned())));
    let (status, found, message) = ready(&report(waits, &[vm("a", true, false)]), "10.0.0.100");
    assert_eq!((status, found), (ConditionStatus::False, "ServiceDeleting"));
    assert!(message.contains("its finalizer example.com/hold delays that"), "{message}");
    assert!(reason::is_ours(found));
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
    for service in
        [ServiceState::Ours, ServiceState::Faulty(String::new()), ServiceState::Waiting(None)]
    {
        assert_eq!(report((service, ingress()), &[]).announced(), Some("10.0.0.100"));
    }
    assert_eq!(report(silent(ServiceState::Ours), &[]).announced(), None);
}
