//! Tests of the status of a vm LoadBalancer whose Service exists.

use super::*;
use crate::vm_backends::endpoint_slices;
use crate::vm_backends::endpoints::{AddressFamily, VmBackend, VmEndpoint};
use crate::vm_backends::readiness::ServiceState;
use crate::vm_backends::service::StoredService;
use api::EndpointCounts;

fn backend(n: u8, serving: bool, terminating: bool) -> VmBackend {
    let endpoint = VmEndpoint {
        address: [10, 0, 0, n].into(),
        name: format!("vm-{n}").into(),
        uid: format!("uid-{n}").into(),
        serving,
        terminating,
        ..endpoint_slices::sink_endpoint("web", AddressFamily::V4, None)
    };
    VmBackend::Endpoint { endpoint, last_known: false }
}

fn ours(ingress: &[&str]) -> (ServiceState, Vec<String>) {
    (ServiceState::Ours, ingress.iter().map(|ip| (*ip).to_owned()).collect())
}

fn report(
    (service, ingress): (ServiceState, Vec<String>),
    backends: &[VmBackend],
) -> ServingStatus {
    let backends = Some(BackendCounts::new(backends.iter().cloned(), |_| true));
    ServingStatus { backends, ..ServingStatus::new(service, ingress) }
}

fn reported(lb: &LoadBalancer, outcome: &AddressOutcome, report: &ServingStatus) -> LoadBalancer {
    let mut value = serde_json::to_value(lb).unwrap();
    if let Some(patch) = patch(lb, outcome, Some(report), NOW) {
        json_patch::merge(&mut value, &patch);
    }
    let lb = serde_json::from_value(value).unwrap();
    assert_eq!(patch(&lb, outcome, Some(report), NOW), None, "written once");
    lb
}

/// A vm LoadBalancer with a claim, before its Service exists.
fn holding() -> LoadBalancer {
    patched(&lb(WorkloadType::Vm), &holds("a", 5, None))
}

#[test]
fn address_backends_counts_and_condition_are_one_patch() {
    let lb = holding();
    let report = report(
        ours(&["10.0.0.5"]),
        &[backend(8, false, false), backend(7, true, false), backend(9, true, true)],
    );
    let expected = json!({
        "metadata": {"resourceVersion": "7"},
        "status": {
            "address": "10.0.0.5",
            "backendServers": ["10.0.0.7", "10.0.0.8"],
            "endpoints": {"total": 2, "ready": 1},
            "conditions": [{"type": "Ready", "status": "True", "reason": "Announced",
                "message": "announced at 10.0.0.5",
                "lastUpdateTime": NOW, "lastTransitionTime": NOW}],
        },
    });
    assert_eq!(patch(&lb, &holds("a", 5, None), Some(&report), NOW), Some(expected));
    reported(&lb, &holds("a", 5, None), &report);
}

/// The API server drops `status.endpoints` if it has Harvester's CRD. A patch with only this field
/// then has no effect, and each reconcile would write it.
#[test]
fn a_patch_that_adds_only_counts_is_found() {
    let outcome = holds("a", 5, None);
    let report_of = |backends: &[VmBackend]| report(ours(&["10.0.0.5"]), backends);
    let one = report_of(&[backend(7, true, false)]);
    let lb = holding();
    let first = patch(&lb, &outcome, Some(&one), NOW).unwrap();
    assert!(!adds_only_counts(&lb, &first), "{first}");

    let stored = reported(&lb, &outcome, &one);
    let mut dropped = stored.clone();
    status(&mut dropped).endpoints = None;
    let again = patch(&dropped, &outcome, Some(&one), NOW).unwrap();
    assert!(adds_only_counts(&dropped, &again), "{again}");
    dropped.metadata.finalizers = None;
    let with_finalizer = patch(&dropped, &outcome, Some(&one), NOW).unwrap();
    assert!(!adds_only_counts(&dropped, &with_finalizer), "{with_finalizer}");

    // The API server stores the field, so a change of the field is written.
    let mut stored = stored;
    status(&mut stored).endpoints = Some(EndpointCounts { total: 9, ready: 9 });
    let changed = patch(&stored, &outcome, Some(&one), NOW).unwrap();
    assert!(!adds_only_counts(&stored, &changed), "{changed}");
}

