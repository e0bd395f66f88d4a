//! Tests of the allocator, case by case.

mod model;
mod tenants;

use super::*;
use api;

pub(super) fn owner(n: usize) -> Owner {
    Owner { name: format!("ns/lb{n}"), uid: format!("u{n}") }
}

/// LoadBalancer `n` in namespace `ns`. A lower number means an older LoadBalancer.
pub(super) fn lb(n: usize) -> LbFacts {
    LbFacts {
        owner: owner(n),
        created: i64::try_from(n).unwrap(),
        requirement: PoolRequirement { namespace: "ns".into(), ..PoolRequirement::default() },
        guest: true,
        fresh: true,
        ..LbFacts::default()
    }
}

/// Index of LoadBalancers 0 to 9: all exist, and none publishes an address.
pub(super) fn everybody() -> LoadBalancerIndex {
    LoadBalancerIndex::new((0..10).map(|n| LoadBalancerEntry {
        owner: owner(n),
        created: i64::try_from(n).unwrap(),
        published: None,
        deleting: false,
    }))
}

pub(super) fn named(n: usize, pool: &str) -> LbFacts {
    LbFacts { named_pool: Some(pool.into()), ..lb(n) }
}

pub(super) fn at(pool: &str, ip: &str) -> Claim {
    Claim { pool: pool.into(), ip: ip.parse().unwrap() }
}

/// A pool for namespace `ns`, with a priority that its name determines. It gives out `<net>.10` and
/// the `size - 1` addresses after it; a size of 0 makes a faulty pool.
pub(super) fn seen(name: &str, net: &str, size: usize) -> PoolSeen {
    let range = api::Range {
        subnet: format!("{net}.0/24"),
        range_start: Some(format!("{net}.10")),
        range_end: Some(if size > 0 { format!("{net}.{}", 9 + size) } else { "none".into() }),
        ..api::Range::default()
    };
    let spec = api::IPPoolSpec { ranges: vec![range], ..api::IPPoolSpec::default() };
    let seen = PoolSeen {
        name: name.into(),
        created: 0,
        segment: Segment::Management,
        deleting: false,
        spec,
        status: api::IPPoolStatus::default(),
    };
    for_namespace(seen, "ns")
}

pub(super) fn for_namespace(mut seen: PoolSeen, namespace: &str) -> PoolSeen {
    let scope = api::Scope { namespace: Some(namespace.into()), ..api::Scope::default() };
    // A pool whose name comes earlier in the alphabet is chosen earlier.
    let letters = seen.name.bytes().chain([0; 2]).take(2);
    let priority = Some(letters.fold(0, |sum, letter| sum * 256 + 255 - i64::from(letter)));
    seen.spec.selector =
        Some(api::Selector { scope: Some(vec![scope]), priority, ..api::Selector::default() });
    seen
}

pub(super) fn allocator(pools: &[PoolSeen]) -> PoolAllocator {
    let mut allocator = PoolAllocator::default();
    for pool in pools {
        allocator.merge(pool, &everybody());
    }
    allocator.take_touched();
    allocator
}

/// Allocator with two pools. Pool `a` has as many addresses as the argument `a` says, from
/// `10.0.0.10` on. Pool `b` has as many as the argument `b` says, from `10.0.1.10` on.
pub(super) fn two(a: usize, b: usize) -> PoolAllocator {
    allocator(&[seen("a", "10.0.0", a), seen("b", "10.0.1", b)])
}

/// Pool and address in the answer, and the reason in the answer. The reason says why the
/// LoadBalancer has no address, or has another address than it requests.
fn answer(result: &ClaimResult) -> (Option<String>, Option<&'static str>) {
    match result {
        ClaimResult::Held { claim, instead, .. } => (
            Some(format!("{} {}", claim.pool, claim.ip)),
            instead.as_ref().map(NoAddressReason::reason),
        ),
        ClaimResult::Waiting(wait) => (None, Some(wait.reason())),
    }
}

fn held(text: &str) -> (Option<String>, Option<&'static str>) {
    (Some(text.into()), None)
}

/// Claims an address, and publishes it.
fn publish(
    allocator: &mut PoolAllocator,
    facts: &mut LbFacts,
) -> (Option<String>, Option<&'static str>) {
    let result = allocator.claim(facts);
    facts.published = match &result {
        ClaimResult::Held { claim, .. } => Some(claim.clone()),
        ClaimResult::Waiting(_) => None,
    };
    answer(&result)
}

