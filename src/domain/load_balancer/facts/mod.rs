//! Facts about a LoadBalancer, as decisions use them. They come from its stored object and from
//! other objects ([`LbSurroundings`]).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use super::bounds;
use crate::limits::text::{LONGEST_WORD, cut};
use crate::network::Segment;
use crate::pools::allocator::LoadBalancerEntry;
use crate::pools::selection::PoolRequirement;
use crate::reason;
use crate::{AnnouncedAddresses, Claim, LbFacts, Owner};
use api::{
    ANNOTATION_ALLOCATED, ANNOTATION_CLUSTER, ANNOTATION_MANAGEMENT_NETWORK, ANNOTATION_NETWORK,
    Condition, DHCP_ADDRESS, Ipam, LABEL_CLUSTER, LoadBalancer, NAMELESS_CLUSTER, READY,
    WorkloadType,
};

/// The Rancher project of a namespace, as its Namespace object names it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Project {
    /// The project is not known, because the watch of Namespaces has not shown this Namespace.
    #[default]
    Unknown,
    /// The namespace belongs to no project.
    Outside,
    /// The namespace belongs to this project, `cluster/project`.
    In(String),
}

/// Facts about a LoadBalancer that are read from other objects: its Namespace, its Service, and the
/// VMs of its guest cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LbSurroundings {
    /// Project of the LoadBalancer's namespace.
    pub project: Project,
    /// Network of the guest cluster's VMs, if these VMs determine the LoadBalancer's network.
    /// `None`: the VMs do not determine it, or the network of the VMs is not known.
    pub vm_network: Option<String>,
    /// Addresses of the LoadBalancer's own Service.
    pub service: AnnouncedAddresses,
}

/// Facts from which an address is allocated to the LoadBalancer. `segment` returns the segment of a
/// network; `fresh`: whether `lb` was just read from the API server.
pub fn facts(
    lb: &LoadBalancer,
    around: &LbSurroundings,
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
        service: around.service.clone(),
        fresh,
    }
}

/// Pool that `spec.ipPool` names. `None`: the field is unset or empty.
pub fn named_pool(lb: &LoadBalancer) -> Option<String> {
    lb.spec.ip_pool.clone().filter(|pool| !pool.is_empty())
}

/// Present or former claim from the annotation [`ANNOTATION_ALLOCATED`], whose value is
/// `POOL/ADDRESS`. `None`: there is no valid annotation. A tenant may have written the annotation.
/// So the claim is only a request, and the rules of the pool decide whether the LoadBalancer gets
/// the address.
pub fn former(lb: &LoadBalancer) -> Option<Claim> {
    let text = given(lb.metadata.annotations.as_ref(), ANNOTATION_ALLOCATED)?;
    let (pool, ip) = text.split_once('/')?;
    Some(Claim { pool: pool.to_owned(), ip: ip.parse().ok()? })
}

/// Value of the annotation [`ANNOTATION_ALLOCATED`] for this claim: `POOL/ADDRESS`. [`former`]
/// reads it.
pub fn written(claim: &Claim) -> String {
    format!("{}/{}", claim.pool, claim.ip)
}

/// Facts about the LoadBalancer that the merge of a stored pool uses. `None`: the LoadBalancer
/// takes no address from pools, and publishes no claim.
pub fn lb_entry(lb: &LoadBalancer) -> Option<LoadBalancerEntry> {
    let (asks, published) = (wants_pool(lb), published(lb));
    (asks || published.is_some()).then(|| LoadBalancerEntry {
        owner: owner(lb),
        created: created(lb),
        published,
        deleting: is_leaving(lb) || !asks,
    })
}

/// Name and UID of the LoadBalancer.
pub fn owner(lb: &LoadBalancer) -> Owner {
    Owner { name: name(lb), uid: lb.metadata.uid.clone().unwrap_or_default() }
}

