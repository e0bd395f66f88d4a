//! Tests of merging a stored pool with the LoadBalancers that exist, and with memory.

use proptest::prelude::*;

use super::super::tests::{at, for_namespace, lb, owner, seen};
use super::super::{ClaimResult, NoAddressReason};
use super::*;
use crate::pools::ledger::HISTORY_LENGTH;
use crate::pools::status::pool_status;

/// LoadBalancer `n`. Publishes `10.0.0.<last>` of pool `a`, or no address if `last` is `None`.
fn entry(n: usize, last: Option<usize>) -> LoadBalancerEntry {
    let published = last.map(|last| at("a", &format!("10.0.0.{last}")));
    LoadBalancerEntry {
        owner: owner(n),
        created: i64::try_from(n).unwrap(),
        published,
        deleting: false,
    }
}

fn world(entries: &[(usize, Option<usize>)]) -> LoadBalancerIndex {
    LoadBalancerIndex::new(entries.iter().map(|(n, last)| entry(*n, *last)))
}

/// Pool `a`, `10.0.0.10` to `.19`, whose stored ledger has these claims: address, name, UID.
fn storing(claims: &[(&str, &str, &str)]) -> PoolSeen {
    let mut pool = seen("a", "10.0.0", 10);
    for (ip, name, uid) in claims {
        pool.status.allocated.insert((*ip).into(), (*name).into());
        if !uid.is_empty() {
            pool.status.allocated_owners.insert((*ip).into(), (*uid).into());
        }
    }
    pool
}

fn ledger(allocator: &PoolAllocator) -> Vec<(String, &str, &str)> {
    let claims = allocator.pools()["a"].ledger.claims().iter();
    claims.map(|(ip, o)| (ip.to_string(), o.name.as_str(), o.uid.as_str())).collect()
}

fn row<'a>(last: usize, name: &'a str, uid: &'a str) -> (String, &'a str, &'a str) {
    (format!("10.0.0.{last}"), name, uid)
}

fn stored(allocator: &PoolAllocator) -> IPPoolStatus {
    pool_status(&allocator.pools()["a"], &[], None, None, Some(1), "2026-01-01T00:00:00Z")
}

#[test]
fn a_wiped_ledger_is_rebuilt_from_what_is_published_before_any_new_claim() {
    let mut allocator = PoolAllocator::default();
    let repairs =
        allocator.merge(&seen("a", "10.0.0", 10), &world(&[(1, Some(10)), (2, Some(14))]));
    let restored = |n, last| LedgerRepair::Restored(at("a", last), owner(n));
    assert_eq!(repairs, [restored(1, "10.0.0.10"), restored(2, "10.0.0.14")]);
    let ClaimResult::Held { claim, .. } = allocator.claim(&lb(3)) else { panic!("no address") };
    assert_eq!(claim, at("a", "10.0.0.11"));
    // Claims of LoadBalancers that have not published yet are rebuilt from memory.
    allocator.merge(&seen("a", "10.0.0", 10), &world(&[(1, Some(10)), (2, Some(14)), (3, None)]));
    let rows = [row(10, "ns/lb1", "u1"), row(11, "ns/lb3", "u3"), row(14, "ns/lb2", "u2")];
    assert_eq!(ledger(&allocator), rows);
    assert_eq!(allocator.claims_of("u3"), [at("a", "10.0.0.11")]);
}

#[test]
fn what_is_published_goes_before_what_is_stored_and_that_before_memory() {
    let mut allocator = PoolAllocator::default();
    let ask = |allocator: &mut PoolAllocator, n| drop(allocator.claim(&lb(n)));
    allocator.merge(&storing(&[]), &LoadBalancerIndex::default());
    (1..=3).for_each(|n| ask(&mut allocator, n));
    // In memory, lb1 holds .10, lb2 .11, lb3 .12. Another leader gave .11 to lb5 and .12 to lb6;
    // lb7 publishes .12.
    let foreign = storing(&[("10.0.0.11", "ns/lb5", "u5"), ("10.0.0.12", "ns/lb6", "u6")]);
    let repairs = allocator.merge(&foreign, &world(&[(1, None), (7, Some(12))]));
    assert_eq!(repairs, [LedgerRepair::Corrected(at("a", "10.0.0.12"), owner(7))]);
    let rows = [row(10, "ns/lb1", "u1"), row(11, "ns/lb5", "u5"), row(12, "ns/lb7", "u7")];
    assert_eq!(ledger(&allocator), rows);
    for loser in ["u2", "u3", "u6"] {
        assert!(allocator.claims_of(loser).is_empty(), "{loser}");
    }
    let ClaimResult::Held { claim, .. } = allocator.claim(&lb(2)) else { panic!("no address") };
    assert_eq!(claim, at("a", "10.0.0.13"), "the loser gets another");
}

