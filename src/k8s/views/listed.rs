//! Checks whether the first lists of the views' kinds are complete, and waits for these lists.

use std::time::Duration;

use super::{ENDPOINTS, ViewPart, Views};

/// Interval at which [`Views::listed_within_reach`] checks again which parts were not listed.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// All parts of the views. Field 0: the part. Fields 1 and 2: verb and resource of the read that
/// fills the part.
const READS: [(ViewPart, &str, &str); 17] = [
    (ViewPart::LoadBalancers, "list", "loadbalancers"),
    (ViewPart::Pools, "list", "ippools"),
    (ViewPart::PoolSpecs, "get", "ippools"),
    (ViewPart::Namespaces, "list", "namespaces"),
    (ViewPart::Vms, "list", "virtualmachineinstances"),
    (ViewPart::Machines, "list", "virtualmachines"),
    (ViewPart::Pods, "list", "pods"),
    (ViewPart::Nodes, "list", "nodes"),
    (ViewPart::Services, "list", "services"),
    (ViewPart::Addresses, "list", "services"),
    (ViewPart::Slices, "list", "endpointslices"),
    (ViewPart::Networks, "list", "network-attachment-definitions"),
    (ViewPart::Records, "list", "dhcpleases"),
    (ViewPart::Agents, "list", "leases"),
    (ViewPart::ServiceNetworks, "list", "servicecidrs"),
    (ViewPart::Management, "list", "configmaps"),
    (ViewPart::HostLinks, "list", "hostnetworkconfigs"),
];

impl Views {
    /// Waits until NetworkAttachmentDefinitions were listed, but at most for the time `patience`.
    pub async fn networks_listed(&self, patience: Duration) {
        let _ = tokio::time::timeout(patience, self.wait_for(ViewPart::Networks as u32)).await;
    }

    /// Whether the first lists are complete for all kinds that the endpoints of vm LoadBalancers
    /// depend on.
    pub fn endpoints_synced(&self) -> bool {
        *self.synced.borrow() & ENDPOINTS == ENDPOINTS
    }

    /// Waits until the first lists are complete for all kinds that the endpoints of vm
    /// LoadBalancers depend on. The wait has no end where KubeVirt is not installed.
    pub async fn wait_for_endpoints(&self) {
        self.wait_for(ENDPOINTS).await;
    }

    /// Waits until the parts of the views were listed, but at most for the time `patience`. Returns
    /// the resources of the parts that were not listed in time. Leaves out a part whose read can
    /// never succeed. `is_out_of_reach`: whether the read of a resource (second argument) by a verb
    /// (first argument) can never succeed.
    pub async fn listed_within_reach(
        &self,
        patience: Duration,
        is_out_of_reach: impl Fn(&str, &str) -> bool,
    ) -> Vec<&'static str> {
        let late = || -> Vec<&'static str> {
            let waits = |(part, verb, resource): &&(ViewPart, &str, &str)| {
                let is_refused = is_out_of_reach(verb, resource)
                    // If the objects of a kind cannot be listed, none of them is read by name.
                    || is_out_of_reach("list", resource);
                !self.is_listed(*part) && !is_refused
            };
            READS.iter().filter(waits).map(|(.., resource)| *resource).collect()
        };
        let listed = async {
            while !late().is_empty() {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        let _ = tokio::time::timeout(patience, listed).await;
        late()
    }
}
