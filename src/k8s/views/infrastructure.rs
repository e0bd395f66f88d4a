//! The view of the addresses that the cluster itself uses: the addresses of nodes and Services, the
//! networks of pods and Services, and Harvester's management address.
//!
//! This module watches Services, ServiceCIDRs and the management address. The addresses of nodes
//! and the pod networks come from the watch of nodes in [`super::vms`].

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::{Api, Resource, ResourceExt};
use kube_runtime::watcher::Config;

use super::{ChangeEvent, InformerContext, ViewPart, Views, lock};
use crate::api::GROUP;
use crate::api::kubevirt::ServiceAddresses;
use crate::domain::network::infrastructure::{HeldBack, Reserved};
use crate::k8s::informer::{self, ObjectEvent, is_unserved, key};

/// Name of the ConfigMap with Harvester's management address, in the namespace of Harvester's
/// Deployment.
const MANAGEMENT: &str = "vip";
/// Keys of the ConfigMap [`MANAGEMENT`] whose values are addresses.
const MANAGEMENT_KEYS: [&str; 2] = ["ip", "loadBalancerIP"];

impl Views {
    /// Whether `address` is an address of a node in the view.
    pub fn is_node_address(&self, address: IpAddr) -> bool {
        lock(&self.index.infrastructure).is_node(address)
    }

    /// Networks whose addresses pools hold back, each with an object that reserves the network. A
    /// single address is a /32 or /128 network. The map also contains the networks of pods and
    /// Services. Pools on a tagged VLAN do not hold back these networks.
    pub fn held_back(&self) -> HeldBack {
        lock(&self.index.infrastructure).held_back()
    }

    /// Replaces the networks that `object` reserves. Has no other effect if no network is added or
    /// removed. Enqueues the LoadBalancers that depend on the added and removed networks. Reports
    /// [`ChangeEvent::Networks`] if pools hold back the networks of `object`.
    pub(super) fn reserve(&self, object: &Reserved, networks: Vec<IpNet>) {
        let changed = lock(&self.index.infrastructure).set(object, networks);
        if changed.is_empty() {
            return;
        }
        self.enqueue_lbs_reporting(&changed);
        self.enqueue_lbs_leased_in(&changed);
        if object.is_held_back() {
            self.notify(ChangeEvent::Networks);
        }
    }

    /// Names of the objects that reserve addresses and that `name` selects. `name` returns the name
    /// of a selected object, and `None` for any other object.
    fn reserving(&self, name: impl Fn(&Reserved) -> Option<String>) -> HashSet<String> {
        let infrastructure = lock(&self.index.infrastructure);
        infrastructure.entries().filter_map(|(object, _)| name(object)).collect()
    }

    /// Waits until the first lists are complete for all kinds of objects that reserve addresses.
    pub async fn wait_for_infrastructure(&self) {
        self.wait_for(INFRASTRUCTURE).await;
    }
}

/// Parts of the views whose objects reserve addresses.
pub(super) const INFRASTRUCTURE: u32 = ViewPart::Nodes as u32
    | ViewPart::Addresses as u32
    | ViewPart::ServiceNetworks as u32
    | ViewPart::Management as u32;

/// Watches the addresses of all Services.
pub(super) async fn watch_services(at: InformerContext) {
    let views = &at.views;
    let name = |object: &Reserved| match object {
        Reserved::ClusterIp(name) | Reserved::Ingress(name) | Reserved::OwnIngress(name) => {
            Some(name.clone())
        }
        _ => None,
    };
    let known = || views.reserving(name);
    let on_event = |event: ObjectEvent<ServiceAddresses>| match event {
        ObjectEvent::Listed(service) | ObjectEvent::Changed(service) => {
            for (object, networks) in claims(&service) {
                views.reserve(&object, networks);
            }
        }
        ObjectEvent::Gone(name, _) => {
            for kind in [Reserved::ClusterIp, Reserved::Ingress, Reserved::OwnIngress] {
                views.reserve(&kind(name.clone()), Vec::new());
            }
        }
        ObjectEvent::Complete => at.done(ViewPart::Addresses),
        ObjectEvent::Unreadable(_) | ObjectEvent::Refused(_) => {}
    };
    let api = Api::<ServiceAddresses>::all(at.client.clone());
    informer::watch(api, Config::default(), &at.metrics, known, on_event).await;
}

