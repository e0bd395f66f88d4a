//! What is read of kinds that others own: VirtualMachineInstances, the pods they run in, nodes,
//! networks and addresses of Services. Only the fields that decisions take; the rest is skipped while parsing.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node as FullNode, Pod, Service};
use kube::core::ObjectMeta;
use kube::{CustomResource, Resource};
use serde::{Deserialize, Serialize};

/// Annotation and node label: the failure domain, coarse.
pub const TOPOLOGY_REGION: &str = "topology.kubernetes.io/region";
/// Annotation and node label: the failure domain, fine.
pub const TOPOLOGY_ZONE: &str = "topology.kubernetes.io/zone";
/// Label of a VM: what made it.
pub const LABEL_CREATOR: &str = "harvesterhci.io/creator";
/// The creator whose VMs Harvester itself gives their topology.
pub const NODE_DRIVER: &str = "docker-machine-driver-harvester";
/// Label of a VM: the guest cluster that it is a node of.
pub const LABEL_GUEST_CLUSTER: &str = "guestcluster.harvesterhci.io/name";
/// Annotation of a VirtualMachine whose disks are to go with it: Rancher sets it when the guest
/// cluster is being removed.
pub const ANNOTATION_REMOVES_VOLUMES: &str = "harvesterhci.io/removeAllPersistentVolumeClaims";
/// Label of every pod that runs a VM, with its value.
pub const LAUNCHER: (&str, &str) = ("kubevirt.io", "virt-launcher");

/// One run of a VM. A restart makes a new one under the same name.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[kube(
    group = "kubevirt.io",
    version = "v1",
    kind = "VirtualMachineInstance",
    namespaced,
    schema = "disabled",
    status = "VirtualMachineInstanceStatus",
    derive = "PartialEq",
    derive = "Default"
)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineInstanceSpec {
    /// The networks that its interfaces join, by name.
    #[serde(default)]
    pub networks: Vec<Network>,
}

/// A network of a VM.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    /// Name within the VM.
    #[serde(default)]
    pub name: String,
    /// The NetworkAttachmentDefinition. Unset: the pod network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multus: Option<Multus>,
}

/// A reference to a NetworkAttachmentDefinition.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Multus {
    /// `name`, or `namespace/name`.
    #[serde(default)]
    pub network_name: String,
}

/// What virt-controller and virt-handler report.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineInstanceStatus {
    /// Pending, Scheduling, Scheduled, Running, Succeeded, Failed, Unknown or WaitingForSync.
    #[serde(default)]
    pub phase: String,
    /// The node it runs on; during a live migration the source, until the guest has moved.
    #[serde(default)]
    pub node_name: String,
    /// Ready, Paused, AgentConnected and others.
    #[serde(default)]
    pub conditions: Vec<VmiCondition>,
    /// What the hypervisor and the guest agent know of the guest's interfaces.
    #[serde(default)]
    pub interfaces: Vec<Interface>,
}

/// A condition of a VirtualMachineInstance or a pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VmiCondition {
    /// What is said.
    #[serde(default, rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    #[serde(default)]
    pub status: String,
    /// Why.
    #[serde(default)]
    pub reason: String,
}

/// An interface of the guest.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Interface {
    /// The network it joins. Empty: the guest made it for itself (a bridge, a CNI's device).
    #[serde(default)]
    pub name: String,
    /// The first of its addresses.
    #[serde(default)]
    pub ip_address: String,
    /// All of its addresses.
    #[serde(default)]
    pub ip_addresses: Option<Vec<String>>,
}

/// A pod, as far as it says how its VM is.
#[derive(Resource, Clone, Debug, Default, Deserialize, Serialize)]
#[resource(inherit = "Pod")]
pub struct LauncherPod {
    /// Whose it is, and whether it is being deleted.
    pub metadata: ObjectMeta,
    /// Where it runs.
    #[serde(default)]
    pub spec: PodSpec,
    /// How it is.
    #[serde(default)]
    pub status: PodStatus,
}

/// Where a pod runs.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSpec {
    /// The node.
    #[serde(default)]
    pub node_name: String,
}

/// How a pod is.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStatus {
    /// Pending, Running, Succeeded, Failed or Unknown.
    #[serde(default)]
    pub phase: String,
    /// Its addresses on the pod network, one of each family at most.
    #[serde(default, rename = "podIPs")]
    pub pod_ips: Vec<PodIp>,
    /// Ready and others.
    #[serde(default)]
    pub conditions: Vec<VmiCondition>,
}

