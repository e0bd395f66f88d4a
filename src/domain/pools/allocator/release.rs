//! Releases of claims.

use super::PoolAllocator;
use crate::{Claim, LbFacts, Owner};

impl PoolAllocator {
    /// Whether the owner with this UID has a claim, reservation, expected address or waiting
    /// request.
    pub fn knows(&self, uid: &str) -> bool {
        !self.claims_of(uid).is_empty() || self.waiters.contains_key(uid) || self.is_remembered(uid)
    }

    /// Whether nothing of the owner with this UID is left to release, in memory or in a stored
    /// ledger: the allocator does not know the owner ([`Self::knows`]), and no write of a pool is
    /// pending. While a write is pending, the stored ledger may have a claim of the owner, although
    /// the claim was released in memory.
    pub fn has_nothing_to_release(&self, uid: &str) -> bool {
        !self.knows(uid) && self.touched.is_empty()
    }

    /// Releases every claim of the owner, and removes the owner's waiting request, reservations and
    /// expected address. Returns the released claims.
    ///
    /// Does nothing if a ledger records the UID of `owner` with another name, because the UID may
    /// be forged. The deletion of a LoadBalancer's Service also causes a release, and then the UID
    /// is from the Service's owner reference. A tenant can write the UID of any LoadBalancer into
    /// the owner reference of its own Service.
    pub fn release(&mut self, owner: &Owner) -> Vec<Claim> {
        let has_another_name = |claim: &Claim| {
            self.owner_of(claim).is_some_and(|recorded| recorded.name != owner.name)
        };
        if self.claims_of(&owner.uid).iter().any(has_another_name) {
            return Vec::new();
        }
        self.stop_waiting(&owner.uid);
        self.forget(&owner.uid);
        self.release_claims(&owner.uid, |_| false)
    }

    /// Releases the LoadBalancer's claims and reservations, except the claim `current` and those
    /// whose address the LoadBalancer's Service may still use.
    pub(super) fn release_unused(&mut self, facts: &LbFacts, current: &Claim) {
        let keeps = |claim: &Claim| claim == current || facts.may_use(claim, current);
        self.release_claims(&facts.owner.uid, keeps);
        self.unreserve_claims(&facts.owner.uid, keeps);
    }

    /// Owner of a claim. `None`: no ledger records the claim.
    pub fn owner_of(&self, claim: &Claim) -> Option<&Owner> {
        self.pools.get(&claim.pool)?.ledger.owner_of(claim.ip)
    }

    /// Releases one claim, if `owner` is its owner. Returns `false` if the claim has another owner
    /// or does not exist.
    pub fn release_claim(&mut self, claim: &Claim, owner: &Owner) -> bool {
        let is_owned = self.owner_of(claim) == Some(owner);
        if is_owned {
            self.end_claim(claim);
        }
        is_owned
    }

    /// Releases the owner's claims for which `keeps` returns `false`. Returns these claims.
    pub(super) fn release_claims(
        &mut self,
        uid: &str,
        keeps: impl Fn(&Claim) -> bool,
    ) -> Vec<Claim> {
        let surplus: Vec<Claim> =
            self.claims_of(uid).iter().filter(|claim| !keeps(claim)).cloned().collect();
        for claim in &surplus {
            self.end_claim(claim);
        }
        surplus
    }

    fn end_claim(&mut self, claim: &Claim) {
        let pool = self.pools.get_mut(&claim.pool);
        if let Some(owner) = pool.and_then(|pool| pool.ledger.release(claim.ip)) {
            self.unhold(&owner, claim);
        }
        self.touch(&claim.pool);
        self.let_go_elsewhere(claim);
    }
}