/// A write of only the counts may be delayed. A write of an address, of another condition or of a
/// finalizer may not be delayed.
#[test]
fn a_patch_of_only_the_counts_is_found() {
    let outcome = holds("a", 5, None);
    let report_of = |backends: &[VmBackend]| report(ours(&["10.0.0.5"]), backends);
    let has_only_counts = |lb: &LoadBalancer, report: &ServingStatus| {
        changes_only_counts(&patch(lb, &outcome, Some(report), NOW).unwrap())
    };
    let two = report_of(&[backend(7, true, false), backend(8, true, false)]);
    assert!(!has_only_counts(&holding(), &two), "the first condition");
    let lb = reported(&holding(), &outcome, &two);
    assert!(has_only_counts(&lb, &report_of(&[backend(7, true, false), backend(8, false, false)])));
    assert!(has_only_counts(&lb, &report_of(&[backend(7, true, false)])), "one address less");
    assert!(!has_only_counts(&lb, &report_of(&[backend(7, false, false)])), "none is ready");
    let moved = report(ours(&["10.0.0.6"]), &[backend(7, true, false)]);
    assert!(!has_only_counts(&lb, &moved), "another address");
    let mut bare = lb;
    bare.metadata.finalizers = None;
    assert!(!has_only_counts(&bare, &report_of(&[backend(7, true, false)])), "a finalizer");
}

/// The status has the address at which the Service is announced, and no address while the Service
/// is not announced.
#[test]
fn the_address_follows_the_announcement() {
    let outcome = holds("a", 5, None);
    let one = [backend(7, true, false)];
    let mut lb = holding();
    for (service, expected) in [
        (ours(&[]), None),
        (ours(&["10.0.0.5"]), Some("10.0.0.5")),
        // kube-vip has not moved to the requested address yet.
        (ours(&["10.0.0.4", "10.0.0.5"]), Some("10.0.0.4")),
        ((ServiceState::Waiting(None), vec![]), None),
        (ours(&["10.0.0.5"]), Some("10.0.0.5")),
        ((ServiceState::Foreign("whose".into()), vec![]), None),
        (ours(&["fd00::5"]), Some("fd00::5")),
        ((ServiceState::Faulty("listeners".into()), vec!["10.0.0.5".into()]), Some("10.0.0.5")),
    ] {
        lb = reported(&lb, &outcome, &report(service.clone(), &one));
        assert_eq!(address(&lb), expected, "{service:?}");
        let allocated = lb.status.as_ref().unwrap().allocated_address.clone().unwrap();
        assert_eq!(allocated.ip.as_deref(), Some("10.0.0.5"), "the claim is another matter");
    }
    // Go clients write an empty address for no address.
    status(&mut lb).address = Some(String::new());
    let report = report(ours(&[]), &one);
    let patch = patch(&lb, &outcome, Some(&report), NOW).unwrap();
    assert!(patch["status"].get("address").is_none(), "{patch}");
}

#[test]
fn a_leased_address_is_published_and_the_finalizer_waits_for_the_service() {
    let new = lb(WorkloadType::Vm);
    assert!(!may_serve(&new));
    let lb = patched(&new, &AddressOutcome::Guest(None));
    assert_eq!(lb.metadata.finalizers, Some(vec![LB_FINALIZER.to_owned()]));
    assert!(may_serve(&lb));
    let lb = reported(
        &lb,
        &AddressOutcome::Guest(None),
        &report(ours(&["10.9.0.1"]), &[backend(7, true, false)]),
    );
    assert_eq!(address(&lb), Some("10.9.0.1"));
    assert_eq!(condition(&lb).1, "Announced");
}

#[test]
fn a_service_waits_for_claim_and_finalizer() {
    let whole = holding();
    assert!(may_serve(&whole));
    let mut open = whole.clone();
    open.metadata.finalizers = Some(vec!["others/one".into()]);
    assert!(!may_serve(&open), "its end would not wait for the Service's");
    let mut unclaimed = whole;
    status(&mut unclaimed).allocated_address = None;
    assert!(!may_serve(&unclaimed));
}

