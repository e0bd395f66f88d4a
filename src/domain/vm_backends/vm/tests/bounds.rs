//! Reading of texts and lists that are longer than KubeVirt would write them.

use super::*;
use crate::vm_backends::topology;

/// Instance that has `value` as its region and zone, and `name` as its node and its network.
fn with_texts(value: &str, name: &str) -> Vm {
    read(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {
            "name": "web", "namespace": "apps", "labels": {LABEL_GUEST_CLUSTER: "c"},
            "annotations": {TOPOLOGY_REGION: value, TOPOLOGY_ZONE: value},
        },
        "spec": {"networks": [{"name": "lan", "multus": {"networkName": name}}]},
        "status": {"nodeName": name, "interfaces": [{"name": "lan"}]},
    }))
}

/// No label of a node equals the cut text, so it is replaced or removed like the whole text.
#[test]
fn a_region_or_zone_is_cut_if_no_label_can_have_it() {
    let here = Topology { region: Some("eu".into()), zone: None };
    for (length, kept) in [(LONGEST_VALUE, 63), (LONGEST_VALUE + 1, 64), (200_000, 64)] {
        let vm = with_texts(&"x".repeat(length), "n");
        let Topology { region, zone } = &vm.topology;
        let lengths = [region, zone].map(|text| text.as_deref().map(str::len));
        assert_eq!(lengths, [Some(kept); 2], "{length}");
        let patch = topology::patch(&vm, &here).unwrap();
        let expected = json!({TOPOLOGY_REGION: "eu", TOPOLOGY_ZONE: null});
        assert_eq!(patch["metadata"]["annotations"], expected, "{length}");
    }
}

#[test]
fn a_network_or_node_with_a_longer_name_than_an_object_can_have_counts_as_none() {
    for (length, is_kept) in [(LONGEST_WORD, true), (LONGEST_WORD + 1, false), (200_000, false)] {
        let name = format!("nets/{}", "x".repeat(length - 5));
        let vm = with_texts("v", &name);
        let expected = if is_kept { &*name } else { "" };
        for kept in [&*vm.node, &*vm.network, &*vm.nics[0].network] {
            assert_eq!(kept, expected, "{length}");
        }
        let mut pod = launcher();
        pod["spec"]["nodeName"] = json!(name);
        assert_eq!(&*read_pod(pod).unwrap().node, expected, "{length}");
    }
}

#[test]
fn of_many_labels_the_first_are_read() {
    for (count, kept) in [(0, 0), (256, 256), (257, 256), (50_000, 256)] {
        let all: Labels = (0..count).map(|n| (format!("{n:05}"), "v".to_owned())).collect();
        let metadata = json!({"name": "web", "labels": all});
        let vmi = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": metadata, "spec": {}});
        let vmi = serde_json::from_value(vmi).unwrap();
        assert!(labels(&vmi).iter().eq(all.iter().take(kept)), "{count}");
    }
}

#[test]
fn a_pod_of_an_instance_with_a_longer_uid_than_an_object_can_have_runs_no_vm() {
    for (length, is_kept) in [(LONGEST_WORD, true), (LONGEST_WORD + 1, false)] {
        let mut pod = launcher();
        pod["metadata"]["ownerReferences"][0]["uid"] = json!("x".repeat(length));
        assert_eq!(read_pod(pod).is_some(), is_kept, "{length}");
    }
}
