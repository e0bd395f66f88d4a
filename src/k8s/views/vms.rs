//! The views of VirtualMachineInstances, of the pods that run them and of nodes.
//!
//! Each object is reduced to the few facts that decisions use, and these facts are stored. The
//! object itself is dropped at once.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::Ordering;

use kube::{Api, Resource, ResourceExt};
use kube_runtime::watcher::Config;

use super::host_links::CONTROL_PLANE;
use super::infrastructure::single;
use super::{ChangeEvent, InformerContext, ViewPart, Views, lock};
use crate::api::LoadBalancer;
use crate::api::kubevirt::{
    LAUNCHER, LauncherPod, Node, TOPOLOGY_REGION, TOPOLOGY_ZONE, VirtualMachineInstance,
};
use crate::domain::dhcp_lease::agent_deployment::LABEL_CLUSTER_NETWORKS;
use crate::domain::load_balancer::facts;
use crate::domain::network::infrastructure::Reserved;
use crate::domain::vm_backends::selector_index::LbKey;
use crate::domain::vm_backends::vm::{self, Topology};
use crate::domain::vm_backends::{listeners, topology};
use crate::k8s::guard::Guard;
use crate::k8s::informer::{self, ObjectEvent, is_out_of_reach, is_unserved, key, split_key};

pub(super) async fn watch_vms(at: InformerContext) {
    let known = || lock(&at.views.index.vms).vms().map(|(key, _)| key.to_owned()).collect();
    let on_event = |event| apply_vm(&at, event);
    let api = Api::<Guard<VirtualMachineInstance>>::all(at.client.clone());
    informer::watch_guarded(api, Config::default(), &at.metrics, known, on_event).await;
}

/// Applies an event of a VirtualMachineInstance to the view, and enqueues the LoadBalancers that
/// depend on the change.
pub(super) fn apply_vm(at: &InformerContext, event: ObjectEvent<VirtualMachineInstance>) {
    let views = &at.views;
    match event {
        ObjectEvent::Listed(vmi) | ObjectEvent::Changed(vmi) => views.set_vm(&vmi),
        ObjectEvent::Gone(key, _) => views.remove_vm(&key),
        ObjectEvent::Complete => at.done(ViewPart::Vms),
        // The cluster has no KubeVirt, so no VM determines the network of a guest. Leases and pools
        // need not wait for a list of VMs.
        ObjectEvent::Refused(status) if is_unserved(&status) => {
            if !views.index.no_vms.swap(true, Ordering::Relaxed) {
                views.enqueue_leased_lbs();
                views.enqueue_pool_lbs_asking_vms();
            }
        }
        // The right to list VMs is missing, so the list may never be complete. Pools do not wait
        // for it. An API server that has not read the roles yet refuses other lists too, and such a
        // refusal does not count.
        ObjectEvent::Refused(status) if is_out_of_reach(&status) && views.is_synced() => {
            if !views.index.vms_forbidden.swap(true, Ordering::Relaxed) {
                views.enqueue_pool_lbs_asking_vms();
            }
        }
        // This refusal does not show that the right is missing, so an earlier 403 no longer counts:
        // an API server that has just started may answer 403 first.
        ObjectEvent::Refused(_) => views.index.vms_forbidden.store(false, Ordering::Relaxed),
        ObjectEvent::Unreadable(_) => {}
    }
}

pub(super) async fn watch_pods(at: InformerContext) {
    let known = || lock(&at.views.index.vms).pod_names().map(ToOwned::to_owned).collect();
    let on_event = |event| apply_pod(&at, event);
    let api = Api::<LauncherPod>::all(at.client.clone());
    let label = format!("{}={}", LAUNCHER.0, LAUNCHER.1);
    let config = Config::default().labels(&label);
    informer::watch(api, config, &at.metrics, known, on_event).await;
}

