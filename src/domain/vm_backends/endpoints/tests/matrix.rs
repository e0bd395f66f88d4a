//! Rules for endpoints and their state, tested with every combination of actions of KubeVirt, of
//! the health check and of a user.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::super::*;
use crate::vm_backends::readiness::BackendCounts;
use crate::vm_backends::vm::{pod, vm};

/// Columns of the table [`RULES`], each with its possible values. The table's last column,
/// `endpoint`, is missing here, because it is the result.
const COLUMNS: [(&str, &[&str]); 6] = [
    // `status.phase` of the VM.
    (
        "phase",
        &[
            "Pending",
            "Scheduling",
            "Scheduled",
            "WaitingForSync",
            "Running",
            "Succeeded",
            "Failed",
            "Unknown",
        ],
    ),
    // Actions of users on the VM.
    ("VM", &["stays", "deleted", "paused", "paused+deleted"]),
    // The VM's `Ready` condition. `False` and `Unknown` have reasons other than `PodTerminating`.
    ("Ready", &["True", "False", "Unknown", "PodTerminating", "absent"]),
    // The VM's pods on its node n1, except `elsewhere`, which is on n3. `leaving` is being deleted
    // and ready; `stopping` is being deleted and no longer ready. `finished` has ended and still
    // reports ready. `newer-ready`, `newer-unready`: there are two pods, and the name says whether
    // the newer pod is ready.
    (
        "pods",
        &[
            "none",
            "ready",
            "unready",
            "leaving",
            "stopping",
            "finished",
            "elsewhere",
            "newer-ready",
            "newer-unready",
        ],
    ),
    // A live migration to n2. The target's pod is the newest of all pods. `pending`: the target's
    // pod waits for a node; `running`: that pod is ready, but the guest has not moved; `moved`:
    // that pod is ready, and the guest has moved; `failed`: that pod has ended; `aborted`: that pod
    // is being deleted.
    ("migration", &["none", "pending", "running", "moved", "failed", "aborted"]),
    // The health check's verdict; `unchecked` if there is no check.
    ("health", &["unchecked", "healthy", "unhealthy"]),
];

/// Rules for the state of an endpoint. A cell lists values of its column: `*` means any value, and
/// `!` means any value except the values after the `!`. The last cell says what the endpoint of the
/// VM is:
///
/// * `absent`: the VM has no endpoint,
/// * `ready`: the endpoint serves and does not terminate,
/// * `unready`: the endpoint neither serves nor terminates,
/// * `draining`: the endpoint serves and terminates, so it gets traffic only if no endpoint is
///   ready,
/// * `gone`: the endpoint terminates and does not serve.
const RULES: &str = "
phase            | VM             | Ready                | pods                                | migration | health     | endpoint

# A guest that does not run is no endpoint.
!Running Unknown | *              | *                    | *                                   | *         | *          | absent

# Its node is lost: it may come back, and does not serve meanwhile.
Unknown          | !stays paused  | *                    | *                                   | *         | *          | gone
Unknown          | stays paused   | *                    | !leaving stopping                   | *         | *          | unready
Unknown          | stays paused   | *                    | leaving stopping                    | !moved    | *          | gone
Unknown          | stays paused   | *                    | leaving stopping                    | moved     | *          | unready

# Its processors stand still: the same.
Running          | paused+deleted | *                    | *                                   | *         | *          | gone
Running          | paused         | *                    | !leaving stopping                   | *         | *          | unready
Running          | paused         | *                    | leaving stopping                    | !moved    | *          | gone
Running          | paused         | *                    | leaving stopping                    | moved     | *          | unready

# It serves if its pod, its Ready condition and its health check say so. Its pod is the newest on
# its node: the target of a migration says nothing before the guest has moved.
Running          | stays          | True                 | ready newer-ready                   | !moved    | !unhealthy | ready
Running          | stays          | True                 | ready newer-ready                   | !moved    | unhealthy  | unready
Running          | stays          | !True                | ready newer-ready                   | !moved    | *          | unready
Running          | stays          | *                    | !ready newer-ready leaving stopping | !moved    | *          | unready

# Its pod is being deleted, and it goes with that. It may serve until it has stopped: that Ready is
# false for this very reason is no objection.
Running          | stays          | True PodTerminating  | leaving                             | !moved    | !unhealthy | draining
Running          | stays          | True PodTerminating  | leaving                             | !moved    | unhealthy  | gone
Running          | stays          | !True PodTerminating | leaving                             | !moved    | *          | gone
Running          | stays          | *                    | stopping                            | !moved    | *          | gone

