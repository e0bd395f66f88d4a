//! The view of namespaces: the Rancher project of each.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::Namespace;
use kube::core::PartialObjectMeta;
use kube::{Api, ResourceExt};
use kube_runtime::reflector::ObjectRef;
use kube_runtime::watcher::{Config, Event};

use super::{ChangeEvent, InformerContext, ViewPart, Views, lock};
use crate::api::ANNOTATION_NAMESPACE_PROJECT;
use crate::domain::load_balancer::facts::Project;
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
            let name = namespace.name_any();
            let new = project(&namespace);
            let old = lock(&views.projects).insert(name.clone(), new.clone());
            if old != Some(new) {
                views.tell_namespace(&name);
            }
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
    /// Enqueues the LoadBalancers of a namespace that is new or moved to another project: they may
    /// fit other pools.
    fn tell_namespace(&self, namespace: &str) {
        for lb in
            self.load_balancers.state_filter(|lb| lb.namespace().as_deref() == Some(namespace))
        {
            self.tell(ChangeEvent::LoadBalancer(ObjectRef::from_obj(lb.as_ref())));
        }
    }
}
