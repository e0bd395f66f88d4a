//! Why a leased address may not be published: something else has it, or may be given it, or it is
//! none of the network's. The DHCP server of a network chooses addresses, and a tenant may run it:
//! an address of the cluster itself would draw the cluster's traffic to the tenant's VMs
//! (CVE-2020-8554).
//!
//! Networks count as one by bridge and VLAN, as pools do. An address that is published already is
//! not taken away because a pool grew over it, or because its network was described anew; one that a
//! pool gave to another is, and one that the cluster itself has.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use super::Lease;
use crate::network::Segment;
use crate::network::infrastructure::Reserved;
use crate::pools::conflict::PoolFacts;
use crate::pools::ranges::Ranges;
use crate::vm_backends::backend_address::NetworkRange;

/// An IPPool, and where its addresses are seen.
#[derive(Clone, Debug)]
pub struct Pool {
    /// What it wants.
    pub facts: Arc<PoolFacts>,
    /// Where.
    pub segment: Segment,
}

/// Another LoadBalancer that has the same address, on whatever network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Other {
    /// Where its address is seen. `None`: everywhere.
    pub segment: Option<Segment>,
    /// Whether a pool gave it.
    pub by_pool: bool,
    /// Whether it publishes the address; else it is only recorded for it.
    pub publishes: bool,
    /// Whether it is older.
    pub older: bool,
}

/// What is around a leased address.
#[derive(Clone, Debug)]
pub struct World {
    /// Where it was leased.
    pub segment: Segment,
    /// All pools.
    pub pools: Vec<Pool>,
    /// Whoever else has the address.
    pub others: Vec<Other>,
    /// The objects of the cluster that have it.
    pub reserved: Vec<Reserved>,
    /// The addresses of the network where it was leased, if they are known.
    pub range: Option<NetworkRange>,
    /// Whether the LoadBalancer publishes it already.
    pub published: bool,
}

/// Why the address may not be published. Names of other tenants' objects are not told.
pub fn obstacle(lease: &Lease, world: &World) -> Option<String> {
    let ip: Ipv4Addr = lease.ip;
    let held = |other: &&Other| {
        let meets = other.segment.as_ref().is_none_or(|segment| segment.meets(&world.segment));
        let first = match (other.by_pool, other.publishes, world.published) {
            (true, _, _) => true,
            (false, theirs, ours) if theirs != ours => theirs,
            _ => other.older,
        };
        meets && first
    };
    if world.others.iter().any(|other| held(&other)) {
        return Some(format!("{ip} is the address of another LoadBalancer"));
    }
    let counts = |reserved: &&Reserved| !(world.published && reserved.is_ingress());
    if let Some(whose) = world.reserved.iter().filter(counts).find_map(whose) {
        return Some(format!("{ip} is {whose}"));
    }
    if lease.gateway == Some(ip) {
        return Some(format!("{ip} is the gateway of its own subnet"));
    }
    if world.published {
        return None;
    }
    if let Some(why) = world.range.and_then(|range| outside(ip, &lease.network, &range)) {
        return Some(why);
    }
    if world.segment == Segment::Unlisted {
        return Some(format!(
            "which networks there are is not known yet, nor whether an IPPool has {ip}"
        ));
    }
    world.pools.iter().find_map(|pool| in_pool(ip, pool, &world.segment))
}

/// Name of what an address of the cluster is. `None`: it may be this LoadBalancer's own: other
/// LoadBalancers at the address were looked for.
fn whose(reserved: &Reserved) -> Option<&'static str> {
    match reserved {
        Reserved::Management(_) => Some("the cluster's management address"),
        Reserved::Node(_) => Some("a node's own address"),
        Reserved::ClusterIp(_) | Reserved::Ingress(_) => Some("the address of a Service"),
        Reserved::OwnIngress(_) => None,
        Reserved::ServiceNetwork(_) => Some("in the cluster's service network"),
        Reserved::PodNetwork(_) => Some("in the cluster's pod network"),
    }
}

/// Why the network does not have the address.
fn outside(ip: Ipv4Addr, network: &str, range: &NetworkRange) -> Option<String> {
    let NetworkRange { cidr, gateway } = range;
    let ip = IpAddr::V4(ip);
    if *gateway == Some(ip) {
        return Some(format!("{ip} is the gateway of network {network}"));
    }
    (cidr.addr().is_ipv4() && !cidr.contains(&ip))
        .then(|| format!("{ip} is outside {cidr}, the addresses of network {network}"))
}

fn in_pool(ip: Ipv4Addr, pool: &Pool, segment: &Segment) -> Option<String> {
    let Pool { facts, segment: theirs } = pool;
    if !facts.selector.is_global() && !theirs.meets(segment) {
        return None;
    }
    let ranges = facts.ranges.as_ref()?;
    let ip = IpAddr::V4(ip);
    let is_gateway = |ranges: &Ranges| ranges.gateways().any(|gateway| gateway == ip);
    if ranges.find(ip).is_some() {
        let name = &facts.name;
        return Some(format!(
            "{ip} is in the ranges of IPPool {name}: exclude it there, or have the DHCP server give out others"
        ));
    }
    is_gateway(ranges).then(|| format!("{ip} is the gateway of IPPool {}", facts.name))
}

#[cfg(test)]
mod tests;
