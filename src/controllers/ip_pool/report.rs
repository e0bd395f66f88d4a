//! Reports the state of the ledgers in metrics, Events and logs.

use std::collections::BTreeMap;

use kube::{Resource, ResourceExt};

use super::LedgerTask;
use crate::api::{ANNOTATION_KEEP_ORPHANS, IPPool};
use crate::domain::limits::text::some_of;
use crate::domain::pools::allocator::LedgerRepair;
use crate::domain::pools::allocator::overlap::{OverlapNews, SharedAddress};
use crate::domain::reason::NoAddressReason;
use crate::domain::{Claim, Owner};

/// Maximum number of claims that the note of one Event names.
const MOST_NAMED: usize = 5;

impl LedgerTask {
    /// Sets the gauges of all pools. Reports new conflicts of pools.
    pub(super) fn report(&mut self) {
        self.report_news();
        let metrics = &self.ctx.metrics;
        metrics.shared_addresses.set(i64::try_from(self.allocator.shared()).unwrap_or(i64::MAX));
        let mut by_pool: BTreeMap<&str, i64> = BTreeMap::new();
        let mut by_reason: BTreeMap<&str, i64> = BTreeMap::new();
        for (_, wait) in self.allocator.waiting() {
            *by_reason.entry(wait.reason()).or_default() += 1;
            if let NoAddressReason::Full { pools } = wait {
                for pool in pools {
                    *by_pool.entry(pool).or_default() += 1;
                }
            }
        }
        metrics.waiters.reset();
        for (reason, count) in by_reason {
            metrics.waiters.with_label_values(&[reason]).set(count);
        }
        for (name, pool) in self.allocator.pools() {
            let label = &[name.as_str()];
            metrics.pools.addresses.with_label_values(label).set(pool.ledger.total());
            metrics.pools.available.with_label_values(label).set(pool.ledger.available());
            let claims = i64::try_from(pool.ledger.claims().len()).unwrap_or(i64::MAX);
            metrics.pools.allocated.with_label_values(label).set(claims);
            let waiters = by_pool.get(name.as_str()).copied().unwrap_or(0);
            metrics.pools.waiters.with_label_values(label).set(waiters);
        }
    }

    fn report_news(&mut self) {
        for news in self.allocator.take_news() {
            let (pool, reason, what) = match news {
                OverlapNews::StandsBack(pool, conflict) => {
                    (pool, conflict.reason(), conflict.standing_back())
                }
                OverlapNews::Shared(SharedAddress {
                    ip,
                    holders: [(pool, mine), (other, theirs)],
                }) => (
                    pool,
                    "AddressShared",
                    format!(
                        "{ip} is held by {mine} here and by {theirs} in IPPool {other}, on one network: move or delete one of the two"
                    ),
                ),
                OverlapNews::ReservedInUse { pool, ip, what, holder } => (
                    pool,
                    "AddressReserved",
                    format!("{ip} is held by {holder}, and is {what}: move the LoadBalancer"),
                ),
            };
            tracing::warn!(pool, reason, what, "conflict in an IPPool");
            self.ctx.events.warning(self.reference(&pool), reason, what);
        }
    }

    /// Reports the orphans that pools keep because of the annotation [`ANNOTATION_KEEP_ORPHANS`].
    /// Each pool gets one log line and one Event, unless the sweep before found the same orphans in
    /// this pool. `orphans`: the kept orphans of all pools.
    pub(super) fn report_kept(&mut self, orphans: Vec<(Claim, Owner)>) {
        let mut kept: BTreeMap<String, Vec<(Claim, Owner)>> = BTreeMap::new();
        for orphan in orphans {
            kept.entry(orphan.0.pool.clone()).or_default().push(orphan);
        }
        for (pool, orphans) in &kept {
            if self.kept.get(pool) != Some(orphans) {
                let note = kept_note(pool, orphans);
                tracing::warn!(pool, note, "orphans kept");
                self.ctx.events.warning(self.reference(pool), "OrphansKept", note);
            }
        }
        self.kept = kept;
    }

    pub(super) fn report_repairs(&self, pool: &IPPool, repairs: &[LedgerRepair]) {
        let mut first = None;
        for repair in repairs {
            let (kind, what) = match repair {
                LedgerRepair::Restored(claim, owner) => (
                    "restored",
                    format!(
                        "{} is published by {} and was missing from the ledger",
                        claim.ip, owner.name
                    ),
                ),
                LedgerRepair::Corrected(claim, owner) => (
                    "corrected",
                    format!(
                        "{} is published by {}, but the ledger named another owner",
                        claim.ip, owner.name
                    ),
                ),
                LedgerRepair::Double(claim, owner) => (
                    "double",
                    format!(
                        "{0} is published by {1}, but belongs to another LoadBalancer: {1} gets a new address",
                        claim.ip, owner.name
                    ),
                ),
                LedgerRepair::Unreadable(text) => {
                    ("unreadable", format!("key {text:?} in status.allocated is not an IP address"))
                }
            };
            self.ctx.metrics.repairs.with_label_values(&[kind]).inc();
            tracing::warn!(pool = pool.name_any(), kind, what, "ledger repaired");
            first = first.or(Some(what));
        }
        if let Some(first) = first {
            self.ctx.events.warning(
                pool.object_ref(&()),
                "LedgerRepaired",
                format!("{} entries of the ledger were corrected, such as: {first}", repairs.len()),
            );
        }
    }
}

fn kept_note(pool: &str, orphans: &[(Claim, Owner)]) -> String {
    let named = orphans.iter().map(|(claim, owner)| format!("{} of {}", claim.ip, owner.name));
    let named = some_of(named, MOST_NAMED);
    format!(
        "addresses of LoadBalancers that do not exist stay recorded: {named}. A LoadBalancer that is created again gets its address again; kubectl annotate ippool {pool} {ANNOTATION_KEEP_ORPHANS}- frees the other addresses"
    )
}

/// Clears the gauges at the end of a term, so that only the leader reports pools.
impl Drop for LedgerTask {
    fn drop(&mut self) {
        let metrics = &self.ctx.metrics;
        metrics.pools.reset();
        metrics.waiters.reset();
        metrics.shared_addresses.set(0);
    }
}
