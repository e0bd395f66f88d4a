//! The process's views of the cluster. Informers keep the views current on every replica.
//!
//! A view may be stale. So these rules hold:
//! * Views contain no ledger.
//! * A write to the API server carries the resourceVersion of the object that its decision was
//!   based on.
//! * A decision to withdraw or move the address of a LoadBalancer uses the LoadBalancer that the
//!   API server has now.
//! * The operator's own writes of Services and EndpointSlices are added to the views at once, so
//!   that the next decision includes them.
//!
//! The indexes are plain values without lock, channel or notifier. Their functions `apply`, `set`
//! and `remove` return what has changed. `Views` locks an index only for the change. Then `Views`
//! finds the LoadBalancers that the change concerns, if necessary by other indexes, and notifies
//! the leader. Exception: Services and EndpointSlices have a lock of their own, because reconciles
//! write into them as well.

mod backends;
mod guest_nodes;
mod host_links;
mod infrastructure;
mod leases;
mod listed;
mod load_balancers;
mod namespaces;
mod networks;
mod notifier;
mod obstacles;
mod pools;
mod services_and_slices;
mod vms;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use kube::Client;
use kube_runtime::reflector::Store;
use tokio::sync::watch;

use self::guest_nodes::GuestRemovals;
use self::notifier::ChangeNotifier;
use crate::api::{DHCPLease, LoadBalancer};
use crate::domain::dhcp_lease;
use crate::domain::load_balancer::facts::{self, LbSurroundings, Project};
use crate::domain::network::NetworkAttachment;
use crate::domain::network::Segment;
use crate::domain::network::host_links::{HostLinks, NetworkReach};
use crate::domain::network::infrastructure::Infrastructure;
use crate::domain::reason::NoAddressReason;
use crate::domain::vm_backends::backend_address::NetworkRange;
use crate::domain::vm_backends::endpoint_slices::{AnnouncingNode, StoredSlice};
use crate::domain::vm_backends::guest_network;
use crate::domain::vm_backends::selector_index::{LabelIndex, LbKey};
use crate::domain::vm_backends::service::StoredService;
use crate::domain::vm_backends::vm::{Topology, Vm};
use crate::domain::{AnnouncedAddresses, Owner};
use crate::k8s::store::StoreWriter;
use crate::k8s::trimmed::LbTrimming;
use crate::locks::lock;
use crate::metrics::Metrics;
pub use leases::{AgentNetwork, lb_of};
pub use notifier::{ChangeEvent, ChangeSubscription};
pub use services_and_slices::OwnedObjects;

/// A part of the views that is listed and watched by itself. The value is one bit, so that a `u32`
/// can hold a set of parts.
#[derive(Clone, Copy, Debug)]
enum ViewPart {
    LoadBalancers = 1,
    Pools = 2,
    Namespaces = 4,
    Vms = 8,
    Pods = 16,
    Nodes = 32,
    Services = 64,
    Slices = 128,
    Networks = 256,
    Records = 512,
    Agents = 1024,
    /// Addresses of all Services. [`Self::Services`] has only the Services of vm LoadBalancers.
    Addresses = 2048,
    ServiceNetworks = 4096,
    Management = 8192,
    /// Specs of the pools in the first list of IPPools. The list has only metadata, and the specs
    /// are read one pool at a time.
    PoolSpecs = 16384,
    HostLinks = 32768,
    /// VirtualMachines that are nodes of guest clusters. An annotation of such a VM may say that
    /// its cluster is being removed.
    Machines = 65536,
}

/// Kinds that the allocation of addresses depends on.
const ADDRESSES: u32 =
    ViewPart::LoadBalancers as u32 | ViewPart::Pools as u32 | ViewPart::Namespaces as u32;
/// Kinds that the endpoints of VMs depend on.
const ENDPOINTS: u32 = infrastructure::INFRASTRUCTURE
    | ViewPart::Vms as u32
    | ViewPart::Pods as u32
    | ViewPart::Services as u32
    | ViewPart::Slices as u32
    | ViewPart::Networks as u32
    | ViewPart::HostLinks as u32;
/// Kinds that decisions about leased addresses depend on. They include the kinds of
/// `INFRASTRUCTURE`, because the cluster itself may use the address of a lease.
const LEASING: u32 = infrastructure::INFRASTRUCTURE
    | ViewPart::Records as u32
    | ViewPart::Agents as u32
    | ViewPart::Networks as u32;

