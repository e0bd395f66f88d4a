//! Choice of the party that leases, life of records, and addresses that are not published.

use super::*;
use api::{
    AllocatedAddress, Condition, DHCPLeaseStatus, Ipam, KUBE_VIP_HWADDR, LB_FINALIZER,
    LoadBalancerStatus,
};

const NETWORK: &str = "default/vlan7";
const NOW: i64 = 1_800_000_000;

fn at(seconds: i64) -> DateTime<FixedOffset> {
    DateTime::from_timestamp(NOW + seconds, 0).unwrap().fixed_offset()
}

fn lb() -> LoadBalancer {
    let mut lb = LoadBalancer::default();
    lb.metadata.name = Some("web".into());
    lb.metadata.namespace = Some("default".into());
    lb.spec.ipam = Some(Ipam::Dhcp);
    lb
}

fn chosen(choice: &str) -> LoadBalancer {
    let mut lb = lb();
    lb.metadata.annotations = Some([(ANNOTATION_DHCP.to_owned(), choice.to_owned())].into());
    lb
}

fn publishing(mut lb: LoadBalancer, ip: &str) -> LoadBalancer {
    let allocated = AllocatedAddress { ip: Some(ip.to_owned()), ..AllocatedAddress::default() };
    lb.status =
        Some(LoadBalancerStatus { allocated_address: Some(allocated), ..Default::default() });
    lb
}

/// Record with a lease of one hour for `address`. `None`: the record has no lease.
fn leased(address: Option<&str>) -> DHCPLease {
    let mut record = record(&lb(), "cluster", NETWORK, ClientIdForm::Duid).unwrap();
    record.status = Some(DHCPLeaseStatus {
        state: Some(address.map_or(LeaseState::Selecting, |_| LeaseState::Bound)),
        address: address.map(str::to_owned),
        prefix_length: Some(24),
        gateway: Some("10.7.0.1".into()),
        expires_at: address.map(|_| at(3600).to_rfc3339()),
        ..DHCPLeaseStatus::default()
    });
    record
}

fn status(record: &mut DHCPLease) -> &mut DHCPLeaseStatus {
    record.status.as_mut().unwrap()
}

/// Facts about a LoadBalancer on a declared network. `serving`: whether the agent is active.
fn seen<'a>(
    lb: &'a LoadBalancer,
    record: Option<&'a DHCPLease>,
    serving: bool,
) -> LeasingFacts<'a> {
    let (network, declared, fault) = (NETWORK, true, None);
    let (service, early, now) = (None, false, at(0));
    LeasingFacts { lb, network, record, declared, fault, serving, service, early, now }
}

fn said(lb: &LoadBalancer, record: Option<&DHCPLease>, serving: bool) -> LeasingStep {
    step(&seen(lb, record, serving))
}

fn undeclared(lb: &LoadBalancer, record: Option<&DHCPLease>, serving: bool) -> LeasingStep {
    step(&LeasingFacts { declared: false, ..seen(lb, record, serving) })
}

fn waits(step: &LeasingStep) -> &'static str {
    let LeasingStep::Wait(why) = step else { panic!("{step:?}") };
    assert!(crate::reason::is_ours(why.reason()));
    why.reason()
}

