//! Addresses that the cluster itself uses, each with the object that reserves it. These are the
//! addresses of nodes and Services, the management address, and the networks of pods and Services.
//!
//! Invariant: an address is reserved as long as at least one object reserves it.
//!
//! A lookup costs one hash lookup for each prefix length in use, whatever the number of objects.
//! Few lengths are in use, because most entries are single addresses. So a prefix trie would save
//! nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use super::Segment;

/// Kind and name of the object that reserves an address of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reserved {
    /// Harvester's management address, from the ConfigMap with this `namespace/name`.
    Management(String),
    /// `status.addresses` of the Node with this name.
    Node(String),
    /// `spec.clusterIPs` of the Service with this `namespace/name`.
    ClusterIp(String),
    /// `status.loadBalancer.ingress` of the Service with this `namespace/name`. The Service names
    /// no LoadBalancer as its owner.
    Ingress(String),
    /// `status.loadBalancer.ingress` of the Service with this `namespace/name`. The Service names a
    /// LoadBalancer as its owner. This does not prove that the LoadBalancer owns the Service: every
    /// user who may write the Service can name any LoadBalancer there.
    OwnIngress(String),
    /// `spec.cidrs` of the ServiceCIDR with this name.
    ServiceNetwork(String),
    /// `spec.podCIDRs` of the Node with this name.
    PodNetwork(String),
}

impl Reserved {
    /// Whether pools hold back (do not give out) the addresses that the object reserves. `true`,
    /// with these exceptions:
    /// * cluster IPs, because their service network is held back as a whole;
    /// * the address of a LoadBalancer's own Service, because the address may be from a pool.
    pub fn is_held_back(&self) -> bool {
        !matches!(self, Self::ClusterIp(_) | Self::OwnIngress(_))
    }

    /// Whether pools on the segment hold back (do not give out) the addresses that the object
    /// reserves. Pools on a tagged VLAN give out addresses of the pod and service networks, because
    /// these networks are not on the VLAN.
    pub fn is_held_back_on(&self, segment: &Segment) -> bool {
        self.is_held_back() && !(self.is_network() && segment.is_tagged())
    }

    /// Whether the object reserves a whole network. Pools hold back its addresses, except pools on
    /// tagged VLANs.
    pub fn is_network(&self) -> bool {
        matches!(self, Self::ServiceNetwork(_) | Self::PodNetwork(_))
    }

    /// Whether the object reserves the ingress address of a Service. A tenant can choose such an
    /// address, even one that a VM or LoadBalancer already has. The VM or LoadBalancer may then
    /// keep it, so that the tenant cannot take it away.
    pub fn is_ingress(&self) -> bool {
        matches!(self, Self::Ingress(_) | Self::OwnIngress(_))
    }

    /// Whether the object reserves an address of a node. The management address counts, because a
    /// node has it.
    pub fn is_host(&self) -> bool {
        matches!(self, Self::Management(_) | Self::Node(_))
    }

    /// End of the sentence "the address is …", without the name of the object. Tenants read the
    /// text, and the object may be another tenant's.
    pub fn unnamed(&self) -> &'static str {
        match self {
            Self::Management(_) => "the cluster's management address",
            Self::Node(_) => "a node's own address",
            Self::ClusterIp(_) | Self::Ingress(_) | Self::OwnIngress(_) => {
                "the address of a Service"
            }
            Self::ServiceNetwork(_) => "in the cluster's service network",
            Self::PodNetwork(_) => "in the cluster's pod network",
        }
    }
}

impl fmt::Display for Reserved {
    /// Writes the end of the sentence "the address is …". The text names the object, so it is for
    /// admins and the log only. [`Reserved::unnamed`] is for tenants.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Management(map) => write!(f, "the management address (ConfigMap {map})"),
            Self::Node(node) => write!(f, "an address of Node {node}"),
            Self::ClusterIp(service) => write!(f, "the cluster IP of Service {service}"),
            Self::Ingress(service) | Self::OwnIngress(service) => {
                write!(f, "the load-balancer address of Service {service}")
            }
            Self::ServiceNetwork(cidr) => write!(f, "in the service network (ServiceCIDR {cidr})"),
            Self::PodNetwork(node) => write!(f, "in the pod network of Node {node}"),
        }
    }
}