#[test]
fn asking_again_gives_the_same_address() {
    let mut allocator = two(3, 3);
    let first = allocator.claim(&lb(1));
    assert_eq!(answer(&first), held("a 10.0.0.10"));
    assert_eq!(allocator.take_touched(), BTreeSet::from(["a".to_owned()]));
    assert_eq!(allocator.claim(&lb(1)), first);
    assert_eq!(allocator.peek(&lb(1), |_| false), Some(first));
    assert!(allocator.take_touched().is_empty());
    assert_eq!(allocator.claims_of("u1"), [at("a", "10.0.0.10")]);
}

/// `peek` gives no answer while the write of the claim's pool is pending.
#[test]
fn a_claim_is_peeked_at_only_after_its_pool_was_written() {
    let mut allocator = two(3, 3);
    allocator.claim(&lb(1));
    assert_eq!(
        (allocator.peek(&lb(1), |_| false), allocator.peek(&lb(2), |_| false)),
        (None, None)
    );
    assert!(!allocator.has_nothing_to_release("u2"), "the release of u2 may rest on this write");
    allocator.take_touched();
    assert!(
        allocator.peek(&lb(1), |_| false).is_some()
            && allocator.peek(&named(1, "b"), |_| false).is_none()
    );
    assert!(allocator.has_nothing_to_release("u2") && !allocator.has_nothing_to_release("u1"));
}

/// A reconcile may begin before the claim of its LoadBalancer is released, and ask for the address
/// after the release. The request finds no recorded answer, so it is a new claim.
#[test]
fn a_released_claim_is_no_confirmed_answer() {
    let mut allocator = allocator(&[seen("a", "10.0.0", 1)]);
    let mut facts = LbFacts { fresh: false, ..lb(1) };
    assert_eq!(publish(&mut allocator, &mut facts), held("a 10.0.0.10"));
    allocator.take_touched();
    let mut confirmed = ConfirmedClaims::default();
    confirmed.confirm(facts.clone(), allocator.peek(&facts, |_| false).unwrap());
    assert_eq!(confirmed.answer(&facts), allocator.peek(&facts, |_| false));
    confirmed.forget(&facts.owner);
    allocator.release(&owner(1));
    assert_eq!(answer(&allocator.claim(&lb(2))), held("a 10.0.0.10"));
    assert_eq!(confirmed.answer(&facts), None);
    assert_eq!(answer(&allocator.claim(&facts)), (None, Some("NoAvailableIP")));
}

#[test]
fn each_refusal_has_its_reason() {
    let faulty = seen("faulty", "10.0.2", 0);
    let deleting = PoolSeen { deleting: true, ..seen("deleting", "10.0.3", 3) };
    let foreign = for_namespace(seen("foreign", "10.0.4", 3), "other");
    let mut allocator = allocator(&[seen("full", "10.0.0", 1), faulty, deleting, foreign]);
    assert_eq!(answer(&allocator.claim(&named(1, "full"))), held("full 10.0.0.10"));
    for (pool, reason, words) in [
        ("full", "NoAvailableIP", "no available IP"),
        ("absent", "IPPoolNotFound", "no matched IPPool"),
        ("foreign", "IPPoolForbidden", "no matched IPPool"),
        ("faulty", "IPPoolNotReady", "spec.ranges[0].rangeEnd"),
        ("deleting", "IPPoolNotReady", "being deleted"),
    ] {
        let ClaimResult::Waiting(wait) = allocator.claim(&named(2, pool)) else { panic!("{pool}") };
        assert_eq!(wait.reason(), reason, "{pool}");
        assert!(wait.message().contains(words) && wait.message().contains(pool), "{wait:?}");
    }
    let stranger = LbFacts { requirement: PoolRequirement::default(), ..lb(3) };
    assert_eq!(answer(&allocator.claim(&stranger)), (None, Some("NoMatchedIPPool")));
    // Several pools fit, and the reason names a pool that gives out no addresses.
    assert_eq!(answer(&allocator.claim(&lb(4))), (None, Some("IPPoolNotReady")));
}

