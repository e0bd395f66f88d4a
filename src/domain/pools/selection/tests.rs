//! Tests of the choice of pools: documented cases, and a comparison with a selection in plain
//! passes.

use proptest::prelude::*;

use super::*;
use crate::load_balancer::facts::{LbSurroundings, Project, requirement};

/// Scope from `"project namespace cluster"`; `-` stands for a blank field.
fn scope(text: &str) -> api::Scope {
    let mut fields = text.split(' ').map(|f| Some(f.to_owned()).filter(|f| f != "-"));
    api::Scope {
        project: fields.next().unwrap(),
        namespace: fields.next().unwrap(),
        guest_cluster: fields.next().unwrap(),
    }
}

#[derive(Clone, Debug)]
struct TestPool {
    name: String,
    selector: api::Selector,
}

fn pool(name: &str, network: &str, priority: i64, scopes: &[&str]) -> TestPool {
    TestPool {
        name: name.into(),
        selector: api::Selector {
            priority: Some(priority),
            network: Some(network.into()),
            scope: Some(scopes.iter().map(|s| scope(s)).collect()),
        },
    }
}

fn asks(network: &str, text: &str) -> PoolRequirement {
    let scope = scope(text);
    PoolRequirement {
        network: network.into(),
        project: scope.project.unwrap_or_default(),
        namespace: scope.namespace.unwrap_or_default(),
        cluster: scope.guest_cluster.unwrap_or_default(),
    }
}

fn select(pool: &TestPool) -> PoolSelector {
    PoolSelector::new(Some(&pool.selector))
}

fn chosen(pools: &[TestPool], requirement: &PoolRequirement) -> Vec<String> {
    let selectors: Vec<_> = pools.iter().map(|p| (p.name.as_str(), select(p))).collect();
    let mut ranked: Vec<_> =
        selectors.iter().filter_map(|(n, s)| Some(s.rank(s.fit(requirement)?, n))).collect();
    ranked.sort_unstable();
    ranked.into_iter().map(|(_, _, name)| name.to_owned()).collect()
}