/// A fault in a network's annotations delays new leases. A LoadBalancer that has an address keeps
/// this address.
#[test]
fn a_network_with_a_fault_is_the_hosts_and_says_what_is_wrong() {
    const FAULT: &str = "metadata.annotations[x]: \"y\" must be z";
    let faulty = |lb: &LoadBalancer, record: Option<&DHCPLease>, serving| {
        step(&LeasingFacts { fault: Some(FAULT), ..seen(lb, record, serving) })
    };
    for serving in [true, false] {
        for choice in ["", "host"] {
            let step = faulty(&chosen(choice), None, serving);
            assert_eq!(waits(&step), "DHCPNetworkInvalid");
            let LeasingStep::Wait(why) = step else { panic!() };
            assert!(why.message().contains(FAULT) && why.message().contains(NETWORK), "{why:?}");
        }
        let held = leased(Some("10.7.0.9"));
        let published = publishing(lb(), "10.7.0.9");
        assert!(matches!(faulty(&published, Some(&held), serving), LeasingStep::Take(_)));
        assert!(matches!(faulty(&chosen("guest"), None, serving), LeasingStep::Guest(Some(_))));
        assert_eq!(faulty(&publishing(lb(), "0.0.0.0"), None, serving), LeasingStep::Guest(None));
    }
    let mut left = leased(Some("10.7.0.9"));
    left.spec.release_after = Some(at(60).to_rfc3339());
    assert_eq!(faulty(&lb(), Some(&left), true), LeasingStep::Keep);
}

/// A LoadBalancer waits for its address while the agent is absent. An active agent does not make
/// its network a declared one.
#[test]
fn a_declared_network_is_the_hosts_whether_its_agent_is_there_or_not() {
    for choice in ["", "host"] {
        assert_eq!(said(&chosen(choice), None, true), LeasingStep::Create, "{choice}");
        assert_eq!(waits(&said(&chosen(choice), None, false)), "NoDHCPAgent", "{choice}");
    }
    for serving in [true, false] {
        let LeasingStep::Guest(Some(why)) = undeclared(&lb(), None, serving) else { panic!() };
        assert!(why.contains(NETWORK) && why.contains(ANNOTATION_DHCP), "{why}");
        let hosts = undeclared(&chosen("host"), None, serving);
        assert_eq!(waits(&hosts), "NoDHCPAgent");
        let LeasingStep::Wait(why) = hosts else { panic!() };
        assert!(why.message().contains(&format!("{ANNOTATION_DHCP}=host")), "{why:?}");
        // If there is a record, the host leases, even on a network that is not declared.
        let record = leased(Some("10.7.0.9"));
        assert!(matches!(undeclared(&lb(), Some(&record), serving), LeasingStep::Take(_)));
        let guests = publishing(lb(), "0.0.0.0");
        assert_eq!(said(&guests, None, serving), LeasingStep::Guest(None), "it stays the guest's");
    }
    let lb = lb();
    let nowhere = LeasingFacts { network: "", declared: false, ..seen(&lb, None, true) };
    assert!(matches!(step(&nowhere), LeasingStep::Guest(Some(_))), "no network has no agent");
}

#[test]
fn the_annotation_chooses() {
    assert!(matches!(said(&chosen("guest"), None, true), LeasingStep::Guest(Some(_))));
    assert!(matches!(
        said(&chosen("guest"), Some(&leased(None)), true),
        LeasingStep::Guest(Some(_))
    ));
    assert_eq!(waits(&said(&chosen("host"), None, false)), "NoDHCPAgent");
    assert_eq!(said(&chosen("host"), None, true), LeasingStep::Create);
    assert_eq!(said(&chosen(""), None, true), LeasingStep::Create);
    for wrong in ["Host", "ipv6", "true"] {
        assert_eq!(waits(&said(&chosen(wrong), None, true)), "InvalidAnnotation");
        assert!(choice(&chosen(wrong)).unwrap_err().contains(wrong));
    }
}

