//! Reading of VirtualMachineInstances and pods, as KubeVirt writes them.

mod bounds;

use serde_json::{Value, json};

use super::*;
use api::kubevirt::LAUNCHER;

fn read(vmi: Value) -> Vm {
    vm(&serde_json::from_value::<VirtualMachineInstance>(vmi).unwrap())
}

fn with_status(status: &Value) -> Vm {
    read(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "web", "namespace": "apps", "uid": "v1"},
        "spec": {}, "status": status,
    }))
}

/// Reads `interface` as the first interface of a VM in namespace `apps`. The VM's spec has three
/// networks.
fn nic(interface: &Value) -> Option<Nic> {
    let vm = read(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "web", "namespace": "apps"},
        "spec": {"domain": {"devices": {}}, "networks": [
            {"name": "qualified", "multus": {"networkName": "nets/vlan1", "default": true}},
            {"name": "local", "multus": {"networkName": "vlan2"}},
            {"name": "pods", "pod": {}},
        ]},
        "status": {"phase": "Running", "interfaces": [interface]},
    }));
    vm.nics.first().cloned()
}

fn ips(texts: &[&str]) -> Box<[IpAddr]> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// VirtualMachineInstance from a Harvester cluster, with a guest agent. Decisions use few of its
/// fields.
#[test]
fn an_instance_is_read_as_it_is_stored() {
    let vmi = json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {
            "name": "web", "namespace": "apps", "uid": "8f0c", "resourceVersion": "4711",
            "generation": 14, "creationTimestamp": "2026-01-01T10:00:00Z",
            "finalizers": ["kubevirt.io/virtualMachineControllerFinalize"],
            "annotations": {
                "kubevirt.io/latest-observed-api-version": "v1",
                TOPOLOGY_REGION: "eu", TOPOLOGY_ZONE: "eu-1",
            },
            "labels": {
                "harvesterhci.io/vmName": "web", LABEL_CREATOR: NODE_DRIVER,
                "kubevirt.io/nodeName": "n1", "kubevirt.io/migrationTargetNodeName": "n2",
            },
            "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
                "name": "web", "uid": "0a1b", "controller": true, "blockOwnerDeletion": true}],
        },
        "spec": {
            "architecture": "amd64",
            "domain": {"cpu": {"cores": 2}, "devices": {"interfaces":
                [{"bridge": {}, "model": "virtio", "name": "default"}]}},
            "evictionStrategy": "LiveMigrateIfPossible",
            "networks": [
                {"multus": {"networkName": "apps/vlan1"}, "name": "default"},
                {"name": "pods", "pod": {}},
            ],
            "volumes": [{"name": "disk-0", "persistentVolumeClaim": {"claimName": "web-disk"}}],
        },
        "status": {
            "activePods": {"77aa": "n1", "88bb": "n2"},
            "conditions": [
                {"lastProbeTime": null, "lastTransitionTime": "2026-01-01T10:01:00Z",
                    "status": "True", "type": "Ready"},
                {"lastProbeTime": "2026-01-01T10:02:00Z", "lastTransitionTime": null,
                    "status": "True", "type": "AgentConnected"},
                {"status": "False", "type": "LiveMigratable", "reason": "DisksNotLiveMigratable",
                    "message": "cannot migrate VMI"},
                {"status": "False", "type": "Paused"},
            ],
            "guestOSInfo": {"id": "debian"},
            "interfaces": [
                {"infoSource": "domain, guest-agent, multus-status", "interfaceName": "eth0",
                    "ipAddress": "10.0.1.7", "ipAddresses": ["10.0.1.7", "fe80::1", "fd00::7"],
                    "linkState": "up", "mac": "52:54:00:00:00:01", "name": "default",
                    "podInterfaceName": "pod37a8eec1ce1", "queueCount": 1},
                {"infoSource": "domain", "mac": "52:54:00:00:00:02", "name": "pods",
                    "queueCount": 1},
                {"infoSource": "guest-agent", "interfaceName": "docker0",
                    "ipAddress": "172.17.0.1", "ipAddresses": ["172.17.0.1"],
                    "mac": "02:42:00:00:00:01"},
            ],
            "migrationState": {"migrationUid": "99cc", "sourceNode": "n1", "targetNode": "n2"},
            "nodeName": "n1",
            "phase": "Running",
            "phaseTransitionTimestamps":
                [{"phase": "Running", "phaseTransitionTimestamp": "2026-01-01T10:01:00Z"}],
            "volumeStatus": [{"name": "disk-0", "target": "vda"}],
        },
    });
    let nic = |network: &str, addresses: &[&str]| Nic {
        network: network.into(),
        addresses: ips(addresses),
    };
    let expected = Vm {
        uid: "8f0c".into(),
        version: "4711".into(),
        node: "n1".into(),
        phase: VmPhase::Running,
        ready: VmReadiness::Ready,
        paused: false,
        deleting: false,
        nics: [nic("apps/vlan1", &["10.0.1.7", "fd00::7"]), nic("", &[])].into(),
        topology: Topology { region: Some("eu".into()), zone: Some("eu-1".into()) },
        annotated_by_harvester: true,
        network: "apps/vlan1".into(),
    };
    assert_eq!(read(vmi.clone()), expected);
    let mut leaving = vmi;
    leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T11:00:00Z");
    leaving["metadata"]["labels"][LABEL_CREATOR] = json!("harvester");
    let network = "".into();
    assert_eq!(
        read(leaving),
        Vm { deleting: true, annotated_by_harvester: false, network, ..expected }
    );
}

