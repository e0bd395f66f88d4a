//! Tests of which waiters are tried again after a change.

use super::super::PoolSeen;
use super::super::tests::{at, everybody, for_namespace, lb, named, owner, seen};
use super::*;
use crate::network::Segment;

fn vlan(number: u16) -> Segment {
    Segment::Vlan("br".into(), number)
}

/// A pool of `<net>.10` and the `size - 1` addresses after it, on a network with the pool's name.
fn on(segment: Segment, name: &str, net: &str, size: usize) -> PoolSeen {
    let mut pool = seen(name, net, size);
    pool.spec.selector.as_mut().unwrap().network = Some(name.into());
    PoolSeen { segment, ..pool }
}

/// LoadBalancer that names a pool, and a network on this segment.
fn at_home_on(segment: Segment, n: usize, pool: &str) -> LbFacts {
    LbFacts { segment: Some(segment), ..named(n, pool) }
}

/// An allocator with these pools and LoadBalancers. No waiter is marked to be tried again.
fn settled(pools: &[PoolSeen], lbs: &[LbFacts]) -> PoolAllocator {
    let mut allocator = PoolAllocator::default();
    for pool in pools {
        allocator.merge(pool, &everybody());
    }
    for facts in lbs {
        allocator.claim(facts);
    }
    allocator.serve_waiters();
    assert_eq!(tried_again(&mut allocator), [""; 0]);
    allocator
}

/// Moves the pools, and observes the LoadBalancers, as the ledger task does after a change of
/// networks.
fn relocate(allocator: &mut PoolAllocator, lbs: &[LbFacts], segment: impl FnMut(&str) -> Segment) {
    allocator.relocate(segment);
    assert!(allocator.take_moved());
    for facts in lbs {
        allocator.observe(facts);
    }
}

/// Names of the waiters that the next [`PoolAllocator::serve_waiters`] tries again.
fn tried_again(allocator: &mut PoolAllocator) -> Vec<String> {
    allocator.compare_pools();
    let changes = &allocator.waiter_changes;
    if changes.is_nothing() { Vec::new() } else { concerned(allocator, changes) }
}

/// Names of the waiters whose answer may be affected by the changes.
fn concerned(allocator: &PoolAllocator, changes: &WaiterChanges) -> Vec<String> {
    allocator.concerned(changes).into_iter().map(|(owner, _)| owner.name).collect()
}

/// A change by one tenant causes no search for the waiters of other pools.
#[test]
fn only_those_are_asked_again_whom_a_change_may_serve() {
    let mut allocator = PoolAllocator::default();
    allocator.merge(&seen("a", "10.0.0", 1), &everybody());
    allocator.merge(&for_namespace(seen("b", "10.0.1", 1), "other"), &everybody());
    allocator.claim(&lb(1));
    allocator.claim(&lb(2));
    let mut others = lb(3);
    others.requirement.namespace = "nowhere".into();
    allocator.claim(&others);
    allocator.claim(&named(4, "c"));
    let concerned = |pool: &str| {
        let pools = BTreeSet::from([pool.to_owned()]);
        concerned(&allocator, &WaiterChanges { pools, ..WaiterChanges::default() })
    };
    assert_eq!(allocator.waiting().count(), 3);
    assert_eq!(concerned("a"), [""; 0], "it is as full as it was");
    assert_eq!(concerned("b"), [""; 0], "it admits none of them");
    assert_eq!(concerned("c").len(), 3, "it is gone, or new");
    allocator.release(&owner(1));
    assert_eq!(allocator.serve_waiters(), [lb(2).owner]);
}

/// Tenants create networks in their own namespaces. Such a change must not cause a search for the
/// waiters of all other tenants.
#[test]
fn a_change_of_networks_that_moves_no_pool_tries_no_waiter_again() {
    let pools = [on(vlan(1), "a", "10.0.0", 1), on(vlan(2), "b", "10.0.1", 1)];
    let lbs = [at_home_on(vlan(3), 1, "a"), at_home_on(vlan(3), 2, "b"), named(3, "absent"), lb(4)];
    let mut allocator = settled(&pools, &lbs);
    assert_eq!(allocator.waiting().count(), 4);
    relocate(&mut allocator, &lbs, |network| vlan(if network == "a" { 1 } else { 2 }));
    assert_eq!(tried_again(&mut allocator), [""; 0]);
    // The pools stay where they are, but lb2's network moves to the segment of pool `b`.
    let moved = [at_home_on(vlan(3), 1, "a"), at_home_on(vlan(2), 2, "b")];
    relocate(&mut allocator, &moved, |network| vlan(if network == "a" { 1 } else { 2 }));
    assert_eq!(tried_again(&mut allocator), ["ns/lb2"]);
    assert_eq!(allocator.serve_waiters(), [owner(2)]);
}

