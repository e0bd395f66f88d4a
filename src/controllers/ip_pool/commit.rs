//! Writes each stored ledger that differs from the allocator's ledger in memory. Each write is a
//! compare-and-swap.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::Utc;
use futures::future::join_all;
use kube::core::ObjectMeta;
use serde_json::{Value, json};

use super::LedgerTask;
use super::stored::StoredPool;
use crate::api::{ANNOTATION_MANUAL_RELEASE, IPPoolStatus, POOL_FINALIZER};
use crate::domain::limits::backoff::backoff;
use crate::domain::object_fields::finalizers::{with_finalizer, without_finalizers};
use crate::domain::object_fields::rfc3339;
use crate::domain::pools::allocator::AllocatorPool;
use crate::domain::pools::status;
use crate::k8s::CallError;
use crate::k8s::write::{ApiWriter, differs};

/// Base of the delay after a pool's write that failed or met a conflict. The requests are decided
/// again after the delay. Each such write of the same pool doubles the delay, up to
/// [`BATCH_RETRY`]. For a pool whose writes have failed [`PATIENCE`] times, the base is ten times
/// as long, and the limit is [`LAST_RETRY`].
const FIRST_RETRY: Duration = Duration::from_millis(10);
/// Longest delay before a pool whose writes have failed [`PATIENCE`] times or more is written
/// again.
const LAST_RETRY: Duration = Duration::from_secs(5);
/// Longest delay before a batch of requests is decided again, because a pool was not written.
const BATCH_RETRY: Duration = Duration::from_millis(250);
/// Number of consecutive failed writes of a pool after which a batch of requests no longer waits
/// for that pool. A conflict does not count as a failed write, because it means that another
/// client's write was accepted. A write without an answer counts as `PATIENCE` failed writes,
/// because the whole batch has already waited for the deadline of this write.
const PATIENCE: u32 = 3;
/// Number of consecutive conflicts of one pool's writes after which an Event reports them.
const CONTENDED: u32 = 5;

/// Numbers of conflicts and of failures of one pool's writes since the last accepted write, and the
/// time before which the pool is not written again. `None` as the time: no delay. The number of
/// failures is at least [`PATIENCE`] after a write without an answer.
#[derive(Default)]
pub(super) struct PoolTrouble {
    conflicts: u32,
    failures: u32,
    retry_at: Option<Instant>,
}

/// Writes of one pool, in the order of the fields. `before` adds the finalizer. `status` has the
/// stored status (field 0) and the desired status (field 1). `after` removes the finalizer or the
/// release annotation. `None`: this write is not needed.
struct CommitJob {
    name: String,
    /// Metadata of the stored pool.
    meta: ObjectMeta,
    before: Option<Value>,
    status: Option<(Arc<IPPoolStatus>, Arc<IPPoolStatus>)>,
    after: Option<Value>,
}