/// Applies an event of a pod that runs a VM to the view, and enqueues the LoadBalancers that select
/// the VM. Enqueues none before [`Views::endpoints_synced`] is true, because no decision rests on
/// pods until then. The leader then calls [`Views::notify_of_all`], which enqueues all vm
/// LoadBalancers.
pub(super) fn apply_pod(at: &InformerContext, event: ObjectEvent<LauncherPod>) {
    let set = |key: &str, pod| {
        let (namespace, name) = split_key(key);
        let affected = lock(&at.views.index.vms).set_pod(namespace, name, pod);
        if at.views.endpoints_synced() {
            at.views.enqueue_lbs_of_changed_vms(affected);
        }
    };
    match event {
        ObjectEvent::Listed(pod) | ObjectEvent::Changed(pod) => {
            set(&key(pod.meta()), vm::pod(&pod));
        }
        ObjectEvent::Gone(key, _) => set(&key, None),
        ObjectEvent::Complete => at.done(ViewPart::Pods),
        ObjectEvent::Unreadable(_) | ObjectEvent::Refused(_) => {}
    }
}

pub(super) async fn watch_nodes(at: InformerContext) {
    let views = &at.views;
    let known = || lock(&views.index.nodes).keys().cloned().collect();
    let on_event = |event| match event {
        ObjectEvent::Listed(node) | ObjectEvent::Changed(node) => views.set_node(&node),
        ObjectEvent::Gone(name, _) => views.remove_node(&name),
        ObjectEvent::Complete => at.done(ViewPart::Nodes),
        ObjectEvent::Unreadable(_) | ObjectEvent::Refused(_) => {}
    };
    let api = Api::<Node>::all(at.client.clone());
    informer::watch(api, Config::default(), &at.metrics, known, on_event).await;
}

/// Facts from a Node object.
pub(super) struct KnownNode {
    /// Region and zone of the node.
    pub(super) topology: Topology,
    /// Keys of the node's labels for the cluster networks that the node is on.
    pub(super) cluster_networks: BTreeSet<String>,
    /// Addresses of type `InternalIP` of the node.
    pub(super) internal_addresses: Vec<IpAddr>,
}

impl Views {
    pub(super) fn set_vm(&self, vmi: &VirtualMachineInstance) {
        let (namespace, name) = (vmi.namespace().unwrap_or_default(), vmi.name_any());
        let (vm, labels) = (vm::vm(vmi), vm::labels(vmi));
        let here = lock(&self.index.nodes).get(&*vm.node).map(|node| node.topology.clone());
        let moved = here.is_some_and(|here| topology::patch(&vm, &here).is_some());
        let affected = lock(&self.index.vms).set_vm(&namespace, &name, &labels, vm);
        // No decision rests on VMs before their first list is complete.
        if self.is_listed(ViewPart::Vms) {
            self.enqueue_lbs_of_changed_vms(affected);
        }
        if moved {
            self.notify(ChangeEvent::Moved(format!("{namespace}/{name}").into()));
        }
    }

    pub(super) fn remove_vm(&self, key: &str) {
        let (namespace, name) = split_key(key);
        let affected: Vec<LbKey> = lock(&self.index.vms).remove_vm(namespace, name);
        self.enqueue_lbs_of_changed_vms(affected);
    }

    /// Whether the choice of a pool for the LoadBalancer must wait for the list of VMs, because the
    /// network of its guest cluster's VMs determines the pool. `false` also if no list of VMs can
    /// be expected: the host cluster does not serve VirtualMachineInstances, or the API server last
    /// refused the list because the operator lacks the right to it.
    pub fn awaits_vms(&self, lb: &LoadBalancer) -> bool {
        let is_forbidden = || self.index.vms_forbidden.load(Ordering::Relaxed);
        let is_known = self.is_listed(ViewPart::Vms) || self.has_no_vms() || is_forbidden();
        !is_known && facts::needs_vms_for_pool(lb)
    }

