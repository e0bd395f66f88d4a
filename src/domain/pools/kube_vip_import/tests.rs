//! Tests with keys and values as admins have written them, and with pools that are in conflict.

use serde_json::json;

use super::*;

fn data(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn known() -> ImportFacts {
    ImportFacts::default()
}

fn plan_of(entries: &[(&str, &str)]) -> ImportPlan {
    plan(&data(entries), &known())
}

fn existing(name: &str, spec: serde_json::Value) -> IPPool {
    IPPool::new(name, serde_json::from_value(spec).unwrap())
}

/// Name of the pool, and each range as subnet, start and end.
fn shape(pool: &NewPool) -> (&str, Vec<String>) {
    let range = |r: &Range| {
        let ends = [&r.range_start, &r.range_end].map(|end| end.clone().unwrap_or_default());
        format!("{} {}-{}", r.subnet, ends[0], ends[1])
    };
    (&pool.name, pool.spec.ranges.iter().map(range).collect())
}

fn only(import: &ImportPlan) -> (&str, Vec<String>) {
    assert_eq!((import.pools.len(), import.refused.len()), (1, 0), "{import:?}");
    shape(&import.pools[0])
}

#[test]
fn each_namespace_gets_one_pool_of_both_its_keys() {
    let import = plan_of(&[
        ("cidr-default", " 172.16.10.0/24 , 172.16.20.0/24,"),
        ("range-default", "172.16.30.10-172.16.30.100"),
        ("range-team-a", "172.16.40.10 - 172.16.40.20"),
        ("cidr-global", "10.0.0.0/24"),
    ]);
    assert_eq!(import.refused, []);
    let shapes: Vec<_> = import.pools.iter().map(shape).collect();
    assert_eq!(shapes[0].0, "default");
    assert_eq!(
        shapes[0].1,
        ["172.16.10.0/24 -", "172.16.20.0/24 -", "172.16.30.0/25 172.16.30.10-172.16.30.100"]
    );
    assert_eq!(shapes[1].0, "team-a");
    assert_eq!(shapes[2].0, "global");
    let scope = |index: usize| import.pools[index].spec.selector.clone().unwrap().scope.unwrap();
    let any = || Some("*".to_owned());
    let own = Scope { project: any(), namespace: Some("team-a".into()), guest_cluster: any() };
    assert_eq!(scope(1), [own]);
    assert_eq!(scope(2)[0].namespace, any());
}

/// The ends of a range may be the network address or the gateway of the smallest subnet that
/// contains both ends. In that case, the import gives the range a larger subnet.
#[test]
fn the_subnet_of_a_range_has_its_ends_as_hosts_and_its_gateway_outside() {
    for (range, expected) in [
        ("192.168.1.10-192.168.1.100", "192.168.1.0/25"),
        // `192.168.1.64` is the network address of `192.168.1.64/26`, and `.65` its gateway.
        ("192.168.1.64-192.168.1.100", "192.168.1.0/25"),
        ("192.168.1.65-192.168.1.100", "192.168.1.0/25"),
        ("192.168.1.66-192.168.1.100", "192.168.1.64/26"),
        // `192.168.1.127` is the broadcast address of `192.168.1.0/25` and of each smaller subnet
        // that contains it.
        ("192.168.1.10-192.168.1.127", "192.168.1.0/24"),
        ("192.168.1.4-192.168.1.5", "192.168.1.0/29"),
        ("10.0.0.10-10.200.0.10", "10.0.0.0/8"),
        ("192.168.0.200-192.168.1.10", "192.168.0.0/23"),
        ("fd00::10-fd00::ff", "fd00::/120"),
        ("fd00::1-fd00::ff", "fc00::/7"),
        ("fd00::100-fd00::101", "fd00::/119"),
    ] {
        let import = plan_of(&[("range-a", range)]);
        if expected == "fc00::/7" {
            assert!(import.notes[0].contains("(gateway)"), "{import:?}");
            continue;
        }
        let (first, last) = range.split_once('-').unwrap();
        assert_eq!(only(&import).1, [format!("{expected} {first}-{last}")]);
        assert_eq!(import.notes, Vec::<String>::new(), "{range}");
        let ranges = PoolRanges::parse(&import.pools[0].spec.ranges).unwrap();
        for end in [first, last] {
            assert!(ranges.find(end.parse().unwrap()).is_some(), "{range}: {end}");
        }
    }
}

#[test]
fn single_addresses_have_no_subnet() {
    for (key, text) in
        [("range-a", "10.0.0.5"), ("range-a", "10.0.0.5-10.0.0.5"), ("cidr-a", "10.0.0.5/32")]
    {
        let import = plan_of(&[(key, text)]);
        assert_eq!(only(&import).1, ["10.0.0.5/32 -"]);
        assert_eq!(PoolRanges::parse(&import.pools[0].spec.ranges).unwrap().total(), 1);
    }
    assert_eq!(only(&plan_of(&[("range-a", "fd00::5")])).1, ["fd00::5/128 -"]);
    assert_eq!(only(&plan_of(&[("cidr-a", "fd00:1::7/64")])).1, ["fd00:1::/64 -"]);
}

#[test]
fn reversed_ends_are_exchanged_and_reported() {
    let import = plan_of(&[("range-a", "10.0.0.20-10.0.0.10")]);
    assert_eq!(only(&import).1, ["10.0.0.0/27 10.0.0.10-10.0.0.20"]);
    assert_eq!(
        import.notes,
        ["range-a \"10.0.0.20-10.0.0.10\": reversed, imported as 10.0.0.10-10.0.0.20"]
    );
}

/// `10.0.0.0` is the network address of every subnet that the import tries, so no such subnet has
/// it as a host.
#[test]
fn what_no_subnet_can_give_out_is_reported() {
    let import = plan_of(&[("range-a", "10.0.0.0-10.0.0.15")]);
    assert_eq!(only(&import).1, ["10.0.0.0/28 10.0.0.1-10.0.0.14"]);
    assert!(
        import.notes[0].contains("10.0.0.0 (network), 10.0.0.1 (gateway), 10.0.0.15 (broadcast)"),
        "{import:?}"
    );
}

#[test]
fn what_cannot_be_taken_is_named_with_a_remedy_and_the_rest_is_taken() {
    for (key, value, why) in [
        ("cidr-a", "10.0.0.0", "10.0.0.0\" is not a network: write"),
        ("cidr-a", "10.0.0.0/33", "is not a network"),
        ("cidr-a", "10.0.0.10-10.0.0.20", "is not a network"),
        ("range-a", "10.0.0.0/24", "is not an address: write 192.168.1.10-192.168.1.20"),
        ("range-a", "10.0.0.10-x", "\"x\" is not an address"),
        ("range-a", "-10.0.0.10", "\"\" is not an address"),
        ("range-a", "10.0.0.10-fd00::1", "one family"),
        ("range-a", "10.0.0.1-10.0.0.2-10.0.0.3", "is not an address"),
    ] {
        let import =
            plan_of(&[(key, &format!("{value},172.16.0.0/24")), ("cidr-b", "10.9.0.0/24")]);
        let refused = &import.refused[0];
        assert_eq!((refused.key.as_str(), refused.value.as_str()), (key, value));
        assert!(refused.why.contains(why), "{refused}");
        assert_eq!(shape(import.pools.last().unwrap()).0, "b");
    }
    for (key, why) in [
        ("cidr-", "\"\" is not a namespace: write cidr-NAMESPACE"),
        ("range-UPPER", "is not a namespace"),
        ("range-a_b", "is not a namespace"),
    ] {
        let import = plan_of(&[(key, "10.0.0.0/24")]);
        assert!(import.pools.is_empty() && import.refused[0].why.contains(why), "{import:?}");
    }
    assert!(plan_of(&[("cidr-a", " , ")]).refused[0].why.contains("contains no addresses"));
}

#[test]
fn keys_that_are_no_pools_are_reported_and_no_others() {
    let import = plan_of(&[
        ("search-order", "desc"),
        ("interface-default", "eth0"),
        ("allow-share-default", "true"),
        ("skip", "x"),
    ]);
    let ignored = ["allow-share-default", "interface-default", "search-order", "skip"];
    assert_eq!(
        import,
        ImportPlan { ignored: ignored.map(str::to_owned).into(), ..ImportPlan::default() }
    );
    assert_eq!(plan_of(&[]), ImportPlan::default());
}

#[test]
fn of_two_that_overlap_the_narrower_is_taken() {
    let import = plan_of(&[
        ("cidr-global", "10.0.0.0/16,10.7.0.0/24"),
        ("cidr-default", "10.0.1.0/24,10.0.1.0/25"),
        ("range-other", "10.0.1.10-10.0.1.20"),
    ]);
    let shapes: Vec<_> = import.pools.iter().map(shape).collect();
    assert_eq!(
        shapes,
        [
            ("default", vec!["10.0.1.0/24 -".to_owned()]),
            ("global", vec!["10.7.0.0/24 -".to_owned()])
        ]
    );
    let refused: Vec<_> =
        import.refused.iter().map(|r| (r.key.as_str(), r.value.as_str())).collect();
    assert_eq!(
        refused,
        [
            ("cidr-default", "10.0.1.0/25"),
            ("range-other", "10.0.1.10-10.0.1.20"),
            ("cidr-global", "10.0.0.0/16")
        ]
    );
    assert!(import.refused[1].why.contains("IPPool default"), "{import:?}");
}

#[test]
fn pools_that_are_there_stay_and_are_in_the_way() {
    let any = json!([{"project": "*", "namespace": "*", "guestCluster": "*"}]);
    let mut known = known();
    known.pools = vec![
        existing("default", json!({"ranges": [{"subnet": "10.1.0.0/24"}]})),
        existing("old", json!({"ranges": [{"subnet": "10.2.0.0/24"}]})),
        existing(
            "vlan",
            json!({"ranges": [{"subnet": "10.3.0.0/24"}], "selector": {"network": "default/vlan7"}}),
        ),
        existing("all", json!({"ranges": [{"subnet": "10.4.0.0/24"}], "selector": {"scope": any}})),
    ];
    let data = data(&[
        ("cidr-default", "10.9.0.0/24"),
        ("cidr-a", "10.2.0.0/25"),
        ("cidr-b", "10.3.0.0/24"),
        ("cidr-global", "10.8.0.0/24"),
    ]);
    let import = plan(&data, &known);
    assert_eq!(import.left, ["default"]);
    assert_eq!(import.pools.iter().map(|pool| pool.name.as_str()).collect::<Vec<_>>(), ["b"]);
    let why: Vec<_> = import.refused.iter().map(|refused| refused.why.as_str()).collect();
    assert!(why[0].contains("IPPool old") && why[1].contains("all"), "{why:?}");
    let report = import.report(&BTreeSet::from(["b".to_owned()]));
    assert_eq!(report.lines().count(), 4, "{report}");
    assert!(report.contains("not changed: IPPool default"), "{report}");
}

/// A second run finds the pools of the first run: nothing is created twice.
#[test]
fn a_second_run_creates_nothing() {
    let data = data(&[("cidr-default", "10.1.0.0/24"), ("cidr-global", "10.2.0.0/24")]);
    let mut known = known();
    let first = plan(&data, &known);
    known.pools =
        first.pools.iter().map(|pool| IPPool::new(&pool.name, pool.spec.clone())).collect();
    let second = plan(&data, &known);
    assert!(second.pools.len() == 2 && second.pools.iter().all(|pool| pool.there), "{second:?}");
    assert_eq!((second.left.len(), second.refused.len()), (0, 0));
    assert!(second.report(&BTreeSet::new()).contains("exists already: IPPool global"));
    // The stored pool `default` has another range, so an admin created or changed it.
    known.pools[0].spec.ranges[0].subnet = "10.9.0.0/24".to_owned();
    assert_eq!(plan(&data, &known).left, ["default"]);
}

#[test]
fn addresses_in_use_are_given_back_to_their_load_balancers_or_excluded() {
    let services = json!({"services": [
        {"vip": "10.1.0.9", "serviceName": "registry"}, {"vip": "0.0.0.0", "serviceName": "leased"},
        {"vip": "x", "serviceName": "odd"}, {"vip": "10.77.0.1", "serviceName": "elsewhere"},
        {"vip": "10.1.0.8", "serviceName": "lb"}]});
    let mut known = known();
    known.load_balancers = BTreeMap::from([
        ("default/web".to_owned(), Some("10.1.0.7".parse().unwrap())),
        ("default/idle".to_owned(), None),
        ("kube-system/lb".to_owned(), None),
    ]);
    let data = data(&[("cidr-global", "10.1.0.0/24"), (SERVICES, &services.to_string())]);
    let import = plan(&data, &known);
    let pool = &import.pools[0];
    let history = [("10.1.0.7", "default/web"), ("10.1.0.8", "kube-system/lb")];
    assert_eq!(pool.history, history.map(|(ip, name)| (ip.to_owned(), name.to_owned())).into());
    assert_eq!(pool.spec.ranges[0].exclude, Some(vec!["10.1.0.9".to_owned()]));
    assert!(import.notes[0].contains("Service kube-system/registry"), "{import:?}");
    assert_eq!(import.refused.iter().map(|r| r.value.as_str()).collect::<Vec<_>>(), ["x"]);

    let broken = plan_of(&[("cidr-global", "10.1.0.0/24"), (SERVICES, "{")]);
    assert_eq!((broken.pools.len(), broken.refused[0].key.as_str()), (1, SERVICES));
}

#[test]
fn reports_are_bounded() {
    let many: Vec<String> = (0..5_000).map(|n| format!("x{n}{}", "y".repeat(n % 300))).collect();
    let import = plan_of(&[("cidr-a", &many.join(","))]);
    assert_eq!(import.refused.len(), 5_000);
    let report = import.report(&BTreeSet::new());
    assert!(
        report.len() < 17 * 1024 && report.contains("lines more: see the log"),
        "{}",
        report.len()
    );
}

mod model {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Imported pools are valid and do not overlap, whatever the values.
        #[test]
        fn what_is_taken_makes_sense(
            entries in prop::collection::btree_map(
                "(cidr|range|kubevip|interface)-?[a-c]?", "[0-9a-f.:/, -]{0,40}", 0..5),
            pairs in prop::collection::vec((any::<u32>(), any::<u32>()), 0..4),
        ) {
            let mut entries = entries;
            let text: Vec<String> = pairs.iter().map(|(a, b)| format!(
                "{}-{}", std::net::Ipv4Addr::from_bits(*a), std::net::Ipv4Addr::from_bits(a.saturating_add(b >> 20)))).collect();
            entries.insert("range-d".to_owned(), text.join(","));
            let import = plan(&entries, &known());
            let ranges: Vec<PoolRanges> =
                import.pools.iter().map(|pool| PoolRanges::parse(&pool.spec.ranges).unwrap()).collect();
            for (n, a) in ranges.iter().enumerate() {
                for b in &ranges[n + 1..] {
                    prop_assert_eq!(conflict::overlap(a, b), None);
                }
            }
            import.report(&BTreeSet::new());
        }
    }
}