/// The party that leased the first address goes on to lease, whatever the annotation says later.
#[test]
fn the_party_that_leases_goes_on() {
    for choice in ["", "guest", "nonsense"] {
        let guests = publishing(chosen(choice), "0.0.0.0");
        assert_eq!(said(&guests, None, true), LeasingStep::Guest(None), "{choice}");
    }
    for choice in ["", "guest", "host", "nonsense"] {
        let hosts = publishing(chosen(choice), "10.7.0.9");
        let step = said(&hosts, Some(&leased(Some("10.7.0.9"))), false);
        assert!(matches!(step, LeasingStep::Take(_)), "{choice}: {step:?}");
    }
    // The announcer does not begin to lease, even if the agent and the record are missing.
    assert_eq!(waits(&said(&publishing(lb(), "10.7.0.9"), None, false)), "NoDHCPAgent");
    // A LoadBalancer at `0.0.0.0` does not use a record whose release is planned. If the record's
    // release is not planned, the host leases.
    let mut left = leased(Some("10.7.0.9"));
    let guests = publishing(lb(), "0.0.0.0");
    assert!(matches!(said(&guests, Some(&left), true), LeasingStep::Take(_)), "an edited status");
    left.spec.release_after = Some(at(60).to_rfc3339());
    assert_eq!(said(&guests, Some(&left), true), LeasingStep::Guest(None));
}

#[test]
fn an_address_is_taken_while_it_may_be_used() {
    let LeasingStep::Take(lease) = said(&lb(), Some(&leased(Some("10.7.0.9"))), true) else {
        panic!()
    };
    assert_eq!(lease.mask, Some("255.255.255.0".parse().unwrap()));
    assert_eq!(lease.gateway, Some("10.7.0.1".parse().unwrap()));
    let changed = |change: &dyn Fn(&mut DHCPLeaseStatus)| {
        let mut record = leased(Some("10.7.0.9"));
        change(status(&mut record));
        said(&lb(), Some(&record), true)
    };
    assert!(matches!(changed(&|s| s.expires_at = None), LeasingStep::Take(_)), "for ever");
    for state in [LeaseState::Renewing, LeaseState::Rebinding, LeaseState::Rebooting] {
        assert!(matches!(changed(&|s| s.state = Some(state)), LeasingStep::Take(_)), "{state:?}");
    }
    let bad: [&dyn Fn(&mut DHCPLeaseStatus); 8] = [
        &|s| s.expires_at = Some(at(0).to_rfc3339()),
        &|s| s.expires_at = Some("tomorrow".into()),
        &|s| s.address = None,
        &|s| s.address = Some("fd00::1".into()),
        &|s| s.address = Some("0.0.0.0".into()),
        &|s| s.address = Some("255.255.255.255".into()),
        &|s| s.address = Some("127.0.0.1".into()),
        &|s| s.state = Some(LeaseState::Released),
    ];
    for (i, change) in bad.into_iter().enumerate() {
        assert_eq!(waits(&changed(change)), "DHCPPending", "{i}");
    }
    assert_eq!(waits(&changed(&|s| s.state = Some(LeaseState::Lost))), "DHCPLeaseLost");
}

/// A requested identity has an effect on a new record only. The record that exists is replaced if
/// its address is not published.
#[test]
fn a_record_of_another_client_goes_first() {
    let asking = |mut lb: LoadBalancer, mac: &str| {
        lb.metadata.annotations = Some([(KUBE_VIP_HWADDR.to_owned(), mac.to_owned())].into());
        lb
    };
    let record = leased(Some("10.7.0.9"));
    let kept =
        |lb: &LoadBalancer| retention_step(&record, Some(lb), NETWORK, true, Duration::ZERO, at(0));
    let fresh = asking(lb(), "02:00:00:00:00:01");
    let LeasingStep::Wait(why) = said(&fresh, Some(&record), true) else { panic!("taken") };
    assert_eq!((why.clone(), why.reason()), (NoLease::OtherIdentity, "DHCPReturning"));
    assert_eq!(kept(&fresh), RetentionStep::Delete);
    let has = publishing(fresh, "10.7.0.9");
    assert!(matches!(said(&has, Some(&record), true), LeasingStep::Take(_)));
    assert_eq!(kept(&has), RetentionStep::Nothing);
    // If an annotation is not valid, no address is withdrawn, and no record is created.
    let wrong = asking(lb(), "nonsense");
    assert!(matches!(said(&wrong, Some(&record), true), LeasingStep::Take(_)));
    assert_eq!(kept(&wrong), RetentionStep::Nothing);
    assert_eq!(waits(&said(&wrong, None, true)), "InvalidAnnotation");
}

