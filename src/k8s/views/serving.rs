//! The views of Services and EndpointSlices that belong to vm load balancers.
//!
//! Invariant: a view never goes back: an event that is older than what was written from here, or
//! seen before, is ignored.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::{LoadBalancerIngress, Service, ServicePort};
use k8s_openapi::api::discovery::v1::{Endpoint as FullEndpoint, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::core::ObjectMeta;
use kube::{Api, Resource, ResourceExt};
use kube_runtime::watcher::{Config, Event};

use super::{Informer, Part, Signal, Views, lock};
use crate::api::{
    ANNOTATION_NETWORK, GROUP, KUBE_VIP_BROADCAST, KUBE_VIP_HOSTNAME, KUBE_VIP_HWADDR,
    KUBE_VIP_REQUESTED_IP, LABEL_SERVICE_LB, LABEL_SERVICE_NAME, LABEL_SLICE_MANAGER,
    SLICE_MANAGER,
};
use crate::domain::Owner;
use crate::domain::bounds::{MOST_LISTENERS, cut};
use crate::domain::endpoints::{Endpoint, Family};
use crate::domain::service::settings::SETTINGS;
use crate::domain::service::{
    ANNOUNCING_NODE, ASKED_ADDRESS, ASKED_INTERFACE, ASKED_VLAN, HELD_UNTIL, MADE_WITH_POLICY,
    MADE_WITH_PORTS, NOT_ANNOUNCED, OwnerRef, Stored, StoredPort,
};
use crate::domain::slices::{Port, Slice};
use crate::k8s::informer;
use crate::k8s::trimmed::PAGE;
use crate::k8s::unread::Unread;

/// Annotations of a Service that decisions take.
const ANNOTATIONS: [&str; 12] = [
    HELD_UNTIL,
    ANNOUNCING_NODE,
    ASKED_ADDRESS,
    ASKED_INTERFACE,
    ASKED_VLAN,
    ANNOTATION_NETWORK,
    MADE_WITH_POLICY,
    MADE_WITH_PORTS,
    KUBE_VIP_BROADCAST,
    KUBE_VIP_HOSTNAME,
    KUBE_VIP_HWADDR,
    KUBE_VIP_REQUESTED_IP,
];
/// Longest text of one of these: the ports of as many listeners as there may be.
const LONGEST_ANNOTATION: usize = 4096;
/// Addresses of a Service that are looked at.
const MOST_INGRESS: usize = 16;
/// Owners of an object that are looked at.
const MOST_OWNERS: usize = 4;

/// Objects by the LoadBalancer that they serve, `namespace/name`, and by their own name.
pub struct Owned<T>(Arc<Mutex<HashMap<String, Vec<Entry<T>>>>>);

struct Entry<T> {
    name: String,
    version: u64,
    object: T,
}

/// An EndpointSlice, and the UID of the LoadBalancer that owns it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedSlice {
    /// The owner.
    pub owner: String,
    /// The slice.
    pub slice: Arc<Slice>,
}

impl<T> Default for Owned<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Clone for Owned<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Clone> Owned<T> {
    /// The objects that serve a LoadBalancer.
    pub fn of(&self, lb: &str) -> impl Iterator<Item = T> + use<T> {
        let list: Vec<T> = lock(&self.0)
            .get(lb)
            .map(|list| list.iter().map(|entry| entry.object.clone()).collect())
            .unwrap_or_default();
        list.into_iter()
    }

    /// The object in this version was seen, or written. Returns whether that is news.
    pub fn note(&self, lb: &str, name: &str, version: &str, object: T) -> bool {
        let version = number(version);
        let mut all = lock(&self.0);
        let list = all.entry(lb.to_owned()).or_default();
        match list.iter_mut().find(|entry| entry.name == name) {
            Some(entry) if entry.version >= version => false,
            Some(entry) => {
                entry.version = version;
                entry.object = object;
                true
            }
            None => {
                list.push(Entry { name: name.to_owned(), version, object });
                list.sort_by(|a, b| a.name.cmp(&b.name));
                true
            }
        }
    }

    /// Whether the object was seen, or written, in this version or a later one.
    fn knows(&self, lb: &str, name: &str, version: &str) -> bool {
        let all = lock(&self.0);
        let entry = all.get(lb).and_then(|list| list.iter().find(|entry| entry.name == name));
        entry.is_some_and(|entry| entry.version >= number(version))
    }

