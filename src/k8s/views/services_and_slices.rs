//! The views of the Services and EndpointSlices of vm LoadBalancers.
//!
//! Invariant: a view never goes back in time. An event is ignored if it is older than a write of
//! this process, or than the state in the view.
//!
//! kube-runtime's store is not used here: it finds an object only by the object's own name, and
//! takes every event, even an older one. The crate `multi_index_map` could replace the two maps of
//! [`OwnedIndex`], but not the comparison of resourceVersions.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::core::ObjectMeta;
use kube::{Api, Resource, ResourceExt};
use kube_runtime::watcher::Config;

use super::{ChangeEvent, InformerContext, ViewPart, Views, lock};
use crate::api::LABEL_SERVICE_LB;
use crate::domain::Owner;
use crate::domain::object_fields::resource_version::{is_newer, is_older};
use crate::domain::vm_backends::service::stored::{owner, owners, read_service, read_slice};
use crate::k8s::informer::{self, ObjectEvent, key, split_key};
use crate::k8s::lazy_object::LazyObject;

/// Services or EndpointSlices (`T`), by the LoadBalancer that they serve. Each object serves one
/// LoadBalancer. Clones share the objects.
///
/// Informers and reconciles change the objects at the same time. [`Self::store`] and
/// [`Self::remove`] hold the lock from the comparison of the versions until the change is done, so
/// that no other task can store a newer version in between.
#[derive(Clone, Default)]
pub struct OwnedObjects<T>(Arc<Mutex<OwnedIndex<T>>>);

#[derive(Default)]
struct OwnedIndex<T> {
    /// Objects, each with its resourceVersion. The key is a pair: the LoadBalancer's
    /// `namespace/name`, and the object's name.
    objects: BTreeMap<(String, String), (String, T)>,
    /// LoadBalancer of each object. The key is the object's `namespace/name`, and the value is the
    /// LoadBalancer's.
    lb_of: HashMap<String, String>,
}

impl<T> OwnedIndex<T> {
    /// `resourceVersion` of the object `key`. `None`: the index does not have the object.
    fn version(&self, key: &str) -> Option<&str> {
        let (_, name) = split_key(key);
        let place = (self.lb_of.get(key)?.clone(), name.to_owned());
        self.objects.get(&place).map(|(version, _)| version.as_str())
    }

    /// Removes the object `key`, and returns the LoadBalancer that the object served. `None`: the
    /// index does not have the object.
    fn remove(&mut self, key: &str) -> Option<String> {
        let (_, name) = split_key(key);
        let lb = self.lb_of.remove(key)?;
        self.objects.remove(&(lb.clone(), name.to_owned()));
        Some(lb)
    }
}

impl<T: Clone> OwnedObjects<T> {
    /// The objects that serve the LoadBalancer `lb`, which is a `namespace/name`.
    pub fn of(&self, lb: &str) -> impl Iterator<Item = T> + use<T> {
        let all = lock(&self.0);
        let from = all.objects.range((lb.to_owned(), String::new())..);
        let own = from.take_while(|((of, _), _)| of == lb);
        let list: Vec<T> = own.map(|(_, (_, object))| object.clone()).collect();
        list.into_iter()
    }

    /// `namespace/name` of the LoadBalancer that the object `key` serves. `None`: the view does not
    /// have the object.
    fn lb_of(&self, key: &str) -> Option<String> {
        lock(&self.0).lb_of.get(key).cloned()
    }

    /// Stores `object`, which has the name `name` and the resourceVersion `version`, and serves the
    /// LoadBalancer `lb` (`namespace/name`). Returns `false`, and changes nothing, if the view has
    /// the object in this version or a newer one.
    pub fn store(&self, lb: &str, name: &str, version: &str, object: T) -> bool {
        let key = key_beside(lb, name);
        let mut all = lock(&self.0);
        if all.version(&key).is_some_and(|known| !is_newer(version, known)) {
            return false;
        }
        all.remove(&key);
        all.objects.insert((lb.to_owned(), name.to_owned()), (version.to_owned(), object));
        all.lb_of.insert(key, lb.to_owned());
        true
    }

    /// Whether the view has the object `key` with the resourceVersion `version` or a newer one.
    fn has_version(&self, key: &str, version: &str) -> bool {
        lock(&self.0).version(key).is_some_and(|known| !is_newer(version, known))
    }

    /// Removes the object `key`, and returns the LoadBalancer that the object served. Returns
    /// `None` if no object was removed.
    ///
    /// `version` is the resourceVersion with which the object was observed last. The object stays
    /// if the view has a newer version. If `version` is `None`, any version is removed.
    pub(super) fn remove(&self, key: &str, version: Option<&str>) -> Option<String> {
        let mut all = lock(&self.0);
        let known = all.version(key)?;
        if version.is_some_and(|version| is_older(version, known)) { None } else { all.remove(key) }
    }

    /// Removes the object `name` of the LoadBalancer `lb`, because the object is gone. An object
    /// with a newer resourceVersion than `version` stays in the view.
    pub fn forget(&self, lb: &str, name: &str, version: &str) {
        self.remove(&key_beside(lb, name), Some(version));
    }

    /// `namespace/name` of every object in the view.
    pub(super) fn keys(&self) -> HashSet<String> {
        lock(&self.0).lb_of.keys().cloned().collect()
    }

