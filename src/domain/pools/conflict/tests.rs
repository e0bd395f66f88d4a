//! Tests of conflicts between pools, rule by rule.

use proptest::prelude::*;
use serde_json::{from_value, json};

use super::*;
use crate::network::NetworkAttachment;
use api;

/// A pool of `10.0.0.<ends.0>` to `10.0.0.<ends.1>`. `rest`: the priority, and the entries of the
/// scope, each as `project/namespace/cluster`.
fn pool(
    name: &str,
    created: i64,
    ends: (u8, u8),
    network: &str,
    rest: (i64, &[&str]),
) -> PoolFacts {
    let scope = |text: &&str| {
        let mut parts = text.split('/').map(|part| Some(part.to_owned()));
        let mut next = || parts.next().flatten();
        api::Scope { project: next(), namespace: next(), guest_cluster: next() }
    };
    let range = api::Range {
        subnet: "10.0.0.0/24".into(),
        range_start: Some(format!("10.0.0.{}", ends.0)),
        range_end: Some(format!("10.0.0.{}", ends.1)),
        gateway: Some("10.0.0.254".into()),
        ..api::Range::default()
    };
    let selector = api::Selector {
        network: Some(network.into()),
        priority: Some(rest.0),
        scope: Some(rest.1.iter().map(scope).collect()),
    };
    let spec =
        IPPoolSpec { ranges: vec![range], selector: Some(selector), ..IPPoolSpec::default() };
    PoolFacts::new(name, created, &spec)
}

/// Segment of a network on bridge `mgmt-br` or `data-br`. `ns/seven` and `other/seven` are both
/// VLAN 7 of `mgmt-br`. `listed`: whether all networks have been listed.
fn segment(network: &str, listed: bool) -> Segment {
    let at = |bridge: &str, vlan| Some(NetworkAttachment { bridge: bridge.into(), vlan });
    let attachment = match network {
        "ns/untagged" => at("mgmt-br", 0),
        "ns/seven" | "other/seven" => at("mgmt-br", 7),
        "ns/eight" => at("mgmt-br", 8),
        "ns/seven-elsewhere" => at("data-br", 7),
        "ns/zero-elsewhere" => at("data-br", 0),
        _ => None,
    };
    Segment::of(network, attachment.as_ref(), listed)
}

fn judged(pools: &[PoolFacts]) -> Vec<(String, String, &'static str)> {
    let segments: Vec<Segment> =
        pools.iter().map(|pool| segment(pool.selector.network(), true)).collect();
    let contenders: Vec<_> = pools.iter().zip(&segments).map(|(p, s)| p.contender(s)).collect();
    let conflicts = find_conflicts(&contenders);
    conflicts.into_iter().map(|(name, c)| (name, c.with.clone(), c.reason())).collect()
}

fn says<'a>(junior: &str, senior: &str, reason: &'a str) -> Vec<(String, String, &'a str)> {
    vec![(junior.into(), senior.into(), reason)]
}

#[test]
fn facts_of_a_stored_pool_have_its_age_and_whether_it_is_being_deleted() {
    let spec = IPPoolSpec::default();
    let facts = |meta| PoolFacts::of(&from_value::<ObjectMeta>(meta).unwrap(), &spec);
    let time = "1970-01-01T00:00:07Z";
    let stored = facts(json!({"name": "p", "creationTimestamp": time}));
    assert_eq!(stored, PoolFacts::new("p", 7, &spec));
    let ends = facts(json!({"name": "p", "creationTimestamp": time, "deletionTimestamp": time}));
    assert_eq!(ends, PoolFacts { deleting: true, ..stored });
}

