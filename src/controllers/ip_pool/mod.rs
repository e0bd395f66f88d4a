//! The ledger task. While this process leads, only this task allocates and releases the addresses
//! of pools.
//!
//! The LoadBalancer controller sends requests through [`LedgerHandle`]. The task has all ledgers in
//! memory ([`PoolAllocator`]), and decides the requests in batches. After each batch, every stored
//! ledger that the batch changes is written once. A request that changes a ledger is answered when
//! the API server has accepted the write.
//!
//! If the write of a pool fails, the batch is decided and written again. After repeated failures,
//! or a write without an answer, the batch no longer waits for the pool. The requests for this pool
//! are then refused.
//!
//! Only this task writes stored ledgers, with two exceptions:
//!
//! * [`super::kube_vip_import`] creates pools, and records the former owners of their addresses.
//! * [`keep_published`] records claims after a restore of etcd.

mod commit;
mod load;
mod mailbox;
mod manual;
mod report;
mod restored;
mod stored;
mod sweep;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

pub use self::mailbox::{LedgerError, LedgerHandle};
use self::mailbox::{LedgerMessage, RequestBatch};
pub use self::restored::keep_published;
use self::stored::StoredPool;
use super::Context;
use crate::domain::object_fields::resource_version::is_newer;
use crate::domain::pools::allocator::{ClaimResult, PoolAllocator};
use crate::domain::pools::write_pacing::{WaitingRequests, WritePace};
use crate::domain::{Claim, Owner};

/// Interval between two sweeps. A sweep compares all claims with the LoadBalancers that exist.
const SWEEP_EVERY: Duration = Duration::from_secs(30);

/// Ledger task of one term of leadership.
pub struct LedgerTask {
    ctx: Context,
    mailbox: mpsc::UnboundedReceiver<LedgerMessage>,
    allocator: PoolAllocator,
    stored: BTreeMap<String, StoredPool>,
    trouble: BTreeMap<String, commit::PoolTrouble>,
    /// Planned reread of each pool: its time, and the task that waits for that time. An entry stays
    /// after its time has passed.
    rereads: BTreeMap<String, (Instant, AbortOnDropHandle<()>)>,
    /// Handle with which the task sends messages to itself.
    handle: LedgerHandle,
    pace: WritePace,
    /// Bytes of ledgers that were written after the last call of [`WritePace::wrote`]. The next
    /// call gets this number, and `pace` then derives from it when the next write may begin.
    bytes_written: usize,
    started: Instant,
    /// Whether another form has replaced the operator's form of IPPool's CRD. `None`: not checked
    /// yet.
    crd_is_replaced: Option<bool>,
    /// Task that asks the API server for the LoadBalancers of claims that may be orphans.
    sweeper: Option<AbortOnDropHandle<()>>,
    /// Orphans that the last sweep found in pools with the annotation
    /// [`crate::api::ANNOTATION_KEEP_ORPHANS`], by pool. Such a pool keeps its orphans. The next
    /// sweep reports a pool only if its kept orphans differ from these.
    kept: BTreeMap<String, Vec<(Claim, Owner)>>,
    /// Freed orphans that are not reported yet, because the write of their pool has failed.
    unreported: BTreeMap<Claim, Owner>,
    /// Map from a pool to the names of the LoadBalancers whose requests were refused because the
    /// pool was not written. These LoadBalancers are reconciled again as soon as the pool is
    /// written.
    refused: BTreeMap<String, BTreeSet<String>>,
}

impl LedgerTask {
    /// Serves requests until the term ends. Returns only with the error that ended the term.
    pub async fn run(mut self) -> anyhow::Result<()> {
        // The first tick is immediate.
        let mut sweep = tokio::time::interval(SWEEP_EVERY);
        loop {
            let mut batch = RequestBatch::default();
            tokio::select! {
                biased;
                message = self.mailbox.recv() => match message {
                    Some(message) => self.answer_or_batch(message, &mut batch),
                    None => anyhow::bail!("no handle to the ledger task is left"),
                },
                _ = sweep.tick() => {
                    self.sweep();
                    continue;
                }
            }
            self.gather(&mut batch).await;
            if !batch.is_empty() {
                self.serve(batch).await?;
            }
        }
    }

