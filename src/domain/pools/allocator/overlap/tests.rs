//! Tests of pools on one network, case by case. The model of the allocator covers the cases that
//! are not listed here.

use super::super::tests::{at, everybody, lb, named, owner, seen};
use super::super::{ClaimResult, LoadBalancerEntry, LoadBalancerIndex, NoAddressReason, PoolSeen};
use super::*;
use crate::network::NetworkAttachment;

/// A pool of `10.0.0.<first>` to `.<last>` that serves only LoadBalancers that name it.
fn pool(name: &str, created: i64, first: u8, last: u8) -> PoolSeen {
    let mut pool = seen(name, "10.0.0", 1);
    pool.spec.ranges[0].range_start = Some(format!("10.0.0.{first}"));
    pool.spec.ranges[0].range_end = Some(format!("10.0.0.{last}"));
    pool.spec.selector = None;
    PoolSeen { created, ..pool }
}

fn on(network: &str, vlan: u16, mut pool: PoolSeen) -> PoolSeen {
    let selector = api::Selector { network: Some(network.into()), ..Default::default() };
    pool.spec.selector = Some(selector);
    pool.segment = Segment::Vlan("br".into(), vlan);
    pool
}

fn allocator(pools: &[&PoolSeen]) -> PoolAllocator {
    let mut allocator = PoolAllocator::default();
    for pool in pools {
        allocator.merge(pool, &everybody());
    }
    allocator
}

fn ip_of(result: &ClaimResult) -> String {
    match result {
        ClaimResult::Held { claim, .. } => format!("{} {}", claim.pool, claim.ip),
        ClaimResult::Waiting(wait) => wait.reason().to_owned(),
    }
}

fn stands_back(allocator: &PoolAllocator) -> Vec<(&str, &str)> {
    let pools = allocator.pools().iter();
    pools.filter_map(|(name, pool)| Some((&**name, &*pool.conflict.as_ref()?.with))).collect()
}

#[test]
fn the_younger_gives_out_nothing_new_and_keeps_what_it_gave() {
    let mut allocator = allocator(&[&pool("b", 2, 10, 19)]);
    assert_eq!(ip_of(&allocator.claim(&named(1, "b"))), "b 10.0.0.10");
    allocator.merge(&pool("a", 1, 15, 30), &everybody());
    assert_eq!(ip_of(&allocator.claim(&named(1, "b"))), "b 10.0.0.10");
    let ClaimResult::Waiting(NoAddressReason::NotReady { pool, why }) =
        allocator.claim(&named(2, "b"))
    else {
        panic!("b gives out addresses")
    };
    assert!(pool == "b" && why.contains("10.0.0.15 to 10.0.0.19") && why.contains('a'), "{why}");
    assert_eq!(stands_back(&allocator), [("b", "a")]);
    assert!(
        matches!(allocator.take_news().as_slice(), [OverlapNews::StandsBack(name, _)] if name == "b")
    );

    // After the older pool is deleted, the waiter gets an address.
    allocator.take_touched();
    allocator.remove_pool("a");
    assert_eq!(allocator.serve_waiters(), [owner(2)]);
    assert_eq!(allocator.take_touched(), BTreeSet::from(["b".to_owned()]));
    assert!(stands_back(&allocator).is_empty());
    assert_eq!(allocator.take_news(), []);
}

#[test]
fn an_older_one_that_is_widened_over_a_younger_ones_claims_leaves_them_out() {
    let mut allocator = allocator(&[&pool("a", 1, 10, 11), &pool("b", 2, 12, 13)]);
    assert_eq!(ip_of(&allocator.claim(&named(1, "b"))), "b 10.0.0.12");
    assert_eq!(ip_of(&allocator.claim(&named(2, "b"))), "b 10.0.0.13");
    allocator.merge(&pool("a", 1, 10, 13), &everybody());
    assert_eq!(ip_of(&allocator.claim(&named(3, "a"))), "a 10.0.0.10");
    assert_eq!(ip_of(&allocator.claim(&named(4, "a"))), "a 10.0.0.11");
    assert_eq!(ip_of(&allocator.claim(&named(5, "a"))), "NoAvailableIP");
    assert_eq!((allocator.pools()["a"].ledger.available(), allocator.shared()), (0, 0));
    // lb2 releases an address of pool b. The address becomes free in pool a, and pool a is written.
    allocator.take_touched();
    allocator.release(&owner(2));
    assert_eq!(allocator.serve_waiters(), [owner(5)]);
    assert_eq!(allocator.claims_of("u5"), [at("a", "10.0.0.13")]);
    assert_eq!(allocator.take_touched(), BTreeSet::from(["a".to_owned(), "b".to_owned()]));
    // An address that pool a gives out is held back in pool b.
    assert!(allocator.pools()["b"].ledger.held_back().contains(&"10.0.0.13".parse().unwrap()));
}

