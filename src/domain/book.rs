//! All pools and everybody who waits: the allocator as a whole.
//!
//! The book is what the ledgers *should* say. Its owner, the one ledger task, writes each
//! touched pool by compare-and-swap, and answers a request only when the write it rests on
//! has been accepted. When somebody else wrote a pool, [`Book::merge`] reads their version in
//! and the batch is replayed: every operation is idempotent.
//!
//! Invariants:
//! * whoever holds an address keeps it, unless its `spec.ipPool` names another pool; then the
//!   new address is claimed first, and the old one freed only when the API server itself says
//!   that the new one is published;
//! * waiters are served oldest first, and before anybody who asks later;
//! * no pool gives out an address that another pool holds on the same network ([`standing`]).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use super::conflict::{Conflict, Segment};
use super::ledger::{Ledger, NoAddress};
use super::pool_choice::{Requirement, Selector};
use super::ranges::{RangeError, Subnet};
use super::reason::Wait;
use super::{Claim, LbFacts, Owner};

mod merge;
pub mod standing;

pub use merge::{PoolSeen, Repair, World, WorldEntry};

/// A pool as the book keeps it.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Creation, in seconds since the epoch.
    pub created: i64,
    /// Where its addresses are seen.
    pub segment: Segment,
    /// Who it is for.
    pub selector: Selector,
    /// Why it stands back behind another pool, as last judged.
    pub conflict: Option<Conflict>,
    /// The fault in its ranges; such a pool keeps its claims and gives out nothing.
    pub fault: Option<RangeError>,
    /// Being deleted: it gives out nothing.
    pub deleting: bool,
    /// The claims.
    pub ledger: Ledger,
}

/// The answer to a request for an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The address to publish.
    Held {
        /// Where it is recorded.
        claim: Claim,
        /// Its subnet; `None` if the pool's ranges no longer include it.
        subnet: Option<Subnet>,
        /// Why it is not in the pool that `spec.ipPool` names.
        instead: Option<Wait>,
    },
    /// None yet. The book remembers the request and serves it when it can.
    Waiting(Wait),
}

/// Every pool, every holder, every waiter.
#[derive(Clone, Debug, Default)]
pub struct Book {
    pools: BTreeMap<String, Pool>,
    /// Owner's UID to its claims; two for as long as it changes pools.
    holders: HashMap<String, Vec<Claim>>,
    waiters: BTreeMap<Age, (LbFacts, Wait)>,
    ages: HashMap<String, Age>,
    touched: BTreeSet<String>,
    /// Something changed that waiters may have waited for.
    stirred: bool,
    standing: standing::Standing,
}

/// Sorts by age, then name, so that the order of service never depends on arrival.
type Age = (i64, Owner);

impl Book {
    /// Gives the LoadBalancer its address, or remembers that it waits.
    pub fn claim(&mut self, facts: &LbFacts) -> Verdict {
        self.judge();
        if let Some(verdict) = self.keep_homeless(facts) {
            return verdict;
        }
        self.restore_published(facts);
        let current = self.current(facts);
        let verdict = match self.settle(facts, current.as_ref()) {
            Ok(claim) => self.held(claim, None),
            Err(wait) => match self.homeless(facts).cloned().or(current) {
                Some(claim) => {
                    self.wait(facts, wait.clone());
                    return self.held(claim, Some(wait));
                }
                None => Verdict::Waiting(wait),
            },
        };
        match &verdict {
            Verdict::Waiting(wait) => self.wait(facts, wait.clone()),
            Verdict::Held { claim, .. } => {
                self.stop_waiting(&facts.owner.uid);
                if facts.fresh && facts.published.as_ref() == Some(claim) {
                    self.release_all_but(&facts.owner.uid, Some(claim));
                }
            }
        }
        verdict
    }

