//! Whether a VM may have an address that it reports.
//!
//! On a network of its own a VM's addresses are known from its guest agent alone, and root in the
//! guest decides what that says. An endpoint at such an address is traffic, and probes, from the
//! cluster's nodes. So: on the pod network only the addresses of the VM's own pods count. On other
//! networks no address of the cluster does, nor one that the network does not have.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use super::vm::Pod;
use crate::network::infrastructure::Reserved;

/// The addresses of a network, as Harvester's annotation of its NetworkAttachmentDefinition says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkRange {
    /// All of them.
    pub cidr: IpNet,
    /// The router's.
    pub gateway: Option<IpAddr>,
}

/// What addresses are compared with.
#[derive(Clone, Copy)]
pub struct Rules<'a> {
    /// The address that leads to the load balancer itself; `None` if it is not known.
    pub own: Option<IpAddr>,
    /// The object of the cluster that has an address.
    pub reserved: &'a dyn Fn(IpAddr) -> Option<Reserved>,
    /// The addresses of a network, by `namespace/name`. `None`: not known.
    pub range: &'a dyn Fn(&str) -> Option<NetworkRange>,
}

/// Why a VM may not have an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressFault {
    /// It leads to the load balancer itself.
    Own,
    /// The VM is on the pod network, and none of its pods has it.
    NotOfPod,
    /// The cluster's.
    Reserved(Reserved),
    /// The network does not have it.
    Outside(Box<str>, IpNet),
    /// The network's router has it.
    Gateway(Box<str>),
}

impl fmt::Display for AddressFault {
    /// Completes the sentence "the address is …".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.write_str("the load balancer's own"),
            Self::NotOfPod => f.write_str("none of its pod's"),
            Self::Reserved(object) => object.fmt(f),
            Self::Outside(network, cidr) => write!(f, "outside {cidr} of network {network}"),
            Self::Gateway(network) => write!(f, "the gateway of network {network}"),
        }
    }
}

/// Why a VM may not have an address on a network, `namespace/name` or empty for the pod network.
/// `None`: it may. `pods` are the VM's. `had` is whether the VM was at that address before: an
/// address that a load balancer gets later takes none away.
pub fn fault(
    address: IpAddr,
    network: &str,
    pods: &[Pod],
    rules: &Rules<'_>,
    had: impl FnOnce() -> bool,
) -> Option<AddressFault> {
    if rules.own == Some(address) {
        return Some(AddressFault::Own);
    }
    if network.is_empty() {
        // The address of a pod that has ended may be another's by now.
        let of_pod = pods.iter().any(|pod| !pod.ended && pod.addresses.contains(&address));
        return (!of_pod).then_some(AddressFault::NotOfPod);
    }
    if let Some(object) = (rules.reserved)(address)
        && !(object.is_ingress() && had())
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