/// The views, and the leader's handler of changes.
#[derive(Clone)]
pub struct Views {
    /// All LoadBalancers that can be read, without the fields that decisions do not use.
    pub load_balancers: Store<LoadBalancer>,
    /// All DHCPLeases that can be read: the records of leased addresses.
    pub records: Store<DHCPLease>,
    /// Services of vm LoadBalancers, by the LoadBalancer that they serve.
    pub services: OwnedObjects<StoredService>,
    /// EndpointSlices of vm LoadBalancers, by the LoadBalancer that owns them.
    pub slices: OwnedObjects<Arc<StoredSlice>>,
    /// Networks that the operator's options declare for DHCP. Annotations of
    /// NetworkAttachmentDefinitions may declare further networks.
    dhcp: Arc<dhcp_lease::DhcpNetworks>,
    index: Arc<ViewIndexes>,
    notifier: ChangeNotifier,
    /// Set of the parts that were listed at least once.
    synced: watch::Sender<u32>,
}

/// Facts from the observed objects, with an index for each kind of object.
#[derive(Default)]
struct ViewIndexes {
    projects: Mutex<HashMap<String, Project>>,
    /// UID of the namespace kube-system.
    cluster: Mutex<Option<String>>,
    agents: Mutex<leases::AgentIndex>,
    removals: Mutex<GuestRemovals>,
    vms: Mutex<LabelIndex>,
    /// Whether the list of VirtualMachineInstances was refused because the cluster does not serve
    /// them.
    no_vms: AtomicBool,
    /// Whether the operator has no right to list VirtualMachineInstances, as the last refusal of
    /// this list said. A refusal before [`Views::is_synced`] is true does not count. The value does
    /// not matter after the first complete list.
    vms_forbidden: AtomicBool,
    nodes: Mutex<HashMap<String, vms::KnownNode>>,
    /// Addresses that the cluster itself uses.
    infrastructure: Mutex<Infrastructure>,
    /// Facts of all networks, by the `namespace/name` of the network.
    networks: Mutex<HashMap<String, networks::NetworkFacts>>,
    /// VLAN links of nodes, from HostNetworkConfigs.
    host_links: Mutex<HostLinks>,
    pools: Mutex<pools::PoolIndex>,
    /// LoadBalancers whose EndpointSlices may be out of date. The value of an entry is the time
    /// since when this is so. A change of a selected VM, or of facts about this VM's addresses,
    /// adds an entry. [`Views::take_touched`] removes the entry.
    touched: Mutex<HashMap<LbKey, Instant>>,
    /// UIDs of all existing LoadBalancers, each with the differences between the stored
    /// LoadBalancer and the view's copy.
    uids: Mutex<HashMap<String, LbTrimming>>,
    /// UIDs of the LoadBalancers that cannot be read and are not in the view, by `namespace/name`.
    unreadable_lbs: Mutex<HashMap<String, String>>,
    /// Whether the last refusal of a list of LoadBalancers said that no conversion webhook answers.
    unconverted: AtomicBool,
}

/// Inputs that all informers of the views share.
#[derive(Clone)]
struct InformerContext {
    client: Client,
    views: Views,
    metrics: Metrics,
}

impl InformerContext {
    /// Records that the first list of `part` is complete. A later call for the same part has no
    /// effect. Enqueues the LoadBalancers whose decisions may have waited for the list:
    /// * LoadBalancers that may have a leased address, if `part` is in [`LEASING`] or is
    ///   [`ViewPart::Vms`].
    /// * LoadBalancers that take an address from a pool and whose network the VMs determine, if
    ///   `part` is [`ViewPart::Vms`].
    fn done(&self, part: ViewPart) {
        let is_news = self.views.synced.send_if_modified(|parts| {
            let before = *parts;
            *parts |= part as u32;
            *parts != before
        });
        if is_news && (LEASING | ViewPart::Vms as u32) & part as u32 != 0 {
            self.views.enqueue_leased_lbs();
        }
        if is_news && matches!(part, ViewPart::Vms) {
            self.views.enqueue_pool_lbs_asking_vms();
        }
    }
}

impl Views {
    /// Views without objects, and the writers of the stores of LoadBalancers and of DHCPLeases.
    fn new(
        dhcp: dhcp_lease::DhcpNetworks,
    ) -> (Self, StoreWriter<LoadBalancer>, StoreWriter<DHCPLease>) {
        let load_balancers = StoreWriter::<LoadBalancer>::default();
        let records = StoreWriter::<DHCPLease>::default();
        let views = Self {
            load_balancers: load_balancers.reader(),
            records: records.reader(),
            services: OwnedObjects::default(),
            slices: OwnedObjects::default(),
            dhcp: Arc::new(dhcp),
            index: Arc::default(),
            notifier: ChangeNotifier::default(),
            synced: watch::Sender::new(0),
        };
        (views, load_balancers, records)
    }

