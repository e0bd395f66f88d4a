//! Tests of addresses that no ledger covers, case by case.

use super::super::tests::{at, everybody, for_namespace, lb, named, owner, seen};
use super::super::{ClaimResult, PoolSeen};
use super::*;
use crate::AnnouncedAddresses;
use crate::pools::status::pool_status;
use crate::reason::NoAddressReason;

/// A pool of `10.0.0.10` and the `size - 1` addresses after it, on a VLAN of its own.
fn on_vlan(name: &str, vlan: u16, size: usize) -> PoolSeen {
    let mut pool = seen(name, "10.0.0", size);
    pool.spec.selector.as_mut().unwrap().network = Some(format!("ns/{name}"));
    PoolSeen { segment: Segment::Vlan("br".into(), vlan), ..pool }
}

fn allocator(pools: &[PoolSeen]) -> PoolAllocator {
    let mut allocator = PoolAllocator::default();
    for pool in pools {
        allocator.merge(pool, &everybody());
    }
    allocator
}

/// A LoadBalancer of type vm. Nodes announce its address, and have no link for the pool's VLAN.
fn vm(n: usize, pool: &str) -> LbFacts {
    LbFacts { guest: false, ..named(n, pool) }
}

/// Claims an address. Returns the address, or the reason why the LoadBalancer gets none.
fn given(allocator: &mut PoolAllocator, facts: &LbFacts) -> String {
    match allocator.claim(facts) {
        ClaimResult::Held { claim, .. } => claim.ip.to_string(),
        ClaimResult::Waiting(wait) => wait.reason().to_owned(),
    }
}

fn ip(last: usize) -> String {
    format!("10.0.0.{last}")
}

#[test]
fn an_address_is_one_load_balancers_where_it_is_announced() {
    let mut allocator = allocator(&[on_vlan("v", 1, 3), seen("m", "10.0.0", 3)]);
    // lb1's address of pool v is announced on the default interface. That is the segment of pool m,
    // so pool m does not give out the address.
    assert_eq!(given(&mut allocator, &vm(1, "v")), ip(10));
    assert_eq!(given(&mut allocator, &named(2, "m")), ip(11));
    // The reverse: pool v does not give out the address of lb2, which is of pool m.
    assert_eq!(given(&mut allocator, &vm(3, "v")), ip(12));
    assert_eq!(given(&mut allocator, &named(4, "m")), "NoAvailableIP");
    // The address of a guest is announced on the VLAN only, so pools v and m may both give it out.
    assert_eq!(given(&mut allocator, &named(5, "v")), ip(11));
    assert_eq!(allocator.shared(), 0);
    // An address that pool v releases is free in pool m.
    allocator.release(&owner(1));
    assert_eq!(allocator.serve_waiters(), [owner(4)]);
    assert_eq!(allocator.claims_of("u4"), [at("m", "10.0.0.10")]);
}

#[test]
fn a_network_that_contradicts_the_pool_is_refused_to_the_new_and_reported_to_holders() {
    let mut allocator = allocator(&[on_vlan("v", 1, 3)]);
    let elsewhere = |n| LbFacts { segment: Some(Segment::Vlan("br".into(), 2)), ..named(n, "v") };
    let ClaimResult::Waiting(NoAddressReason::NetworkMismatch { pool, .. }) =
        allocator.claim(&elsewhere(1))
    else {
        panic!("it has an address of a network that is not its own")
    };
    assert_eq!(pool, "v");
    assert_eq!(given(&mut allocator, &named(2, "v")), ip(10));
    let published = LbFacts { published: Some(at("v", "10.0.0.10")), ..elsewhere(2) };
    let ClaimResult::Held { claim, instead, .. } = allocator.claim(&published) else {
        panic!("it lost it")
    };
    assert_eq!(claim, at("v", "10.0.0.10"));
    assert!(matches!(instead, Some(NoAddressReason::NetworkMismatch { .. })), "{instead:?}");
}

