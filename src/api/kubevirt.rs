//! Types of other projects that this operator reads: VirtualMachines, their instances and pods,
//! nodes and their links, networks, and addresses of Services. The types have only the fields that
//! the operator's decisions use. Parsing skips all other fields.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node as FullNode, NodeAddress, Pod, PodIP, Service};
use kube::core::ObjectMeta;
use kube::{CustomResource, Resource};
use serde::{Deserialize, Serialize};

/// Annotation of a VM, and label of a node: the region of the node. A region contains zones.
pub const TOPOLOGY_REGION: &str = "topology.kubernetes.io/region";
/// Annotation of a VM, and label of a node: the zone of the node within its region.
pub const TOPOLOGY_ZONE: &str = "topology.kubernetes.io/zone";
/// Label of a VM: the program that created the VM, such as [`NODE_DRIVER`].
pub const LABEL_CREATOR: &str = "harvesterhci.io/creator";
/// Value of [`LABEL_CREATOR`] on VMs that Rancher's node driver has created. Harvester itself
/// writes the topology annotations of these VMs.
pub const NODE_DRIVER: &str = "docker-machine-driver-harvester";
/// Label of a VM: name of the guest cluster that has the VM as a node.
pub const LABEL_GUEST_CLUSTER: &str = "guestcluster.harvesterhci.io/name";
/// Annotation of a VirtualMachine, with the value `true`: the VM's disks are deleted together with
/// the VM. Rancher sets the annotation when the guest cluster is being removed.
pub const ANNOTATION_REMOVES_VOLUMES: &str = "harvesterhci.io/removeAllPersistentVolumeClaims";
/// Key and value of the label of every pod that runs a VM.
pub const LAUNCHER: (&str, &str) = ("kubevirt.io", "virt-launcher");

/// Running instance of a VM. A restart of the VM makes a new instance with the same name.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[kube(
    group = "kubevirt.io",
    version = "v1",
    kind = "VirtualMachineInstance",
    doc = "Running instance of a VM.",
    namespaced,
    schema = "disabled",
    status = "VirtualMachineInstanceStatus",
    derive = "PartialEq",
    derive = "Default"
)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineInstanceSpec {
    /// Networks of the instance. Its interfaces refer to them by name.
    #[serde(default)]
    pub networks: Vec<Network>,
}

/// Network in a VM's spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    /// Name of the network within the VM.
    #[serde(default)]
    pub name: String,
    /// NetworkAttachmentDefinition of the network. Unset: the pod network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multus: Option<Multus>,
}

/// Reference to a NetworkAttachmentDefinition.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Multus {
    /// Reference as `namespace/name`, or as `name` for the VM's own namespace.
    #[serde(default)]
    pub network_name: String,
}

/// Status of an instance, as virt-controller and virt-handler report it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineInstanceStatus {
    /// Phase: Pending, Scheduling, Scheduled, Running, Succeeded, Failed, Unknown or
    /// WaitingForSync.
    #[serde(default)]
    pub phase: String,
    /// Node that runs the instance. During a live migration, this is the source node until the
    /// guest runs on the target node.
    #[serde(default)]
    pub node_name: String,
    /// Conditions: Ready, Paused, AgentConnected and others.
    #[serde(default)]
    pub conditions: Vec<VmiCondition>,
    /// Network interfaces of the VM, as the hypervisor and the guest agent report them.
    #[serde(default)]
    pub interfaces: Vec<Interface>,
}

/// Condition of a VirtualMachineInstance, of a pod, or of a node's link.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VmiCondition {
    /// Type of the condition, such as `Ready`.
    #[serde(default, rename = "type")]
    pub type_: String,
    /// Status of the condition: `True`, `False` or `Unknown`.
    #[serde(default)]
    pub status: String,
    /// Reason of the status, in one word.
    #[serde(default)]
    pub reason: String,
}

/// Network interface of a VM, as the hypervisor and the guest agent report it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Interface {
    /// Name of the network that the interface joins. Empty: the guest operating system made the
    /// interface, for example a bridge or the device of a CNI.
    #[serde(default)]
    pub name: String,
    /// First address of the interface.
    #[serde(default)]
    pub ip_address: String,
    /// All addresses of the interface.
    #[serde(default)]
    pub ip_addresses: Option<Vec<String>>,
}

/// Pod of a VM, with the fields that show the state of the VM.
#[derive(Resource, Clone, Debug, Default, Deserialize, Serialize)]
#[resource(inherit = "Pod")]
pub struct LauncherPod {
    /// Metadata: owner, labels and deletion.
    pub metadata: ObjectMeta,
    /// Spec with the pod's node.
    #[serde(default)]
    pub spec: PodSpec,
    /// Status with the pod's phase and addresses.
    #[serde(default)]
    pub status: PodStatus,
}

/// Part of a pod's spec that this operator reads.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSpec {
    /// Node that runs the pod; empty before it is scheduled.
    #[serde(default)]
    pub node_name: String,
}

