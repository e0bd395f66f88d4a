//! The view of LoadBalancers.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use kube::core::{ObjectMeta, Status};
use kube::{Api, Resource, ResourceExt};
use kube_runtime::reflector::{ObjectRef, store::Writer};
use kube_runtime::watcher::{Config, Event};

use super::{Informer, Part, Signal, Views, lock};
use crate::api::{LABEL_CLUSTER, LoadBalancer};
use crate::domain::{Owner, vm_lb};
use crate::k8s::guard::Guard;
use crate::k8s::informer;
use crate::metrics::Metrics;

impl Views {
    /// The UID of the LoadBalancer by that name, if one has been seen.
    pub fn uid_of(&self, namespace: &str, name: &str) -> Option<String> {
        self.load_balancers.get(&ObjectRef::new(name).within(namespace))?.uid()
    }
}

pub(super) async fn watch(at: Informer, mut writer: Writer<LoadBalancer>) {
    let Informer { client, views, metrics, .. } = at.clone();
    // UIDs of a list under way.
    let mut listed: HashSet<String> = HashSet::new();
    let api = Api::<Guard<LoadBalancer>>::all(client);
    // While objects are stored in an old version and nobody converts them, the list is refused.
    let unconverted = views.unconverted.clone();
    let refused = |status: &Status| {
        let speechless = status.message.contains("conversion webhook");
        unconverted.store(speechless, Ordering::Relaxed);
    };
    let on_event = |event: Event<Guard<LoadBalancer>>| match event {
        Event::Init => {
            listed.clear();
            writer.apply_watcher_event(&Event::Init);
        }
        Event::InitApply(lb) => {
            if let Some(lb) = readable(lb, &metrics) {
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
                views.tell(Signal::Gone(owner_of(lb.meta())));
            }
            listed = HashSet::new();
            for lb in views.load_balancers.state() {
                // One that was made again under its name meanwhile.
                select(&views, &lb);
            }
            for lb in views.load_balancers.state() {
                views.tell(Signal::LoadBalancer(ObjectRef::from_obj(lb.as_ref())));
            }
            at.done(Part::LoadBalancers);
        }
        Event::Apply(lb) => {
            if let Some(lb) = readable(lb, &metrics) {
                metrics.saw(&lb);
                select(&views, &lb);
                let key = ObjectRef::from_obj(&lb);
                let name = owner_of(lb.meta()).name;
                let version = lb.resource_version().unwrap_or_default();
                writer.apply_watcher_event(&Event::Apply(lb));
                if lock(&views.echoes).hear(&name, &version) {
                    views.tell(Signal::LoadBalancer(key));
                }
            }
        }
        Event::Delete(lb) => {
            let owner = owner_of(lb.meta());
            metrics.forget(&owner.uid);
            unselect(&views, lb.meta());
            views.tell(Signal::Gone(owner));
            if let Ok(lb) = lb.0 {
                writer.apply_watcher_event(&Event::Delete(lb));
            }
        }
    };
    informer::run_or_tell(api, Config::default(), "LoadBalancer", &metrics, on_event, refused)
        .await;
}

fn select(views: &Views, lb: &LoadBalancer) {
    let (namespace, name) = (lb.namespace().unwrap_or_default(), lb.name_any());
    let mut vms = lock(&views.vms);
    match vm_lb::selector(lb) {
        Some(selector) => drop(vms.set_lb(&namespace, &name, selector)),
        None => vms.remove_lb(&namespace, &name),
    }
}

fn unselect(views: &Views, meta: &ObjectMeta) {
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    lock(&views.vms).remove_lb(&part(&meta.namespace), &part(&meta.name));
    let lb = owner_of(meta).name;
    views.take_touched(&lb);
    lock(&views.echoes).forget(&lb);
}

/// Drops what decisions do not need. An object that does not fit the type is skipped, so that
/// it costs nobody else anything.
fn readable(lb: Guard<LoadBalancer>, metrics: &Metrics) -> Option<LoadBalancer> {
    match lb.0 {
        Ok(mut lb) => {
            lb.metadata.managed_fields = None;
            lb.metadata.owner_references = None;
            if let Some(annotations) = lb.metadata.annotations.as_mut() {
                annotations.retain(|key, _| key.contains("harvesterhci.io/"));
            }
            if let Some(labels) = lb.metadata.labels.as_mut() {
                labels.retain(|key, _| key == LABEL_CLUSTER);
            }
            lb.spec.description = None;
            if !vm_lb::is_vm(&lb) {
                lb.spec.listeners = Vec::new();
                lb.spec.backend_server_selector = None;
                lb.spec.health_check = None;
            }
            Some(lb)
        }
        Err(invalid) => {
            metrics.unreadable.with_label_values(&["LoadBalancer"]).inc();
            tracing::warn!(
                lb = format!(
                    "{}/{}",
                    invalid.metadata.namespace.unwrap_or_default(),
                    invalid.metadata.name.unwrap_or_default()
                ),
                error = invalid.error,
                "this LoadBalancer cannot be read and is left alone"
            );
            None
        }
    }
}

fn owner_of(meta: &ObjectMeta) -> Owner {
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    Owner { name: format!("{}/{}", part(&meta.namespace), part(&meta.name)), uid: part(&meta.uid) }
}
