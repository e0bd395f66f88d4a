//! Check whether a VM may have the addresses that it reports.
//!
//! A guest agent can report any address, because root in the guest controls the guest agent. The
//! cluster's nodes send traffic and probes to every address that is not refused. With a false
//! address, the traffic could reach another host. So these addresses are refused:
//!
//! * On every network: the LoadBalancer's own address.
//! * On the pod network: an address that no pod of the VM has, and an address of a node.
//! * On other networks: an address of the cluster (with an exception, see [`fault`]), the address
//!   of the network's router, and an address outside the network.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use super::vm::VmPod;
use crate::network::infrastructure::Reserved;

/// CIDR and router of a network, from Harvester's annotation on its NetworkAttachmentDefinition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkRange {
    /// CIDR of the network.
    pub cidr: IpNet,
    /// Address of the network's router. `None`: the annotation has no valid address.
    pub gateway: Option<IpAddr>,
}

/// Facts that decide whether a VM may have an address that it reports.
#[derive(Clone, Copy)]
pub struct AddressRules<'a> {
    /// Address of the LoadBalancer that selects the VM; `None` if the LoadBalancer's address is not
    /// known.
    pub own: Option<IpAddr>,
    /// Returns the object of the cluster that has the given address. `None`: no object has it.
    pub reserved: &'a dyn Fn(IpAddr) -> Option<Reserved>,
    /// Returns whether `status.backendServers` of the stored LoadBalancer has the given address.
    pub listed: &'a dyn Fn(IpAddr) -> bool,
    /// Returns the CIDR and the router of the network with the given `namespace/name`. `None`: they
    /// are not known.
    pub range: &'a dyn Fn(&str) -> Option<NetworkRange>,
}

/// Reason why an address that a VM reports is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressFault {
    /// The address is the LoadBalancer's own.
    Own,
    /// The VM reports the address on the pod network, and no pod of the VM has the address. Pods
    /// that have ended do not count.
    NotOfPod,
    /// An object of the cluster has the address.
    Reserved(Reserved),
    /// The address is outside the network. The fields are the network's `namespace/name` and CIDR.
    Outside(Box<str>, IpNet),
    /// The network's router has the address. The field is the network's `namespace/name`.
    Gateway(Box<str>),
}

impl fmt::Display for AddressFault {
    /// Completes the sentence "the address is …". Tenants read the text, so it does not name the
    /// object of the cluster that has the address.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.write_str("the load balancer's own"),
            Self::NotOfPod => f.write_str("no address of its pod"),
            Self::Reserved(object) => f.write_str(object.unnamed()),
            Self::Outside(network, cidr) => write!(f, "outside {cidr} of network {network}"),
            Self::Gateway(network) => write!(f, "the gateway of network {network}"),
        }
    }
}

/// Returns the reason why an address that a VM reports on a network is refused. `None`: the address
/// is accepted. `network`: `namespace/name`, or empty for the pod network. `pods`: pods of the VM.
/// `had` returns whether a stored EndpointSlice has the address for this VM.
///
/// On a network other than the pod network, an address that is also the ingress address of a
/// Service is not refused as reserved, if both of these hold:
///
/// * A stored EndpointSlice has the address for this VM.
/// * `status.backendServers` of the LoadBalancer lists the address.
///
/// Neither suffices alone. The status does not say which VM had the address. A slice may be forged
/// by a tenant who may write EndpointSlices.
pub fn fault(
    address: IpAddr,
    network: &str,
    pods: &[VmPod],
    rules: &AddressRules<'_>,
    had: impl FnOnce() -> bool,
) -> Option<AddressFault> {
    if rules.own == Some(address) {
        return Some(AddressFault::Own);
    }
    if network.is_empty() {
        // The address of a pod that has ended may belong to another pod by now.
        let of_pod = pods.iter().any(|pod| !pod.ended && pod.addresses.contains(&address));
        if !of_pod {
            return Some(AddressFault::NotOfPod);
        }
        // KubeVirt's pods are not on the host's network. A tenant can create a pod that looks like
        // KubeVirt's, and put it on the host's network. Such a pod has the addresses of its node.
        return (rules.reserved)(address).filter(Reserved::is_host).map(AddressFault::Reserved);
    }
    // `had` looks up the VM in a map that is made once for all VMs. `listed` searches the addresses
    // of all backends, so it is called only for an address that a slice has.
    if let Some(object) = (rules.reserved)(address)
        && !(object.is_ingress() && had() && (rules.listed)(address))
    {
        return Some(AddressFault::Reserved(object));
    }
    let range = (rules.range)(network)?;
    if range.gateway == Some(address) {
        return Some(AddressFault::Gateway(network.into()));
    }
    let is_outside =
        range.cidr.addr().is_ipv4() == address.is_ipv4() && !range.cidr.contains(&address);
    is_outside.then(|| AddressFault::Outside(network.into(), range.cidr))
}

#[cfg(test)]
mod tests;
