//! Delayed writes of the counts of VMs, which are `status.endpoints` and `status.backendServers`.
//!
//! EndpointSlices are written at once, because traffic follows them. The counts are mainly for
//! people, so their write waits for [`DELAY`]. One write then covers several changes, for example
//! when a node with many VMs fails. A VM that is ready again within the delay needs no write of the
//! counts. Without the delay, such a VM cost 1.4 times the CPU time, and the slowest changes of
//! EndpointSlices (p99) took twice as long, because a reconcile waited for the write of the counts
//! (`make bench`, part `endpoints`).
//!
//! One decision of the operator depends on `backendServers` ([`backend_address::fault`]). If the
//! address of a VM outside the pod network becomes the ingress address of a Service, the VM keeps
//! the address only if `backendServers` lists it. The delay has two effects on this decision:
//!
//! * Until the write, `backendServers` lacks a new address of a VM. If the address becomes the
//!   ingress address of a Service in this time, the VM loses the address. This gives no tenant a
//!   new power. A VM that reports the ingress address of an existing Service does not get this
//!   address either.
//! * Until the write, `backendServers` still lists the address of a VM that is being deleted. If
//!   the address becomes the ingress address of a Service in this time, the VM keeps the address
//!   until the write, and drains there.
//!
//! [`backend_address::fault`]: crate::domain::vm_backends::backend_address::fault
//!
//! The patch itself waits, so its write needs no reconcile. A requeue instead of the waiting patch
//! would cost one more reconcile for each lasting change, which is more than the delay saves.
//!
//! Invariant: a write takes the patch of the last decision. Each decision replaces or removes the
//! waiting patch, and a write takes the patch only after it has waited for its turns. A decision
//! during the write may use the object from before the write. But the event of the write triggers a
//! reconcile, which decides again.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use futures::StreamExt;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::{LbContext, publish};
use crate::k8s::CallError;
use crate::k8s::informer::split_key;
use crate::locks::lock;

/// Delay of the write of counts, from the first change that the write contains.
const DELAY: Duration = Duration::from_secs(1);

/// Patches that wait, by the LoadBalancer's `namespace/name`.
pub(super) struct DelayedCounts {
    waiting: Mutex<HashMap<String, WaitingPatch>>,
    queue: mpsc::UnboundedSender<(Instant, String)>,
}

struct WaitingPatch {
    /// Time of the write.
    due: Instant,
    /// Merge patch with the resourceVersion of the object that it was computed from.
    patch: Value,
    /// Whether the LoadBalancer is large, so that the write also needs a turn of
    /// [`LbContext::large`].
    large: bool,
}

/// Queue of LoadBalancers (`namespace/name`), each with the time when its patch is due. The times
/// are in order.
pub(super) type DueCounts = mpsc::UnboundedReceiver<(Instant, String)>;

impl DelayedCounts {
    pub(super) fn new() -> (Self, DueCounts) {
        let (queue, due) = mpsc::unbounded_channel();
        (Self { waiting: Mutex::default(), queue }, due)
    }

    /// Schedules the patch of the LoadBalancer `lb`, in the place of an earlier patch. Returns
    /// `false` if the earlier patch was overdue, because its write waits for a turn or has failed.
    /// Then the caller must write the new patch.
    pub(super) fn delay(&self, lb: &str, patch: &Value, large: bool, now: Instant) -> bool {
        let mut waiting = lock(&self.waiting);
        let before = waiting.get(lb).map(|waiting| waiting.due);
        let due = before.unwrap_or(now + DELAY);
        waiting.insert(lb.to_owned(), WaitingPatch { due, patch: patch.clone(), large });
        if before.is_none() {
            // The send fails only at the end of the term, when the receiver is dropped.
            let _ = self.queue.send((due, lb.to_owned()));
        }
        due > now
    }

    /// Removes the waiting patch of the LoadBalancer `lb`, if there is one. The patch is then not
    /// written, unless its write has begun already.
    pub(super) fn discard(&self, lb: &str) {
        lock(&self.waiting).remove(lb);
    }

    /// The patch that is due at `due`. `None`: the patch was removed, perhaps in favour of a later
    /// one.
    fn due_at(&self, due: Instant, lb: &str) -> Option<Value> {
        let waiting = lock(&self.waiting);
        waiting.get(lb).filter(|found| found.due == due).map(|found| found.patch.clone())
    }

