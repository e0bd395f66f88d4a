//! Owns the parts of KubeVirt that a test plays: its kinds, and virt-controller and the kubelet as
//! others see them: by the VMIs and virt-launcher pods that they write.
//!
//! Nothing happens by itself: a VM changes only by calls of the test's [`Guest`].

mod guest;
mod vm;

use std::collections::BTreeMap;

use anyhow::Result;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

pub use self::guest::{Guest, Outcome};
pub use self::vm::{Launcher, Nic, Phase, Ready, Vm};
use crate::Bed;

const CRDS: &str = include_str!("crds.yaml");

/// Installs VirtualMachine, VirtualMachineInstance and NetworkAttachmentDefinition, and waits until
/// they are served.
pub async fn install_kubevirt(bed: &Bed) -> Result<()> {
    bed.apply_yaml(CRDS).await?;
    bed.crds_established().await
}

/// VirtualMachines of a namespace.
pub fn machines(client: &Client, namespace: &str) -> Api<DynamicObject> {
    api(client, namespace, "kubevirt.io", "VirtualMachine", "virtualmachines")
}

/// VirtualMachineInstances of a namespace.
pub fn instances(client: &Client, namespace: &str) -> Api<DynamicObject> {
    api(client, namespace, "kubevirt.io", "VirtualMachineInstance", "virtualmachineinstances")
}

/// NetworkAttachmentDefinitions of a namespace.
pub fn networks(client: &Client, namespace: &str) -> Api<DynamicObject> {
    let plural = "network-attachment-definitions";
    api(client, namespace, "k8s.cni.cncf.io", "NetworkAttachmentDefinition", plural)
}

fn api(
    client: &Client,
    namespace: &str,
    group: &str,
    kind: &str,
    plural: &str,
) -> Api<DynamicObject> {
    let gvk = GroupVersionKind::gvk(group, "v1", kind);
    let resource = ApiResource::from_gvk_with_plural(&gvk, plural);
    Api::namespaced_with(client.clone(), namespace, &resource)
}

/// Definition of a VLAN network as Harvester writes it.
pub fn vlan(namespace: &str, name: &str, id: u16) -> Value {
    let config = json!({
        "cniVersion": "0.3.1", "name": name, "type": "bridge", "bridge": "mgmt-br",
        "promiscMode": true, "vlan": id, "ipam": {},
    });
    json!({
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": {"namespace": namespace, "name": name, "labels": {
            "network.harvesterhci.io/clusternetwork": "mgmt",
            "network.harvesterhci.io/type": "L2VlanNetwork",
            "network.harvesterhci.io/vlan-id": id.to_string(),
            "network.harvesterhci.io/ready": "true",
        }},
        "spec": {"config": config.to_string()},
    })
}

/// Writes a HostNetworkConfig for VLAN `id` of `mgmt` with the state of each node's link, as
/// Harvester's network controller does.
pub async fn host_links(client: &Client, id: u16, nodes: &[(&str, bool)]) -> Result<()> {
    let gvk = GroupVersionKind::gvk("network.harvesterhci.io", "v1beta1", "HostNetworkConfig");
    let resource = ApiResource::from_gvk_with_plural(&gvk, "hostnetworkconfigs");
    let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
    let name = format!("vlan{id}");
    let config = json!({
        "apiVersion": "network.harvesterhci.io/v1beta1", "kind": "HostNetworkConfig",
        "metadata": {"name": name},
        "spec": {"clusterNetwork": "mgmt", "vlanID": id, "mode": "dhcp", "underlay": false},
    });
    let params = PatchParams::apply("network-controller").force();
    api.patch(&name, &params, &Patch::Apply(config)).await?;
    let of = |(node, works): &(&str, bool)| {
        let status = if *works { "True" } else { "False" };
        let message = if *works { "" } else { "setup l3 connectivity failed: no lease" };
        let ready = json!({"type": "Ready", "status": status, "message": message});
        let status = json!({
            "clusterNetwork": "mgmt", "vlanID": id, "mode": "dhcp", "conditions": [ready],
        });
        ((*node).to_owned(), status)
    };
    let nodes: BTreeMap<String, Value> = nodes.iter().map(of).collect();
    let status = json!({"status": {"nodeStatus": nodes}});
    api.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await?;
    Ok(())
}

/// Creates a Node that is ready and has an address. Its heartbeat is never renewed; the controllers
/// that would react are off in a bed.
pub async fn create_node(
    client: &Client,
    name: &str,
    labels: &[(&str, &str)],
    address: &str,
) -> Result<Node> {
    let labels: BTreeMap<_, _> = labels.iter().copied().collect();
    let node = json!({"metadata": {"name": name, "labels": labels}});
    let nodes = Api::<Node>::all(client.clone());
    nodes.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
    let status = json!({"status": {
        "addresses": [
            {"type": "InternalIP", "address": address},
            {"type": "Hostname", "address": name},
        ],
        "conditions": [{"type": "Ready", "status": "True"}],
    }});
    Ok(nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await?)
}