    /// Adds to the batch the messages that have arrived, and further messages until the next write
    /// may begin.
    async fn gather(&mut self, batch: &mut RequestBatch) {
        let mut last = self.started.elapsed();
        loop {
            while let Ok(message) = self.mailbox.try_recv() {
                self.answer_or_batch(message, batch);
                last = self.started.elapsed();
            }
            let waiting = WaitingRequests {
                count: batch.len(),
                for_an_address: batch.may_give_an_address() || self.allocator.has_waiters(),
                last,
            };
            let pause = self.pace.pause(self.started.elapsed(), waiting);
            if batch.is_empty() || pause.is_zero() {
                return;
            }
            if let Ok(Some(message)) = tokio::time::timeout(pause, self.mailbox.recv()).await {
                self.answer_or_batch(message, batch);
                last = self.started.elapsed();
            }
        }
    }

    /// Answers a message at once if it needs no write; otherwise adds it to the batch.
    fn answer_or_batch(&mut self, message: LedgerMessage, batch: &mut RequestBatch) {
        match message {
            LedgerMessage::Claim(facts, reply) => {
                let is_stored = |claim: &Claim| self.is_stored(claim, &facts.owner);
                if let Some(result) = self.allocator.peek(&facts, is_stored) {
                    // The answer to a guest load balancer is not kept. Such a LoadBalancer seldom
                    // asks again, because no change of a VM triggers its reconcile.
                    if !facts.guest {
                        self.handle.confirmed().confirm(*facts, result.clone());
                    }
                    drop(reply.send(Ok(result)));
                } else if self.allocator.needs_fresh(&facts) {
                    drop(reply.send(Err(LedgerError::Stale)));
                } else {
                    // If the allocator has claims of the owner, but not the claim of the published
                    // address, the stored pool may have that claim. So this pool is read again.
                    let unknown = facts.published.as_ref().filter(|published| {
                        let held = self.allocator.claims_of(&facts.owner.uid);
                        !held.is_empty() && !held.contains(published)
                    });
                    batch.pools.extend(unknown.map(|published| published.pool.clone()));
                    batch.claims.push((*facts, reply));
                }
            }
            LedgerMessage::Release(owner, reply) => {
                if self.allocator.has_nothing_to_release(&owner.uid) {
                    drop(reply.map(|reply| reply.send(Ok(()))));
                } else {
                    batch.releases.push((owner, reply, BTreeSet::new()));
                }
            }
            LedgerMessage::PoolChanged(name, version) => {
                // Correctness does not need this comparison, because a read finds the state that
                // this task has written. The comparison saves one read of the whole ledger for each
                // write.
                let stored = self.stored.get(&name);
                let known = stored.and_then(|pool| pool.meta.resource_version.as_deref());
                if version.zip(known).is_none_or(|(version, known)| is_newer(&version, known)) {
                    batch.pools.insert(name);
                }
            }
            LedgerMessage::NetworksChanged => batch.networks = true,
            LedgerMessage::CrdReplaced(is) => {
                if self.crd_is_replaced.replace(is) != Some(is) {
                    let names: Vec<String> = self.allocator.pools().keys().cloned().collect();
                    for name in &names {
                        self.allocator.touch(name);
                    }
                    batch.conditions = true;
                }
            }
            LedgerMessage::Orphaned(orphan) => batch.orphans.push(*orphan),
        }
    }

    /// Whether the stored ledger records `claim` for `owner`, by name and UID. If so, the claim can
    /// be published even while the pool cannot be written.
    fn is_stored(&self, claim: &Claim, owner: &Owner) -> bool {
        self.stored.get(&claim.pool).is_some_and(|pool| pool.names(claim.ip, owner))
    }

