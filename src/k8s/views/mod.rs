//! What this process sees of the cluster, kept warm on every replica by informers.
//!
//! Views may be behind the server. Nothing is allocated from them: they say what to look at.
//! What this operator writes itself is put into them at once, so that the next decision does not
//! rest on what it has just changed.

mod early;
mod echoes;
mod host_links;
mod infrastructure;
mod leases;
mod load_balancers;
mod machines;
mod namespaces;
mod networks;
mod pools;
mod serving;
mod vms;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use kube::Client;
use kube_runtime::reflector::{ObjectRef, Store, store::Writer};
use tokio::sync::{mpsc, watch};

use self::early::Early;
use self::echoes::Echoes;
use self::machines::Removals;
use crate::api::{DHCPLease, LoadBalancer};
use crate::domain::Owner;
use crate::domain::dhcp_lease;
use crate::domain::load_balancer::facts::{self, Project, Surroundings};
use crate::domain::network::Attachment;
use crate::domain::network::Segment;
use crate::domain::network::host_links::{HostLinks, Link};
use crate::domain::reason::Wait;
use crate::domain::vm_backends::backend_address::NetworkRange;
use crate::domain::vm_backends::selector_index::{LabelIndex, LbKey};
use crate::domain::vm_backends::vm::{self, Pod, Topology, Vm};
use crate::metrics::Metrics;
pub use early::WritingSlice;
pub use echoes::Writing;
pub use infrastructure::InfrastructureAddresses;
pub use leases::{AgentNetwork, lb_of};
pub use serving::{Owned, OwnedSlice};

/// Something in the cluster that a leader must look at.
#[derive(Clone, Debug)]
pub enum Signal {
    /// A LoadBalancer was made or changed, or something that it depends on was.
    LoadBalancer(ObjectRef<LoadBalancer>),
    /// A LoadBalancer is gone.
    Gone(Owner),
    /// A pool was made or changed: its name and resourceVersion.
    Pool(String, String),
    /// A pool is gone.
    PoolGone(String),
    /// A network leads elsewhere than before, or is gone.
    Networks,
    /// A VM, by `namespace/name`, may not know where it runs.
    Moved(Box<str>),
}

/// A kind that is watched.
#[derive(Clone, Copy, Debug)]
enum Part {
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
    /// Addresses of all Services.
    Addresses = 2048,
    ServiceNetworks = 4096,
    Management = 8192,
    /// What each of the first list of pools wants.
    PoolSpecs = 16384,
    HostLinks = 32768,
}

/// What addresses depend on.
const ADDRESSES: u16 = Part::LoadBalancers as u16 | Part::Pools as u16 | Part::Namespaces as u16;
/// What endpoints of VMs depend on.
const ENDPOINTS: u16 = infrastructure::INFRASTRUCTURE
    | Part::Vms as u16
    | Part::Pods as u16
    | Part::Services as u16
    | Part::Slices as u16
    | Part::Networks as u16
    | Part::HostLinks as u16;
/// What leased addresses depend on, and what is in the way of one.
const LEASING: u16 = infrastructure::INFRASTRUCTURE
    | Part::Records as u16
    | Part::Agents as u16
    | Part::Networks as u16;