    /// The object is gone, in this version. Returns whether that is news.
    pub fn forget(&self, lb: &str, name: &str, version: &str) -> bool {
        let mut all = lock(&self.0);
        let Some(list) = all.get_mut(lb) else { return false };
        let before = list.len();
        let version = number(version);
        list.retain(|entry| entry.name != name || entry.version > version);
        let is_news = list.len() < before;
        if list.is_empty() {
            all.remove(lb);
        }
        is_news
    }

    /// The object, in this version, is nobody's. Returns the LoadBalancers that it served.
    fn disown(&self, namespace: &str, name: &str, version: &str) -> Vec<String> {
        let within = |lb: &&String| lb.split_once('/').is_some_and(|(ns, _)| ns == namespace);
        let lbs: Vec<String> = lock(&self.0).keys().filter(within).cloned().collect();
        lbs.into_iter().filter(|lb| self.forget(lb, name, version)).collect()
    }

    /// Something said of every object.
    pub fn for_each(&self, mut say: impl FnMut(&T)) {
        for entry in lock(&self.0).values().flatten() {
            say(&entry.object);
        }
    }

    /// Drops what a list did not show and what is not newer than the list. Returns the
    /// LoadBalancers concerned.
    fn keep_only(&self, listed: &std::collections::HashSet<(String, String)>) -> Vec<String> {
        let mut concerned = Vec::new();
        let mut all = lock(&self.0);
        all.retain(|lb, list| {
            let before = list.len();
            list.retain(|entry| listed.contains(&(lb.clone(), entry.name.clone())));
            if list.len() < before {
                concerned.push(lb.clone());
            }
            !list.is_empty()
        });
        concerned
    }
}

/// Resource versions grow, and are numbers (KEP-5504).
fn number(version: &str) -> u64 {
    version.parse().unwrap_or(0)
}

pub(super) async fn watch_services(at: Informer) {
    let Informer { client, views, .. } = at.clone();
    let mut listed = std::collections::HashSet::new();
    let api = Api::<Service>::all(client);
    let config = Config::default().labels(&format!("{LABEL_SERVICE_LB}=true")).page_size(PAGE);
    let set = |object: &Service| {
        let lb = qualified(&object.metadata, &object.name_any());
        let version = object.resource_version().unwrap_or_default();
        if views.services.note(&lb, &object.name_any(), &version, service(object)) {
            views.tell_lbs([lb]);
        }
    };
    informer::run(api, config, "Service", &at.metrics, |event| match event {
        Event::Init => listed.clear(),
        Event::InitApply(object) => {
            listed.insert((qualified(&object.metadata, &object.name_any()), object.name_any()));
            set(&object);
        }
        Event::InitDone => {
            let gone = views.services.keep_only(&listed);
            views.tell_lbs(gone);
            listed.clear();
            at.done(Part::Services);
        }
        Event::Apply(object) => set(&object),
        Event::Delete(object) => {
            let name = object.name_any();
            let lb = qualified(&object.metadata, &name);
            let version = object.resource_version().unwrap_or_default();
            views.services.forget(&lb, &name, &version);
            views.tell_lbs([&lb]);
            // Its LoadBalancer may have gone before it, without our help. Whoever still exists
            // is not gone, whatever a view says: that is asked before anything is freed.
            for owner in owners(&object.metadata).into_iter().filter(|o| o.kind == "LoadBalancer") {
                if !views.has_uid(&owner.uid) {
                    views.tell(Signal::Gone(Owner { name: lb.clone(), uid: owner.uid }));
                }
            }
        }
    })
    .await;
}

