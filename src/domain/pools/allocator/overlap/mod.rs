//! Relations between pools: which pools give out no address because of an older pool, and which
//! addresses a pool holds back (does not give out).
//!
//! Invariants:
//! * after a change of pools, all pools are compared before an address is given out;
//! * a pool holds back each address of its ranges while another pool on the same segment has the
//!   address in its ledger, or while the address is reserved on that segment ([`super::reserved`]).
//!   It does not matter which pool is older, or whether one of them gives out no address because of
//!   a conflict;
//! * a pool also holds back the addresses that the cluster itself uses, and those of the networks
//!   of pods and Services. Exception: a pool on a tagged VLAN does not hold back these networks;
//! * no rule here changes an existing claim: two claims of one address are reported, and both stay.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::super::conflict::candidates::{self, AddressSpan};
use super::super::conflict::{self, PoolConflict, PoolContender};
use super::{AllocatorPool, PoolAllocator};
use crate::network::Segment;
use crate::network::infrastructure::{HeldBack, Reserved};
use crate::{Claim, Owner};

/// Relations between the pools at the last comparison, and marks of later changes.
#[derive(Clone, Debug, Default)]
pub(super) struct PoolOverlaps {
    /// Whether pools, reservations or the networks of the cluster itself have changed since the
    /// pools were last compared.
    unsettled: bool,
    /// Whether pools were added or removed, the selector of a pool has changed, or networks have
    /// changed. If so, addresses may be announced on other segments than before.
    moved: bool,
    /// Map from the name of a pool to the names of the overlapping pools. Two pools overlap if
    /// their ranges share addresses, and addresses of both may be announced on one segment.
    beside: BTreeMap<String, Vec<String>>,
    shared: BTreeSet<SharedAddress>,
    /// Claimed addresses that the cluster itself uses, each with the name of the pool whose ledger
    /// has the claim.
    reserved_in_use: BTreeSet<(String, IpAddr)>,
    /// News that [`PoolAllocator::take_news`] has not returned yet.
    news: Vec<OverlapNews>,
}

/// An address that two LoadBalancers have on one network.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SharedAddress {
    /// The address.
    pub ip: IpAddr,
    /// Two pairs: the name of a pool, and the `namespace/name` of the LoadBalancer that has the
    /// address from this pool.
    pub holders: [(String, String); 2],
}

impl SharedAddress {
    /// Address that two owners have. `a` and `b` are pairs: the name of a pool, and the owner that
    /// has the address from this pool.
    fn new(ip: IpAddr, a: (&str, &Owner), b: (&str, &Owner)) -> Self {
        let mut holders = [a, b].map(|(pool, owner)| (pool.to_owned(), owner.name.clone()));
        holders.sort();
        Self { ip, holders }
    }
}

/// Problem that a comparison of the pools found, and the previous comparison did not: a conflict
/// between pools, or an address that is in use twice. The ledger task reports it once, as an Event
/// of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverlapNews {
    /// The pool of this name gives out no new address because of this conflict. The conflict is
    /// new, or differs from the last one that was reported.
    StandsBack(String, PoolConflict),
    /// Two LoadBalancers hold one address on one network.
    Shared(SharedAddress),
    /// A LoadBalancer holds an address that the cluster itself uses.
    ReservedInUse {
        /// Name of the pool whose ledger has the claim.
        pool: String,
        /// The address.
        ip: IpAddr,
        /// Object of the cluster that reserves the address.
        what: Reserved,
        /// `namespace/name` of the LoadBalancer.
        holder: String,
    },
}

impl PoolOverlaps {
    /// Marks that all pools must be compared again before the next claim.
    pub(super) fn changed(&mut self) {
        self.unsettled = true;
    }

    /// Whether two LoadBalancers held the address on one network when the pools were last compared.
    pub(super) fn is_shared(&self, ip: IpAddr) -> bool {
        self.shared.iter().any(|shared| shared.ip == ip)
    }

    /// Marks that a pool was added or removed, or that its selector or segment has changed.
    pub(super) fn moved(&mut self) {
        self.unsettled = true;
        self.moved = true;
    }
}

