//! LoadBalancers whose claim is released while a reconcile or a view still has the LoadBalancer.

use super::*;

impl Cluster {
    /// Releases the claim of a LoadBalancer that does not publish the claim.
    pub(super) fn refuse(&mut self, n: usize) {
        if let Some(facts) = self.lbs.get(&n).filter(|facts| facts.published.is_none()) {
            self.allocator.release(&facts.owner);
        }
    }

    /// Claims an address for a deleted LoadBalancer, as a reconcile with a stale view does. Checks
    /// the answer, because the Service may request the address in the answer. Then releases the
    /// claim, as the reconcile does when the status cannot be written.
    pub(super) fn ask_late(&mut self, n: usize) {
        let Some(facts) = self.gone.get(&n) else { return };
        let facts = LbFacts { fresh: false, ..self.on_networks(n, facts) };
        let answer = self.confirmed.answer(&facts).or_else(|| {
            self.confirmed.forget(&facts.owner);
            // If fresh facts are needed, no claim is made, because the API server does not have the
            // LoadBalancer.
            (!self.allocator.needs_fresh(&facts)).then(|| self.allocator.claim(&facts))
        });
        if let Some(ClaimResult::Held { claim, .. }) = answer {
            self.check_own(n, &facts, &claim);
        }
        self.confirmed.forget(&facts.owner);
        self.allocator.release(&facts.owner);
    }

    /// Checks that the claim belongs to the LoadBalancer, and that its address is announced for no
    /// other LoadBalancer.
    fn check_own(&self, n: usize, facts: &LbFacts, claim: &Claim) {
        let Owner { uid, .. } = &facts.owner;
        if let Some(pool) = self.allocator.pools().get(&claim.pool) {
            assert_eq!(pool.ledger.owner_of(claim.ip), Some(&facts.owner), "{claim:?} for {uid}");
        } else {
            assert!(self.allocator.has_reserved(uid, claim), "{claim:?} for {uid}");
        }
        let mine = self.segments(facts, claim);
        for theirs in (0..LBS).filter_map(|other| self.facts(other)) {
            let Some(published) = &theirs.published else { continue };
            let meets = published.ip == claim.ip
                && meet(mine.as_ref(), self.segments(&theirs, published).as_ref());
            assert!(!meets, "{claim:?} for {uid} of {n}, announced for {theirs:?}");
        }
    }
}
