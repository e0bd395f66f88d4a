//! Comparison of the index with a model that scans all VMs and pods.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::*;
use crate::vm_backends::vm::VmPhase;

const NAMESPACES: [&str; 2] = ["a", "b"];
const KEYS: [&str; 3] = ["app", "tier", "example.org/x"];
const VALUES: [&str; 3] = ["1", "2", "3"];

type Key = (usize, usize);

#[derive(Clone, Debug)]
enum Step {
    /// Fields: namespace and name of the VM, its labels, the number of its run, and a fact on which
    /// an endpoint may depend.
    SetVm(Key, Labels, usize, Fact),
    RemoveVm(Key),
    /// Fields: namespace and name of the pod, the number of its run, its VM, the number of the VM's
    /// run, and whether the pod is ready.
    SetPod(Key, usize, Key, usize, bool),
    RunsNoVm(Key),
    RemovePod(Key),
    SetLb(Key, VmSelector),
    RemoveLb(Key),
}

#[derive(Clone, Copy, Debug)]
enum Fact {
    None,
    Version,
    Phase,
}

fn step() -> impl Strategy<Value = Step> {
    let key = || (0..NAMESPACES.len(), 0_usize..4);
    let value = || prop::sample::select(VALUES.to_vec()).prop_map(str::to_owned);
    let label = || prop::sample::select(KEYS.to_vec()).prop_map(str::to_owned);
    let labels = prop::collection::btree_map(label(), value(), 0..=KEYS.len());
    let values = prop::collection::vec(value(), 0..4);
    let selector = prop::collection::btree_map(label(), values, 0..3);
    let fact = prop::sample::select(vec![Fact::None, Fact::Version, Fact::Phase]);
    prop_oneof![
        5 => (key(), labels, 0_usize..2, fact).prop_map(|(k, l, run, f)| Step::SetVm(k, l, run, f)),
        1 => key().prop_map(Step::RemoveVm),
        4 => (key(), 0_usize..2, key(), 0_usize..2, any::<bool>())
            .prop_map(|(k, run, vm, vm_run, ready)| Step::SetPod(k, run, vm, vm_run, ready)),
        1 => key().prop_map(Step::RunsNoVm),
        1 => key().prop_map(Step::RemovePod),
        3 => (key(), selector).prop_map(|(k, s)| Step::SetLb(k, s)),
        1 => key().prop_map(Step::RemoveLb),
    ]
}

/// Map from the name of each VM that a LoadBalancer selects to the VM and its pods. The pods are
/// sorted by UID.
type Seen = BTreeMap<String, (Vm, Vec<VmPod>)>;

#[derive(Clone, Default)]
struct Model {
    vms: BTreeMap<Key, (Labels, Vm)>,
    pods: BTreeMap<Key, VmPod>,
    lbs: BTreeMap<Key, VmSelector>,
}

impl Model {
    fn seen(&self, (namespace, lb): Key) -> Seen {
        let Some(selector) = self.lbs.get(&(namespace, lb)) else { return Seen::new() };
        let selects = |labels: &Labels| {
            !selector.is_empty()
                && selector
                    .iter()
                    .all(|(key, values)| labels.get(key).is_some_and(|v| values.contains(v)))
        };
        self.vms
            .iter()
            .filter(|((of, _), (labels, _))| *of == namespace && selects(labels))
            .map(|((_, name), (_, vm))| {
                let mut pods: Vec<VmPod> =
                    self.pods.values().filter(|pod| pod.vm == vm.uid).cloned().collect();
                pods.sort_by(|a, b| a.uid.cmp(&b.uid));
                (name.to_string(), (vm.clone(), pods))
            })
            .collect()
    }

    /// LoadBalancers of this model for which a fact has changed that their endpoints depend on.
    /// `before`: model before the change.
    fn differs(&self, before: &Self) -> BTreeSet<LbKey> {
        let alike = |now: &Seen, before: &Seen| {
            now.len() == before.len()
                && now.iter().zip(before).all(|((name, now), (other, before))| {
                    name == other && now.0.serves_like(&before.0) && now.1 == before.1
                })
        };
        let differs = |lb: &&Key| !alike(&self.seen(**lb), &before.seen(**lb));
        self.lbs.keys().filter(differs).map(|lb| key(*lb)).collect()
    }

    fn pairs(&self) -> BTreeSet<(usize, &str, &str)> {
        let of_vms = self.vms.iter().flat_map(|((namespace, _), (labels, _))| {
            labels.iter().map(|(key, value)| (*namespace, key.as_str(), value.as_str()))
        });
        let of_lbs = self.lbs.iter().flat_map(|((namespace, _), selector)| {
            selector.iter().flat_map(|(key, values)| {
                values.iter().map(|value| (*namespace, key.as_str(), value.as_str()))
            })
        });
        of_vms.chain(of_lbs).collect()
    }
}