/// A new leader may not have listed the Services yet.
#[test]
fn the_address_in_the_status_shows_that_the_former_service_may_be_there() {
    let lb = reported(&holding(), &holds("a", 5, None), &report(ours(&["10.0.0.5"]), &[]));
    assert!(may_have_service(&lb));
    let service = ServiceState::Waiting(Some("example.com/hold".into()));
    let held = reported(&lb, &waits(), &report((service, vec!["10.0.0.5".into()]), &[]));
    assert!(may_have_service(&held) && !may_serve(&held));
    assert!(!may_have_service(&patched(&held, &waits())), "its Service is gone");
    assert!(!may_have_service(&patched(&self::lb(WorkloadType::Vm), &waits())), "new");
}

/// Another client may have written an address that the LoadBalancer never had.
#[test]
fn a_lost_claim_leaves_no_address() {
    let mut lb = reported(&holding(), &holds("a", 5, None), &report(ours(&["10.0.0.5"]), &[]));
    for written in ["10.0.0.5", "10.0.0.6"] {
        status(&mut lb).address = Some(written.into());
        let waiting = patched(&lb, &waits());
        assert_eq!(address(&waiting), None, "{written}");
        assert_eq!(patch(&waiting, &waits(), None, NOW), None, "{written}: written once");
    }
}

/// The number of VMs changes, but unchanged values are not written again.
#[test]
fn a_patch_holds_only_what_changed() {
    let outcome = holds("a", 5, None);
    let before = [backend(7, true, false), backend(8, true, false)];
    let lb = reported(&holding(), &outcome, &report(ours(&["10.0.0.5"]), &before));
    let fields = |backends: &[VmBackend]| {
        let patch = patch(&lb, &outcome, Some(&report(ours(&["10.0.0.5"]), backends)), NOW)?;
        let status = patch["status"].as_object().unwrap().keys();
        Some(status.map(String::as_str).map(str::to_owned).collect::<Vec<_>>())
    };
    let expected = |names: &[&str]| Some(names.iter().map(|n| (*n).to_owned()).collect());
    let [one, two] = before;
    assert_eq!(fields(&[two.clone(), one.clone()]), None, "found in another order");
    assert_eq!(fields(&[one.clone(), backend(8, false, false)]), expected(&["endpoints"]));
    assert_eq!(fields(&[one.clone(), backend(9, true, false)]), expected(&["backendServers"]));
    let both = ["backendServers", "endpoints"];
    assert_eq!(fields(std::slice::from_ref(&one)), expected(&both));
    assert_eq!(fields(&[one, two, backend(9, true, false)]), expected(&both));
    assert_eq!(fields(&[]), expected(&["backendServers", "conditions", "endpoints"]));
}

#[test]
fn an_unknown_service_leaves_the_status_as_it_was() {
    let outcome = holds("a", 5, None);
    let seen = report(ours(&["10.0.0.5"]), &[backend(7, true, false)]);
    let lb = reported(&holding(), &outcome, &seen);
    let blind = ServingStatus { backends: None, ..seen };
    let after = reported(&lb, &outcome, &blind);
    let (status, reason, _) = condition(&after);
    assert_eq!((status, reason.as_str()), (ConditionStatus::False, "VMsUnknown"));
    let status = after.status.unwrap();
    assert_eq!(status.address.as_deref(), Some("10.0.0.5"));
    assert_eq!(status.backend_servers, Some(vec!["10.0.0.7".to_owned()]));
    assert_eq!(status.endpoints, Some(EndpointCounts { total: 1, ready: 1 }));
}

/// The condition reports first that no VM answers. In any case, it reports why the old pool's
/// address is kept. While a VM answers, it reports why the host does not lease the address.
#[test]
fn the_reason_for_the_address_is_reported_whether_or_not_a_vm_answers() {
    let wait = NoAddressReason::Full { pools: vec!["b".into()] };
    let keeps = format!("the LoadBalancer keeps 10.0.0.5: {}", wait.message());
    let kept = holds("a", 5, Some(wait));
    let guest = AddressOutcome::Guest(Some("because".to_owned()));
    for (outcome, why, backends, reason, beginning) in [
        (&kept, &*keeps, &[backend(7, true, false)][..], "NoAvailableIP", "the LoadBalancer keeps"),
        (&kept, &keeps, &[backend(7, false, false)], "BackendsNotReady", "running backend servers"),
        (&kept, &keeps, &[], "NoRunningBackends", "no running backend servers; "),
        (&guest, "because", &[backend(7, true, false)], "Announced", "announced at 10.0.0.5; "),
    ] {
        let lb = reported(&holding(), outcome, &report(ours(&["10.0.0.5"]), backends));
        let (_, found, message) = condition(&lb);
        assert_eq!(found, reason);
        assert!(message.starts_with(beginning) && message.ends_with(why), "{message}");
    }
    // The Service does not exist yet.
    let (_, reason, message) = condition(&patched(&holding(), &kept));
    assert!(reason == "NotAnnounced" && message.ends_with(&keeps), "{reason}: {message}");
}