    /// Starts the informers, and returns the views that they fill. The informers run until the
    /// process ends. `namespace` is the operator's own namespace, and `dhcp` has the operator's
    /// options about DHCP networks.
    pub fn start(
        client: &Client,
        namespace: &str,
        dhcp: dhcp_lease::DhcpNetworks,
        metrics: &Metrics,
    ) -> Self {
        let (views, load_balancers, records) = Self::new(dhcp);
        let informer = InformerContext {
            client: client.clone(),
            views: views.clone(),
            metrics: metrics.clone(),
        };
        tokio::spawn(load_balancers::watch(informer.clone(), load_balancers));
        tokio::spawn(leases::watch_records(informer.clone(), records));
        tokio::spawn(leases::watch_agents(informer.clone(), namespace.to_owned()));
        tokio::spawn(pools::watch(informer.clone()));
        tokio::spawn(namespaces::watch(informer.clone()));
        tokio::spawn(guest_nodes::watch(informer.clone()));
        tokio::spawn(vms::watch_vms(informer.clone()));
        tokio::spawn(vms::watch_pods(informer.clone()));
        tokio::spawn(vms::watch_nodes(informer.clone()));
        tokio::spawn(services_and_slices::watch_services(informer.clone()));
        tokio::spawn(services_and_slices::watch_slices(informer.clone()));
        tokio::spawn(infrastructure::watch_services(informer.clone()));
        tokio::spawn(infrastructure::watch_service_networks(informer.clone()));
        tokio::spawn(infrastructure::watch_management(informer.clone(), namespace.to_owned()));
        tokio::spawn(host_links::watch(informer.clone()));
        tokio::spawn(networks::watch(informer));
        views
    }