/// Networks that a Service reserves, as a list for each kind of reservation:
/// * `ClusterIp`: the Service's cluster addresses.
/// * `Ingress`: the addresses in the Service's status. Empty if a LoadBalancer owns the Service.
/// * `OwnIngress`: the addresses in the Service's status. Empty if no LoadBalancer owns the
///   Service.
fn claims(service: &ServiceAddresses) -> [(Reserved, Vec<IpNet>); 3] {
    let name = key(service.meta());
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

/// Whether the Service has an owner reference to a LoadBalancer.
fn is_own(service: &ServiceAddresses) -> bool {
    let owners = service.meta().owner_references.as_deref().unwrap_or_default();
    owners.iter().any(|o| o.kind == "LoadBalancer" && o.api_version.starts_with(GROUP))
}

/// Watches ServiceCIDRs, the networks from which Services get their cluster addresses. A cluster
/// before Kubernetes 1.33 does not serve ServiceCIDRs, so only each Service's own addresses are
/// known.
pub(super) async fn watch_service_networks(at: InformerContext) {
    let views = &at.views;
    let name = |object: &Reserved| match object {
        Reserved::ServiceNetwork(name) => Some(name.clone()),
        _ => None,
    };
    let known = || views.reserving(name);
    let on_event = |event: ObjectEvent<ServiceCIDR>| match event {
        ObjectEvent::Listed(cidr) | ObjectEvent::Changed(cidr) => {
            let cidrs = cidr.spec.iter().flat_map(|spec| spec.cidrs.iter().flatten());
            let networks = cidrs.filter_map(|text| text.parse().ok()).collect();
            views.reserve(&Reserved::ServiceNetwork(cidr.name_any()), networks);
        }
        ObjectEvent::Gone(name, _) => views.reserve(&Reserved::ServiceNetwork(name), Vec::new()),
        ObjectEvent::Complete => at.done(ViewPart::ServiceNetworks),
        ObjectEvent::Refused(status) if is_unserved(&status) => at.done(ViewPart::ServiceNetworks),
        ObjectEvent::Unreadable(_) | ObjectEvent::Refused(_) => {}
    };
    let api = Api::<ServiceCIDR>::all(at.client.clone());
    informer::watch(api, Config::default(), &at.metrics, known, on_event).await;
}

/// Watches Harvester's management address. `namespace` is the operator's own namespace. On
/// Harvester, this namespace is also the namespace of Harvester's Deployment.
pub(super) async fn watch_management(at: InformerContext, namespace: String) {
    let views = &at.views;
    let name = format!("{namespace}/{MANAGEMENT}");
    let object = Reserved::Management(name.clone());
    let known = || HashSet::from([name.clone()]);
    let on_event = |event: ObjectEvent<ConfigMap>| match event {
        ObjectEvent::Listed(map) | ObjectEvent::Changed(map) => {
            let data = map.data.iter().flatten();
            let texts = data.filter(|(key, _)| MANAGEMENT_KEYS.contains(&key.as_str()));
            views.reserve(&object, single(texts.map(|(_, text)| text.as_str())));
        }
        ObjectEvent::Gone(..) => views.reserve(&object, Vec::new()),
        ObjectEvent::Complete => at.done(ViewPart::Management),
        ObjectEvent::Unreadable(_) | ObjectEvent::Refused(_) => {}
    };
    let api = Api::<ConfigMap>::namespaced(at.client.clone(), &namespace);
    let config = Config::default().fields(&format!("metadata.name={MANAGEMENT}"));
    informer::watch(api, config, &at.metrics, known, on_event).await;
}

/// Networks with one address each, made from the addresses in `texts`. Skips a text that is no
/// address, such as the text "None" in a Service's `clusterIPs`.
pub(super) fn single<'a>(texts: impl IntoIterator<Item = &'a str>) -> Vec<IpNet> {
    let address = |text: &str| text.parse::<IpAddr>().ok().map(IpNet::from);
    texts.into_iter().filter_map(address).collect()
}
