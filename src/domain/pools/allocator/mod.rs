//! Allocator of addresses. It has all pools, all claims and all waiters.
//!
//! The allocator is the desired content of the ledgers. In the leader, it belongs to one task, the
//! ledger task, which writes each changed pool by compare-and-swap. A LoadBalancer gets its address
//! only after the API server has accepted the write of the claim. If another client has written a
//! pool, the task reads the pool again, and merges it ([`PoolAllocator::merge`]).
//!
//! Invariants:
//! * every operation is idempotent, so the task can decide a batch of requests again after a failed
//!   write;
//! * a LoadBalancer retains its address, unless its `spec.ipPool` names another pool. In that case,
//!   the new address is claimed first. The old address is released only when a fresh read shows
//!   that the new address is published. Exception: if two LoadBalancers have one address, one of
//!   them may lose it when a stored pool is read ([`restore`]), or when a term of leadership begins
//!   ([`reserved`]);
//! * waiters are served oldest first, and before every later request;
//! * no pool gives out an address in these cases:
//!   * another pool on the same segment has the address in its ledger ([`overlap`]);
//!   * the address is reserved on that segment for another LoadBalancer ([`reserved`]);
//!   * the address is reserved on any segment for another LoadBalancer, which has it from a deleted
//!     pool;
//!   * the cluster itself uses the address. Exception: pools on a tagged VLAN give out addresses of
//!     the networks of pods and Services;
//! * a LoadBalancer that is created again under its name gets the former address of the name, if
//!   the pool may still give it out and no LoadBalancer of another name has it. The former address
//!   is known from a claim, from the ledger's history of former owners, or from an annotation of
//!   the LoadBalancer.

mod confirmed;
mod deleted;
pub mod overlap;
mod recover;
mod release;
mod reserved;
mod restore;
mod waiters;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use super::conflict::{PoolConflict, network_mismatch};
use super::ledger::{Ledger, NoAddress};
use super::ranges::{RangeError, Subnet};
use super::selection::{PoolRequirement, PoolSelector};
use crate::network::Segment;
use crate::network::infrastructure::HeldBack;
use crate::reason::NoAddressReason;
use crate::{Claim, LbFacts, Owner};

pub use confirmed::ConfirmedClaims;
pub use reserved::Reservation;
pub use restore::{LedgerRepair, LoadBalancerEntry, LoadBalancerIndex, PoolSeen};

/// A pool in the allocator.
#[derive(Clone, Debug)]
pub struct AllocatorPool {
    /// Creation time of the pool, in seconds since the epoch.
    pub created: i64,
    /// Segment of the network in the pool's selector.
    pub segment: Segment,
    /// Selector of the LoadBalancers that the pool serves.
    pub selector: PoolSelector,
    /// Conflict that stops the pool from giving out new addresses. After a change of pools,
    /// [`PoolAllocator`] updates this field before it gives out an address. `None`: no conflict.
    pub conflict: Option<PoolConflict>,
    /// Fault in the pool's ranges. A pool with a fault retains its claims and gives out no address.
    /// `None`: the ranges are valid.
    pub fault: Option<RangeError>,
    /// Whether the pool is being deleted. If so, it gives out no address.
    pub deleting: bool,
    /// Networks that the cluster itself uses and that overlap the pool's ranges, each with the
    /// object that uses the network. The pool gives out no address of these networks. For a pool on
    /// a tagged VLAN, the networks of pods and Services are left out.
    pub infrastructure: HeldBack,
    /// Claims of the pool's addresses.
    pub ledger: Ledger,
}

/// The answer to a request for an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimResult {
    /// The address to publish.
    Held {
        /// Pool and address of the claim.
        claim: Claim,
        /// Subnet of the address. `None`: the pool does not exist, or its ranges do not include the
        /// address.
        subnet: Option<Subnet>,
        /// Network of the pool, empty for the nodes' own network. `None`: the pool serves every
        /// network, or was deleted before this term of leadership.
        network: Option<String>,
        /// Reason why the LoadBalancer keeps this address, although the address does not meet the
        /// request. `None`: the address meets the request.
        instead: Option<NoAddressReason>,
    },
    /// No address yet, for this reason. The allocator remembers the request, and serves it when a
    /// pool has an address.
    Waiting(NoAddressReason),
}

