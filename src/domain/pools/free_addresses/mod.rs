//! The free addresses of a pool, as disjoint intervals in a balanced tree.
//!
//! Invariants:
//! * intervals are not empty and do not overlap. No interval contains both IPv4 and IPv6. The
//!   intervals of IPv4 come first;
//! * between two intervals of one stretch of the pool, there is at least one address that is not
//!   free. So after `n` addresses were given out, the number of intervals is at most the number of
//!   stretches plus `n`;
//! * every operation on one address is O(log i) for `i` intervals. An interval costs one entry,
//!   even if it has 2^64 addresses.
//!
//! `RangeInclusiveSet` of the crate `rangemap` is not used, because it does not count the addresses
//! in its intervals. A pool's status contains this count.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::ranges::{PoolRanges, address_count, from_u128, to_u128};

/// An address as a pair: whether it is IPv6, and its numeric value. So IPv4 sorts first.
type AddressKey = (bool, u128);

/// The free addresses of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreeSet {
    /// Map from the first address of each interval to the numeric value of its last address.
    intervals: BTreeMap<AddressKey, u128>,
    free: u128,
}

impl FreeSet {
    /// A set in which every address of the ranges is free.
    pub fn full(ranges: &PoolRanges) -> Self {
        let mut set = Self::default();
        for stretch in ranges.stretches() {
            set.intervals.insert(key(stretch.first), to_u128(stretch.last));
            set.free = set.free.saturating_add(address_count(stretch.first, stretch.last));
        }
        set
    }

    /// Number of free addresses.
    pub fn len(&self) -> u128 {
        self.free
    }

    /// Whether no address is free. O(1).
    pub fn is_empty(&self) -> bool {
        self.free == 0
    }

    /// Whether this address is free.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.interval_of(key(ip)).is_some()
    }

    /// Removes one address from the set. Returns `false` if the address was not free.
    pub fn remove(&mut self, ip: IpAddr) -> bool {
        let at = key(ip);
        let Some((start, last)) = self.interval_of(at) else { return false };
        if start == at {
            self.intervals.remove(&start);
        } else {
            self.intervals.insert(start, at.1 - 1);
        }
        if at.1 < last {
            self.intervals.insert((at.0, at.1 + 1), last);
        }
        self.free -= 1;
        true
    }

    /// Removes the first free address after `cursor` from the set, and returns it. If there is no
    /// cursor, or no free address after it, removes and returns the first free address of the pool.
    /// Returns `None` if no address is free.
    pub fn take_after(&mut self, cursor: Option<IpAddr>) -> Option<IpAddr> {
        const FIRST: AddressKey = (false, 0);
        let after = cursor.map(key).map_or(FIRST, |(v6, value)| (v6, value.saturating_add(1)));
        let next = self.first_from(after).or_else(|| self.first_from(FIRST))?;
        self.remove(next);
        Some(next)
    }

    /// Makes an address free again, and joins its interval with the adjacent intervals. Returns
    /// `false` if the address was free already. Precondition: the address belongs to the pool.
    pub fn insert(&mut self, ip: IpAddr) -> bool {
        let at = key(ip);
        if self.interval_of(at).is_some() {
            return false;
        }
        let mut start = at;
        let mut last = at.1;
        if let Some((&left, &left_last)) = self.intervals.range(..at).next_back()
            && left.0 == at.0
            && left_last.checked_add(1) == Some(at.1)
        {
            start = left;
        }
        if let Some(next) = at.1.checked_add(1)
            && let Some(right_last) = self.intervals.remove(&(at.0, next))
        {
            last = right_last;
        }
        self.intervals.insert(start, last);
        self.free += 1;
        true
    }

    fn interval_of(&self, at: AddressKey) -> Option<(AddressKey, u128)> {
        let (&start, &last) = self.intervals.range(..=at).next_back()?;
        (start.0 == at.0 && at.1 <= last).then_some((start, last))
    }

    fn first_from(&self, at: AddressKey) -> Option<IpAddr> {
        if self.interval_of(at).is_some() {
            return Some(from_u128(at.1, !at.0));
        }
        let (&(v6, value), _) = self.intervals.range(at..).next()?;
        Some(from_u128(value, !v6))
    }
}

fn key(ip: IpAddr) -> AddressKey {
    (ip.is_ipv6(), to_u128(ip))
}

#[cfg(test)]
mod tests;