/// An owner with two addresses keeps the published one, or else the one in the stored ledger.
#[test]
fn an_owner_keeps_one_address_of_a_pool() {
    let twice = storing(&[("10.0.0.12", "ns/lb1", "u1"), ("10.0.0.15", "ns/lb1", "u1")]);
    let mut allocator = PoolAllocator::default();
    allocator.merge(&twice, &world(&[(1, Some(15))]));
    assert_eq!(ledger(&allocator), [row(15, "ns/lb1", "u1")]);
    allocator.merge(&storing(&[("10.0.0.17", "ns/lb1", "u1")]), &world(&[(1, None)]));
    assert_eq!(ledger(&allocator), [row(17, "ns/lb1", "u1")]);
    assert_eq!(allocator.claims_of("u1"), [at("a", "10.0.0.17")]);
}

#[test]
fn an_entry_without_uid_adopts_that_of_the_load_balancer_of_its_name() {
    let old_style = storing(&[("10.0.0.12", "ns/lb1", ""), ("10.0.0.13", "ns/gone", "")]);
    let mut allocator = PoolAllocator::default();
    allocator.merge(&old_style, &world(&[(1, None)]));
    assert_eq!(ledger(&allocator), [row(12, "ns/lb1", "u1"), row(13, "ns/gone", "")]);
    let ClaimResult::Held { claim, .. } = allocator.claim(&lb(1)) else { panic!("no address") };
    assert_eq!(claim, at("a", "10.0.0.12"));
    // The UID comes from memory, even if the view does not contain the LoadBalancer.
    allocator.merge(&old_style, &LoadBalancerIndex::default());
    assert_eq!(ledger(&allocator)[0], row(12, "ns/lb1", "u1"));
}

/// The ledger's entry may be read before the LoadBalancer is in the view.
#[test]
fn an_entry_without_uid_adopts_it_later_too() {
    let old_style = storing(&[("10.0.0.12", "ns/lb1", "")]);
    let mut allocator = PoolAllocator::default();
    allocator.merge(&old_style, &LoadBalancerIndex::default());
    allocator.merge(&old_style, &world(&[(1, None)]));
    assert_eq!(ledger(&allocator), [row(12, "ns/lb1", "u1")]);
    assert_eq!(allocator.claims_of("u1"), [at("a", "10.0.0.12")]);
    // Here the LoadBalancer asks for an address before it is in the view.
    let mut allocator = PoolAllocator::default();
    allocator.merge(&old_style, &LoadBalancerIndex::default());
    allocator.claim(&lb(1));
    assert_eq!(allocator.claims_of("u1"), [at("a", "10.0.0.12")]);
    // Here the LoadBalancer got another address before the ledger's entry was read. It keeps that
    // address, because the address may be in use by now.
    let mut allocator = PoolAllocator::default();
    allocator.merge(&storing(&[]), &LoadBalancerIndex::default());
    allocator.claim(&lb(1));
    allocator.merge(&old_style, &world(&[(1, None)]));
    assert_eq!(allocator.claims_of("u1"), [at("a", "10.0.0.10")]);
}

