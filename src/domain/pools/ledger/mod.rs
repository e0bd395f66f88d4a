//! The ledger of one pool: the owner of each claimed address, and the former owners.
//!
//! Invariants:
//! * an address has at most one owner;
//! * [`Ledger::claim`] gives out only free addresses. An address is free if all of these hold:
//!   * it is in the ranges of the pool, and is not excluded from them;
//!   * it has no claim;
//!   * it is not held back ([`Ledger::hold_back`]);
//!   * it is not in a closed network ([`Ledger::close`]);
//! * a claim stays until it is released, even if its address is outside the ranges (the pool
//!   shrank), is held back or is in a closed network;
//! * the history of former owners is a hint: it makes no claim fail, and no address unavailable.
//!
//! Only [`super::allocator`] changes a ledger. Every operation on one address is O(log n) in the
//! number of claims, unless its comment says otherwise.

mod fitness;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;

pub use self::fitness::AddressFitness;

use super::free_addresses::FreeSet;
use super::ranges::PoolRanges;
use crate::Owner;

/// Maximum size of a ledger in the object of its pool, in bytes. The API server's store refuses
/// objects above 1.5 MiB. The rest of the object is the pool's spec and metadata.
/// * A new claim fails if all claims together would exceed the maximum.
/// * A claim that is restored or handed over is recorded even above the maximum.
/// * If claims and former owners together exceed the maximum, the oldest former owners are dropped.
pub const LEDGER_BYTES: usize = 1_400_000;

/// Maximum number of former owners in a ledger. Former owners make each write of the pool slower:
/// with 500 of them, a write takes three times as long as with none. A release drops the oldest
/// former owners until the maximum is kept. A merge drops only former owners whose LoadBalancer
/// does not exist. So the ledger may exceed the maximum until the next release.
pub const HISTORY_LENGTH: usize = 128;

/// Reason why a pool gives a LoadBalancer no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAddress {
    /// No address can be given: each one is claimed, held back, in a closed network, or not fit for
    /// the LoadBalancer.
    Full,
    /// The ledger would become larger than [`LEDGER_BYTES`].
    LedgerFull,
}

/// Owners of the addresses of a pool.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    ranges: PoolRanges,
    /// Ranges without the closed networks. A closed network belongs to the cluster itself, and its
    /// addresses are not given out.
    open: PoolRanges,
    free: FreeSet,
    claims: BTreeMap<IpAddr, Owner>,
    /// Claimed addresses outside the ranges.
    outside: BTreeSet<IpAddr>,
    /// Addresses in the ranges that are not given out here, because another pool or a reservation
    /// has them.
    held_back: BTreeSet<IpAddr>,
    /// Map from the [`key`] of each owner to its address.
    held: HashMap<String, IpAddr>,
    history: FormerOwners,
    cursor: Option<IpAddr>,
    bytes: usize,
}

impl Ledger {
    /// An empty ledger. The search for free addresses starts after `cursor`.
    pub fn new(ranges: PoolRanges, cursor: Option<IpAddr>) -> Self {
        let (free, open) = (FreeSet::full(&ranges), ranges.clone());
        Self { ranges, open, free, cursor, ..Self::default() }
    }

    /// Ranges of the pool.
    pub fn ranges(&self) -> &PoolRanges {
        &self.ranges
    }

    /// Claims an address for the owner: the owner's present address, else the former address of the
    /// owner's name, else the next free address. The error is the reason why there is none.
    pub fn claim(&mut self, owner: &Owner) -> Result<IpAddr, NoAddress> {
        self.claim_where(owner, None, |_| AddressFitness::Good)
    }

    /// Claims an address like [`Self::claim`], with two differences:
    /// * The address `former` is tried before the former address of the owner's name.
    /// * `fitness` says whether a free address may be given. A former address must be `Good`.
    pub fn claim_where(
        &mut self,
        owner: &Owner,
        former: Option<IpAddr>,
        fitness: impl Fn(IpAddr) -> AddressFitness,
    ) -> Result<IpAddr, NoAddress> {
        if let Some(ip) = self.held_by(owner) {
            return Ok(ip);
        }
        if self.free.is_empty() {
            return Err(NoAddress::Full);
        }
        if self.bytes + claim_bytes(self.widest(), owner) > LEDGER_BYTES {
            return Err(NoAddress::LedgerFull);
        }
        let known = self.history.by_name.get(&owner.name).copied();
        let mut asked = [former, known].into_iter().flatten().filter(|ip| self.free.contains(*ip));
        let ip = match asked.find(|ip| fitness(*ip) == AddressFitness::Good) {
            Some(ip) => ip,
            None => self.next_free(&fitness)?,
        };
        self.free.remove(ip);
        self.record(ip, owner.clone());
        Ok(ip)
    }

