//! From a LoadBalancer to the facts that decisions take.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use super::bounds::{LONGEST_WORD, cut};
use crate::network::Segment;
use crate::pools::allocator::WorldEntry;
use crate::pools::selection::Requirement;
use crate::{Claim, LbFacts, Owner};
use api::{
    ANNOTATION_ALLOCATED, ANNOTATION_CLUSTER, ANNOTATION_MANAGEMENT_NETWORK, ANNOTATION_NETWORK,
    DHCP_ADDRESS, Ipam, LABEL_CLUSTER, LoadBalancer, NAMELESS_CLUSTER, WorkloadType,
};

/// Which Rancher project a namespace is in, as its Namespace object says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Project {
    /// The Namespace was not seen yet.
    #[default]
    Unknown,
    /// In none.
    Outside,
    /// In this one, `cluster/project`.
    In(String),
}

/// What is known of a LoadBalancer's surroundings. Nobody who writes LoadBalancers writes these.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// The project of its namespace.
    pub project: Project,
    /// The network of its guest cluster's VMs, if that is what it is compared by.
    pub vm_network: Option<String>,
}

/// What the ledger must know. `segment` says where a network is; `fresh` is whether the object was
/// just read from the API server.
pub fn facts(
    lb: &LoadBalancer,
    around: &Surroundings,
    segment: impl FnOnce(&str) -> Segment,
    fresh: bool,
) -> LbFacts {
    let requirement = requirement(lb, around);
    let network = Some(requirement.network.as_str()).filter(|network| !network.is_empty());
    LbFacts {
        owner: owner(lb),
        created: created(lb),
        segment: network.map(segment),
        guest: is_guest(lb),
        requirement,
        named_pool: named_pool(lb),
        published: published(lb),
        former: former(lb),
        fresh,
    }
}

/// The pool that `spec.ipPool` names.
pub fn named_pool(lb: &LoadBalancer) -> Option<String> {
    lb.spec.ip_pool.clone().filter(|pool| !pool.is_empty())
}

/// The claim that the annotation says the LoadBalancer has or had: `POOL/ADDRESS`. Its tenant may
/// have written it: it is a wish, and the pool's rules decide.
pub fn former(lb: &LoadBalancer) -> Option<Claim> {
    let text = given(lb.metadata.annotations.as_ref(), ANNOTATION_ALLOCATED)?;
    let (pool, ip) = text.split_once('/')?;
    Some(Claim { pool: pool.to_owned(), ip: ip.parse().ok()? })
}

/// A claim as the annotation has it.
pub fn written(claim: &Claim) -> String {
    format!("{}/{}", claim.pool, claim.ip)
}

/// What a ledger is rebuilt from. `None`: not a LoadBalancer that takes from pools.
pub fn world_entry(lb: &LoadBalancer) -> Option<WorldEntry> {
    wants_pool(lb).then(|| WorldEntry {
        owner: owner(lb),
        created: created(lb),
        published: published(lb),
        deleting: is_leaving(lb),
    })
}

/// The object's identity.
pub fn owner(lb: &LoadBalancer) -> Owner {
    Owner { name: name(lb), uid: lb.metadata.uid.clone().unwrap_or_default() }
}

/// `namespace/name`.
pub fn name(lb: &LoadBalancer) -> String {
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    format!("{}/{}", part(&lb.metadata.namespace), part(&lb.metadata.name))
}

/// What the address must fit. Namespace and project are what the Namespace object says:
/// annotations cannot claim another, nor one where there is none.
pub fn requirement(lb: &LoadBalancer, around: &Surroundings) -> Requirement {
    let annotation = |key: &str| given(lb.metadata.annotations.as_ref(), key);
    let management = || annotation(ANNOTATION_MANAGEMENT_NETWORK).filter(|_| is_guest(lb));
    let of_vms = || around.vm_network.clone().filter(|_| is_guest(lb));
    let network = annotation(ANNOTATION_NETWORK).or_else(management).or_else(of_vms);
    let cluster = annotation(ANNOTATION_CLUSTER)
        .or_else(|| given(lb.metadata.labels.as_ref(), LABEL_CLUSTER));
    Requirement {
        network: cut(network.unwrap_or_default(), LONGEST_WORD),
        project: match &around.project {
            Project::In(project) => project.clone(),
            Project::Outside | Project::Unknown => String::new(),
        },
        namespace: lb.metadata.namespace.clone().unwrap_or_default(),
        cluster: cut(cluster.unwrap_or_default(), LONGEST_WORD),
    }
}

