//! Tests of the writes to a LoadBalancer. Each write is made only once.

mod vms;

use proptest::prelude::*;

use super::*;
use crate::Claim;
use crate::pools::ranges::Subnet;
use crate::reason::NoAddressReason;
use api::{LoadBalancerStatus, READY, WorkloadType};

const THEN: &str = "2026-01-01T00:00:00Z";
const NOW: &str = "2026-02-02T00:00:00Z";

fn patched(lb: &LoadBalancer, outcome: &AddressOutcome) -> LoadBalancer {
    let mut value = serde_json::to_value(lb).unwrap();
    if let Some(patch) = patch(lb, outcome, None, NOW) {
        json_patch::merge(&mut value, &patch);
    }
    serde_json::from_value(value).unwrap()
}

fn lb(workload: WorkloadType) -> LoadBalancer {
    let mut lb = LoadBalancer::default();
    lb.metadata.resource_version = Some("7".into());
    lb.spec.workload_type = Some(workload);
    lb
}

fn status(lb: &mut LoadBalancer) -> &mut LoadBalancerStatus {
    lb.status.get_or_insert_default()
}

/// A claim of `10.0.0.<last>` in pool `a`, or of `10.1.0.<last>` in any other pool. `instead`:
/// reason why the LoadBalancer keeps this address, although it requests another.
fn holds(pool: &str, last: u8, instead: Option<NoAddressReason>) -> AddressOutcome {
    let net = if pool == "a" { "10.0.0.0/24" } else { "10.1.0.0/24" };
    let mut octets = if pool == "a" { [10, 0, 0, 1] } else { [10, 1, 0, 1] };
    let gateway = Some(octets.into());
    octets[3] = last;
    AddressOutcome::Pool(ClaimResult::Held {
        claim: Claim { pool: pool.into(), ip: octets.into() },
        subnet: Some(Subnet { net: net.parse().unwrap(), gateway }),
        network: Some(String::new()),
        instead,
    })
}

fn waits() -> AddressOutcome {
    AddressOutcome::Pool(ClaimResult::Waiting(NoAddressReason::Full { pools: vec!["a".into()] }))
}

fn condition(lb: &LoadBalancer) -> (ConditionStatus, String, String) {
    let [ready] = lb.status.as_ref().unwrap().conditions.as_slice() else { panic!("{lb:?}") };
    assert_eq!(ready.type_, READY);
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    (ready.status, text(&ready.reason), text(&ready.message))
}

fn address(lb: &LoadBalancer) -> Option<&str> {
    lb.status.as_ref()?.address.as_deref()
}

#[test]
fn a_guest_gets_finalizer_claim_address_and_condition_in_one_patch() {
    let mut lb = lb(WorkloadType::Cluster);
    lb.metadata.finalizers = Some(vec!["others/one".into()]);
    let expected = json!({
        "metadata": {
            "resourceVersion": "7",
            "finalizers": ["others/one", LB_FINALIZER],
            "annotations": {ANNOTATION_ALLOCATED: "a/10.0.0.5"},
        },
        "status": {
            "address": "10.0.0.5",
            "allocatedAddress":
                {"ipPool": "a", "ip": "10.0.0.5", "mask": "255.255.255.0", "gateway": "10.0.0.1"},
            "conditions": [{"type": "Ready", "status": "True", "reason": "Allocated",
                "lastUpdateTime": NOW, "lastTransitionTime": NOW}],
        },
    });
    assert_eq!(patch(&lb, &holds("a", 5, None), None, NOW), Some(expected));
    assert_eq!(patch(&patched(&lb, &holds("a", 5, None)), &holds("a", 5, None), None, NOW), None);
}

#[test]
fn a_vm_load_balancer_holds_an_address_that_nothing_announces() {
    let vm = patched(&lb(WorkloadType::Vm), &holds("a", 5, None));
    assert_eq!(address(&vm), None);
    let (status, reason, message) = condition(&vm);
    assert_eq!((status, reason.as_str()), (ConditionStatus::False, "NotAnnounced"));
    assert!(message.starts_with("10.0.0.5 is allocated"), "{message}");
    assert_eq!(vm.metadata.finalizers, Some(vec![LB_FINALIZER.to_owned()]));
    let unset = LoadBalancer::default();
    assert_eq!(address(&patched(&unset, &holds("a", 5, None))), None, "unset means vm");
}