    /// Searches the free addresses after the cursor, then those up to the cursor. Returns the first
    /// one whose fitness is `Good`, else the first one whose fitness is `Expected`, and moves the
    /// cursor to it. The error: there is no such address. O(k log n) for `k` skipped addresses and
    /// `n` claims.
    fn next_free(
        &mut self,
        fitness: impl Fn(IpAddr) -> AddressFitness,
    ) -> Result<IpAddr, NoAddress> {
        let (mut aside, mut expected, mut found) = (Vec::new(), None, None);
        let mut cursor = self.cursor;
        while let Some(ip) = self.free.take_after(cursor) {
            cursor = Some(ip);
            match fitness(ip) {
                AddressFitness::Good => {
                    found = Some(ip);
                    break;
                }
                AddressFitness::Expected => expected = expected.or(Some(ip)),
                AddressFitness::Withheld | AddressFitness::Taken => {}
            }
            aside.push(ip);
        }
        for ip in aside {
            self.free.insert(ip);
        }
        let ip = found.or(expected).ok_or(NoAddress::Full)?;
        self.cursor = Some(ip);
        Ok(ip)
    }

    /// Makes `heir` the owner of the address `ip`. Returns `false` if the address has no owner, or
    /// `heir` holds an address of the pool already.
    pub fn hand_over(&mut self, ip: IpAddr, heir: &Owner) -> bool {
        if self.held.contains_key(key(heir)) {
            return false;
        }
        let had_owner = self.remove_claim(ip).is_some();
        if had_owner {
            self.record(ip, heir.clone());
        }
        had_owner
    }

    /// Records the owner's claim of an address, even if the address is not free. Returns `false` if
    /// the address belongs to another owner.
    pub fn restore(&mut self, ip: IpAddr, owner: &Owner) -> bool {
        if let Some(present) = self.claims.get(&ip) {
            return key(present) == key(owner);
        }
        self.free.remove(ip);
        self.record(ip, owner.clone());
        true
    }

    /// Releases an address, and returns its owner. `None`: the address was not claimed. If the
    /// address is in the ranges, adds the owner to the history, and drops the oldest former owners
    /// above [`HISTORY_LENGTH`].
    pub fn release(&mut self, ip: IpAddr) -> Option<Owner> {
        let owner = self.remove_claim(ip)?;
        if self.ranges.find(ip).is_some() {
            if !self.held_back.contains(&ip) && self.open.find(ip).is_some() {
                self.free.insert(ip);
            }
            self.remember(ip, owner.name.clone());
            self.limit_history(|_| false);
        }
        self.outside.remove(&ip);
        Some(owner)
    }

    /// Holds an address back: it is not given out. Returns `false` if the address is not in the
    /// ranges, or is held back already.
    pub fn hold_back(&mut self, ip: IpAddr) -> bool {
        if self.ranges.find(ip).is_none() || !self.held_back.insert(ip) {
            return false;
        }
        self.free.remove(ip);
        true
    }

    /// Stops holding an address back. Returns `false` if the address was not held back.
    pub fn let_go(&mut self, ip: IpAddr) -> bool {
        if !self.held_back.remove(&ip) {
            return false;
        }
        if !self.claims.contains_key(&ip) && self.open.find(ip).is_some() {
            self.free.insert(ip);
        }
        true
    }

    /// Replaces the set of held-back addresses. Returns `false` if nothing changed.
    pub fn set_held_back(&mut self, ips: &BTreeSet<IpAddr>) -> bool {
        let over: Vec<IpAddr> = self.held_back.difference(ips).copied().collect();
        let let_go = over.iter().filter(|ip| self.let_go(**ip)).count();
        let held_back = ips.iter().filter(|ip| self.hold_back(**ip)).count();
        let_go + held_back > 0
    }