/// `namespace/name` of the LoadBalancer.
pub fn name(lb: &LoadBalancer) -> String {
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    format!("{}/{}", part(&lb.metadata.namespace), part(&lb.metadata.name))
}

/// Map from the `namespace/name` of each LoadBalancer to its `status.address`. A value is `None` if
/// this field has no valid address.
pub fn addresses<'a>(
    lbs: impl IntoIterator<Item = &'a LoadBalancer>,
) -> BTreeMap<String, Option<IpAddr>> {
    let address = |lb: &LoadBalancer| lb.status.as_ref()?.address.as_deref()?.parse().ok();
    lbs.into_iter().map(|lb| (name(lb), address(lb))).collect()
}

/// Requirement that a pool must meet to give the LoadBalancer an address. The namespace is the
/// LoadBalancer's own, and the project comes from the Namespace object. So an annotation cannot
/// change the namespace or the project.
pub fn requirement(lb: &LoadBalancer, around: &LbSurroundings) -> PoolRequirement {
    let annotation = |key: &str| given(lb.metadata.annotations.as_ref(), key);
    let management = || annotation(ANNOTATION_MANAGEMENT_NETWORK).filter(|_| is_guest(lb));
    let of_vms = || around.vm_network.clone().filter(|_| is_guest(lb));
    let network = annotation(ANNOTATION_NETWORK).or_else(management).or_else(of_vms);
    let cluster = annotation(ANNOTATION_CLUSTER)
        .or_else(|| given(lb.metadata.labels.as_ref(), LABEL_CLUSTER));
    PoolRequirement {
        network: cut(network.unwrap_or_default(), LONGEST_WORD),
        project: match &around.project {
            Project::In(project) => project.clone(),
            Project::Outside | Project::Unknown => String::new(),
        },
        namespace: lb.metadata.namespace.clone().unwrap_or_default(),
        cluster: cut(cluster.unwrap_or_default(), LONGEST_WORD),
    }
}

/// Guest cluster whose VMs determine the LoadBalancer's network. The name of the guest cluster
/// comes from an annotation, as in Harvester's webhook, or else from a label. `None`: the
/// LoadBalancer is of type vm, an annotation names the network, or no guest cluster is named.
pub fn asks_vms_for_network(lb: &LoadBalancer) -> Option<String> {
    let annotations = lb.metadata.annotations.as_ref();
    let has = |key: &str| given(annotations, key).is_some();
    if !is_guest(lb) || has(ANNOTATION_NETWORK) || has(ANNOTATION_MANAGEMENT_NETWORK) {
        return None;
    }
    let annotated = given(annotations, ANNOTATION_CLUSTER).filter(|name| name != NAMELESS_CLUSTER);
    annotated.or_else(|| guest_cluster(lb))
}

/// Whether the choice of a pool for the LoadBalancer needs the network of its guest cluster's VMs.
/// `false` in these cases:
/// * the VMs do not determine the LoadBalancer's network;
/// * the LoadBalancer takes no address from pools, or names its pool;
/// * the status publishes a claim.
pub fn needs_vms_for_pool(lb: &LoadBalancer) -> bool {
    let is_undecided = wants_pool(lb) && named_pool(lb).is_none() && published(lb).is_none();
    is_undecided && asks_vms_for_network(lb).is_some()
}

/// Guest cluster that the guest's cloud provider names in a label of the LoadBalancer. `None`: the
/// LoadBalancer is of type vm, or the label names no guest cluster. The value `kubernetes` counts
/// as no name: cloud providers write it if no name of the guest cluster is configured.
pub fn guest_cluster(lb: &LoadBalancer) -> Option<String> {
    let named = given(lb.metadata.labels.as_ref(), LABEL_CLUSTER)?;
    Some(named).filter(|name| is_guest(lb) && name != NAMELESS_CLUSTER)
}

fn given(map: Option<&BTreeMap<String, String>>, key: &str) -> Option<String> {
    map?.get(key).filter(|value| !value.is_empty()).cloned()
}