/// The old claim stays published while the Service has not moved.
#[test]
fn a_change_of_pools_is_published_when_the_service_has_moved() {
    let old = Claim { pool: "a".into(), ip: [10, 0, 0, 5].into() };
    let lb = reported(&holding(), &holds("a", 5, None), &report(ours(&["10.0.0.5"]), &[]));
    let new = holds("b", 6, None);
    assert_eq!(moves_from(&lb, &new), Some(old.clone()));
    for outcome in [holds("a", 5, None), waits(), AddressOutcome::Guest(None)] {
        assert_eq!(moves_from(&lb, &outcome), None, "{outcome:?}");
    }
    let stays = keep_old_address(old);
    let staying = reported(&lb, &stays, &report(ours(&["10.0.0.5"]), &[]));
    assert_eq!(staying.status, lb.status, "mask and gateway too");
    // The Service of the new claim exists and is not announced yet. The status keeps the old
    // address, which may still be announced.
    let moving = ServingStatus {
        moving_from: Some([10, 0, 0, 5].into()),
        ..report(ours(&[]), &[backend(7, true, false)])
    };
    let moving = reported(&lb, &stays, &moving);
    assert_eq!(address(&moving), Some("10.0.0.5"));
    let (_, reason, message) = condition(&moving);
    let expected = "the Service asks for another address than 10.0.0.5; nothing announces it yet";
    assert!(reason == "NotAnnounced" && message.starts_with(expected), "{reason}: {message}");
    let moved = reported(&moving, &new, &report(ours(&["10.1.0.6"]), &[]));
    assert_eq!(address(&moved), Some("10.1.0.6"));
    assert_eq!(moves_from(&moved, &new), None);
}

/// An announcer may still announce the old address for an earlier Service, whatever the status says.
#[test]
fn the_old_address_may_be_in_use_until_the_service_is_announced_at_another() {
    let own = |asked: &str, ingress: &[&str]| StoredService {
        load_balancer_ip: asked.to_owned(),
        ingress: ingress.iter().map(|ip| (*ip).to_owned()).collect(),
        ..StoredService::default()
    };
    for (own, expected) in [
        (None, false),
        (Some(own("10.0.0.5", &[])), true),
        (Some(own("10.1.0.6", &[])), true),
        (Some(own("10.1.0.6", &["10.0.0.5"])), true),
        (Some(own("10.1.0.6", &["10.1.0.6"])), false),
    ] {
        assert_eq!(may_lead_to([10, 0, 0, 5].into(), own.as_ref()), expected, "{own:?}");
    }
}

/// `spec.ipam` was changed to `dhcp`, and another program's finalizer holds the Service.
#[test]
fn a_claim_stays_published_until_the_service_is_gone() {
    let lb = reported(&holding(), &holds("a", 5, None), &report(ours(&["10.0.0.5"]), &[]));
    let stays = keep_while_served(&lb).unwrap();
    let service = ServiceState::Waiting(Some("example.com/hold".into()));
    let held = reported(&lb, &stays, &report((service, vec!["10.0.0.5".into()]), &[]));
    assert_eq!(facts::published(&held), facts::published(&lb));
    assert_eq!(address(&held), Some("10.0.0.5"));
    let (status, reason, message) = condition(&held);
    assert_eq!((status, reason.as_str()), (ConditionStatus::False, "ServiceDeleting"));
    assert!(message.contains("example.com/hold"), "{message}");

    let waiting = patched(&lb, &waits());
    assert_eq!(keep_while_served(&waiting), None, "no claim is published");
    let mut guest = lb;
    guest.spec.workload_type = Some(WorkloadType::Cluster);
    assert_eq!(keep_while_served(&guest), None, "a guest has no Service");
}
