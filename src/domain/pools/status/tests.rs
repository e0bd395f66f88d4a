//! Tests of pool statuses for ledgers of all kinds.

use serde_json::json;

use super::super::allocator::{
    AllocatorPool, ClaimResult, LoadBalancerIndex, PoolAllocator, PoolSeen,
};
use super::*;
use crate::{LbFacts, Owner};
use api::{IPPoolSpec, Range};

const THEN: &str = "2026-01-01T00:00:00Z";
const NOW: &str = "2026-02-02T00:00:00Z";

/// Pool `a`: a gateway, and `size` addresses from `10.0.0.10`. With size 0, its range is faulty.
fn seen(size: usize) -> PoolSeen {
    let range = Range {
        subnet: "10.0.0.0/16".into(),
        range_start: Some("10.0.0.10".into()),
        range_end: Some(match size {
            0 => "none".to_owned(),
            size => format!("10.0.{}.{}", (9 + size) / 256, (9 + size) % 256),
        }),
        ..Range::default()
    };
    let any = || Some("*".to_owned());
    let all = api::Scope { project: any(), namespace: any(), guest_cluster: any() };
    let selector = api::Selector { scope: Some(vec![all]), ..Default::default() };
    PoolSeen {
        name: "a".into(),
        created: 0,
        segment: crate::network::Segment::Management,
        deleting: false,
        spec: IPPoolSpec { ranges: vec![range], selector: Some(selector), ..IPPoolSpec::default() },
        status: IPPoolStatus::default(),
    }
}

fn owner(n: usize) -> Owner {
    Owner { name: format!("ns/lb{n}"), uid: format!("u{n}") }
}

fn allocator(seen: &PoolSeen, claims: usize) -> PoolAllocator {
    let mut allocator = PoolAllocator::default();
    allocator.merge(seen, &LoadBalancerIndex::default());
    for n in 0..claims {
        allocator.claim(&LbFacts { owner: owner(n), fresh: true, ..LbFacts::default() });
    }
    allocator
}

fn pool(allocator: &PoolAllocator) -> &AllocatorPool {
    &allocator.pools()["a"]
}

#[test]
fn counts_follow_from_the_ledger() {
    for (size, claims, percent) in [
        (10, 0, 0),
        (10, 1, 10),
        (3, 1, 34),
        (3, 2, 67),
        (200, 1, 1),
        (200, 199, 100),
        (3, 3, 100),
        (0, 0, 100),
    ] {
        let status =
            pool_status(pool(&allocator(&seen(size), claims)), &[], None, None, Some(4), NOW);
        let (size, claims) = (i64::try_from(size).unwrap(), i64::try_from(claims).unwrap());
        assert_eq!((status.total, status.available), (size, size - claims));
        assert_eq!(status.used_percent, Some(percent), "{claims} of {size}");
        assert_eq!(status.observed_generation, Some(4));
    }
}

/// The share of used addresses is 100 % if a pool has shrunk and has more claims than addresses.
#[test]
fn claims_outside_the_ranges_make_no_more_than_a_full_pool() {
    let mut allocator = allocator(&seen(5), 5);
    let stored = pool_status(pool(&allocator), &[], None, None, None, NOW);
    allocator.merge(&PoolSeen { status: stored, ..seen(2) }, &LoadBalancerIndex::default());
    let status = pool_status(pool(&allocator), &[], None, None, None, NOW);
    assert_eq!((status.total, status.available), (2, 0));
    assert_eq!((status.allocated.len(), status.used_percent), (5, Some(100)));
}

#[test]
fn the_ledger_is_written_with_owners_history_and_cursor() {
    let mut stored = seen(5);
    stored.status.allocated.insert("10.0.0.14".into(), "ns/old".into());
    let mut allocator = allocator(&stored, 2);
    allocator.release(&owner(0));
    let status =
        serde_json::to_value(pool_status(pool(&allocator), &[], None, None, None, NOW)).unwrap();
    assert_eq!(status["allocated"], json!({"10.0.0.11": "ns/lb1", "10.0.0.14": "ns/old"}));
    assert_eq!(status["allocatedOwners"], json!({"10.0.0.11": "u1"}), "no owner, no entry");
    assert_eq!(status["allocatedHistory"], json!({"10.0.0.10": "ns/lb0"}));
    assert_eq!(status["lastAllocated"], json!("10.0.0.11"));
}