/// All pools, all owners of claims, and all waiters.
#[derive(Clone, Debug, Default)]
pub struct PoolAllocator {
    pools: BTreeMap<String, AllocatorPool>,
    /// Pools that were deleted in this term, by name. The next deletion of a pool removes each
    /// entry that no reservation names. An entry has no effect while a pool with its name exists
    /// again.
    deleted: BTreeMap<String, deleted::DeletedPool>,
    /// Map from an owner's UID to its claims. An owner has more than one claim while it changes
    /// pools.
    holders: HashMap<String, Vec<Claim>>,
    /// Map from an owner's name to the claims of all owners with this name.
    names: HashMap<String, BTreeSet<Claim>>,
    /// Map from the UID of a waiting LoadBalancer to its facts and the reason for its wait.
    waiters: BTreeMap<String, (LbFacts, NoAddressReason)>,
    /// Names of the pools whose status must be written.
    touched: BTreeSet<String>,
    waiter_changes: waiters::WaiterChanges,
    overlaps: overlap::PoolOverlaps,
    reserved: reserved::Reservations,
    /// Addresses and networks of the cluster itself: nodes, the management address, Services of
    /// other controllers, networks of pods and Services.
    infrastructure: HeldBack,
}

impl PoolAllocator {
    /// Claims an address for the LoadBalancer, or records that the LoadBalancer waits for one.
    pub fn claim(&mut self, facts: &LbFacts) -> ClaimResult {
        self.observe(facts);
        self.compare_pools();
        if let Some(result) = self.keep_claim_of_deleted_pool(facts) {
            return result;
        }
        self.restore_published(facts);
        self.inherit(facts);
        let current = self.current(facts);
        let (claim, wait) = match self.find_or_make_claim(facts, current.as_ref()) {
            Ok(claim) => (claim, None),
            Err(wait) => {
                let Some(claim) = self.claim_of_deleted_pool(facts).cloned().or(current) else {
                    self.wait(facts, wait.clone());
                    return ClaimResult::Waiting(wait);
                };
                (claim, Some(wait))
            }
        };
        match &wait {
            Some(wait) => self.wait(facts, wait.clone()),
            None => self.stop_waiting(&facts.owner.uid),
        }
        self.reserve(facts, &claim);
        if facts.fresh && wait.is_none() && facts.published.as_ref() == Some(&claim) {
            self.release_unused(facts, &claim);
        }
        self.held(facts, claim, wait)
    }

    /// Returns the answer that [`Self::claim`] would give, if that call would change nothing and
    /// the claim is stored. A claim counts as stored if no write of its pool is pending, or if
    /// `is_stored` finds the claim in the stored pool. `None`: the caller must call
    /// [`Self::claim`].
    pub fn peek(
        &self,
        facts: &LbFacts,
        is_stored: impl FnOnce(&Claim) -> bool,
    ) -> Option<ClaimResult> {
        self.unchanged(facts).filter(|answer| match answer {
            ClaimResult::Held { claim, .. } => {
                !self.touched.contains(&claim.pool) || is_stored(claim)
            }
            ClaimResult::Waiting(_) => false,
        })
    }

    /// Returns the answer that [`Self::claim`] would give, even if a write of the claim's pool is
    /// pending. `None`: [`Self::claim`] must be called, because it may change claims, reservations
    /// or waiters.
    fn unchanged(&self, facts: &LbFacts) -> Option<ClaimResult> {
        let claims = self.holders.get(&facts.owner.uid)?;
        let [claim] = claims.as_slice() else { return None };
        let in_place = facts.named_pool.as_ref().is_none_or(|named| *named == claim.pool);
        let published_here = facts.published.as_ref().is_none_or(|p| p == claim);
        let settled = !self.waiters.contains_key(&facts.owner.uid);
        (in_place && published_here && settled && self.is_reserved(facts, claim))
            .then(|| self.held(facts, claim.clone(), None))
    }

    /// Whether the LoadBalancer must be read from the API server before [`Self::claim`], because a
    /// stale view must not decide the answer. `false` if `facts` are fresh. Otherwise `true` in
    /// these cases:
    /// * a claim or a reservation may have to be released;
    /// * the LoadBalancer has claims, and publishes an address that is not among them;
    /// * the LoadBalancer inherits claims of an earlier LoadBalancer with its name.
    pub fn needs_fresh(&self, facts: &LbFacts) -> bool {
        let claims = self.claims_of(&facts.owner.uid);
        let unknown = facts.published.as_ref().is_some_and(|p| !claims.contains(p));
        let surplus = claims.len() > 1 || self.reserves_more_than(&facts.owner.uid, claims);
        !facts.fresh
            && (surplus
                || (!claims.is_empty() && unknown)
                || self.inheritance(facts).next().is_some())
    }

