//! The view of LoadBalancers.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use kube::core::{ObjectMeta, Status};
use kube::{Api, Resource, ResourceExt};
use kube_runtime::reflector::{ObjectRef, store::Writer};
use kube_runtime::watcher::{Config, Event};

use super::{ChangeEvent, InformerContext, ViewPart, Views, lock};
use crate::api::LoadBalancer;
use crate::domain::Owner;
use crate::domain::vm_backends::listeners;
use crate::k8s::guard::{Guard, ObjectMisfit};
use crate::k8s::informer;
use crate::k8s::trimmed::{PAGE, TrimmedLb};
use crate::metrics::Metrics;

impl Views {
    /// UID of the LoadBalancer with this name. `None`: it is not in the view.
    pub fn uid_of(&self, namespace: &str, name: &str) -> Option<String> {
        self.load_balancers.get(&ObjectRef::new(name).within(namespace))?.uid()
    }

    /// Whether the view has this LoadBalancer, with the same UID.
    pub fn has(&self, lb: &LoadBalancer) -> bool {
        let key = ObjectRef::from_obj(lb);
        self.load_balancers.get(&key).is_some_and(|seen| seen.metadata.uid == lb.metadata.uid)
    }

    /// Whether the view lacks entries of a list that a write of the list must contain: then the
    /// object must be read before it is written.
    pub fn is_partial(&self, lb: &LoadBalancer) -> bool {
        let uid = lb.metadata.uid.as_deref().unwrap_or_default();
        lock(&self.uids).get(uid).copied().unwrap_or_default()
    }

    /// Whether the view has a LoadBalancer with this UID.
    pub(super) fn has_uid(&self, uid: &str) -> bool {
        lock(&self.uids).contains_key(uid)
    }

    /// Unwraps an object. An object that does not fit its type is skipped, so that it affects no
    /// other.
    fn readable(&self, lb: Guard<TrimmedLb>, metrics: &Metrics) -> Option<LoadBalancer> {
        match lb.0 {
            Ok(TrimmedLb { lb, partial }) => {
                lock(&self.uids).insert(lb.uid().unwrap_or_default(), partial);
                Some(lb)
            }
            Err(invalid) => {
                let part = |part: &Option<String>| part.clone().unwrap_or_default();
                let ObjectMisfit { metadata, error } = invalid;
                let lb = format!("{}/{}", part(&metadata.namespace), part(&metadata.name));
                metrics.unreadable.with_label_values(&["LoadBalancer"]).inc();
                tracing::warn!(lb, error, "this LoadBalancer cannot be read and is skipped");
                None
            }
        }
    }
}

pub(super) async fn watch(at: InformerContext, mut writer: Writer<LoadBalancer>) {
    let InformerContext { client, views, metrics, .. } = at.clone();
    // UIDs of a list under way.
    let mut listed: HashSet<String> = HashSet::new();
    let api = Api::<Guard<TrimmedLb>>::all(client);
    // The list is refused while stored objects have an old version and no conversion webhook
    // answers.
    let unconverted = views.unconverted.clone();
    let refused = |status: &Status| {
        let speechless = status.message.contains("conversion webhook");
        unconverted.store(speechless, Ordering::Relaxed);
    };
    let on_event = |event: Event<Guard<TrimmedLb>>| match event {
        Event::Init => {
            listed.clear();
            writer.apply_watcher_event(&Event::Init);
        }
        Event::InitApply(lb) => {
            if let Some(lb) = views.readable(lb, &metrics) {
                metrics.saw(&lb);
                listed.insert(lb.uid().unwrap_or_default());
                select(&views, &lb);
                writer.apply_watcher_event(&Event::InitApply(lb));
            }
        }
        Event::InitDone => {
            let before = views.load_balancers.state();
            writer.apply_watcher_event(&Event::InitDone);
            for lb in
                before.iter().filter(|lb| !listed.contains(lb.uid().as_deref().unwrap_or_default()))
            {
                unselect(&views, lb.meta());
                views.tell(ChangeEvent::Gone(owner_of(lb.meta())));
            }
            listed = HashSet::new();
            for lb in views.load_balancers.state() {
                // A LoadBalancer that was created again under its name meanwhile.
                select(&views, &lb);
            }
            for lb in views.load_balancers.state() {
                views.tell(ChangeEvent::LoadBalancer(ObjectRef::from_obj(lb.as_ref())));
            }
            at.done(ViewPart::LoadBalancers);
        }
        Event::Apply(lb) => {
            if let Some(lb) = views.readable(lb, &metrics) {
                metrics.saw(&lb);
                select(&views, &lb);
                let key = ObjectRef::from_obj(&lb);
                let name = owner_of(lb.meta()).name;
                let version = lb.resource_version().unwrap_or_default();
                writer.apply_watcher_event(&Event::Apply(lb));
                if lock(&views.echoes).hear(&name, &version) {
                    views.tell(ChangeEvent::LoadBalancer(key));
                }
            }
        }
        Event::Delete(lb) => {
            let owner = owner_of(lb.meta());
            metrics.forget(&owner.uid);
            unselect(&views, lb.meta());
            views.tell(ChangeEvent::Gone(owner));
            if let Ok(TrimmedLb { lb, .. }) = lb.0 {
                writer.apply_watcher_event(&Event::Delete(lb));
            }
        }
    };
    let config = Config::default().page_size(PAGE);
    informer::run_or_tell(api, config, "LoadBalancer", &metrics, on_event, refused).await;
}

pub(super) fn select(views: &Views, lb: &LoadBalancer) {
    let (namespace, name) = (lb.namespace().unwrap_or_default(), lb.name_any());
    let mut vms = lock(&views.vms);
    match listeners::selector(lb) {
        Some(selector) => drop(vms.set_lb(&namespace, &name, selector)),
        None => vms.remove_lb(&namespace, &name),
    }
}

fn unselect(views: &Views, meta: &ObjectMeta) {
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    lock(&views.vms).remove_lb(&part(&meta.namespace), &part(&meta.name));
    let lb = owner_of(meta).name;
    views.take_touched(&lb);
    lock(&views.uids).remove(meta.uid.as_deref().unwrap_or_default());
    lock(&views.echoes).forget(&lb);
}

fn owner_of(meta: &ObjectMeta) -> Owner {
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    Owner { name: format!("{}/{}", part(&meta.namespace), part(&meta.name)), uid: part(&meta.uid) }
}
