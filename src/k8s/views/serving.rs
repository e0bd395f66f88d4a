//! The views of the Services and EndpointSlices of vm LoadBalancers.
//!
//! Invariant: a view never goes back in time: an event that is older than a write of this process,
//! or than the state in the view, is ignored.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::core::ObjectMeta;
use kube::{Api, Resource, ResourceExt};
use kube_runtime::watcher::Config;

use super::{ChangeEvent, InformerContext, ViewPart, Views, lock};
use crate::api::LABEL_SERVICE_LB;
use crate::domain::Owner;
use crate::domain::vm_backends::endpoint_slices::StoredSlice;
use crate::domain::vm_backends::service::stored::{owner, owners, read_service, read_slice};
use crate::k8s::informer::{self, ObjectEvent, key};
use crate::k8s::lazy_object::LazyObject;
use crate::k8s::trimmed::PAGE;

/// Objects by the LoadBalancer that they serve, `namespace/name`, and by their own name.
pub struct OwnedObjects<T>(Arc<Mutex<HashMap<String, Vec<OwnedEntry<T>>>>>);

struct OwnedEntry<T> {
    name: String,
    version: u64,
    object: T,
}

/// An EndpointSlice, and the UID of the LoadBalancer that owns it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedSlice {
    /// UID of the owner.
    pub owner: String,
    /// Content of the slice.
    pub slice: Arc<StoredSlice>,
}

impl OwnedSlice {
    /// Reads a slice, with the `namespace/name` of the LoadBalancer that owns it. `None`: no
    /// LoadBalancer owns it.
    pub fn read(slice: &EndpointSlice) -> Option<(String, Self)> {
        let (lb, owner, slice) = read_slice(slice)?;
        Some((lb, Self { owner, slice: Arc::new(slice) }))
    }
}

impl<T> Default for OwnedObjects<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Clone for OwnedObjects<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Clone> OwnedObjects<T> {
    /// The objects that serve a LoadBalancer.
    pub fn of(&self, lb: &str) -> impl Iterator<Item = T> + use<T> {
        let list: Vec<T> = lock(&self.0)
            .get(lb)
            .map(|list| list.iter().map(|entry| entry.object.clone()).collect())
            .unwrap_or_default();
        list.into_iter()
    }

    /// Records the object in this version, from an event or a write. Returns whether that is news.
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
                list.push(OwnedEntry { name: name.to_owned(), version, object });
                list.sort_by(|a, b| a.name.cmp(&b.name));
                true
            }
        }
    }

    /// Whether the view has the object in this version or a later one.
    fn knows(&self, lb: &str, name: &str, version: &str) -> bool {
        let all = lock(&self.0);
        let entry = all.get(lb).and_then(|list| list.iter().find(|entry| entry.name == name));
        entry.is_some_and(|entry| entry.version >= number(version))
    }

    /// Records that the object is gone, in this version or, without one, in every version. Returns
    /// whether that is news.
    pub fn forget(&self, lb: &str, name: &str, version: Option<&str>) -> bool {
        let mut all = lock(&self.0);
        let Some(list) = all.get_mut(lb) else { return false };
        let before = list.len();
        let newest = version.map_or(u64::MAX, number);
        list.retain(|entry| entry.name != name || entry.version > newest);
        let is_news = list.len() < before;
        if list.is_empty() {
            all.remove(lb);
        }
        is_news
    }

    /// Records that no LoadBalancer owns the object in this version. Returns the LoadBalancers that
    /// it served.
    fn disown(&self, namespace: &str, name: &str, version: &str) -> Vec<String> {
        let within = |lb: &&String| lb.split_once('/').is_some_and(|(ns, _)| ns == namespace);
        let lbs: Vec<String> = lock(&self.0).keys().filter(within).cloned().collect();
        lbs.into_iter().filter(|lb| self.forget(lb, name, Some(version))).collect()
    }

    /// Drops objects, by `namespace/name`, that a list did not contain. Returns the LoadBalancers
    /// that they served.
    pub(super) fn drop_unlisted(&self, gone: &HashSet<String>) -> Vec<String> {
        let mut concerned = Vec::new();
        if gone.is_empty() {
            return concerned;
        }
        lock(&self.0).retain(|lb, list| {
            let before = list.len();
            list.retain(|entry| !gone.contains(&beside(lb, &entry.name)));
            if list.len() < before {
                concerned.push(lb.clone());
            }
            !list.is_empty()
        });
        concerned
    }

    /// `namespace/name` of every object.
    pub(super) fn keys(&self) -> HashSet<String> {
        let all = lock(&self.0);
        all.iter().flat_map(|(lb, list)| list.iter().map(|entry| beside(lb, &entry.name))).collect()
    }

    /// Calls `say` for every object.
    pub fn for_each(&self, mut say: impl FnMut(&T)) {
        for entry in lock(&self.0).values().flatten() {
            say(&entry.object);
        }
    }
}