    /// Enqueues every LoadBalancer that takes its address from pools, and whose network is
    /// determined by the VMs of a guest cluster. Includes LoadBalancers that have an address. This
    /// address may be reserved, and the network of the VMs determines on which segment.
    pub(super) fn enqueue_pool_lbs_asking_vms(&self) {
        let asks =
            |lb: &LoadBalancer| facts::wants_pool(lb) && facts::asks_vms_for_network(lb).is_some();
        self.enqueue_lbs_that(asks);
    }

    pub(super) fn set_node(&self, node: &Node) {
        let name = node.name_any();
        let label = |key: &str| node.labels().get(key).map(|value| value.as_str().into());
        let topology = Topology { region: label(TOPOLOGY_REGION), zone: label(TOPOLOGY_ZONE) };
        let is_on = |(label, value): (&String, &String)| {
            (value == "true" && label.starts_with(LABEL_CLUSTER_NETWORKS)).then(|| label.clone())
        };
        let internal = node.status.addresses.iter().filter(|address| address.type_ == "InternalIP");
        let known = KnownNode {
            topology: topology.clone(),
            cluster_networks: node.labels().iter().filter_map(is_on).collect(),
            internal_addresses: internal
                .filter_map(|address| address.address.parse().ok())
                .collect(),
        };
        let before = lock(&self.index.nodes).insert(name.clone(), known);
        if before.is_none_or(|before| before.topology != topology) {
            self.notify_of_vms_on(&name);
        }
        let may_announce = node.labels().contains_key(CONTROL_PLANE);
        let is_news = lock(&self.index.host_links).set_announcing(&name, may_announce);
        self.enqueue_vm_lbs_if(is_news);
        let addresses = node.status.addresses.iter().map(|address| address.address.as_str());
        let pods = node.spec.pod_cidrs.iter().filter_map(|text| text.parse().ok()).collect();
        self.reserve(&Reserved::Node(name.clone()), single(addresses));
        self.reserve(&Reserved::PodNetwork(name), pods);
    }

    pub(super) fn remove_node(&self, name: &str) {
        lock(&self.index.nodes).remove(name);
        let is_news = lock(&self.index.host_links).set_announcing(name, false);
        self.enqueue_vm_lbs_if(is_news);
        self.reserve(&Reserved::Node(name.to_owned()), Vec::new());
        self.reserve(&Reserved::PodNetwork(name.to_owned()), Vec::new());
    }

    /// Reports each VM on `node` as [`ChangeEvent::Moved`], because the topology annotations of
    /// these VMs may be outdated.
    pub(super) fn notify_of_vms_on(&self, node: &str) {
        let residents: Vec<Box<str>> = lock(&self.index.vms)
            .vms()
            .filter(|(_, vm)| *vm.node == *node)
            .map(|(key, _)| key.into())
            .collect();
        for vm in residents {
            self.notify(ChangeEvent::Moved(vm));
        }
    }

    /// `namespace/name` of each VM whose topology annotations are outdated.
    pub fn moved(&self) -> Vec<Box<str>> {
        let mut all: Vec<Box<str>> =
            lock(&self.index.vms).vms().map(|(key, _)| key.into()).collect();
        let is_outdated = |(vm, here): (vm::Vm, Topology)| topology::patch(&vm, &here).is_some();
        all.retain(|vm| self.whereabouts(vm).is_some_and(is_outdated));
        all
    }

    /// Reports to the leader's handler what may need work at the start of a term:
    /// * each VM whose topology annotations are outdated, as [`ChangeEvent::Moved`]
    /// * each vm LoadBalancer, as [`ChangeEvent::LoadBalancer`]
    ///
    /// A new leader calls this function once.
    pub fn notify_of_all(&self) {
        for vm in self.moved() {
            self.notify(ChangeEvent::Moved(vm));
        }
        self.enqueue_lbs_that(listeners::is_vm);
    }
}
