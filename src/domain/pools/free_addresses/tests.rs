//! Comparison of the interval set with a plain set of addresses.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use api;

fn ranges(subnets: &[&str]) -> PoolRanges {
    let range = |s: &&str| api::Range { subnet: (*s).into(), ..api::Range::default() };
    PoolRanges::parse(&subnets.iter().map(range).collect::<Vec<_>>()).unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Returns ranges of both families, with two stretches that touch and one hole, and all addresses
/// of these ranges.
fn mixed() -> (PoolRanges, Vec<IpAddr>) {
    let ranges =
        ranges(&["10.0.0.1/32", "10.0.0.2/32", "10.0.0.16/28", "fd00::1/128", "fd00::10/124"]);
    let all = ranges
        .stretches()
        .iter()
        .flat_map(|s| to_u128(s.first)..=to_u128(s.last))
        .map(|value| from_u128(value, value < 1 << 32))
        .collect();
    (ranges, all)
}

/// Checks that intervals are non-empty and disjoint, and that the set counts their addresses. Two
/// intervals may touch only where a stretch begins.
fn check_invariants(set: &FreeSet, ranges: &PoolRanges) {
    let intervals: Vec<_> = set.intervals.iter().collect();
    assert!(intervals.iter().all(|((_, first), last)| first <= last));
    for pair in intervals.windows(2) {
        let (((v6, _), last), ((next_v6, next), _)) = (pair[0], pair[1]);
        assert!(v6 != next_v6 || *last < *next, "{intervals:?}");
        let begins_here = ranges.stretches().iter().any(|s| key(s.first) == (*next_v6, *next));
        assert!(v6 != next_v6 || last + 1 < *next || begins_here, "{intervals:?}");
    }
    let count: u128 = intervals.iter().map(|((_, first), last)| *last - first + 1).sum();
    assert_eq!(set.len(), count);
    assert_eq!(set.is_empty(), count == 0);
}

#[derive(Clone, Debug)]
enum Step {
    Take(usize),
    Put(usize),
    /// Index of the address that is the cursor. An index beyond the last address means no cursor.
    TakeAfter(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0_usize..40).prop_map(Step::Take),
        (0_usize..40).prop_map(Step::Put),
        (0_usize..60).prop_map(Step::TakeAfter),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn agrees_with_a_plain_set_of_addresses(steps in prop::collection::vec(step(), 0..80)) {
        let (ranges, all) = mixed();
        let mut set = FreeSet::full(&ranges);
        let mut oracle: BTreeSet<IpAddr> = all.iter().copied().collect();
        for step in steps {
            match step {
                Step::Take(i) => {
                    let ip = all[i % all.len()];
                    prop_assert_eq!(set.remove(ip), oracle.remove(&ip));
                }
                Step::Put(i) => {
                    let ip = all[i % all.len()];
                    prop_assert_eq!(set.insert(ip), oracle.insert(ip));
                }
                Step::TakeAfter(i) => {
                    let cursor = all.get(i).copied();
                    let next = oracle.iter().find(|ip| cursor.is_none_or(|c| **ip > c)).copied();
                    let next = next.or_else(|| oracle.first().copied());
                    prop_assert_eq!(set.take_after(cursor), next);
                    next.map(|ip| oracle.remove(&ip));
                }
            }
            check_invariants(&set, &ranges);
            for ip in &all {
                prop_assert_eq!(set.contains(*ip), oracle.contains(ip));
            }
        }
    }
}

#[test]
fn what_is_outside_is_neither_contained_nor_taken() {
    let (ranges, _) = mixed();
    let mut set = FreeSet::full(&ranges);
    // `::a00:1` has the numeric value of `10.0.0.1`, an address of the other family.
    for outside in ["10.0.0.0", "10.0.0.3", "10.0.0.17", "fd00::11", "::a00:1", "255.255.255.255"] {
        assert!(!set.contains(ip(outside)) && !set.remove(ip(outside)), "{outside}");
    }
    assert_eq!(set, FreeSet::full(&ranges));
}

#[test]
fn the_search_wraps_from_the_end_of_ipv6_to_the_start_of_ipv4() {
    let (ranges, _) = mixed();
    let mut set = FreeSet::full(&ranges);
    let mut after = |cursor: &str| set.take_after(Some(ip(cursor))).unwrap();
    assert_eq!(after("10.0.0.30"), ip("fd00::1"));
    assert_eq!(after("255.255.255.255"), ip("fd00::12"));
    assert_eq!(after("fd00::1f"), ip("10.0.0.1"));
    assert_eq!(after("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"), ip("10.0.0.2"));
}

/// No arithmetic overflows at the first and the last address of a family.
#[test]
fn the_ends_of_the_number_space_can_be_taken_and_put_back() {
    for ends in [["0.0.0.0", "255.255.255.255"], ["::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"]]
    {
        let [first, last] = ends.map(ip).map(key);
        let intervals = BTreeMap::from([(first, last.1)]);
        let full = FreeSet { free: (last.1 - first.1).saturating_add(1), intervals };
        let mut set = full.clone();
        for end in ends.map(ip) {
            assert!(
                set.remove(end) && !set.remove(end) && set.insert(end) && !set.insert(end),
                "{end}"
            );
        }
        assert_eq!(set, full);
    }
}

/// A /64 is one entry. After `n` addresses were taken, the set has at most `n` more entries.
#[test]
fn a_huge_subnet_costs_what_was_taken_from_it() {
    let full = FreeSet::full(&ranges(&["fd00::/64"]));
    assert_eq!((full.len(), full.intervals.len()), ((1 << 64) - 2, 1));
    let mut set = full.clone();
    let mut cursor = None;
    for _ in 0..1_000 {
        cursor = set.take_after(cursor);
    }
    assert_eq!((cursor, set.intervals.len()), (Some(ip("fd00::3e9")), 1));
    let scattered: Vec<IpAddr> =
        (1..=100_u128).map(|n| from_u128((0xfd00 << 112) + (n << 56), false)).collect();
    assert!(scattered.iter().all(|ip| set.remove(*ip)));
    assert_eq!((set.len(), set.intervals.len()), ((1 << 64) - 2 - 1_100, 101));
    for ip in scattered {
        set.insert(ip);
    }
    for n in (2..1_002_u128).rev() {
        set.insert(from_u128((0xfd00 << 112) + n, false));
    }
    assert_eq!(set, full);
}