/// The views, and the ear of whoever leads.
#[derive(Clone)]
pub struct Views {
    /// Every LoadBalancer that can be read, without what decisions do not need.
    pub load_balancers: Store<LoadBalancer>,
    /// Every record of a leased address.
    pub records: Store<DHCPLease>,
    /// Services of vm load balancers, by name.
    pub services: Owned<crate::domain::vm_backends::service::Stored>,
    /// EndpointSlices of vm load balancers, by the LoadBalancer that owns them.
    pub slices: Owned<OwnedSlice>,
    projects: Arc<Mutex<HashMap<String, Project>>>,
    /// UID of the namespace kube-system.
    cluster: Arc<Mutex<Option<String>>>,
    /// The Leases of networks' agents, by name.
    agents: Arc<Mutex<HashMap<String, leases::Agent>>>,
    /// On which networks the host leases, beside what NetworkAttachmentDefinitions say.
    dhcp: Arc<dhcp_lease::Networks>,
    removals: Arc<Mutex<Removals>>,
    vms: Arc<Mutex<LabelIndex>>,
    /// Whether the cluster serves no VMs.
    no_vms: Arc<AtomicBool>,
    /// Addresses that belong to the cluster.
    pub infrastructure: InfrastructureAddresses,
    nodes: Arc<Mutex<HashMap<String, vms::KnownNode>>>,
    networks: Arc<Mutex<HashMap<String, networks::Network>>>,
    /// Links of nodes for VLANs.
    host_links: Arc<Mutex<HostLinks>>,
    /// What pools want, without their ledgers.
    pools: Arc<Mutex<HashMap<String, pools::KnownPool>>>,
    /// Since when a LoadBalancer's VMs are not what its slices say, as far as was seen.
    touched: Arc<Mutex<HashMap<LbKey, Instant>>>,
    /// LoadBalancers that this process writes, and wrote.
    echoes: Arc<Mutex<Echoes>>,
    /// UIDs of LoadBalancers that are there, and whether the view lacks entries that a write of one
    /// must carry.
    uids: Arc<Mutex<HashMap<String, bool>>>,
    /// EndpointSlices that this process writes.
    early: Arc<Mutex<Early>>,
    /// Unbounded, and in effect bounded by the number of objects: the leader's loops take
    /// from it faster than an API server can report.
    leader: Arc<Mutex<Option<mpsc::UnboundedSender<Signal>>>>,
    synced: watch::Receiver<u16>,
    /// Whether LoadBalancers cannot be listed because nobody converts what is stored.
    unconverted: Arc<AtomicBool>,
}

/// What every informer works with.
#[derive(Clone)]
struct Informer {
    client: Client,
    views: Views,
    metrics: Metrics,
    synced: Arc<watch::Sender<u16>>,
}

impl Informer {
    /// The first list of the kind is complete.
    fn done(&self, part: Part) {
        let is_news = self.synced.send_if_modified(|parts| {
            let before = *parts;
            *parts |= part as u16;
            *parts != before
        });
        if is_news && (LEASING | Part::Vms as u16) & part as u16 != 0 {
            self.views.tell_leased();
        }
    }
}

impl Views {
    /// Starts the informers. They run until the process ends. `namespace` is the operator's own, and
    /// `dhcp` what its options say of DHCP networks.
    pub fn start(
        client: &Client,
        namespace: &str,
        dhcp: dhcp_lease::Networks,
        metrics: &Metrics,
    ) -> Self {
        let writer = Writer::<LoadBalancer>::default();
        let records = Writer::<DHCPLease>::default();
        let (synced_tx, synced) = watch::channel(0);
        let views = Self {
            load_balancers: writer.as_reader(),
            records: records.as_reader(),
            services: Owned::default(),
            slices: Owned::default(),
            projects: Arc::default(),
            cluster: Arc::default(),
            agents: Arc::default(),
            dhcp: Arc::new(dhcp),
            removals: Arc::default(),
            vms: Arc::default(),
            no_vms: Arc::default(),
            infrastructure: InfrastructureAddresses::default(),
            nodes: Arc::default(),
            networks: Arc::default(),
            host_links: Arc::default(),
            pools: Arc::default(),
            touched: Arc::default(),
            echoes: Arc::default(),
            uids: Arc::default(),
            early: Arc::default(),
            leader: Arc::default(),
            synced,
            unconverted: Arc::default(),
        };
        let informer = Informer {
            client: client.clone(),
            views: views.clone(),
            metrics: metrics.clone(),
            synced: Arc::new(synced_tx),
        };
        tokio::spawn(load_balancers::watch(informer.clone(), writer));
        tokio::spawn(leases::watch_records(informer.clone(), records));
        tokio::spawn(leases::watch_agents(informer.clone(), namespace.to_owned()));
        tokio::spawn(pools::watch(informer.clone()));
        tokio::spawn(namespaces::watch(informer.clone()));
        tokio::spawn(machines::watch(informer.clone()));
        tokio::spawn(vms::watch_vms(informer.clone()));
        tokio::spawn(vms::watch_pods(informer.clone()));
        tokio::spawn(vms::watch_nodes(informer.clone()));
        tokio::spawn(serving::watch_services(informer.clone()));
        tokio::spawn(serving::watch_slices(informer.clone()));
        tokio::spawn(infrastructure::watch_services(informer.clone()));
        tokio::spawn(infrastructure::watch_service_networks(informer.clone()));
        tokio::spawn(infrastructure::watch_management(informer.clone(), namespace.to_owned()));
        tokio::spawn(host_links::watch(informer.clone()));
        tokio::spawn(networks::watch(informer));
        views
    }