/// Addresses of the cluster itself become known after the pool has given out an address.
#[test]
fn an_address_of_the_cluster_is_held_back_and_its_holder_keeps_it() {
    let mut allocator = allocator(&[&pool("a", 1, 10, 13)]);
    assert_eq!(ip_of(&allocator.claim(&named(1, "a"))), "a 10.0.0.10");
    let node = |name: &str| Reserved::Node(name.into());
    let address = |last: u8| IpAddr::from([10, 0, 0, last]);
    let all = [(10, "n1"), (11, "n2"), (99, "n3")];
    let all = all.map(|(last, name)| (IpNet::from(address(last)), node(name)));
    allocator.take_touched();
    allocator.set_infrastructure(BTreeMap::from(all));
    assert_eq!(ip_of(&allocator.claim(&named(1, "a"))), "a 10.0.0.10", "it is in use");
    assert_eq!(ip_of(&allocator.claim(&named(2, "a"))), "a 10.0.0.12");
    assert!(allocator.take_touched().contains("a"), "the condition says so");
    let ready = crate::pools::status::pool_ready(&allocator.pools()["a"]);
    assert_eq!(
        ready.message.as_deref(),
        Some(
            "held back: 10.0.0.10 is an address of Node n1, and LoadBalancer ns/lb1 holds it: move that LoadBalancer; 10.0.0.11 is an address of Node n2"
        )
    );
    let [OverlapNews::ReservedInUse { ip, holder, .. }] = &*allocator.take_news() else {
        panic!("no news")
    };
    assert_eq!((*ip, holder.as_str()), (address(10), "ns/lb1"));
    allocator.release(&owner(1));
    assert_eq!(allocator.pools()["a"].ledger.available(), 1, "not free for the next one");
    assert_eq!(ip_of(&allocator.claim(&named(3, "a"))), "a 10.0.0.13");
    assert_eq!(ip_of(&allocator.claim(&named(4, "a"))), "NoAvailableIP");
    // After node `n2` is deleted, its address `.11` is free.
    allocator.set_infrastructure(BTreeMap::from([(address(10).into(), node("n1"))]));
    allocator.compare_pools();
    assert_eq!(allocator.serve_waiters(), [owner(4)]);
    assert_eq!(allocator.claims_of("u4"), [at("a", "10.0.0.11")]);
    assert_eq!(allocator.take_news(), []);
}

/// Networks of pods and Services become known after the pool has given out addresses. Later, the
/// pod network is removed.
#[test]
fn a_network_of_the_cluster_is_cut_out_and_who_is_in_it_keeps_its_address() {
    let mut allocator = allocator(&[&pool("a", 1, 10, 17)]);
    assert_eq!(ip_of(&allocator.claim(&named(1, "a"))), "a 10.0.0.10");
    assert_eq!(ip_of(&allocator.claim(&named(2, "a"))), "a 10.0.0.11");
    let network = |text: &str, what: Reserved| (text.parse().unwrap(), what);
    let services = network("10.0.0.8/29", Reserved::ServiceNetwork("kubernetes".into()));
    let pods = network("10.0.0.17/32", Reserved::PodNetwork("n1".into()));
    let node = network("10.0.0.11/32", Reserved::Node("n1".into()));
    allocator.set_infrastructure(HeldBack::from([services.clone(), pods, node]));
    assert_eq!(ip_of(&allocator.claim(&named(1, "a"))), "a 10.0.0.10", "it is in use");
    assert_eq!(ip_of(&allocator.claim(&named(3, "a"))), "a 10.0.0.16");
    assert_eq!(ip_of(&allocator.claim(&named(4, "a"))), "NoAvailableIP");
    let ready = crate::pools::status::pool_ready(&allocator.pools()["a"]);
    assert_eq!(
        ready.message.as_deref(),
        Some(
            "held back: 10.0.0.8/29 is in the service network (ServiceCIDR kubernetes), and LoadBalancer ns/lb1 holds 10.0.0.10: move that LoadBalancer; \
             10.0.0.11 is an address of Node n1, and LoadBalancer ns/lb2 holds it: move that LoadBalancer; \
             10.0.0.17 is in the pod network of Node n1"
        )
    );
    let reported: Vec<_> = allocator
        .take_news()
        .into_iter()
        .map(|news| match news {
            OverlapNews::ReservedInUse { ip, what, holder, .. } => format!("{ip} {holder} {what}"),
            other => format!("{other:?}"),
        })
        .collect();
    assert_eq!(
        reported,
        [
            "10.0.0.11 ns/lb2 an address of Node n1",
            "10.0.0.10 ns/lb1 in the service network (ServiceCIDR kubernetes)",
        ]
    );
    // lb1 releases an address of the service network. Even after all pools are compared again, the
    // address is not given out.
    allocator.release(&owner(1));
    allocator.merge(&pool("b", 2, 10, 17), &everybody());
    allocator.compare_pools();
    assert_eq!(ip_of(&allocator.claim(&named(4, "a"))), "NoAvailableIP");
    // The pod network was removed, so an address that was in this network can be given out.
    allocator.set_infrastructure(HeldBack::from([services]));
    assert_eq!(allocator.serve_waiters(), [owner(4)]);
    assert_eq!(allocator.claims_of("u4"), [at("a", "10.0.0.17")]);
}