#[test]
fn the_next_candidate_serves_when_the_first_is_full_or_idle() {
    let mut allocator = two(1, 1);
    assert_eq!(answer(&allocator.claim(&lb(1))), held("a 10.0.0.10"));
    assert_eq!(answer(&allocator.claim(&lb(2))), held("b 10.0.1.10"));
    assert_eq!(answer(&allocator.claim(&lb(3))), (None, Some("NoAvailableIP")));
    let mut allocator = two(0, 1);
    assert_eq!(answer(&allocator.claim(&lb(1))), held("b 10.0.1.10"));
}

/// Each event frees an address for exactly one of three waiters. The waiter that must be served
/// first made its request last.
#[test]
fn the_oldest_waiter_is_served_whatever_made_the_room() {
    let events: [fn(&mut PoolAllocator); 5] = [
        |allocator| drop(allocator.release(&owner(0))),
        |allocator| assert!(allocator.release_claim(&at("a", "10.0.0.10"), &owner(0))),
        |allocator| drop(allocator.merge(&seen("a", "10.0.0", 2), &everybody())),
        |allocator| drop(allocator.merge(&seen("c", "10.0.2", 1), &everybody())),
        |allocator| drop(allocator.merge(&seen("b", "10.0.1", 1), &everybody())),
    ];
    for (index, event) in events.into_iter().enumerate() {
        let closed = for_namespace(seen("b", "10.0.1", 1), "other");
        let mut allocator = allocator(&[seen("a", "10.0.0", 1), closed]);
        allocator.claim(&lb(0));
        // This LoadBalancer is as old as lb3, so the name decides.
        let second = LbFacts { created: 3, ..lb(2) };
        for facts in [&lb(3), &lb(4), &second] {
            allocator.claim(facts);
        }
        assert!(allocator.serve_waiters().is_empty());
        event(&mut allocator);
        assert_eq!(allocator.serve_waiters().first(), Some(&second.owner), "event {index}");
        let left: Vec<_> = allocator.waiting().map(|(facts, _)| facts.owner.uid.as_str()).collect();
        assert_eq!(left, ["u3", "u4"], "event {index}");
    }
}

#[test]
fn a_waiter_is_notified_when_the_reason_changes() {
    let mut allocator = PoolAllocator::default();
    assert_eq!(answer(&allocator.claim(&lb(1))), (None, Some("NoMatchedIPPool")));
    allocator.merge(&seen("a", "10.0.0", 0), &everybody());
    assert_eq!(allocator.serve_waiters(), [owner(1)]);
    assert_eq!(
        allocator.waiting().map(|(_, w)| w.reason()).collect::<Vec<_>>(),
        ["IPPoolNotReady"]
    );
    allocator.touch("a");
    assert!(allocator.serve_waiters().is_empty());
}

/// The old address is released only after the new address is claimed and published.
#[test]
fn a_switch_of_pools_never_leaves_a_moment_without_an_address() {
    let mut allocator = two(1, 1);
    let mut facts = lb(1);
    publish(&mut allocator, &mut facts);
    facts.named_pool = Some("b".into());
    let result = allocator.claim(&facts);
    assert_eq!(answer(&result), held("b 10.0.1.10"));
    assert_eq!(allocator.claims_of("u1").len(), 2, "both are held until the new one is published");
    assert_eq!(answer(&allocator.claim(&named(2, "a"))), (None, Some("NoAvailableIP")));
    publish(&mut allocator, &mut facts);
    assert_eq!(answer(&allocator.claim(&facts)), held("b 10.0.1.10"));
    assert_eq!(allocator.claims_of("u1"), [at("b", "10.0.1.10")]);
    assert_eq!(allocator.serve_waiters(), [owner(2)]);
}

#[test]
fn a_switch_that_is_taken_back_frees_the_new_address() {
    for back in [None, Some("a".to_owned())] {
        let mut allocator = two(1, 1);
        let mut facts = lb(1);
        publish(&mut allocator, &mut facts);
        allocator.claim(&LbFacts { named_pool: Some("b".into()), ..facts.clone() });
        facts.named_pool = back;
        assert_eq!(answer(&allocator.claim(&facts)), held("a 10.0.0.10"));
        assert_eq!(allocator.claims_of("u1"), [at("a", "10.0.0.10")]);
    }
}

