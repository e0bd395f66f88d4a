//! Writes each stored ledger that differs from the allocator's ledger in memory. Each write is a
//! compare-and-swap.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use chrono::Utc;
use futures::future::join_all;
use kube::core::ObjectMeta;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use super::LedgerTask;
use super::stored::StoredPool;
use crate::api::{ANNOTATION_MANUAL_RELEASE, IPPool, IPPoolStatus, POOL_FINALIZER};
use crate::domain::limits::backoff::backoff;
use crate::domain::object_fields::finalizers::{with_finalizer, without_finalizers};
use crate::domain::object_fields::rfc3339;
use crate::domain::pools::allocator::AllocatorPool;
use crate::domain::pools::status;
use crate::k8s::CallError;
use crate::k8s::write::differs;

/// Base of two delays after failed writes of a pool:
///
/// * Delay before a batch of requests is decided again. Each failure and each conflict of the same
///   pool doubles this delay, up to [`BATCH_RETRY`].
/// * Delay before the pool is written again, after [`PATIENCE`] failures. This delay begins at ten
///   times the base. Each further failure doubles it, up to [`LAST_RETRY`].
const FIRST_RETRY: Duration = Duration::from_millis(10);
/// Longest delay before the next write of a pool, after [`PATIENCE`] failed writes or more.
const LAST_RETRY: Duration = Duration::from_secs(5);
/// Longest delay before a batch of requests is decided again after a failed write of a pool. Also
/// the delay before a pool is written again after [`CONTENDED`] conflicts or more.
const BATCH_RETRY: Duration = Duration::from_millis(250);
/// Limit of the failed writes of one pool since its last accepted write. A batch of requests does
/// not wait for a pool that has reached this limit. A write without an answer reaches the limit at
/// once, because the whole batch has already waited for the deadline of the write.
///
/// Conflicts are counted separately. Their limit ([`CONTENDED`]) is higher, because a conflict
/// shows that the API server accepts writes.
const PATIENCE: u32 = 3;
/// Limit of the write conflicts of one pool since its last accepted write. A batch of requests does
/// not wait for a pool that has reached this limit. An Event reports that a pool has reached it.
const CONTENDED: u32 = 5;

/// Trouble with the writes of one pool: the number of conflicts, and of other failures, since the
/// last accepted write. The pool is not written again before `retry_at`. `None`: no delay.
#[derive(Default)]
pub(super) struct PoolTrouble {
    conflicts: u32,
    failures: u32,
    retry_at: Option<Instant>,
}

impl LedgerTask {
    /// Writes concurrently the pools that the allocator has marked as touched, except those in
    /// `failed`. Returns `true` if the batch must be decided again: a write for which the batch
    /// still waits has failed, and its pool was read again. `false`: each touched pool was written
    /// or is in `failed`. `Err`: this replica no longer leads.
    ///
    /// `failed`: pools for which this batch no longer waits. The call adds a pool to `failed` if
    /// one of these holds:
    ///
    /// * The next try of its write is not due yet.
    /// * Its writes have failed [`PATIENCE`] times or more, or one of them had no answer.
    /// * Its writes have met [`CONTENDED`] conflicts or more.
    ///
    /// A pool in `failed` is read again when its next try is due, because a write without an answer
    /// may have been stored. This batch does not write the pool any more. Otherwise, the requests
    /// for all other pools might wait for the deadline of one more write.
    pub(super) async fn commit(&mut self, failed: &mut BTreeSet<String>) -> anyhow::Result<bool> {
        self.forget_outlived_refusals();
        let now = &rfc3339::to_second(Utc::now());
        let mut due = Vec::new();
        for name in self.allocator.take_touched() {
            let retry_at = self.trouble.get(&name).and_then(|trouble| trouble.retry_at);
            if failed.contains(&name) || retry_at.is_some_and(|at| at > Instant::now()) {
                failed.insert(name);
            } else {
                due.push(name);
            }
        }
        let this = &*self;
        let writes = due.iter().filter_map(|name| {
            let (pool, stored) = (this.allocator.pools().get(name)?, this.stored.get(name)?);
            Some(async move { (name, this.write_pool(name, pool, stored, now).await) })
        });
        let results = join_all(writes).await;
        let mut again = BTreeSet::new();
        for (name, result) in results {
            match result {
                Ok((meta, written)) => {
                    // The trouble is over even if nothing was left to write: for example, an
                    // earlier write without an answer was stored.
                    self.trouble.remove(name);
                    if let Some(stored) = self.stored.get_mut(name) {
                        stored.update(meta);
                        if let Some(written) = written {
                            let pool = self.allocator.pools().get(name);
                            self.bytes_written += pool.map_or(0, |pool| pool.ledger.bytes());
                            stored.status = written;
                        }
                    }
                }
                Err(CallError::NotLeader) => anyhow::bail!("leadership lost"),
                Err(error) if self.count_failed_write(name, &error) => {
                    again.insert(name.clone());
                }
                Err(_) => drop(failed.insert(name.clone())),
            }
        }
        for name in failed.iter().chain(&again) {
            self.allocator.touch(name);
        }
        if again.is_empty() {
            return Ok(false);
        }
        self.ctx.metrics.ledger_retries.inc();
        let tries = |t: &PoolTrouble| t.conflicts + t.failures;
        let worst =
            again.iter().filter_map(|name| self.trouble.get(name).map(tries)).max().unwrap_or(0);
        tokio::time::sleep(backoff(worst, FIRST_RETRY, BATCH_RETRY, 0.0)).await;
        self.refresh(again).await;
        Ok(true)
    }