    /// Decides a batch, writes the pools that the batch changed, and answers its requests.
    async fn serve(&mut self, mut batch: RequestBatch) -> anyhow::Result<()> {
        let began = self.started.elapsed();
        self.forget_confirmed(&batch);
        let mut others_change = !batch.pools.is_empty() || batch.networks;
        self.refresh(std::mem::take(&mut batch.pools)).await;
        if batch.networks {
            let views = self.ctx.views.clone();
            self.allocator.relocate(|network| views.segment(network));
            self.allocator.set_infrastructure(views.held_back());
        }
        if self.allocator.take_moved() {
            others_change = true;
            self.observe_all();
        }
        // The claims are decided oldest first, whatever the order of arrival.
        batch.claims.sort_by(|(a, _), (b, _)| (a.created, &a.owner).cmp(&(b.created, &b.owner)));
        let orphans = std::mem::take(&mut batch.orphans);
        let (mut changed, mut freed) = (Vec::new(), BTreeSet::new());
        let mut failed = BTreeSet::new();
        let results = loop {
            for (index, orphan) in orphans.iter().enumerate() {
                if self.free(orphan) {
                    freed.insert(index);
                }
            }
            for (owner, _, pools) in &mut batch.releases {
                pools.extend(self.allocator.release(owner).into_iter().map(|claim| claim.pool));
            }
            changed.extend(self.allocator.serve_waiters());
            let results: Vec<_> =
                batch.claims.iter().map(|(facts, _)| self.allocator.claim(facts)).collect();
            changed.extend(self.allocator.serve_waiters());
            if !self.commit(&mut failed).await? {
                break results;
            }
            // The pools with a failed write were read from the API server. Other clients may have
            // changed the claims in these pools.
            others_change = true;
        };
        if others_change {
            self.handle.confirmed().recheck(&self.allocator);
        }
        let ended = self.started.elapsed();
        let bytes = std::mem::take(&mut self.bytes_written);
        self.pace.wrote(began, ended, bytes, batch.len());
        self.answer(batch, results, &failed);
        self.report_freed(freed.into_iter().filter_map(|index| orphans.get(index)), &failed);
        self.ctx.views.enqueue_lbs(changed.iter().map(|owner| &owner.name));
        let settled = self.refused.extract_if(.., |pool, _| !failed.contains(pool));
        self.ctx.views.enqueue_lbs(settled.flat_map(|(_, owners)| owners));
        self.report();
        Ok(())
    }

    /// Removes the confirmed answers for the owners in the batch, because their claims may change.
    fn forget_confirmed(&self, batch: &RequestBatch) {
        let claims = batch.claims.iter().map(|(facts, _)| &facts.owner);
        let releases = batch.releases.iter().map(|(owner, ..)| owner);
        let orphans = batch.orphans.iter().map(|orphan| &orphan.owner);
        let mut confirmed = self.handle.confirmed();
        for owner in claims.chain(releases).chain(orphans) {
            confirmed.forget(owner);
        }
    }

    /// Answers the requests whose pools were written. Refuses the other requests, so that their
    /// callers retry.
    fn answer(
        &mut self,
        batch: RequestBatch,
        results: Vec<ClaimResult>,
        failed: &BTreeSet<String>,
    ) {
        let requests = u32::try_from(batch.claims.len() + batch.releases.len());
        self.ctx.metrics.batch_size.observe(requests.unwrap_or(u32::MAX).into());
        for ((facts, reply), result) in batch.claims.into_iter().zip(results) {
            let answer = match &result {
                ClaimResult::Held { claim, .. } if failed.contains(&claim.pool) => {
                    Err(self.refuse(&claim.pool, facts.owner))
                }
                _ => Ok(result),
            };
            // The send fails if the caller has dropped its request. A caller that repeats the
            // request gets the same claim.
            drop(reply.send(answer));
        }
        for (owner, reply, pools) in batch.releases {
            // A release that found no claims may be the retry of a failed release. Its claims may
            // be in any of the pools that were not written.
            let pools = if pools.is_empty() { failed } else { &pools };
            let answer = match pools.intersection(failed).next() {
                Some(pool) => Err(self.refuse(pool, owner)),
                None => Ok(()),
            };
            drop(reply.map(|reply| reply.send(answer)));
        }
    }

    /// Makes the error for a request that is refused because the pool was not written. Notes
    /// `owner`, the LoadBalancer that made the request, in `refused`.
    fn refuse(&mut self, pool: &str, owner: Owner) -> LedgerError {
        self.refused.entry(pool.to_owned()).or_default().insert(owner.name);
        LedgerError::NotWritten(pool.to_owned())
    }
}

#[cfg(test)]
mod tests;
