//! Failed reconciles of one controller: number of consecutive failures of each object, delay of the
//! next attempt, and metric.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Mutex;
use std::time::Duration;

use kube::Resource;
use kube::core::DynamicObject;
use kube_runtime::controller::Action;
use kube_runtime::reflector::ObjectRef;

use crate::domain::limits::backoff::backoff;
use crate::locks::lock;
use crate::metrics::Metrics;

/// Longest delay before an object is reconciled again, however often its reconciles failed.
pub(super) const LONGEST_DELAY: Duration = Duration::from_secs(30);

/// Consecutive failures of the objects of one controller. `N` is the type of an object's name.
pub(super) struct FailedReconciles<N> {
    controller: &'static str,
    /// Delay before an object is reconciled again after its first failure. Each further failure
    /// doubles the delay, up to [`LONGEST_DELAY`]. Jitter shortens a delay by up to half.
    first: Duration,
    metrics: Metrics,
    failures: Mutex<HashMap<N, u32>>,
}

impl<N: Eq + Hash> FailedReconciles<N> {
    /// Starts with no failure. `controller`: value of the metric's label `controller`. `first`:
    /// delay before an object is reconciled again after its first failure.
    pub(super) fn new(controller: &'static str, first: Duration, metrics: &Metrics) -> Self {
        Self { controller, first, metrics: metrics.clone(), failures: Mutex::default() }
    }

    /// Counts a failed reconcile of the object `name`, in memory and in the metric. Returns the
    /// number of consecutive failures before this one, and the delay before the next reconcile.
    /// `error_kind`: value of the metric's label `error`.
    pub(super) fn count_name(&self, name: N, error_kind: &str) -> (u32, Duration) {
        self.metrics.reconcile_errors.with_label_values(&[self.controller, error_kind]).inc();
        self.delay(name)
    }

    /// Sets the number of failures of the object `name` to zero, because the object was reconciled
    /// or is gone.
    pub(super) fn forget(&self, name: &N) {
        lock(&self.failures).remove(name);
    }

    fn delay(&self, name: N) -> (u32, Duration) {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let failures = {
            let mut failures = lock(&self.failures);
            let count = failures.entry(name).or_default();
            *count = count.saturating_add(1);
            *count - 1
        };
        // The jitter gives objects that failed at the same time different delays.
        failures.hash(&mut hasher);
        let jitter = f64::from(u8::try_from(hasher.finish() & 0xff).unwrap_or_default()) / 255.0;
        (failures, backoff(failures, self.first, LONGEST_DELAY, jitter))
    }
}

impl<K: Resource<DynamicType = ()>> FailedReconciles<ObjectRef<K>> {
    /// Counts a failed reconcile of `object`, as [`Self::count_name`] does. Returns the same
    /// values, but the delay as an [`Action`].
    pub(super) fn count(&self, object: &K, error_kind: &str) -> (u32, Action) {
        let (failures, delay) = self.count_name(ObjectRef::from_obj(object), error_kind);
        (failures, Action::requeue(delay))
    }

    /// Counts a failed reconcile of `object`, as [`Self::count`] does, but not in the metric.
    pub(super) fn try_again(&self, object: &K) -> (u32, Action) {
        let (failures, delay) = self.delay(ObjectRef::from_obj(object));
        (failures, Action::requeue(delay))
    }

    /// Forgets the failures of the object `name`, which the controller did not find in its store.
    pub(super) fn forget_missing(&self, name: &ObjectRef<DynamicObject>) {
        self.forget(
            &ObjectRef::new(&name.name).within(name.namespace.as_deref().unwrap_or_default()),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::LoadBalancer;

    #[test]
    fn failures_of_each_object_are_counted_until_it_is_reconciled_or_gone() {
        let metrics = Metrics::new().unwrap();
        let first = Duration::from_millis(100);
        let failed =
            FailedReconciles::<ObjectRef<LoadBalancer>>::new("load_balancer", first, &metrics);
        let object = |name: &str| {
            let mut lb = LoadBalancer::new(name, crate::api::LoadBalancerSpec::default());
            lb.metadata.namespace = Some("default".to_owned());
            lb
        };
        let (web, dns) = (object("web"), object("dns"));
        assert_eq!(failed.count(&web, "conflict").0, 0);
        assert_eq!(failed.count(&web, "refused").0, 1);
        assert_eq!(failed.try_again(&web).0, 2);
        assert_eq!(failed.count(&dns, "conflict").0, 0);
        let errors = |kind| metrics.reconcile_errors.with_label_values(&["load_balancer", kind]);
        assert_eq!((errors("conflict").get(), errors("refused").get()), (2, 1));

        failed.forget(&ObjectRef::from_obj(&web));
        failed.forget_missing(&ObjectRef::from_obj(&dns).erase());
        assert_eq!((failed.try_again(&web).0, failed.try_again(&dns).0), (0, 0));
    }

    #[test]
    fn objects_that_failed_together_are_not_tried_again_together() {
        let metrics = Metrics::new().unwrap();
        let failed = FailedReconciles::<ObjectRef<LoadBalancer>>::new(
            "load_balancer",
            Duration::from_secs(1),
            &metrics,
        );
        let delays = (0..20).map(|n| {
            let lb = LoadBalancer::new(&format!("lb{n}"), crate::api::LoadBalancerSpec::default());
            format!("{:?}", failed.try_again(&lb).1)
        });
        let different = delays.collect::<std::collections::HashSet<_>>();
        assert!(different.len() > 10, "{different:?}");
    }
}
