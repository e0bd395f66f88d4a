//! Facts about one run of a VM: its state, its pods, its addresses. Decisions about endpoints,
//! topology annotations and the networks of guest clusters use these facts.
//!
//! A cluster may have twenty thousand VMs, and a tenant may write texts of any length. So the facts
//! contain no more than decisions use. The name of a node or of a network counts as absent if it
//! has more than [`LONGEST_WORD`] bytes, because no object has so long a name.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::health::may_be_backend;
use super::listeners::LONGEST_VALUE;
use crate::limits::text::{LONGEST_WORD, cut, within};
use api::kubevirt::{
    Interface, LABEL_CREATOR, LABEL_GUEST_CLUSTER, LauncherPod, NODE_DRIVER, Network,
    TOPOLOGY_REGION, TOPOLOGY_ZONE, VirtualMachineInstance, VmiCondition,
};

/// Labels of a VM.
pub type Labels = BTreeMap<String, String>;

/// One run of a VM. Another run of a VM with the same name has another UID.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vm {
    /// `metadata.uid` of the VirtualMachineInstance.
    pub uid: Arc<str>,
    /// `metadata.resourceVersion`, which a write of the VM requires.
    pub version: Box<str>,
    /// Node that the VM runs on; empty before the VM has a node. During a live migration, this is
    /// the source node until the guest has moved.
    pub node: Arc<str>,
    /// Phase of the VM's life, from `status.phase`.
    pub phase: VmPhase,
    /// State of the VM's `Ready` condition.
    pub ready: VmReadiness,
    /// Whether the VM is paused: its processors are stopped.
    pub paused: bool,
    /// Whether the VM is being deleted.
    pub deleting: bool,
    /// Interfaces that the cluster gave the VM, at most `MOST_NICS`, each with the addresses in the
    /// VM's status. Interfaces that the guest created itself are left out.
    pub nics: Box<[Nic]>,
    /// Region and zone in the VM's annotations.
    pub topology: Topology,
    /// Whether the node driver created the VM, as a node of a guest cluster. If so, Harvester
    /// itself writes the VM's topology annotations.
    pub annotated_by_harvester: bool,
    /// Network of a VM that is a node of a guest cluster: `namespace/name` of the VM's first
    /// NetworkAttachmentDefinition. Empty for other VMs, for a node that is only on the pod
    /// network, and if the name is too long.
    pub network: Box<str>,
}

/// Phase of a VM's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VmPhase {
    /// The VM does not run yet, or `status.phase` has a value that this version of the operator
    /// does not know.
    #[default]
    Starting,
    /// The VM runs.
    Running,
    /// The phase is unknown, because the VM's node does not report it.
    Unknown,
    /// The VM has ended.
    Ended,
}

/// State of a VM's `Ready` condition. While the guest runs, virt-controller copies the condition
/// from the current pod. The condition is false while the VM is paused, and while a readiness probe
/// in the VM's spec fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VmReadiness {
    /// The condition is true.
    Ready,
    /// The condition is false only because the VM's pod is being deleted. The guest may still
    /// answer.
    PodTerminating,
    /// The condition is unknown or absent, or false for any other reason.
    #[default]
    NotReady,
}

/// Interface that the cluster gave a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nic {
    /// `namespace/name` of the NetworkAttachmentDefinition. Empty in these cases: the interface is
    /// on the pod network, its network is not in the VM's spec, or the name is too long.
    pub network: Box<str>,
    /// Addresses of the interface, from the VM's status, each once. Addresses that no endpoint can
    /// have are left out. At most `MOST_REPORTED` addresses are looked at, and at most
    /// `MOST_ADDRESSES` are kept. `ipAddress` comes first, and then `ipAddresses` in the order of
    /// that list.
    pub addresses: Box<[IpAddr]>,
}

/// Region and zone, from the labels of a node or the annotations of a VM. `None`: there is no such
/// label or annotation. An annotation is cut to 64 bytes. The value of a label has at most 63
/// bytes, so a cut annotation never equals a label.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// `topology.kubernetes.io/region`.
    pub region: Option<Box<str>>,
    /// `topology.kubernetes.io/zone`.
    pub zone: Option<Box<str>>,
}