    /// Signals from now on go here. The one who listened before hears no more.
    pub fn listen(&self) -> mpsc::UnboundedReceiver<Signal> {
        let (sender, receiver) = mpsc::unbounded_channel();
        lock(&self.touched).clear();
        lock(&self.echoes).clear();
        *lock(&self.leader) = Some(sender);
        receiver
    }

    /// Whether everything that addresses depend on was listed once.
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow() & ADDRESSES == ADDRESSES
    }

    /// Whether of each pool of the first list is known what it wants: before that, one more could
    /// be admitted that is in its way.
    pub fn pools_are_read(&self) -> bool {
        *self.synced.borrow() & Part::PoolSpecs as u16 != 0
    }

    /// Whether LoadBalancers cannot be listed because nobody converts what is stored: then others
    /// wait for this process, and not the other way round.
    pub fn await_conversion(&self) -> bool {
        !self.is_synced() && self.unconverted.load(Ordering::Relaxed)
    }

    /// Waits for that.
    pub async fn synced(&self) {
        self.wait_for(ADDRESSES).await;
    }

    /// Whether everything that endpoints depend on was listed once.
    pub fn endpoints_synced(&self) -> bool {
        *self.synced.borrow() & ENDPOINTS == ENDPOINTS
    }

    /// Waits for that: for ever, where KubeVirt is not installed.
    pub async fn wait_for_endpoints(&self) {
        self.wait_for(ENDPOINTS).await;
    }

    async fn wait_for(&self, all: u16) {
        let mut synced = self.synced.clone();
        // The sender lives as long as the informers, which live as long as the process.
        let _ = synced.wait_for(|parts| parts & all == all).await;
    }

    /// The Rancher project of a namespace.
    pub fn project_of(&self, namespace: &str) -> Project {
        lock(&self.projects).get(namespace).cloned().unwrap_or_default()
    }

    /// What decisions about a LoadBalancer's address take from elsewhere.
    pub fn around(&self, lb: &LoadBalancer) -> Surroundings {
        let namespace = lb.metadata.namespace.as_deref().unwrap_or_default();
        let vm_network = facts::asks_vms_for_network(lb)
            .and_then(|cluster| vm::cluster_network(&lock(&self.vms), namespace, &cluster));
        Surroundings { project: self.project_of(namespace), vm_network }
    }

    /// Why a LoadBalancer without address gets none: its guest cluster is being removed, as one of
    /// its VMs shows. Whoever has an address keeps it.
    pub fn removal_of(&self, lb: &LoadBalancer) -> Option<Wait> {
        let cluster = facts::guest_cluster(lb).filter(|_| !facts::has_address(lb))?;
        let namespace = lb.metadata.namespace.as_deref().unwrap_or_default();
        let vm = lock(&self.removals).of(namespace, &cluster)?;
        Some(Wait::ClusterRemoved { cluster, vm: format!("{namespace}/{vm}") })
    }

    /// Whether there is such a namespace. `None`: not known yet.
    pub fn has_namespace(&self, namespace: &str) -> Option<bool> {
        let found = lock(&self.projects).contains_key(namespace);
        (found || self.is_listed(Part::Namespaces)).then_some(found)
    }

    /// Something said of each VM that a LoadBalancer selects: its name, itself, its pods.
    pub fn of_members<T>(
        &self,
        namespace: &str,
        name: &str,
        say: impl FnMut((&Arc<str>, &Vm, &[Pod])) -> T,
    ) -> Vec<T> {
        lock(&self.vms).members(namespace, name).map(say).collect()
    }

    /// The addresses of type `InternalIP` of a node that exists.
    pub fn internal_addresses(&self, node: &str) -> Option<Vec<IpAddr>> {
        lock(&self.nodes).get(node).map(|node| node.internal_addresses.clone())
    }

    /// How nodes reach a network, by `namespace/name` of its NetworkAttachmentDefinition.
    pub fn attachment(&self, network: &str) -> Option<Attachment> {
        lock(&self.networks).get(network)?.attachment.clone()
    }

    /// Whether announcers on the nodes reach what is attached so.
    pub fn link(&self, attachment: &Attachment) -> Link {
        lock(&self.host_links).link(attachment)
    }

    /// The addresses of a network. `None`: they are not known.
    pub fn network_range(&self, network: &str) -> Option<NetworkRange> {
        lock(&self.networks).get(network)?.range
    }

    /// Whether there is such a network. `None`: not known yet.
    pub fn has_network(&self, network: &str) -> Option<bool> {
        let found = lock(&self.networks).contains_key(network);
        (found || self.is_listed(Part::Networks)).then_some(found)
    }

    /// The VLAN of a network; 0 for none.
    pub fn vlan_of(&self, network: &str) -> Option<u16> {
        Some(lock(&self.networks).get(network)?.vlan)
    }

    /// Where the addresses of a network are seen.
    pub fn segment(&self, network: &str) -> Segment {
        // Asked before the network is looked for: the list may come in between.
        let listed = self.is_listed(Part::Networks);
        Segment::of(network, self.attachment(network).as_ref(), listed)
    }

    /// Waits until networks were listed, but no longer than that.
    pub async fn networks_listed(&self, patience: Duration) {
        let _ = tokio::time::timeout(patience, self.wait_for(Part::Networks as u16)).await;
    }

    fn is_listed(&self, part: Part) -> bool {
        *self.synced.borrow() & part as u16 != 0
    }

    /// A VM, and where its node says that it is.
    pub fn whereabouts(&self, key: &str) -> Option<(Vm, Topology)> {
        let vm = lock(&self.vms).vm(key).cloned()?;
        let topology = lock(&self.nodes).get(&*vm.node)?.topology.clone();
        Some((vm, topology))
    }

    /// Whether a Service still asks for the address of the LoadBalancer, or may. Until that is
    /// gone, the address must not be given to anybody else.
    pub fn is_served(&self, owner: &Owner) -> bool {
        *self.synced.borrow() & Part::Services as u16 == 0
            || self
                .services
                .of(&owner.name)
                .any(|service| service.owners.iter().any(|reference| reference.uid == owner.uid))
    }

    /// Since when the LoadBalancer's VMs have been changing, if they have, until now.
    pub fn take_touched(&self, lb: &str) -> Option<Instant> {
        lock(&self.touched).remove(lb)
    }

    fn tell(&self, signal: Signal) {
        let mut leader = lock(&self.leader);
        if leader.as_ref().is_some_and(|l| l.send(signal).is_err()) {
            *leader = None;
        }
    }

    /// LoadBalancers by `namespace/name` must be looked at.
    pub fn tell_lbs(&self, lbs: impl IntoIterator<Item = impl AsRef<str>>) {
        for lb in lbs {
            if let Some((namespace, name)) = lb.as_ref().split_once('/') {
                self.tell(Signal::LoadBalancer(ObjectRef::new(name).within(namespace)));
            }
        }
    }

    /// LoadBalancers whose VMs report an address in one of these networks must be looked at.
    fn tell_reporting(&self, networks: &[IpNet]) {
        // Before all is listed nothing rests on it.
        if self.endpoints_synced() {
            let affected = lock(&self.vms).reporting(networks);
            self.tell_touched(affected);
        }
    }

    /// LoadBalancers whose VMs are on the network must be looked at.
    fn tell_on_network(&self, network: &str) {
        let affected = lock(&self.vms).on_network(network);
        self.tell_touched(affected);
    }

    /// The VMs of these LoadBalancers have changed.
    fn tell_touched(&self, lbs: Vec<LbKey>) {
        let now = Instant::now();
        let mut touched = lock(&self.touched);
        for lb in &lbs {
            touched.entry(lb.clone()).or_insert(now);
        }
        drop(touched);
        self.tell_lbs(lbs);
    }
}

/// A panic while a view is held would have ended the process.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