/// Whether the LoadBalancer is of type cluster, that is, of a guest cluster.
pub fn is_guest(lb: &LoadBalancer) -> bool {
    lb.spec.workload_type.unwrap_or_default() == WorkloadType::Cluster
}

/// Claim that the LoadBalancer's status publishes. `None`: the status has no address, an invalid
/// one, or one that was leased by DHCP.
pub fn published(lb: &LoadBalancer) -> Option<Claim> {
    let allocated = lb.status.as_ref()?.allocated_address.as_ref()?;
    let pool = allocated.ip_pool.clone().filter(|pool| !pool.is_empty())?;
    let ip = allocated.ip.as_deref().filter(|ip| *ip != DHCP_ADDRESS)?.parse().ok()?;
    Some(Claim { pool, ip })
}

/// Whether the LoadBalancer may have a claim or a waiting request in a pool, according to its
/// status. `true` in these cases:
/// * the status publishes a claim;
/// * the status has no address, and the reason of `Ready` is one of [`reason::NoAddressReason`].
pub fn is_in_ledger(lb: &LoadBalancer) -> bool {
    let mut conditions = lb.status.iter().flat_map(|status| &status.conditions);
    let waits = conditions.any(|condition| {
        condition.type_ == READY && condition.reason.as_deref().is_some_and(reason::is_wait)
    });
    published(lb).is_some() || (waits && !has_address(lb))
}

/// Address that the host leased for the LoadBalancer, from the LoadBalancer's status. `None` in
/// these cases:
/// * `spec.ipam` is not `dhcp`;
/// * the status has no valid IPv4 address;
/// * the address is from a pool;
/// * the announcer leases the address.
pub fn leased(lb: &LoadBalancer) -> Option<Ipv4Addr> {
    let allocated = lb.status.as_ref()?.allocated_address.as_ref()?;
    if wants_pool(lb) || allocated.ip_pool.as_ref().is_some_and(|pool| !pool.is_empty()) {
        return None;
    }
    allocated_ip(lb).filter(|ip| *ip != DHCP_ADDRESS)?.parse().ok()
}

/// Whether `status.backendServers` of the LoadBalancer has this address. In a trimmed list, only
/// about the first 600 addresses are found ([`bounds::lists`]). Only the operator writes this list:
/// admission refuses the changes of other clients.
pub fn lists_backend(lb: &LoadBalancer, address: IpAddr) -> bool {
    let stored = lb.status.as_ref().and_then(|status| status.backend_servers.as_deref());
    bounds::lists(stored.unwrap_or_default(), &address.to_string())
}

/// Whether `status.allocatedAddress` has an address. `0.0.0.0` counts as an address. It means that
/// the announcer leases the real address by DHCP.
pub fn has_address(lb: &LoadBalancer) -> bool {
    allocated_ip(lb).is_some_and(|ip| !ip.is_empty())
}

/// Value of `status.allocatedAddress.ip`. `None`: the field is not set.
pub fn allocated_ip(lb: &LoadBalancer) -> Option<&str> {
    lb.status.as_ref()?.allocated_address.as_ref()?.ip.as_deref()
}

/// First condition `Ready` in the status. `None`: there is none.
pub fn ready(lb: &LoadBalancer) -> Option<&Condition> {
    lb.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == READY)
}

fn created(lb: &LoadBalancer) -> i64 {
    lb.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second())
}

/// Whether the LoadBalancer takes its address from pools. `false`: the address is leased by DHCP.
pub fn wants_pool(lb: &LoadBalancer) -> bool {
    lb.spec.ipam.unwrap_or_default() == Ipam::Pool
}

/// Whether the LoadBalancer is being deleted.
pub fn is_leaving(lb: &LoadBalancer) -> bool {
    lb.metadata.deletion_timestamp.is_some()
}

#[cfg(test)]
mod tests;
