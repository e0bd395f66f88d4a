//! Topology annotations on VMs: region and zone of the node on which a VM runs. Guest cloud
//! providers copy them from the VirtualMachineInstance to the node of the guest cluster.
//!
//! Exception: this module leaves VMs of the Rancher node driver unchanged (label
//! `harvesterhci.io/creator: docker-machine-driver-harvester`). Harvester itself writes their
//! topology annotations, at each change of such a VM.

use serde_json::{Map, Value, json};

use super::vm::{Topology, Vm};
use api::kubevirt::{TOPOLOGY_REGION, TOPOLOGY_ZONE};

/// Merge patch that sets a VM's topology annotations to `node`, the region and zone of the node on
/// which the VM runs. An annotation is removed if `node` has no value for it. Returns `None` in
/// each of these cases, and the annotations stay as they are:
///
/// * The annotations are right already.
/// * `node` has neither region nor zone. A user may have set the annotations by hand.
/// * Harvester itself writes the VM's annotations.
/// * The VM is being deleted.
pub fn patch(vm: &Vm, node: &Topology) -> Option<Value> {
    let silent = node.region.is_none() && node.zone.is_none();
    if silent || vm.annotated_by_harvester || vm.deleting || vm.topology == *node {
        return None;
    }
    let parts = [
        (TOPOLOGY_REGION, &vm.topology.region, &node.region),
        (TOPOLOGY_ZONE, &vm.topology.zone, &node.zone),
    ];
    let changed = parts.into_iter().filter(|(_, annotated, here)| annotated != here);
    let annotations: Map<String, Value> =
        changed.map(|(key, _, here)| (key.to_owned(), json!(here))).collect();
    Some(json!({
        "metadata": {"resourceVersion": vm.version, "annotations": annotations},
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology(region: Option<&str>, zone: Option<&str>) -> Topology {
        Topology { region: region.map(Into::into), zone: zone.map(Into::into) }
    }

    fn annotated(region: Option<&str>, zone: Option<&str>) -> Vm {
        Vm { version: "7".into(), topology: topology(region, zone), ..Vm::default() }
    }

    #[test]
    fn a_vm_gets_its_nodes_topology_where_the_two_differ() {
        let here = topology(Some("eu"), Some("eu-1"));
        let annotations = |vm: &Vm| patch(vm, &here).map(|p| p["metadata"]["annotations"].clone());
        let both = json!({TOPOLOGY_REGION: "eu", TOPOLOGY_ZONE: "eu-1"});
        assert_eq!(annotations(&annotated(None, None)), Some(both));
        assert_eq!(
            annotations(&annotated(Some("eu"), Some("eu-2"))),
            Some(json!({TOPOLOGY_ZONE: "eu-1"}))
        );
        assert_eq!(annotations(&annotated(Some("eu"), Some("eu-1"))), None);
        let rests_on = patch(&annotated(None, None), &here).unwrap();
        assert_eq!(rests_on["metadata"]["resourceVersion"], "7");
    }

    /// The VM moved to a node without a zone. The zone of the former node would be wrong, so the
    /// annotation with the zone is removed.
    #[test]
    fn what_a_speaking_node_does_not_say_is_taken_back() {
        let patch =
            patch(&annotated(Some("eu"), Some("eu-1")), &topology(Some("eu"), None)).unwrap();
        assert_eq!(patch["metadata"]["annotations"], json!({TOPOLOGY_ZONE: null}));
    }

    #[test]
    fn harvesters_own_and_nodes_that_say_nothing_are_left_alone() {
        let here = topology(Some("eu"), None);
        assert_eq!(
            patch(&Vm { annotated_by_harvester: true, ..annotated(None, None) }, &here),
            None
        );
        assert_eq!(patch(&Vm { deleting: true, ..annotated(None, None) }, &here), None);
        assert_eq!(patch(&annotated(Some("by hand"), None), &Topology::default()), None);
    }
}
