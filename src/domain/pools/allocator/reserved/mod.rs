//! Reservations of addresses on segments where no pool's ledger protects them, and expected
//! addresses.
//!
//! A ledger protects its addresses on the segment of its pool: the other pools on that segment hold
//! the addresses back ([`super::overlap`]). In two cases, a [`Reservation`] protects an address on
//! the segments where the address is announced, and all pools on these segments hold the address
//! back:
//! * the pool was deleted, and its ledger with it, but a LoadBalancer still publishes the address
//!   ([`super::deleted`]);
//! * the address is announced on a segment other than its pool's. The address of a vm LoadBalancer
//!   is announced on the announcer's default interface, if nodes have no link for the pool's VLAN.
//!   The address of a guest load balancer is announced on the network of the guest's VMs.
//!
//! The former address of a LoadBalancer without an address, for example after a restore from a
//! backup, is called expected. Another LoadBalancer gets an expected address only when the pool has
//! no other address left.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use super::super::ledger::AddressFitness;
use super::{AllocatorPool, PoolAllocator};
use crate::network::Segment;
use crate::{Claim, LbFacts, Owner};

/// Reservation of an address for a LoadBalancer, on segments where no pool's ledger protects the
/// address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// LoadBalancer for which the address is reserved.
    pub owner: Owner,
    /// Address, and the pool that gave the address out.
    pub claim: Claim,
    /// Segments where the address is, or may be, announced.
    pub segments: Vec<Segment>,
}

/// Reservations by LoadBalancer and by address, expected addresses, and published claims that must
/// be withdrawn.
#[derive(Clone, Debug, Default)]
pub(super) struct Reservations {
    /// Map from a LoadBalancer's UID to its reservations: at most one for each claim that the
    /// LoadBalancer holds or publishes.
    by_uid: HashMap<String, Vec<Reservation>>,
    /// Each reserved address, with the UID of a LoadBalancer for which the address is reserved.
    by_ip: BTreeSet<(IpAddr, String)>,
    /// Map from a LoadBalancer's UID to its former claim. The LoadBalancer has no address, and will
    /// request this claim.
    former: HashMap<String, Claim>,
    /// Reverse of `former`: each claim, with the UID of a LoadBalancer that will request the claim.
    expected: BTreeSet<(Claim, String)>,
    /// Map from the UID of a LoadBalancer to the published claim that it must withdraw, because a
    /// ledger has the address for another owner. The address stays reserved until the LoadBalancer
    /// no longer publishes it.
    to_withdraw: HashMap<String, Claim>,
}

impl Reservations {
    pub(super) fn of(&self, uid: &str) -> &[Reservation] {
        self.by_uid.get(uid).map_or(&[], Vec::as_slice)
    }

    /// Every reservation of an address.
    pub(super) fn at(&self, ip: IpAddr) -> impl Iterator<Item = &Reservation> {
        self.within(ip, ip)
    }

    /// Every reservation of an address from `first` to `last`, both included.
    pub(super) fn within(&self, first: IpAddr, last: IpAddr) -> impl Iterator<Item = &Reservation> {
        let reserved = self.by_ip.range((first, String::new())..);
        let reserved = reserved.take_while(move |(ip, _)| *ip <= last);
        reserved.flat_map(|(ip, uid)| {
            self.of(uid).iter().filter(|reservation| reservation.claim.ip == *ip)
        })
    }

    /// Every reservation.
    pub(super) fn all(&self) -> impl Iterator<Item = &Reservation> {
        self.by_uid.values().flatten()
    }

    /// Whether this address of the pool is an expected address of a LoadBalancer whose UID is not
    /// `uid`.
    fn is_expected(&self, pool: &str, ip: IpAddr, uid: &str) -> bool {
        if self.expected.is_empty() {
            return false;
        }
        let first = (Claim { pool: pool.to_owned(), ip }, String::new());
        let expected = self.expected.range(first..);
        let mut of_claim = expected.take_while(|(claim, _)| claim.pool == pool && claim.ip == ip);
        of_claim.any(|(_, other)| other != uid)
    }

    fn insert(&mut self, reservation: Reservation) {
        let uid = reservation.owner.uid.clone();
        self.by_ip.insert((reservation.claim.ip, uid.clone()));
        self.by_uid.entry(uid).or_default().push(reservation);
    }

    fn remove(&mut self, uid: &str, claim: &Claim) -> bool {
        let Some(all) = self.by_uid.get_mut(uid) else { return false };
        let before = all.len();
        all.retain(|reservation| reservation.claim != *claim);
        let found = all.len() < before;
        if found && all.iter().all(|reservation| reservation.claim.ip != claim.ip) {
            self.by_ip.remove(&(claim.ip, uid.to_owned()));
        }
        if all.is_empty() {
            self.by_uid.remove(uid);
        }
        found
    }

