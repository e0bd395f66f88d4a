//! Claims that a LoadBalancer publishes or inherits, and that no ledger records for it. There are
//! three cases:
//! * the pool of the address is gone;
//! * the address is missing from its pool's ledger;
//! * the ledger records the address for an earlier object with the LoadBalancer's name.

use super::{AllocatorPool, ClaimResult, PoolAllocator};
use crate::reason::NoAddressReason;
use crate::{Claim, LbFacts, Owner};

impl PoolAllocator {
    /// Keeps the published address of the LoadBalancer, if the address is from a deleted pool. The
    /// LoadBalancer becomes a waiter, because the pool may be created again. `None`:
    /// [`Self::claim_of_deleted_pool`] returns `None`, or the LoadBalancer's `spec.ipPool` names
    /// another pool.
    pub(super) fn keep_claim_of_deleted_pool(&mut self, facts: &LbFacts) -> Option<ClaimResult> {
        let claim = self.claim_of_deleted_pool(facts)?;
        if facts.named_pool.as_ref().is_some_and(|named| *named != claim.pool) {
            return None;
        }
        // An earlier `spec.ipPool` may have named another pool. The LoadBalancer's claims in that
        // pool are released, except claims whose address its Service may still use.
        self.release_claims(&facts.owner.uid, |other| facts.may_use(other, claim));
        let wait = NoAddressReason::PoolGone { pool: claim.pool.clone() };
        self.wait(facts, wait.clone());
        Some(self.held(facts, claim.clone(), Some(wait)))
    }

    /// The published claim, if its pool does not exist and the LoadBalancer may keep the address.
    /// `None`: no such claim. The LoadBalancer may keep the address in two cases:
    /// * The claim is reserved for the LoadBalancer, and the LoadBalancer need not withdraw it
    ///   ([`Self::has_reserved`]). For example, the claim was published at the start of this
    ///   replica's term of leadership, or a ledger recorded it until the pool was removed.
    /// * All of these hold:
    ///   * no other LoadBalancer has the address, by a ledger or by a reservation;
    ///   * the address is not the gateway of a pool;
    ///   * each pool whose ranges include the address admits the LoadBalancer.
    ///
    /// The second case has conditions, because a tenant can write any address, and the name of a
    /// pool that never existed, into a status that admission does not protect.
    pub(super) fn claim_of_deleted_pool<'a>(&self, facts: &'a LbFacts) -> Option<&'a Claim> {
        let claim = facts.published.as_ref()?;
        let is_gone = !self.pools.contains_key(&claim.pool);
        if is_gone && self.has_reserved(&facts.owner.uid, claim) {
            return Some(claim);
        }
        let keeps_off = |pool: &AllocatorPool| {
            let ranges = pool.ledger.ranges();
            let owner = pool.ledger.owner_of(claim.ip);
            let admits = pool.selector.may_be_named_by(&facts.requirement);
            owner.is_some_and(|owner| owner.uid != facts.owner.uid)
                || ranges.gateways().any(|gateway| gateway == claim.ip)
                || ranges.find(claim.ip).is_some() && !admits
        };
        let mut reserved = self.reserved.at(claim.ip);
        let is_anothers = reserved.any(|reserved| reserved.owner.uid != facts.owner.uid);
        (is_gone && !is_anothers && !self.pools.values().any(keeps_off)).then_some(claim)
    }

    /// Restores the claim that the LoadBalancer publishes, if all of these hold:
    /// * no ledger records a claim of the LoadBalancer;
    /// * the pool of the published claim admits the LoadBalancer;
    /// * the ranges of this pool include the address;
    /// * no other LoadBalancer has the address on the pool's segment, or on a segment where the
    ///   address would be announced for this LoadBalancer.
    pub(super) fn restore_published(&mut self, facts: &LbFacts) {
        let Some(claim) = &facts.published else { return };
        if !self.claims_of(&facts.owner.uid).is_empty() || self.is_anothers(claim, facts) {
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
        self.hold_back_elsewhere(claim);
    }

    /// Hands over to the LoadBalancer the claims that it may inherit from an earlier LoadBalancer
    /// with the same name ([`Self::inheritance`]). A name belongs to one object, so the earlier
    /// LoadBalancer was deleted. Does nothing if `facts` are not fresh, because facts from a stale
    /// view may be those of the earlier LoadBalancer.
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

    /// Claims that the LoadBalancer may inherit, each with its present owner. A LoadBalancer may
    /// inherit a claim if all of these hold:
    /// * the claim's owner has the LoadBalancer's name and another UID;
    /// * the LoadBalancer's `spec.ipPool` is empty, or names the claim's pool;
    /// * the pool admits the LoadBalancer, and is not being deleted;
    /// * the pool's addresses fit the LoadBalancer's network;
    /// * the LoadBalancer has no claim in the pool yet.
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