/// `namespace/name` of an object in the namespace of a LoadBalancer.
fn beside(lb: &str, name: &str) -> String {
    let (namespace, _) = lb.split_once('/').unwrap_or_default();
    format!("{namespace}/{name}")
}

/// Numeric value of a resource version: these are increasing numbers (KEP-5504).
fn number(version: &str) -> u64 {
    version.parse().unwrap_or(0)
}

pub(super) async fn watch_services(at: InformerContext) {
    let InformerContext { client, views, .. } = at.clone();
    let known = || views.services.keys();
    let on_event = |event: ObjectEvent<Service>| match event {
        ObjectEvent::Listed(object) | ObjectEvent::Changed(object) => {
            let (lb, name) = (key(object.meta()), object.name_any());
            let version = object.resource_version().unwrap_or_default();
            if views.services.note(&lb, &name, &version, read_service(&object)) {
                views.tell_lbs([lb]);
            }
        }
        ObjectEvent::Gone(lb, None) => {
            let name = lb.split_once('/').map_or(lb.as_str(), |(_, name)| name);
            if views.services.forget(&lb, name, None) {
                views.tell_lbs([lb]);
            }
        }
        ObjectEvent::Gone(_, Some(deleted)) => views.remove_service(&deleted),
        ObjectEvent::Complete => at.done(ViewPart::Services),
        ObjectEvent::Unreadable(_) | ObjectEvent::Refused(_) => {}
    };
    let api = Api::<Service>::all(client);
    let config = Config::default().labels(&format!("{LABEL_SERVICE_LB}=true")).page_size(PAGE);
    informer::watch(api, config, &at.metrics, known, on_event).await;
}

impl Views {
    /// Removes a Service, and enqueues its LoadBalancer, which may be gone.
    pub(super) fn remove_service(&self, deleted: &ObjectMeta) {
        let lb = key(deleted);
        let name = deleted.name.as_deref().unwrap_or_default();
        self.services.forget(&lb, name, deleted.resource_version.as_deref());
        self.tell_lbs([&lb]);
        // The LoadBalancer may have gone before its Service without this operator. The signal is
        // checked against the API server before an address is released, so a stale view does no
        // harm.
        for owner in owners(deleted).into_iter().filter(|o| o.kind == "LoadBalancer") {
            if !self.has_uid(&owner.uid) {
                self.tell(ChangeEvent::Gone(Owner { name: lb.clone(), uid: owner.uid }));
            }
        }
    }
}

pub(super) async fn watch_slices(at: InformerContext) {
    let InformerContext { client, views, .. } = at.clone();
    let known = || views.slices.keys();
    let mut unlisted = HashSet::new();
    let on_event = |event: ObjectEvent<LazyObject<EndpointSlice>>| match event {
        ObjectEvent::Listed(object) => see(&views, &object),
        ObjectEvent::Changed(object) => {
            let news = lock(&views.index.early).put_aside(&key(object.meta()), object);
            if let Some(object) = news {
                see(&views, &object);
            }
        }
        ObjectEvent::Gone(key, None) => drop(unlisted.insert(key)),
        ObjectEvent::Gone(key, Some(deleted)) => {
            lock(&views.index.early).gone(&key);
            if let Some((lb, _)) = owner(&deleted) {
                let name = deleted.name.as_deref().unwrap_or_default();
                views.slices.forget(&lb, name, deleted.resource_version.as_deref());
                views.tell_lbs([lb]);
            }
        }
        ObjectEvent::Complete => {
            lock(&views.index.early).listed();
            views.tell_lbs(views.slices.drop_unlisted(&std::mem::take(&mut unlisted)));
            at.done(ViewPart::Slices);
        }
        ObjectEvent::Unreadable(_) | ObjectEvent::Refused(_) => {}
    };
    let api = Api::<LazyObject<EndpointSlice>>::all(client);
    let config = Config::default().labels(&format!("{LABEL_SERVICE_LB}=true")).page_size(100);
    informer::watch(api, config, &at.metrics, known, on_event).await;
}

/// Records an EndpointSlice in this version.
pub(super) fn see(views: &Views, object: &LazyObject<EndpointSlice>) {
    let (name, version) = (object.name_any(), object.resource_version().unwrap_or_default());
    let owner = owner(object.meta());
    if owner.as_ref().is_some_and(|(lb, _)| views.slices.knows(lb, &name, &version)) {
        return;
    }
    let seen = object.read().map(|object| OwnedSlice::read(&object));
    if let Ok(Some((lb, seen))) = seen {
        if views.slices.note(&lb, &name, &version, seen) {
            views.tell_lbs([lb]);
        }
        return;
    }
    // The slice may have belonged to a LoadBalancer until its owner reference was removed, or until
    // it became unreadable.
    let namespace = object.namespace().unwrap_or_default();
    views.tell_lbs(views.slices.disown(&namespace, &name, &version));
}
