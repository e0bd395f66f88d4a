//! The view of VirtualMachines that Rancher's node driver has created as nodes of guest clusters.
//! An annotation of such a VM may say that its guest cluster is being removed. Only the metadata of
//! the VMs is watched.
//!
//! Invariant: a VM has no effect on LoadBalancers of other namespaces, because a guest cluster is
//! identified by its namespace and name. Otherwise, a tenant could annotate a VM, and so keep
//! LoadBalancers of another tenant from getting addresses.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kube::core::PartialObjectMeta;
use kube::{Api, Resource, ResourceExt};
use kube_runtime::watcher::Config;

use super::{InformerContext, ViewPart, Views, lock};
use crate::api::kubevirt::{
    ANNOTATION_REMOVES_VOLUMES, LABEL_CREATOR, LABEL_GUEST_CLUSTER, NODE_DRIVER, VirtualMachine,
};
use crate::domain::load_balancer::facts;
use crate::k8s::informer::{self, ObjectEvent, key, split_key};

type Machine = PartialObjectMeta<VirtualMachine>;
/// Namespace and name of a guest cluster.
type Cluster = (String, String);

/// VMs with an annotation which says that their guest cluster is being removed.
#[derive(Default)]
pub(super) struct GuestRemovals {
    by_cluster: BTreeMap<Cluster, BTreeSet<String>>,
    /// Map from the `namespace/name` of a VM to its guest cluster. Contains only VMs with the
    /// annotation which says that the cluster is being removed.
    cluster_of: HashMap<String, Cluster>,
}

impl GuestRemovals {
    /// Name of the first VM, in alphabetical order, with an annotation which says that its guest
    /// cluster `cluster` is being removed. `None`: there is no such VM.
    pub(super) fn of(&self, namespace: &str, cluster: &str) -> Option<String> {
        let key = (namespace.to_owned(), cluster.to_owned());
        self.by_cluster.get(&key)?.first().cloned()
    }

    /// Records the guest cluster that is being removed according to an annotation of the VM `vm`
    /// (`namespace/name`). `cluster: None`: the VM is gone, has no such annotation, or names no
    /// cluster. Returns the clusters for which the result of [`Self::of`] may have changed.
    fn set(&mut self, vm: &str, cluster: Option<String>) -> Vec<Cluster> {
        let (namespace, name) = split_key(vm);
        let now = cluster.map(|cluster| (namespace.to_owned(), cluster));
        let before = match &now {
            Some(now) => self.cluster_of.insert(vm.to_owned(), now.clone()),
            None => self.cluster_of.remove(vm),
        };
        if before == now {
            return Vec::new();
        }
        if let Some(before) = &before
            && let Some(vms) = self.by_cluster.get_mut(before)
        {
            vms.remove(name);
            if vms.is_empty() {
                self.by_cluster.remove(before);
            }
        }
        if let Some(now) = &now {
            self.by_cluster.entry(now.clone()).or_default().insert(name.to_owned());
        }
        before.into_iter().chain(now).collect()
    }
}

pub(super) async fn watch(at: InformerContext) {
    let views = &at.views;
    let known = || lock(&views.index.removals).cluster_of.keys().cloned().collect();
    let on_event = |event: ObjectEvent<Machine>| match event {
        ObjectEvent::Listed(vm) | ObjectEvent::Changed(vm) => {
            views.set_machine(&key(vm.meta()), shown_by(&vm));
        }
        ObjectEvent::Gone(vm, _) => views.set_machine(&vm, None),
        ObjectEvent::Complete => at.done(ViewPart::Machines),
        // The list is refused where KubeVirt is not installed. There are no guest clusters there.
        // If only the right to list is missing, the informer reports that. Until the right is
        // granted, a LoadBalancer of a guest cluster that is being removed may get an address.
        ObjectEvent::Unreadable(_) | ObjectEvent::Refused(_) => {}
    };
    let api = Api::<Machine>::all(at.client.clone());
    let of_guests = format!("{LABEL_CREATOR}={NODE_DRIVER},{LABEL_GUEST_CLUSTER}");
    let config = Config::default().labels(&of_guests);
    informer::watch(api, config, &at.metrics, known, on_event).await;
}

impl Views {
    pub(super) fn set_machine(&self, vm: &str, cluster: Option<String>) {
        let changed = lock(&self.index.removals).set(vm, cluster);
        for (namespace, cluster) in changed {
            self.enqueue_lbs_that(|lb| {
                lb.namespace().as_deref() == Some(&namespace)
                    && facts::guest_cluster(lb).as_deref() == Some(&cluster)
            });
        }
    }
}

/// Name of the VM's guest cluster, if an annotation of the VM says that the cluster is being
/// removed. `None`: no annotation says so, or the VM's label names no cluster.
fn shown_by(vm: &Machine) -> Option<String> {
    vm.annotations().get(ANNOTATION_REMOVES_VOLUMES).filter(|value| *value == "true")?;
    vm.labels().get(LABEL_GUEST_CLUSTER).filter(|cluster| !cluster.is_empty()).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_being_removed_as_long_as_one_of_its_vms_shows_it() {
        let mut removals = GuestRemovals::default();
        let mut set = |vm: &str, cluster: Option<&str>| {
            let changed = removals.set(&format!("ns/{vm}"), cluster.map(Into::into));
            (changed.len(), removals.of("ns", "a"), removals.of("ns", "b"))
        };
        let vm = |name: &str| Some(name.to_owned());
        assert_eq!(set("2", None), (0, None, None));
        assert_eq!(set("2", Some("a")), (1, vm("2"), None));
        assert_eq!(set("2", Some("a")), (0, vm("2"), None));
        assert_eq!(set("1", Some("a")), (1, vm("1"), None));
        assert_eq!(set("1", Some("b")), (2, vm("2"), vm("1")), "a label was changed");
        assert_eq!(set("2", None), (1, None, vm("1")));
        assert_eq!(removals.of("other", "b"), None);
        removals.set("ns/1", None);
        assert!(removals.by_cluster.is_empty() && removals.cluster_of.is_empty());
    }

    /// Only the value `true` of the annotation says that the cluster is being removed, as for
    /// Harvester's webhook.
    #[test]
    fn an_annotation_that_says_true_shows_it_and_no_other_does() {
        for (value, shows) in [("true", true), ("false", false), ("disk-0", false), ("", false)] {
            let mut vm: Machine = serde_json::from_value(serde_json::json!({
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
                "metadata": {"name": "vm", "annotations": {ANNOTATION_REMOVES_VOLUMES: value}},
            }))
            .unwrap();
            assert_eq!(shown_by(&vm), None, "a VM of no cluster");
            vm.metadata.labels = Some([(LABEL_GUEST_CLUSTER.to_owned(), "a".to_owned())].into());
            assert_eq!(shown_by(&vm).is_some(), shows, "{value}");
        }
    }
}