    /// Calls `visit` for every object in the view.
    pub fn for_each(&self, mut visit: impl FnMut(&T)) {
        for (_, object) in lock(&self.0).objects.values() {
            visit(object);
        }
    }
}

/// `namespace/name` of the object `name` in the namespace of the LoadBalancer `lb`.
fn key_beside(lb: &str, name: &str) -> String {
    let (namespace, _) = split_key(lb);
    format!("{namespace}/{name}")
}

pub(super) async fn watch_services(at: InformerContext) {
    let known = || at.views.services.keys();
    let on_event = |event| apply_service(&at, event);
    let api = Api::<Service>::all(at.client.clone());
    let config = Config::default().labels(&format!("{LABEL_SERVICE_LB}=true"));
    informer::watch(api, config, &at.metrics, known, on_event).await;
}

/// Applies an event of a Service to the view, and enqueues the Service's LoadBalancer.
pub(super) fn apply_service(at: &InformerContext, event: ObjectEvent<Service>) {
    let views = &at.views;
    match event {
        ObjectEvent::Listed(object) | ObjectEvent::Changed(object) => {
            let (lb, name) = (key(object.meta()), object.name_any());
            let version = object.resource_version().unwrap_or_default();
            if views.services.store(&lb, &name, &version, read_service(&object)) {
                views.enqueue_lbs([lb]);
            }
        }
        ObjectEvent::Gone(key, None) => views.enqueue_lbs(views.services.remove(&key, None)),
        ObjectEvent::Gone(_, Some(deleted)) => views.remove_service(&deleted),
        ObjectEvent::Complete => at.done(ViewPart::Services),
        ObjectEvent::Unreadable(_) | ObjectEvent::Refused(_) => {}
    }
}

impl Views {
    /// Whether the view has an EndpointSlice that the LoadBalancer `owner` owns. True before
    /// EndpointSlices are listed, because there may be such a slice.
    pub fn has_slices(&self, owner: &Owner) -> bool {
        !self.is_listed(ViewPart::Slices)
            || self.slices.of(&owner.name).any(|slice| slice.owner == owner.uid)
    }

    /// Removes a deleted Service from the view, and enqueues its LoadBalancer. Reports the
    /// Service's owner as [`ChangeEvent::Gone`] if no LoadBalancer in the view has the owner's UID.
    /// Reports no owner before LoadBalancers are listed.
    pub(super) fn remove_service(&self, deleted: &ObjectMeta) {
        let lb = key(deleted);
        self.services.remove(&lb, deleted.resource_version.as_deref());
        self.enqueue_lbs([&lb]);
        // The LoadBalancer may have been deleted before its Service, and this operator may have
        // missed the deletion. Before the first list is complete, a missing UID proves nothing.
        for owner in owners(deleted).into_iter().filter(|o| o.kind == "LoadBalancer") {
            if self.is_listed(ViewPart::LoadBalancers) && !self.has_uid(&owner.uid) {
                self.notify(ChangeEvent::Gone(Owner { name: lb.clone(), uid: owner.uid }));
            }
        }
    }
}

pub(super) async fn watch_slices(at: InformerContext) {
    let known = || at.views.slices.keys();
    let on_event = |event| apply_slice(&at, event);
    let api = Api::<LazyObject<EndpointSlice>>::all(at.client.clone());
    let config = Config::default().labels(&format!("{LABEL_SERVICE_LB}=true"));
    informer::watch(api, config, &at.metrics, known, on_event).await;
}

/// Applies an event of an EndpointSlice to the view, and enqueues the slice's LoadBalancer.
pub(super) fn apply_slice(at: &InformerContext, event: ObjectEvent<LazyObject<EndpointSlice>>) {
    let views = &at.views;
    match event {
        ObjectEvent::Listed(object) | ObjectEvent::Changed(object) => {
            store_observed_slice(views, &object);
        }
        ObjectEvent::Gone(key, deleted) => {
            let version = deleted.as_ref().and_then(|meta| meta.resource_version.as_deref());
            let served = views.slices.remove(&key, version);
            let owner = deleted.as_ref().and_then(owner).map(|(lb, _)| lb);
            views.enqueue_lbs(served.into_iter().chain(owner).collect::<BTreeSet<_>>());
        }
        ObjectEvent::Complete => at.done(ViewPart::Slices),
        ObjectEvent::Unreadable(_) | ObjectEvent::Refused(_) => {}
    }
}

/// Stores an EndpointSlice from an event of the watch. Removes the slice from the view if the slice
/// cannot be parsed, or if no LoadBalancer owns the slice. Enqueues the LoadBalancer that the slice
/// serves now, and the LoadBalancer that the slice served before.
pub(super) fn store_observed_slice(views: &Views, object: &LazyObject<EndpointSlice>) {
    let (key, version) = (key(object.meta()), object.resource_version().unwrap_or_default());
    if views.slices.has_version(&key, &version) {
        return;
    }
    // Before this event, the slice may have served another LoadBalancer. Now it may have become
    // unreadable. In both cases, the LoadBalancer that it served before is enqueued.
    let Some((lb, seen)) = object.read().ok().and_then(|object| read_slice(&object)) else {
        return views.enqueue_lbs(views.slices.remove(&key, Some(&version)));
    };
    let former = views.slices.lb_of(&key);
    if views.slices.store(&lb, &object.name_any(), &version, Arc::new(seen)) {
        views.enqueue_lbs(former.into_iter().chain([lb]).collect::<BTreeSet<_>>());
    }
}
