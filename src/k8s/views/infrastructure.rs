//! The view of addresses that belong to the cluster: nodes and their pod networks (told by the view
//! of nodes), Services, ServiceCIDRs and Harvester's management address.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use ipnet::IpNet;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::{Api, Resource, ResourceExt};
use kube_runtime::watcher::{Config, Event};

use super::{Informer, Part, Signal, Views, lock};
use crate::api::GROUP;
use crate::api::kubevirt::ServiceAddresses;
use crate::domain::network::infrastructure::{HeldBack, Infrastructure, Reserved};
use crate::k8s::informer;
use crate::k8s::trimmed::PAGE;

/// The ConfigMap in which Harvester keeps its management address, beside its own Deployment.
const MANAGEMENT: &str = "vip";
/// Its keys that hold an address.
const MANAGEMENT_KEYS: [&str; 2] = ["ip", "loadBalancerIP"];

/// Addresses that belong to the cluster, as far as they have been seen. Clones share them.
#[derive(Clone, Default)]
pub struct InfrastructureAddresses(Arc<Mutex<Infrastructure>>);

impl InfrastructureAddresses {
    /// The object that an address belongs to. `None`: to none that has been seen.
    pub fn why_reserved(&self, address: IpAddr) -> Option<Reserved> {
        lock(&self.0).why_reserved(address).cloned()
    }

    /// Every object that has an address.
    pub fn reservations(&self, address: IpAddr) -> Vec<Reserved> {
        lock(&self.0).reservations(address).cloned().collect()
    }

    /// Whether an address is a node's own.
    pub fn is_node(&self, address: IpAddr) -> bool {
        lock(&self.0).is_node(address)
    }

    /// A copy of everything that is reserved: objects and the networks that each claims. Single
    /// addresses are networks of one.
    pub fn snapshot(&self) -> Infrastructure {
        lock(&self.0).clone()
    }

    /// Networks of which no pool gives out an address, and what each is.
    pub fn held_back(&self) -> HeldBack {
        lock(&self.0).held_back()
    }

    /// Takes in what an object claims now. Returns what it has begun or ceased to claim.
    pub(super) fn set(&self, object: &Reserved, networks: Vec<IpNet>) -> Vec<IpNet> {
        lock(&self.0).set(object, networks)
    }

    /// Objects of a kind that a list did not show.
    fn unlisted(&self, is_gone: impl Fn(&Reserved) -> bool) -> Vec<Reserved> {
        let all = lock(&self.0);
        all.entries().map(|(object, _)| object).filter(|object| is_gone(object)).cloned().collect()
    }
}

impl Views {
    /// An object claims these networks from now on, and no others. Whoever depends on one that
    /// changed is told.
    pub(super) fn reserve(&self, object: &Reserved, networks: Vec<IpNet>) {
        let changed = self.infrastructure.set(object, networks);
        if changed.is_empty() {
            return;
        }
        self.tell_reporting(&changed);
        self.tell_leased_in(&changed);
        if object.is_held_back() {
            self.tell(Signal::Networks);
        }
    }

    /// Whether everything in [`Self::infrastructure`] was listed once.
    pub fn infrastructure_listed(&self) -> bool {
        *self.synced.borrow() & INFRASTRUCTURE == INFRASTRUCTURE
    }

    /// Waits for that.
    pub async fn wait_for_infrastructure(&self) {
        self.wait_for(INFRASTRUCTURE).await;
    }
}

/// The parts that reserve addresses.
pub(super) const INFRASTRUCTURE: u16 = Part::Nodes as u16
    | Part::Addresses as u16
    | Part::ServiceNetworks as u16
    | Part::Management as u16;

/// All Services, for their addresses alone.
pub(super) async fn watch_services(at: Informer) {
    let Informer { client, views, .. } = at.clone();
    let mut listed: HashSet<String> = HashSet::new();
    let set = |service: &ServiceAddresses| {
        for (object, networks) in claims(service) {
            views.reserve(&object, networks);
        }
    };
    let api = Api::<ServiceAddresses>::all(client);
    let config = Config::default().page_size(PAGE);
    informer::run(api, config, "Service", &at.metrics, |event| match event {
        Event::Init => listed.clear(),
        Event::InitApply(service) => {
            listed.insert(key(&service));
            set(&service);
        }
        Event::InitDone => {
            let is_gone = |object: &Reserved| match object {
                Reserved::ClusterIp(name)
                | Reserved::Ingress(name)
                | Reserved::OwnIngress(name) => !listed.contains(name),
                _ => false,
            };
            for gone in views.infrastructure.unlisted(is_gone) {
                views.reserve(&gone, Vec::new());
            }
            listed = HashSet::new();
            at.done(Part::Addresses);
        }
        Event::Apply(service) => set(&service),
        Event::Delete(service) => {
            for (object, _) in claims(&service) {
                views.reserve(&object, Vec::new());
            }
        }
    })
    .await;
}