    /// Whether the first lists are complete for all kinds that the allocation of addresses depends
    /// on.
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow() & ADDRESSES == ADDRESSES
    }

    /// Whether the specs of all pools in the first list of pools were read. Until then, admission
    /// could accept a pool in conflict with a pool whose spec is not known.
    pub fn pools_are_read(&self) -> bool {
        self.is_listed(ViewPart::PoolSpecs)
    }

    /// Whether the first list of LoadBalancers waits for a conversion webhook: the list is not
    /// complete, and its last refusal says that no conversion webhook answers. Then this process
    /// must serve its own conversion webhook before the list can be complete.
    pub fn await_conversion(&self) -> bool {
        !self.is_listed(ViewPart::LoadBalancers) && self.index.unconverted.load(Ordering::Relaxed)
    }

    /// Waits until the first lists are complete for all kinds that the allocation of addresses
    /// depends on.
    pub async fn synced(&self) {
        self.wait_for(ADDRESSES).await;
    }

    async fn wait_for(&self, all: u32) {
        // The wait cannot fail: the sender exists as long as `self`.
        let _ = self.synced.subscribe().wait_for(|parts| parts & all == all).await;
    }

    /// Rancher project of a namespace. [`Project::Unknown`]: the view does not have the namespace.
    pub fn project_of(&self, namespace: &str) -> Project {
        lock(&self.index.projects).get(namespace).cloned().unwrap_or_default()
    }

    /// Facts from other objects that a LoadBalancer's address depends on:
    /// * the project of its namespace
    /// * the network of its guest cluster's VMs, unless the LoadBalancer itself names a network
    /// * the addresses of its Service
    pub fn around(&self, lb: &LoadBalancer) -> LbSurroundings {
        let namespace = lb.metadata.namespace.as_deref().unwrap_or_default();
        let vm_network = facts::asks_vms_for_network(lb).and_then(|cluster| {
            guest_network::cluster_network(&lock(&self.index.vms), namespace, &cluster)
        });
        let service = self.service_addresses(lb);
        LbSurroundings { project: self.project_of(namespace), vm_network, service }
    }

    /// Addresses of the Service that the LoadBalancer owns. [`AnnouncedAddresses::Unknown`]: the
    /// LoadBalancer is of type vm, and Services were not listed yet. For a guest load balancer, the
    /// result is always what the view has at present. Such a LoadBalancer owns a Service only if
    /// its type was vm before.
    pub fn service_addresses(&self, lb: &LoadBalancer) -> AnnouncedAddresses {
        if !facts::is_guest(lb) && !self.is_listed(ViewPart::Services) {
            return AnnouncedAddresses::Unknown;
        }
        let own = self.service_of(&facts::owner(lb));
        AnnouncedAddresses::Known(own.map(|own| own.addresses().collect()).unwrap_or_default())
    }

    /// Service that the LoadBalancer `owner` owns. `None`: the view does not have such a Service.
    fn service_of(&self, owner: &Owner) -> Option<StoredService> {
        let mut services = self.services.of(&owner.name);
        services.find(|service| service.owners.iter().any(|reference| reference.uid == owner.uid))
    }

    /// Reason why a LoadBalancer gets no address: its guest cluster is being removed, as an
    /// annotation of a VM of this cluster says. `None`: no annotation says so, or the LoadBalancer
    /// has an address, which it keeps.
    pub fn removal_of(&self, lb: &LoadBalancer) -> Option<NoAddressReason> {
        let cluster = facts::guest_cluster(lb).filter(|_| !facts::has_address(lb))?;
        let namespace = lb.metadata.namespace.as_deref().unwrap_or_default();
        let vm = lock(&self.index.removals).of(namespace, &cluster)?;
        Some(NoAddressReason::ClusterRemoved { cluster, vm: format!("{namespace}/{vm}") })
    }

    /// Whether the namespace exists. `None`: the view does not have the namespace, and namespaces
    /// were not listed yet.
    pub fn has_namespace(&self, namespace: &str) -> Option<bool> {
        let found = lock(&self.index.projects).contains_key(namespace);
        (found || self.is_listed(ViewPart::Namespaces)).then_some(found)
    }

    /// Node that announces the Service. `None`: kube-vip has not named the node, or the view does
    /// not have the node.
    pub fn announcing_node(&self, service: &StoredService) -> Option<AnnouncingNode> {
        let name = service.announcing_node()?;
        let addresses = lock(&self.index.nodes).get(name)?.internal_addresses.clone();
        Some(AnnouncingNode { name: name.into(), addresses })
    }

    /// Bridge and VLAN by which nodes reach the network `network`, which is the `namespace/name` of
    /// a NetworkAttachmentDefinition. `None`: the network uses no bridge of the nodes, or the view
    /// does not have the network.
    pub fn attachment(&self, network: &str) -> Option<NetworkAttachment> {
        lock(&self.index.networks).get(network)?.attachment.clone()
    }

    /// Whether announcers reach a network by the nodes' VLAN links. `attachment` is the bridge and
    /// the VLAN of this network.
    pub fn link(&self, attachment: &NetworkAttachment) -> NetworkReach {
        lock(&self.index.host_links).link(attachment)
    }

    /// Address range of the network `network`, which is a `namespace/name`. `None`: the range is
    /// not known.
    pub fn network_range(&self, network: &str) -> Option<NetworkRange> {
        lock(&self.index.networks).get(network)?.range
    }

    /// Whether the network exists. `None`: the view does not have the network, and networks were
    /// not listed yet.
    pub fn has_network(&self, network: &str) -> Option<bool> {
        let found = lock(&self.index.networks).get(network).is_some();
        (found || self.is_listed(ViewPart::Networks)).then_some(found)
    }

    /// VLAN of a network; 0 for no VLAN. `None`: the view does not have the network.
    pub fn vlan_of(&self, network: &str) -> Option<u16> {
        Some(lock(&self.index.networks).get(network)?.vlan)
    }

    /// Segment where the addresses of the network `network`, which is a `namespace/name`, are
    /// announced.
    pub fn segment(&self, network: &str) -> Segment {
        // The order matters: if `listed` is true, the list was complete before the network is read
        // below.
        let listed = self.is_listed(ViewPart::Networks);
        Segment::of(network, self.attachment(network).as_ref(), listed)
    }

    fn is_listed(&self, part: ViewPart) -> bool {
        *self.synced.borrow() & part as u32 != 0
    }

    /// A VM, and the topology (region and zone) of its node. `key` is the VM's `namespace/name`.
    /// `None`: the VM or its node is not in the view.
    pub fn whereabouts(&self, key: &str) -> Option<(Vm, Topology)> {
        let vm = lock(&self.index.vms).vm(key).cloned()?;
        let topology = lock(&self.index.nodes).get(&*vm.node)?.topology.clone();
        Some((vm, topology))
    }

    /// Whether the view has a Service that the LoadBalancer `owner` owns. True before Services are
    /// listed, because there may be such a Service. Until the Service is gone, no other
    /// LoadBalancer may get the address of `owner`.
    pub fn is_served(&self, owner: &Owner) -> bool {
        !self.is_listed(ViewPart::Services) || self.service_of(owner).is_some()
    }

    /// Returns the time since when the EndpointSlices of the LoadBalancer `lb`, a `namespace/name`,
    /// may be out of date, and removes this time from the index. `None`: no time is recorded.
    pub fn take_touched(&self, lb: &str) -> Option<Instant> {
        lock(&self.index.touched).remove(lb)
    }
}

#[cfg(test)]
mod tests;