/// A case: its description, the pools, and the names of the pools that fit, best first.
type Case = (&'static str, Vec<TestPool>, &'static [&'static str]);

/// The LoadBalancer is in project `c/p`, namespace `ns`, guest cluster `g`, on network `n`.
#[test]
fn documented_cases() {
    let strict = || pool("strict", "n", 0, &["c/p ns g"]);
    let loose = || pool("loose", "n", 9, &["- ns -"]);
    let named = |name: &str, priority| pool(name, "n", priority, &["* ns *"]);
    let global = || pool("global", "elsewhere", 99, &["* * *"]);
    let cases: [Case; 13] = [
        ("the network is exact", vec![pool("a", "m", 0, &["* ns *"])], &[]),
        ("no network is a network too", vec![pool("a", "", 0, &["* ns *"])], &[]),
        ("a namespace alone admits any project and cluster", vec![loose()], &["loose"]),
        ("strict first", vec![loose(), strict()], &["strict", "loose"]),
        ("a blank namespace is never any", vec![pool("a", "n", 0, &["c/p - g"])], &[]),
        ("another's cluster", vec![pool("a", "n", 0, &["c/p ns h"])], &[]),
        ("another's project", vec![pool("a", "n", 0, &["c/q ns -"])], &[]),
        ("its project", vec![pool("a", "n", 0, &["c/p ns -"])], &["a"]),
        ("one scope is enough", vec![pool("a", "n", 0, &["x y z", "* * g"])], &["a"]),
        ("its cluster in any project", vec![pool("a", "n", 0, &["- * g"])], &["a"]),
        (
            "priority, then name",
            vec![named("b", 1), named("c", 2), named("a", 1)],
            &["c", "a", "b"],
        ),
        ("global last", vec![global(), strict(), loose()], &["strict", "loose", "global"]),
        ("without a scope for no LoadBalancer", vec![pool("a", "n", 9, &[])], &[]),
    ];
    for (case, pools, expected) in cases {
        assert_eq!(chosen(&pools, &asks("n", "c/p ns g")), expected, "{case}");
    }
    // A LoadBalancer without project and guest cluster, as Harvester's webhook sees a vm
    // LoadBalancer.
    assert_eq!(chosen(&[loose(), strict()], &asks("n", "- ns -")), ["loose"]);
    // A scope of two entries with `*` in all fields makes no global pool: the pool's network
    // counts.
    let twice = [pool("a", "elsewhere", 0, &["* * *", "* * *"])];
    assert_eq!(chosen(&twice, &asks("n", "c/p ns g")), [""; 0]);
    let unset = [pool("a", "", 0, &["* ns *"])];
    assert_eq!(chosen(&unset, &asks("", "- ns -")), ["a"]);
}

/// Requirement that is read from a LoadBalancer of this type, with this network and scope. `text`
/// has the same form as for `asks`, and both functions must return the same requirement.
fn asks_as(workload_type: api::WorkloadType, network: &str, text: &str) -> PoolRequirement {
    let scope = scope(text);
    let mut lb = api::LoadBalancer::default();
    lb.spec.workload_type = Some(workload_type);
    lb.metadata.namespace = scope.namespace;
    let cluster = scope.guest_cluster.map(|name| (api::ANNOTATION_CLUSTER.to_owned(), name));
    let network = (api::ANNOTATION_NETWORK.to_owned(), network.to_owned());
    lb.metadata.annotations = Some(cluster.into_iter().chain([network]).collect());
    let project = scope.project.map_or(Project::Outside, Project::In);
    requirement(&lb, &LbSurroundings { project, vm_network: None, ..LbSurroundings::default() })
}

/// Pools, the scope of a LoadBalancer on network `default/vlan10`, and the name of the pool that is
/// chosen. `None`: no pool is chosen.
type GoRow<'a> = (&'a [&'a TestPool], &'static str, Option<&'static str>);

/// Rows of the test of Harvester's Go controller (harvester/load-balancer-harvester,
/// `pkg/ipam/selector_test.go`), for both types of LoadBalancers. The last two rows are of that
/// controller's loose mode. The Go controller uses this mode for type cluster only, and this
/// operator uses it for both types.
#[test]
fn rows_of_the_go_controller_hold() {
    const NETWORK: &str = "default/vlan10";
    let default = &pool("default", NETWORK, 0, &["* default *"]);
    let prior = &pool("defaultPriority", NETWORK, 100, &["* default *"]);
    let global = &pool("global", "", 0, &["* * *"]);
    let blank = &pool("vlan-100-no-scope", NETWORK, 0, &["- default -"]);
    let scoped = &pool("vlan-100-with-scope", NETWORK, 0, &["project1 default cluster1"]);
    let rows: [GoRow<'_>; 10] = [
        (&[default, global], "- default -", Some("default")),
        (&[default, global], "- test -", Some("global")),
        (&[default, global], "unknown - cluster1", Some("global")),
        (&[default], "- default -", Some("default")),
        (&[default], "- test -", None),
        (&[default], "unknown guest-cluster-1 cluster1", None),
        (&[default, prior], "- default -", Some("defaultPriority")),
        (&[scoped, blank], "project1 default cluster1", Some("vlan-100-with-scope")),
        (&[scoped, blank], "unknown default cluster1", Some("vlan-100-no-scope")),
        (&[scoped, blank], "- default -", Some("vlan-100-no-scope")),
    ];
    for workload_type in [api::WorkloadType::Vm, api::WorkloadType::Cluster] {
        for (pools, text, expected) in rows {
            let pools: Vec<TestPool> = pools.iter().map(|pool| (*pool).clone()).collect();
            let requirement = asks_as(workload_type, NETWORK, text);
            assert_eq!(requirement, asks(NETWORK, text), "{workload_type:?}");
            let first = chosen(&pools, &requirement).into_iter().next();
            assert_eq!(first.as_deref(), expected, "{text} of type {workload_type:?}");
        }
    }
}

/// The author of a LoadBalancer cannot make it match more pools by a `*` in its fields.
#[test]
fn a_star_in_a_load_balancer_is_only_a_star() {
    for text in ["* * *", "* ns g", "c/p * g", "c/p ns *"] {
        let asks = asks("n", text);
        assert!(chosen(&[pool("a", "n", 0, &["c/p ns g"])], &asks).is_empty(), "{text}");
        assert!(!select(&pool("a", "n", 0, &["c/p ns g"])).may_be_named_by(&asks), "{text}");
    }
}

#[test]
fn a_pool_may_be_named_by_anyone_unless_its_scope_says_whom_it_is_for() {
    let who = asks("m", "c/p ns g");
    for (pool, may) in [
        (pool("no scope", "n", 0, &[]), true),
        (pool("admitted, whatever the network", "n", 0, &["* ns *"]), true),
        (pool("blank fields", "n", 0, &["- ns -"]), true),
        (pool("another project", "n", 0, &["c/q ns -"]), false),
        (pool("another namespace", "n", 0, &["* other *"]), false),
        (pool("global", "n", 0, &["* * *"]), true),
    ] {
        assert_eq!(select(&pool).may_be_named_by(&who), may, "{}", pool.name);
    }
    let bare = PoolSelector::new(None);
    assert!(bare.may_be_named_by(&who) && bare.fit(&who).is_none());
}

/// The documented selection in three passes: strict, loose, global. Returns the names of the pools,
/// best first.
fn naive(pools: &[TestPool], lb: &PoolRequirement) -> Vec<String> {
    let (global, scoped): (Vec<&TestPool>, Vec<&TestPool>) =
        pools.iter().partition(|p| is_global(p));
    let near: Vec<&TestPool> = scoped
        .into_iter()
        .filter(|p| p.selector.network.clone().unwrap_or_default() == lb.network)
        .collect();
    let (strict, rest): (Vec<&TestPool>, Vec<&TestPool>) =
        near.into_iter().partition(|p| scopes(p).iter().any(|s| is_strict(s, lb)));
    let loose = rest.into_iter().filter(|p| scopes(p).iter().any(|s| is_loose(s, lb))).collect();
    let mut order = Vec::new();
    for mut pass in [strict, loose, global] {
        pass.sort_by_key(|p| p.name.clone());
        pass.sort_by_key(|p| -p.selector.priority.unwrap_or(0));
        order.extend(pass.into_iter().map(|p| p.name.clone()));
    }
    order
}

fn scopes(pool: &TestPool) -> Vec<[String; 3]> {
    let fields = |s: &api::Scope| {
        [&s.project, &s.namespace, &s.guest_cluster].map(|f| f.clone().unwrap_or_default())
    };
    pool.selector.scope.iter().flatten().map(fields).collect()
}

fn is_global(pool: &TestPool) -> bool {
    scopes(pool) == [["*", "*", "*"].map(String::from)]
}

fn is_strict([project, namespace, cluster]: &[String; 3], lb: &PoolRequirement) -> bool {
    (project == "*" || *project == lb.project)
        && (namespace == "*" || *namespace == lb.namespace)
        && (cluster == "*" || *cluster == lb.cluster)
}

fn is_loose([project, namespace, cluster]: &[String; 3], lb: &PoolRequirement) -> bool {
    (project.is_empty() || project == "*" || *project == lb.project)
        && (namespace == "*" || *namespace == lb.namespace)
        && (cluster.is_empty() || cluster == "*" || *cluster == lb.cluster)
}

fn word() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["", "*", "a", "b"]).prop_map(str::to_owned)
}

fn any_selector() -> impl Strategy<Value = api::Selector> {
    let blank_or = || prop::option::weighted(0.8, word());
    let scope =
        (blank_or(), blank_or(), blank_or()).prop_map(|(project, namespace, guest_cluster)| {
            api::Scope { project, namespace, guest_cluster }
        });
    let scopes = prop::option::weighted(0.9, prop::collection::vec(scope, 0..3));
    let network = prop::option::weighted(0.5, prop::sample::select(vec!["", "a"]));
    let priority = prop::option::of(0_i64..3);
    (network, priority, scopes).prop_map(|(network, priority, scope)| api::Selector {
        priority,
        network: network.map(str::to_owned),
        scope,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1_000) })]

    #[test]
    fn agrees_with_selection_pass_by_pass(
        drawn in prop::collection::vec(any_selector(), 0..8),
        network in prop::sample::select(vec!["", "a"]),
        fields in [word(), word(), word()],
    ) {
        let [project, namespace, cluster] = fields;
        let lb = PoolRequirement { network: network.into(), project, namespace, cluster };
        let pools: Vec<TestPool> = drawn
            .into_iter()
            .zip(["d", "b", "h", "a", "c", "g", "f", "e"])
            .map(|(selector, name)| TestPool { name: name.into(), selector })
            .collect();
        let order = chosen(&pools, &lb);
        prop_assert_eq!(&order, &naive(&pools, &lb));
        for pool in &pools {
            let admitted = is_global(pool)
                || scopes(pool).is_empty()
                || scopes(pool).iter().any(|s| is_strict(s, &lb) || is_loose(s, &lb));
            prop_assert_eq!(select(pool).may_be_named_by(&lb), admitted);
            prop_assert!(admitted || !order.contains(&pool.name), "chosen, but may not be named");
        }
    }
}
