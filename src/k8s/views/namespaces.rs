//! The view of namespaces: the Rancher project of each.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::Namespace;
use kube::core::PartialObjectMeta;
use kube::{Api, ResourceExt};
use kube_runtime::watcher::{Config, Event};

use super::{InformerContext, ViewPart, Views, lock};
use crate::api::{ANNOTATION_NAMESPACE_PROJECT, LoadBalancer};
use crate::domain::load_balancer::facts::{self, Project};
use crate::k8s::informer;

pub(super) async fn watch(at: InformerContext) {
    let InformerContext { client, views, metrics, .. } = at.clone();
    let mut listed: HashMap<String, Project> = HashMap::new();
    let api = Api::<PartialObjectMeta<Namespace>>::all(client);
    let project = |namespace: &PartialObjectMeta<Namespace>| {
        let id = namespace.annotations().get(ANNOTATION_NAMESPACE_PROJECT);
        match id.filter(|id| !id.is_empty()) {
            Some(id) => Project::In(id.replacen(':', "/", 1)),
            None => Project::Outside,
        }
    };
    informer::run(api, Config::default(), "Namespace", &metrics, |event| match event {
        Event::Init => listed.clear(),
        Event::InitApply(namespace) => {
            know_cluster(&views, &namespace);
            listed.insert(namespace.name_any(), project(&namespace));
        }
        Event::InitDone => {
            let new = std::mem::take(&mut listed);
            let old = std::mem::replace(&mut *lock(&views.projects), new.clone());
            for namespace in old.keys().chain(new.keys()) {
                if old.get(namespace) != new.get(namespace) {
                    views.tell_namespace(namespace);
                }
            }
            at.done(ViewPart::Namespaces);
        }
        Event::Apply(namespace) => {
            know_cluster(&views, &namespace);
            views.set_project(&namespace.name_any(), project(&namespace));
        }
        Event::Delete(namespace) => {
            lock(&views.projects).remove(&namespace.name_any());
        }
    })
    .await;
}

fn know_cluster(views: &Views, namespace: &PartialObjectMeta<Namespace>) {
    if namespace.name_any() == "kube-system" {
        *lock(&views.cluster) = namespace.uid();
    }
}

impl Views {
    pub(super) fn set_project(&self, namespace: &str, new: Project) {
        let old = lock(&self.projects).insert(namespace.to_owned(), new.clone());
        if old != Some(new) {
            self.tell_namespace(namespace);
        }
    }

    /// Enqueues the LoadBalancers of a namespace that is new or moved to another project: they may
    /// fit other pools.
    fn tell_namespace(&self, namespace: &str) {
        let is_there = |lb: &LoadBalancer| lb.namespace().as_deref() == Some(namespace);
        let lbs = self.load_balancers.state_filter(is_there);
        self.tell_lbs(lbs.iter().map(|lb| facts::name(lb)));
    }
}