fn key((namespace, name): Key) -> LbKey {
    format!("{}/{name}", NAMESPACES[namespace]).into()
}

fn uid((namespace, name): Key, run: usize) -> std::sync::Arc<str> {
    format!("{namespace}-{name}-{run}").into()
}

fn carry_out(step: Step, index: &mut LabelIndex, model: &mut Model) -> Vec<LbKey> {
    let name = |(namespace, name): Key| (NAMESPACES[namespace], name.to_string());
    match step {
        Step::SetVm(at, labels, run, fact) => {
            let mut vm = Vm { uid: uid(at, run), ..Vm::default() };
            match fact {
                Fact::None => {}
                Fact::Version => vm.version = "2".into(),
                Fact::Phase => vm.phase = VmPhase::Running,
            }
            let (namespace, name) = name(at);
            let affected = index.set_vm(namespace, &name, &labels, vm.clone());
            model.vms.insert(at, (labels, vm));
            affected
        }
        Step::RemoveVm(at) => {
            model.vms.remove(&at);
            index.remove_vm(name(at).0, &name(at).1)
        }
        Step::SetPod(at, run, vm, vm_run, ready) => {
            let pod = VmPod { uid: uid(at, run), vm: uid(vm, vm_run), ready, ..VmPod::default() };
            model.pods.insert(at, pod.clone());
            index.set_pod(name(at).0, &name(at).1, Some(pod))
        }
        Step::RunsNoVm(at) | Step::RemovePod(at) => {
            model.pods.remove(&at);
            index.set_pod(name(at).0, &name(at).1, None)
        }
        Step::SetLb(at, selector) => {
            let news = model.lbs.get(&at) != Some(&selector);
            assert_eq!(index.set_lb(name(at).0, &name(at).1, &selector), news);
            model.lbs.insert(at, selector);
            // `set_lb` returns no LoadBalancers to reconcile: its caller reconciles the changed
            // LoadBalancer anyway.
            Vec::new()
        }
        Step::RemoveLb(at) => {
            model.lbs.remove(&at);
            index.remove_lb(name(at).0, &name(at).1);
            Vec::new()
        }
    }
}

fn check(index: &LabelIndex, model: &Model) {
    for (namespace, text) in NAMESPACES.iter().enumerate() {
        for lb in 0..4 {
            let mut count = 0;
            let name = lb.to_string();
            let seen: Seen = index
                .members(text, &name)
                .map(|(name, vm, pods)| {
                    count += 1;
                    let mut pods = pods.to_vec();
                    pods.sort_by(|a, b| a.uid.cmp(&b.uid));
                    (name.to_string(), (vm.clone(), pods))
                })
                .collect();
            assert_eq!(seen, model.seen((namespace, lb)));
            assert_eq!(seen.len(), count, "a member is there twice");
        }
    }
    let vms: BTreeMap<LbKey, Vm> = index.vms().map(|(key, vm)| (key.into(), vm.clone())).collect();
    assert!(vms.into_iter().eq(model.vms.iter().map(|(at, (_, vm))| (key(*at), vm.clone()))));
    let pods: BTreeSet<LbKey> = index.pod_names().map(Into::into).collect();
    assert!(pods.into_iter().eq(model.pods.keys().map(|at| key(*at))));
    let with_pods: BTreeSet<&str> = model.pods.values().map(|pod| &*pod.vm).collect();
    let (vms, lbs) = (model.vms.len(), model.lbs.len());
    let sizes = [model.pairs().len(), vms, vms, with_pods.len(), model.pods.len(), lbs];
    assert_eq!(index.sizes(), sizes, "no more is kept than is there");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(700) })]

    #[test]
    fn agrees_with_scans_and_leaves_nothing_behind(
        steps in prop::collection::vec(step(), 0..60),
        order in Just((0..24_usize).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let (mut index, mut model) = (LabelIndex::default(), Model::default());
        for step in steps {
            let before = model.clone();
            let sets_lb = matches!(step, Step::SetLb(..) | Step::RemoveLb(_));
            let affected = carry_out(step, &mut index, &mut model);
            if !sets_lb {
                let affected: BTreeSet<LbKey> = affected.into_iter().collect();
                prop_assert_eq!(affected, model.differs(&before));
            }
            check(&index, &model);
        }
        for n in order {
            let at = (n % 2, n / 2 % 4);
            let step = match n / 8 {
                0 => Step::RemoveVm(at),
                1 => Step::RemovePod(at),
                _ => Step::RemoveLb(at),
            };
            carry_out(step, &mut index, &mut model);
            check(&index, &model);
        }
        prop_assert_eq!(index.sizes(), [0; 6]);
    }
}
