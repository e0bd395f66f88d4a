//! Choice of the VMs that are endpoints of a LoadBalancer, with their address and state.
//!
//! Invariant: a VM has at most one endpoint, identified by the VM's UID, however many pods run the
//! VM.

use std::net::IpAddr;
use std::sync::Arc;

use super::backend_address::{self, AddressFault, AddressRules};
use super::vm::{Nic, Vm, VmPhase, VmPod, VmReadiness};

/// Address family. A Service of one family takes endpoints of that family only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AddressFamily {
    /// Internet Protocol version 4.
    V4,
    /// Internet Protocol version 6.
    V6,
}

impl AddressFamily {
    /// Family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// Name of the family in Services and EndpointSlices.
    pub fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

/// Endpoint behind the address of a LoadBalancer: a VM, or the sink, which takes the traffic while
/// no VM does. [`super::endpoint_slices::sink_endpoint`] describes the fields of the sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmEndpoint {
    /// Address of the VM.
    pub address: IpAddr,
    /// Name of the VM, which is in the LoadBalancer's namespace. For the sink: name of the Service.
    pub name: Arc<str>,
    /// UID of the VM. For the sink: [`super::endpoint_slices::SINK_UID`].
    pub uid: Arc<str>,
    /// Node that the VM runs on. For the sink: the announcing node. Empty: the node is not known.
    pub node: Arc<str>,
    /// Whether the VM can serve clients: it runs, is ready and passes its health check.
    pub serving: bool,
    /// Whether the VM, or its pod, is being deleted.
    pub terminating: bool,
}

impl VmEndpoint {
    /// Whether the endpoint is ready in the sense of Kubernetes: it serves and is not terminating.
    pub fn ready(&self) -> bool {
        self.serving && !self.terminating
    }
}

/// State of a VM that a LoadBalancer selects. Health checks are not considered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VmBackend {
    /// The VM does not run yet, or has ended. A VM in the phase `Unknown` counts as running.
    NotRunning,
    /// The VM runs, but reports no address of the Service's family on the wanted network, and the
    /// last known address cannot be used. An address that the VM reports on the pod network does
    /// not count until a pod of the VM has an address.
    NoAddress,
    /// The VM runs. On the wanted network, it reports at least one address of the Service's family
    /// that it may not have, and none that it may have.
    Refused {
        /// Name of the VM.
        name: Arc<str>,
        /// First of the refused addresses.
        address: IpAddr,
        /// Reason why the VM may not have the address.
        fault: AddressFault,
    },
    /// The VM is an endpoint.
    Endpoint {
        /// Endpoint of the VM. Its field `serving` is set as if the VM passed its health check.
        endpoint: VmEndpoint,
        /// Whether the address comes from the stored EndpointSlices, because the guest agent
        /// reports no suitable address.
        last_known: bool,
    },
}

/// Name that stands for an unknown network. No network has this name.
const ANY_NETWORK: &str = "?";

/// Conditions that the address of a VM must meet. A VM without such an address is no endpoint of
/// the LoadBalancer.
#[derive(Clone, Debug)]
pub struct WantedAddresses<'a> {
    /// Network that the LoadBalancer names; empty if the address may be on any network.
    pub network: &'a str,
    /// Address family of the Service.
    pub family: AddressFamily,
}

/// Decides the state of a VM that a LoadBalancer selects: whether the VM is an endpoint, and with
/// which address. `name`: name of the VM. `pods`: pods of the VM. `last` returns the VM's address
/// in the stored EndpointSlices. `rules`: facts that decide which addresses the VM may not have.
pub fn backend(
    name: impl Into<Arc<str>>,
    vm: &Vm,
    pods: &[VmPod],
    wanted: &WantedAddresses<'_>,
    last: impl Fn() -> Option<IpAddr>,
    rules: &AddressRules<'_>,
) -> VmBackend {
    if matches!(vm.phase, VmPhase::Starting | VmPhase::Ended) {
        return VmBackend::NotRunning;
    }
    let pod = vm.current_pod(pods);
    let pod_ready = pod.is_some_and(|pod| pod.ready);
    let fault = |address: IpAddr, network: &str| {
        backend_address::fault(address, network, pods, rules, || last() == Some(address))
    };
    let here = |nic: &&Nic| wanted.network.is_empty() || *nic.network == *wanted.network;
    let reported = vm
        .nics
        .iter()
        .filter(here)
        .flat_map(|nic| nic.addresses.iter().map(|address| (*address, &*nic.network)));
    let mut refused = None;
    let mut known = None;
    for (address, network) in reported.filter(|(a, _)| AddressFamily::of(*a) == wanted.family) {
        match fault(address, network) {
            None => {
                known = Some(address);
                break;
            }
            // No address of the VM's pods is known yet. The address is not refused, because a pod's
            // address may be reported later than the VM's.
            Some(AddressFault::NotOfPod) if pods.iter().all(|pod| pod.addresses.is_empty()) => {}
            Some(fault) => drop(refused.get_or_insert((address, fault))),
        }
    }
    // A VM whose guest agent stops reporting keeps its last address while its pod is ready. The
    // exception is a last address that the VM now reports on another network. Such an address was
    // stored before the LoadBalancer named its network.
    let elsewhere = |last: &IpAddr| vm.nics.iter().any(|nic| nic.addresses.contains(last));
    let may_have = |last: &IpAddr| {
        let mut networks = vm.nics.iter().filter(here).map(|nic| &*nic.network).peekable();
        // If the VM has no interface on the wanted network, the network of its last address is
        // unknown. Then only the rules that hold on every network are checked.
        let unsaid = networks.peek().is_none() && fault(*last, ANY_NETWORK).is_none();
        unsaid || networks.any(|network| fault(*last, network).is_none())
    };
    let fits = |last: &IpAddr| AddressFamily::of(*last) == wanted.family && may_have(last);
    let is_silent = refused.is_none();
    let remembered =
        || last().filter(|last| is_silent && pod_ready && fits(last) && !elsewhere(last));
    let Some(address) = known.or_else(remembered) else {
        return match refused {
            Some((address, fault)) => VmBackend::Refused { name: name.into(), address, fault },
            None => VmBackend::NoAddress,
        };
    };
    let vm_ready = match vm.ready {
        VmReadiness::Ready => true,
        VmReadiness::PodTerminating => vm.deleting || pod.is_some_and(|pod| pod.deleting),
        VmReadiness::NotReady => false,
    };
    VmBackend::Endpoint {
        endpoint: VmEndpoint {
            address,
            name: name.into(),
            uid: vm.uid.clone(),
            node: vm.node.clone(),
            // The `Ready` conditions of the pod and of the VM both count. When a node dies while
            // virt-controller is down as well, only the pod's condition turns false. Only the VM's
            // condition includes pausing and guest probes.
            serving: pod_ready && vm_ready && !vm.paused && vm.phase == VmPhase::Running,
            terminating: vm.deleting || pod.is_some_and(|pod| pod.deleting),
        },
        last_known: known.is_none(),
    }
}

#[cfg(test)]
mod tests;