/// Pool `a` moves to another segment. Pool `b` stood back because of pool `a`, and gives out
/// addresses after the move. Pool `c` has nothing to do with the two.
#[test]
fn a_pool_that_moves_concerns_its_waiters_and_those_of_the_pools_that_it_blocked() {
    let pools = [
        on(vlan(1), "a", "10.0.0", 2),
        on(vlan(1), "b", "10.0.0", 2),
        on(vlan(3), "c", "10.0.2", 2),
    ];
    let lbs = [
        named(1, "a"),
        at_home_on(vlan(2), 2, "a"),
        named(3, "b"),
        named(4, "c"),
        at_home_on(vlan(2), 5, "c"),
    ];
    let mut allocator = settled(&pools, &lbs);
    let waits = allocator.waiting().map(|(facts, wait)| (facts.owner.uid.as_str(), wait.reason()));
    assert_eq!(
        waits.collect::<Vec<_>>(),
        [("u2", "NetworkMismatch"), ("u3", "IPPoolNotReady"), ("u5", "NetworkMismatch")]
    );
    relocate(&mut allocator, &lbs, |network| match network {
        "a" => vlan(2),
        "b" => vlan(1),
        _ => vlan(3),
    });
    assert_eq!(tried_again(&mut allocator), ["ns/lb2", "ns/lb3"]);
    assert_eq!(allocator.serve_waiters(), [owner(2), owner(3)]);
    assert_eq!(allocator.claims_of("u2"), [at("a", "10.0.0.11")]);
    assert_eq!(allocator.claims_of("u3"), [at("b", "10.0.0.10")]);
}

/// The address of a vm LoadBalancer on the VLAN of pool `v` is announced on the nodes' own network.
/// Pool `m` holds the same address there, until it moves to another segment. Pool `v` does not
/// move.
#[test]
fn a_pool_that_moves_concerns_the_pools_whose_addresses_were_announced_on_its_segment() {
    let pools = [on(vlan(1), "v", "10.0.0", 1), on(Segment::Management, "m", "10.0.0", 1)];
    let lbs = [named(1, "m"), LbFacts { guest: false, ..named(2, "v") }];
    let mut allocator = settled(&pools, &lbs);
    assert_eq!(allocator.waiting().count(), 1);
    relocate(&mut allocator, &lbs, |network| vlan(if network == "v" { 1 } else { 2 }));
    assert_eq!(tried_again(&mut allocator), ["ns/lb2"]);
    assert_eq!(allocator.serve_waiters(), [owner(2)]);
    assert_eq!(allocator.claims_of("u2"), [at("v", "10.0.0.10")]);
}

/// A full pool moves away from a waiter's network. The waiter's reason is then that the pool is on
/// another network, no longer that the pool is full.
#[test]
fn a_full_pool_that_moves_away_gives_its_waiters_another_reason() {
    let lbs = [named(1, "a"), at_home_on(vlan(1), 2, "a"), named(3, "a")];
    let mut allocator = settled(&[on(vlan(1), "a", "10.0.0", 1)], &lbs);
    relocate(&mut allocator, &lbs, |_| vlan(2));
    assert_eq!(tried_again(&mut allocator), ["ns/lb2"]);
    assert_eq!(allocator.serve_waiters(), [owner(2)]);
    let waits: Vec<_> = allocator.waiting().map(|(_, wait)| wait.reason()).collect();
    assert_eq!(waits, ["NetworkMismatch", "NoAvailableIP"]);
}

/// The sweep finds by this a LoadBalancer that takes no address from pools any more.
#[test]
fn a_claim_and_a_waiting_request_are_known_until_their_release() {
    let mut allocator = settled(&[seen("a", "10.0.0", 1)], &[lb(1), lb(2)]);
    let known = |allocator: &PoolAllocator| ["u1", "u2", "u3"].map(|uid| allocator.knows(uid));
    assert_eq!(known(&allocator), [true, true, false]);
    for n in [2, 1] {
        allocator.release(&owner(n));
    }
    assert_eq!(known(&allocator), [false; 3], "although the pool must be written");
}

/// The LoadBalancer publishes the address of a deleted pool, so no ledger has the claim.
#[test]
fn an_address_of_a_deleted_pool_is_known_until_its_release() {
    let mut allocator = settled(&[seen("a", "10.0.0", 1)], &[lb(1)]);
    allocator.remove_pool("a");
    assert_eq!((allocator.claims_of("u1").len(), allocator.knows("u1")), (0, true));
    allocator.release(&owner(1));
    assert!(!allocator.knows("u1"));
}