#[test]
fn one_without_a_status_yet_is_starting() {
    let meta = json!({"name": "web", "namespace": "apps", "uid": "v1"});
    let new = read(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": meta, "spec": {},
    }));
    assert_eq!(new, Vm { uid: "v1".into(), ..Vm::default() });
    assert_eq!(with_status(&json!({})), new);
}

#[test]
fn phases() {
    for (text, expected) in [
        ("", VmPhase::Starting),
        ("Pending", VmPhase::Starting),
        ("Scheduling", VmPhase::Starting),
        ("Scheduled", VmPhase::Starting),
        ("WaitingForSync", VmPhase::Starting),
        ("Running", VmPhase::Running),
        ("Succeeded", VmPhase::Ended),
        ("Failed", VmPhase::Ended),
        ("Unknown", VmPhase::Unknown),
        ("OfALaterVersion", VmPhase::Starting),
    ] {
        assert_eq!(with_status(&json!({"phase": text})).phase, expected, "{text:?}");
    }
}

#[test]
fn readiness_is_the_conditions_word_and_only_one_reason_counts() {
    for (status, reason, expected) in [
        ("True", None, VmReadiness::Ready),
        ("True", Some("Whatever"), VmReadiness::Ready),
        ("False", None, VmReadiness::NotReady),
        ("False", Some("PodTerminating"), VmReadiness::PodTerminating),
        ("False", Some("PodNotExists"), VmReadiness::NotReady),
        ("False", Some("PodConditionMissing"), VmReadiness::NotReady),
        ("False", Some("GuestNotRunning"), VmReadiness::NotReady),
        ("Unknown", None, VmReadiness::NotReady),
        ("", None, VmReadiness::NotReady),
    ] {
        let mut ready = json!({"type": "Ready", "status": status, "lastProbeTime": null});
        if let Some(reason) = reason {
            ready["reason"] = json!(reason);
        }
        let other = json!({"type": "LiveMigratable", "status": "True"});
        let vm = with_status(&json!({"phase": "Running", "conditions": [other, ready]}));
        assert_eq!(vm.ready, expected, "{status} {reason:?}");
    }
    let other = json!([{"type": "NotReady", "status": "True"}]);
    assert_eq!(with_status(&json!({"conditions": other})).ready, VmReadiness::NotReady);
}