/// Networks whose addresses pools hold back (do not give out), each with the object that reserves
/// the network. A single address is stored as a /32 or /128 network.
pub type HeldBack = BTreeMap<IpNet, Reserved>;

/// Every address that the cluster itself uses, with the objects that reserve it.
#[derive(Clone, Debug, Default)]
pub struct Infrastructure {
    /// Map from a network to the objects that reserve the network. A single address is stored as a
    /// /32 or /128 network.
    by_network: HashMap<IpNet, BTreeSet<Reserved>>,
    by_object: HashMap<Reserved, Vec<IpNet>>,
    /// Number of reservations for each address family (`true`: IPv6) and prefix length. A network
    /// that two objects reserve counts twice.
    lengths: BTreeMap<(bool, u8), usize>,
}

impl Infrastructure {
    /// Replaces the networks that an object reserves. `networks` is empty if the object was
    /// deleted. Returns the networks that were added or removed.
    pub fn set(
        &mut self,
        object: &Reserved,
        networks: impl IntoIterator<Item = IpNet>,
    ) -> Vec<IpNet> {
        let now: BTreeSet<IpNet> = networks.into_iter().map(|network| network.trunc()).collect();
        let before: BTreeSet<IpNet> = self.by_object.remove(object).into_iter().flatten().collect();
        for network in now.difference(&before) {
            self.by_network.entry(*network).or_default().insert(object.clone());
            *self.lengths.entry(length(*network)).or_default() += 1;
        }
        for network in before.difference(&now) {
            if let Some(objects) = self.by_network.get_mut(network) {
                objects.remove(object);
                if objects.is_empty() {
                    self.by_network.remove(network);
                }
            }
            if let Some(count) = self.lengths.get_mut(&length(*network)) {
                *count -= 1;
                if *count == 0 {
                    self.lengths.remove(&length(*network));
                }
            }
        }
        if !now.is_empty() {
            self.by_object.insert(object.clone(), now.iter().copied().collect());
        }
        now.difference(&before).chain(before.difference(&now)).copied().collect()
    }

    /// Networks whose addresses pools hold back (do not give out):
    /// * addresses of nodes, the management address, and ingress addresses of Services that no
    ///   LoadBalancer owns, each as a /32 or /128 network;
    /// * the networks of pods and Services. Pools on tagged VLANs do not hold them back
    ///   ([`Reserved::is_held_back_on`]).
    ///
    /// If several objects reserve a network, its value is the first in the order of [`Reserved`]
    /// for which [`Reserved::is_held_back`] is `true`.
    pub fn held_back(&self) -> HeldBack {
        let first = self.by_network.iter().filter_map(|(net, objects)| {
            Some((*net, objects.iter().find(|object| object.is_held_back())?.clone()))
        });
        first.collect()
    }

    /// Object that reserves an address. `None`: the address is not reserved. If several objects
    /// reserve the address, returns the first in the order of [`Self::reservations`].
    pub fn why_reserved(&self, address: IpAddr) -> Option<&Reserved> {
        self.reservations(address).next()
    }

    /// Objects that reserve the address. The objects are sorted by network, the smallest first,
    /// then in the order of [`Reserved`].
    pub fn reservations(&self, address: IpAddr) -> impl Iterator<Item = &Reserved> {
        let address = address.to_canonical();
        let family = (address.is_ipv6(), 0)..=(address.is_ipv6(), u8::MAX);
        let networks = self.lengths.range(family).rev().filter_map(move |((_, length), _)| {
            let network = IpNet::new(address, *length).ok()?.trunc();
            self.by_network.get(&network)
        });
        networks.flatten()
    }

    /// Whether the address is in `status.addresses` of a Node.
    pub fn is_node(&self, address: IpAddr) -> bool {
        self.reservations(address).any(|object| matches!(object, Reserved::Node(_)))
    }

    /// All objects that reserve addresses, each with the networks that it reserves, in any order.
    pub fn entries(&self) -> impl Iterator<Item = (&Reserved, &[IpNet])> {
        self.by_object.iter().map(|(object, networks)| (object, networks.as_slice()))
    }
}

fn length(network: IpNet) -> (bool, u8) {
    (network.addr().is_ipv6(), network.prefix_len())
}

#[cfg(test)]
mod tests;