impl PoolAllocator {
    /// Sets the segment of each pool, and of each deleted pool, after networks have changed.
    /// `segment` returns the segment of a network, by its name. The waiters for a pool are tried
    /// again in these cases:
    /// * the pool has moved to another segment;
    /// * an address in the pool's ranges is claimed in a pool that has moved.
    pub fn relocate(&mut self, mut segment: impl FnMut(&str) -> Segment) {
        // A LoadBalancer may name a network that is on another segment than before, even if no pool
        // moved. So `moved` makes the caller observe every LoadBalancer. [`PoolAllocator::observe`]
        // then marks the waiters whose own segment has changed.
        self.overlaps.moved = true;
        for pool in self.deleted.values_mut() {
            pool.segment = segment(pool.selector.network());
        }
        let mut moved = BTreeSet::new();
        for (name, pool) in &mut self.pools {
            let now = segment(pool.selector.network());
            if pool.segment != now {
                pool.segment = now;
                moved.insert(name.clone());
            }
        }
        if moved.is_empty() {
            return;
        }
        // `compare_pools` then marks each pool whose conflict or held-back addresses have changed.
        self.overlaps.unsettled = true;
        for (name, pool) in &self.pools {
            // Claims of a moved pool are no longer on the segment that the pool left. LoadBalancers
            // of the pool `name` may announce their addresses on that segment. So more addresses
            // may be free for these LoadBalancers.
            let mut others = moved.iter().filter_map(|other| self.pools.get(other));
            if moved.contains(name)
                || others.any(|other| other.claims_within(pool).next().is_some())
            {
                self.waiter_changes.pool(name);
            }
        }
    }

    /// Sets the networks that the cluster itself uses, each with the object that uses the network.
    pub fn set_infrastructure(&mut self, held_back: HeldBack) {
        if self.infrastructure != held_back {
            self.infrastructure = held_back;
            self.overlaps.changed();
        }
    }

