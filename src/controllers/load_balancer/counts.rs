//! Counts of VMs that wait to be written, and their writing.
//!
//! A node that goes down takes many VMs of one LoadBalancer, and each would be a write; a VM that
//! is back within [`WITHIN`] is none. What waits is the patch itself: nothing is decided again to
//! write it.
//!
//! Invariant: what is written is what the last decision wanted. Each decision replaces what waits,
//! or takes it away; one that is made while the write is under way is told of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::{Context, publish};
use crate::api::LoadBalancer;
use crate::domain::load_balancer::facts;
use crate::k8s::CallError;

/// How long counts may be behind.
const WITHIN: Duration = Duration::from_secs(1);

/// What waits, by UID.
pub(super) struct Counts {
    waiting: Mutex<HashMap<String, Waiting>>,
    due: mpsc::UnboundedSender<(Instant, String)>,
}

struct Waiting {
    /// When it is written.
    due: Instant,
    lb: Arc<LoadBalancer>,
    patch: Value,
    /// Whether nothing is left to do when it is written.
    is_all: bool,
}

/// When what is due, in order.
pub(super) type Due = mpsc::UnboundedReceiver<(Instant, String)>;

impl Counts {
    pub(super) fn new() -> (Self, Due) {
        let (due, receiver) = mpsc::unbounded_channel();
        (Self { waiting: Mutex::default(), due }, receiver)
    }

    /// Has a patch of counts written soon, instead of an earlier one. Returns whether that is so:
    /// otherwise it is overdue, and the caller's to write.
    pub(super) fn defer(&self, lb: &Arc<LoadBalancer>, patch: Value, is_all: bool) -> bool {
        let uid = uid(lb);
        let now = Instant::now();
        let mut waiting = self.waiting();
        let before = waiting.get(uid).map(|waiting| waiting.due);
        if before.is_some_and(|due| due <= now) {
            return false;
        }
        let due = before.unwrap_or(now + WITHIN);
        waiting.insert(uid.to_owned(), Waiting { due, lb: lb.clone(), patch, is_all });
        if before.is_none() {
            // Nobody listens when the term is over.
            let _ = self.due.send((due, uid.to_owned()));
        }
        true
    }

    /// They are not behind any more.
    pub(super) fn settle(&self, lb: &LoadBalancer) {
        self.waiting().remove(uid(lb));
    }

    /// They were written. Returns whether nothing else is to be written by now.
    fn settle_unless_replaced(&self, uid: &str, at: Instant, lb: &Arc<LoadBalancer>) -> bool {
        let mut waiting = self.waiting();
        let is_same = |found: &Waiting| found.due == at && Arc::ptr_eq(&found.lb, lb);
        let same = waiting.get(uid).is_some_and(is_same);
        if same {
            waiting.remove(uid);
        }
        same
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<String, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes what is due until dropped.
pub(super) async fn run(due: Due, ctx: &Context) {
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

async fn write(at: Instant, uid: &str, ctx: &Context) {
    let found = {
        let waiting = ctx.counts.waiting();
        let found = waiting.get(uid).filter(|found| found.due == at);
        found.map(|found| (found.lb.clone(), found.patch.clone(), found.is_all))
    };
    let Some((lb, patch, is_all)) = found else { return };
    let name = facts::name(&lb);
    let writing = ctx.shared.views.writing(name.clone());
    match publish::write(&lb, &patch, ctx).await {
        // A decision that was made meanwhile knew nothing of this.
        Ok(version) => {
            if ctx.counts.settle_unless_replaced(uid, at, &lb) && is_all {
                writing.is_all(version);
            }
        }
        Err(CallError::NotFound) => ctx.counts.settle(&lb),
        Err(CallError::NotLeader) => {}
        // It stays, overdue: the next decision writes it, and fails as writes do.
        Err(_) => ctx.shared.views.tell_lbs([name]),
    }
}

fn uid(lb: &LoadBalancer) -> &str {
    lb.metadata.uid.as_deref().unwrap_or_default()
}