    fn take_out(&mut self, name: &str) -> Option<AllocatorPool> {
        let pool = self.pools.remove(name)?;
        for (ip, owner) in pool.ledger.claims() {
            self.unhold(owner, &Claim { pool: name.to_owned(), ip: *ip });
        }
        self.touched.remove(name);
        self.waiter_changes.everything();
        self.overlaps.changed();
        Some(pool)
    }

    /// The pools, by name.
    pub fn pools(&self) -> &BTreeMap<String, AllocatorPool> {
        &self.pools
    }

    /// Names of the pools that were marked as changed since the last call. Their status must be
    /// written.
    pub fn take_touched(&mut self) -> BTreeSet<String> {
        self.compare_pools();
        std::mem::take(&mut self.touched)
    }

    /// Marks a pool as changed: its status must be written, and waiters that it may serve are tried
    /// again.
    pub fn touch(&mut self, pool: &str) {
        self.touched.insert(pool.to_owned());
        self.waiter_changes.pool(pool);
    }

    /// Claims of the owner with this UID. Empty if it has none.
    pub fn claims_of(&self, uid: &str) -> &[Claim] {
        self.holders.get(uid).map_or(&[], Vec::as_slice)
    }

    /// The claim that the LoadBalancer retains: the published one of its claims, else its first
    /// claim. `None`: the LoadBalancer has no claim.
    fn current(&self, facts: &LbFacts) -> Option<Claim> {
        let claims = self.claims_of(&facts.owner.uid);
        claims
            .iter()
            .find(|c| Some(*c) == facts.published.as_ref())
            .or_else(|| claims.first())
            .cloned()
    }

