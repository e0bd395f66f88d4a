//! Tests of single cases of the selection of VMs. The module `model` tests random cases.

mod model;

use super::super::vm::Nic;
use super::*;

pub(super) fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

pub(super) fn selector(clauses: &[(&str, &[&str])]) -> VmSelector {
    let list = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect();
    clauses.iter().map(|(key, values)| ((*key).to_owned(), list(values))).collect()
}

fn vm(uid: &str) -> Vm {
    Vm { uid: uid.into(), ..Vm::default() }
}

fn pod(uid: &str, vm: &str) -> VmPod {
    VmPod { uid: uid.into(), vm: vm.into(), ..VmPod::default() }
}

/// Names of the VMs that the LoadBalancer `lb` selects, each with the UIDs of its pods.
fn members(index: &LabelIndex, lb: &str) -> Vec<(String, Vec<String>)> {
    let uids = |pods: &[VmPod]| pods.iter().map(|pod| pod.uid.to_string()).collect();
    let mut all: Vec<_> =
        index.members("ns", lb).map(|(name, _, pods)| (name.to_string(), uids(pods))).collect();
    all.sort();
    all
}

fn names(index: &LabelIndex, lb: &str) -> Vec<String> {
    members(index, lb).into_iter().map(|(name, _)| name).collect()
}

fn keys(keys: &[LbKey]) -> Vec<&str> {
    keys.iter().map(|key| &**key).collect()
}

impl LabelIndex {
    /// Number of entries of each kind. In order: pairs, VMs, VMs by UID, VMs with pods, pods,
    /// LoadBalancers. Removed entries do not count.
    pub(super) fn sizes(&self) -> [usize; 6] {
        assert_eq!(self.pairs.len(), self.pair_ids.len());
        assert_eq!(self.vms.len(), self.vm_ids.len());
        assert_eq!(self.lbs.len(), self.lb_ids.len());
        [
            self.pair_ids.len(),
            self.vm_ids.len(),
            self.uids.len(),
            self.pods.len(),
            self.pod_owner.len(),
            self.lb_ids.len(),
        ]
    }
}

#[test]
fn a_selector_needs_one_value_of_each_key() {
    let mut index = LabelIndex::default();
    let vms = [
        ("a", labels(&[("app", "web"), ("tier", "front"), ("more", "x")])),
        ("b", labels(&[("app", "web"), ("tier", "back")])),
        ("c", labels(&[("app", "db"), ("tier", "back")])),
        ("d", labels(&[("app", "web")])),
        ("e", labels(&[])),
    ];
    for (name, labels) in &vms {
        index.set_vm("ns", name, labels, vm(name));
    }
    index.set_vm("other", "a", &vms[0].1, vm("other-a"));
    for (clauses, expected) in [
        (&[("app", &["web"][..])][..], &["a", "b", "d"][..]),
        (&[("app", &["web"]), ("tier", &["front"])], &["a"]),
        (&[("app", &["web", "db"]), ("tier", &["back"])], &["b", "c"]),
        (&[("app", &["web", "web", "none"])], &["a", "b", "d"]),
        (&[("app", &["none"])], &[]),
        (&[("none", &["web"])], &[]),
        (&[("app", &[""])], &[]),
        (&[("app", &[])], &[]),
        (&[("app", &["web"]), ("tier", &[])], &[]),
        // An empty selector must not match every VM of the namespace.
        (&[], &[]),
    ] {
        let selector = selector(clauses);
        assert!(index.set_lb("ns", "lb", &selector), "{clauses:?}");
        assert_eq!(names(&index, "lb"), expected, "{clauses:?}");
        assert!(!index.set_lb("ns", "lb", &selector), "it selects the same as before");
        // The result must be the same if the VMs are stored after the LoadBalancer.
        let mut later = LabelIndex::default();
        later.set_lb("ns", "lb", &selector);
        for (name, labels) in &vms {
            let affected = later.set_vm("ns", name, labels, vm(name));
            assert_eq!(!affected.is_empty(), expected.contains(name), "{clauses:?} {name}");
        }
        assert_eq!(names(&later, "lb"), expected, "{clauses:?}");
    }
    assert_eq!(names(&index, "unknown"), Vec::<String>::new());
}