#[test]
fn a_switch_that_cannot_be_made_keeps_the_address_and_says_why() {
    let foreign = for_namespace(seen("foreign", "10.0.2", 1), "other");
    let pools = [seen("a", "10.0.0", 1), seen("full", "10.0.1", 1), foreign];
    for (pool, reason) in
        [("full", "NoAvailableIP"), ("foreign", "IPPoolForbidden"), ("absent", "IPPoolNotFound")]
    {
        let mut allocator = allocator(&pools);
        allocator.claim(&named(9, "full"));
        let mut facts = named(1, "a");
        publish(&mut allocator, &mut facts);
        facts.named_pool = Some(pool.into());
        assert_eq!(answer(&allocator.claim(&facts)), (Some("a 10.0.0.10".into()), Some(reason)));
        assert_eq!(allocator.waiting().count(), 1, "and waits for {pool}");
        // The LoadBalancer moves as soon as the pool that it names can serve it.
        allocator.release(&owner(9));
        allocator.merge(&seen("foreign", "10.0.2", 1), &everybody());
        allocator.merge(&seen("absent", "10.0.3", 1), &everybody());
        assert_eq!(allocator.serve_waiters(), [facts.owner.clone()], "{pool}");
        assert_eq!(allocator.claim(&facts), allocator.claim(&facts));
        assert_eq!(allocator.claims_of("u1").last().unwrap().pool, pool);
    }
}

#[test]
fn a_namesake_inherits_and_the_release_of_the_earlier_one_frees_nothing() {
    let mut allocator = two(2, 1);
    allocator.claim(&lb(1));
    let reborn = LbFacts { owner: Owner { uid: "new".into(), ..owner(1) }, ..lb(1) };
    assert!(
        allocator.needs_fresh(&LbFacts { fresh: false, ..reborn.clone() }),
        "a view may be old"
    );
    assert_eq!(answer(&allocator.claim(&reborn)), held("a 10.0.0.10"));
    assert_eq!(allocator.take_touched(), BTreeSet::from(["a".to_owned()]), "the UID is written");
    assert_eq!(allocator.release(&owner(1)), []);
    assert!(!allocator.release_claim(&at("a", "10.0.0.10"), &owner(1)));
    assert_eq!(allocator.claims_of("new"), [at("a", "10.0.0.10")]);
    assert!(!allocator.needs_fresh(&LbFacts { fresh: false, ..reborn.clone() }));
    // A LoadBalancer that is deleted and created again under its name gets its old address,
    // although another LoadBalancer asks first.
    allocator.release(&reborn.owner);
    allocator.claim(&lb(2));
    allocator.release(&owner(2));
    assert_eq!(answer(&allocator.claim(&lb(1))), held("a 10.0.0.10"));
    allocator.claim(&named(5, "absent"));
    allocator.release(&owner(5));
    assert_eq!(allocator.waiting().count(), 0, "who is gone does not wait");
}

/// A tenant deletes a Service of its own, whose owner reference has another LoadBalancer's UID.
#[test]
fn a_release_of_a_uid_under_another_name_frees_nothing() {
    let mut allocator = two(2, 1);
    allocator.claim(&lb(1));
    let forged = Owner { name: "theirs/web".into(), ..owner(1) };
    assert_eq!(allocator.release(&forged), []);
    assert_eq!(allocator.claims_of("u1"), [at("a", "10.0.0.10")]);
    assert_eq!(allocator.release(&owner(1)), [at("a", "10.0.0.10")]);
}

#[test]
fn a_published_address_that_the_ledger_lacks_is_read_back_if_admitted_and_free() {
    let published = |n, pool: &str| LbFacts { published: Some(at(pool, "10.0.0.12")), ..lb(n) };
    let mut allocator = two(3, 1);
    assert_eq!(answer(&allocator.claim(&published(1, "a"))), held("a 10.0.0.12"));
    assert_eq!(allocator.take_touched(), BTreeSet::from(["a".to_owned()]));
    assert_eq!(
        answer(&allocator.claim(&published(2, "a"))),
        held("a 10.0.0.10"),
        "it is another's"
    );
    let foreign = for_namespace(seen("foreign", "10.0.0", 3), "other");
    allocator.merge(&foreign, &everybody());
    assert_eq!(
        answer(&allocator.claim(&published(3, "foreign"))),
        held("a 10.0.0.11"),
        "not admitted"
    );
    assert_eq!(
        answer(&allocator.claim(&published(4, "b"))),
        held("b 10.0.1.10"),
        "not of its ranges"
    );
}