#[test]
fn paused_only_while_the_condition_says_so() {
    for (status, expected) in [("True", true), ("False", false), ("Unknown", false)] {
        let conditions = json!([{"type": "Paused", "status": status, "reason": "PausedByUser"}]);
        assert_eq!(with_status(&json!({"conditions": conditions})).paused, expected, "{status}");
    }
    assert!(!with_status(&json!({"conditions": []})).paused);
}

#[test]
fn an_interface_is_known_by_the_network_that_it_joins() {
    let all = json!({"infoSource": "domain, guest-agent, multus-status", "ipAddress": "10.0.0.5"});
    for (name, network) in [
        ("qualified", Some("nets/vlan1")),
        ("local", Some("apps/vlan2")),
        ("pods", Some("")),
        // The interface was hot-unplugged: its network is no longer in the spec.
        ("gone", Some("")),
        ("", None),
    ] {
        let mut interface = all.clone();
        interface["name"] = json!(name);
        let found = nic(&interface).map(|nic| nic.network);
        assert_eq!(found.as_deref(), network, "{name:?}");
    }
    assert_eq!(nic(&all), None, "no name: the guest made it");
}

#[test]
fn of_the_addresses_only_those_are_kept_that_lead_to_a_vm() {
    for (interface, expected) in [
        (json!({"ipAddress": "10.0.0.5", "ipAddresses": ["10.0.0.5"]}), &["10.0.0.5"][..]),
        // `ipAddress` first, then `ipAddresses` in the order of the guest agent, without
        // duplicates.
        (
            json!({"ipAddress": "10.0.0.5", "ipAddresses": ["10.0.0.5", "10.0.0.4", "fd00::5"]}),
            &["10.0.0.5", "10.0.0.4", "fd00::5"],
        ),
        (json!({"ipAddress": "fd00::5", "ipAddresses": ["fd00::5"]}), &["fd00::5"]),
        (json!({"ipAddress": "10.0.0.5", "ipAddresses": null}), &["10.0.0.5"]),
        (json!({"ipAddress": "10.0.0.5"}), &["10.0.0.5"]),
        (json!({"ipAddresses": ["10.0.0.5"]}), &["10.0.0.5"]),
        (json!({"ipAddress": "", "ipAddresses": []}), &[]),
        (json!({"ipAddresses": null}), &[]),
        // The guest agent reports link-local addresses before DHCP has finished. They are left out.
        (
            json!({"ipAddress": "fe80::1", "ipAddresses": ["fe80::1", "169.254.3.4", "fd00::1"]}),
            &["fd00::1"],
        ),
        (json!({"ipAddresses": ["::ffff:10.0.0.5", "::ffff:127.0.0.1"]}), &[]),
        (
            json!({"ipAddresses": ["127.0.0.1", "::1", "0.0.0.0", "::", "224.0.0.1", "ff02::1"]}),
            &[],
        ),
        (json!({"ipAddresses": ["255.255.255.255", "0.1.2.3"]}), &[]),
        (json!({"ipAddress": "nonsense", "ipAddresses": ["10.0.0.5/24", " 10.0.0.6"]}), &[]),
    ] {
        let mut interface = interface;
        interface["name"] = json!("qualified");
        assert_eq!(nic(&interface).unwrap().addresses, ips(expected), "{interface}");
    }
    // Root in the guest can add any number of addresses, so only the first ones are read.
    let many: Vec<String> = (1..99).map(|n| format!("10.0.0.{n}")).collect();
    let many = nic(&json!({"name": "qualified", "ipAddresses": many})).unwrap();
    assert_eq!(many.addresses.len(), MOST_ADDRESSES);
}

