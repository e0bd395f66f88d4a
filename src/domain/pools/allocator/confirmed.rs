//! Answers to owners of claims that the API server has accepted. They are given while the ledger
//! task waits for a write, or cannot write.
//!
//! Invariant: an answer is the one that the task would give, once what it writes is written. So an
//! answer is recorded only while nothing of its pool is unwritten, is removed before a decision
//! about its owner, and is compared with the book after pools or networks have changed. A claim of
//! another owner changes no answer.

use std::collections::HashMap;

use super::{ClaimResult, PoolAllocator};
use crate::{LbFacts, Owner};

/// Answers by the owner's name: a claim goes from an owner to a later one of the same name.
#[derive(Clone, Debug, Default)]
pub struct ConfirmedClaims(HashMap<String, (LbFacts, ClaimResult)>);

impl ConfirmedClaims {
    /// The answer to a request with these facts. `None`: it is for the ledger task.
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