    fn expect(&mut self, uid: &str, claim: Option<&Claim>) {
        if self.former.get(uid) == claim {
            return;
        }
        if let Some(old) = self.former.remove(uid) {
            self.expected.remove(&(old, uid.to_owned()));
        }
        if let Some(claim) = claim {
            self.former.insert(uid.to_owned(), claim.clone());
            self.expected.insert((claim.clone(), uid.to_owned()));
        }
    }
}

impl Reservation {
    /// Whether the reserved address is, or may be, announced on the segment of the pool. A global
    /// pool is on all segments.
    pub(super) fn meets(&self, pool: &AllocatorPool) -> bool {
        pool.selector.is_global() || self.is_at(&pool.segment)
    }

    /// Whether the addresses of both reservations are, or may be, announced on one segment.
    pub(super) fn meets_reservation(&self, other: &Self) -> bool {
        other.segments.iter().any(|segment| self.is_at(segment))
    }

    /// Whether the reserved address is, or may be, announced on this segment.
    fn is_at(&self, segment: &Segment) -> bool {
        self.segments.iter().any(|announced| announced.meets(segment))
    }
}

impl PoolAllocator {
    /// Observes a LoadBalancer at the start of a term of leadership, before the first address is
    /// given out. Does the same as [`Self::observe`]. Before that, if the pool of the published
    /// address does not exist:
    /// * Reserves the address without the conditions of `claim_of_deleted_pool`, because the ledger
    ///   of the deleted pool may have had the claim.
    /// * Records that the LoadBalancer must withdraw the address, if a ledger has the address for
    ///   another owner, on a segment where the address may be announced.
    pub fn adopt(&mut self, facts: &LbFacts) {
        let uid = &facts.owner.uid;
        let published = facts.published.as_ref();
        if let Some(claim) = published.filter(|claim| !self.pools.contains_key(&claim.pool)) {
            self.reserve(facts, claim);
            let mut reserved = self.reserved.of(uid).iter();
            if reserved.any(|reservation| self.is_in_anothers_ledger(reservation)) {
                self.reserved.to_withdraw.insert(uid.clone(), claim.clone());
            }
        }
        self.observe(facts);
    }

    /// Whether the ledger of a pool on one of the reservation's segments has the address for
    /// another owner.
    fn is_in_anothers_ledger(&self, reservation: &Reservation) -> bool {
        let Reservation { owner, claim, .. } = reservation;
        self.pools.values().filter(|pool| reservation.meets(pool)).any(|pool| {
            let holder = pool.ledger.owner_of(claim.ip);
            holder.is_some_and(|holder| holder.uid != owner.uid)
        })
    }

    /// Updates what the allocator remembers about a LoadBalancer:
    /// * Reserves the addresses of its claims.
    /// * Renews its reservations of addresses from deleted pools, on the segments where these
    ///   addresses may be announced now.
    /// * Reserves its published address, if `claim_of_deleted_pool` returns the claim.
    /// * Makes its former address an expected address, if the LoadBalancer neither has a claim nor
    ///   publishes an address.
    /// * Replaces its facts, if it is a waiter.
    /// * Forgets that it must withdraw an address, if it no longer publishes the address, or if it
    ///   may keep the address.
    ///
    /// When [`Self::take_moved`] returns `true`, the caller must observe every LoadBalancer again.
    pub fn observe(&mut self, facts: &LbFacts) {
        let uid = &facts.owner.uid;
        self.update_waiter(facts);
        self.end_withdrawal(facts);
        let claims = self.claims_of(uid);
        let has_none = claims.is_empty();
        let reserved = self.reserved.of(uid).iter().map(|reservation| &reservation.claim);
        let deleted = reserved.filter(|claim| !self.pools.contains_key(&claim.pool));
        let claims: Vec<Claim> = claims.iter().chain(deleted).cloned().collect();
        for claim in &claims {
            self.reserve(facts, claim);
        }
        match &facts.published {
            // If this condition is false, the published address may belong to another LoadBalancer,
            // or is not in the ledger yet. Such an address is not reserved.
            Some(claim) if self.claim_of_deleted_pool(facts).is_some() => {
                self.reserved.to_withdraw.remove(uid);
                self.reserve(facts, claim);
            }
            None if has_none => self.reserved.expect(uid, facts.former.as_ref()),
            _ => {}
        }
    }

