//! Which VMs are endpoints of a LoadBalancer, at which address, and in which state.
//!
//! Invariant: a VM has at most one endpoint, known by its UID, however many pods run it.

use std::net::IpAddr;
use std::sync::Arc;

use super::backend_address::{self, AddressFault, Rules};
use super::vm::{Nic, Phase, Pod, Readiness, Vm};

/// An address family. A Service of one family takes endpoints of that family only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// As Services and EndpointSlices spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

/// A VM behind an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Where it is reached.
    pub address: IpAddr,
    /// The VM's name; its namespace is the LoadBalancer's.
    pub name: Arc<str>,
    /// The VM's UID.
    pub uid: Arc<str>,
    /// The node it runs on; empty if not known.
    pub node: Arc<str>,
    /// It answers.
    pub serving: bool,
    /// It is going away.
    pub terminating: bool,
}

impl Endpoint {
    /// Kubernetes' own meaning: it answers and is not going away.
    pub fn ready(&self) -> bool {
        self.serving && !self.terminating
    }
}

/// What a selected VM is to a LoadBalancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// It does not run.
    NotRunning,
    /// It runs, and no address of it is known that fits.
    NoAddress,
    /// It runs, and reports only addresses that it may not have.
    Refused {
        /// The VM's name.
        name: Arc<str>,
        /// The first of them.
        address: IpAddr,
        /// Why not.
        fault: AddressFault,
    },
    /// An endpoint. Its health is not in it yet.
    Endpoint {
        /// The endpoint, if its health check passes or there is none.
        endpoint: Endpoint,
        /// The address is the one last heard of: the guest agent is silent.
        last_known: bool,
    },
}

/// No network's name: one of which nothing is known.
const ANY_NETWORK: &str = "?";

/// What addresses a LoadBalancer takes.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    /// The network that the LoadBalancer names; empty for any.
    pub network: &'a str,
    /// The Service's family.
    pub family: Family,
}

/// Decides on one VM. `pods` are those that it controls. `last` says the address of its endpoint so
/// far. `rules` say which addresses it may not have.
pub fn backend(
    name: impl Into<Arc<str>>,
    vm: &Vm,
    pods: &[Pod],
    wanted: &Wanted<'_>,
    last: impl Fn() -> Option<IpAddr>,
    rules: &Rules<'_>,
) -> Backend {
    if matches!(vm.phase, Phase::Starting | Phase::Ended) {
        return Backend::NotRunning;
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
    for (address, network) in reported.filter(|(a, _)| Family::of(*a) == wanted.family) {
        match fault(address, network) {
            None => {
                known = Some(address);
                break;
            }
            // The pod's address is told a moment later than the VM's.
            Some(AddressFault::NotOfPod) if pods.iter().all(|pod| pod.addresses.is_empty()) => {}
            Some(fault) => drop(refused.get_or_insert((address, fault))),
        }
    }
    // A guest whose agent fell silent has not moved, as long as its pod runs. What it reports on
    // another network was remembered before the LoadBalancer named this one.
    let elsewhere = |last: &IpAddr| vm.nics.iter().any(|nic| nic.addresses.contains(last));
    let may_have = |last: &IpAddr| {
        let mut networks = vm.nics.iter().filter(here).map(|nic| &*nic.network).peekable();
        // Without an interface nothing says on which network it was.
        let unsaid = networks.peek().is_none() && fault(*last, ANY_NETWORK).is_none();
        unsaid || networks.any(|network| fault(*last, network).is_none())
    };
    let fits = |last: &IpAddr| Family::of(*last) == wanted.family && may_have(last);
    let is_silent = refused.is_none();
    let remembered =
        || last().filter(|last| is_silent && pod_ready && fits(last) && !elsewhere(last));
    let Some(address) = known.or_else(remembered) else {
        return match refused {
            Some((address, fault)) => Backend::Refused { name: name.into(), address, fault },
            None => Backend::NoAddress,
        };
    };
    let vm_ready = match vm.ready {
        Readiness::Ready => true,
        Readiness::PodTerminating => vm.deleting || pod.is_some_and(|pod| pod.deleting),
        Readiness::NotReady => false,
    };
    Backend::Endpoint {
        endpoint: Endpoint {
            address,
            name: name.into(),
            uid: vm.uid.clone(),
            node: vm.node.clone(),
            // Each of the two goes stale in another failure: the pod's condition turns false
            // when a node dies while virt-controller is down as well; the VM's knows pausing and
            // guest probes.
            serving: pod_ready && vm_ready && !vm.paused && vm.phase == Phase::Running,
            terminating: vm.deleting || pod.is_some_and(|pod| pod.deleting),
        },
        last_known: known.is_none(),
    }
}

#[cfg(test)]
mod tests;