/// A tagged VLAN may use the same addresses as the cluster's pods and Services, so the pools of the
/// VLAN give out these addresses.
#[test]
fn a_tagged_vlan_holds_back_no_network_of_the_cluster() {
    let services = ("10.0.0.8/29".parse().unwrap(), Reserved::ServiceNetwork("kubernetes".into()));
    let node = ("10.0.0.10/32".parse().unwrap(), Reserved::Node("n1".into()));
    let br = |vlan| Segment::Vlan("vlan-br".into(), vlan);
    for (segment, first) in [
        (br(100), "a 10.0.0.11"),
        (br(0), "NoAvailableIP"),
        (Segment::Management, "NoAvailableIP"),
        (Segment::Named("ns/gone".into()), "NoAvailableIP"),
        (Segment::Unlisted, "NoAvailableIP"),
    ] {
        let mut allocator = allocator(&[&pool("a", 1, 10, 13)]);
        allocator.pools.get_mut("a").unwrap().segment = segment.clone();
        allocator.set_infrastructure(HeldBack::from([services.clone(), node.clone()]));
        assert_eq!(ip_of(&allocator.claim(&named(1, "a"))), first, "{segment:?}");
    }
}

#[test]
fn a_claim_outside_its_shrunk_pool_is_not_given_to_another_owner() {
    let mut allocator = allocator(&[&pool("a", 1, 10, 13)]);
    for n in 1..=4 {
        allocator.claim(&named(n, "a"));
    }
    allocator.merge(&pool("a", 1, 10, 11), &everybody());
    // The ranges do not overlap, so there is no conflict. But LoadBalancers still hold addresses of
    // pool a that are now in pool b's range.
    allocator.merge(&pool("b", 2, 12, 14), &everybody());
    assert_eq!(ip_of(&allocator.claim(&named(5, "b"))), "b 10.0.0.14");
    assert_eq!(ip_of(&allocator.claim(&named(6, "b"))), "NoAvailableIP");
    assert!(stands_back(&allocator).is_empty());
    allocator.release(&owner(3));
    assert_eq!(allocator.serve_waiters(), [owner(6)]);
    assert_eq!(allocator.claims_of("u6"), [at("b", "10.0.0.12")]);
}

#[test]
fn claims_of_a_pool_that_leaves_or_makes_no_sense_stay_out_of_reach() {
    for spoil in [
        (|mut pool| {
            pool.deleting = true;
            pool
        }) as fn(PoolSeen) -> PoolSeen,
        |mut pool| {
            pool.spec.ranges[0].range_end = Some("nonsense".into());
            pool
        },
    ] {
        let mut allocator = allocator(&[&pool("a", 1, 10, 11)]);
        allocator.claim(&named(1, "a"));
        allocator.merge(&spoil(pool("a", 1, 10, 11)), &everybody());
        allocator.merge(&pool("b", 2, 10, 11), &everybody());
        assert_eq!(ip_of(&allocator.claim(&named(2, "b"))), "b 10.0.0.11");
        assert_eq!(ip_of(&allocator.claim(&named(3, "b"))), "NoAvailableIP");
        assert!(stands_back(&allocator).is_empty());
    }
}

