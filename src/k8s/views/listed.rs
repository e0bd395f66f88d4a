//! Kinds of which the views have had a first list.

use std::time::Duration;

use super::{ENDPOINTS, Part, Views};

/// Interval between two looks at what was listed or refused.
const LOOK: Duration = Duration::from_millis(20);

/// Parts of the views, each with the read that it waits for.
const READS: [(Part, &str, &str); 17] = [
    (Part::LoadBalancers, "list", "loadbalancers"),
    (Part::Pools, "list", "ippools"),
    (Part::PoolSpecs, "get", "ippools"),
    (Part::Namespaces, "list", "namespaces"),
    (Part::Vms, "list", "virtualmachineinstances"),
    (Part::Machines, "list", "virtualmachines"),
    (Part::Pods, "list", "pods"),
    (Part::Nodes, "list", "nodes"),
    (Part::Services, "list", "services"),
    (Part::Addresses, "list", "services"),
    (Part::Slices, "list", "endpointslices"),
    (Part::Networks, "list", "network-attachment-definitions"),
    (Part::Records, "list", "dhcpleases"),
    (Part::Agents, "list", "leases"),
    (Part::ServiceNetworks, "list", "servicecidrs"),
    (Part::Management, "list", "configmaps"),
    (Part::HostLinks, "list", "hostnetworkconfigs"),
];

impl Views {
    /// Waits until networks were listed, at most for `patience`.
    pub async fn networks_listed(&self, patience: Duration) {
        let _ = tokio::time::timeout(patience, self.wait_for(Part::Networks as u32)).await;
    }

    /// Whether every kind that endpoints depend on was listed once.
    pub fn endpoints_synced(&self) -> bool {
        *self.synced.borrow() & ENDPOINTS == ENDPOINTS
    }

    /// Waits until every kind that endpoints depend on was listed once: for ever where KubeVirt is
    /// not installed.
    pub async fn wait_for_endpoints(&self) {
        self.wait_for(ENDPOINTS).await;
    }

    /// Waits, at most for `patience`, until every kind was listed once, or the read that it needs
    /// cannot succeed: `is_out_of_reach` says so for a verb and a resource. Returns the resources
    /// that are late.
    pub async fn listed_within_reach(
        &self,
        patience: Duration,
        is_out_of_reach: impl Fn(&str, &str) -> bool,
    ) -> Vec<&'static str> {
        let late = || -> Vec<&'static str> {
            let waits = |(part, verb, resource): &&(Part, &str, &str)| {
                let is_refused = is_out_of_reach(verb, resource)
                    // What was not listed is not read one by one.
                    || is_out_of_reach("list", resource);
                !self.is_listed(*part) && !is_refused
            };
            READS.iter().filter(waits).map(|(.., resource)| *resource).collect()
        };
        let listed = async {
            while !late().is_empty() {
                tokio::time::sleep(LOOK).await;
            }
        };
        let _ = tokio::time::timeout(patience, listed).await;
        late()
    }
}