#[test]
fn an_announcer_that_leases_needs_no_finalizer_and_the_address_says_that_it_exists() {
    let lb = patched(&lb(WorkloadType::Cluster), &AddressOutcome::Guest(None));
    // A guest's cloud provider does not delete a LoadBalancer whose address is empty.
    assert_eq!(address(&lb), Some("0.0.0.0"));
    let vm = patched(&self::lb(WorkloadType::Vm), &AddressOutcome::Guest(None));
    assert_eq!(address(&vm), None, "it is announced by the Service");
    assert_eq!(lb.metadata.finalizers, None);
    let allocated = lb.status.clone().unwrap().allocated_address.unwrap();
    assert_eq!((allocated.ip.as_deref(), allocated.ip_pool), (Some("0.0.0.0"), None));
    assert_eq!(condition(&lb), (ConditionStatus::True, "DHCP".into(), String::new()));
}

#[test]
fn the_address_is_the_guests_once_it_wrote_its_own() {
    let first = patched(&lb(WorkloadType::Cluster), &holds("a", 5, None));
    for (wrote, moved, lost) in [
        // The address is that of the old claim, so the operator wrote the address. The operator
        // replaces it by the address of the new claim.
        (Some("10.0.0.5"), Some("10.1.0.6"), None),
        (Some(""), Some("10.1.0.6"), Some("")),
        (None, Some("10.1.0.6"), None),
        (Some("192.168.9.9"), Some("192.168.9.9"), Some("192.168.9.9")),
    ] {
        let mut lb = first.clone();
        status(&mut lb).address = wrote.map(str::to_owned);
        assert_eq!(address(&patched(&lb, &holds("b", 6, None))), moved, "{wrote:?}");
        let waiting = patched(&lb, &waits());
        assert_eq!(address(&waiting), lost, "{wrote:?}");
        assert_eq!(waiting.status.unwrap().allocated_address, None);
    }
}

/// UIs and scripts match on these texts.
#[test]
fn a_missing_address_gives_a_known_reason() {
    let requirement = "{network:\"n\"}".to_owned();
    let pool = || "a".to_owned();
    let why = "it is being deleted".to_owned();
    for (wait, reason, words) in [
        (
            NoAddressReason::NoMatch { requirement: requirement.clone() },
            "NoMatchedIPPool",
            "no matched IPPool with requirement {network",
        ),
        (
            NoAddressReason::Full { pools: vec![pool(), "b".into()] },
            "NoAvailableIP",
            "no available IP in IPPool a, b",
        ),
        (
            NoAddressReason::OwnAddress { pool: pool(), ip: [10, 0, 0, 5].into() },
            "NoAvailableIP",
            "no available IP in IPPool a, except 10.0.0.5",
        ),
        (
            NoAddressReason::LedgerFull { pool: pool() },
            "IPPoolLedgerFull",
            "no available IP in IPPool a",
        ),
        (NoAddressReason::NotFound { pool: pool() }, "IPPoolNotFound", "no matched IPPool"),
        (NoAddressReason::PoolGone { pool: pool() }, "IPPoolNotFound", "no matched IPPool"),
        (
            NoAddressReason::Forbidden { pool: pool(), requirement },
            "IPPoolForbidden",
            "no matched IPPool",
        ),
        (NoAddressReason::NotReady { pool: pool(), why }, "IPPoolNotReady", "no available IP"),
    ] {
        assert!(reason::is_ours(wait.reason()));
        let waiting = patched(
            &lb(WorkloadType::Vm),
            &AddressOutcome::Pool(ClaimResult::Waiting(wait.clone())),
        );
        assert_eq!(waiting.metadata.finalizers, None);
        let (status, condition_reason, message) = condition(&waiting);
        assert_eq!((status, condition_reason.as_str()), (ConditionStatus::False, reason));
        assert!(message.contains(words), "{message}");
        let kept = patched(&lb(WorkloadType::Cluster), &holds("a", 5, Some(wait)));
        let (status, condition_reason, message) = condition(&kept);
        assert_eq!((status, condition_reason.as_str()), (ConditionStatus::True, reason));
        let rest = message.strip_prefix("the LoadBalancer keeps 10.0.0.5: ");
        assert!(rest.is_some_and(|why| why.contains(words)), "{message}");
    }
}