/// Agents soon write the renewals that they could not write while the API server was unavailable.
#[test]
fn a_young_term_takes_no_published_address_for_ended() {
    let mut record = leased(Some("10.7.0.9"));
    status(&mut record).expires_at = Some(at(-60).to_rfc3339());
    let early = |lb: &LoadBalancer, record: &DHCPLease, early| {
        step(&LeasingFacts { early, ..seen(lb, Some(record), false) })
    };
    let published = publishing(lb(), "10.7.0.9");
    assert!(matches!(early(&published, &record, true), LeasingStep::Take(_)));
    assert_eq!(waits(&early(&published, &record, false)), "DHCPLeaseLost");
    assert_eq!(waits(&early(&lb(), &record, true)), "NoDHCPAgent", "it was not published");
    assert_eq!(waits(&early(&publishing(lb(), "10.7.0.8"), &record, true)), "DHCPLeaseLost");
    status(&mut record).state = Some(LeaseState::Lost);
    assert_eq!(waits(&early(&published, &record, true)), "DHCPLeaseLost", "the agent says so");
}

/// The condition keeps the reason `DHCPLeaseLost` until there is an address again, because an alert
/// uses this reason.
#[test]
fn what_was_lost_is_not_just_late() {
    let none = leased(None);
    assert_eq!(waits(&said(&lb(), Some(&none), true)), "DHCPPending");
    assert_eq!(waits(&said(&lb(), Some(&none), false)), "NoDHCPAgent");
    let mut lost = publishing(lb(), "10.7.0.9");
    let LeasingStep::Wait(why) = said(&lost, Some(&none), true) else { panic!() };
    assert_eq!(why.reason(), "DHCPLeaseLost");
    let status = lost.status.as_mut().unwrap();
    status.allocated_address = None;
    status.conditions = vec![Condition {
        type_: READY.to_owned(),
        reason: Some(why.reason().to_owned()),
        ..Condition::default()
    }];
    assert_eq!(waits(&said(&lost, Some(&none), true)), "DHCPLeaseLost");
    assert!(matches!(said(&lost, Some(&leased(Some("10.7.0.9"))), true), LeasingStep::Take(_)));
}

#[test]
fn a_record_that_goes_is_waited_for_and_one_that_was_left_is_kept() {
    let mut record = leased(Some("10.7.0.9"));
    record.spec.release_after = Some(at(60).to_rfc3339());
    assert_eq!(said(&lb(), Some(&record), true), LeasingStep::Keep);
    assert_eq!(release_after(&record, None)["spec"]["releaseAfter"], Value::Null);
    let elsewhere = |lb: &LoadBalancer, record: &DHCPLease| {
        step(&LeasingFacts { network: "default/other", ..seen(lb, Some(record), true) })
    };
    assert_eq!(waits(&elsewhere(&lb(), &record)), "DHCPReturning");
    let published = publishing(lb(), "10.7.0.9");
    record.spec.release_after = None;
    let moved = elsewhere(&published, &record);
    assert!(matches!(moved, LeasingStep::Take(_)), "an address in use stays");
    record.metadata.deletion_timestamp = deletion();
    assert_eq!(waits(&said(&published, Some(&record), true)), "DHCPReturning");
}

fn deletion<T: serde::de::DeserializeOwned>() -> Option<T> {
    serde_json::from_value(json!("2026-01-01T00:00:00Z")).ok()
}

const GRACE: Duration = Duration::from_mins(2);

fn kept(record: &DHCPLease, lb: Option<&LoadBalancer>, agent: bool) -> RetentionStep {
    retention_step(record, lb, NETWORK, agent, GRACE, at(0))
}