#[test]
fn an_address_outlives_its_pool_and_is_adopted_when_the_pool_returns() {
    let mut allocator = two(1, 1);
    let mut facts = lb(1);
    publish(&mut allocator, &mut facts);
    allocator.remove_pool("a");
    assert_eq!(
        answer(&allocator.claim(&facts)),
        (Some("a 10.0.0.10".into()), Some("IPPoolNotFound"))
    );
    assert!(allocator.claims_of("u1").is_empty() && allocator.serve_waiters().is_empty());
    allocator.merge(&seen("a", "10.0.0", 1), &everybody());
    assert_eq!(allocator.serve_waiters(), [facts.owner.clone()]);
    assert_eq!(answer(&allocator.claim(&facts)), held("a 10.0.0.10"));
    // The owner of the address may name another pool, and moves when that pool has a free address.
    allocator.remove_pool("a");
    allocator.claim(&lb(2));
    facts.named_pool = Some("b".into());
    assert_eq!(
        answer(&allocator.claim(&facts)),
        (Some("a 10.0.0.10".into()), Some("NoAvailableIP"))
    );
    allocator.release(&owner(2));
    assert_eq!(allocator.serve_waiters(), [facts.owner.clone()]);
    assert_eq!(answer(&allocator.claim(&facts)), held("b 10.0.1.10"));
}

/// The owner of an address whose pool `a` was deleted has named pool `b`, and has a claim there.
/// The owner keeps its published address if it then names no pool, names the deleted pool again, or
/// names a pool that does not exist.
#[test]
fn an_address_whose_pool_is_gone_is_given_up_for_no_claim_but_that_of_the_named_pool() {
    let kept = (Some("a 10.0.0.10".to_owned()), Some("IPPoolNotFound"));
    for (then, left) in [(None, 0), (Some("a"), 0), (Some("c"), 1)] {
        let mut allocator = two(1, 1);
        let mut facts = lb(1);
        publish(&mut allocator, &mut facts);
        allocator.remove_pool("a");
        let switching = LbFacts { named_pool: Some("b".into()), ..facts.clone() };
        assert_eq!(answer(&allocator.claim(&switching)), held("b 10.0.1.10"));
        facts.named_pool = then.map(str::to_owned);
        assert_eq!(answer(&allocator.claim(&facts)), kept, "{then:?}");
        assert_eq!(allocator.claims_of("u1").len(), left, "{then:?}");
    }
}

/// A view may be a moment old. So an address is released only after a fresh read of the
/// LoadBalancer.
#[test]
fn an_old_view_frees_nothing() {
    let mut allocator = PoolAllocator::default();
    for (pool, net) in [("a", "10.0.0"), ("b", "10.0.1")] {
        allocator.merge(&seen(pool, net, 2), &everybody());
    }
    let old = |facts: LbFacts| LbFacts { fresh: false, ..facts };
    let ClaimResult::Held { claim: first, .. } = allocator.claim(&named(1, "a")) else {
        panic!("none")
    };
    let ClaimResult::Held { claim: second, .. } = allocator.claim(&named(1, "b")) else {
        panic!("none")
    };
    let publishing = |claim: &Claim| LbFacts { published: Some(claim.clone()), ..lb(1) };

    assert!(allocator.needs_fresh(&old(publishing(&first))));
    allocator.claim(&old(publishing(&first)));
    assert_eq!(allocator.claims_of("u1"), [first.clone(), second.clone()]);
    assert!(!allocator.needs_fresh(&publishing(&second)), "a fresh reading is fresh enough");
    allocator.claim(&publishing(&second));
    assert_eq!(allocator.claims_of("u1"), std::slice::from_ref(&second));

    // A claim that was released is not restored because of a stale view.
    assert!(allocator.needs_fresh(&old(publishing(&first))));
    allocator.claim(&old(publishing(&first)));
    assert_eq!(allocator.claims_of("u1"), std::slice::from_ref(&second));
    assert!(!allocator.needs_fresh(&old(publishing(&second))));
    assert!(!allocator.needs_fresh(&old(lb(2))), "who holds nothing frees nothing");
}
