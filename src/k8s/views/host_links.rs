//! The view of HostNetworkConfigs: the nodes that have a link for a VLAN.

use kube::{Api, ResourceExt};
use kube_runtime::watcher::Config;

use super::{InformerContext, ViewPart, Views, lock};
use crate::api::kubevirt::{HostNetworkConfig, HostNetworkConfigStatus};
use crate::domain::network::host_links::HostLink;
use crate::domain::vm_backends::listeners;
use crate::k8s::guard::Guard;
use crate::k8s::informer::{self, ObjectEvent, is_out_of_reach, key};

/// Label of the nodes on which Harvester runs kube-vip.
pub(super) const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

pub(super) async fn watch(at: InformerContext) {
    let known = || lock(&at.views.index.host_links).configs().map(ToOwned::to_owned).collect();
    let on_event = |event| apply(&at, event);
    let api = Api::<Guard<HostNetworkConfig>>::all(at.client.clone());
    informer::watch_guarded(api, Config::default(), &at.metrics, known, on_event).await;
}

/// Applies an event of a HostNetworkConfig to the view, and enqueues all vm LoadBalancers if the
/// nodes' VLAN links have changed.
pub(super) fn apply(at: &InformerContext, event: ObjectEvent<HostNetworkConfig>) {
    let views = &at.views;
    let set = |config: &str, made: Option<HostLink>| {
        let is_news = lock(&views.index.host_links).set(config, made);
        views.enqueue_vm_lbs_if(is_news);
    };
    match event {
        ObjectEvent::Listed(config) | ObjectEvent::Changed(config) => {
            set(&config.name_any(), Some(made(&config)));
        }
        // A HostNetworkConfig that cannot be parsed counts as one that does not exist.
        ObjectEvent::Unreadable(meta) => set(&key(&meta), None),
        ObjectEvent::Gone(name, _) => set(&name, None),
        ObjectEvent::Complete => at.done(ViewPart::HostLinks),
        // Refusals with 404 or 403 count as a complete list. 404: Harvester before 1.8 does not
        // serve the kind. 403: a role that is older than this program has no right to list the
        // kind.
        ObjectEvent::Refused(status) if is_out_of_reach(&status) => at.done(ViewPart::HostLinks),
        ObjectEvent::Refused(_) => {}
    }
}

impl Views {
    /// Enqueues all vm LoadBalancers if `is_news` is true. `is_news`: whether the nodes' VLAN links
    /// have changed, or announcers may run on other nodes than before. Has no effect before
    /// [`Self::endpoints_synced`] is true, because the leader enqueues all vm LoadBalancers at that
    /// moment.
    pub(super) fn enqueue_vm_lbs_if(&self, is_news: bool) {
        if is_news && self.endpoints_synced() {
            self.enqueue_lbs_that(listeners::is_vm);
        }
    }
}

fn made(config: &HostNetworkConfig) -> HostLink {
    let none = HostNetworkConfigStatus::default();
    let status = config.status.as_ref().unwrap_or(&none);
    let works = |node: &&String| {
        let conditions = status.node_status.get(*node).map(|node| &node.conditions);
        conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
    };
    HostLink {
        bridge: format!("{}-br", config.spec.cluster_network),
        vlan: config.spec.vlan_id,
        nodes: status.node_status.keys().filter(works).cloned().collect(),
    }
}
