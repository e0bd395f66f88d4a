//! Delayed writes of counts of VMs.
//!
//! A node failure changes the counts of one LoadBalancer once for each of its VMs. The delay merges
//! these writes, and avoids them if the VM is back within [`WITHIN`]. The queue contains the patch
//! itself, so its write needs no further decision. With a requeue instead, each lasting change of a
//! VM would take two reconciles.
//!
//! Invariant: the written patch is that of the last decision. Each decision replaces or removes the
//! waiting patch. The event of each write triggers a reconcile, so a decision that was made during
//! the write is not the last.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::{LbContext, publish};
use crate::api::LoadBalancer;
use crate::domain::load_balancer::facts;
use crate::k8s::CallError;

/// Longest delay of counts.
const WITHIN: Duration = Duration::from_secs(1);

/// Waiting patches, by UID of the LoadBalancer.
pub(super) struct DeferredCounts {
    waiting: Mutex<HashMap<String, WaitingPatch>>,
    due: mpsc::UnboundedSender<(Instant, String)>,
}

struct WaitingPatch {
    /// Time of the write.
    due: Instant,
    lb: Arc<LoadBalancer>,
    patch: Value,
}

/// Queue of UIDs with the time when each is due, in order.
pub(super) type Due = mpsc::UnboundedReceiver<(Instant, String)>;

impl DeferredCounts {
    pub(super) fn new() -> (Self, Due) {
        let (due, receiver) = mpsc::unbounded_channel();
        (Self { waiting: Mutex::default(), due }, receiver)
    }

    /// Schedules a patch of counts in the place of an earlier one. Returns false if the earlier
    /// patch is overdue: then the new patch is not scheduled, and the caller must write it.
    pub(super) fn defer(&self, lb: &Arc<LoadBalancer>, patch: Value) -> bool {
        let uid = uid(lb);
        let now = Instant::now();
        let mut waiting = self.waiting();
        let before = waiting.get(uid).map(|waiting| waiting.due);
        if before.is_some_and(|due| due <= now) {
            return false;
        }
        let due = before.unwrap_or(now + WITHIN);
        waiting.insert(uid.to_owned(), WaitingPatch { due, lb: lb.clone(), patch });
        if before.is_none() {
            // The receiver is gone after the end of the term.
            let _ = self.due.send((due, uid.to_owned()));
        }
        true
    }

    /// Removes the waiting patch, because the stored counts are current.
    pub(super) fn settle(&self, lb: &LoadBalancer) {
        self.waiting().remove(uid(lb));
    }

    /// Removes the waiting patch after its write, unless another patch has replaced it.
    fn settle_unless_replaced(&self, uid: &str, at: Instant, lb: &Arc<LoadBalancer>) {
        let mut waiting = self.waiting();
        let is_same = |found: &WaitingPatch| found.due == at && Arc::ptr_eq(&found.lb, lb);
        if waiting.get(uid).is_some_and(is_same) {
            waiting.remove(uid);
        }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<String, WaitingPatch>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes each patch that is due, until dropped.
pub(super) async fn run(due: Due, ctx: &LbContext) {
    let due =
        futures::stream::unfold(
            due,
            |mut due| async move { due.recv().await.map(|next| (next, due)) },
        );
    due.for_each_concurrent(None, async |(at, uid)| {
        sleep_until(at).await;
        write(at, &uid, ctx).await;
    })
    .await;
}

async fn write(at: Instant, uid: &str, ctx: &LbContext) {
    let found = {
        let waiting = ctx.counts.waiting();
        let found = waiting.get(uid).filter(|found| found.due == at);
        found.map(|found| (found.lb.clone(), found.patch.clone()))
    };
    let Some((lb, patch)) = found else { return };
    match publish::write(&lb, &patch, ctx).await {
        Ok(()) => ctx.counts.settle_unless_replaced(uid, at, &lb),
        Err(CallError::NotFound(_)) => ctx.counts.settle(&lb),
        Err(CallError::NotLeader) => {}
        // The patch stays and is overdue, so the next reconcile writes it and handles the error.
        Err(_) => ctx.shared.views.enqueue_lbs([facts::name(&lb)]),
    }
}

fn uid(lb: &LoadBalancer) -> &str {
    lb.metadata.uid.as_deref().unwrap_or_default()
}