/// The guest cluster whose VMs say on which network it is, if nothing else does. Named by
/// annotation, as Harvester's webhook looks it up, else by label.
pub fn asks_vms_for_network(lb: &LoadBalancer) -> Option<String> {
    let annotations = lb.metadata.annotations.as_ref();
    let says = |key: &str| given(annotations, key).is_some();
    if !is_guest(lb) || says(ANNOTATION_NETWORK) || says(ANNOTATION_MANAGEMENT_NETWORK) {
        return None;
    }
    let annotated = given(annotations, ANNOTATION_CLUSTER).filter(|name| name != NAMELESS_CLUSTER);
    annotated.or_else(|| guest_cluster(lb))
}

/// The guest cluster that its cloud provider names. `kubernetes` is what one says that was not
/// told the name.
pub fn guest_cluster(lb: &LoadBalancer) -> Option<String> {
    let named = given(lb.metadata.labels.as_ref(), LABEL_CLUSTER)?;
    Some(named).filter(|name| is_guest(lb) && name != NAMELESS_CLUSTER)
}

fn given(map: Option<&BTreeMap<String, String>>, key: &str) -> Option<String> {
    map?.get(key).filter(|value| !value.is_empty()).cloned()
}

/// Whether a guest cluster is behind it.
pub fn is_guest(lb: &LoadBalancer) -> bool {
    lb.spec.workload_type.unwrap_or_default() == WorkloadType::Cluster
}

/// The claim that the object publishes.
pub fn published(lb: &LoadBalancer) -> Option<Claim> {
    let allocated = lb.status.as_ref()?.allocated_address.as_ref()?;
    let pool = allocated.ip_pool.clone().filter(|pool| !pool.is_empty())?;
    let ip = allocated.ip.as_deref().filter(|ip| *ip != DHCP_ADDRESS)?.parse().ok()?;
    Some(Claim { pool, ip })
}

/// The address that it publishes and that was leased for it. Who is not given one by a pool and
/// does not lease it itself has it from the host.
pub fn leased(lb: &LoadBalancer) -> Option<Ipv4Addr> {
    let allocated = lb.status.as_ref()?.allocated_address.as_ref()?;
    if wants_pool(lb) || allocated.ip_pool.as_ref().is_some_and(|pool| !pool.is_empty()) {
        return None;
    }
    allocated.ip.as_deref().filter(|ip| *ip != DHCP_ADDRESS)?.parse().ok()
}

/// Whether its status says that it is reached there.
pub fn is_announced_at(lb: &LoadBalancer, address: IpAddr) -> bool {
    let told = lb.status.as_ref().and_then(|status| status.address.as_deref());
    told.is_some_and(|told| told.parse() == Ok(address))
}

/// Whether it publishes an address, or that one is leased.
pub fn has_address(lb: &LoadBalancer) -> bool {
    let allocated = lb.status.as_ref().and_then(|status| status.allocated_address.as_ref());
    allocated.and_then(|a| a.ip.as_deref()).is_some_and(|ip| !ip.is_empty())
}

fn created(lb: &LoadBalancer) -> i64 {
    lb.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second())
}

/// Whether the spec takes its address from pools.
pub fn wants_pool(lb: &LoadBalancer) -> bool {
    lb.spec.ipam.unwrap_or_default() == Ipam::Pool
}

/// Whether the object is being deleted.
pub fn is_leaving(lb: &LoadBalancer) -> bool {
    lb.metadata.deletion_timestamp.is_some()
}

#[cfg(test)]
mod tests;