#[test]
fn the_entry_of_an_old_object_is_its_namesakes_and_an_orphan_without_one() {
    let mut allocator = PoolAllocator::default();
    let all = world(&[(1, None), (2, Some(14)), (3, None)]);
    let pool = storing(&[
        ("10.0.0.12", "ns/lb1", "before"),
        ("10.0.0.13", "ns/gone", ""),
        ("10.0.0.14", "ns/lb2", "u2"),
        ("10.0.0.15", "ns/lb3", ""),
    ]);
    allocator.merge(&pool, &all);
    assert_eq!(allocator.claims_of("u1"), [at("a", "10.0.0.12")]);
    let ClaimResult::Held { claim, .. } = allocator.claim(&lb(1)) else { panic!("no address") };
    assert_eq!(claim, at("a", "10.0.0.12"));
    // Before the merge, the API server is asked whether lb1 is the recorded object.
    assert_eq!(PoolAllocator::default().owners_to_reread(&pool, &all), [owner(1)]);
    let gone = Owner { name: "ns/gone".into(), uid: String::new() };
    let orphans = [(at("a", "10.0.0.13"), gone)];
    assert_eq!(allocator.orphans(&all), orphans);
    for (claim, owner) in orphans {
        assert!(allocator.release_claim(&claim, &owner), "{claim:?}");
    }
    assert!(allocator.orphans(&all).is_empty());
    assert_eq!(allocator.pools()["a"].ledger.available(), 7);
}

/// Two LoadBalancers publish one address. The owner in the stored ledger keeps the address, else
/// the owner in memory, else the older LoadBalancer. The LoadBalancer that loses the address is
/// reported, and gets another address.
#[test]
fn of_two_that_publish_one_address_one_keeps_it() {
    let both = world(&[(1, Some(12)), (2, Some(12))]);
    let by_stored = storing(&[("10.0.0.12", "ns/lb2", "u2")]);
    for (first_seen, then_seen, keeper) in [
        (storing(&[]), by_stored.clone(), 2),
        (by_stored.clone(), storing(&[]), 2),
        (storing(&[("10.0.0.12", "ns/lb1", "u1")]), by_stored, 2),
        (storing(&[]), storing(&[]), 1),
    ] {
        let mut allocator = PoolAllocator::default();
        allocator.merge(&first_seen, &LoadBalancerIndex::default());
        let repairs = allocator.merge(&then_seen, &both);
        let loser = 3 - keeper;
        assert!(repairs.contains(&LedgerRepair::Double(at("a", "10.0.0.12"), owner(loser))));
        assert_eq!(allocator.claims_of(&owner(keeper).uid), [at("a", "10.0.0.12")]);
        for n in [loser, keeper] {
            let facts = lb(n);
            let published = Some(at("a", "10.0.0.12"));
            let result = allocator.claim(&crate::LbFacts { published, ..facts });
            let ClaimResult::Held { claim, .. } = result else { panic!("no address") };
            assert_eq!(claim == at("a", "10.0.0.12"), n == keeper, "{claim:?}");
        }
    }
}

/// The view of LoadBalancers may be older than the ledger. If the stored ledger and memory agree on
/// an owner, the view does not change the owner. If they disagree, the LoadBalancer that publishes
/// the address is read again.
#[test]
fn a_publisher_that_speaks_against_a_ledger_is_read_again() {
    let late = world(&[(1, Some(12)), (3, Some(13)), (4, Some(14)), (5, Some(15))]);
    let agreed = [("10.0.0.12", "ns/lb2", "u2"), ("10.0.0.14", "ns/lb4", "u4")];
    let mut allocator = PoolAllocator::default();
    allocator.merge(&storing(&agreed), &LoadBalancerIndex::default());
    let by_stored = [agreed[0], agreed[1], ("10.0.0.13", "ns/lb2", "other")];
    assert_eq!(allocator.owners_to_reread(&storing(&by_stored), &late), [owner(3)]);
    let mut current = world(&[(1, Some(12)), (3, Some(13)), (4, Some(14)), (5, Some(15))]);
    current.update(&owner(3), None);
    assert!(allocator.owners_to_reread(&storing(&by_stored), &current).is_empty());
    assert!(!current.contains(&owner(3)));
    let repairs = allocator.merge(&storing(&by_stored), &current);
    let double = LedgerRepair::Double(at("a", "10.0.0.12"), owner(1));
    assert_eq!(repairs, [double, LedgerRepair::Restored(at("a", "10.0.0.15"), owner(5))]);
    assert_eq!(allocator.claims_of("u2"), [at("a", "10.0.0.12")]);
    assert_eq!(allocator.claims_of("other"), [at("a", "10.0.0.13")]);
    // A LoadBalancer that was created again is found by its name.
    current.update(
        &owner(4),
        Some(LoadBalancerEntry {
            owner: Owner { uid: "new".into(), ..owner(4) },
            ..entry(4, None)
        }),
    );
    assert!(!current.contains(&owner(4)) && current.uid_of("ns/lb4") == Some("new"));
}