/// The condition of a LoadBalancer without an address names the other controller that leads.
#[test]
fn an_object_without_an_answer_names_the_controller_that_leads() {
    const NOW: &str = "2026-01-01T00:00:00Z";
    let lb = lb(WorkloadType::Cluster);
    let patch = unanswered(&lb, "go", NOW).unwrap();
    let [said] = patch["status"]["conditions"].as_array().unwrap().as_slice() else {
        panic!("{patch}")
    };
    assert_eq!(
        (&said["reason"], &said["status"]),
        (&json!(reason::OTHER_CONTROLLER), &json!("False"))
    );
    assert!(said["message"].as_str().unwrap().contains("go"), "{said}");
    let mut answered = lb.clone();
    answered.status = serde_json::from_value(patch["status"].clone()).unwrap();
    assert_eq!(unanswered(&answered, "go", NOW), None, "it says so already");
    let waiting = AddressOutcome::Pool(ClaimResult::Waiting(NoAddressReason::Full {
        pools: vec!["a".into()],
    }));
    for answered in [patched(&lb, &holds("a", 5, None)), patched(&lb, &waiting)] {
        assert_eq!(unanswered(&answered, "go", NOW), None, "{answered:?}");
    }
}

/// The times of a condition change with its content, not with each reconcile.
#[test]
fn condition_times_change_with_their_content_alone() {
    let mut lb = lb(WorkloadType::Cluster);
    let condition = |status, reason: &str, message: Option<&str>| Condition {
        type_: READY.into(),
        status,
        reason: Some(reason.into()),
        message: message.map(Into::into),
        last_update_time: Some(THEN.into()),
        last_transition_time: Some(THEN.into()),
    };
    let other = Condition { type_: "Other".into(), ..Condition::default() };
    let times = |lb: &LoadBalancer| {
        let conditions = lb.status.clone().unwrap().conditions;
        assert_eq!(conditions[0], other, "conditions of others stay");
        let ready = &conditions[1];
        [&ready.last_update_time, &ready.last_transition_time].map(|t| t.clone().unwrap())
    };
    for (old, expected) in [
        (condition(ConditionStatus::True, "Allocated", None), [THEN, THEN]),
        // Go clients write an empty message for no message.
        (condition(ConditionStatus::True, "Allocated", Some("")), [THEN, THEN]),
        (condition(ConditionStatus::True, "NoAvailableIP", None), [NOW, THEN]),
        (condition(ConditionStatus::True, "Allocated", Some("and more")), [NOW, THEN]),
        (condition(ConditionStatus::False, "Allocated", None), [NOW, NOW]),
        (condition(ConditionStatus::Unknown, "Allocated", None), [NOW, NOW]),
    ] {
        status(&mut lb).conditions = vec![other.clone(), old.clone()];
        assert_eq!(times(&patched(&lb, &holds("a", 5, None))), expected, "{old:?}");
    }
}

/// The mask and the gateway of a claim stay published after the pool has lost the claim's subnet.
#[test]
fn mask_and_gateway_outlive_the_ranges_they_came_from() {
    let lb = patched(&lb(WorkloadType::Cluster), &holds("a", 5, None));
    let AddressOutcome::Pool(ClaimResult::Held { claim, instead, .. }) = holds("a", 5, None) else {
        unreachable!("an address is held")
    };
    let shrunk = AddressOutcome::Pool(ClaimResult::Held {
        claim,
        subnet: None,
        network: Some(String::new()),
        instead,
    });
    assert_eq!(patch(&lb, &shrunk, None, NOW), None);
}

#[test]
fn only_our_finalizer_is_removed_in_the_end() {
    let mut lb = lb(WorkloadType::Cluster);
    assert_eq!(finalize(&lb), None);
    lb.metadata.finalizers = Some(vec!["one".into(), LB_FINALIZER.into(), "two".into()]);
    let patch = finalize(&lb).unwrap();
    let rest = json!({"metadata": {"resourceVersion": "7", "finalizers": ["one", "two"]}});
    assert_eq!(patch, rest);
    lb.metadata.finalizers = Some(vec!["one".into()]);
    assert_eq!(finalize(&lb), None);
}

fn any_outcome() -> impl Strategy<Value = AddressOutcome> {
    let wait = NoAddressReason::Forbidden { pool: "b".into(), requirement: "{}".into() };
    let lease = LeasedAddress {
        ip: [10, 0, 0, 5].into(),
        mask: Some([255, 255, 255, 0].into()),
        gateway: None,
        network: "default/vlan7".into(),
    };
    prop::sample::select(vec![
        AddressOutcome::Guest(None),
        AddressOutcome::Guest(Some("because".into())),
        AddressOutcome::Host(Ok(lease)),
        AddressOutcome::Host(Err(NoLease::Returning)),
        waits(),
        holds("a", 5, None),
        holds("a", 5, Some(wait)),
        holds("b", 6, None),
    ])
}

