//! Reading of a stored pool into the allocator: at the start of a term, and later when the pool
//! must be read again, for example because another client wrote it.
//!
//! There are two ledgers of the pool: the stored ledger, and the ledger in this process's memory.
//! First, each address gets one owner, by the first of these rules that applies:
//! 1. Both ledgers record the same owner, by UID.
//! 2. Only the stored ledger records an owner, and this owner is about to publish the address: the
//!    owner exists, is not being deleted, takes its address from pools, and publishes no address of
//!    this pool.
//! 3. A LoadBalancer publishes the address. If several publish it, the owner in the stored ledger
//!    comes first, then the owner in memory, then the oldest LoadBalancer. Exception: a
//!    LoadBalancer that is being deleted, or whose `spec.ipam` was changed to `dhcp`, counts only
//!    if one of the ledgers records it as the owner. Otherwise its claim was released already.
//! 4. The stored ledger records an owner. Another leader may have written this entry.
//! 5. The ledger in memory records an owner that still exists. For example, the claim was not
//!    stored yet, or a user edited or wiped the stored ledger.
//!
//! Then, an owner that got several addresses keeps only one of them, because an owner has at most
//! one address of a pool. The owner keeps the address by the strongest rule: rule 1 is the
//! strongest, then rule 3, then rules 2 and 4 (equal), then rule 5. Of several addresses by equal
//! rules, the owner keeps the lowest.
//!
//! The published addresses come from a view that may be stale. So the LoadBalancers that
//! [`PoolAllocator::owners_to_reread`] returns are read from the API server before the merge.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use super::super::ledger::Ledger;
use super::super::ranges::PoolRanges;
use super::super::selection::PoolSelector;
use super::{AllocatorPool, PoolAllocator};
use crate::network::Segment;
use crate::network::infrastructure::HeldBack;
use crate::{Claim, Owner};
use api::{IPPool, IPPoolSpec, IPPoolStatus};

/// A pool as the API server returned it.
#[derive(Clone, Debug)]
pub struct PoolSeen {
    /// `metadata.name` of the pool.
    pub name: String,
    /// Time of the pool's creation, in seconds since the epoch.
    pub created: i64,
    /// Segment of the network in the pool's selector.
    pub segment: Segment,
    /// Whether the pool is being deleted: it has a deletion timestamp.
    pub deleting: bool,
    /// Spec of the pool.
    pub spec: IPPoolSpec,
    /// Status of the pool, with the stored ledger.
    pub status: IPPoolStatus,
}

impl PoolSeen {
    /// The pool as stored, with the segment of its selector's network.
    pub fn new(pool: &IPPool, segment: Segment) -> Self {
        let created = pool.metadata.creation_timestamp.as_ref();
        Self {
            name: pool.metadata.name.clone().unwrap_or_default(),
            created: created.map_or(0, |time| time.0.as_second()),
            segment,
            deleting: pool.metadata.deletion_timestamp.is_some(),
            spec: pool.spec.clone(),
            status: pool.status.clone().unwrap_or_default(),
        }
    }
}

/// An existing LoadBalancer that takes its address from pools, or that publishes a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadBalancerEntry {
    /// Name and UID of the LoadBalancer.
    pub owner: Owner,
    /// Time of the LoadBalancer's creation, in seconds since the epoch.
    pub created: i64,
    /// Claim in the LoadBalancer's status. `None`: the LoadBalancer publishes no claim.
    pub published: Option<Claim>,
    /// Whether the LoadBalancer is being deleted, or its `spec.ipam` was changed to `dhcp`, so that
    /// the published claim may have been released already.
    pub deleting: bool,
}

/// The LoadBalancers that exist: a map from UIDs to LoadBalancers, and a map from names to UIDs.
#[derive(Clone, Debug, Default)]
pub struct LoadBalancerIndex {
    entries: HashMap<String, LoadBalancerEntry>,
    uids: HashMap<String, String>,
}

/// A fault that a merge found in a stored ledger or in a published address. An Event reports the
/// fault and its correction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LedgerRepair {
    /// A published address was missing from the ledger. A claim was added for the `Owner`: the
    /// LoadBalancer that publishes the address.
    Restored(Claim, Owner),
    /// A LoadBalancer publishes the address, but the ledger named another owner. The claim was
    /// changed to the `Owner`: the LoadBalancer that publishes the address.
    Corrected(Claim, Owner),
    /// The `Owner` publishes an address that belongs to another owner. The `Owner` loses the
    /// address, and must get a new one.
    Double(Claim, Owner),
    /// The ledger had an entry whose key is not an IP address. The text is this key.
    Unreadable(String),
}