#[test]
fn ready_says_whether_the_pool_gives_out_addresses() {
    let ready = |size, deleting| {
        let seen = PoolSeen { deleting, ..seen(size) };
        let status = pool_status(pool(&allocator(&seen, 0)), &[], None, None, None, NOW);
        let [ready] = status.conditions.as_slice() else { panic!("{:?}", status.conditions) };
        (ready.status, ready.reason.clone().unwrap(), ready.message.clone().unwrap_or_default())
    };
    assert_eq!(ready(3, false), (ConditionStatus::True, "Ready".into(), String::new()));
    let (status, reason, message) = ready(3, true);
    assert_eq!((status, reason.as_str()), (ConditionStatus::False, "Deleting"));
    assert!(message.contains("waits for 0 addresses"), "{message}");
    for deleting in [false, true] {
        let (status, reason, message) = ready(0, deleting);
        assert_eq!((status, reason.as_str()), (ConditionStatus::False, "InvalidRange"));
        assert!(message.starts_with("spec.ranges[0].rangeEnd: "), "{message}");
    }
}

#[test]
fn a_notice_comes_and_goes_and_conditions_of_others_stay() {
    let allocator = allocator(&seen(3), 1);
    let other = Condition { type_: "Other".into(), ..Condition::default() };
    let notice = manual_release_refused("StillInUse", "LoadBalancer ns/lb0 exists".into());
    let types = |status: &IPPoolStatus| {
        status.conditions.iter().map(|c| c.type_.clone()).collect::<Vec<_>>()
    };
    let with = pool_status(pool(&allocator), &[other], Some(&notice), None, None, THEN);
    assert_eq!(types(&with), ["Other", "Ready", "ManualRelease"]);
    assert_eq!(with.conditions[2].reason.as_deref(), Some("StillInUse"));
    let again = pool_status(pool(&allocator), &with.conditions, Some(&notice), None, None, NOW);
    assert_eq!(again, with, "nothing new, no new time");
    let without = pool_status(pool(&allocator), &with.conditions, None, None, None, NOW);
    assert_eq!(types(&without), ["Other", "Ready"]);
    assert_eq!(without.conditions[1].last_update_time.as_deref(), Some(THEN));
    let replaced = pool_status(pool(&allocator), &without.conditions, None, Some(true), None, NOW);
    assert_eq!(types(&replaced), ["Other", "Ready", "CRDReplaced"]);
    let unknown = pool_status(pool(&allocator), &replaced.conditions, None, None, None, NOW);
    assert_eq!(types(&unknown), ["Other", "Ready", "CRDReplaced"], "not looked at yet");
    let back = pool_status(pool(&allocator), &replaced.conditions, None, Some(false), None, NOW);
    assert_eq!(types(&back), ["Other", "Ready"]);
}

/// A status with as many claims as the ledger's size limit admits is smaller than that limit.
#[test]
fn the_largest_ledger_fits_the_object() {
    let mut allocator = PoolAllocator::default();
    allocator.merge(&seen(60_000), &LoadBalancerIndex::default());
    let owner = |n: usize| Owner {
        name: format!("namespace-{n:053}/{n:063}"),
        uid: format!("{n:08}-0000-0000-0000-000000000000"),
    };
    let facts = |n| LbFacts { owner: owner(n), fresh: true, ..LbFacts::default() };
    let full = (0..60_000)
        .find(|n| matches!(allocator.claim(&facts(*n)), ClaimResult::Waiting(_)))
        .unwrap();
    assert!(full > 4_000, "{full} claims");
    let status = pool_status(pool(&allocator), &[], None, None, None, NOW);
    assert_eq!(status.allocated.len(), full);
    let size = serde_json::to_vec(&status).unwrap().len();
    assert!(size < super::super::ledger::LEDGER_BYTES, "{size} bytes");
}