    /// Whether addresses may be announced on other segments than at the last call of this function:
    /// pools were added or removed, the selector of a pool has changed, or networks have changed.
    /// If so, the caller must observe every LoadBalancer ([`PoolAllocator::observe`]).
    pub fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.overlaps.moved)
    }

    /// Returns the news since the last call, for Events.
    pub fn take_news(&mut self) -> Vec<OverlapNews> {
        std::mem::take(&mut self.overlaps.news)
    }

    /// Number of addresses that two LoadBalancers hold on one network. If more than two hold an
    /// address, each pair of them counts.
    pub fn shared(&self) -> usize {
        self.overlaps.shared.len()
    }

    /// Compares all pools again, if anything has changed since they were last compared. Then
    /// updates the conflict and the held-back addresses of each pool.
    pub(super) fn compare_pools(&mut self) {
        if !std::mem::take(&mut self.overlaps.unsettled) {
            return;
        }
        let pools: Vec<(PoolContender<'_>, &AllocatorPool)> =
            self.pools.iter().map(|(name, pool)| (pool.contender(name), pool)).collect();
        let contenders: Vec<PoolContender<'_>> = pools.iter().map(|(pool, _)| *pool).collect();
        let mut conflicts = conflict::find_conflicts(&contenders);
        let mut beside: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut held_back: BTreeMap<String, BTreeSet<IpAddr>> = BTreeMap::new();
        let mut shared = BTreeSet::new();
        let spans: Vec<AddressSpan> = pools.iter().map(|(_, pool)| pool.span()).collect();
        candidates::each_meeting(&spans, |a, b| {
            let (a, b) = (&pools[a], &pools[b]);
            if !a.0.meets(&b.0) {
                return;
            }
            let overlap = conflict::overlap(a.0.ranges, b.0.ranges).is_some();
            for ((holder, mine), (other, theirs)) in [(a, b), (b, a)] {
                if overlap {
                    beside.entry(holder.name.to_owned()).or_default().push(other.name.to_owned());
                }
                let held = held_back.entry(other.name.to_owned()).or_default();
                held.extend(mine.claims_within(theirs));
                shared.extend(shared_by(holder.name, mine, other.name, theirs));
            }
        });
        for (name, pool) in &self.pools {
            for stretch in pool.ledger.ranges().stretches() {
                let reserved = self.reserved.within(stretch.first, stretch.last);
                for reservation in reserved.filter(|r| r.meets(pool)) {
                    held_back.entry(name.clone()).or_default().insert(reservation.claim.ip);
                }
            }
        }
        self.share_reserved(&mut shared);
        let mut in_use = BTreeSet::new();
        for (name, pool) in &mut self.pools {
            let held_back = held_back.remove(name).unwrap_or_default();
            let conflict = conflicts.remove(name);
            let mut infrastructure = pool.ledger.ranges().held_back(&self.infrastructure);
            infrastructure.retain(|_, what| what.is_held_back_on(&pool.segment));
            // In reverse order, the smallest of nested networks comes first. The report names the
            // smallest network, because it describes an address best.
            for (network, what) in infrastructure.iter().rev() {
                for (ip, owner) in pool.ledger.claims_in(*network) {
                    let place = (name.clone(), *ip);
                    let is_known = self.overlaps.reserved_in_use.contains(&place);
                    if in_use.insert(place) && !is_known {
                        let (pool, holder) = (name.clone(), owner.name.clone());
                        let what = what.clone();
                        let news = OverlapNews::ReservedInUse { pool, ip: *ip, what, holder };
                        self.overlaps.news.push(news);
                    }
                }
            }
            let networks: Vec<IpNet> = infrastructure.keys().copied().collect();
            let mut changed = pool.ledger.set_held_back(&held_back);
            changed |= pool.ledger.close(&networks);
            changed |= pool.infrastructure != infrastructure;
            pool.infrastructure = infrastructure;
            if pool.conflict != conflict {
                changed = true;
                let news = conflict.clone().map(|new| OverlapNews::StandsBack(name.clone(), new));
                self.overlaps.news.extend(news);
                pool.conflict = conflict;
            }
            if changed {
                self.touched.insert(name.clone());
                self.waiter_changes.pool(name);
            }
        }
        let new = shared.difference(&self.overlaps.shared).cloned().map(OverlapNews::Shared);
        self.overlaps.news.extend(new);
        self.overlaps.reserved_in_use = in_use;
        self.overlaps.beside = beside;
        self.overlaps.shared = shared;
    }

    /// Holds back the address of a new claim in every other pool that has the address in its ranges
    /// and shares a segment with the claim's pool.
    pub(super) fn hold_back_elsewhere(&mut self, claim: &Claim) {
        let Some(beside) = self.overlaps.beside.get(&claim.pool) else { return };
        for name in beside {
            let Some(pool) = self.pools.get_mut(name) else { continue };
            // A held-back address alone is no reason to write a pool that gives out no address.
            if pool.ledger.hold_back(claim.ip) && pool.idle().is_none() {
                self.touched.insert(name.clone());
            }
        }
    }

    /// Lets the other pools give out the address of a claim that was released. Exception: a pool
    /// that must still hold back the address ([`Self::let_go`]).
    pub(super) fn let_go_elsewhere(&mut self, claim: &Claim) {
        let both =
            |s: &SharedAddress| s.ip != claim.ip || s.holders.iter().all(|(p, _)| *p != claim.pool);
        self.overlaps.shared.retain(both);
        self.let_go(claim.ip);
    }

    /// Makes each pool stop holding back the address. Exception: a pool continues to hold it back
    /// while the address is in use on a segment of the pool ([`Self::is_in_use_beside`]).
    pub(super) fn let_go(&mut self, ip: IpAddr) {
        self.mark_changed_at(ip);
        let holding_back =
            self.pools.iter().filter(|(_, pool)| pool.ledger.held_back().contains(&ip));
        let waiting: Vec<String> = holding_back
            .filter(|(name, pool)| !self.is_in_use_beside(ip, name, pool, ""))
            .map(|(name, _)| name.clone())
            .collect();
        for name in waiting {
            if self.pools.get_mut(&name).is_some_and(|pool| pool.ledger.let_go(ip)) {
                self.touch(&name);
            }
        }
    }

    /// Whether the address is in use on a segment of `pool`. A global pool is on all segments.
    /// `true` in these cases:
    /// * another pool that shares a segment with `pool` has the address in its ledger;
    /// * the address is reserved on a segment of `pool` for a LoadBalancer whose UID is not
    ///   `except`.
    ///
    /// `name`: name of `pool`, which may have been removed from the allocator.
    pub(super) fn is_in_use_beside(
        &self,
        ip: IpAddr,
        name: &str,
        pool: &AllocatorPool,
        except: &str,
    ) -> bool {
        let holds = |other: &AllocatorPool| other.ledger.owner_of(ip).is_some();
        let meets =
            |at: &str, other: &AllocatorPool| other.contender(at).meets(&pool.contender(name));
        let mut others = self.pools.iter().filter(|(at, _)| *at != name);
        let mut reserved = self.reserved.at(ip).filter(|r| r.owner.uid != except);
        others.any(|(at, other)| holds(other) && meets(at, other))
            || reserved.any(|reservation| reservation.meets(pool))
    }

    /// Adds to `shared` each reserved address that two LoadBalancers have on one segment. One has
    /// the address by a reservation, the other by a ledger or by another reservation.
    fn share_reserved(&self, shared: &mut BTreeSet<SharedAddress>) {
        for mine in self.reserved.all() {
            let ip = mine.claim.ip;
            let mut share = |pool: &str, theirs: &Owner| {
                let holder = (mine.claim.pool.as_str(), &mine.owner);
                shared.insert(SharedAddress::new(ip, holder, (pool, theirs)));
            };
            for (name, pool) in self.pools.iter().filter(|(_, pool)| mine.meets(pool)) {
                if let Some(owner) = pool.ledger.owner_of(ip).filter(|o| o.uid != mine.owner.uid) {
                    share(name, owner);
                }
            }
            for theirs in self.reserved.at(ip) {
                if theirs.owner.uid != mine.owner.uid && theirs.meets_reservation(mine) {
                    share(&theirs.claim.pool, &theirs.owner);
                }
            }
        }
    }
}

