//! From a LoadBalancer to the facts that decisions take.

use std::collections::BTreeMap;

use super::book::WorldEntry;
use super::pool_choice::Requirement;
use super::{Claim, LbFacts, Owner};
use crate::api::{
    ANNOTATION_CLUSTER, ANNOTATION_MANAGEMENT_NETWORK, ANNOTATION_NETWORK, ANNOTATION_PROJECT,
    DHCP_ADDRESS, Ipam, LABEL_CLUSTER, LoadBalancer, WorkloadType,
};

/// What the ledger must know. `project` is the one that the namespace object names; `fresh`
/// is whether the object was just read from the API server.
pub fn facts(lb: &LoadBalancer, project: Option<String>, fresh: bool) -> LbFacts {
    LbFacts {
        owner: owner(lb),
        created: created(lb),
        requirement: requirement(lb, project),
        named_pool: lb.spec.ip_pool.clone().filter(|pool| !pool.is_empty()),
        published: published(lb),
        fresh,
    }
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

/// What the address must fit. The namespace is the object's own, and the project is the
/// namespace's when it is in one: annotations cannot claim another.
fn requirement(lb: &LoadBalancer, project: Option<String>) -> Requirement {
    let given = |map: &Option<BTreeMap<String, String>>, key: &str| {
        map.as_ref()?.get(key).filter(|value| !value.is_empty()).cloned()
    };
    let annotation = |key: &str| given(&lb.metadata.annotations, key);
    let guest = lb.spec.workload_type.unwrap_or_default() == WorkloadType::Cluster;
    let management = || annotation(ANNOTATION_MANAGEMENT_NETWORK).filter(|_| guest);
    Requirement {
        network: annotation(ANNOTATION_NETWORK).or_else(management).unwrap_or_default(),
        project: project.or_else(|| annotation(ANNOTATION_PROJECT)).unwrap_or_default(),
        namespace: lb.metadata.namespace.clone().unwrap_or_default(),
        cluster: annotation(ANNOTATION_CLUSTER)
            .or_else(|| given(&lb.metadata.labels, LABEL_CLUSTER))
            .unwrap_or_default(),
        guest,
    }
}

/// The claim that the object publishes.
pub fn published(lb: &LoadBalancer) -> Option<Claim> {
    let allocated = lb.status.as_ref()?.allocated_address.as_ref()?;
    let pool = allocated.ip_pool.clone().filter(|pool| !pool.is_empty())?;
    let ip = allocated.ip.as_deref().filter(|ip| *ip != DHCP_ADDRESS)?.parse().ok()?;
    Some(Claim { pool, ip })
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
mod tests {
    use super::*;

    fn lb(annotations: &[(&str, &str)], guest: bool) -> LoadBalancer {
        let mut lb = LoadBalancer::default();
        lb.spec.workload_type = guest.then_some(WorkloadType::Cluster);
        lb.metadata.annotations =
            Some(annotations.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect());
        lb
    }

    /// A tenant writes annotations; the namespace object knows better.
    #[test]
    fn the_namespace_decides_on_the_project() {
        let lb = lb(&[(ANNOTATION_PROJECT, "local/theirs")], false);
        let project = |known: Option<&str>| requirement(&lb, known.map(Into::into)).project;
        assert_eq!(project(Some("local/ours")), "local/ours");
        assert_eq!(project(None), "local/theirs");
    }

    #[test]
    fn guests_fall_back_to_their_management_network() {
        let annotations = [(ANNOTATION_NETWORK, ""), (ANNOTATION_MANAGEMENT_NETWORK, "ns/mgmt")];
        let network = |guest| requirement(&lb(&annotations, guest), None).network;
        assert_eq!((network(true).as_str(), network(false).as_str()), ("ns/mgmt", ""));
    }
}