    /// The answer to [`Self::claim`] if it changes nothing, so that no write is needed.
    pub fn peek(&self, facts: &LbFacts) -> Option<Verdict> {
        let claims = self.holders.get(&facts.owner.uid)?;
        let [claim] = claims.as_slice() else { return None };
        let in_place = facts.named_pool.as_ref().is_none_or(|named| *named == claim.pool);
        let published_here = facts.published.as_ref().is_none_or(|p| p == claim);
        let written = !self.touched.contains(&claim.pool);
        (in_place && published_here && written && !self.ages.contains_key(&facts.owner.uid))
            .then(|| self.held(claim.clone(), None))
    }

    /// Whether the LoadBalancer must be read again before [`Self::claim`]: it holds more than
    /// it publishes, so that an address may have to be freed, or publishes what it does not
    /// hold. An old view must not decide on either.
    pub fn needs_fresh(&self, facts: &LbFacts) -> bool {
        let claims = self.claims_of(&facts.owner.uid);
        let unknown = facts.published.as_ref().is_some_and(|p| !claims.contains(p));
        !facts.fresh && (claims.len() > 1 || (!claims.is_empty() && unknown))
    }

    /// Whether [`Self::release`] would change nothing, in memory or in a stored ledger.
    pub fn has_nothing_to_release(&self, uid: &str) -> bool {
        self.claims_of(uid).is_empty() && !self.ages.contains_key(uid) && self.touched.is_empty()
    }

    /// Frees everything the owner holds, and forgets that it waits.
    pub fn release(&mut self, uid: &str) -> Vec<Claim> {
        self.stop_waiting(uid);
        self.release_all_but(uid, None)
    }

    /// Frees one address if its owner is still the one given.
    pub fn release_claim(&mut self, claim: &Claim, owner: &Owner) -> bool {
        let Some(pool) = self.pools.get_mut(&claim.pool) else { return false };
        if pool.ledger.owner_of(claim.ip) != Some(owner) {
            return false;
        }
        pool.ledger.release(claim.ip);
        if let Some(claims) = self.holders.get_mut(&owner.uid) {
            claims.retain(|c| c != claim);
            if claims.is_empty() {
                self.holders.remove(&owner.uid);
            }
        }
        self.touch(&claim.pool);
        self.freed(claim);
        true
    }

    /// Tries every waiter again, oldest first. Returns those whose answer changed.
    pub fn serve_waiters(&mut self) -> Vec<Owner> {
        self.judge();
        if !std::mem::take(&mut self.stirred) {
            return Vec::new();
        }
        let waiting: Vec<_> = self.waiters.values().cloned().collect();
        waiting
            .into_iter()
            .filter(|(facts, before)| {
                self.claim(facts);
                let now = self.ages.get(&facts.owner.uid).and_then(|age| self.waiters.get(age));
                now.is_none_or(|(_, wait)| wait != before)
            })
            .map(|(facts, _)| facts.owner)
            .collect()
    }

    /// Forgets a pool. Whoever held an address there keeps publishing it.
    pub fn remove_pool(&mut self, name: &str) {
        let Some(pool) = self.pools.remove(name) else { return };
        for (ip, owner) in pool.ledger.claims() {
            self.unhold(&owner.uid, name, *ip);
        }
        self.touched.remove(name);
        self.stirred = true;
        self.standing.changed();
    }

    /// The pools, by name.
    pub fn pools(&self) -> &BTreeMap<String, Pool> {
        &self.pools
    }

    /// Pools whose ledger changed since they were last taken.
    pub fn take_touched(&mut self) -> BTreeSet<String> {
        self.judge();
        std::mem::take(&mut self.touched)
    }

    /// Marks a pool as not written yet.
    pub fn touch(&mut self, pool: &str) {
        self.touched.insert(pool.to_owned());
        self.stirred = true;
    }

    /// How many wait, by the reason.
    pub fn waiting(&self) -> impl Iterator<Item = (&LbFacts, &Wait)> {
        self.waiters.values().map(|(facts, wait)| (facts, wait))
    }

    /// What an owner holds.
    pub fn claims_of(&self, uid: &str) -> &[Claim] {
        self.holders.get(uid).map_or(&[], Vec::as_slice)
    }

