//! Changes that the views report to the leader. The other files of this folder determine which
//! LoadBalancers depend on a change.
//!
//! `Views::notify` calls the function that the leader has registered. The call runs in the task
//! that reports the change, which is mostly an informer's. The function puts the change into the
//! queue of the task that must handle it.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use ipnet::IpNet;
use kube_runtime::reflector::ObjectRef;

use super::{Views, lock};
use crate::api::LoadBalancer;
use crate::domain::Owner;
use crate::domain::load_balancer::facts;
use crate::domain::vm_backends::selector_index::LbKey;

/// A change of observed objects that the leader must handle.
#[derive(Clone, Debug)]
pub enum ChangeEvent {
    /// A LoadBalancer was created or changed, or an object that the LoadBalancer depends on has
    /// changed.
    LoadBalancer(ObjectRef<LoadBalancer>),
    /// A LoadBalancer was deleted.
    Gone(Owner),
    /// A pool was listed, created or changed. Field 0: the pool's name. Field 1: its
    /// resourceVersion.
    Pool(String, String),
    /// A pool was deleted.
    PoolGone(String),
    /// One of these changes:
    /// * A network with a bridge was created or deleted.
    /// * The bridge or the VLAN of a network has changed.
    /// * A list of networks is complete, or the cluster does not serve networks.
    /// * The addresses that pools hold back have changed.
    Networks,
    /// The topology annotations of a VM may be outdated. The field is the VM's `namespace/name`.
    Moved(Box<str>),
}

/// Function of the leader, called for each change. The informer waits until the function returns,
/// so the function only puts the change into a queue.
type ChangeHandler = Arc<dyn Fn(ChangeEvent) + Send + Sync>;

/// The leader's handler of changes. `None`: this process does not lead.
#[derive(Clone, Default)]
pub(super) struct ChangeNotifier(Arc<Mutex<Option<ChangeHandler>>>);

/// Registration of the leader's handler. The drop of a `ChangeSubscription` ends the registration.
pub struct ChangeSubscription {
    notifier: ChangeNotifier,
    handler: ChangeHandler,
}

impl Drop for ChangeSubscription {
    fn drop(&mut self) {
        lock(&self.notifier.0).take_if(|handler| Arc::ptr_eq(handler, &self.handler));
    }
}

impl Views {
    /// Registers `handler`, which is then called for each change until the returned subscription is
    /// dropped. Replaces the handler of an earlier subscription. Clears the times that
    /// [`Self::take_touched`] returns, because they are from before this subscription.
    #[must_use]
    pub fn subscribe(
        &self,
        handler: impl Fn(ChangeEvent) + Send + Sync + 'static,
    ) -> ChangeSubscription {
        lock(&self.index.touched).clear();
        let handler: ChangeHandler = Arc::new(handler);
        *lock(&self.notifier.0) = Some(handler.clone());
        ChangeSubscription { notifier: self.notifier.clone(), handler }
    }

    /// Whether this process leads: a handler is registered.
    pub(super) fn has_subscriber(&self) -> bool {
        lock(&self.notifier.0).is_some()
    }

    pub(super) fn notify(&self, change: ChangeEvent) {
        // The lock is released before the handler is called, because the handler may read the
        // views.
        let handler = lock(&self.notifier.0).clone();
        if let Some(handler) = handler {
            handler(change);
        }
    }

    /// Reports the LoadBalancers `lbs` to the leader, each as [`ChangeEvent::LoadBalancer`]. An
    /// item of `lbs` is the `namespace/name` of a LoadBalancer. Has no effect if this process does
    /// not lead.
    pub fn enqueue_lbs(&self, lbs: impl IntoIterator<Item = impl AsRef<str>>) {
        for lb in lbs {
            if let Some((namespace, name)) = lb.as_ref().split_once('/') {
                self.notify(ChangeEvent::LoadBalancer(ObjectRef::new(name).within(namespace)));
            }
        }
    }

    /// Enqueues the LoadBalancers in the view that `is_concerned` selects.
    pub(super) fn enqueue_lbs_that(&self, is_concerned: impl Fn(&LoadBalancer) -> bool) {
        let lbs = self.load_balancers.state_filter(is_concerned);
        self.enqueue_lbs(lbs.iter().map(|lb| facts::name(lb)));
    }

    /// Enqueues the LoadBalancers that select a VM which reports an address in one of the networks.
    pub(super) fn enqueue_lbs_reporting(&self, networks: &[IpNet]) {
        // While `endpoints_synced` is false, no endpoints are decided, so no decision depends on
        // these networks yet.
        if self.endpoints_synced() {
            let affected = lock(&self.index.vms).reporting(networks);
            self.enqueue_lbs_of_changed_vms(affected);
        }
    }

    /// Enqueues the LoadBalancers that select a VM on the network `network`, which is a
    /// `namespace/name`.
    pub(super) fn enqueue_vm_lbs_on(&self, network: &str) {
        let affected = lock(&self.index.vms).on_network(network);
        self.enqueue_lbs_of_changed_vms(affected);
    }

    /// Enqueues the LoadBalancers `lbs`, whose EndpointSlices may be out of date from now on. The
    /// cause is a change of VMs that they select, or of facts about these VMs' addresses. Records
    /// the present time for [`Self::take_touched`], unless an earlier time is recorded.
    pub(super) fn enqueue_lbs_of_changed_vms(&self, lbs: Vec<LbKey>) {
        let now = Instant::now();
        let mut touched = lock(&self.index.touched);
        for lb in &lbs {
            touched.entry(lb.clone()).or_insert(now);
        }
        drop(touched);
        self.enqueue_lbs(lbs);
    }
}