impl LoadBalancerIndex {
    /// Index of these LoadBalancers.
    pub fn new(entries: impl IntoIterator<Item = LoadBalancerEntry>) -> Self {
        let mut index = Self::default();
        for entry in entries {
            index.uids.insert(entry.owner.name.clone(), entry.owner.uid.clone());
            index.entries.insert(entry.owner.uid.clone(), entry);
        }
        index
    }

    /// Replaces the entry of `owner` by `current`, the LoadBalancer that a fresh read returned. If
    /// `current` is `None`, removes the entry: the LoadBalancer was deleted, or it neither takes
    /// its address from pools nor publishes a claim.
    pub fn update(&mut self, owner: &Owner, current: Option<LoadBalancerEntry>) {
        self.entries.remove(&owner.uid);
        if self.uid_of(&owner.name) == Some(&owner.uid) {
            self.uids.remove(&owner.name);
        }
        if let Some(entry) = current {
            self.uids.insert(entry.owner.name.clone(), entry.owner.uid.clone());
            self.entries.insert(entry.owner.uid.clone(), entry);
        }
    }

    /// LoadBalancers that publish an address of the pool, by address.
    fn publishers(&self, pool: &str) -> BTreeMap<IpAddr, Vec<&LoadBalancerEntry>> {
        let mut by_ip: BTreeMap<IpAddr, Vec<&LoadBalancerEntry>> = BTreeMap::new();
        for entry in self.entries.values() {
            if let Some(claim) = entry.published.as_ref().filter(|c| c.pool == pool) {
                by_ip.entry(claim.ip).or_default().push(entry);
            }
        }
        by_ip
    }

    /// UID of the LoadBalancer with this name. `None`: the index contains no LoadBalancer with this
    /// name.
    fn uid_of(&self, name: &str) -> Option<&str> {
        self.uids.get(name).map(String::as_str)
    }

    /// Whether the owner exists, is not being deleted, takes its address from pools, and publishes
    /// no address of the pool. If so, the owner's claim in the ledger is new, and the owner has not
    /// published it yet.
    fn is_yet_to_publish(&self, owner: &Owner, pool: &str) -> bool {
        self.entries.get(&owner.uid).is_some_and(|entry| {
            !entry.deleting && entry.published.as_ref().is_none_or(|claim| claim.pool != pool)
        })
    }

    /// Whether the index contains the LoadBalancer with the owner's UID. If the owner has no UID,
    /// whether it contains a LoadBalancer with the owner's name.
    pub fn contains(&self, owner: &Owner) -> bool {
        if owner.uid.is_empty() {
            self.uids.contains_key(&owner.name)
        } else {
            self.entries.contains_key(&owner.uid)
        }
    }
}

