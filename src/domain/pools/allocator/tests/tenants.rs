//! Tests of attacks by a tenant that writes the status of its LoadBalancer while admission does not
//! protect the status.
//!
//! Pool `a` has `10.0.0.10` to `.12` and belongs to the victim. Pool `own` has `10.0.1.10` and
//! `.11` and belongs to the attacker. The victim is lb1, the attacker lb9.

use super::super::{LoadBalancerEntry, LoadBalancerIndex, PoolSeen};
use super::*;

const VICTIM: usize = 1;
const ATTACKER: usize = 9;

fn pools() -> [PoolSeen; 2] {
    let own = for_namespace(seen("own", "10.0.1", 2), "attacker");
    [for_namespace(seen("a", "10.0.0", 3), "victim"), own]
}

fn of(n: usize, namespace: &str) -> LbFacts {
    let requirement = PoolRequirement { namespace: namespace.into(), ..PoolRequirement::default() };
    LbFacts { requirement, ..lb(n) }
}

fn victim() -> LbFacts {
    of(VICTIM, "victim")
}

/// The attacker's facts. The attacker's status publishes the address `ip` of the pool `pool`.
fn attacker(pool: &str, ip: &str) -> LbFacts {
    LbFacts { published: Some(at(pool, ip)), ..of(ATTACKER, "attacker") }
}

fn entry(facts: &LbFacts) -> LoadBalancerEntry {
    LoadBalancerEntry {
        owner: facts.owner.clone(),
        created: facts.created,
        published: facts.published.clone(),
        deleting: false,
    }
}

/// An allocator in which the victim holds its address, and publishes it if `publishes` is set.
fn with_victim(publishes: bool) -> (PoolAllocator, LbFacts) {
    let mut allocator = allocator(&pools());
    let mut facts = victim();
    let result = allocator.claim(&facts);
    assert_eq!(answer(&result), held("a 10.0.0.10"));
    if publishes {
        facts.published = Some(at("a", "10.0.0.10"));
    }
    (allocator, facts)
}

/// The stored pool `of` after the allocator has written its status.
fn stored(allocator: &PoolAllocator, of: &PoolSeen) -> PoolSeen {
    let pool = &allocator.pools()[&of.name];
    let status =
        crate::pools::status::pool_status(pool, &[], None, None, Some(1), "2026-01-01T00:00:00Z");
    PoolSeen { status, ..of.clone() }
}

#[test]
fn while_the_ledger_is_in_memory_a_lie_gains_nothing() {
    for publishes in [false, true] {
        for (pool, ip) in [
            ("a", "10.0.0.10"),
            ("a", "10.0.0.12"),
            ("a", "10.0.0.1"),
            ("own", "10.0.0.10"),
            ("own", "10.0.1.1"),
            ("ghost", "10.0.1.1"),
            ("ghost", "10.0.0.10"),
            ("ghost", "10.0.0.12"),
            ("ghost", "10.0.0.1"),
        ] {
            // The attacker is a new LoadBalancer, or has an address already.
            for has_one in [false, true] {
                let (mut allocator, victim) = with_victim(publishes);
                if has_one {
                    assert_eq!(
                        answer(&allocator.claim(&of(ATTACKER, "attacker"))),
                        held("own 10.0.1.10")
                    );
                }
                let result = allocator.claim(&attacker(pool, ip));
                assert_eq!(answer(&result), held("own 10.0.1.10"), "{pool} {ip} {has_one}");
                assert_eq!(answer(&allocator.claim(&victim)), held("a 10.0.0.10"), "{pool} {ip}");
                assert_eq!(allocator.pools()["a"].ledger.claims().len(), 1, "{pool} {ip}");
            }
        }
    }
}

/// One pool serves both LoadBalancers, so its scope admits both.
#[test]
fn a_neighbour_of_the_same_pool_gains_nothing_either() {
    for pool in ["a", "ghost"] {
        let (mut allocator, victim) = with_victim(true);
        let neighbour =
            LbFacts { published: Some(at(pool, "10.0.0.10")), ..of(ATTACKER, "victim") };
        assert_eq!(answer(&allocator.claim(&neighbour)), held("a 10.0.0.11"), "{pool}");
        assert_eq!(answer(&allocator.claim(&victim)), held("a 10.0.0.10"), "{pool}");
    }
}

/// The victim's pool was deleted, so no ledger records the victim's address.
#[test]
fn an_address_whose_pool_is_gone_is_not_had_either() {
    for pool in ["a", "ghost"] {
        let (mut allocator, victim) = with_victim(true);
        allocator.remove_pool("a");
        let result = allocator.claim(&attacker(pool, "10.0.0.10"));
        assert_eq!(answer(&result), held("own 10.0.1.10"), "{pool}");
        let result = allocator.claim(&victim);
        assert_eq!(answer(&result), (Some("a 10.0.0.10".into()), Some("IPPoolNotFound")), "{pool}");
    }
}

/// The attacker gets the free address of its own pool that it publishes.
#[test]
fn in_a_pool_of_its_own_it_may_choose() {
    let (mut allocator, _) = with_victim(true);
    assert_eq!(answer(&allocator.claim(&attacker("own", "10.0.1.11"))), held("own 10.0.1.11"));
}

/// A ledger is read at the start of a term of leadership, and after another client wrote the pool.
#[test]
fn while_a_ledger_is_read_no_owner_loses_an_address_that_it_names() {
    for publishes in [false, true] {
        let (before, victim) = with_victim(publishes);
        let lie = attacker("a", "10.0.0.10");
        let world = LoadBalancerIndex::new([entry(&victim), entry(&lie)]);
        for in_memory in [false, true] {
            let mut allocator = if in_memory { before.clone() } else { PoolAllocator::default() };
            for pool in &pools() {
                allocator.merge(&stored(&before, pool), &world);
            }
            assert_eq!(
                answer(&allocator.claim(&lie)),
                held("own 10.0.1.10"),
                "{publishes} {in_memory}"
            );
            assert_eq!(
                answer(&allocator.claim(&victim)),
                held("a 10.0.0.10"),
                "{publishes} {in_memory}"
            );
        }
    }
}

/// The ledger was wiped, so only published addresses are left. If two LoadBalancers publish one
/// address, the older LoadBalancer keeps the address.
#[test]
fn where_the_ledger_is_lost_too_the_older_of_two_keeps_what_both_publish() {
    let (_, victim) = with_victim(true);
    let lie = attacker("a", "10.0.0.10");
    let mut allocator = PoolAllocator::default();
    for pool in &pools() {
        allocator.merge(pool, &LoadBalancerIndex::new([entry(&victim), entry(&lie)]));
    }
    assert_eq!(answer(&allocator.claim(&lie)), held("own 10.0.1.10"));
    assert_eq!(answer(&allocator.claim(&victim)), held("a 10.0.0.10"));
}

/// A known gap: while a ledger is read, a free address that a LoadBalancer publishes counts as in
/// use, because its claim may be missing from the ledger.
#[test]
fn while_a_ledger_is_read_an_address_that_is_free_can_be_had_out_of_scope() {
    let (before, victim) = with_victim(true);
    let lie = attacker("a", "10.0.0.12");
    let mut allocator = PoolAllocator::default();
    for pool in &pools() {
        allocator
            .merge(&stored(&before, pool), &LoadBalancerIndex::new([entry(&victim), entry(&lie)]));
    }
    assert_eq!(answer(&allocator.claim(&lie)), held("a 10.0.0.12"));
    assert_eq!(
        answer(&allocator.claim(&victim)),
        held("a 10.0.0.10"),
        "and the victim keeps its own"
    );
}