#[test]
fn networks_that_turn_out_to_be_one_part_their_pools() {
    let (x, y) = (on("ns/x", 1, pool("a", 1, 10, 12)), on("ns/y", 2, pool("b", 2, 10, 12)));
    let mut allocator = allocator(&[&x, &y]);
    assert_eq!(ip_of(&allocator.claim(&named(1, "a"))), "a 10.0.0.10");
    assert_eq!(ip_of(&allocator.claim(&named(2, "b"))), "b 10.0.0.10");
    assert_eq!(ip_of(&allocator.claim(&named(3, "b"))), "b 10.0.0.11");
    let one = NetworkAttachment { bridge: "br".into(), vlan: 1 };
    allocator.relocate(|network| Segment::of(network, Some(&one), true));
    // Both LoadBalancers held the address before the conflict. The conflict is reported, and both
    // keep the address.
    assert_eq!(ip_of(&allocator.claim(&named(1, "a"))), "a 10.0.0.10");
    assert_eq!(ip_of(&allocator.claim(&named(2, "b"))), "b 10.0.0.10");
    assert_eq!((stands_back(&allocator), allocator.shared()), (vec![("b", "a")], 1));
    let news = allocator.take_news();
    let reported =
        |n: &OverlapNews| matches!(n, OverlapNews::Shared(s) if s.ip.to_string() == "10.0.0.10");
    assert!(news.len() == 2 && news.iter().any(reported), "{news:?}");
    // lb4 gets `.12`, because pool b holds `.11`. lb5 gets `.10` only after both LoadBalancers that
    // held `.10` have released it.
    assert_eq!(ip_of(&allocator.claim(&named(4, "a"))), "a 10.0.0.12");
    allocator.release(&owner(1));
    assert_eq!(allocator.shared(), 0);
    assert_eq!(ip_of(&allocator.claim(&named(5, "a"))), "NoAvailableIP");
    allocator.release(&owner(2));
    allocator.serve_waiters();
    assert_eq!(allocator.claims_of("u5"), [at("a", "10.0.0.10")]);
    // A conflict that was reported once is not reported at the next comparison.
    allocator.merge(&x, &everybody());
    allocator.serve_waiters();
    assert_eq!(allocator.take_news(), []);
}

#[test]
fn what_three_pools_hold_comes_free_with_the_last() {
    let vlan = |name: &str, n: u16| on(&format!("ns/{name}"), n, pool(name, i64::from(n), 10, 10));
    let mut allocator = allocator(&[&vlan("a", 1), &vlan("b", 2), &vlan("c", 3)]);
    for (n, name) in [(1, "b"), (2, "c")] {
        allocator.claim(&named(n, name));
    }
    allocator.relocate(|_| Segment::Vlan("br".into(), 1));
    for (n, expected) in [(1, "NoAvailableIP"), (2, "a 10.0.0.10")] {
        allocator.release(&owner(n));
        assert_eq!(ip_of(&allocator.claim(&named(5, "a"))), expected);
    }
}

/// A tenant that writes the status must not gain an address that another pool gave out.
#[test]
fn a_published_address_that_another_pool_holds_is_not_taken_back() {
    let mut allocator = allocator(&[&pool("a", 1, 10, 19), &pool("b", 2, 10, 19)]);
    assert_eq!(ip_of(&allocator.claim(&named(1, "a"))), "a 10.0.0.10");
    let forged = crate::LbFacts { published: Some(at("b", "10.0.0.10")), ..lb(2) };
    allocator.claim(&forged);
    assert!(allocator.claims_of("u2").is_empty());
    assert_eq!(allocator.shared(), 0);
}

/// Addresses that LoadBalancers publish count as in use when a pool is read. So an address that two
/// LoadBalancers publish is reported, and both keep it.
#[test]
fn two_that_publish_one_address_from_two_pools_both_keep_it() {
    let published = |n: usize, name: &str| LoadBalancerEntry {
        owner: owner(n),
        created: 1,
        published: Some(at(name, "10.0.0.10")),
        deleting: false,
    };
    let world = LoadBalancerIndex::new([published(1, "a"), published(2, "b")]);
    let mut allocator = PoolAllocator::default();
    for pool in [pool("a", 1, 10, 11), pool("b", 2, 10, 11)] {
        allocator.merge(&pool, &world);
    }
    allocator.serve_waiters();
    assert_eq!(allocator.shared(), 1);
    assert_eq!(ip_of(&allocator.claim(&named(3, "a"))), "a 10.0.0.11");
}
