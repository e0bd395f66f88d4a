//! What a LoadBalancer has that no ledger says: an address whose pool is gone, one that is missing
//! from its pool's ledger, and one that the ledger has under its name for an earlier object.

use super::{Book, Pool, Verdict};
use crate::reason::Wait;
use crate::{Claim, LbFacts, Owner};

impl Book {
    /// A published address whose pool is gone stays in use: the pool may come back, and a live
    /// address is never changed by anything but its owner's wish.
    pub(super) fn keep_homeless(&mut self, facts: &LbFacts) -> Option<Verdict> {
        let claim = self.homeless(facts)?;
        if facts.named_pool.as_ref().is_some_and(|named| *named != claim.pool) {
            return None;
        }
        // Left from a switch that was taken back.
        self.release_all_but(&facts.owner.uid, None);
        let wait = Wait::PoolGone { pool: claim.pool.clone() };
        self.wait(facts, wait.clone());
        Some(self.held(facts, claim.clone(), Some(wait)))
    }

    /// The published claim, if its pool is gone. Where nothing guards the status, a tenant can write
    /// any address and the name of a pool that never was: one that this term did not begin with, or
    /// see in a ledger, must also be no other's, no gateway, and in no ranges of a pool that would not
    /// admit it.
    pub(super) fn homeless<'a>(&self, facts: &'a LbFacts) -> Option<&'a Claim> {
        let claim = facts.published.as_ref()?;
        let is_gone = !self.pools.contains_key(&claim.pool);
        if is_gone && self.has_reserved(&facts.owner.uid, claim) {
            return Some(claim);
        }
        let keeps_off = |pool: &Pool| {
            let ranges = pool.ledger.ranges();
            let owner = pool.ledger.owner_of(claim.ip);
            let admits = pool.selector.may_be_named_by(&facts.requirement);
            owner.is_some_and(|owner| owner.uid != facts.owner.uid)
                || ranges.gateways().any(|gateway| gateway == claim.ip)
                || ranges.find(claim.ip).is_some() && !admits
        };
        (is_gone && !self.pools.values().any(keeps_off)).then_some(claim)
    }

    /// Reads back a claim that the LoadBalancer publishes while no ledger names it, if the pool
    /// admits it and the address is nobody else's.
    pub(super) fn restore_published(&mut self, facts: &LbFacts) {
        let Some(claim) = &facts.published else { return };
        if !self.claims_of(&facts.owner.uid).is_empty() {
            return;
        }
        if self.is_anothers(claim, &facts.owner.uid) {
            return;
        }
        let Some(pool) = self.pools.get_mut(&claim.pool) else { return };
        if !pool.selector.may_be_named_by(&facts.requirement)
            || pool.ledger.ranges().find(claim.ip).is_none()
            || !pool.ledger.restore(claim.ip, &facts.owner)
        {
            return;
        }
        self.hold(&facts.owner, claim.clone());
        self.touched.insert(claim.pool.clone());
        self.given(claim);
    }

    /// Hands over the claims of an earlier LoadBalancer by the same name: one name is one object, so
    /// the earlier one is gone. `facts` must be fresh: an old view may show the earlier one.
    pub(super) fn inherit(&mut self, facts: &LbFacts) {
        if !facts.fresh {
            return;
        }
        let claims: Vec<(Claim, Owner)> = self.inheritance(facts).collect();
        for (claim, before) in claims {
            let Some(pool) = self.pools.get_mut(&claim.pool) else { continue };
            if pool.ledger.hand_over(claim.ip, &facts.owner) {
                self.unhold(&before, &claim);
                self.touched.insert(claim.pool.clone());
                self.hold(&facts.owner, claim);
                self.forget(&before.uid);
            }
        }
    }

    /// Claims under the LoadBalancer's name that are not its own, and that its pools may give it.
    pub(super) fn inheritance(&self, facts: &LbFacts) -> impl Iterator<Item = (Claim, Owner)> {
        let named = self.names.get(&facts.owner.name).into_iter().flatten();
        named.filter_map(|claim| {
            let pool = self.pools.get(&claim.pool)?;
            let owner = pool.ledger.owner_of(claim.ip)?;
            let ours = facts.named_pool.as_ref().is_none_or(|named| *named == claim.pool);
            let may = ours
                && owner.uid != facts.owner.uid
                && !pool.deleting
                && pool.selector.may_be_named_by(&facts.requirement)
                && pool.mismatch(&claim.pool, facts).is_none()
                && pool.ledger.held_by(&facts.owner).is_none();
            may.then(|| (claim.clone(), owner.clone()))
        })
    }
}
