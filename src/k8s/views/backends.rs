//! Facts from the views for the Service of a VM load balancer: the network on which the load
//! balancer's address is announced, and the VMs that the load balancer selects.

use std::net::IpAddr;

use kube::ResourceExt;

use super::{Views, lock};
use crate::api::LoadBalancer;
use crate::domain::load_balancer::facts;
use crate::domain::load_balancer::status::AddressOutcome;
use crate::domain::network::NetworkAttachment;
use crate::domain::network::host_links::NetworkReach;
use crate::domain::pools::allocator::ClaimResult;
use crate::domain::vm_backends::backend_address::AddressRules;
use crate::domain::vm_backends::endpoints::{self, VmBackend};

/// Network on which an address is announced.
#[derive(Clone, Debug)]
pub struct AnnouncePlace {
    /// `namespace/name` of the network; empty for the nodes' own network.
    pub network: String,
    /// Bridge and VLAN of the network. `None`: the network uses no bridge, or is not known.
    pub attachment: Option<NetworkAttachment>,
    /// Whether announcers reach the network by the nodes' VLAN links.
    pub link: NetworkReach,
}

impl Views {
    /// Network on which the address in `outcome` is announced: the network of the address's pool or
    /// lease. The result is `named`, the network that the LoadBalancer names, if `outcome` has no
    /// such network. For example, the global pool has none, because it serves every network.
    pub fn place(&self, named: &str, outcome: &AddressOutcome) -> AnnouncePlace {
        let network = match outcome {
            AddressOutcome::Pool(ClaimResult::Held { network: Some(network), .. }) => network,
            AddressOutcome::Host(Ok(lease)) => &lease.network,
            _ => named,
        };
        let attachment = self.attachment(network);
        let link = attachment.as_ref().map(|at| self.link(at)).unwrap_or_default();
        AnnouncePlace { network: network.to_owned(), attachment, link }
    }

    /// VMs that the LoadBalancer selects, each with its address and state as a backend. `wants` has
    /// the conditions that the address of a VM must meet. `own` is the LoadBalancer's address.
    /// `last` returns the last known address of a VM by the VM's UID.
    pub fn backends(
        &self,
        lb: &LoadBalancer,
        wants: &endpoints::WantedAddresses<'_>,
        own: Option<IpAddr>,
        last: impl Fn(&str) -> Option<IpAddr>,
    ) -> Vec<VmBackend> {
        let rules = AddressRules {
            own,
            reserved: &|address| lock(&self.index.infrastructure).why_reserved(address).cloned(),
            listed: &|address| facts::lists_backend(lb, address),
            range: &|network| self.network_range(network),
        };
        let (namespace, name) = (lb.namespace().unwrap_or_default(), lb.name_any());
        let vms = lock(&self.index.vms);
        vms.members(&namespace, &name)
            .map(|(name, vm, pods)| {
                endpoints::backend(name.clone(), vm, pods, wants, || last(&vm.uid), &rules)
            })
            .collect()
    }
}
