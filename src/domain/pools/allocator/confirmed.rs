//! Answers to requests of LoadBalancers whose claims the API server has accepted. These answers can
//! be given while the ledger task waits for a write, or cannot write.
//!
//! Invariant: a recorded answer is the answer that the ledger task would give after its pending
//! writes. So an answer is recorded only while no write of its pool is pending, or if the stored
//! pool has the claim. The answer is removed before the task serves a request about its owner's
//! claims, and compared with the book after pools or networks have changed. A claim of another
//! owner changes no recorded answer.

use std::collections::HashMap;

use super::{ClaimResult, PoolAllocator};
use crate::{LbFacts, Owner};

/// Map from an owner's name to the answer. The key is the name, because a later owner of the same
/// name takes over the claim.
#[derive(Clone, Debug, Default)]
pub struct ConfirmedClaims(HashMap<String, (LbFacts, ClaimResult)>);

impl ConfirmedClaims {
    /// The answer to a request with these facts. `None`: the ledger task must answer.
    pub fn answer(&self, facts: &LbFacts) -> Option<ClaimResult> {
        let (known, answer) = self.0.get(&facts.owner.name)?;
        (known == facts).then(|| answer.clone())
    }

    /// Records an answer of [`PoolAllocator::peek`].
    pub fn confirm(&mut self, facts: LbFacts, answer: ClaimResult) {
        self.0.insert(facts.owner.name.clone(), (facts, answer));
    }

    /// Removes the answer to an owner whose claims may change.
    pub fn forget(&mut self, owner: &Owner) {
        self.0.remove(&owner.name);
    }

    /// Removes the answers that the book does not give any more.
    pub fn recheck(&mut self, book: &PoolAllocator) {
        self.0.retain(|_, (facts, answer)| book.unchanged(facts).as_ref() == Some(answer));
    }
}