# The guest has moved: the target's pod, which is ready, is the only one that counts.
Running          | stays          | True                 | *                                   | moved     | !unhealthy | ready
Running          | stays          | True                 | *                                   | moved     | unhealthy  | unready
Running          | stays          | !True                | *                                   | moved     | *          | unready

# The VM is being deleted, whether or not its pod is by now.
Running          | deleted        | True PodTerminating  | ready newer-ready leaving           | !moved    | !unhealthy | draining
Running          | deleted        | True PodTerminating  | ready newer-ready leaving           | !moved    | unhealthy  | gone
Running          | deleted        | !True PodTerminating | ready newer-ready leaving           | !moved    | *          | gone
Running          | deleted        | *                    | !ready newer-ready leaving          | !moved    | *          | gone
Running          | deleted        | True PodTerminating  | *                                   | moved     | !unhealthy | draining
Running          | deleted        | True PodTerminating  | *                                   | moved     | unhealthy  | gone
Running          | deleted        | !True PodTerminating | *                                   | moved     | *          | gone
";

struct Rule {
    line: &'static str,
    /// Values that the rule admits, for each column.
    cells: Vec<Vec<&'static str>>,
    endpoint: &'static str,
}

impl Rule {
    fn read(line: &'static str) -> Self {
        let mut words = line.split('|').map(str::trim).collect::<Vec<_>>();
        let endpoint = words.pop().unwrap();
        assert!(["absent", "ready", "unready", "draining", "gone"].contains(&endpoint), "{line}");
        assert_eq!(words.len(), COLUMNS.len(), "{line}");
        let cells = words.iter().zip(COLUMNS).map(|(cell, (_, values))| {
            let but = cell.strip_prefix('!');
            let named: Vec<&str> = but.unwrap_or(cell).split_whitespace().collect();
            if named == ["*"] {
                return values.to_vec();
            }
            assert!(named.iter().all(|word| values.contains(word)), "{cell:?} in {line}");
            let admits = |value: &&str| named.contains(value) != but.is_some();
            values.iter().copied().filter(admits).collect()
        });
        Self { line, cells: cells.collect(), endpoint }
    }

    fn admits(&self, case: &[&'static str]) -> bool {
        self.cells.iter().zip(case).all(|(cell, value)| cell.contains(value))
    }
}

fn rules() -> Vec<Rule> {
    let mut lines = RULES.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let heads: Vec<&str> = lines.next().unwrap().split('|').map(str::trim).collect();
    assert!(heads.iter().zip(COLUMNS).all(|(head, (name, _))| *head == name));
    lines.map(Rule::read).collect()
}

/// Every combination of the values of [`COLUMNS`].
fn cases() -> Vec<Vec<&'static str>> {
    COLUMNS.iter().fold(vec![vec![]], |cases, (_, values)| {
        let with = |case: &Vec<&'static str>| {
            values.iter().map(|value| [case.as_slice(), &[*value]].concat()).collect::<Vec<_>>()
        };
        cases.iter().flat_map(with).collect()
    })
}

/// VM with the given values of [`COLUMNS`], read from a VirtualMachineInstance as KubeVirt writes
/// it. `fate`: value of the column `VM`.
fn instance(phase: &str, fate: &str, ready: &str, node: &str) -> Vm {
    let mut meta = json!({"name": "web", "namespace": "apps", "uid": "vm"});
    if fate.ends_with("deleted") {
        meta["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    let mut conditions = Vec::new();
    if fate.starts_with("paused") {
        conditions.push(json!({"type": "Paused", "status": "True", "reason": "PausedByUser"}));
    }
    match ready {
        "absent" => {}
        "PodTerminating" => {
            conditions.push(json!({"type": "Ready", "status": "False", "reason": ready}));
        }
        status => conditions.push(json!({"type": "Ready", "status": status})),
    }
    let vmi = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": meta,
        "spec": {"networks": [{"name": "default", "multus": {"networkName": "apps/vlan1"}}]},
        "status": {
            "phase": phase, "nodeName": node, "conditions": conditions,
            "interfaces": [{"name": "default", "ipAddress": "10.0.0.5"}],
        },
    });
    vm(&serde_json::from_value(vmi).unwrap())
}

/// Pod that runs the VM. `minute`: minute of the pod's creation; also a part of the pod's name and
/// UID.
fn launcher(minute: u32, node: &str, phase: &str, ready: bool, deleting: bool) -> VmPod {
    let mut meta = json!({
        "name": format!("virt-launcher-{minute}"), "namespace": "apps",
        "uid": format!("pod-{minute}"),
        "creationTimestamp": format!("2026-01-01T00:{minute:02}:00Z"),
        "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "name": "web", "uid": "vm", "controller": true}],
    });
    if deleting {
        meta["deletionTimestamp"] = json!("2026-01-01T01:00:00Z");
    }
    let status = if ready { "True" } else { "False" };
    let spec = if node.is_empty() { json!({}) } else { json!({"nodeName": node}) };
    let read: Value = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec,
        "status": {"phase": phase, "conditions": [{"type": "Ready", "status": status}]},
    });
    pod(&serde_json::from_value(read).unwrap()).unwrap()
}