    /// Ends the reservation of a claim that the LoadBalancer had to withdraw, if the LoadBalancer
    /// no longer publishes the claim, or a ledger records it for the LoadBalancer again.
    fn end_withdrawal(&mut self, facts: &LbFacts) {
        let uid = &facts.owner.uid;
        let Some(claim) = self.reserved.to_withdraw.get(uid).cloned() else { return };
        let is_recorded = self.claims_of(uid).contains(&claim);
        if is_recorded || facts.published.as_ref() != Some(&claim) {
            self.reserved.to_withdraw.remove(uid);
            self.unreserve(uid, &claim);
        }
    }

    /// Reserves the address of a claim for the LoadBalancer, on each segment where the address is
    /// announced and the ledger of the claim's pool does not protect it. Removes the LoadBalancer's
    /// expected address.
    pub(super) fn reserve(&mut self, facts: &LbFacts, claim: &Claim) {
        let owner = &facts.owner;
        self.reserved.expect(&owner.uid, None);
        if self.is_reserved_for(facts, claim) {
            return;
        }
        self.unreserve(&owner.uid, claim);
        let segments = self.uncovered(facts, claim);
        if !segments.is_empty() {
            self.place(Reservation { owner: owner.clone(), claim: claim.clone(), segments });
        }
    }

    /// Whether the claim is reserved for the LoadBalancer with this UID, on at least one segment,
    /// and the LoadBalancer need not withdraw the claim.
    pub(super) fn has_reserved(&self, uid: &str, claim: &Claim) -> bool {
        self.reserved.to_withdraw.get(uid) != Some(claim)
            && self.reserved.of(uid).iter().any(|reservation| reservation.claim == *claim)
    }

    /// Whether the LoadBalancer has no expected address, and has exactly the reservations that
    /// [`Self::reserve`] makes for the claim: one or none.
    pub(super) fn is_reserved(&self, facts: &LbFacts, claim: &Claim) -> bool {
        let uid = &facts.owner.uid;
        !self.reserved.former.contains_key(uid)
            && !self.reserves_more_than(uid, std::slice::from_ref(claim))
            && self.is_reserved_for(facts, claim)
    }

    fn is_reserved_for(&self, facts: &LbFacts, claim: &Claim) -> bool {
        let mut known = self.reserved.of(&facts.owner.uid).iter();
        let known = known.find(|reservation| reservation.claim == *claim);
        let segments = known.map_or(&[][..], |reservation| &reservation.segments);
        segments == self.uncovered(facts, claim)
    }

    /// Whether the LoadBalancer with this UID has a reservation for a claim that is not among
    /// `claims`.
    pub(super) fn reserves_more_than(&self, uid: &str, claims: &[Claim]) -> bool {
        self.reserved.of(uid).iter().any(|reservation| !claims.contains(&reservation.claim))
    }

    /// Whether the LoadBalancer with this UID has a reservation or an expected address.
    pub(super) fn is_remembered(&self, uid: &str) -> bool {
        self.reserved.by_uid.contains_key(uid) || self.reserved.former.contains_key(uid)
    }

    /// Reserves the claims of a deleted pool, because their owners continue to publish the
    /// addresses. At first, a claim is reserved on every segment. After its owner is observed, the
    /// claim is reserved only on the segments where its address may be announced. Claims whose
    /// owner has no UID are left out.
    pub(super) fn reserve_claims_of(&mut self, name: &str, pool: &AllocatorPool) {
        for (ip, owner) in pool.ledger.claims().iter().filter(|(_, owner)| !owner.uid.is_empty()) {
            let claim = Claim { pool: name.to_owned(), ip: *ip };
            self.unreserve(&owner.uid, &claim);
            let segments = vec![Segment::Unlisted];
            self.place(Reservation { owner: owner.clone(), claim, segments });
        }
    }

    /// Removes the reservations and the expected address of a LoadBalancer. Forgets that the
    /// LoadBalancer must withdraw a claim.
    pub(super) fn forget(&mut self, uid: &str) {
        self.reserved.to_withdraw.remove(uid);
        self.unreserve_claims(uid, |_| false);
        self.reserved.expect(uid, None);
    }

    /// Removes the reservations of a LoadBalancer, except those of claims for which `keeps` returns
    /// `true`.
    pub(super) fn unreserve_claims(&mut self, uid: &str, keeps: impl Fn(&Claim) -> bool) {
        let all = self.reserved.of(uid).iter().map(|reservation| &reservation.claim);
        let surplus: Vec<Claim> = all.filter(|claim| !keeps(claim)).cloned().collect();
        for claim in surplus {
            self.unreserve(uid, &claim);
        }
    }