pub(super) async fn watch_slices(at: Informer) {
    let Informer { client, views, .. } = at.clone();
    let mut listed = std::collections::HashSet::new();
    let api = Api::<Unread<EndpointSlice>>::all(client);
    let config = Config::default().labels(&format!("{LABEL_SERVICE_LB}=true")).page_size(100);
    informer::run(api, config, "EndpointSlice", &at.metrics, |event| match event {
        Event::Init => listed.clear(),
        Event::InitApply(object) => {
            if let Some((lb, _)) = owner(object.meta()) {
                listed.insert((lb, object.name_any()));
            }
            see(&views, &object);
        }
        Event::InitDone => {
            lock(&views.early).listed();
            let gone = views.slices.keep_only(&listed);
            views.tell_lbs(gone);
            listed.clear();
            at.done(Part::Slices);
        }
        Event::Apply(object) => {
            let name = qualified(object.meta(), &object.name_any());
            let news = lock(&views.early).put_aside(&name, object);
            if let Some(object) = news {
                see(&views, &object);
            }
        }
        Event::Delete(object) => {
            lock(&views.early).gone(&qualified(object.meta(), &object.name_any()));
            if let Some((lb, _)) = owner(object.meta()) {
                let version = object.resource_version().unwrap_or_default();
                views.slices.forget(&lb, &object.name_any(), &version);
                views.tell_lbs([lb]);
            }
        }
    })
    .await;
}

/// An EndpointSlice is in this version.
pub(super) fn see(views: &Views, object: &Unread<EndpointSlice>) {
    let (name, version) = (object.name_any(), object.resource_version().unwrap_or_default());
    let owner = owner(object.meta());
    if owner.as_ref().is_some_and(|(lb, _)| views.slices.knows(lb, &name, &version)) {
        return;
    }
    let seen = object.read().map(|object| slice(&object));
    if let Ok(Some((lb, seen))) = seen {
        if views.slices.note(&lb, &name, &version, seen) {
            views.tell_lbs([lb]);
        }
        return;
    }
    // It may have been one's until somebody took its owner away, or made it unreadable.
    let namespace = object.namespace().unwrap_or_default();
    views.tell_lbs(views.slices.disown(&namespace, &name, &version));
}

/// The LoadBalancer, by `namespace/name`, that owns an object, and the reference to it.
fn owner(meta: &ObjectMeta) -> Option<(String, &OwnerReference)> {
    let owned_by = meta.owner_references.as_deref().unwrap_or_default();
    let owner =
        owned_by.iter().find(|o| o.kind == "LoadBalancer" && o.api_version.starts_with(GROUP))?;
    Some((qualified(meta, &owner.name), owner))
}

fn qualified(meta: &ObjectMeta, name: &str) -> String {
    format!("{}/{name}", meta.namespace.as_deref().unwrap_or_default())
}

/// Whose an object is.
pub fn owners(meta: &ObjectMeta) -> Vec<OwnerRef> {
    let list = meta.owner_references.as_deref().unwrap_or_default();
    let read = |o: &OwnerReference| OwnerRef {
        kind: o.kind.clone(),
        name: o.name.clone(),
        uid: o.uid.clone(),
    };
    // Those that name a LoadBalancer decide; of others the first is told.
    let lbs = list.iter().filter(|o| o.kind == "LoadBalancer").take(MOST_OWNERS);
    let others = list.iter().filter(|o| o.kind != "LoadBalancer").take(1);
    lbs.chain(others).map(read).collect()
}

/// Reads a Service.
pub fn service(service: &Service) -> Stored {
    let spec = service.spec.clone().unwrap_or_default();
    let owners = owners(&service.metadata);
    let ours = owner(&service.metadata).is_some();
    // Of another's it is told whose it is, and no more.
    let says = |key: &&String| ours && ANNOTATIONS.contains(&key.as_str());
    let port = |port: ServicePort| StoredPort {
        name: port.name.unwrap_or_default(),
        protocol: port.protocol.unwrap_or_else(|| "TCP".to_owned()),
        port: port.port,
        target: match port.target_port {
            Some(IntOrString::Int(target)) => target,
            Some(IntOrString::String(_)) => 0,
            None => port.port,
        },
        node_port: port.node_port.unwrap_or(0),
    };
    let ingress = service.status.as_ref().and_then(|s| s.load_balancer.as_ref());
    let ingress = ingress.and_then(|l| l.ingress.as_deref()).filter(|_| ours).unwrap_or_default();
    let ports = spec.ports.filter(|_| ours).unwrap_or_default();
    Stored {
        uid: service.uid().unwrap_or_default(),
        version: service.resource_version().unwrap_or_default(),
        owners,
        deleting: service.metadata.deletion_timestamp.is_some(),
        labelled: service.labels().get(LABEL_SERVICE_LB).is_some_and(|value| value == "true"),
        annotations: service
            .annotations()
            .iter()
            .filter(|(key, _)| says(key))
            .map(|(key, value)| (key.clone(), cut(value.clone(), LONGEST_ANNOTATION)))
            .collect(),
        type_: spec.type_.unwrap_or_default(),
        has_selector: spec.selector.is_some_and(|selector| !selector.is_empty()),
        load_balancer_ip: spec.load_balancer_ip.unwrap_or_default(),
        policy: spec.external_traffic_policy.unwrap_or_default(),
        source_range: spec.load_balancer_source_ranges.and_then(|all| all.into_iter().next()),
        families: spec.ip_families.unwrap_or_default(),
        ports: ports.into_iter().take(MOST_LISTENERS + 1).map(port).collect(),
        ingress: ingress
            .iter()
            .filter(|ingress| is_announced(ingress))
            .filter_map(|ingress| ingress.ip.clone())
            .take(MOST_INGRESS)
            .collect(),
    }
}

