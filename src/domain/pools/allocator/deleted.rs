//! Deleted pools, and the addresses from these pools that LoadBalancers continue to publish.
//!
//! No ledger has such an address, so a reservation protects it on the segments where it is
//! announced ([`super::reserved`]). These segments are known in two cases:
//! * the LoadBalancer is of type cluster, and its network is known. The guest announces the address
//!   on that network, whatever the network of the pool was;
//! * the pool was not global, and was deleted in this term of leadership, so the allocator
//!   remembers its network.
//!
//! Otherwise no stored object proves the network, and the address is reserved on every segment.

use std::collections::HashSet;

use super::super::selection::PoolSelector;
use super::{AllocatorPool, PoolAllocator};
use crate::LbFacts;
use crate::network::Segment;

/// A pool that was deleted in this term of leadership.
#[derive(Clone, Debug)]
pub(super) struct DeletedPool {
    /// Selector of the pool before its deletion.
    pub(super) selector: PoolSelector,
    /// Segment of the pool's network. It changes when the network moves to another segment.
    pub(super) segment: Segment,
}

impl PoolAllocator {
    /// Removes a pool that was deleted, or that can no longer be parsed. LoadBalancers continue to
    /// publish the addresses that they hold in this pool, and no pool gives these addresses to
    /// other LoadBalancers.
    pub fn remove_pool(&mut self, name: &str) {
        let Some(pool) = self.take_out(name) else { return };
        self.overlaps.moved();
        self.reserve_claims_of(name, &pool);
        let reserved = self.reserved.all().map(|reservation| &reservation.claim.pool);
        let named: HashSet<&String> = reserved.collect();
        self.deleted.retain(|pool, _| named.contains(pool));
        let AllocatorPool { selector, segment, .. } = pool;
        self.deleted.insert(name.to_owned(), DeletedPool { selector, segment });
    }

    /// Segments where the LoadBalancer's address is, or may be, announced, if the pool `pool` gave
    /// the address out and was deleted. If not all segments are known, [`Segment::Unlisted`] is
    /// among them.
    pub(super) fn announced_after_deletion(&self, facts: &LbFacts, pool: &str) -> Vec<Segment> {
        let deleted = self.deleted.get(pool).filter(|deleted| !deleted.selector.is_global());
        let segment = deleted.map_or(Segment::Unlisted, |deleted| deleted.segment.clone());
        let mut segments = facts.announced_at(&segment);
        // Nodes that have a link for the pool's VLAN announce the address of a vm LoadBalancer on
        // that VLAN.
        segments.extend((!facts.guest).then_some(segment));
        segments
    }
}