    /// Returns the claim that the LoadBalancer should have, and makes it if there is none yet. The
    /// error says why the claim cannot be made. If the LoadBalancer names a pool, the claim is in
    /// that pool. If it names none, the claim is `current` (the present claim), else one in the
    /// best pool that has an address for it.
    fn find_or_make_claim(
        &mut self,
        facts: &LbFacts,
        current: Option<&Claim>,
    ) -> Result<Claim, NoAddressReason> {
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
            return Err(NoAddressReason::NotFound { pool: named.clone() });
        };
        if !pool.selector.may_be_named_by(requirement) {
            return Err(NoAddressReason::Forbidden {
                pool: named.clone(),
                requirement: requirement.to_string(),
            });
        }
        if let Some(why) = pool.idle() {
            return Err(NoAddressReason::NotReady { pool: named.clone(), why });
        }
        if let Some(wait) = pool.mismatch(named, facts) {
            return Err(wait);
        }
        self.claim_from(named, facts).map_err(|refusal| match refusal {
            NoAddress::Full => self.why_full(named, facts),
            NoAddress::LedgerFull => NoAddressReason::LedgerFull { pool: named.clone() },
        })
    }

    /// Reason why the pool `named` has no address for the LoadBalancer. A Service cannot move to
    /// the address that it already has. So the reason is [`NoAddressReason::OwnAddress`] if all of
    /// these hold, else [`NoAddressReason::Full`]:
    /// * the LoadBalancer is of type vm, and publishes an address from another pool;
    /// * this address is also in the ranges of `named`, and is not claimed there.
    fn why_full(&self, named: &str, facts: &LbFacts) -> NoAddressReason {
        let pool = named.to_owned();
        let is_unclaimed = |ip: IpAddr| {
            let ledger = self.pools.get(named).map(|pool| &pool.ledger);
            ledger.is_some_and(|l| l.ranges().find(ip).is_some() && l.owner_of(ip).is_none())
        };
        match facts.moves_off(named).filter(|ip| is_unclaimed(*ip)) {
            Some(ip) => NoAddressReason::OwnAddress { pool, ip },
            None => NoAddressReason::Full { pools: vec![pool] },
        }
    }

    /// Names of the pools that may serve a LoadBalancer that names no pool, best first.
    pub fn candidates(&self, requirement: &PoolRequirement) -> Vec<&str> {
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

    fn claim_from_best(&mut self, facts: &LbFacts) -> Result<Claim, NoAddressReason> {
        let mut names: Vec<String> =
            self.candidates(&facts.requirement).into_iter().map(str::to_owned).collect();
        // The pool of the former address comes first, if that pool still serves the LoadBalancer.
        names.sort_by_key(|name| facts.former.as_ref().is_none_or(|former| former.pool != *name));
        let mut refusal = None;
        for name in &names {
            if let Some(why) = self.pools.get(name).and_then(AllocatorPool::idle) {
                refusal.get_or_insert(NoAddressReason::NotReady { pool: name.clone(), why });
                continue;
            }
            match self.claim_from(name, facts) {
                Ok(claim) => return Ok(claim),
                Err(NoAddress::Full) => {}
                Err(NoAddress::LedgerFull) => {
                    refusal.get_or_insert(NoAddressReason::LedgerFull { pool: name.clone() });
                }
            }
        }
        Err(refusal.unwrap_or_else(|| {
            if names.is_empty() {
                NoAddressReason::NoMatch { requirement: facts.requirement.to_string() }
            } else {
                NoAddressReason::Full { pools: names }
            }
        }))
    }

    fn claim_from(&mut self, name: &str, facts: &LbFacts) -> Result<Claim, NoAddress> {
        // The pool is taken out of `pools` while its ledger changes, so that `fitness` can read the
        // other pools.
        let mut pool = self.pools.remove(name).ok_or(NoAddress::Full)?;
        let ip = self.claim_in(name, &mut pool, facts);
        self.pools.insert(name.to_owned(), pool);
        let claim = Claim { pool: name.to_owned(), ip: ip? };
        self.hold(&facts.owner, claim.clone());
        self.touched.insert(name.to_owned());
        self.hold_back_elsewhere(&claim);
        Ok(claim)
    }

    /// Claims an address in the ledger of `pool`. An address that is held back only because it is
    /// reserved for this LoadBalancer counts as free. But like each free address, it may be unfit
    /// for the LoadBalancer ([`Self::fitness`]).
    fn claim_in(
        &self,
        name: &str,
        pool: &mut AllocatorPool,
        facts: &LbFacts,
    ) -> Result<IpAddr, NoAddress> {
        let Owner { uid, .. } = &facts.owner;
        let reserved = self.reserved.of(uid).iter().map(|reservation| reservation.claim.ip);
        let own: Vec<IpAddr> = reserved
            .filter(|ip| pool.ledger.held_back().contains(ip))
            .filter(|ip| !self.is_in_use_beside(*ip, name, pool, uid))
            .collect();
        for ip in &own {
            pool.ledger.let_go(*ip);
        }
        let former = facts.former.as_ref().map(|former| former.ip).or(own.first().copied());
        let fitness = self.fitness(facts, name, pool);
        let ip = pool.ledger.claim_where(&facts.owner, former, fitness);
        for reserved in own {
            pool.ledger.hold_back(reserved);
        }
        ip
    }

    fn held(&self, facts: &LbFacts, claim: Claim, instead: Option<NoAddressReason>) -> ClaimResult {
        let pool = self.pools.get(&claim.pool);
        let subnet = pool.and_then(|p| p.ledger.ranges().subnet_of(claim.ip)).cloned();
        let instead = instead.or_else(|| pool?.mismatch(&claim.pool, facts));
        let deleted = || self.deleted.get(&claim.pool).map(|deleted| &deleted.selector);
        let selector = pool.map(|pool| &pool.selector).or_else(deleted);
        let selector = selector.filter(|selector| !selector.is_global());
        let network = selector.map(|selector| selector.network().to_owned());
        ClaimResult::Held { claim, subnet, network, instead }
    }

    fn hold(&mut self, owner: &Owner, claim: Claim) {
        self.names.entry(owner.name.clone()).or_default().insert(claim.clone());
        if owner.uid.is_empty() {
            return;
        }
        let claims = self.holders.entry(owner.uid.clone()).or_default();
        if !claims.contains(&claim) {
            claims.push(claim);
        }
    }

    pub(super) fn unhold(&mut self, owner: &Owner, claim: &Claim) {
        if let Some(claims) = self.holders.get_mut(&owner.uid) {
            claims.retain(|held| held != claim);
            if claims.is_empty() {
                self.holders.remove(&owner.uid);
            }
        }
        if let Some(claims) = self.names.get_mut(&owner.name) {
            claims.remove(claim);
            if claims.is_empty() {
                self.names.remove(&owner.name);
            }
        }
    }
}

impl AllocatorPool {
    /// Reason why the pool gives out no address, even a free one: its deletion, a fault in its
    /// ranges, or a conflict. `None`: no such reason.
    pub fn idle(&self) -> Option<String> {
        if self.deleting {
            return Some("it is being deleted".to_owned());
        }
        let fault = || self.fault.as_ref().map(ToString::to_string);
        fault().or_else(|| self.conflict.as_ref().map(PoolConflict::standing_back))
    }

    /// Reason why the pool's addresses do not fit the LoadBalancer's network. `None`: the addresses
    /// fit.
    fn mismatch(&self, name: &str, facts: &LbFacts) -> Option<NoAddressReason> {
        network_mismatch(name, &self.selector, &self.segment, facts)
    }
}

#[cfg(test)]
mod tests;