/// Root in the guest can add any number of addresses that no endpoint can have, and of equal ones.
#[test]
fn an_address_behind_too_many_others_is_not_read() {
    for (other, kept) in [("fe80::1", 0), ("10.0.0.1", 1), ("nonsense", 0)] {
        // One of the addresses that are looked at is `ipAddress`.
        for (others, is_read) in [(MOST_REPORTED - 2, true), (MOST_REPORTED - 1, false)] {
            let mut listed = vec![other; others];
            listed.push("10.0.0.5");
            let interface = json!({"name": "local", "ipAddress": other, "ipAddresses": listed});
            let found = nic(&interface).unwrap().addresses;
            assert_eq!(found.len(), kept + usize::from(is_read), "{other} {others}");
        }
    }
}

/// Twenty thousand VMs may report every few seconds. Most reports change nothing that endpoints
/// depend on.
#[test]
fn vms_serve_alike_if_all_that_endpoints_rest_on_is_equal() {
    let vm = Vm { uid: "v".into(), node: "n1".into(), ..Vm::default() };
    let topology = Topology { zone: Some("z".into()), ..Topology::default() };
    for other in [
        vm.clone(),
        Vm { version: "2".into(), ..vm.clone() },
        Vm { topology, ..vm.clone() },
        Vm { annotated_by_harvester: true, ..vm.clone() },
    ] {
        assert!(vm.serves_like(&other) && other.serves_like(&vm), "{other:?}");
    }
    for other in [
        Vm { uid: "w".into(), ..vm.clone() },
        Vm { node: "n2".into(), ..vm.clone() },
        Vm { phase: VmPhase::Running, ..vm.clone() },
        Vm { ready: VmReadiness::Ready, ..vm.clone() },
        Vm { ready: VmReadiness::PodTerminating, ..vm.clone() },
        Vm { paused: true, ..vm.clone() },
        Vm { deleting: true, ..vm.clone() },
        Vm { nics: [Nic::default()].into(), ..vm.clone() },
    ] {
        assert!(!vm.serves_like(&other) && !other.serves_like(&vm), "{other:?}");
    }
}

fn read_pod(pod: Value) -> Option<VmPod> {
    super::pod(&serde_json::from_value::<LauncherPod>(pod).unwrap())
}

fn launcher() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "virt-launcher-web-x7k2p", "namespace": "apps", "uid": "77aa",
            "generateName": "virt-launcher-web-", "creationTimestamp": "2026-01-01T10:00:00Z",
            "labels": {LAUNCHER.0: LAUNCHER.1, "kubevirt.io/created-by": "8f0c"},
            "annotations": {"kubevirt.io/domain": "web"},
            "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "blockOwnerDeletion": true,
                "controller": true, "kind": "VirtualMachineInstance", "name": "web",
                "uid": "8f0c"}],
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "compute"}],
            "readinessGates": [{"conditionType": "kubevirt.io/virtual-machine-unpaused"}]},
        "status": {
            "conditions": [
                {"type": "PodReadyToStartContainers", "status": "True", "lastProbeTime": null},
                {"type": "Ready", "status": "True", "lastProbeTime": null,
                    "lastTransitionTime": "2026-01-01T10:01:00Z"},
                {"type": "ContainersReady", "status": "True"},
            ],
            "containerStatuses": [{"name": "compute", "ready": true}],
            "phase": "Running", "podIP": "10.52.0.9",
            "podIPs": [{"ip": "10.52.0.9"}, {"ip": "fd52::9"}, {"ip": "None"}], "qosClass": "Burstable",
        },
    })
}

#[test]
fn a_pod_is_read_as_it_is_stored() {
    let expected = VmPod {
        uid: "77aa".into(),
        vm: "8f0c".into(),
        node: "n1".into(),
        created: 1_767_261_600,
        ready: true,
        deleting: false,
        ended: false,
        addresses: ips(&["10.52.0.9", "fd52::9"]),
    };
    assert_eq!(read_pod(launcher()), Some(expected.clone()));
    let mut leaving = launcher();
    leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T11:00:00Z");
    assert_eq!(read_pod(leaving), Some(VmPod { deleting: true, ..expected.clone() }));
    let mut new = launcher();
    new["spec"] = json!({"containers": []});
    new["status"] = json!({"phase": "Pending"});
    let addresses = Box::default();
    let unplaced = VmPod { node: "".into(), ready: false, addresses, ..expected };
    assert_eq!(read_pod(new.clone()), Some(unplaced.clone()));
    new.as_object_mut().unwrap().retain(|key, _| key == "metadata");
    assert_eq!(read_pod(new), Some(unplaced), "spec and status may be missing");
}