impl AllocatorPool {
    /// Returns the facts about the pool that `find_conflicts` compares with those of other pools.
    pub fn contender<'a>(&'a self, name: &'a str) -> PoolContender<'a> {
        PoolContender {
            name,
            created: self.created,
            serves: !self.deleting && self.fault.is_none(),
            segment: &self.segment,
            selector: &self.selector,
            ranges: self.ledger.ranges(),
        }
    }

    /// First and last of all addresses that are in the pool's ranges or claimed in its ledger.
    /// `None`: there are none.
    fn span(&self) -> AddressSpan {
        let claims = self.ledger.claims();
        let claimed = claims.keys().next().copied().zip(claims.keys().next_back().copied());
        let spans = self.ledger.ranges().span().into_iter().chain(claimed);
        spans.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }

    /// Claimed addresses of this pool that are in the ranges of the other pool.
    fn claims_within(&self, other: &Self) -> impl Iterator<Item = IpAddr> {
        let claims = self.ledger.claims();
        let stretches = other.ledger.ranges().stretches();
        stretches.iter().flat_map(|s| claims.range(s.first..=s.last).map(|(ip, _)| *ip))
    }
}

/// Addresses that the pools `x` and `y` hold for different owners. `a` and `b`: names of `x` and
/// `y`. The caller must call this function in both orders, because one call does not find an
/// address that is in the ranges of `x`, but not in the ranges of `y`.
fn shared_by(a: &str, x: &AllocatorPool, b: &str, y: &AllocatorPool) -> Vec<SharedAddress> {
    let within = x.claims_within(y).chain(x.ledger.outside().iter().copied());
    within
        .filter_map(|ip| {
            let (mine, theirs) = (x.ledger.owner_of(ip)?, y.ledger.owner_of(ip)?);
            let differ = mine.name != theirs.name || mine.uid != theirs.uid;
            differ.then(|| SharedAddress::new(ip, (a, mine), (b, theirs)))
        })
        .collect()
}

#[cfg(test)]
mod tests;
