//! Waiters: LoadBalancers that do not have the address that they ask for. The module decides when
//! each waiter is tried again.
//!
//! Invariants: waiters are served oldest first. A waiter that neither publishes an address nor has
//! a reservation is tried again only after one of these changes:
//! * its own request has changed, or the network that it names has moved to another segment;
//! * pools were added, removed or read again;
//! * a pool that may serve the waiter, or that the reason for the wait names, has changed or moved
//!   to another segment.
//!
//! So a change by one tenant does not cause a search of all pools for each waiter.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{AllocatorPool, PoolAllocator};
use crate::reason::NoAddressReason;
use crate::{LbFacts, Owner};

/// Changes since the last call of [`PoolAllocator::serve_waiters`] that may change the answers to
/// waiters.
#[derive(Clone, Debug, Default)]
pub(super) struct WaiterChanges {
    /// Whether all waiters are tried again, because pools were added, removed or read again.
    everything: bool,
    /// Names of the pools that changed.
    pools: BTreeSet<String>,
    /// UIDs of the waiters whose request changed.
    waiters: BTreeSet<String>,
}

/// Cause to try a waiter again.
enum RetryCause<'a> {
    /// A cause that is valid no matter which other waiters were served since the change.
    Certain,
    /// The pools of these names changed, and may give the waiter another answer.
    Pools(Vec<&'a str>),
}

impl WaiterChanges {
    /// Marks all waiters to be tried again.
    pub(super) fn everything(&mut self) {
        self.everything = true;
    }

    /// Marks the pool as changed. Waiters that the pool may serve, or whose reason names the pool,
    /// will be tried again.
    pub(super) fn pool(&mut self, name: &str) {
        if !self.pools.contains(name) {
            self.pools.insert(name.to_owned());
        }
    }

    fn is_nothing(&self) -> bool {
        !self.everything && self.pools.is_empty() && self.waiters.is_empty()
    }
}

impl PoolAllocator {
    /// Whether any LoadBalancer waits for an address.
    pub fn has_waiters(&self) -> bool {
        !self.waiters.is_empty()
    }

    /// Tries waiters again, oldest first, if a change may affect their answer. The answer to one
    /// waiter may free an address for others, so this is repeated until no answer changes. Returns
    /// the waiters whose answer changed.
    pub fn serve_waiters(&mut self) -> Vec<Owner> {
        let mut answered_anew = Vec::new();
        loop {
            self.compare_pools();
            let changes = std::mem::take(&mut self.waiter_changes);
            if changes.is_nothing() {
                return answered_anew;
            }
            let owners = self.try_waiters(&changes);
            if owners.is_empty() {
                return answered_anew;
            }
            answered_anew.extend(owners);
        }
    }

    /// Tries again the waiters whose answer may be affected by the changes, oldest first. Returns
    /// the waiters whose answer changed.
    fn try_waiters(&mut self, changes: &WaiterChanges) -> Vec<Owner> {
        let mut answered_anew = Vec::new();
        for (owner, cause) in self.concerned(changes) {
            let Some((facts, before)) = self.waiters.get(&owner.uid) else { continue };
            // A waiter that was served earlier in this loop may have taken the free address.
            if !self.is_due(facts, before, &cause) {
                continue;
            }
            let (facts, before) = (facts.clone(), before.clone());
            self.claim(&facts);
            let now = self.waiters.get(&owner.uid);
            if now.is_none_or(|(_, wait)| *wait != before) {
                answered_anew.push(owner);
            }
        }
        answered_anew
    }

