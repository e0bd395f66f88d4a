//! The view of the cluster's own addresses: those of nodes and their pod networks (from the view of
//! nodes), Services, ServiceCIDRs and Harvester's management address.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use ipnet::IpNet;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::{Api, Resource, ResourceExt};
use kube_runtime::watcher::{Config, Event};

use super::{ChangeEvent, InformerContext, ViewPart, Views, lock};
use crate::api::GROUP;
use crate::api::kubevirt::ServiceAddresses;
use crate::domain::network::infrastructure::{HeldBack, Infrastructure, Reserved};
use crate::k8s::informer;
use crate::k8s::trimmed::PAGE;

/// Name of the ConfigMap with Harvester's management address, in the namespace of Harvester's
/// Deployment.
const MANAGEMENT: &str = "vip";
/// Keys of the ConfigMap that hold an address.
const MANAGEMENT_KEYS: [&str; 2] = ["ip", "loadBalancerIP"];

/// The cluster's own addresses, as far as the views have them. Clones share the state.
#[derive(Clone, Default)]
pub struct InfrastructureAddresses(Arc<Mutex<Infrastructure>>);

impl InfrastructureAddresses {
    /// The object that has an address. `None`: none in the view.
    pub fn why_reserved(&self, address: IpAddr) -> Option<Reserved> {
        lock(&self.0).why_reserved(address).cloned()
    }

    /// All objects that have an address.
    pub fn reservations(&self, address: IpAddr) -> Vec<Reserved> {
        lock(&self.0).reservations(address).cloned().collect()
    }

    /// Whether an address belongs to a node.
    pub fn is_node(&self, address: IpAddr) -> bool {
        lock(&self.0).is_node(address)
    }

    /// A copy of the state: objects and their networks. Single addresses are networks with one
    /// address.
    pub fn snapshot(&self) -> Infrastructure {
        lock(&self.0).clone()
    }

    /// Networks whose addresses no pool gives out, and the use of each.
    pub fn held_back(&self) -> HeldBack {
        lock(&self.0).held_back()
    }

    /// Replaces the networks of an object. Returns the networks that were added or removed.
    pub(super) fn set(&self, object: &Reserved, networks: Vec<IpNet>) -> Vec<IpNet> {
        lock(&self.0).set(object, networks)
    }

    /// Objects that `is_gone` selects, because a list did not contain them.
    fn unlisted(&self, is_gone: impl Fn(&Reserved) -> bool) -> Vec<Reserved> {
        let all = lock(&self.0);
        all.entries().map(|(object, _)| object).filter(|object| is_gone(object)).cloned().collect()
    }
}

impl Views {
    /// Replaces the networks of an object, and enqueues the LoadBalancers that depend on a changed
    /// one.
    pub(super) fn reserve(&self, object: &Reserved, networks: Vec<IpNet>) {
        let changed = self.infrastructure.set(object, networks);
        if changed.is_empty() {
            return;
        }
        self.tell_reporting(&changed);
        self.tell_leased_in(&changed);
        if object.is_held_back() {
            self.tell(ChangeEvent::Networks);
        }
    }

    /// Whether every kind in [`Self::infrastructure`] was listed once.
    pub fn infrastructure_listed(&self) -> bool {
        *self.synced.borrow() & INFRASTRUCTURE == INFRASTRUCTURE
    }

    /// Waits until every kind in [`Self::infrastructure`] was listed once.
    pub async fn wait_for_infrastructure(&self) {
        self.wait_for(INFRASTRUCTURE).await;
    }
}

/// Parts of the views that reserve addresses.
pub(super) const INFRASTRUCTURE: u32 = ViewPart::Nodes as u32
    | ViewPart::Addresses as u32
    | ViewPart::ServiceNetworks as u32
    | ViewPart::Management as u32;

/// Watches the addresses of all Services.
pub(super) async fn watch_services(at: InformerContext) {
    let InformerContext { client, views, .. } = at.clone();
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
            at.done(ViewPart::Addresses);
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

/// Networks of a Service. One of the two kinds of ingress is always empty.
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

/// Watches the networks from which Services get their addresses. A cluster before Kubernetes 1.33
/// does not serve the kind: there only each Service's own address is known.
pub(super) async fn watch_service_networks(at: InformerContext) {
    let InformerContext { client, views, .. } = at.clone();
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
            at.done(ViewPart::ServiceNetworks);
        }
        Event::Apply(cidr) => set(&cidr),
        Event::Delete(cidr) => {
            views.reserve(&Reserved::ServiceNetwork(cidr.name_any()), Vec::new());
        }
    };
    let not_served = || at.done(ViewPart::ServiceNetworks);
    let (api, kind) = (Api::<ServiceCIDR>::all(client), "ServiceCIDR");
    informer::run_if_served(api, Config::default(), kind, &at.metrics, on_event, not_served).await;
}

/// Watches Harvester's management address. `namespace` is the operator's own, which on Harvester is
/// also Harvester's.
pub(super) async fn watch_management(at: InformerContext, namespace: String) {
    let InformerContext { client, views, .. } = at.clone();
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
            at.done(ViewPart::Management);
        }
        Event::Apply(map) => set(&map),
        Event::Delete(_) => views.reserve(&object, Vec::new()),
    })
    .await;
}

/// Addresses as networks with one address. Other text, such as the cluster IP `None`, gives none.
pub(super) fn single<'a>(texts: impl IntoIterator<Item = &'a str>) -> Vec<IpNet> {
    let address = |text: &str| text.parse::<IpAddr>().ok().map(IpNet::from);
    texts.into_iter().filter_map(address).collect()
}

fn key(object: &impl ResourceExt) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}