#[test]
fn ranges_are_compared_on_one_segment_whatever_it_is_called() {
    let cases = [
        ("", "", true),
        ("", "ns/untagged", true),
        ("ns/seven", "ns/seven", true),
        ("ns/seven", "other/seven", true),
        ("ns/unknown", "ns/unknown", true),
        ("ns/seven", "ns/eight", false),
        ("ns/seven", "ns/seven-elsewhere", false),
        ("ns/untagged", "ns/zero-elsewhere", false),
        ("", "ns/seven", false),
        ("", "ns/unknown", false),
        ("ns/seven", "ns/unknown", false),
        ("ns/unknown", "ns/stranger", false),
    ];
    for (a, b, same) in cases {
        let pools = [pool("a", 1, (10, 20), a, (0, &[])), pool("b", 2, (20, 30), b, (0, &[]))];
        let expected = if same { says("b", "a", "RangeConflict") } else { Vec::new() };
        assert_eq!(judged(&pools), expected, "{a:?} {b:?}");
        let apart = [pool("a", 1, (10, 20), a, (0, &[])), pool("b", 2, (21, 30), b, (0, &[]))];
        assert_eq!(judged(&apart), [], "{a:?} {b:?}");
    }
}

#[test]
fn before_networks_are_listed_any_may_be_the_same() {
    let of = |a: &str, b: &str| {
        let pools = [pool("a", 1, (10, 20), a, (0, &[])), pool("b", 2, (20, 30), b, (0, &[]))];
        let segments = [segment(a, false), segment(b, false)];
        find_conflicts(&[pools[0].contender(&segments[0]), pools[1].contender(&segments[1])]).len()
    };
    assert_eq!((of("ns/x", "ns/y"), of("", "ns/y"), of("ns/seven", "ns/eight")), (1, 1, 0));
}

#[test]
fn the_global_pool_is_one_and_apart_from_all() {
    let global = |name, created, ends| pool(name, created, ends, "", (0, &["*/*/*"]));
    let two = [global("a", 1, (10, 20)), global("b", 2, (30, 40))];
    assert_eq!(judged(&two), says("b", "a", "SecondGlobalPool"));
    let isolated = pool("a", 1, (10, 20), "ns/eight", (0, &["/x/"]));
    assert_eq!(
        judged(&[isolated.clone(), global("b", 2, (20, 30))]),
        says("b", "a", "RangeConflict")
    );
    // A global pool takes no part in the order of the other pools.
    let narrow = pool("c", 3, (40, 50), "", (0, &["*/ns/*"]));
    assert_eq!(judged(&[isolated, global("b", 2, (21, 30)), narrow]), []);
}

#[test]
fn priorities_and_scopes_compete_within_one_network_by_its_name() {
    type Side<'a> = (&'a str, i64, &'a [&'a str]);
    let cases: [(Side<'_>, Side<'_>, Option<&str>); 16] = [
        (("", 5, &["*/x/*"]), ("", 5, &["*/y/*"]), Some("PriorityConflict")),
        (("", 5, &["*/x/*"]), ("", 6, &["*/x/*"]), None),
        (("", 5, &["*/x/*"]), ("", 0, &["*/x/*"]), None),
        (("n/a", 5, &["*/x/*"]), ("n/b", 5, &["*/x/*"]), None),
        (("ns/seven", 5, &["*/x/*"]), ("other/seven", 5, &["*/x/*"]), None),
        // A pool without a scope serves only LoadBalancers that name it.
        (("", 5, &[]), ("", 5, &["*/x/*"]), None),
        (("", 0, &[]), ("", 0, &[]), None),
        (("", 0, &["*/x/*"]), ("", 0, &["*/x/*"]), Some("ScopeConflict")),
        (("", 0, &["*/x/*"]), ("", 0, &["*/y/*"]), None),
        (("n/a", 0, &["*/x/*"]), ("n/b", 0, &["*/x/*"]), None),
        (("", 0, &["p/x/*"]), ("", 0, &["*/x/c"]), Some("ScopeConflict")),
        (("", 0, &["p/x/*"]), ("", 0, &["q/x/*"]), None),
        (("", 0, &["*/x/*"]), ("", 0, &["*/*/c"]), Some("ScopeConflict")),
        (("", 0, &["/x/"]), ("", 0, &["*/x/*"]), Some("ScopeConflict")),
        // No conflict: the pool with the more exact scope is preferred.
        (("", 0, &["/x/"]), ("", 0, &["p/x/c"]), None),
        (("", 0, &["*//*"]), ("", 0, &["*//*"]), None),
    ];
    for (a, b, reason) in cases {
        let pools =
            [pool("a", 1, (10, 20), a.0, (a.1, a.2)), pool("b", 2, (30, 40), b.0, (b.1, b.2))];
        let expected = reason.map_or_else(Vec::new, |reason| says("b", "a", reason));
        assert_eq!(judged(&pools), expected, "{a:?} {b:?}");
    }
}