/// The pool is deleted before the claim is in the LoadBalancer's status.
#[test]
fn a_claim_that_is_not_published_yet_outlives_its_pool() {
    let mut allocator = allocator(&[seen("a", "10.0.0", 3)]);
    assert_eq!(given(&mut allocator, &lb(1)), ip(10));
    allocator.remove_pool("a");
    allocator.merge(&seen("b", "10.0.0", 3), &everybody());
    assert_eq!(given(&mut allocator, &lb(2)), ip(11));
    let published = LbFacts { published: Some(at("a", "10.0.0.10")), ..lb(1) };
    assert_eq!(given(&mut allocator, &published), ip(10));
}

#[test]
fn what_a_term_begins_with_stays_whatever_scopes_say() {
    let other = for_namespace(seen("b", "10.0.0", 3), "other");
    let mut allocator = allocator(&[other]);
    let published = LbFacts { published: Some(at("gone", "10.0.0.10")), ..lb(1) };
    allocator.adopt(&published);
    assert_eq!(given(&mut allocator, &published), ip(10));
    let mut anothers = lb(2);
    anothers.requirement.namespace = "other".into();
    assert_eq!(given(&mut allocator, &anothers), ip(11));
}

#[test]
fn what_is_published_without_a_pool_is_reserved_as_soon_as_it_is_seen() {
    let mut allocator = allocator(&[seen("b", "10.0.0", 3)]);
    allocator.observe(&LbFacts { published: Some(at("gone", "10.0.0.10")), ..lb(1) });
    assert_eq!(given(&mut allocator, &lb(2)), ip(11));
}

/// Deletes the pool after the LoadBalancer has claimed and published `10.0.0.10` of it. Returns the
/// facts of the LoadBalancer.
fn deleted(allocator: &mut PoolAllocator, pool: &str, facts: LbFacts) -> LbFacts {
    assert_eq!(given(allocator, &facts), ip(10));
    let published = LbFacts { published: Some(at(pool, "10.0.0.10")), ..facts };
    allocator.remove_pool(pool);
    allocator.observe(&published);
    published
}

/// lb2 had the same address on another segment before the deletion.
#[test]
fn an_address_of_a_deleted_pool_goes_to_no_other_on_any_segment() {
    for facts in [named(1, "v"), vm(1, "v")] {
        let mut allocator = allocator(&[on_vlan("v", 1, 3), on_vlan("w", 2, 2)]);
        assert_eq!(given(&mut allocator, &named(2, "w")), ip(10));
        let published = deleted(&mut allocator, "v", facts);
        allocator.release(&owner(2));
        assert_eq!(given(&mut allocator, &named(4, "w")), ip(11));
        let asks = LbFacts { former: Some(at("w", "10.0.0.10")), ..named(5, "w") };
        for new in [asks, named(2, "w")] {
            assert_eq!(given(&mut allocator, &new), "NoAvailableIP", "{new:?}");
        }
        allocator.merge(&on_vlan("same", 1, 3), &everybody());
        assert_eq!(given(&mut allocator, &named(3, "same")), ip(11));
        assert_eq!(allocator.shared(), 0);
        let ClaimResult::Held { claim, network, .. } = allocator.claim(&published) else {
            panic!("it lost it")
        };
        assert_eq!((claim, network), (at("v", "10.0.0.10"), Some("ns/v".to_owned())));
    }
}

#[test]
fn an_address_of_a_deleted_pool_moves_with_the_pools_network() {
    for (w, is_beside) in [(3, false), (2, true)] {
        let mut allocator = allocator(&[on_vlan("v", 1, 3), on_vlan("w", 2, 3)]);
        assert_eq!(given(&mut allocator, &named(2, "w")), ip(10));
        let published = deleted(&mut allocator, "v", named(1, "v"));
        allocator.release(&owner(2));
        let vlan = |network: &str| if network == "ns/v" { 2 } else { w };
        allocator.relocate(|network| Segment::Vlan("br".into(), vlan(network)));
        allocator.observe(&published);
        assert_eq!(given(&mut allocator, &named(2, "w")), ip(11));
        let held_back = allocator.pools()["w"].ledger.held_back();
        assert_eq!(!held_back.is_empty(), is_beside, "VLAN {w}: {held_back:?}");
    }
}