impl PoolAllocator {
    /// Reads a stored pool into the allocator. The rules in the module's header decide which owner
    /// has each address. Returns the faults in the stored ledger and in published addresses.
    pub fn merge(&mut self, seen: &PoolSeen, index: &LoadBalancerIndex) -> Vec<LedgerRepair> {
        let mut repairs = Vec::new();
        let memory = self.pools.get(&seen.name).map(|p| &p.ledger);
        let (ranges, fault) = match PoolRanges::parse(&seen.spec.ranges) {
            Ok(ranges) => (ranges, None),
            Err(fault) => (PoolRanges::default(), Some(fault)),
        };
        let stored = read_claims(&seen.status, memory, index, &mut repairs);
        let cursor =
            memory.and_then(Ledger::cursor).or_else(|| seen.status.last_allocated.parse().ok());
        let mut ledger = Ledger::new(ranges, cursor);
        let history = seen.status.allocated_history.iter();
        let history = history.filter_map(|(ip, name)| Some((ip.parse().ok()?, name.as_str())));
        for (ip, name) in history.chain(memory.into_iter().flat_map(Ledger::history)) {
            if ledger.ranges().find(ip).is_some() {
                ledger.remember(ip, name.to_owned());
            }
        }
        let publishers = index.publishers(&seen.name);
        let remembered = memory.into_iter().flat_map(|m| m.claims().keys());
        let ips: BTreeSet<IpAddr> =
            stored.keys().chain(publishers.keys()).chain(remembered).copied().collect();
        let mut claims = Vec::new();
        for ip in ips {
            let present = stored.get(&ip);
            let publish = publishers.get(&ip).map_or(&[][..], Vec::as_slice);
            let known = memory.and_then(|m| m.owner_of(ip));
            let Some((rank, owner)) = rightful(&seen.name, present, known, publish, index) else {
                continue;
            };
            let losers = publish.iter().filter(|e| e.owner.uid != owner.uid);
            let at = claim(&seen.name, ip);
            repairs.extend(losers.map(|e| LedgerRepair::Double(at.clone(), e.owner.clone())));
            claims.push((rank, ip, owner));
        }
        claims.sort_by_key(|(rank, ..)| *rank);
        for (rank, ip, owner) in claims {
            if ledger.held_by(owner).is_some() {
                continue;
            }
            ledger.restore(ip, owner);
            let at = claim(&seen.name, ip);
            match stored.get(&ip) {
                _ if rank != RestoreRank::Published => {}
                None => repairs.push(LedgerRepair::Restored(at, owner.clone())),
                Some(present) if present.uid != owner.uid => {
                    repairs.push(LedgerRepair::Corrected(at, owner.clone()));
                }
                Some(_) => {}
            }
        }
        // The history keeps the former addresses of existing LoadBalancers, even above its length
        // limit. An import records the addresses of all LoadBalancers, and each LoadBalancer claims
        // its own address later.
        ledger.limit_history(|name| index.uid_of(name).is_some());
        // Conflicts are searched again before the pool gives out an address. Until then, the pool
        // keeps the conflict that it had before the merge.
        let before = self.take_out(&seen.name);
        let conflict = before.as_ref().and_then(|pool| pool.conflict.clone());
        for (ip, owner) in ledger.claims() {
            self.hold(owner, claim(&seen.name, *ip));
        }
        let pool = AllocatorPool {
            created: seen.created,
            segment: seen.segment.clone(),
            conflict,
            selector: PoolSelector::new(seen.spec.selector.as_ref()),
            fault,
            deleting: seen.deleting,
            infrastructure: HeldBack::new(),
            ledger,
        };
        let stays = before.is_some_and(|before| {
            before.segment == pool.segment && before.selector == pool.selector
        });
        self.pools.insert(seen.name.clone(), pool);
        if stays {
            self.overlaps.changed();
        } else {
            self.overlaps.moved();
            self.waiter_changes.everything();
        }
        self.touch(&seen.name);
        repairs
    }

    /// Returns the LoadBalancers that must be read again before a merge:
    /// * LoadBalancers whose published address may overrule a ledger;
    /// * LoadBalancers with the name of an owner in the stored ledger, if the UID that the stored
    ///   ledger records for this owner is not in `index`.
    pub fn owners_to_reread(&self, seen: &PoolSeen, index: &LoadBalancerIndex) -> Vec<Owner> {
        let memory = self.pools.get(&seen.name).map(|p| &p.ledger);
        let stored = read_claims(&seen.status, memory, index, &mut Vec::new());
        let mut owners = Vec::new();
        for (text, uid) in &seen.status.allocated_owners {
            let name = seen.status.allocated.get(text);
            let now = name.and_then(|name| Some((name, index.uid_of(name)?)));
            if let Some((name, now)) = now.filter(|_| !index.entries.contains_key(uid)) {
                owners.push(Owner { name: name.clone(), uid: now.to_owned() });
            }
        }
        for (ip, entries) in index.publishers(&seen.name) {
            let ledgers = [stored.get(&ip), memory.and_then(|m| m.owner_of(ip))];
            let named: BTreeSet<&str> =
                ledgers.into_iter().flatten().map(|owner| owner.uid.as_str()).collect();
            let agreed = ledgers.iter().all(Option::is_some) && named.len() == 1;
            if !agreed {
                let against = |e: &&&LoadBalancerEntry| named.iter().any(|uid| *uid != e.owner.uid);
                owners.extend(entries.iter().filter(against).map(|e| e.owner.clone()));
            }
        }
        owners
    }

    /// Claims whose owner is not in `index`, and claims for which [`Self::is_second`] returns
    /// `true`. The caller must ask the API server about the owner before it releases such a claim,
    /// because `index` may be older than the claim.
    pub fn orphans(&self, index: &LoadBalancerIndex) -> Vec<(Claim, Owner)> {
        self.pools
            .iter()
            .flat_map(|(name, pool)| {
                pool.ledger
                    .claims()
                    .iter()
                    .map(move |(ip, owner)| (claim(name, *ip), owner.clone()))
            })
            .filter(|(claim, owner)| {
                !index.contains(owner) || self.is_second(claim, owner, index.uid_of(&owner.name))
            })
            .collect()
    }

