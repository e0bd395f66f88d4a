//! Network of a guest cluster, read from the VMs that are the nodes of the cluster.

use super::selector_index::LabelIndex;
use api::kubevirt::{LABEL_CREATOR, LABEL_GUEST_CLUSTER, NODE_DRIVER};

/// Network of a guest cluster, as `namespace/name`: the network of the first VM that has one. The
/// VMs of the cluster are searched in this order:
/// 1. VMs whose label [`LABEL_GUEST_CLUSTER`] has the cluster's name, sorted by name
/// 2. VMs of the node driver whose name begins with the cluster's name, sorted by name
///
/// `None`: no VM of the cluster has a network.
pub fn cluster_network(vms: &LabelIndex, namespace: &str, cluster: &str) -> Option<String> {
    let first = |label: &str, value: &str, prefix: &str| {
        vms.labelled(namespace, label, value)
            .filter(|(name, vm)| name.starts_with(prefix) && !vm.network.is_empty())
            .min_by(|a, b| a.0.cmp(b.0))
            .map(|(_, vm)| vm.network.to_string())
    };
    first(LABEL_GUEST_CLUSTER, cluster, "").or_else(|| first(LABEL_CREATOR, NODE_DRIVER, cluster))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::vm;
    use super::*;
    use api::kubevirt::VirtualMachineInstance;

    /// A VM that has the cluster's name as a label is preferred to a VM whose name only begins with
    /// the cluster's name.
    #[test]
    fn the_network_of_a_guest_cluster_is_that_of_its_first_vm() {
        let mut vms = LabelIndex::default();
        let network = |vms: &LabelIndex, namespace: &str| cluster_network(vms, namespace, "blue");
        let mut add = |name: &str, labels: Value, multus: &[&str]| {
            let networks: Vec<Value> = multus
                .iter()
                .map(|name| match *name {
                    "" => json!({"name": "pod", "pod": {}}),
                    name => json!({"name": "n", "multus": {"networkName": name}}),
                })
                .collect();
            let vmi: VirtualMachineInstance = serde_json::from_value(json!({
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
                "metadata": {"name": name, "namespace": "ns", "uid": name, "labels": labels},
                "spec": {"networks": networks},
            }))
            .unwrap();
            vms.set_vm("ns", name, vmi.metadata.labels.as_ref().unwrap(), vm::vm(&vmi));
            (network(&vms, "ns"), network(&vms, "other"))
        };
        let driver = json!({LABEL_CREATOR: NODE_DRIVER});
        let labelled = json!({LABEL_GUEST_CLUSTER: "blue", LABEL_CREATOR: NODE_DRIVER});
        let is = |network: &str| (Some(network.to_owned()), None);
        assert_eq!(add("blue-0", json!({"a": "b"}), &["x"]), (None, None), "not a node");
        assert_eq!(add("red-1", driver.clone(), &["red"]), (None, None));
        assert_eq!(add("blue-2", driver.clone(), &["", "net/two", "three"]), is("net/two"));
        assert_eq!(add("blue-1", driver, &["one"]), is("ns/one"));
        assert_eq!(add("z", labelled.clone(), &[""]), is("ns/one"), "on the pod network alone");
        assert_eq!(add("y", labelled.clone(), &["named"]), is("ns/named"));
        assert_eq!(add("x", labelled, &["first"]), is("ns/first"));
    }
}