    /// Replaces the set of closed networks. No address of a closed network is given out, and
    /// present claims stay. Returns `false` if nothing changed.
    pub fn close(&mut self, networks: &[IpNet]) -> bool {
        let open = self.ranges.without(networks);
        if open == self.open {
            return false;
        }
        self.free = FreeSet::full(&open);
        for ip in self.claims.keys().chain(&self.held_back) {
            self.free.remove(*ip);
        }
        self.open = open;
        true
    }

    /// Addresses that are held back.
    pub fn held_back(&self) -> &BTreeSet<IpAddr> {
        &self.held_back
    }

    /// Claimed addresses outside the ranges: the pool has shrunk, or its ranges are invalid.
    pub fn outside(&self) -> &BTreeSet<IpAddr> {
        &self.outside
    }

    /// Records a former owner of an address. Does nothing if the address is claimed. Drops the
    /// oldest former owners above [`LEDGER_BYTES`], but does not apply [`HISTORY_LENGTH`].
    pub fn remember(&mut self, ip: IpAddr, name: String) {
        if self.claims.contains_key(&ip) {
            return;
        }
        self.history.insert(ip, name);
        self.limit_bytes();
    }

    /// Drops the oldest former owners above [`HISTORY_LENGTH`], except the names for which
    /// `is_expected` returns `true`.
    pub fn limit_history(&mut self, is_expected: impl Fn(&str) -> bool) {
        let over = self.history.len().saturating_sub(HISTORY_LENGTH);
        let others = self.history().filter(|(_, name)| !is_expected(name));
        let dropped: Vec<IpAddr> = others.map(|(ip, _)| ip).take(over).collect();
        for ip in dropped {
            self.history.forget(ip);
        }
    }

    /// Owner of an address. `None`: the address is not claimed.
    pub fn owner_of(&self, ip: IpAddr) -> Option<&Owner> {
        self.claims.get(&ip)
    }

    /// Address of an owner. `None`: the owner holds no address of this pool.
    pub fn held_by(&self, owner: &Owner) -> Option<IpAddr> {
        self.held.get(key(owner)).copied()
    }

    /// Every claim, ascending by address.
    pub fn claims(&self) -> &BTreeMap<IpAddr, Owner> {
        &self.claims
    }

    /// Claims whose addresses are in the network, ascending.
    pub fn claims_in(&self, network: IpNet) -> impl Iterator<Item = (&IpAddr, &Owner)> {
        self.claims.range(network.network()..=network.broadcast())
    }

    /// Addresses in the history, each with the name of its former owner, oldest first.
    pub fn history(&self) -> impl Iterator<Item = (IpAddr, &str)> {
        let FormerOwners { by_ip, by_age, .. } = &self.history;
        by_age.values().filter_map(|ip| Some((*ip, by_ip.get(ip)?.0.as_str())))
    }

    /// Address after which the search for a free address starts. `None`: the search starts at the
    /// first address.
    pub fn cursor(&self) -> Option<IpAddr> {
        self.cursor
    }

    /// Estimate of the bytes that the ledger uses in the object of the pool. The true number is
    /// never higher.
    pub fn bytes(&self) -> usize {
        self.bytes + self.history.bytes
    }

    /// Number of addresses in the ranges, including those of closed networks.
    pub fn total(&self) -> i64 {
        self.ranges.total()
    }

    /// Number of addresses that can be given out now.
    pub fn available(&self) -> i64 {
        self.free.len().try_into().unwrap_or(i64::MAX)
    }

    fn record(&mut self, ip: IpAddr, owner: Owner) {
        self.history.forget(ip);
        self.bytes += claim_bytes(ip, &owner);
        self.held.insert(key(&owner).to_owned(), ip);
        if self.ranges.find(ip).is_none() {
            self.outside.insert(ip);
        }
        self.claims.insert(ip, owner);
        self.limit_bytes();
    }

    fn remove_claim(&mut self, ip: IpAddr) -> Option<Owner> {
        let owner = self.claims.remove(&ip)?;
        self.bytes -= claim_bytes(ip, &owner);
        if self.held.get(key(&owner)) == Some(&ip) {
            self.held.remove(key(&owner));
        }
        Some(owner)
    }