fn pods(state: &str, migration: &str) -> Vec<VmPod> {
    let on_node = |ready, deleting| launcher(10, "n1", "Running", ready, deleting);
    let mut pods = match state {
        "none" => vec![],
        "ready" => vec![on_node(true, false)],
        "unready" => vec![on_node(false, false)],
        "leaving" => vec![on_node(true, true)],
        "stopping" => vec![on_node(false, true)],
        "finished" => vec![launcher(10, "n1", "Succeeded", true, false)],
        "elsewhere" => vec![launcher(10, "n3", "Running", true, false)],
        "newer-ready" => {
            vec![on_node(true, false), launcher(5, "n1", "Running", false, true)]
        }
        "newer-unready" => {
            vec![launcher(5, "n1", "Running", true, true), on_node(false, false)]
        }
        other => panic!("{other}"),
    };
    pods.extend(match migration {
        "none" => None,
        "pending" => Some(launcher(20, "", "Pending", false, false)),
        "running" | "moved" => Some(launcher(20, "n2", "Running", true, false)),
        "failed" => Some(launcher(20, "n2", "Failed", false, false)),
        "aborted" => Some(launcher(20, "n2", "Running", true, true)),
        other => panic!("{other}"),
    });
    pods
}

/// Word in the column `endpoint` for the VM's state, and the node of the VM's endpoint. The node is
/// `None` if the VM has no endpoint.
fn decided(vm: &Vm, pods: &[VmPod], health: &str) -> (&'static str, Option<Box<str>>) {
    let wanted = WantedAddresses { network: "apps/vlan1", family: AddressFamily::V4 };
    let rules =
        AddressRules { own: None, reserved: &|_| None, listed: &|_| false, range: &|_| None };
    let backend = backend("web", vm, pods, &wanted, || None, &rules);
    if backend == VmBackend::NotRunning {
        return ("absent", None);
    }
    let endpoints = BackendCounts::new([backend], |_| health != "unhealthy").endpoints;
    let [endpoint] = endpoints.as_slice() else { panic!("one VM, one endpoint: {endpoints:?}") };
    assert_eq!((endpoint.address.to_string().as_str(), &*endpoint.uid), ("10.0.0.5", "vm"));
    let word = match (endpoint.ready(), endpoint.serving, endpoint.terminating) {
        (true, true, false) => "ready",
        (false, false, false) => "unready",
        (false, true, true) => "draining",
        (false, false, true) => "gone",
        _ => panic!("ready is serving and staying: {endpoint:?}"),
    };
    (word, Some((*endpoint.node).into()))
}

#[test]
fn every_combination_falls_under_one_rule_and_every_rule_is_needed() {
    let (rules, cases) = (rules(), cases());
    assert_eq!(cases.len(), 8 * 4 * 5 * 9 * 6 * 3);
    let mut uses = vec![0_usize; rules.len()];
    for case in &cases {
        let fit: Vec<usize> = (0..rules.len()).filter(|i| rules[*i].admits(case)).collect();
        let lines = || fit.iter().map(|i| rules[*i].line).collect::<Vec<_>>();
        assert_eq!(fit.len(), 1, "{case:?} falls under {:#?}", lines());
        uses[fit[0]] += 1;
    }
    for (rule, uses) in rules.iter().zip(uses) {
        assert!(uses > 0, "never needed: {}", rule.line);
    }
}

#[test]
fn every_combination_is_decided_by_the_rules() {
    let rules = rules();
    let mut vms: BTreeMap<_, Vm> = BTreeMap::new();
    let mut launchers: BTreeMap<_, Vec<VmPod>> = BTreeMap::new();
    for case in cases() {
        let [phase, fate, ready, state, migration, health] = case[..] else { panic!("{case:?}") };
        let node = if migration == "moved" { "n2" } else { "n1" };
        let vm = vms
            .entry((phase, fate, ready, node))
            .or_insert_with(|| instance(phase, fate, ready, node));
        let pods = launchers.entry((state, migration)).or_insert_with(|| pods(state, migration));
        let rule = rules.iter().find(|rule| rule.admits(&case)).unwrap();
        let (word, on) = decided(vm, pods, health);
        assert_eq!(word, rule.endpoint, "{case:?} falls under\n{}", rule.line);
        assert!(on.is_none_or(|on| *on == *node), "{case:?}");
    }
}
