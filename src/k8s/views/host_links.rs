//! The view of HostNetworkConfigs: the nodes that have a link for a VLAN.

use std::collections::BTreeSet;

use kube::{Api, ResourceExt};
use kube_runtime::watcher::{Config, Event};

use super::{InformerContext, ViewPart, Views, lock};
use crate::api::kubevirt::{HostNetworkConfig, HostNetworkConfigStatus};
use crate::domain::load_balancer::facts;
use crate::domain::network::host_links::HostLink;
use crate::domain::vm_backends::listeners;
use crate::k8s::guard::Guard;
use crate::k8s::informer;

/// Label of the nodes on which Harvester runs kube-vip.
pub(super) const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

pub(super) async fn watch(at: InformerContext) {
    let InformerContext { client, views, .. } = at.clone();
    let mut listed = BTreeSet::new();
    let set = |config: &Guard<HostNetworkConfig>| {
        // A config that cannot be parsed has made no link.
        let made = config.0.as_ref().inspect_err(|misfit| {
            tracing::warn!(config = config.name_any(), error = %misfit, "HostNetworkConfig not read");
        });
        let is_news = lock(&views.host_links).set(&config.name_any(), made.ok().map(self::made));
        views.tell_announced(is_news);
    };
    let on_event = |event: Event<Guard<HostNetworkConfig>>| match event {
        Event::Init => listed.clear(),
        Event::InitApply(config) => {
            listed.insert(config.name_any());
            set(&config);
        }
        Event::InitDone => {
            let is_news = lock(&views.host_links).keep_only(&listed);
            listed.clear();
            at.done(ViewPart::HostLinks);
            views.tell_announced(is_news);
        }
        Event::Apply(config) => set(&config),
        Event::Delete(config) => {
            let is_news = lock(&views.host_links).set(&config.name_any(), None);
            views.tell_announced(is_news);
        }
    };
    // Harvester serves the kind since 1.8, and a role may be older than this program.
    let out_of_reach = |status: &kube::core::Status| {
        if matches!(status.code, 403 | 404) {
            at.done(ViewPart::HostLinks);
        }
    };
    let api = Api::<Guard<HostNetworkConfig>>::all(client);
    let kind = "HostNetworkConfig";
    informer::run_or_tell(api, Config::default(), kind, &at.metrics, on_event, out_of_reach).await;
}

impl Views {
    /// Enqueues all vm LoadBalancers if `is_news`: they may be announced on other links. This is
    /// rare.
    pub(super) fn tell_announced(&self, is_news: bool) {
        if is_news && self.endpoints_synced() {
            let vms = self.load_balancers.state_filter(listeners::is_vm);
            self.tell_lbs(vms.iter().map(|lb| facts::name(lb)));
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