/// Pod that a VirtualMachineInstance controls. The pod runs the VM, ran it, or may run it later.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VmPod {
    /// `metadata.uid`.
    pub uid: Arc<str>,
    /// `metadata.uid` of the VirtualMachineInstance that controls the pod.
    pub vm: Arc<str>,
    /// Node to which the pod was scheduled; empty before it is scheduled.
    pub node: Arc<str>,
    /// Creation time, in seconds since the Unix epoch; 0 if not known.
    pub created: i64,
    /// Whether the pod's `Ready` condition is true, and the pod has not ended.
    pub ready: bool,
    /// Whether the pod is being deleted.
    pub deleting: bool,
    /// Whether the pod has ended. If so, its addresses may belong to another pod by now.
    pub ended: bool,
    /// Addresses of the pod (`status.podIPs`), as the kubelet reports them. A pod on the host's
    /// network has the addresses of its node.
    pub addresses: Box<[IpAddr]>,
}

/// Largest number of addresses that are kept for one interface. Root in the guest can add any
/// number of addresses.
const MOST_ADDRESSES: usize = 16;
/// Largest number of reported addresses that are looked at in one interface, usable or not. All
/// later addresses are ignored.
const MOST_REPORTED: usize = 256;
/// Largest number of interfaces that are read from one VM.
const MOST_NICS: usize = 32;
/// Largest number of labels that are read from one VM. The number is limited, because a short label
/// takes more bytes in the index of VMs than in the stored object.
const MOST_VM_LABELS: usize = 256;

impl Vm {
    /// Whether `self` and `other` are equal in every fact that decides about endpoints.
    pub fn serves_like(&self, other: &Self) -> bool {
        let without = |vm: &Self| {
            (vm.uid.clone(), vm.node.clone(), vm.phase, vm.ready, vm.paused, vm.deleting)
        };
        without(self) == without(other) && self.nics == other.nics
    }

    /// Current pod of the VM by KubeVirt's rule: the newest pod on the VM's node, or the newest of
    /// all if the VM has no node yet. During a live migration, the source pod is the current one
    /// until the guest has moved, because the target pod is on another node. `None`: there is no
    /// such pod. Precondition: `pods` are the pods of this VM.
    pub fn current_pod<'a>(&self, pods: &'a [VmPod]) -> Option<&'a VmPod> {
        pods.iter()
            .filter(|pod| self.node.is_empty() || pod.node == self.node)
            .max_by(|a, b| (a.created, &a.uid).cmp(&(b.created, &b.uid)))
    }
}

/// Reads from a VirtualMachineInstance the facts that decisions use.
pub fn vm(vmi: &VirtualMachineInstance) -> Vm {
    let status = vmi.status.as_ref();
    let conditions = status.map_or(&[][..], |s| &s.conditions);
    let annotation = |key: &str| {
        let value = vmi.metadata.annotations.as_ref()?.get(key)?;
        Some(cut(value.clone(), LONGEST_VALUE + 1).into())
    };
    let label = |key: &str| vmi.metadata.labels.as_ref().and_then(|labels| labels.get(key));
    let made_by_driver = label(LABEL_CREATOR).is_some_and(|creator| creator == NODE_DRIVER);
    let is_node = made_by_driver || label(LABEL_GUEST_CLUSTER).is_some();
    let namespace = vmi.metadata.namespace.as_deref().unwrap_or_default();
    let joined = vmi.spec.networks.iter().find_map(|network| network.multus.as_ref());
    Vm {
        uid: text(vmi.metadata.uid.as_deref()),
        version: text(vmi.metadata.resource_version.as_deref()),
        node: text(status.and_then(|s| within(&s.node_name, LONGEST_WORD))),
        phase: phase(status.map_or("", |s| &s.phase)),
        ready: readiness(conditions),
        paused: is_true(conditions, "Paused"),
        deleting: vmi.metadata.deletion_timestamp.is_some(),
        nics: nics(namespace, &vmi.spec.networks, status.map_or(&[][..], |s| &s.interfaces)),
        topology: Topology { region: annotation(TOPOLOGY_REGION), zone: annotation(TOPOLOGY_ZONE) },
        annotated_by_harvester: made_by_driver,
        network: joined
            .filter(|_| is_node)
            .map(|multus| qualified(namespace, &multus.network_name))
            .unwrap_or_default(),
    }
}