/// What a Service claims, and what it does not: one of the two kinds of ingress is always empty.
fn claims(service: &ServiceAddresses) -> [(Reserved, Vec<IpNet>); 3] {
    let name = key(service);
    let ingress = service.status.load_balancer.ingress.iter().flatten();
    let ingress = single(ingress.filter_map(|ingress| ingress.ip.as_deref()));
    let (own, others) = if is_own(service) { (ingress, Vec::new()) } else { (Vec::new(), ingress) };
    let cluster_ips = service.spec.cluster_ips.iter().flatten().map(String::as_str);
    [
        (Reserved::ClusterIp(name.clone()), single(cluster_ips)),
        (Reserved::Ingress(name.clone()), others),
        (Reserved::OwnIngress(name), own),
    ]
}

/// Whether a Service names a LoadBalancer as its owner.
fn is_own(service: &ServiceAddresses) -> bool {
    let owners = service.meta().owner_references.as_deref().unwrap_or_default();
    owners.iter().any(|o| o.kind == "LoadBalancer" && o.api_version.starts_with(GROUP))
}

/// Networks from which Services get their addresses. A cluster before Kubernetes 1.33 does not serve
/// them: there each Service's own address is all that is known.
pub(super) async fn watch_service_networks(at: Informer) {
    let Informer { client, views, .. } = at.clone();
    let mut listed: HashSet<String> = HashSet::new();
    let set = |cidr: &ServiceCIDR| {
        let cidrs = cidr.spec.as_ref().and_then(|spec| spec.cidrs.as_deref()).unwrap_or_default();
        let networks = cidrs.iter().filter_map(|text| text.parse().ok()).collect();
        views.reserve(&Reserved::ServiceNetwork(cidr.name_any()), networks);
    };
    let on_event = |event| match event {
        Event::Init => listed.clear(),
        Event::InitApply(cidr) => {
            set(&cidr);
            listed.insert(cidr.name_any());
        }
        Event::InitDone => {
            let is_gone = |object: &Reserved| matches!(object, Reserved::ServiceNetwork(name) if !listed.contains(name));
            for gone in views.infrastructure.unlisted(is_gone) {
                views.reserve(&gone, Vec::new());
            }
            at.done(Part::ServiceNetworks);
        }
        Event::Apply(cidr) => set(&cidr),
        Event::Delete(cidr) => {
            views.reserve(&Reserved::ServiceNetwork(cidr.name_any()), Vec::new());
        }
    };
    let not_served = || at.done(Part::ServiceNetworks);
    let (api, kind) = (Api::<ServiceCIDR>::all(client), "ServiceCIDR");
    informer::run_if_served(api, Config::default(), kind, &at.metrics, on_event, not_served).await;
}

/// Harvester's management address. `namespace` is the operator's own, which on a Harvester is
/// Harvester's.
pub(super) async fn watch_management(at: Informer, namespace: String) {
    let Informer { client, views, .. } = at.clone();
    let object = Reserved::Management(format!("{namespace}/{MANAGEMENT}"));
    let set = |map: &ConfigMap| {
        let data = map.data.iter().flatten();
        let texts = data.filter(|(key, _)| MANAGEMENT_KEYS.contains(&key.as_str()));
        views.reserve(&object, single(texts.map(|(_, text)| text.as_str())));
    };
    let mut listed = false;
    let api = Api::<ConfigMap>::namespaced(client, &namespace);
    let config = Config::default().fields(&format!("metadata.name={MANAGEMENT}"));
    informer::run(api, config, "ConfigMap", &at.metrics, |event| match event {
        Event::Init => listed = false,
        Event::InitApply(map) => {
            listed = true;
            set(&map);
        }
        Event::InitDone => {
            if !listed {
                views.reserve(&object, Vec::new());
            }
            at.done(Part::Management);
        }
        Event::Apply(map) => set(&map),
        Event::Delete(_) => views.reserve(&object, Vec::new()),
    })
    .await;
}

/// Addresses as networks of one. Other text, such as the cluster IP `None`, claims nothing.
pub(super) fn single<'a>(texts: impl IntoIterator<Item = &'a str>) -> Vec<IpNet> {
    let address = |text: &str| text.parse::<IpAddr>().ok().map(IpNet::from);
    texts.into_iter().filter_map(address).collect()
}

fn key(object: &impl ResourceExt) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}