#[test]
fn the_older_stays_in_use_then_the_first_by_name() {
    let at = |name, created, ends| pool(name, created, ends, "", (0, &[]));
    let of = |pools: &[PoolFacts]| {
        judged(pools).into_iter().map(|(junior, senior, _)| (junior, senior)).collect::<Vec<_>>()
    };
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(of(&[at("a", 2, (10, 20)), at("b", 1, (10, 20))]), [pair("a", "b")]);
    assert_eq!(of(&[at("b", 1, (10, 20)), at("a", 1, (10, 20))]), [pair("b", "a")]);
    // Pool c gives out no address because of pool b, even though pool b gives out no address
    // because of pool a.
    let chain = [at("a", 1, (10, 20)), at("b", 2, (20, 30)), at("c", 3, (30, 40))];
    assert_eq!(of(&chain), [pair("b", "a"), pair("c", "b")]);
    // A pool that is being deleted, or whose ranges are invalid, causes no conflict for other pools
    // and has no conflict itself.
    for serves in [
        PoolFacts { deleting: true, ..chain[1].clone() },
        PoolFacts { ranges: None, ..chain[1].clone() },
    ] {
        assert_eq!(of(&[chain[0].clone(), serves, chain[2].clone()]), []);
    }
}

#[test]
fn the_weightiest_is_reported_with_both_places_and_the_remedy() {
    let old = pool("old", 1, (10, 20), "ns/seven", (5, &["*/x/*"]));
    let new = pool("new", 2, (15, 30), "other/seven", (5, &["*/x/*"]));
    let segments = [segment("ns/seven", true), segment("other/seven", true)];
    let conflicts = against(&new.contender(&segments[1]), &[old.contender(&segments[0])]);
    let [conflict] = conflicts.as_slice() else { panic!("{conflicts:?}") };
    assert_eq!(conflict.field(), "spec.ranges[0]");
    let message = conflict.message();
    for part in [
        "the ranges 10.0.0.15 to 10.0.0.20 overlap with other pools",
        "IPPool old",
        "spec.ranges[0]",
        "network other/seven and network ns/seven are the same segment",
        "exclude them here",
    ] {
        assert!(message.contains(part), "{message}");
    }
    // Admission ignores the pools' age: it refuses a pool that would make an older or a younger
    // pool stop giving out addresses.
    assert_eq!(against(&old.contender(&segments[0]), &[new.contender(&segments[1])]).len(), 1);
    assert!(against(&old.contender(&segments[0]), &[old.contender(&segments[0])]).is_empty());
}

fn any_pool(place: usize) -> impl Strategy<Value = PoolFacts> {
    let network = prop::sample::select(vec!["", "ns/untagged", "ns/seven", "other/seven", "ns/x"]);
    let scope = prop::sample::select(vec!["*/*/*", "*/x/*", "p/x/*", "/y/", ""]);
    (0_i64..3, 1_u8..40, 0_u8..20, network, 0_i64..3, scope).prop_map(
        move |(created, first, length, network, priority, scope)| {
            let scope = if scope.is_empty() { &[][..] } else { &[scope][..] };
            let ends = (first, first + length);
            pool(&format!("p{place}"), created, ends, network, (priority, scope))
        },
    )
}