/// Whether an announcer has said so, and not this operator.
fn is_announced(ingress: &LoadBalancerIngress) -> bool {
    let mut ports = ingress.ports.iter().flatten();
    !ports.any(|port| port.error.as_deref() == Some(NOT_ANNOUNCED))
}

/// Reads an EndpointSlice: the LoadBalancer that owns it, and what it says. `None`: no
/// LoadBalancer does.
pub fn slice(slice: &EndpointSlice) -> Option<(String, OwnedSlice)> {
    let (lb, owner) = owner(&slice.metadata)?;
    let label = |key: &str, value: &str| slice.labels().get(key).is_some_and(|v| v == value);
    let ports = slice.ports.as_deref().unwrap_or_default();
    let mut ports: Vec<Port> = ports
        .iter()
        .map(|port| Port {
            name: port.name.clone().unwrap_or_default(),
            protocol: port.protocol.clone().unwrap_or_default(),
            port: port.port.and_then(|port| u16::try_from(port).ok()).unwrap_or(0),
        })
        .collect();
    ports.sort();
    let stored = slice.endpoints.as_deref().unwrap_or_default();
    let endpoints: Vec<Endpoint> = stored.iter().filter_map(endpoint).collect();
    let whole = stored.len() == endpoints.len() && stored.iter().all(is_plain);
    let seen = Slice {
        name: slice.name_any(),
        version: slice.resource_version().unwrap_or_default(),
        family: match slice.address_type.as_str() {
            "IPv4" => Some(Family::V4),
            "IPv6" => Some(Family::V6),
            _ => None,
        },
        ports,
        endpoints,
        sound: whole
            && label(LABEL_SERVICE_NAME, &owner.name)
            && label(LABEL_SERVICE_LB, "true")
            && label(LABEL_SLICE_MANAGER, SLICE_MANAGER),
        holds_settings: slice.annotations().contains_key(SETTINGS),
    };
    Some((lb, OwnedSlice { owner: owner.uid.clone(), slice: Arc::new(seen) }))
}

fn endpoint(endpoint: &FullEndpoint) -> Option<Endpoint> {
    let target = endpoint.target_ref.as_ref()?;
    let conditions = endpoint.conditions.as_ref();
    let ready = conditions.and_then(|c| c.ready).unwrap_or(true);
    Some(Endpoint {
        address: endpoint.addresses.first()?.parse().ok()?,
        name: target.name.as_deref()?.into(),
        uid: target.uid.as_deref()?.into(),
        node: endpoint.node_name.as_deref().unwrap_or_default().into(),
        // The Go controller writes ready alone.
        serving: conditions.and_then(|c| c.serving).unwrap_or(ready),
        terminating: conditions.and_then(|c| c.terminating).unwrap_or(false),
    })
}

/// Whether an endpoint says nothing that this operator would not.
fn is_plain(endpoint: &FullEndpoint) -> bool {
    let conditions = endpoint.conditions.as_ref();
    let ready = conditions.and_then(|c| c.ready);
    let serving = conditions.and_then(|c| c.serving);
    let terminating = conditions.and_then(|c| c.terminating);
    let consistent = match (ready, serving, terminating) {
        (Some(ready), Some(serving), Some(terminating)) => ready == (serving && !terminating),
        _ => false,
    };
    consistent
        && endpoint.addresses.len() == 1
        && endpoint.hints.is_none()
        && endpoint.hostname.is_none()
        && endpoint.zone.is_none()
}