    /// The claim to keep: the published one, else any.
    fn current(&self, facts: &LbFacts) -> Option<Claim> {
        let claims = self.claims_of(&facts.owner.uid);
        claims
            .iter()
            .find(|c| Some(*c) == facts.published.as_ref())
            .or_else(|| claims.first())
            .cloned()
    }

    /// The claim the LoadBalancer should have: what it holds, unless it names another pool.
    fn settle(&mut self, facts: &LbFacts, current: Option<&Claim>) -> Result<Claim, Wait> {
        let requirement = &facts.requirement;
        let Some(named) = &facts.named_pool else {
            return match current {
                Some(claim) => Ok(claim.clone()),
                None => self.claim_from_best(facts),
            };
        };
        if let Some(claim) = self.claims_of(&facts.owner.uid).iter().find(|c| c.pool == *named) {
            return Ok(claim.clone());
        }
        let Some(pool) = self.pools.get(named) else {
            return Err(Wait::NotFound { pool: named.clone() });
        };
        if !pool.selector.may_be_named_by(requirement) {
            return Err(Wait::Forbidden {
                pool: named.clone(),
                requirement: requirement.to_string(),
            });
        }
        if let Some(why) = pool.idle() {
            return Err(Wait::NotReady { pool: named.clone(), why });
        }
        self.claim_from(named, &facts.owner).map_err(|refusal| match refusal {
            NoAddress::Full => Wait::Full { pools: vec![named.clone()] },
            NoAddress::LedgerFull => Wait::LedgerFull { pool: named.clone() },
        })
    }

    /// The pools that may serve, the best first.
    pub fn candidates(&self, requirement: &Requirement) -> Vec<&str> {
        let mut ranked: Vec<_> = self
            .pools
            .iter()
            .filter_map(|(name, pool)| {
                Some(pool.selector.rank(pool.selector.fit(requirement)?, name))
            })
            .collect();
        ranked.sort_unstable();
        ranked.into_iter().map(|(_, _, name)| name).collect()
    }

    fn claim_from_best(&mut self, facts: &LbFacts) -> Result<Claim, Wait> {
        let names: Vec<String> =
            self.candidates(&facts.requirement).into_iter().map(str::to_owned).collect();
        let mut refusal = None;
        for name in &names {
            if let Some(why) = self.pools.get(name).and_then(Pool::idle) {
                refusal.get_or_insert(Wait::NotReady { pool: name.clone(), why });
                continue;
            }
            match self.claim_from(name, &facts.owner) {
                Ok(claim) => return Ok(claim),
                Err(NoAddress::Full) => {}
                Err(NoAddress::LedgerFull) => {
                    refusal.get_or_insert(Wait::LedgerFull { pool: name.clone() });
                }
            }
        }
        Err(refusal.unwrap_or_else(|| {
            if names.is_empty() {
                Wait::NoMatch { requirement: facts.requirement.to_string() }
            } else {
                Wait::Full { pools: names }
            }
        }))
    }

    fn claim_from(&mut self, name: &str, owner: &Owner) -> Result<Claim, NoAddress> {
        let pool = self.pools.get_mut(name).ok_or(NoAddress::Full)?;
        let ip = pool.ledger.claim(owner)?;
        let claim = Claim { pool: name.to_owned(), ip };
        self.hold(owner, claim.clone());
        self.touched.insert(name.to_owned());
        self.given(&claim);
        Ok(claim)
    }

    /// A published address whose pool is gone stays in use: the pool may come back, and a live
    /// address is never changed by anything but its owner's wish.
    fn keep_homeless(&mut self, facts: &LbFacts) -> Option<Verdict> {
        let claim = self.homeless(facts)?;
        if facts.named_pool.as_ref().is_some_and(|named| *named != claim.pool) {
            return None;
        }
        // Left from a switch that was taken back.
        self.release_all_but(&facts.owner.uid, None);
        let wait = Wait::PoolGone { pool: claim.pool.clone() };
        self.wait(facts, wait.clone());
        Some(Verdict::Held { claim: claim.clone(), subnet: None, instead: Some(wait) })
    }