    /// Whether the LoadBalancer of the patch that is due at `due` is large. `None`: as for
    /// [`Self::due_at`].
    fn is_large_at(&self, due: Instant, lb: &str) -> Option<bool> {
        let waiting = lock(&self.waiting);
        waiting.get(lb).filter(|found| found.due == due).map(|found| found.large)
    }

    /// Removes the patch after its write, unless another patch has replaced it.
    fn discard_unless_replaced(&self, lb: &str, written: &Value) {
        let mut waiting = lock(&self.waiting);
        if waiting.get(lb).is_some_and(|found| found.patch == *written) {
            waiting.remove(lb);
        }
    }
}

/// Writes each patch that is due, until dropped.
pub(super) async fn run(mut due: DueCounts, ctx: &LbContext) {
    let due = futures::stream::poll_fn(|task| due.poll_recv(task));
    due.for_each_concurrent(None, async |(at, lb)| {
        sleep_until(at).await;
        write(at, &lb, ctx).await;
    })
    .await;
}

async fn write(at: Instant, lb: &str, ctx: &LbContext) {
    let Some(large) = ctx.counts.is_large_at(at, lb) else { return };
    let (namespace, name) = split_key(lb);
    let _large_turn = if large { Some(ctx.large.take(namespace.to_owned()).await) } else { None };
    let _turn = ctx.writes.take(namespace.to_owned()).await;
    let Some(patch) = ctx.counts.due_at(at, lb) else { return };
    match publish::write_counts(namespace, name, &patch, ctx).await {
        Ok(()) => ctx.counts.discard_unless_replaced(lb, &patch),
        Err(CallError::NotFound(_)) => ctx.counts.discard(lb),
        Err(CallError::NotLeader) => {}
        // The patch stays and is overdue, so the next reconcile writes it and handles the error.
        Err(_) => ctx.shared.views.enqueue_lbs([lb]),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LB: &str = "ns/web";

    #[test]
    fn the_last_patch_is_written_a_second_after_the_first_change() {
        let (counts, mut queue) = DelayedCounts::new();
        let now = Instant::now();
        let due = now + DELAY;
        assert!(counts.delay(LB, &json!(1), false, now));
        assert!(counts.delay(LB, &json!(2), true, now + DELAY / 2));
        assert_eq!(queue.try_recv(), Ok((due, LB.to_owned())));
        assert!(queue.try_recv().is_err(), "one write for both");
        assert_eq!(counts.is_large_at(due, LB), Some(true));
        assert_eq!(counts.due_at(due, LB), Some(json!(2)));
        counts.discard_unless_replaced(LB, &json!(1));
        assert!(counts.due_at(due, LB).is_some(), "a later decision");
        counts.discard_unless_replaced(LB, &json!(2));
        assert_eq!(counts.due_at(due, LB), None);
    }

    #[test]
    fn counts_that_are_current_again_are_not_written() {
        let (counts, _queue) = DelayedCounts::new();
        let now = Instant::now();
        assert!(counts.delay(LB, &json!(1), false, now));
        assert_eq!(counts.is_large_at(now + DELAY, LB), Some(false));
        counts.discard(LB);
        assert_eq!(counts.due_at(now + DELAY, LB), None, "settled while the write waits");
        // The next change begins a delay of its own.
        assert!(counts.delay(LB, &json!(2), false, now + DELAY / 2));
        assert_eq!(counts.due_at(now + DELAY, LB), None);
        assert!(counts.due_at(now + DELAY / 2 + DELAY, LB).is_some());
    }

    /// The caller writes, so that a failure is counted and delays the next try.
    #[test]
    fn after_a_failed_write_the_caller_writes() {
        let (counts, _queue) = DelayedCounts::new();
        let now = Instant::now();
        assert!(counts.delay(LB, &json!(1), false, now));
        assert!(!counts.delay(LB, &json!(2), false, now + DELAY));
        let waiting = counts.due_at(now + DELAY, LB);
        assert_eq!(waiting, Some(json!(2)), "for a write that waits for its turn");
        counts.discard(LB);
        assert!(counts.delay(LB, &json!(2), false, now + DELAY));
    }
}