#[test]
fn a_record_without_a_load_balancer_is_kept_for_a_while() {
    let mut record = leased(Some("10.7.0.9"));
    assert_eq!(kept(&record, Some(&lb()), true), RetentionStep::Nothing);
    assert_eq!(kept(&record, None, true), RetentionStep::Leave(at(120)));
    record.spec.release_after = Some(at(30).to_rfc3339());
    assert_eq!(kept(&record, None, true), RetentionStep::Later(Duration::from_secs(30)));
    assert_eq!(kept(&record, Some(&lb()), true), RetentionStep::Nothing, "it is back");
    record.spec.release_after = Some(at(0).to_rfc3339());
    assert_eq!(kept(&record, None, true), RetentionStep::Delete);
    assert_eq!(kept(&record, Some(&lb()), true), RetentionStep::Nothing, "back at the last moment");
    let mut leaving = lb();
    leaving.metadata.deletion_timestamp = deletion();
    leaving.metadata.finalizers = Some(vec![LB_FINALIZER.to_owned()]);
    assert_eq!(
        kept(&record, Some(&leaving), true),
        RetentionStep::Nothing,
        "its Service goes first"
    );
}

#[test]
fn a_load_balancer_that_does_without_leaves_its_record_at_once() {
    let record = leased(Some("10.7.0.9"));
    let mut pool = lb();
    pool.spec.ipam = None;
    for lb in [chosen("guest"), pool] {
        assert_eq!(kept(&record, Some(&lb), true), RetentionStep::Delete);
    }
    let mut leaving = chosen("guest");
    leaving.metadata.deletion_timestamp = deletion();
    leaving.metadata.finalizers = Some(vec![LB_FINALIZER.to_owned()]);
    assert_eq!(
        kept(&record, Some(&leaving), true),
        RetentionStep::Nothing,
        "its Service goes first"
    );
    let mut left = record.clone();
    left.spec.release_after = Some(at(60).to_rfc3339());
    for record in [&record, &left] {
        let elsewhere = retention_step(record, Some(&lb()), "default/other", true, GRACE, at(0));
        assert_eq!(elsewhere, RetentionStep::Delete, "it need not wait for its time");
    }
    let elsewhere = retention_step(
        &record,
        Some(&publishing(lb(), "10.7.0.9")),
        "default/other",
        true,
        GRACE,
        at(0),
    );
    assert_eq!(elsewhere, RetentionStep::Nothing);
}

/// Harvester's CRD does not refuse a change of `spec.ipam`. Until the new address is published, the
/// status has the former one. After that, the former Service may still be announced.
#[test]
fn a_change_of_ipam_chooses_the_party_anew_and_keeps_a_published_lease() {
    let mut from_pool = publishing(lb(), "10.7.0.9");
    let allocated = from_pool.status.as_mut().and_then(|s| s.allocated_address.as_mut());
    allocated.unwrap().ip_pool = Some("pool".into());
    assert_eq!(said(&from_pool, None, true), LeasingStep::Create);
    let record = leased(Some("10.7.0.9"));
    let announced = |mut lb: LoadBalancer| {
        lb.status.as_mut().unwrap().address = Some("10.7.0.9".to_owned());
        lb
    };
    for (mut lb, expected) in [
        (publishing(lb(), "10.7.0.9"), RetentionStep::Nothing),
        (publishing(lb(), "10.7.0.8"), RetentionStep::Delete),
        (announced(publishing(lb(), "10.7.0.8")), RetentionStep::Nothing),
        (announced(from_pool.clone()), RetentionStep::Delete),
        (from_pool, RetentionStep::Delete),
    ] {
        lb.spec.ipam = None;
        assert_eq!(kept(&record, Some(&lb), true), expected, "{lb:?}");
    }
}