    fn unreserve(&mut self, uid: &str, claim: &Claim) {
        if self.reserved.remove(uid, claim) {
            // The LoadBalancer may still hold the claim, and share its address with another
            // LoadBalancer. So all pools are compared again.
            if self.overlaps.is_shared(claim.ip) {
                self.overlaps.changed();
            }
            self.let_go(claim.ip);
        }
    }

    fn place(&mut self, reservation: Reservation) {
        let ip = reservation.claim.ip;
        for (name, pool) in &mut self.pools {
            if !reservation.meets(pool) {
                continue;
            }
            let holder = pool.ledger.owner_of(ip);
            if holder.is_some_and(|holder| holder.uid != reservation.owner.uid) {
                // Two LoadBalancers hold the address. All pools are compared again, so that the
                // shared address is reported.
                self.overlaps.changed();
            }
            if pool.ledger.hold_back(ip) && pool.idle().is_none() {
                self.touched.insert(name.clone());
            }
        }
        if self.reserved.at(ip).any(|other| other.owner.uid != reservation.owner.uid) {
            self.overlaps.changed();
        }
        self.reserved.insert(reservation);
    }

    /// Segments where the claim's address is announced for the LoadBalancer, and the ledger of the
    /// claim's pool does not protect it. If the pool was deleted, no ledger protects the address.
    fn uncovered(&self, facts: &LbFacts, claim: &Claim) -> Vec<Segment> {
        match self.pools.get(&claim.pool) {
            None => self.announced_after_deletion(facts, &claim.pool),
            Some(pool) => beyond(facts, pool),
        }
    }

    /// Whether another LoadBalancer has the address of `claim`, which this LoadBalancer publishes.
    /// The other LoadBalancer has it by the ledger of another pool, or by a reservation. Only some
    /// segments are searched: that of the claim's pool, and those where the address would be
    /// announced for this LoadBalancer. `false` if the claim's pool does not exist. Precondition:
    /// no ledger records a claim of this LoadBalancer.
    pub(super) fn is_anothers(&self, claim: &Claim, facts: &LbFacts) -> bool {
        self.pools.get(&claim.pool).is_some_and(|pool| {
            self.is_in_use_beside(claim.ip, &claim.pool, pool, &facts.owner.uid)
                || self.fitness(facts, &claim.pool, pool)(claim.ip) == AddressFitness::Taken
        })
    }

    /// Returns a function that says whether a free address of `pool` may be given to the
    /// LoadBalancer. `name`: name of `pool`, which the caller may have taken out of the allocator.
    /// The pool's own segment needs no check, because the pool's free addresses are not in use on
    /// that segment.
    ///
    /// An address that another LoadBalancer keeps from a deleted pool is not given out anew on any
    /// segment. Reason: the next leader does not know the network of the deleted pool. If a second
    /// LoadBalancer had the address, the next leader would make the first one withdraw it, although
    /// the first one still uses it.
    pub(super) fn fitness<'a>(
        &'a self,
        facts: &'a LbFacts,
        name: &'a str,
        pool: &AllocatorPool,
    ) -> impl Fn(IpAddr) -> AddressFitness + use<'a> {
        let uid = &facts.owner.uid;
        let segments = beyond(facts, pool);
        move |ip| {
            let taken_at = |segment: &Segment| {
                let holds = |other: &AllocatorPool| {
                    let owner = other.ledger.owner_of(ip);
                    owner.is_some_and(|owner| owner.uid != *uid)
                        && (other.selector.is_global() || other.segment.meets(segment))
                };
                self.pools.values().any(holds)
                    || self.reserved.at(ip).any(|r| r.owner.uid != *uid && r.is_at(segment))
            };
            let of_deleted_pool = |r: &Reservation| {
                let pool = &r.claim.pool;
                r.owner.uid != *uid && *pool != name && !self.pools.contains_key(pool)
            };
            if facts.moves_off(name) == Some(ip) || segments.iter().any(taken_at) {
                AddressFitness::Taken
            } else if self.reserved.at(ip).any(of_deleted_pool) {
                AddressFitness::Withheld
            } else if self.reserved.is_expected(name, ip, uid) {
                AddressFitness::Expected
            } else {
                AddressFitness::Good
            }
        }
    }
}

/// Segments where addresses of the pool are announced for the LoadBalancer, except the pool's own
/// segment. Empty for a global pool, because a global pool is on every segment.
fn beyond(facts: &LbFacts, pool: &AllocatorPool) -> Vec<Segment> {
    if pool.selector.is_global() {
        return Vec::new();
    }
    let mut segments = facts.announced_at(&pool.segment);
    segments.retain(|segment| *segment != pool.segment);
    segments.dedup();
    segments
}

#[cfg(test)]
mod tests;