/// Two pairs of label and value are different if their namespaces, labels or values differ.
#[test]
fn pairs_are_not_mixed_up() {
    let mut index = LabelIndex::default();
    index.set_lb("ns", "lb", &selector(&[("example.org/app", &["web"])]));
    index.set_lb("ns", "odd", &selector(&[("a=b", &["c"]), ("a", &["b=c"])]));
    for (namespace, pairs) in [
        ("ns", labels(&[("app", "web")])),
        ("ns", labels(&[("example.org/web", "app")])),
        ("other", labels(&[("example.org/app", "web")])),
    ] {
        assert_eq!(index.set_vm(namespace, "vm", &pairs, vm("v")), [] as [LbKey; 0], "{pairs:?}");
        index.remove_vm(namespace, "vm");
    }
    let fits = labels(&[("example.org/app", "web")]);
    assert_eq!(keys(&index.set_vm("ns", "vm", &fits, vm("v"))), ["ns/lb"]);
}

/// Guests report often, but only changes that an endpoint depends on trigger a reconcile.
#[test]
fn a_change_without_effect_wakes_no_load_balancer() {
    let mut index = LabelIndex::default();
    index.set_lb("ns", "lb", &selector(&[("app", &["web"])]));
    let web = labels(&[("app", "web")]);
    assert_eq!(keys(&index.set_vm("ns", "a", &web, vm("v"))), ["ns/lb"]);
    let again = Vm { version: "2".into(), ..vm("v") };
    assert_eq!(keys(&index.set_vm("ns", "a", &web, again.clone())), [] as [&str; 0]);
    assert_eq!(index.vm("ns/a"), Some(&again), "what is stored is the newest");
    let more = labels(&[("app", "web"), ("node", "n1")]);
    assert_eq!(keys(&index.set_vm("ns", "a", &more, again.clone())), [] as [&str; 0]);
    let paused = Vm { paused: true, ..again };
    assert_eq!(keys(&index.set_vm("ns", "a", &web, paused.clone())), ["ns/lb"], "with labels");
    assert_eq!(keys(&index.set_vm("ns", "a", &web, vm("v"))), ["ns/lb"], "without");
    let launcher = pod("p", "v");
    assert_eq!(keys(&index.set_pod("ns", "p", Some(launcher.clone()))), ["ns/lb"]);
    assert_eq!(keys(&index.set_pod("ns", "p", Some(launcher))), [] as [&str; 0]);
    assert_eq!(keys(&index.set_pod("ns", "q", Some(pod("q", "other")))), [] as [&str; 0]);
    assert_eq!(keys(&index.set_pod("ns", "q", None)), [] as [&str; 0]);
    assert_eq!(keys(&index.set_pod("ns", "unknown", None)), [] as [&str; 0]);
    assert_eq!(keys(&index.set_vm("ns", "a", &labels(&[]), vm("v"))), ["ns/lb"], "it leaves");
    assert_eq!(keys(&index.remove_vm("ns", "a")), [] as [&str; 0]);
    assert_eq!(keys(&index.remove_vm("ns", "a")), [] as [&str; 0]);
}

#[test]
fn pods_may_be_known_before_their_vm_and_after() {
    let mut index = LabelIndex::default();
    index.set_lb("ns", "lb", &selector(&[("app", &["web"])]));
    let web = labels(&[("app", "web")]);
    index.set_pod("ns", "p", Some(pod("p", "v")));
    index.set_vm("ns", "a", &web, vm("v"));
    assert_eq!(members(&index, "lb"), [("a".to_owned(), vec!["p".to_owned()])]);
    index.remove_vm("ns", "a");
    assert_eq!(members(&index, "lb"), []);
    assert_eq!(index.pod_names().collect::<Vec<_>>(), ["ns/p"]);
    index.set_vm("ns", "a", &web, vm("v"));
    assert_eq!(members(&index, "lb"), [("a".to_owned(), vec!["p".to_owned()])], "seen again");
    assert_eq!(keys(&index.set_pod("ns", "p", None)), ["ns/lb"], "it runs no VM any more");
    assert_eq!(members(&index, "lb"), [("a".to_owned(), vec![])]);
}