/// A pod that has ended may still have a true `Ready` condition. Such a pod does not count as
/// ready.
#[test]
fn a_pod_is_ready_only_while_it_runs() {
    for (phase, status, expected) in [
        ("Running", "True", true),
        ("Running", "False", false),
        ("Running", "Unknown", false),
        ("Succeeded", "True", false),
        ("Failed", "True", false),
        ("Unknown", "True", true),
    ] {
        let mut pod = launcher();
        pod["status"]["phase"] = json!(phase);
        pod["status"]["conditions"][1]["status"] = json!(status);
        let pod = read_pod(pod).unwrap();
        assert_eq!(pod.ready, expected, "{phase} {status}");
        assert_eq!(pod.ended, ["Succeeded", "Failed"].contains(&phase), "{phase}");
    }
}

#[test]
fn a_pod_belongs_to_the_instance_that_controls_it() {
    let owner = |kind: &str, uid: &str, controller: Option<bool>| {
        let mut owner = json!({"apiVersion": "v1", "kind": kind, "name": "o", "uid": uid});
        if let Some(controller) = controller {
            owner["controller"] = json!(controller);
        }
        owner
    };
    let vmi = "VirtualMachineInstance";
    for (owners, expected) in [
        (json!([owner(vmi, "a", Some(true))]), Some("a")),
        (json!([owner("Node", "x", None), owner(vmi, "a", Some(true))]), Some("a")),
        (json!([owner(vmi, "x", Some(false)), owner(vmi, "a", Some(true))]), Some("a")),
        (json!([owner(vmi, "x", None)]), None),
        (json!([owner(vmi, "x", Some(false))]), None),
        (json!([owner("ReplicaSet", "x", Some(true))]), None),
        (json!([]), None),
        (Value::Null, None),
    ] {
        let mut pod = launcher();
        pod["metadata"]["ownerReferences"] = owners.clone();
        assert_eq!(read_pod(pod).map(|pod| pod.vm).as_deref(), expected, "{owners}");
    }
}

/// KubeVirt's rule: the guest runs in the newest pod on the instance's node. Creation times are
/// whole seconds. The choice between two pods of the same second must not depend on the order of
/// events.
#[test]
fn the_guest_runs_in_the_newest_pod_on_its_node() {
    let pod = |uid: &str, node: &str, created| VmPod {
        uid: uid.into(),
        node: node.into(),
        created,
        ..VmPod::default()
    };
    let all = [
        pod("source", "n1", 10),
        pod("older", "n1", 5),
        pod("target", "n2", 20),
        pod("pending", "", 30),
    ];
    let twins = [pod("b", "n1", 10), pod("a", "n1", 10)];
    let reversed = [twins[1].clone(), twins[0].clone()];
    for (node, pods, expected) in [
        ("n1", &all[..], Some("source")),
        // The guest has moved to node n2, where the target's pod is.
        ("n2", &all, Some("target")),
        ("n3", &all, None),
        // The VM has no node yet, so the newest of all pods counts.
        ("", &all, Some("pending")),
        ("", &all[..3], Some("target")),
        ("n1", &twins, Some("b")),
        ("n1", &reversed, Some("b")),
        ("n1", &[], None),
        ("", &[], None),
    ] {
        let vm = Vm { node: node.into(), ..Vm::default() };
        assert_eq!(vm.current_pod(pods).map(|pod| &*pod.uid), expected, "{node:?} {pods:?}");
    }
}
