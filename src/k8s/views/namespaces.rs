//! The view of namespaces: the Rancher project of each.

use k8s_openapi::api::core::v1::Namespace;
use kube::core::PartialObjectMeta;
use kube::{Api, ResourceExt};
use kube_runtime::watcher::Config;

use super::{InformerContext, ViewPart, Views, lock};
use crate::api::ANNOTATION_NAMESPACE_PROJECT;
use crate::domain::load_balancer::facts::Project;
use crate::k8s::informer::{self, ObjectEvent};

/// Metadata of a namespace.
pub(super) type NamespaceMetadata = PartialObjectMeta<Namespace>;

pub(super) async fn watch(at: InformerContext) {
    let known = || lock(&at.views.index.projects).keys().cloned().collect();
    let on_event = |event| apply(&at, event);
    let api = Api::<NamespaceMetadata>::all(at.client.clone());
    informer::watch(api, Config::default(), &at.metrics, known, on_event).await;
}

/// Applies an event of a namespace to the view. Enqueues the LoadBalancers in the namespace if the
/// namespace is new, has moved to another project, or was found missing by a list. Other pools may
/// serve these LoadBalancers after such a change.
pub(super) fn apply(at: &InformerContext, event: ObjectEvent<NamespaceMetadata>) {
    let views = &at.views;
    match event {
        ObjectEvent::Listed(namespace) | ObjectEvent::Changed(namespace) => {
            if namespace.name_any() == "kube-system" {
                *lock(&views.index.cluster) = namespace.uid();
            }
            views.set_project(&namespace.name_any(), project(&namespace));
        }
        ObjectEvent::Gone(namespace, deleted) => {
            lock(&views.index.projects).remove(&namespace);
            // The API server deletes a namespace after the objects in it. So after a deletion that
            // was observed, no LoadBalancer is left in the namespace.
            if deleted.is_none() {
                views.enqueue_lbs_in_namespace(&namespace);
            }
        }
        ObjectEvent::Complete => at.done(ViewPart::Namespaces),
        ObjectEvent::Unreadable(_) | ObjectEvent::Refused(_) => {}
    }
}

fn project(namespace: &NamespaceMetadata) -> Project {
    let id = namespace.annotations().get(ANNOTATION_NAMESPACE_PROJECT);
    match id.filter(|id| !id.is_empty()) {
        Some(id) => Project::In(id.replacen(':', "/", 1)),
        None => Project::Outside,
    }
}

impl Views {
    pub(super) fn set_project(&self, namespace: &str, new: Project) {
        let old = lock(&self.index.projects).insert(namespace.to_owned(), new.clone());
        if old != Some(new) {
            self.enqueue_lbs_in_namespace(namespace);
        }
    }

    /// Enqueues the LoadBalancers of a namespace. Other pools may serve them after a change of the
    /// namespace's project in the view.
    fn enqueue_lbs_in_namespace(&self, namespace: &str) {
        self.enqueue_lbs_that(|lb| lb.namespace().as_deref() == Some(namespace));
    }
}
