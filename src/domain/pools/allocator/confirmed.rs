//! Recorded answers to LoadBalancers whose claims the API server has stored. A LoadBalancer that
//! asks again gets its recorded answer even while the ledger task waits for a write, or cannot
//! write.
//!
//! Invariant: a recorded answer is the answer that the ledger task would give after its pending
//! writes. These rules keep the invariant:
//! * an answer is recorded only while no write of the claim's pool is pending, or if the stored
//!   pool has the claim;
//! * an answer is removed before the task serves a request about the claims of the same owner;
//! * after pools or networks have changed, all answers are compared with the allocator.
//!
//! A claim for one owner does not change the answers to other owners, so their recorded answers
//! stay.

use std::collections::HashMap;

use super::{ClaimResult, PoolAllocator};
use crate::{LbFacts, Owner};

/// Map from an owner's name to the facts of its last request, and the answer to that request. The
/// key is not the UID, because a later owner of the same name takes over the claim. The answer to
/// the earlier owner must then be removed.
#[derive(Clone, Debug, Default)]
pub struct ConfirmedClaims(HashMap<String, (LbFacts, ClaimResult)>);

impl ConfirmedClaims {
    /// The recorded answer to a request with exactly these facts. `None`: no answer is recorded,
    /// and the ledger task must decide.
    pub fn answer(&self, facts: &LbFacts) -> Option<ClaimResult> {
        let (known, answer) = self.0.get(&facts.owner.name)?;
        (known == facts).then(|| answer.clone())
    }

    /// Records the answer that [`PoolAllocator::peek`] gave to a request with these facts.
    pub fn confirm(&mut self, facts: LbFacts, answer: ClaimResult) {
        self.0.insert(facts.owner.name.clone(), (facts, answer));
    }

    /// Removes the recorded answer to the LoadBalancer with the name of `owner`, because the claims
    /// of that name may change.
    pub fn forget(&mut self, owner: &Owner) {
        self.0.remove(&owner.name);
    }

    /// Removes the recorded answers that `allocator` would no longer give to the same requests.
    pub fn recheck(&mut self, allocator: &PoolAllocator) {
        self.0.retain(|_, (facts, answer)| allocator.unchanged(facts).as_ref() == Some(answer));
    }
}
