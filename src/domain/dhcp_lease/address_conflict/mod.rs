//! Reasons not to publish a leased address: another object has the address or may get it, or the
//! address does not belong to the network.
//!
//! A tenant may run the DHCP server of a network, and this server may lease an address of the
//! cluster itself. If the operator published such an address, the cluster's traffic would go to the
//! tenant's VMs (CVE-2020-8554).
//!
//! Only these reasons count against an address that is already published:
//!
//! * A pool on the same network, or a global pool, has allocated the address to another
//!   LoadBalancer.
//! * An older LoadBalancer on the same network also publishes the address.
//! * The cluster itself has the address. Ingress addresses of Services do not count here.
//! * The address's own lease has this address as the gateway.
//!
//! So a published address stays published if a pool's ranges now contain it, or if the CIDR or
//! gateway of its network has changed. Two networks count as the same if they have the same bridge
//! and the same VLAN.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use crate::LeasedAddress;
use crate::network::Segment;
use crate::network::infrastructure::Reserved;
use crate::pools::conflict::PoolFacts;
use crate::pools::ranges::PoolRanges;
use crate::vm_backends::backend_address::NetworkRange;

/// IPPool, with the segment on which its addresses are announced.
#[derive(Clone, Debug)]
pub struct PoolSegment {
    /// Facts about the IPPool, its ranges among them.
    pub facts: Arc<PoolFacts>,
    /// Segment on which the addresses of the IPPool are announced.
    pub segment: Segment,
}

/// LoadBalancer, other than the one that leases the address, that has the same address in its
/// status or in its record. The two LoadBalancers may be on different networks. A LoadBalancer with
/// the address in its status and in its record gives two values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherHolder {
    /// Segment on which the address of that LoadBalancer is announced. `None`: a global pool has
    /// allocated the address, so any segment is possible.
    pub segment: Option<Segment>,
    /// Whether a pool allocated the address to that LoadBalancer.
    pub by_pool: bool,
    /// Whether the address is in the status of that LoadBalancer. `false`: it is in the record.
    pub publishes: bool,
    /// Whether that LoadBalancer is older than the one that is to publish the address. If
    /// `publishes` is `false`, the ages of the two LoadBalancers' records are compared instead. The
    /// value is then also `true` if the one that is to publish the address has no record.
    pub older: bool,
}

/// Facts that decide whether a leased address may be published.
#[derive(Clone, Debug)]
pub struct AddressUses {
    /// Segment on which the address was leased.
    pub segment: Segment,
    /// All IPPools.
    pub pools: Vec<PoolSegment>,
    /// Other LoadBalancers that have the address.
    pub others: Vec<OtherHolder>,
    /// Objects of the cluster itself that have the address.
    pub reserved: Vec<Reserved>,
    /// CIDR and gateway of the network on which the address was leased. `None`: unknown.
    pub range: Option<NetworkRange>,
    /// Whether the LoadBalancer that is to publish the address already publishes it.
    pub published: bool,
}

/// Reason not to publish the leased address. `None`: the address may be published. The text
/// contains no names of other tenants' objects.
pub fn why_unusable(lease: &LeasedAddress, uses: &AddressUses) -> Option<String> {
    let ip: Ipv4Addr = lease.ip;
    let held = |other: &&OtherHolder| {
        let meets = other.segment.as_ref().is_none_or(|segment| segment.meets(&uses.segment));
        let first = match (other.by_pool, other.publishes, uses.published) {
            (true, _, _) => true,
            (false, theirs, ours) if theirs != ours => theirs,
            _ => other.older,
        };
        meets && first
    };
    if uses.others.iter().any(|other| held(&other)) {
        return Some(format!("{ip} is the address of another LoadBalancer"));
    }
    // The address of a LoadBalancer's own Service does not count: if another LoadBalancer publishes
    // the address, that LoadBalancer is in `others`.
    let counts = |reserved: &&Reserved| match reserved {
        Reserved::OwnIngress(_) => false,
        _ => !uses.published || !reserved.is_ingress(),
    };
    if let Some(reserved) = uses.reserved.iter().find(counts) {
        return Some(format!("{ip} is {}", reserved.unnamed()));
    }
    if lease.gateway == Some(ip) {
        return Some(format!("{ip} is the gateway of its own subnet"));
    }
    if uses.published {
        return None;
    }
    if let Some(why) = uses.range.and_then(|range| outside(ip, &lease.network, &range)) {
        return Some(why);
    }
    if uses.segment == Segment::Unlisted {
        return Some(format!(
            "the operator has not listed the networks of the cluster yet, so it does not know whether an IPPool contains {ip}"
        ));
    }
    uses.pools.iter().find_map(|pool| in_pool(ip, pool, &uses.segment))
}

/// Reason not to publish an address that is the network's gateway, or is outside the network's IPv4
/// CIDR. `None`: neither is true. An IPv6 CIDR is ignored.
fn outside(ip: Ipv4Addr, network: &str, range: &NetworkRange) -> Option<String> {
    let NetworkRange { cidr, gateway } = range;
    let ip = IpAddr::V4(ip);
    if *gateway == Some(ip) {
        return Some(format!("{ip} is the gateway of network {network}"));
    }
    (cidr.addr().is_ipv4() && !cidr.contains(&ip))
        .then(|| format!("{ip} is outside {cidr}, the addresses of network {network}"))
}

fn in_pool(ip: Ipv4Addr, pool: &PoolSegment, segment: &Segment) -> Option<String> {
    let PoolSegment { facts, segment: theirs } = pool;
    if !facts.selector.is_global() && !theirs.meets(segment) {
        return None;
    }
    let ranges = facts.ranges.as_ref()?;
    let ip = IpAddr::V4(ip);
    let is_gateway = |ranges: &PoolRanges| ranges.gateways().any(|gateway| gateway == ip);
    if ranges.find(ip).is_some() {
        let name = &facts.name;
        return Some(format!(
            "{ip} is in the ranges of IPPool {name}: exclude it there, or configure the DHCP server to lease other addresses"
        ));
    }
    is_gateway(ranges).then(|| format!("{ip} is the gateway of IPPool {}", facts.name))
}

#[cfg(test)]
mod tests;