#[test]
fn a_deleted_record_is_its_agents_or_over_by_the_clock() {
    let mut record = leased(Some("10.7.0.9"));
    record.metadata.deletion_timestamp = deletion();
    assert_eq!(kept(&record, None, true), RetentionStep::Nothing);
    assert_eq!(kept(&record, None, false), RetentionStep::Later(Duration::from_hours(1)));
    status(&mut record).expires_at = None;
    assert_eq!(kept(&record, None, false), RetentionStep::Nothing, "for ever");
    status(&mut record).expires_at = Some(at(0).to_rfc3339());
    assert_eq!(kept(&record, None, false), RetentionStep::Forget);
    assert_eq!(kept(&record, None, true), RetentionStep::Nothing);
    record.status = None;
    assert_eq!(kept(&record, None, false), RetentionStep::Forget, "it never had an address");
    let patch = without_finalizer(&record).unwrap();
    assert_eq!(patch["metadata"]["finalizers"], json!([]));
    record.metadata.finalizers = Some(vec!["other".into()]);
    assert_eq!(kept(&record, None, false), RetentionStep::Nothing);
}

#[test]
fn an_agent_is_there_while_its_lease_is_renewed() {
    let held = AgentLease {
        holder: "agent".into(),
        duration: Duration::from_secs(15),
        acquired: None,
        renewed: Some(at(0)),
        version: "1".into(),
    };
    assert!(serves(&held, Duration::from_secs(14)));
    assert!(!serves(&held, Duration::from_secs(15)));
    assert!(!serves(&AgentLease { holder: String::new(), ..held.clone() }, Duration::ZERO));
    assert!(!is_left_behind(&held, at(75)), "clocks may be a minute apart");
    assert!(is_left_behind(&held, at(76)));
    assert!(!is_left_behind(&AgentLease { renewed: None, ..held }, at(1_000_000)));
}

/// A kept address stays published after its lease has expired. After its record is deleted, the
/// lease counts as over.
#[test]
fn a_kept_address_is_usable_after_its_expiry() {
    let mut record = leased(Some("10.7.0.9"));
    let after = at(1_000_000);
    assert_eq!(usable(&record, after), None);
    status(&mut record).on_lease_loss = Some(OnLeaseLoss::Keep);
    assert_eq!(usable(&record, after).map(|lease| lease.ip), Some("10.7.0.9".parse().unwrap()));
    assert!(keeps(&record));
    record.metadata.deletion_timestamp = deletion();
    let forgotten = retention_step(&record, None, NETWORK, false, GRACE, after);
    assert_eq!(forgotten, RetentionStep::Forget);
    status(&mut record).state = Some(LeaseState::Lost);
    assert_eq!(usable(&record, after), None, "another host has it");
}

#[test]
fn a_lease_without_renewal_is_overdue() {
    let mut record = leased(Some("10.7.0.9"));
    assert!(!is_overdue(&record, at(3599)), "for how long is not known");
    status(&mut record).lease_seconds = Some(3600);
    assert!(!is_overdue(&record, at(3150)));
    assert!(is_overdue(&record, at(3151)));
    status(&mut record).expires_at = None;
    assert!(!is_overdue(&record, at(1_000_000)), "for ever");
    assert!(!is_overdue(&leased(None), at(1_000_000)));
}

#[test]
fn a_record_has_its_identity_before_the_first_request() {
    let record = record(&lb(), "cluster", NETWORK, ClientIdForm::Duid).unwrap();
    assert_eq!(record.metadata.name.as_deref(), Some("web"));
    assert_eq!(record.metadata.namespace.as_deref(), Some("default"));
    assert_eq!(record.metadata.finalizers.as_deref(), Some(&[DHCP_FINALIZER.to_owned()][..]));
    let ClientIdentity { mac, client_id, .. } =
        ClientIdentity::derive("cluster", NETWORK, "default", "web");
    assert_eq!(record.spec.mac_address, mac.to_string());
    assert_eq!(record.spec.client_id, client_id.unwrap().to_string());
    assert_eq!((record.spec.network.as_str(), record.spec.hostname.as_str()), (NETWORK, "web"));
    assert_eq!(record.status, None);
}