impl LedgerTask {
    /// Writes concurrently all pools that the allocator has marked as touched. A pool whose next
    /// try is not due yet is not written. Adds these pools to `failed`, and the pools whose writes
    /// have failed [`PATIENCE`] times or more, or had no answer. A write without an answer may have
    /// been stored. So the pool is read again after the delay, and an earlier write conflicts with
    /// the stored one. Returns whether the batch must be decided again, because a pool was not
    /// written and was read again. `false`: every other pool was written.
    ///
    /// `failed`: pools that have failed in this batch. They are not written in this batch any more,
    /// even if their next try becomes due, because the requests of all other pools would wait for
    /// the deadline of that write too.
    pub(super) async fn commit(&mut self, failed: &mut BTreeSet<String>) -> anyhow::Result<bool> {
        self.forget_outlived_refusals();
        let now = rfc3339::to_second(Utc::now());
        let mut jobs = Vec::new();
        for name in self.allocator.take_touched() {
            let retry_at = self.trouble.get(&name).and_then(|trouble| trouble.retry_at);
            if failed.contains(&name) || retry_at.is_some_and(|at| at > Instant::now()) {
                failed.insert(name);
            } else if let (Some(pool), Some(stored)) =
                (self.allocator.pools().get(&name), self.stored.get(&name))
            {
                let plain = self.ctx.writer.pools_are_plain();
                match job(name.clone(), pool, stored, self.crd_is_replaced, plain, &now) {
                    Some(job) => jobs.push(job),
                    // A write without an answer was stored, for example.
                    None => drop(self.trouble.remove(&name)),
                }
            }
        }
        let results =
            join_all(jobs.into_iter().map(|job| carry_out(self.ctx.writer.clone(), job))).await;
        let mut again = BTreeSet::new();
        for (job, result) in results {
            match result {
                Ok(meta) => {
                    self.trouble.remove(&job.name);
                    if let Some(stored) = self.stored.get_mut(&job.name) {
                        stored.update(meta);
                        if let Some((_, written)) = job.status {
                            let pool = self.allocator.pools().get(&job.name);
                            self.bytes_written += pool.map_or(0, |pool| pool.ledger.bytes());
                            stored.status = written;
                        }
                    }
                }
                Err(CallError::NotLeader) => anyhow::bail!("leadership lost"),
                Err(error) if self.count_failed_write(&job.name, &error) => {
                    again.insert(job.name);
                }
                Err(_) => drop(failed.insert(job.name)),
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

    /// Counts the failed write, or the write conflict, of the pool `name`. Returns whether the same
    /// batch of requests tries the write again. `false`: the write is tried after a longer delay.
    pub(super) fn count_failed_write(&mut self, name: &str, error: &CallError) -> bool {
        let trouble = self.trouble.entry(name.to_owned()).or_default();
        if matches!(error, CallError::Conflict(_) | CallError::NotFound(_)) {
            trouble.conflicts += 1;
            if trouble.conflicts == CONTENDED {
                tracing::warn!(pool = name, "another client keeps writing this IPPool");
                self.ctx.events.warning(
                    self.reference(name),
                    "LedgerContended",
                    format!("{CONTENDED} writes in a row were refused because another client writes this IPPool; still trying"),
                );
            }
            return true;
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

    /// Makes the ledger task read the pool `name` again after `delay`.
    pub(super) fn reread_later(&self, name: &str, delay: Duration) {
        let (handle, name) = (self.handle.clone(), name.to_owned());
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            handle.pool_changed(name, None);
        });
    }
}

/// Writes that bring the stored pool to the state in the allocator. `None`: the stored pool has
/// that state. `plain`: whether the API server has Harvester's schema. If so, the fields that only
/// the operator's schema has are not compared.
fn job(
    name: String,
    pool: &AllocatorPool,
    stored: &StoredPool,
    crd_is_replaced: Option<bool>,
    plain: bool,
    now: &str,
) -> Option<CommitJob> {
    let desired = status::pool_status(
        pool,
        &stored.status.conditions,
        stored.notice.as_ref(),
        crd_is_replaced,
        stored.meta.generation,
        now,
    );
    let status = differs(&stored.status, &desired, plain)
        .then(|| (stored.status.clone(), Arc::new(desired)));
    let is_deleting = stored.meta.deletion_timestamp.is_some();
    let finalizers = stored.meta.finalizers.as_deref().unwrap_or_default();
    let added = with_finalizer(finalizers, POOL_FINALIZER).filter(|_| !is_deleting);
    let before = added.map(|all| json!({"finalizers": all}));
    let goes = is_deleting && pool.ledger.claims().is_empty();
    let removed = without_finalizers(finalizers, &[POOL_FINALIZER]).filter(|_| goes);
    let after = if let Some(rest) = removed {
        Some(json!({"finalizers": rest}))
    } else if stored.manual().is_some() && stored.notice.is_none() {
        Some(json!({"annotations": {ANNOTATION_MANUAL_RELEASE: null}}))
    } else {
        None
    };
    let idle = before.is_none() && status.is_none() && after.is_none();
    let meta = stored.meta.clone();
    (!idle).then(|| CommitJob { name, meta, before, status, after })
}

/// Makes the writes of a pool. Each write requires the resourceVersion that the previous write
/// returned.
async fn carry_out(
    writer: ApiWriter,
    job: CommitJob,
) -> (CommitJob, Result<ObjectMeta, CallError>) {
    let mut meta = job.meta.clone();
    let result = async {
        if let Some(change) = &job.before {
            meta = writer.patch_pool_meta(&job.name, &meta_patch(change, &meta)).await?;
        }
        if let Some((stored, desired)) = &job.status {
            let version = meta.resource_version.clone().unwrap_or_default();
            meta = writer.write_pool_status(&job.name, &version, stored, desired).await?;
        }
        if let Some(change) = &job.after {
            meta = writer.patch_pool_meta(&job.name, &meta_patch(change, &meta)).await?;
        }
        Ok(meta)
    }
    .await;
    (job, result)
}

fn meta_patch(change: &Value, meta: &ObjectMeta) -> Value {
    let mut change = change.clone();
    change["resourceVersion"] = json!(meta.resource_version);
    json!({"metadata": change})
}
