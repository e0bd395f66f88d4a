//! The view of namespaces: which there are, and which Rancher project each is in.

use std::collections::{HashMap, HashSet};

use k8s_openapi::api::core::v1::Namespace;
use kube::core::PartialObjectMeta;
use kube::{Api, ResourceExt};
use kube_runtime::reflector::ObjectRef;
use kube_runtime::watcher::{Config, Event};

use super::{Informer, Part, Signal, Views, lock};
use crate::api::ANNOTATION_NAMESPACE_PROJECT;
use crate::k8s::informer;

pub(super) async fn watch(at: Informer) {
    let Informer { client, views, metrics, .. } = at.clone();
    let mut listed: HashMap<String, String> = HashMap::new();
    let mut names: HashSet<String> = HashSet::new();
    let api = Api::<PartialObjectMeta<Namespace>>::all(client);
    let project = |namespace: &PartialObjectMeta<Namespace>| {
        let id = namespace.annotations().get(ANNOTATION_NAMESPACE_PROJECT)?;
        Some(id.replacen(':', "/", 1))
    };
    informer::run(api, Config::default(), "Namespace", &metrics, |event| match event {
        Event::Init => {
            listed.clear();
            names.clear();
        }
        Event::InitApply(namespace) => {
            names.insert(namespace.name_any());
            if let Some(project) = project(&namespace) {
                listed.insert(namespace.name_any(), project);
            }
        }
        Event::InitDone => {
            *lock(&views.namespaces) = std::mem::take(&mut names);
            let new = std::mem::take(&mut listed);
            let old = std::mem::replace(&mut *lock(&views.projects), new.clone());
            for namespace in old.keys().chain(new.keys()) {
                if old.get(namespace) != new.get(namespace) {
                    views.tell_namespace(namespace);
                }
            }
            at.done(Part::Namespaces);
        }
        Event::Apply(namespace) => {
            let name = namespace.name_any();
            lock(&views.namespaces).insert(name.clone());
            let new = project(&namespace);
            let old = match new.clone() {
                Some(project) => lock(&views.projects).insert(name.clone(), project),
                None => lock(&views.projects).remove(&name),
            };
            if old != new {
                views.tell_namespace(&name);
            }
        }
        Event::Delete(namespace) => {
            lock(&views.projects).remove(&namespace.name_any());
            lock(&views.namespaces).remove(&namespace.name_any());
        }
    })
    .await;
}

impl Views {
    /// A namespace moved to another project: its LoadBalancers may fit other pools.
    fn tell_namespace(&self, namespace: &str) {
        for lb in
            self.load_balancers.state_filter(|lb| lb.namespace().as_deref() == Some(namespace))
        {
            self.tell(Signal::LoadBalancer(ObjectRef::from_obj(lb.as_ref())));
        }
    }
}