    /// Waiters whose answer may be affected by the changes, oldest first, each with the cause to
    /// try it again. Of waiters of the same age, the one whose name sorts first comes first. So
    /// waiters are served in the same order, whatever the order of their requests.
    fn concerned<'a>(&self, changes: &'a WaiterChanges) -> Vec<(Owner, RetryCause<'a>)> {
        // Each waiter is compared with each changed pool, so the pools are looked up once.
        let by_name: Vec<(&str, Option<&AllocatorPool>)> =
            changes.pools.iter().map(|name| (name.as_str(), self.pools.get(name))).collect();
        let concerned = self.waiters.values().filter_map(|(facts, wait)| {
            // The answer to a waiter that publishes an address, or has reservations, depends on
            // all pools.
            let is_certain = changes.everything
                || facts.published.is_some()
                || !self.reserved.of(&facts.owner.uid).is_empty()
                || changes.waiters.contains(&facts.owner.uid);
            if is_certain {
                return Some((facts, RetryCause::Certain));
            }
            let pools = by_name
                .iter()
                .filter(|(name, pool)| pool.is_none_or(|pool| pool.may_change(name, facts, wait)));
            let names: Vec<&str> = pools.map(|(name, _)| *name).collect();
            (!names.is_empty()).then_some((facts, RetryCause::Pools(names)))
        });
        let mut concerned: Vec<_> = concerned.collect();
        concerned.sort_by(|(a, _), (b, _)| (a.created, &a.owner).cmp(&(b.created, &b.owner)));
        concerned.into_iter().map(|(facts, cause)| (facts.owner.clone(), cause)).collect()
    }

    /// Whether `cause` is still a cause to try a waiter again. `wait`: the waiter's present answer.
    fn is_due(&self, facts: &LbFacts, wait: &NoAddressReason, cause: &RetryCause<'_>) -> bool {
        match cause {
            RetryCause::Certain => true,
            RetryCause::Pools(names) => names.iter().any(|name| {
                self.pools.get(*name).is_none_or(|pool| pool.may_change(name, facts, wait))
            }),
        }
    }

    /// Marks as changed every pool whose ranges contain the address, because the address may be
    /// free in that pool from now on.
    pub(super) fn mark_changed_at(&mut self, ip: IpAddr) {
        for (name, pool) in &self.pools {
            if pool.ledger.ranges().find(ip).is_some() {
                self.waiter_changes.pool(name);
            }
        }
    }

    /// Waiting LoadBalancers, each with the reason for its wait.
    pub fn waiting(&self) -> impl Iterator<Item = (&LbFacts, &NoAddressReason)> {
        self.waiters.values().map(|(facts, wait)| (facts, wait))
    }

    pub(super) fn wait(&mut self, facts: &LbFacts, wait: NoAddressReason) {
        // The facts will be stale when the waiter is served.
        let facts = LbFacts { fresh: false, ..facts.clone() };
        self.waiters.insert(facts.owner.uid.clone(), (facts, wait));
    }

    /// Replaces the facts of a waiting LoadBalancer. If the facts have changed, marks the
    /// LoadBalancer to be tried again. Does nothing for a LoadBalancer that does not wait.
    pub(super) fn update_waiter(&mut self, facts: &LbFacts) {
        let Some((known, _)) = self.waiters.get_mut(&facts.owner.uid) else { return };
        let now = LbFacts { fresh: false, ..facts.clone() };
        if *known != now {
            *known = now;
            self.waiter_changes.waiters.insert(facts.owner.uid.clone());
        }
    }

    pub(super) fn stop_waiting(&mut self, uid: &str) {
        self.waiters.remove(uid);
    }
}

impl AllocatorPool {
    /// Whether a change of this pool may give a waiter with these facts another answer. `name`:
    /// name of the pool. `wait`: the waiter's present answer.
    fn may_change(&self, name: &str, facts: &LbFacts, wait: &NoAddressReason) -> bool {
        let is_named = wait.names(name);
        let is_asked = match &facts.named_pool {
            Some(named) => named == name,
            None => self.selector.fit(&facts.requirement).is_some(),
        };
        let is_still_full = || {
            matches!(wait, NoAddressReason::Full { .. })
                && self.idle().is_none()
                && self.ledger.available() == 0
                // If the pool has moved away from the waiter's network, the reason in the waiter's
                // answer changes.
                && (facts.named_pool.is_none() || self.mismatch(name, facts).is_none())
        };
        if is_asked { !is_named || !is_still_full() } else { is_named }
    }
}

#[cfg(test)]
mod tests;