/// A VM is started again under the same name. The informer may report the new run of the VM before
/// or after it reports that the old run's pods have ended.
#[test]
fn a_restart_under_the_same_name_has_its_own_pods() {
    let mut index = LabelIndex::default();
    index.set_lb("ns", "lb", &selector(&[("app", &["web"])]));
    let web = labels(&[("app", "web")]);
    index.set_vm("ns", "a", &web, vm("old"));
    index.set_pod("ns", "p-old", Some(pod("p-old", "old")));
    index.set_pod("ns", "p-new", Some(pod("p-new", "new")));
    assert_eq!(members(&index, "lb"), [("a".to_owned(), vec!["p-old".to_owned()])]);
    assert_eq!(keys(&index.set_vm("ns", "a", &web, vm("new"))), ["ns/lb"]);
    assert_eq!(members(&index, "lb"), [("a".to_owned(), vec!["p-new".to_owned()])]);
    assert_eq!(keys(&index.set_pod("ns", "p-old", None)), [] as [&str; 0], "of no VM any more");
    assert_eq!(keys(&index.set_pod("ns", "p-new", None)), ["ns/lb"]);
    assert_eq!(index.sizes(), [1, 1, 1, 0, 0, 1]);
}

/// The informer missed the deletion of a pod. It reports another pod of the same name, which runs
/// another VM.
#[test]
fn a_pod_that_changes_hands_leaves_the_former_vm() {
    let mut index = LabelIndex::default();
    index.set_lb("ns", "one", &selector(&[("n", &["1"])]));
    index.set_lb("ns", "two", &selector(&[("n", &["2"])]));
    index.set_vm("ns", "a", &labels(&[("n", "1")]), vm("v1"));
    index.set_vm("ns", "b", &labels(&[("n", "2")]), vm("v2"));
    index.set_pod("ns", "p", Some(pod("p1", "v1")));
    let mut affected = index.set_pod("ns", "p", Some(pod("p2", "v2")));
    affected.sort();
    assert_eq!(keys(&affected), ["ns/one", "ns/two"]);
    assert_eq!(members(&index, "one"), [("a".to_owned(), vec![])]);
    assert_eq!(members(&index, "two"), [("b".to_owned(), vec!["p2".to_owned()])]);
}

/// The selector lists the names of VMs, as user interfaces write it.
#[test]
fn a_thousand_values_select_a_thousand_vms() {
    const MANY: usize = 1_000;
    let mut index = LabelIndex::default();
    let all: Vec<String> = (0..MANY).map(|n| format!("vm-{n}")).collect();
    let by_name = VmSelector::from([("name".to_owned(), all.clone())]);
    index.set_lb("ns", "lb", &by_name);
    assert_eq!(index.sizes()[0], MANY);
    for (n, name) in all.iter().enumerate() {
        let affected = index.set_vm("ns", name, &labels(&[("name", name)]), vm(name));
        assert_eq!(keys(&affected), ["ns/lb"]);
        assert_eq!(index.members("ns", "lb").count(), n + 1);
    }
    assert_eq!(index.set_vm("ns", "x", &labels(&[("name", "vm-1000")]), vm("x")), []);
    let half = VmSelector::from([("name".to_owned(), all[..MANY / 2].to_vec())]);
    assert!(index.set_lb("ns", "lb", &half));
    assert_eq!(index.members("ns", "lb").count(), MANY / 2);
    index.remove_lb("ns", "lb");
    assert_eq!(index.sizes()[0], MANY + 1, "labels of VMs stay");
    for name in all.iter().map(String::as_str).chain(["x"]) {
        index.remove_vm("ns", name);
    }
    assert_eq!(index.sizes(), [0; 6]);
}

