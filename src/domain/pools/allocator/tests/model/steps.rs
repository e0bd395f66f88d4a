//! Steps in the simulated cluster.

use proptest::prelude::*;

use super::{LBS, NETWORKS, POOLS, Vlans};

#[derive(Clone, Debug)]
pub(super) enum Step {
    Create(usize, Option<usize>),
    Delete(usize),
    /// Releases the claim of a LoadBalancer that does not publish the claim. The operator does this
    /// while the LoadBalancer's guest cluster is being removed.
    Refuse(usize),
    /// Claims an address for a deleted LoadBalancer, as a reconcile with a stale view does.
    AskLate(usize),
    /// Deletes a LoadBalancer and creates it again under its name, with a new UID. The flag:
    /// whether the allocator learns of the deletion before the request of the new object. The new
    /// object has the annotation with the former address, as in a backup.
    Restore(usize, bool),
    Switch(usize, Option<usize>),
    /// Claims an address, without publishing it.
    Ask(usize),
    /// Claims an address, publishes it, and claims again, as a reconcile after a write does.
    Publish(usize),
    /// Creates or edits a pool. The fields: the pool, its size, whether it admits the
    /// LoadBalancers, and whether it is being deleted.
    Edit(usize, usize, bool, bool),
    /// Moves or creates a pool. The fields: the pool; its range, as the pool whose addresses are
    /// used, the first address, and the number of addresses; its network; its priority; and whether
    /// it is global.
    Move(usize, (usize, usize, usize), usize, i64, bool),
    /// Sets the VLANs of the last two networks.
    Networks(Vlans),
    RemovePool(usize),
    /// Removes the stored status of a pool. The flag: whether all of it is removed, or only the
    /// owners.
    Wipe(usize, bool),
    /// Starts a new leader from the stored pools. The flag: whether a schema without owners has
    /// removed the stored owners.
    Restart(bool),
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let pool = || prop::option::of(0..POOLS.len());
    prop_oneof![
        4 => (0..LBS, pool()).prop_map(|(n, p)| Step::Create(n, p)),
        2 => (0..LBS).prop_map(Step::Delete),
        1 => (0..LBS).prop_map(Step::Refuse),
        3 => (0..LBS).prop_map(Step::AskLate),
        2 => (0..LBS, any::<bool>()).prop_map(|(n, notified)| Step::Restore(n, notified)),
        3 => (0..LBS, pool()).prop_map(|(n, p)| Step::Switch(n, p)),
        2 => (0..LBS).prop_map(Step::Ask),
        6 => (0..LBS).prop_map(Step::Publish),
        4 => (0..POOLS.len(), 0_usize..4, prop::bool::weighted(0.8), prop::bool::weighted(0.1))
            .prop_map(|(p, size, admits, deleting)| Step::Edit(p, size, admits, deleting)),
        4 => (
            0..POOLS.len(),
            (0..POOLS.len(), 10_usize..13, 1_usize..4),
            0..NETWORKS.len(),
            1_i64..4,
            prop::bool::weighted(0.2),
        )
            .prop_map(|(p, range, network, priority, global)| {
                Step::Move(p, range, network, priority, global)
            }),
        1 => prop::option::weighted(0.8, [0_u16..3, 0_u16..3]).prop_map(Step::Networks),
        1 => (0..POOLS.len()).prop_map(Step::RemovePool),
        2 => (0..POOLS.len(), any::<bool>()).prop_map(|(p, all)| Step::Wipe(p, all)),
        1 => any::<bool>().prop_map(Step::Restart),
    ]
}