/// Part of a pod's status that this operator reads.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStatus {
    /// Phase: Pending, Running, Succeeded, Failed or Unknown.
    #[serde(default)]
    pub phase: String,
    /// Addresses on the pod network, at most one of each family.
    #[serde(default, rename = "podIPs")]
    pub pod_ips: Vec<PodIP>,
    /// Conditions: Ready and others.
    #[serde(default)]
    pub conditions: Vec<VmiCondition>,
}

/// Service, with the fields that hold addresses.
#[derive(Resource, Clone, Debug, Default, Deserialize, Serialize)]
#[resource(inherit = "Service")]
pub struct ServiceAddresses {
    /// Metadata: owner and labels.
    pub metadata: ObjectMeta,
    /// Spec with the cluster addresses.
    #[serde(default)]
    pub spec: ServiceAddressesSpec,
    /// Status with the announced addresses.
    #[serde(default)]
    pub status: ServiceAddressesStatus,
}

/// Part of a Service's spec that this operator reads: its cluster addresses (`clusterIPs`).
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct ServiceAddressesSpec {
    /// Cluster addresses, at most one of each family, or the word `None`.
    #[serde(default, rename = "clusterIPs")]
    pub cluster_ips: Option<Vec<String>>,
}

/// Part of a Service's status that this operator reads.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceAddressesStatus {
    /// Addresses at which the Service is announced, as its announcer reports them.
    #[serde(default)]
    pub load_balancer: Announced,
}

/// Addresses at which a Service is announced (`status.loadBalancer`).
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Announced {
    /// Addresses and host names at which the Service is announced, one entry each.
    #[serde(default)]
    pub ingress: Option<Vec<AnnouncedAt>>,
}

/// Address or host name at which a Service is announced.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct AnnouncedAt {
    /// Announced address. Unset: the Service is announced at a host name.
    #[serde(default)]
    pub ip: Option<String>,
}

/// Node, with the fields that decisions about VMs and networks use.
#[derive(Resource, Clone, Debug, Default, Deserialize, Serialize)]
#[resource(inherit = "FullNode")]
pub struct Node {
    /// Metadata. The labels contain the region and the zone.
    pub metadata: ObjectMeta,
    /// Spec with the node's pod CIDRs.
    #[serde(default)]
    pub spec: NodeSpec,
    /// Status with the node's own addresses.
    #[serde(default)]
    pub status: NodeStatus,
}

/// Part of a node's spec that this operator reads: the node's part of the pod network.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct NodeSpec {
    /// Networks of the node's pods in CIDR form, at most one of each address family.
    #[serde(default, rename = "podCIDRs")]
    pub pod_cidrs: Vec<String>,
}

/// Part of a node's status that this operator reads: the node's own addresses.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct NodeStatus {
    /// Addresses and names of the node.
    #[serde(default)]
    pub addresses: Vec<NodeAddress>,
}

/// VM, running or not. Only its metadata is read.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[kube(
    group = "kubevirt.io",
    version = "v1",
    kind = "VirtualMachine",
    doc = "VM, running or not.",
    namespaced,
    schema = "disabled",
    derive = "PartialEq",
    derive = "Default"
)]
pub struct VirtualMachineSpec {}

/// Network that VMs join.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[kube(
    group = "k8s.cni.cncf.io",
    version = "v1",
    kind = "NetworkAttachmentDefinition",
    doc = "Network that VMs join.",
    plural = "network-attachment-definitions",
    namespaced,
    schema = "disabled",
    derive = "PartialEq",
    derive = "Default"
)]
pub struct NetworkAttachmentDefinitionSpec {
    /// CNI configuration, as JSON text.
    #[serde(default)]
    pub config: String,
}

/// HostNetworkConfig: a link on Harvester's nodes for one VLAN of a cluster network. The type has
/// only the fields that this operator reads. Source: network-controller-harvester,
/// pkg/apis/network.harvesterhci.io/v1beta1.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[kube(
    group = "network.harvesterhci.io",
    version = "v1beta1",
    kind = "HostNetworkConfig",
    doc = "Link on Harvester's nodes for one VLAN of a cluster network.",
    plural = "hostnetworkconfigs",
    status = "HostNetworkConfigStatus",
    schema = "disabled",
    derive = "PartialEq",
    derive = "Default"
)]
#[serde(rename_all = "camelCase")]
pub struct HostNetworkConfigSpec {
    /// Name of the cluster network.
    #[serde(default)]
    pub cluster_network: String,
    /// VLAN identifier, 1 to 4094.
    #[serde(default, rename = "vlanID")]
    pub vlan_id: u16,
}

/// State of a HostNetworkConfig on each node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HostNetworkConfigStatus {
    /// State by node name. Nodes that the HostNetworkConfig does not select have no entry.
    #[serde(default)]
    pub node_status: BTreeMap<String, HostNetworkConfigNodeStatus>,
}

/// State of a HostNetworkConfig on one node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct HostNetworkConfigNodeStatus {
    /// Conditions of the node's link, such as `Ready`.
    #[serde(default)]
    pub conditions: Vec<VmiCondition>,
}