    /// Where nothing guards the status, a tenant can write any address and the name of a pool that
    /// never was: one that is another's, or a pool's that does not admit it, is not kept.
    fn homeless<'a>(&self, facts: &'a LbFacts) -> Option<&'a Claim> {
        let claim = facts.published.as_ref()?;
        let keeps_off = |pool: &Pool| {
            let ranges = pool.ledger.ranges();
            let owner = pool.ledger.owner_of(claim.ip);
            owner.is_some_and(|owner| owner.uid != facts.owner.uid)
                || ranges.gateways().any(|gateway| gateway == claim.ip)
                || ranges.find(claim.ip).is_some()
                    && !pool.selector.may_be_named_by(&facts.requirement)
        };
        let is_gone = !self.pools.contains_key(&claim.pool);
        (is_gone && !self.pools.values().any(keeps_off)).then_some(claim)
    }

    /// Reads back a claim that the LoadBalancer publishes while no ledger names it, if the pool
    /// admits it and the address is nobody else's.
    fn restore_published(&mut self, facts: &LbFacts) {
        let Some(claim) = &facts.published else { return };
        if !self.claims_of(&facts.owner.uid).is_empty() {
            return;
        }
        let Some(pool) = self.pools.get_mut(&claim.pool) else { return };
        if !pool.selector.may_be_named_by(&facts.requirement)
            || pool.ledger.ranges().find(claim.ip).is_none()
            || pool.ledger.held_back().contains(&claim.ip)
            || !pool.ledger.restore(claim.ip, &facts.owner)
        {
            return;
        }
        self.hold(&facts.owner, claim.clone());
        self.touched.insert(claim.pool.clone());
        self.given(claim);
    }

    fn held(&self, claim: Claim, instead: Option<Wait>) -> Verdict {
        let pool = self.pools.get(&claim.pool);
        let subnet = pool.and_then(|p| p.ledger.ranges().subnet_of(claim.ip)).cloned();
        Verdict::Held { claim, subnet, instead }
    }

    fn hold(&mut self, owner: &Owner, claim: Claim) {
        if owner.uid.is_empty() {
            return;
        }
        let claims = self.holders.entry(owner.uid.clone()).or_default();
        if !claims.contains(&claim) {
            claims.push(claim);
        }
    }

    fn unhold(&mut self, uid: &str, pool: &str, ip: IpAddr) {
        if let Some(claims) = self.holders.get_mut(uid) {
            claims.retain(|c| c.pool != pool || c.ip != ip);
            if claims.is_empty() {
                self.holders.remove(uid);
            }
        }
    }

    fn release_all_but(&mut self, uid: &str, keep: Option<&Claim>) -> Vec<Claim> {
        let surplus: Vec<Claim> =
            self.claims_of(uid).iter().filter(|c| Some(*c) != keep).cloned().collect();
        for claim in &surplus {
            if let Some(pool) = self.pools.get_mut(&claim.pool) {
                pool.ledger.release(claim.ip);
            }
            self.unhold(uid, &claim.pool, claim.ip);
            self.touch(&claim.pool);
            self.freed(claim);
        }
        surplus
    }

    fn wait(&mut self, facts: &LbFacts, wait: Wait) {
        self.stop_waiting(&facts.owner.uid);
        let age = (facts.created, facts.owner.clone());
        self.ages.insert(facts.owner.uid.clone(), age.clone());
        // By the time a waiter is served its facts are old.
        self.waiters.insert(age, (LbFacts { fresh: false, ..facts.clone() }, wait));
    }

    fn stop_waiting(&mut self, uid: &str) {
        if let Some(age) = self.ages.remove(uid) {
            self.waiters.remove(&age);
        }
    }
}

impl Pool {
    /// Why the pool gives out nothing, if so.
    pub fn idle(&self) -> Option<String> {
        if self.deleting {
            return Some("it is being deleted".to_owned());
        }
        let fault = || self.fault.as_ref().map(ToString::to_string);
        fault().or_else(|| self.conflict.as_ref().map(Conflict::standing_back))
    }
}

#[cfg(test)]
mod tests;