/// Labels by which LoadBalancers can select the VM. If the VM has more than `MOST_VM_LABELS`
/// labels, only the first ones in the order of their keys are returned.
pub fn labels(vmi: &VirtualMachineInstance) -> Cow<'_, Labels> {
    match &vmi.metadata.labels {
        Some(all) if all.len() <= MOST_VM_LABELS => Cow::Borrowed(all),
        all => {
            let few = all.iter().flatten().take(MOST_VM_LABELS);
            Cow::Owned(few.map(|(key, value)| (key.clone(), value.clone())).collect())
        }
    }
}

/// Reads from a pod the facts that decisions use. `None`: no VirtualMachineInstance controls the
/// pod. An owner with a UID of more than [`LONGEST_WORD`] bytes does not count, because no
/// VirtualMachineInstance has such a UID.
pub fn pod(pod: &LauncherPod) -> Option<VmPod> {
    let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
    let owner =
        owners.iter().find(|o| o.controller == Some(true) && o.kind == "VirtualMachineInstance")?;
    let ended = matches!(pod.status.phase.as_str(), "Succeeded" | "Failed");
    Some(VmPod {
        uid: text(pod.metadata.uid.as_deref()),
        vm: within(&owner.uid, LONGEST_WORD)?.into(),
        node: text(within(&pod.spec.node_name, LONGEST_WORD)),
        created: pod.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second()),
        ready: !ended && is_true(&pod.status.conditions, "Ready"),
        deleting: pod.metadata.deletion_timestamp.is_some(),
        ended,
        addresses: pod
            .status
            .pod_ips
            .iter()
            .filter_map(|address| address.ip.parse().ok())
            .collect(),
    })
}

fn text<T: for<'a> From<&'a str>>(text: Option<&str>) -> T {
    text.unwrap_or_default().into()
}

fn phase(phase: &str) -> VmPhase {
    match phase {
        "Running" => VmPhase::Running,
        "Succeeded" | "Failed" => VmPhase::Ended,
        "Unknown" => VmPhase::Unknown,
        // Pending, Scheduling, Scheduled, WaitingForSync, and phases that later versions of
        // KubeVirt may add. In these phases it is not known that the guest runs, so the VM gets no
        // traffic.
        _ => VmPhase::Starting,
    }
}

fn readiness(conditions: &[VmiCondition]) -> VmReadiness {
    match conditions.iter().find(|c| c.type_ == "Ready") {
        Some(ready) if ready.status == "True" => VmReadiness::Ready,
        Some(ready) if ready.reason == "PodTerminating" => VmReadiness::PodTerminating,
        _ => VmReadiness::NotReady,
    }
}

fn is_true(conditions: &[VmiCondition], type_: &str) -> bool {
    conditions.iter().any(|c| c.type_ == type_ && c.status == "True")
}

/// Interfaces that the cluster gave the VM. An interface that the guest created itself has no name
/// in the status, and is left out.
fn nics(namespace: &str, networks: &[Network], interfaces: &[Interface]) -> Box<[Nic]> {
    interfaces
        .iter()
        .filter(|interface| !interface.name.is_empty())
        .take(MOST_NICS)
        .map(|interface| Nic {
            network: networks
                .iter()
                .find(|network| network.name == interface.name)
                .and_then(|network| network.multus.as_ref())
                .map(|multus| qualified(namespace, &multus.network_name))
                .unwrap_or_default(),
            addresses: addresses(interface),
        })
        .collect()
}

/// Name of a network as `namespace/name`. `namespace`: used if `network` does not name one. Empty
/// if `network` has more than [`LONGEST_WORD`] bytes.
fn qualified(namespace: &str, network: &str) -> Box<str> {
    let Some(network) = within(network, LONGEST_WORD) else { return Box::default() };
    if network.contains('/') { network.into() } else { format!("{namespace}/{network}").into() }
}

fn addresses(interface: &Interface) -> Box<[IpAddr]> {
    let mut found: Vec<IpAddr> = Vec::new();
    let listed = interface.ip_addresses.iter().flatten();
    for text in std::iter::once(&interface.ip_address).chain(listed).take(MOST_REPORTED) {
        if found.len() == MOST_ADDRESSES {
            break;
        }
        if let Ok(address) = text.parse()
            && may_be_backend(address)
            && !is_mapped(address)
            && !found.contains(&address)
        {
            found.push(address);
        }
    }
    found.into()
}

/// Whether the address is IPv4-mapped IPv6. Neither an IPv4 nor an IPv6 EndpointSlice can use such
/// an address.
fn is_mapped(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some())
}

#[cfg(test)]
mod tests;