/// An address of a pod.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct PodIp {
    /// The address.
    #[serde(default)]
    pub ip: String,
}

/// A Service, as far as it has addresses.
#[derive(Resource, Clone, Debug, Default, Deserialize, Serialize)]
#[resource(inherit = "Service")]
pub struct ServiceAddresses {
    /// Who owns it.
    pub metadata: ObjectMeta,
    /// Its addresses within the cluster.
    #[serde(default)]
    pub spec: ServiceAddressesSpec,
    /// Where it is announced.
    #[serde(default)]
    pub status: ServiceAddressesStatus,
}

/// The addresses of a Service within the cluster.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct ServiceAddressesSpec {
    /// One of each family at most, or `None` in words.
    #[serde(default, rename = "clusterIPs")]
    pub cluster_ips: Option<Vec<String>>,
}

/// Where a Service is announced.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceAddressesStatus {
    /// By its announcer.
    #[serde(default)]
    pub load_balancer: Announced,
}

/// The points at which a Service is announced.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Announced {
    /// One for each address.
    #[serde(default)]
    pub ingress: Option<Vec<AnnouncedAt>>,
}

/// An address or a name at which a Service is announced.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct AnnouncedAt {
    /// The address. Unset: it is a name.
    #[serde(default)]
    pub ip: Option<String>,
}

/// A node, as far as VMs are told of it.
#[derive(Resource, Clone, Debug, Default, Deserialize, Serialize)]
#[resource(inherit = "FullNode")]
pub struct Node {
    /// Its labels name region and zone.
    pub metadata: ObjectMeta,
    /// Its part of the pod network.
    #[serde(default)]
    pub spec: NodeSpec,
    /// Its own addresses.
    #[serde(default)]
    pub status: NodeStatus,
}

/// A node's part of the pod network.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct NodeSpec {
    /// One network of each family at most.
    #[serde(default, rename = "podCIDRs")]
    pub pod_cidrs: Vec<String>,
}

/// A node's own addresses.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct NodeStatus {
    /// Addresses and names.
    #[serde(default)]
    pub addresses: Vec<NodeAddress>,
}

/// One of a node's addresses or names.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct NodeAddress {
    /// Its type, such as `InternalIP`.
    #[serde(default, rename = "type")]
    pub type_: String,
    /// An address, or a name.
    #[serde(default)]
    pub address: String,
}

/// A VM, whether it runs or not. Only metadata is read.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[kube(
    group = "kubevirt.io",
    version = "v1",
    kind = "VirtualMachine",
    namespaced,
    schema = "disabled",
    derive = "PartialEq",
    derive = "Default"
)]
pub struct VirtualMachineSpec {}

/// A network that VMs join.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[kube(
    group = "k8s.cni.cncf.io",
    version = "v1",
    kind = "NetworkAttachmentDefinition",
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

/// A link for a VLAN of a cluster network on nodes of Harvester, as far as this operator reads it.
/// Source: network-controller-harvester, pkg/apis/network.harvesterhci.io/v1beta1.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[kube(
    group = "network.harvesterhci.io",
    version = "v1beta1",
    kind = "HostNetworkConfig",
    plural = "hostnetworkconfigs",
    status = "HostNetworkConfigStatus",
    schema = "disabled",
    derive = "PartialEq",
    derive = "Default"
)]
#[serde(rename_all = "camelCase")]
pub struct HostNetworkConfigSpec {
    /// The cluster network.
    #[serde(default)]
    pub cluster_network: String,
    /// The VLAN, 1 to 4094.
    #[serde(default, rename = "vlanID")]
    pub vlan_id: u16,
}

/// The state of a HostNetworkConfig on each node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HostNetworkConfigStatus {
    /// By the node's name. A node that is not selected is not there.
    #[serde(default)]
    pub node_status: BTreeMap<String, HostNetworkConfigNodeStatus>,
}

/// The state of a HostNetworkConfig on one node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct HostNetworkConfigNodeStatus {
    /// `Ready` among them.
    #[serde(default)]
    pub conditions: Vec<NodeLinkCondition>,
}

/// A condition of a node's link.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct NodeLinkCondition {
    /// Type, such as `Ready`.
    #[serde(default, rename = "type")]
    pub type_: String,
    /// True, False or Unknown.
    #[serde(default)]
    pub status: String,
}