/// Gravest conflict of each pool with an older one, by a comparison of each two pools.
fn by_all_pairs<'a>(pools: &[PoolContender<'a>]) -> BTreeMap<&'a str, PoolConflict> {
    let mut by_age = pools.to_vec();
    by_age.sort_by_key(|pool| (pool.created, pool.name));
    let mut conflicts = BTreeMap::new();
    for (place, junior) in by_age.iter().enumerate() {
        let found = by_age[..place].iter().filter_map(|senior| {
            let over = junior.contests(senior).into_iter().next()?;
            Some(PoolConflict { with: senior.name.to_owned(), over })
        });
        // Of equal elements, `min_by_key` returns the first.
        let gravest = found.min_by_key(|conflict| conflict.over.weight());
        conflicts.extend(gravest.map(|conflict| (junior.name, conflict)));
    }
    conflicts
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// Two pools that both give out addresses are not in conflict. Only an older pool makes a pool
    /// stop giving out addresses. The order in which pools are compared does not matter. Admission
    /// admits every pool exactly when the ledger task finds no conflict.
    #[test]
    fn verdicts_agree(pools in (any_pool(0), any_pool(1), any_pool(2), any_pool(3), any_pool(4))) {
        let pools = [pools.0, pools.1, pools.2, pools.3, pools.4];
        let segments = pools.each_ref().map(|pool| segment(pool.selector.network(), true));
        let all: Vec<_> = pools.iter().zip(&segments).map(|(p, s)| p.contender(s)).collect();
        let conflicts = find_conflicts(&all);
        let mut reversed = all.clone();
        reversed.reverse();
        prop_assert_eq!(&find_conflicts(&reversed), &conflicts);
        let compared = conflicts.iter().map(|(name, conflict)| (name.as_str(), conflict.clone()));
        prop_assert_eq!(compared.collect::<BTreeMap<_, _>>(), by_all_pairs(&all));
        for a in &all {
            for b in &all {
                let (ab, ba) = (a.contests(b), b.contests(a));
                prop_assert_eq!(ab.len(), ba.len(), "of two, one cannot be in conflict alone");
                prop_assert_eq!(a.meets(b), a.shared_network(b).is_some());
                let both = !conflicts.contains_key(a.name) && !conflicts.contains_key(b.name);
                prop_assert!(!both || ab.is_empty(), "{:?} and {:?} are both in use", a, b);
            }
            if let Some(conflict) = conflicts.get(a.name) {
                let senior = all.iter().find(|b| b.name == conflict.with).unwrap();
                prop_assert!((senior.created, senior.name) < (a.created, a.name));
            }
        }
        let alone = all.iter().all(|pool| against(pool, &all).is_empty());
        prop_assert_eq!(alone, conflicts.is_empty());
    }

    #[test]
    fn overlap_is_what_both_have(
        a in prop::collection::btree_set(0_u8..30, 1..20),
        b in prop::collection::btree_set(0_u8..30, 1..20),
    ) {
        let ranges = |set: &std::collections::BTreeSet<u8>| {
            let exclude = (0..30).filter(|n| !set.contains(n)).map(|n| format!("10.0.1.{n}"));
            PoolRanges::parse(&[api::Range {
                subnet: "10.0.0.0/16".into(),
                range_start: Some("10.0.1.0".into()),
                range_end: Some("10.0.1.29".into()),
                exclude: Some(exclude.collect()),
                ..api::Range::default()
            }]).unwrap()
        };
        let both: Vec<u8> = a.intersection(&b).copied().collect();
        let found = overlap(&ranges(&a), &ranges(&b));
        prop_assert_eq!(found.map_or(0, |(.., count)| count), both.len() as u128);
        if let (Some((.., first, _, _)), Some(lowest)) = (found, both.first()) {
            prop_assert_eq!(first.to_string(), format!("10.0.1.{lowest}"));
        }
    }
}