    /// Whether a claim's owner has no UID, and the LoadBalancer with the owner's name holds another
    /// address of the claim's pool. `uid`: UID of that LoadBalancer.
    pub fn is_second(&self, claim: &Claim, owner: &Owner, uid: Option<&str>) -> bool {
        let other = |c: &Claim| c.pool == claim.pool && c.ip != claim.ip;
        owner.uid.is_empty() && uid.is_some_and(|uid| self.claims_of(uid).iter().any(other))
    }
}

/// Claims of the stored ledger, `status`, each with its owner. Adds the unreadable entries to
/// `repairs`. The UID of the owner is the first of these that is known:
/// * the UID that `status` records. Exception: `index` has another UID for the owner's name, and
///   neither `index` nor `memory` has the recorded UID;
/// * the UID that `memory` has for the address and the owner's name;
/// * the UID that `index` has for the owner's name. Exception: this LoadBalancer has another
///   address in `memory`.
///
/// If none is known, the UID is empty.
fn read_claims(
    status: &IPPoolStatus,
    memory: Option<&Ledger>,
    index: &LoadBalancerIndex,
    repairs: &mut Vec<LedgerRepair>,
) -> BTreeMap<IpAddr, Owner> {
    let mut claims = BTreeMap::new();
    for (text, name) in &status.allocated {
        let Ok(ip) = text.parse::<IpAddr>() else {
            repairs.push(LedgerRepair::Unreadable(text.clone()));
            continue;
        };
        let remembered = memory
            .and_then(|m| m.owner_of(ip))
            .filter(|owner| owner.name == *name && !owner.uid.is_empty());
        // A LoadBalancer that holds another address of the pool in memory is not the owner of `ip`.
        let named = index.uid_of(name).filter(|uid| {
            let owner = Owner { name: name.clone(), uid: (*uid).to_owned() };
            memory.and_then(|m| m.held_by(&owner)).is_none_or(|held| held == ip)
        });
        let remembered = remembered.map(|owner| owner.uid.as_str());
        let recorded = status.allocated_owners.get(text).map(String::as_str);
        // A name belongs to one object. If the name has another UID now, the object was created
        // again. For example, a restore created it before its pool, or together with the pool. The
        // recorded UID is stale in that case.
        let recorded = recorded.filter(|uid| {
            named.is_none() || remembered == Some(*uid) || index.entries.contains_key(*uid)
        });
        let uid = recorded.or(remembered).or(named).unwrap_or_default();
        // The name that belongs to a UID never changes. An entry with another name was edited, so
        // the name that belongs to the UID is used.
        let known = index.entries.get(uid).map(|e| &e.owner);
        let known = known.or_else(|| memory.and_then(|m| m.owner_of(ip)));
        let known = known.filter(|owner| !uid.is_empty() && owner.uid == uid).cloned();
        claims.insert(ip, known.unwrap_or_else(|| Owner { name: name.clone(), uid: uid.into() }));
    }
    claims
}

/// Rule in the module's header by which an address belongs to an owner. The order is from the
/// strongest to the weakest rule: rule 1, rule 3, rules 2 and 4, rule 5.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum RestoreRank {
    Agreed,
    Published,
    Stored,
    Remembered,
}

fn rightful<'a>(
    pool: &str,
    stored: Option<&'a Owner>,
    memory: Option<&'a Owner>,
    publishers: &[&'a LoadBalancerEntry],
    index: &LoadBalancerIndex,
) -> Option<(RestoreRank, &'a Owner)> {
    let is = |named: Option<&Owner>, uid: &str| named.is_some_and(|owner| owner.uid == uid);
    if let Some(agreed) = stored.filter(|owner| !owner.uid.is_empty() && is(memory, &owner.uid)) {
        return Some((RestoreRank::Agreed, agreed));
    }
    if let Some(new) =
        stored.filter(|owner| memory.is_none() && index.is_yet_to_publish(owner, pool))
    {
        return Some((RestoreRank::Stored, new));
    }
    let published = publishers
        .iter()
        .filter(|e| !e.deleting || is(stored, &e.owner.uid) || is(memory, &e.owner.uid))
        .min_by_key(|e| {
            (!is(stored, &e.owner.uid), !is(memory, &e.owner.uid), e.created, &e.owner)
        });
    published
        .map(|e| (RestoreRank::Published, &e.owner))
        .or(stored.map(|owner| (RestoreRank::Stored, owner)))
        .or(memory
            .filter(|owner| index.contains(owner))
            .map(|owner| (RestoreRank::Remembered, owner)))
}

fn claim(pool: &str, ip: IpAddr) -> Claim {
    Claim { pool: pool.to_owned(), ip }
}

#[cfg(test)]
mod tests;