/// The claim of a LoadBalancer that is being deleted was released already, if no ledger records it.
#[test]
fn a_publisher_that_is_being_deleted_counts_only_if_a_ledger_names_it() {
    let deleting = |n, last| LoadBalancerEntry { deleting: true, ..entry(n, last) };
    // The address of lb3 is outside the pool's ranges, but lb3 publishes it, so it is in use.
    let all =
        LoadBalancerIndex::new([deleting(1, Some(11)), deleting(2, Some(12)), entry(3, Some(99))]);
    let mut allocator = PoolAllocator::default();
    allocator.merge(&storing(&[("10.0.0.11", "ns/lb1", "u1")]), &all);
    assert_eq!(ledger(&allocator), [row(11, "ns/lb1", "u1"), row(99, "ns/lb3", "u3")]);
    // A user has wiped the stored ledger, and memory names lb1.
    allocator.merge(&storing(&[]), &all);
    assert_eq!(ledger(&allocator), [row(11, "ns/lb1", "u1"), row(99, "ns/lb3", "u3")]);
}

#[test]
fn an_entry_that_is_no_address_is_reported_and_dropped() {
    let mut allocator = PoolAllocator::default();
    let mut pool = storing(&[("10.0.0.300", "ns/lb1", "u1"), ("10.0.0.12", "ns/lb2", "u2")]);
    pool.status.allocated_history.insert("nonsense".into(), "ns/lb3".into());
    pool.status.last_allocated = "nonsense".into();
    let repairs = allocator.merge(&pool, &LoadBalancerIndex::default());
    assert_eq!(repairs, [LedgerRepair::Unreadable("10.0.0.300".into())]);
    assert_eq!(ledger(&allocator), [row(12, "ns/lb2", "u2")]);
}

#[test]
fn a_faulty_or_shrunk_pool_keeps_its_claims_and_heals() {
    let mut allocator = PoolAllocator::default();
    allocator.merge(&storing(&[("10.0.0.12", "ns/lb1", "u1")]), &world(&[(1, None)]));
    for size in [0, 1] {
        let edited = PoolSeen { status: stored(&allocator), ..seen("a", "10.0.0", size) };
        allocator.merge(&edited, &world(&[(1, None)]));
        let ClaimResult::Held { claim, subnet, instead, .. } = allocator.claim(&lb(1)) else {
            panic!("lost")
        };
        assert_eq!((claim, subnet, instead), (at("a", "10.0.0.12"), None, None));
        assert_eq!(allocator.pools()["a"].fault.is_some(), size == 0);
    }
    allocator.merge(&PoolSeen { status: stored(&allocator), ..storing(&[]) }, &world(&[(1, None)]));
    let ClaimResult::Held { subnet: Some(subnet), .. } = allocator.claim(&lb(1)) else {
        panic!("lost")
    };
    assert_eq!(subnet.mask(), "255.255.255.0");
    assert_eq!(allocator.pools()["a"].ledger.available(), 9);
}

/// A pool whose selector stops admitting LoadBalancers gives them no new address, and releases no
/// claim.
#[test]
fn a_selector_that_changes_ends_no_claim() {
    let mut allocator = PoolAllocator::default();
    allocator.merge(&storing(&[("10.0.0.12", "ns/lb1", "u1")]), &world(&[(1, Some(12))]));
    allocator.merge(&for_namespace(storing(&[]), "other"), &world(&[(1, Some(12))]));
    assert!(matches!(allocator.claim(&lb(1)), ClaimResult::Held { instead: None, .. }));
    assert!(matches!(
        allocator.claim(&lb(2)),
        ClaimResult::Waiting(NoAddressReason::NoMatch { .. })
    ));
}

