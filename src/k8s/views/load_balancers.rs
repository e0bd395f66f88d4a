//! The view of LoadBalancers.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use kube::core::ObjectMeta;
use kube::{Api, Resource, ResourceExt};
use kube_runtime::reflector::ObjectRef;
use kube_runtime::watcher::Config;

use super::{ChangeEvent, InformerContext, ViewPart, Views, lock};
use crate::api::LoadBalancer;
use crate::domain::Owner;
use crate::domain::load_balancer::facts;
use crate::domain::vm_backends::listeners;
use crate::k8s::guard::Guard;
use crate::k8s::informer::{self, ObjectEvent, key, split_key};
use crate::k8s::store::{self, StoreWriter};
use crate::k8s::trimmed::{LbTrimming, TrimmedLb};
use crate::metrics::Metrics;

impl Views {
    /// UID of the LoadBalancer with this name. `None`: the LoadBalancer is not in the view.
    pub fn uid_of(&self, namespace: &str, name: &str) -> Option<String> {
        self.load_balancers.get(&ObjectRef::new(name).within(namespace))?.uid()
    }

    /// Whether the view has a LoadBalancer with the namespace, name and UID of `lb`.
    pub fn has(&self, lb: &LoadBalancer) -> bool {
        let key = ObjectRef::from_obj(lb);
        self.load_balancers.get(&key).is_some_and(|seen| seen.metadata.uid == lb.metadata.uid)
    }

    /// Differences between the stored LoadBalancer and the view's copy `lb`.
    pub fn trimming(&self, lb: &LoadBalancer) -> LbTrimming {
        let uid = lb.metadata.uid.as_deref().unwrap_or_default();
        lock(&self.index.uids).get(uid).copied().unwrap_or_default()
    }

    /// Whether a LoadBalancer with this UID exists, as far as observed: in the view, or as an
    /// object that cannot be read.
    pub(super) fn has_uid(&self, uid: &str) -> bool {
        lock(&self.index.uids).contains_key(uid)
    }
}

pub(super) async fn watch(at: InformerContext, mut writer: StoreWriter<LoadBalancer>) {
    let known = || known(&at.views);
    let on_event = |event| apply(&at, &mut writer, event);
    let api = Api::<Guard<TrimmedLb>>::all(at.client.clone());
    informer::watch_guarded(api, Config::default(), &at.metrics, known, on_event).await;
}

/// `namespace/name` of every LoadBalancer that exists, as far as observed: those in the view, and
/// those that could never be read.
pub(super) fn known(views: &Views) -> HashSet<String> {
    let mut all = store::keys(&views.load_balancers);
    all.extend(lock(&views.index.unreadable_lbs).keys().cloned());
    all
}

/// Applies an event of a LoadBalancer to the view. Enqueues a changed LoadBalancer, and all
/// LoadBalancers when a list is complete. Reports a deleted one as [`ChangeEvent::Gone`].
pub(super) fn apply(
    at: &InformerContext,
    writer: &mut StoreWriter<LoadBalancer>,
    event: ObjectEvent<TrimmedLb>,
) {
    let InformerContext { views, metrics, .. } = at;
    match event {
        ObjectEvent::Listed(lb) => set(views, metrics, writer, lb),
        ObjectEvent::Changed(lb) => {
            let name = facts::name(&lb.lb);
            set(views, metrics, writer, lb);
            views.enqueue_lbs([name]);
        }
        ObjectEvent::Unreadable(meta) => {
            // A LoadBalancer that has become unreadable stays in the view as it was. But if the
            // unreadable object has another UID, the LoadBalancer of this name in the view was
            // deleted. That LoadBalancer is removed from the view.
            if let Some(former) = former(views, &meta) {
                remove(views, metrics, writer, former);
            }
            let (name, uid) = (key(&meta), meta.uid.unwrap_or_default());
            // The LoadBalancer exists, so the end of its Service does not free its address.
            lock(&views.index.uids).entry(uid.clone()).or_default();
            // A list reports the end of a missing LoadBalancer only if `known` has its name.
            if known_uid(views, &name).is_none() {
                lock(&views.index.unreadable_lbs).insert(name, uid);
            }
        }
        ObjectEvent::Gone(key, deleted) => {
            let uid = match deleted {
                Some(deleted) => deleted.uid,
                None => known_uid(views, &key),
            };
            remove(views, metrics, writer, Owner { name: key, uid: uid.unwrap_or_default() });
        }
        ObjectEvent::Complete => {
            views.enqueue_lbs(store::keys(&views.load_balancers));
            at.done(ViewPart::LoadBalancers);
        }
        // The API server refuses the list while an object is stored in an old version and no
        // conversion webhook answers.
        ObjectEvent::Refused(status) => {
            let speechless = status.message.contains("conversion webhook");
            views.index.unconverted.store(speechless, Ordering::Relaxed);
        }
    }
}

/// Stores the present state of a LoadBalancer. If the view has a LoadBalancer of the same name with
/// another UID, removes that LoadBalancer first.
pub(super) fn set(
    views: &Views,
    metrics: &Metrics,
    writer: &mut StoreWriter<LoadBalancer>,
    TrimmedLb { lb, trimming }: TrimmedLb,
) {
    if let Some(former) = former(views, lb.meta()) {
        remove(views, metrics, writer, former);
    }
    lock(&views.index.unreadable_lbs).remove(&key(lb.meta()));
    let uid = lb.uid().unwrap_or_default();
    if lock(&views.index.uids).insert(uid.clone(), trimming).is_none() {
        metrics.start_wait(&lb);
    } else if facts::allocated_ip(&lb).is_some() && !views.has_subscriber() {
        // Another process leads and has published the address.
        metrics.forget(&uid);
    }
    select(views, &lb);
    writer.set(lb);
}

/// Deleted LoadBalancer whose name the LoadBalancer of `meta` has now: a known one with the same
/// name and another UID. A list does not report the deletion, because the list contains the name.
/// `None`: no such LoadBalancer is known.
fn former(views: &Views, meta: &ObjectMeta) -> Option<Owner> {
    let name = key(meta);
    let uid = known_uid(views, &name).filter(|uid| Some(uid) != meta.uid.as_ref())?;
    Some(Owner { name, uid })
}

/// UID of the LoadBalancer with the key `key`, whether it can be read or not. `None`: no such
/// LoadBalancer was observed.
fn known_uid(views: &Views, key: &str) -> Option<String> {
    let (namespace, name) = split_key(key);
    let unreadable = || lock(&views.index.unreadable_lbs).get(key).cloned();
    views.uid_of(namespace, name).or_else(unreadable)
}

fn remove(views: &Views, metrics: &Metrics, writer: &mut StoreWriter<LoadBalancer>, owner: Owner) {
    let (namespace, name) = split_key(&owner.name);
    metrics.forget(&owner.uid);
    lock(&views.index.vms).remove_lb(namespace, name);
    views.take_touched(&owner.name);
    lock(&views.index.uids).remove(&owner.uid);
    lock(&views.index.unreadable_lbs).remove(&owner.name);
    writer.remove(&owner.name);
    views.notify(ChangeEvent::Gone(owner));
}

fn select(views: &Views, lb: &LoadBalancer) {
    let (namespace, name) = (lb.namespace().unwrap_or_default(), lb.name_any());
    let mut vms = lock(&views.index.vms);
    match listeners::selector(lb) {
        Some(selector) => drop(vms.set_lb(&namespace, &name, selector)),
        None => vms.remove_lb(&namespace, &name),
    }
}