/// lb2 had the same address on another segment before lb1, and is created again. If it got the
/// address, the next leader would withdraw the address from lb1.
#[test]
fn a_former_owner_does_not_make_a_later_term_withdraw_an_address_of_a_deleted_pool() {
    let mut first = allocator(&[on_vlan("v", 1, 3), on_vlan("w", 2, 3)]);
    assert_eq!(given(&mut first, &named(2, "w")), ip(10));
    first.release(&owner(2));
    let published = deleted(&mut first, "v", named(1, "v"));
    assert_eq!(given(&mut first, &named(2, "w")), ip(11));

    let pool = &first.pools()["w"];
    let status = pool_status(pool, &[], None, None, None, "2026-01-01T00:00:00Z");
    let mut later = allocator(&[PoolSeen { status, ..on_vlan("w", 2, 3) }]);
    later.adopt(&published);
    assert_eq!(given(&mut later, &published), ip(10));
    assert_eq!(later.shared(), 0);
}

#[test]
fn a_service_does_not_move_to_the_address_that_it_has() {
    for (facts, moved) in [(vm as fn(usize, &str) -> LbFacts, 11), (named, 10)] {
        for is_deleted in [false, true] {
            let mut allocator = allocator(&[on_vlan("v", 1, 3), on_vlan("w", 2, 3)]);
            assert_eq!(given(&mut allocator, &facts(1, "v")), ip(10));
            if is_deleted {
                allocator.remove_pool("v");
            }
            let claim = Some(at("v", "10.0.0.10"));
            let moves = LbFacts { published: claim.clone(), former: claim, ..facts(1, "w") };
            assert_eq!(given(&mut allocator, &moves), ip(moved), "deleted: {is_deleted}");
        }
    }
}

/// The only address of pool w is the one that the Service has from pool v. Pool w shows it as free.
#[test]
fn a_pool_that_has_only_the_services_own_address_says_so() {
    let mut allocator = allocator(&[on_vlan("v", 1, 3), on_vlan("w", 2, 1)]);
    assert_eq!(given(&mut allocator, &vm(1, "v")), ip(10));
    let moves = LbFacts { published: Some(at("v", "10.0.0.10")), ..vm(1, "w") };
    let why = |allocator: &mut PoolAllocator| match allocator.claim(&moves) {
        ClaimResult::Held { claim, instead, .. } if claim == at("v", "10.0.0.10") => instead,
        other => panic!("{other:?}"),
    };
    assert_eq!(allocator.pools()["w"].ledger.available(), 1);
    let own = NoAddressReason::OwnAddress { pool: "w".into(), ip: [10, 0, 0, 10].into() };
    assert_eq!(why(&mut allocator), Some(own));
    assert_eq!(given(&mut allocator, &named(2, "w")), ip(10));
    assert_eq!(why(&mut allocator), Some(NoAddressReason::Full { pools: vec!["w".into()] }));
    // Of two addresses, the other one is given as soon as it is free.
    allocator.merge(&on_vlan("w", 2, 2), &everybody());
    assert_eq!(given(&mut allocator, &moves), ip(11));
}

/// lb1 names pool w, and pool v again before its Service is announced at the new address. The list
/// of Services is incomplete at first.
#[test]
fn a_claim_whose_address_the_service_has_is_released_when_the_service_has_another() {
    let mut allocator = allocator(&[on_vlan("v", 1, 3), seen("w", "10.0.1", 3)]);
    assert_eq!(given(&mut allocator, &vm(1, "v")), ip(10));
    let published = Some(at("v", "10.0.0.10"));
    let moves = LbFacts { published: published.clone(), ..vm(1, "w") };
    assert_eq!(given(&mut allocator, &moves), "10.0.1.10");
    let announced = |ips: &[&str]| {
        AnnouncedAddresses::Known(ips.iter().map(|ip| ip.parse().unwrap()).collect())
    };
    let all = [at("v", "10.0.0.10"), at("w", "10.0.1.10")];
    for (service, left) in [
        (AnnouncedAddresses::Unknown, 2),
        (announced(&["10.0.1.10"]), 2),
        (announced(&["10.0.0.10", "10.0.1.10"]), 2),
        (announced(&["10.0.0.10"]), 1),
    ] {
        let back = LbFacts { published: published.clone(), service, ..vm(1, "v") };
        assert_eq!(given(&mut allocator, &back), ip(10));
        assert_eq!(allocator.claims_of("u1"), &all[..left], "{:?}", back.service);
    }
}