/// A merge after a write by another client keeps the order of releases in the history.
#[test]
fn history_forgets_the_oldest_release_first_after_a_merge_too() {
    let mut pool = seen("a", "10.0.0", 1);
    pool.spec.ranges = vec![api::Range { subnet: "10.0.0.0/20".into(), ..api::Range::default() }];
    let mut allocator = PoolAllocator::default();
    allocator.merge(&pool, &LoadBalancerIndex::default());
    let held: Vec<_> = (0..=HISTORY_LENGTH)
        .filter_map(|n| match allocator.claim(&lb(n)) {
            ClaimResult::Held { claim, .. } => Some(claim.ip),
            ClaimResult::Waiting(_) => None,
        })
        .collect();
    // The highest addresses are released first, so these are the oldest releases.
    for n in (1..=HISTORY_LENGTH).rev() {
        allocator.release(&owner(n));
    }
    let status = stored(&allocator);
    allocator.merge(&PoolSeen { status, ..pool }, &LoadBalancerIndex::default());
    allocator.release(&owner(0));
    let remembered: Vec<_> = allocator.pools()["a"].ledger.history().map(|(ip, _)| ip).collect();
    assert!(remembered.contains(&held[0]) && remembered.contains(&held[1]));
    assert!(!remembered.contains(&held[HISTORY_LENGTH]), "the oldest release is forgotten");
}

/// Harvester's Go controller limits its history only to one entry per address. An import records
/// the addresses of existing LoadBalancers, and each LoadBalancer claims its address later. So the
/// entries of existing LoadBalancers are kept.
#[test]
fn a_long_history_loses_the_names_that_no_longer_exist() {
    const GONE: usize = 3_000;
    let mut pool = seen("a", "10.0.0", 1);
    pool.spec.ranges = vec![api::Range { subnet: "10.0.0.0/20".into(), ..api::Range::default() }];
    let byte = |n: usize| u8::try_from(n).unwrap();
    let address = |n: usize| IpAddr::from([10, 0, byte(n / 250), byte(n % 250) + 1]);
    for n in 0..GONE {
        pool.status.allocated_history.insert(address(n).to_string(), format!("ns/gone{n}"));
    }
    let expected: Vec<_> = (0..2 * HISTORY_LENGTH).map(|n| (n, address(GONE + n))).collect();
    for (n, ip) in &expected {
        pool.status.allocated_history.insert(ip.to_string(), owner(*n).name);
    }
    let world = world(&expected.iter().map(|(n, _)| (*n, None)).collect::<Vec<_>>());
    let mut allocator = PoolAllocator::default();
    allocator.merge(&pool, &world);
    assert_eq!(stored(&allocator).allocated_history.len(), expected.len(), "only expected ones");
    for (n, ip) in &expected {
        let ClaimResult::Held { claim, .. } = allocator.claim(&lb(*n)) else {
            panic!("no address")
        };
        assert_eq!(claim.ip, *ip);
    }
    assert!(stored(&allocator).allocated_history.is_empty());

    let mut allocator = PoolAllocator::default();
    allocator.merge(&pool, &LoadBalancerIndex::default());
    assert_eq!(stored(&allocator).allocated_history.len(), HISTORY_LENGTH);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    /// A process that merges its own status changes nothing. A new process that merges this status
    /// writes the same status.
    #[test]
    fn reading_ones_own_status_back_changes_nothing(
        steps in prop::collection::vec((0_usize..8, any::<bool>()), 0..30),
        size in 0_usize..9,
        outside in any::<bool>(),
    ) {
        let strangers = [("10.0.0.7", "ns/out", "out"), ("10.0.0.11", "ns/gone", "")];
        let mut allocator = PoolAllocator::default();
        let pool = storing(if outside { &strangers } else { &[] });
        allocator.merge(&pool, &LoadBalancerIndex::default());
        let mut exist = BTreeMap::new();
        for (n, create) in steps {
            if create {
                if let ClaimResult::Held { claim, .. } = allocator.claim(&lb(n)) {
                    exist.insert(n, claim);
                }
            } else {
                allocator.release(&owner(n));
                exist.remove(&n);
            }
        }
        // LoadBalancers with even numbers publish their claim.
        let world = LoadBalancerIndex::new(exist.into_iter().map(|(n, claim)| LoadBalancerEntry {
            published: Some(claim).filter(|_| n % 2 == 0),
            ..entry(n, None)
        }));
        let edited = PoolSeen { status: stored(&allocator), ..seen("a", "10.0.0", size) };
        allocator.merge(&edited, &world);
        let status = stored(&allocator);
        let written = PoolSeen { status: status.clone(), ..edited };
        for mut reader in [allocator, PoolAllocator::default()] {
            prop_assert_eq!(reader.merge(&written, &world), []);
            prop_assert_eq!(&stored(&reader), &status);
        }
    }
}