fn any_lb() -> impl Strategy<Value = LoadBalancer> {
    let ip = || {
        let texts = ["", "0.0.0.0", "10.0.0.5", "10.1.0.6", "192.168.9.9"].map(str::to_owned);
        prop::option::of(prop::sample::select(texts.to_vec()))
    };
    let pool = prop::option::of(prop::sample::select(vec!["", "a", "b"]));
    let allocated =
        (pool, ip(), ip(), ip(), ip()).prop_map(|(pool, ip, mask, gateway, ipv6_ip)| {
            let ip_pool = pool.map(str::to_owned);
            AllocatedAddress { ip_pool, ip, mask, gateway, ipv6_ip, ..AllocatedAddress::default() }
        });
    let condition = prop::sample::select(vec![
        vec![],
        vec![Condition {
            type_: READY.into(),
            reason: Some("Allocated".into()),
            message: Some(String::new()),
            ..Condition::default()
        }],
        vec![Condition { type_: "Other".into(), ..Condition::default() }],
    ]);
    let finalizers =
        prop::sample::subsequence(vec!["others/one", LB_FINALIZER, "others/two"], 0..4);
    let vm = prop::sample::select(vec![None, Some(WorkloadType::Vm), Some(WorkloadType::Cluster)]);
    (vm, ip(), prop::option::of(allocated), condition, finalizers).prop_map(
        |(vm, address, allocated_address, conditions, finalizers)| {
            let mut lb = lb(WorkloadType::Vm);
            lb.spec.workload_type = vm;
            lb.metadata.finalizers = Some(finalizers.into_iter().map(Into::into).collect());
            lb.status = Some(LoadBalancerStatus {
                address,
                allocated_address,
                conditions,
                ..LoadBalancerStatus::default()
            });
            lb
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    /// One patch writes the outcome into any LoadBalancer, and no second patch follows.
    #[test]
    fn what_was_written_needs_no_further_write(lb in any_lb(), outcome in any_outcome()) {
        let done = patched(&lb, &outcome);
        prop_assert_eq!(patch(&done, &outcome, None, NOW), None);
        let status = done.status.as_ref().unwrap();
        let ip = status.allocated_address.as_ref().and_then(|a| a.ip.clone());
        let has_address = ip.is_some();
        prop_assert_eq!(outcome.is_allocated(), has_address);
        let asked = outcome.address().map(|ip| ip.to_string());
        prop_assert_eq!(asked, ip.clone().filter(|ip| ip != DHCP_ADDRESS));
        match &outcome {
            AddressOutcome::Guest(_) => prop_assert_eq!(ip.as_deref(), Some(DHCP_ADDRESS)),
            AddressOutcome::Host(Ok(lease)) => {
                prop_assert_eq!(ip, Some(lease.ip.to_string()));
                prop_assert!(done.metadata.finalizers.as_ref().unwrap().iter().any(|f| f == LB_FINALIZER));
            }
            AddressOutcome::Host(Err(_)) => prop_assert_eq!(ip, None),
            AddressOutcome::Pool(ClaimResult::Waiting(_)) => prop_assert_eq!(ip, None),
            AddressOutcome::Pool(ClaimResult::Held { claim, .. }) => {
                prop_assert_eq!(ip, Some(claim.ip.to_string()));
                prop_assert!(done.metadata.finalizers.as_ref().unwrap().iter().any(|f| f == LB_FINALIZER));
            }
        }
        let kept = |lb: &LoadBalancer| {
            let all = lb.metadata.finalizers.iter().flatten();
            all.filter(|f| *f != LB_FINALIZER).cloned().collect::<Vec<_>>()
        };
        prop_assert_eq!(kept(&done), kept(&lb));
        let (before, after) = (address(&lb), address(&done));
        let guests = matches!(&outcome, AddressOutcome::Guest(_)) && !listeners::is_vm(&lb);
        prop_assert!(after == before || guests || after != Some(DHCP_ADDRESS));
        prop_assert!(!has_address || listeners::is_vm(&lb) || after.is_some());
        let lost = listeners::is_vm(&lb) && !has_address;
        prop_assert!(!lost || after.is_none_or(str::is_empty));
        prop_assert!(lost || after == before || before != Some("192.168.9.9") || lb.status.as_ref().unwrap().allocated_address.as_ref().unwrap().ip.as_deref() == before);
    }
}