/// The only address of the new pool is reserved for lb1, which does not publish it yet.
#[test]
fn an_address_of_a_deleted_pool_is_free_for_its_own_load_balancer() {
    let mut allocator = allocator(&[seen("a", "10.0.0", 1)]);
    assert_eq!(given(&mut allocator, &lb(1)), ip(10));
    allocator.remove_pool("a");
    assert_eq!(given(&mut allocator, &lb(1)), "NoMatchedIPPool");
    allocator.merge(&seen("b", "10.0.0", 1), &everybody());
    assert_eq!(given(&mut allocator, &lb(2)), "NoAvailableIP");
    assert_eq!(given(&mut allocator, &lb(1)), ip(10));
}

/// The pool of lb1's address was deleted before the term. lb1 is a guest that names a network.
#[test]
fn a_new_term_leaves_one_address_to_two_on_different_segments() {
    let mut allocator = allocator(&[on_vlan("w", 2, 3)]);
    assert_eq!(given(&mut allocator, &named(2, "w")), ip(10));
    let segment = Some(Segment::Vlan("br".into(), 1));
    let published = LbFacts { segment, published: Some(at("gone", "10.0.0.10")), ..lb(1) };
    allocator.adopt(&published);
    assert_eq!(given(&mut allocator, &published), ip(10));
    assert_eq!(given(&mut allocator, &named(2, "w")), ip(10));
    assert_eq!(allocator.shared(), 0);
}

/// The pool of lb1's address was deleted before the term. Nothing shows that lb1 does not announce
/// the address on the segment of pool w.
#[test]
fn an_address_that_a_new_term_takes_away_is_given_out_after_its_withdrawal() {
    let mut allocator = allocator(&[on_vlan("w", 2, 3)]);
    assert_eq!(given(&mut allocator, &named(2, "w")), ip(10));
    let withdrawn = named(1, "gone");
    let published = LbFacts { published: Some(at("gone", "10.0.0.10")), ..withdrawn.clone() };
    allocator.adopt(&published);
    assert_eq!(given(&mut allocator, &published), "IPPoolNotFound");
    assert!(matches!(allocator.claim(&published), ClaimResult::Waiting(_)));
    allocator.merge(&on_vlan("v", 1, 1), &everybody());
    assert_eq!(given(&mut allocator, &named(3, "v")), "NoAvailableIP");
    assert_eq!(allocator.shared(), 1, "lb1 and lb2 may be on one segment");
    allocator.observe(&withdrawn);
    assert_eq!(allocator.serve_waiters(), [owner(3)]);
    assert_eq!(allocator.claims_of("u3"), [at("v", "10.0.0.10")]);
    assert_eq!(allocator.shared(), 0);
}

/// The ledger of pool v lacks the address that lb2 publishes. Nodes announce it on the segment of
/// pool m.
#[test]
fn a_published_address_that_another_has_beside_the_pools_segment_is_not_read_back() {
    let mut allocator = allocator(&[on_vlan("v", 1, 3), seen("m", "10.0.0", 3)]);
    assert_eq!(given(&mut allocator, &named(1, "m")), ip(10));
    let published = LbFacts { published: Some(at("v", "10.0.0.10")), ..vm(2, "v") };
    assert_eq!(given(&mut allocator, &published), ip(11));
}

#[test]
fn who_asks_for_a_former_address_has_it_and_others_avoid_it_while_they_can() {
    let mut allocator = allocator(&[seen("a", "10.0.0", 5)]);
    let restored = |n, last: usize| {
        let former = at("a", &format!("10.0.0.{last}"));
        LbFacts { former: Some(former), ..lb(n) }
    };
    for (n, last) in [(1, 10), (2, 13)] {
        allocator.observe(&restored(n, last));
    }
    assert_eq!(given(&mut allocator, &lb(3)), ip(11), "the first is expected");
    assert_eq!(given(&mut allocator, &restored(2, 13)), ip(13), "not the next one");
    for (n, last) in [(4, 12), (5, 14)] {
        assert_eq!(given(&mut allocator, &lb(n)), ip(last));
    }
    // No other address is left, so an expected address is given out.
    assert_eq!(given(&mut allocator, &lb(6)), ip(10));
    assert_eq!(given(&mut allocator, &restored(1, 10)), "NoAvailableIP");
}
