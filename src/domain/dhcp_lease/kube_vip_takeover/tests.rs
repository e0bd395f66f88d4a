//! Order of the steps by which the host takes over a lease of kube-vip.

use chrono::{DateTime, FixedOffset};
use serde_json::json;

use super::super::step;
use super::*;
use crate::vm_backends::service::StoredService;
use api::{
    ANNOTATION_DHCP, AllocatedAddress, Ipam, KUBE_VIP_HWADDR, KUBE_VIP_REQUESTED_IP,
    LoadBalancerStatus, READY, WorkloadType,
};

const NETWORK: &str = "default/vlan7";
const MAC: &str = "00:00:6c:0d:5a:be";

fn at(seconds: i64) -> DateTime<FixedOffset> {
    DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap().fixed_offset()
}

/// VM load balancer whose address kube-vip leases. Its annotation asks the host to take the lease
/// over.
fn lb() -> LoadBalancer {
    let mut lb = LoadBalancer::default();
    lb.metadata.resource_version = Some("7".into());
    lb.metadata.annotations = Some([(ANNOTATION_DHCP.to_owned(), "host".to_owned())].into());
    lb.spec.ipam = Some(Ipam::Dhcp);
    lb.spec.workload_type = Some(WorkloadType::Vm);
    let ip = Some("0.0.0.0".to_owned());
    let allocated = AllocatedAddress { ip, ..AllocatedAddress::default() };
    lb.status =
        Some(LoadBalancerStatus { allocated_address: Some(allocated), ..Default::default() });
    lb
}

fn asks(mut lb: LoadBalancer, annotations: &[(&str, &str)]) -> LoadBalancer {
    let all = annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    lb.metadata.annotations.as_mut().unwrap().extend(all);
    lb
}

fn service(annotations: &[(&str, &str)]) -> StoredService {
    let all = annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    StoredService { annotations: all.collect(), ..StoredService::default() }
}

/// Service for which kube-vip leases an address.
fn leasing() -> StoredService {
    service(&[(KUBE_VIP_HWADDR, MAC), (KUBE_VIP_REQUESTED_IP, "10.7.0.9")])
}

fn seen<'a>(lb: &'a LoadBalancer, service: Option<&'a StoredService>) -> LeasingFacts<'a> {
    let (network, record, declared, fault) = (NETWORK, None, true, None);
    let (serving, early) = (true, false);
    LeasingFacts { lb, network, record, declared, fault, serving, service, early, now: at(0) }
}

#[test]
fn it_is_kube_vips_client_before_kube_vip_ends() {
    let (lb, kube_vips) = (lb(), leasing());
    let LeasingStep::Adopt(patch) = step(&seen(&lb, Some(&kube_vips))) else {
        panic!("nothing is noted")
    };
    assert_eq!(
        patch,
        json!({"metadata": {
            "resourceVersion": "7",
            "annotations": {KUBE_VIP_HWADDR: MAC, KUBE_VIP_REQUESTED_IP: "10.7.0.9"},
        }})
    );
    // The LoadBalancer keeps an annotation that the user has set.
    let own = asks(lb.clone(), &[(KUBE_VIP_HWADDR, "02:00:00:00:00:01")]);
    let LeasingStep::Adopt(patch) = step(&seen(&own, Some(&kube_vips))) else {
        panic!("no address")
    };
    assert_eq!(patch["metadata"]["annotations"], json!({KUBE_VIP_REQUESTED_IP: "10.7.0.9"}));
    // The Service is deleted after the identity is stored, or if there is no identity to store.
    let noted = asks(lb.clone(), &[(KUBE_VIP_HWADDR, MAC), (KUBE_VIP_REQUESTED_IP, "10.7.0.9")]);
    let before_a_lease = service(&[(KUBE_VIP_HWADDR, MAC), (KUBE_VIP_REQUESTED_IP, "")]);
    let with_mac = asks(lb.clone(), &[(KUBE_VIP_HWADDR, MAC)]);
    for (lb, service) in [
        (&noted, Some(&kube_vips)),
        (&noted, None),
        (&with_mac, Some(&before_a_lease)),
        (&lb, Some(&service(&[]))),
        (&lb, None),
    ] {
        let step = step(&seen(lb, service));
        assert!(matches!(step, LeasingStep::Wait(NoLease::TakingOver { .. })), "{step:?}");
    }
}

#[test]
fn nothing_is_taken_over_unasked_or_where_nothing_would_lease() {
    let kube_vips = leasing();
    let lb = lb();
    let mut guests = lb.clone();
    guests.spec.workload_type = Some(WorkloadType::Cluster);
    let mut unasked = lb.clone();
    unasked.metadata.annotations = None;
    for lb in [&guests, &unasked] {
        assert_eq!(step(&seen(lb, Some(&kube_vips))), LeasingStep::Guest(None));
    }
    let away = LeasingFacts { serving: false, ..seen(&lb, Some(&kube_vips)) };
    let undeclared = LeasingFacts { declared: false, ..seen(&lb, Some(&kube_vips)) };
    let faulty = LeasingFacts { fault: Some("fault"), ..seen(&lb, Some(&kube_vips)) };
    for (seen, why) in [(away, "no agent"), (undeclared, "not declared"), (faulty, "fault")] {
        let step = step(&seen);
        assert!(
            matches!(&step, LeasingStep::Guest(Some(said)) if said.contains(NETWORK)),
            "{why}: {step:?}"
        );
    }
    // kube-vip goes on with a lease that the host cannot take over.
    let machines = service(&[(KUBE_VIP_HWADDR, "3c:ec:ef:01:02:03")]);
    let LeasingStep::Guest(Some(why)) = step(&seen(&lb, Some(&machines))) else {
        panic!("taken over")
    };
    assert!(why.contains(KUBE_VIP_HWADDR) && why.contains("another machine's"), "{why}");
}

/// kube-vip gives the address back after its Service is deleted. If the host leased the address
/// before that, the server would consider the address free after kube-vip's DHCPRELEASE.
#[test]
fn the_host_asks_after_kube_vip_has_given_back() {
    let kube_vips = leasing();
    let mut lb = asks(lb(), &[(KUBE_VIP_HWADDR, MAC), (KUBE_VIP_REQUESTED_IP, "10.7.0.9")]);
    let status = lb.status.as_mut().unwrap();
    status.allocated_address = None;
    status.conditions = vec![Condition {
        type_: READY.to_owned(),
        reason: Some(TAKEOVER.to_owned()),
        last_update_time: Some(at(-3).to_rfc3339()),
        ..Condition::default()
    }];
    assert_eq!(step(&seen(&lb, None)), LeasingStep::Create);
    let waits = |seen: &LeasingFacts<'_>| {
        matches!(step(seen), LeasingStep::Wait(NoLease::TakingOver { .. }))
    };
    assert!(waits(&seen(&lb, Some(&kube_vips))), "its Service is there");
    assert!(waits(&LeasingFacts { now: at(-1), ..seen(&lb, None) }), "it had no time");
    // Without the condition of a takeover, no takeover has begun, and the host leases at once.
    lb.status.as_mut().unwrap().conditions.clear();
    assert_eq!(step(&seen(&lb, None)), LeasingStep::Create);
}