/// A stale view shows that the former owner publishes the address. The new owner must keep the
/// address, because otherwise both would announce it.
#[test]
fn what_ledger_and_memory_agree_on_outweighs_an_old_publication() {
    let mut allocator = PoolAllocator::default();
    allocator.merge(&storing(&[("10.0.0.12", "ns/lb2", "u2")]), &world(&[(2, None)]));
    let repairs = allocator
        .merge(&storing(&[("10.0.0.12", "ns/lb2", "u2")]), &world(&[(1, Some(12)), (2, None)]));
    assert_eq!(ledger(&allocator), [row(12, "ns/lb2", "u2")]);
    assert_eq!(repairs, [LedgerRepair::Double(at("a", "10.0.0.12"), owner(1))]);
}

#[test]
fn one_that_is_being_deleted_takes_nothing_back_from_another() {
    let leaving = LoadBalancerEntry { deleting: true, ..entry(1, Some(12)) };
    let world = || LoadBalancerIndex::new([leaving.clone(), entry(2, None)]);
    let mut allocator = PoolAllocator::default();
    allocator.merge(&storing(&[("10.0.0.12", "ns/lb2", "u2")]), &world());
    assert_eq!(ledger(&allocator), [row(12, "ns/lb2", "u2")]);
    // A LoadBalancer that the ledger names retains its claim until the claim is released.
    let mut allocator = PoolAllocator::default();
    allocator.merge(&storing(&[("10.0.0.12", "ns/lb1", "u1")]), &world());
    assert_eq!(ledger(&allocator), [row(12, "ns/lb1", "u1")]);
}

#[test]
fn a_contradiction_to_the_ledger_is_read_again() {
    let seen = storing(&[("10.0.0.12", "ns/lb2", "u2")]);
    let mut allocator = PoolAllocator::default();
    let mut old_view = world(&[(1, Some(12)), (2, None)]);
    assert_eq!(allocator.owners_to_reread(&seen, &old_view), [owner(1)]);
    // A fresh read shows lb1 with another address, so the ledger is right.
    old_view.update(&owner(1), Some(entry(1, Some(13))));
    assert_eq!(allocator.owners_to_reread(&seen, &old_view), []);
    allocator.merge(&seen, &old_view);
    assert_eq!(ledger(&allocator), [row(12, "ns/lb2", "u2"), row(13, "ns/lb1", "u1")]);
    // A fresh read shows that lb1 was deleted, so the entry of lb1 is removed.
    old_view.update(&owner(1), None);
    assert!(!old_view.contains(&owner(1)));
    assert!(!old_view.contains(&Owner { uid: String::new(), ..owner(1) }));
}

/// Another leader released the claim, because the LoadBalancer was deleted. If the claim were
/// restored from memory, it would never be released, because the deletion is complete.
#[test]
fn memory_does_not_bring_back_the_claim_of_one_that_is_gone() {
    let mut allocator = PoolAllocator::default();
    allocator.merge(&storing(&[("10.0.0.12", "ns/lb1", "u1")]), &world(&[(1, None)]));
    allocator.merge(&storing(&[]), &world(&[(2, None)]));
    assert_eq!(ledger(&allocator), []);
}