/// Many LoadBalancers may require the same pair of label and value. Each LoadBalancer is listed
/// only at the pair that no other LoadBalancer requires. The order of the pairs in the selector
/// does not matter.
#[test]
fn a_vm_looks_at_few_load_balancers_that_do_not_select_it() {
    for own in ["aaa", "zzz"] {
        let mut index = LabelIndex::default();
        for n in 0..100 {
            let name = format!("lb-{n}");
            index.set_lb("ns", &name, &selector(&[("app", &["web"]), (own, &[&name])]));
        }
        let crowds: Vec<usize> =
            index.pair_ids.values().map(|id| index.pairs.get(*id).lbs.len()).collect();
        assert!(crowds.iter().all(|crowd| *crowd <= 1), "{own}: {crowds:?}");
        assert_eq!(crowds.len(), 101);
    }
}

/// A LoadBalancer without clauses is listed at no pair, so `matches` never gets an empty list of
/// clauses. For an empty list, `matches` would return `false`, so that no VM is selected.
#[test]
fn no_clause_matches_nothing() {
    assert!(!matches(&[], &[1, 2]) && !matches(&[vec![]], &[1]) && !matches(&[vec![1]], &[]));
    assert!(matches(&[vec![1], vec![0, 2, 4]], &[1, 2]));
    assert!(!matches(&[vec![1], vec![0, 4]], &[1, 2]));
}

/// LoadBalancers are found by the addresses and networks of their VMs. For example, LoadBalancers
/// must be reconciled when the cluster gets an address that one of their VMs reports.
#[test]
fn load_balancers_are_found_by_what_their_vms_report() {
    let mut index = LabelIndex::default();
    let nic = |network: &str, addresses: &[&str]| Nic {
        network: network.into(),
        addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
    };
    let reports = |uid: &str, nics: Vec<Nic>| Vm { nics: nics.into(), ..vm(uid) };
    let app = |name: &str| labels(&[("app", name)]);
    for name in ["one", "two"] {
        index.set_lb("ns", name, &selector(&[("app", &[name])]));
    }
    let lan = nic("ns/lan", &["192.168.1.5", "192.168.1.5", "fd00::5"]);
    index.set_vm("ns", "a", &app("one"), reports("a", vec![nic("", &["10.52.0.7"]), lan]));
    index.set_vm("ns", "b", &app("two"), reports("b", vec![nic("", &["10.52.0.8"])]));
    index.set_vm("ns", "c", &app("none"), reports("c", vec![nic("ns/lan", &["10.52.0.9"])]));
    let found = |index: &LabelIndex, networks: &[&str]| {
        let networks: Vec<IpNet> = networks.iter().map(|text| text.parse().unwrap()).collect();
        let found = index.reporting(&networks);
        found.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    for (networks, expected) in [
        (&["192.168.1.5/32"][..], &["ns/one"][..]),
        (&["fd00::5/128"], &["ns/one"]),
        (&["10.52.0.0/24"], &["ns/one", "ns/two"]),
        (&["10.52.0.8/32", "192.168.1.0/24"], &["ns/one", "ns/two"]),
        (&["10.52.0.9/32"], &[]),
        (&["10.53.0.0/16"], &[]),
        (&[], &[]),
    ] {
        assert_eq!(found(&index, networks), expected, "{networks:?}");
    }
    assert_eq!(index.on_network("ns/lan"), ["ns/one".into()]);

    index.set_vm("ns", "a", &app("one"), reports("a", vec![nic("ns/lan", &["192.168.1.6"])]));
    assert!(found(&index, &["192.168.1.5/32"]).is_empty(), "it has moved");
    index.remove_vm("ns", "a");
    index.remove_vm("ns", "b");
    index.remove_vm("ns", "c");
    assert!(index.by_address.is_empty());
}

#[test]
fn selectors_that_differ_have_different_digests() {
    let one = selector(&[("app", &["web\u{1}db"])]);
    let others: [&[(&str, &[&str])]; 4] = [
        &[("app", &["web", "db"])],
        &[("appweb", &["\u{1}db"])],
        &[("app", &["web"]), ("db", &[])],
        &[("app", &["web\u{1}", "db"])],
    ];
    for other in others {
        assert_ne!(selector_digest(&one), selector_digest(&selector(other)), "{other:?}");
    }
}