    /// Drops the oldest former owners until the ledger has at most [`LEDGER_BYTES`], or no former
    /// owner is left.
    fn limit_bytes(&mut self) {
        while self.bytes() > LEDGER_BYTES
            && let Some((_, ip)) = self.history.by_age.first_key_value()
        {
            self.history.forget(*ip);
        }
    }

    /// Address of the family with the longer text ([`ip_bytes`]): an IPv6 address, unless the pool
    /// has only IPv4 addresses. The size of a new claim is computed with this address, because the
    /// claim's own address is chosen later.
    fn widest(&self) -> IpAddr {
        self.ranges.stretches().last().map_or(IpAddr::from([0; 16]), |s| s.last)
    }

    /// Checks the invariants. For tests.
    #[cfg(test)]
    pub(crate) fn self_check(&self) {
        for (ip, owner) in &self.claims {
            assert!(!self.free.contains(*ip), "{ip} is claimed and free");
            assert!(self.held.contains_key(key(owner)), "{owner:?} is not indexed");
            assert!(!self.history.by_ip.contains_key(ip), "{ip} is claimed and history");
        }
        let in_range: BTreeSet<_> =
            self.claims.keys().copied().filter(|ip| self.ranges.find(*ip).is_some()).collect();
        assert_eq!(in_range.len() + self.outside.len(), self.claims.len());
        for ip in &self.held_back {
            assert!(!self.free.contains(*ip), "{ip} is held back and free");
        }
        let taken = in_range.union(&self.held_back).filter(|ip| self.open.find(**ip).is_some());
        assert_eq!(self.available() + i64::try_from(taken.count()).unwrap(), self.open.total());
        assert_eq!(
            self.bytes,
            self.claims.iter().map(|(ip, o)| claim_bytes(*ip, o)).sum::<usize>()
        );
        self.history.self_check();
    }
}

/// Identity of an owner: the UID, else the name. A UID never equals a name, because only a name
/// contains a slash.
fn key(owner: &Owner) -> &str {
    if owner.uid.is_empty() { &owner.name } else { &owner.uid }
}

/// Bytes that a claim uses in the object of its pool: in `allocated`, in `allocatedOwners`, and in
/// `metadata.managedFields`, if the API server's schema does not make the maps atomic.
fn claim_bytes(ip: IpAddr, owner: &Owner) -> usize {
    3 * ip_bytes(ip) + owner.name.len() + owner.uid.len() + 24
}

/// Bytes of a history entry, counted as in `claim_bytes`.
fn history_bytes(ip: IpAddr, name: &str) -> usize {
    2 * ip_bytes(ip) + name.len() + 16
}

fn ip_bytes(ip: IpAddr) -> usize {
    if ip.is_ipv4() { 15 } else { 39 }
}

/// Former owners, oldest first. The order of release is known only for releases of this process.
/// Entries from a stored ledger count as older. Their order is that of the addresses as text.
#[derive(Clone, Debug, Default)]
struct FormerOwners {
    by_ip: BTreeMap<IpAddr, (String, u64)>,
    by_name: HashMap<String, IpAddr>,
    by_age: BTreeMap<u64, IpAddr>,
    next: u64,
    bytes: usize,
}

impl FormerOwners {
    fn len(&self) -> usize {
        self.by_ip.len()
    }

    fn insert(&mut self, ip: IpAddr, name: String) {
        self.forget(ip);
        self.bytes += history_bytes(ip, &name);
        self.by_name.insert(name.clone(), ip);
        self.by_age.insert(self.next, ip);
        self.by_ip.insert(ip, (name, self.next));
        self.next += 1;
    }

    fn forget(&mut self, ip: IpAddr) {
        let Some((name, age)) = self.by_ip.remove(&ip) else { return };
        self.bytes -= history_bytes(ip, &name);
        self.by_age.remove(&age);
        if self.by_name.get(&name) == Some(&ip) {
            self.by_name.remove(&name);
        }
    }

    #[cfg(test)]
    fn self_check(&self) {
        assert_eq!(self.by_ip.len(), self.by_age.len());
        assert!(self.by_name.len() <= self.by_ip.len());
        assert_eq!(
            self.bytes,
            self.by_ip.iter().map(|(ip, (n, _))| history_bytes(*ip, n)).sum::<usize>()
        );
    }
}

#[cfg(test)]
mod tests;