    /// Brings the stored pool to the state in the allocator. Does these writes in this order, each
    /// only if needed:
    ///
    /// * Adds the finalizer, unless the pool is being deleted.
    /// * Writes the status.
    /// * Removes the finalizer, if the pool is being deleted and has no claims. Otherwise removes
    ///   the annotation that requests a manual release, unless the release was refused.
    ///
    /// Each write requires the resourceVersion that the previous write returned. Returns the pool's
    /// metadata, and the status that was written. `None` as the status: the stored status stays.
    async fn write_pool(
        &self,
        name: &str,
        pool: &AllocatorPool,
        stored: &StoredPool,
        now: &str,
    ) -> Result<(ObjectMeta, Option<IPPoolStatus>), CallError> {
        let writer = &self.ctx.writer;
        let mut meta = stored.meta.clone();
        let desired = status::pool_status(
            pool,
            &stored.status.conditions,
            stored.notice.as_ref(),
            self.crd_is_replaced,
            meta.generation,
            now,
        );
        let is_new = differs(&stored.status, &desired, writer.pools_are_plain());
        let is_deleting = meta.deletion_timestamp.is_some();
        let finalizers = stored.meta.finalizers.as_deref().unwrap_or_default();
        let added = with_finalizer(finalizers, POOL_FINALIZER).filter(|_| !is_deleting);
        if let Some(all) = added {
            let patch = meta_patch(json!({"finalizers": all}), &meta);
            meta = writer.patch::<IPPool>(None, name, &patch).await?;
        }
        if is_new {
            let version = meta.resource_version.unwrap_or_default();
            meta = writer.write_pool_status(name, &version, &stored.status, &desired).await?;
        }
        let goes = is_deleting && pool.ledger.claims().is_empty();
        let removed = without_finalizers(finalizers, &[POOL_FINALIZER]).filter(|_| goes);
        let last = if let Some(rest) = removed {
            Some(json!({"finalizers": rest}))
        } else if stored.manual().is_some() && stored.notice.is_none() {
            Some(json!({"annotations": {ANNOTATION_MANUAL_RELEASE: null}}))
        } else {
            None
        };
        if let Some(change) = last {
            let patch = meta_patch(change, &meta);
            meta = writer.patch::<IPPool>(None, name, &patch).await?;
        }
        Ok((meta, is_new.then_some(desired)))
    }

    /// Counts the failed write, or the write conflict, of the pool `name`. Returns whether the same
    /// batch of requests tries the write again. `false`: the write is tried after a longer delay.
    pub(super) fn count_failed_write(&mut self, name: &str, error: &CallError) -> bool {
        let trouble = self.trouble.entry(name.to_owned()).or_default();
        if matches!(error, CallError::Conflict(_) | CallError::NotFound(_)) {
            trouble.conflicts += 1;
            let conflicts = trouble.conflicts;
            if conflicts < CONTENDED {
                return true;
            }
            trouble.retry_at = Some(Instant::now() + BATCH_RETRY);
            self.reread_later(name, BATCH_RETRY);
            if conflicts == CONTENDED {
                tracing::warn!(pool = name, "another client keeps writing this IPPool");
                self.ctx.events.warning(
                    self.reference(name),
                    "LedgerContended",
                    format!("{CONTENDED} writes in a row were refused because another client writes this IPPool; still trying"),
                );
            }
            return false;
        }
        trouble.failures += 1;
        if matches!(error, CallError::Timeout { .. }) {
            trouble.failures = trouble.failures.max(PATIENCE);
        }
        let failures = trouble.failures;
        tracing::warn!(pool = name, %error, failures, "cannot write the IPPool");
        if failures < PATIENCE {
            return true;
        }
        let delay = backoff(failures - PATIENCE, FIRST_RETRY * 10, LAST_RETRY, 0.0);
        trouble.retry_at = Some(Instant::now() + delay);
        // The number never skips `PATIENCE`, so there is one Event until the next accepted write.
        if failures == PATIENCE {
            self.ctx.events.warning(
                self.reference(name),
                "LedgerNotWritten",
                format!(
                    "the ledger cannot be written, so no address is allocated or released: {error}"
                ),
            );
        }
        self.reread_later(name, delay);
        false
    }

    /// Makes the ledger task read the pool `name` again after `delay`. If a reread of the pool is
    /// planned already, only the later of the two stays, for two reasons:
    ///
    /// * The earlier reread may come before the next write of the pool is due. It then does not
    ///   cause this write.
    /// * Each failed reread plans another one. So two planned rereads would both be repeated until
    ///   a read succeeds.
    pub(super) fn reread_later(&mut self, name: &str, delay: Duration) {
        let at = Instant::now() + delay;
        if self.rereads.get(name).is_some_and(|(planned, _)| *planned >= at) {
            return;
        }
        let (handle, pool) = (self.handle.clone(), name.to_owned());
        let reread = tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            handle.pool_changed(pool, None);
        });
        self.rereads.insert(name.to_owned(), (at, AbortOnDropHandle::new(reread)));
    }
}

/// Merge patch that applies `change` to an object's metadata. The patch requires the
/// resourceVersion in `meta`, the object's metadata as last read or written.
fn meta_patch(mut change: Value, meta: &ObjectMeta) -> Value {
    change["resourceVersion"] = json!(meta.resource_version);
    json!({"metadata": change})
}
