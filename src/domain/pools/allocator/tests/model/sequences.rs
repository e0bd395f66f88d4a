//! Sequences of steps that random search found, or rarely finds.

use super::*;

/// Regression: an unpublished claim stayed reserved on segments that were no longer right. Its
/// address would have been announced there before the network of its LoadBalancer became known.
#[test]
fn a_claim_is_reserved_where_it_is_announced_now() {
    use Step::{Create, Edit, Move, Networks, Switch};
    hold(&[
        Create(1, None),
        Create(2, None),
        Move(1, (0, 10, 1), 0, 1, false),
        Networks(Some([1, 2])),
        Move(1, (0, 10, 1), 1, 1, false),
        Edit(0, 1, true, false),
        Create(2, None),
        Switch(1, Some(0)),
    ]);
}

/// Regression: a claim that a restored LoadBalancer took over was no longer reported as shared.
#[test]
fn an_address_of_two_is_reported_after_a_restore() {
    use Step::{Create, Edit, Move, Networks, Restore, Switch};
    hold(&[
        Create(1, None),
        Move(0, (1, 11, 1), 1, 1, false),
        Networks(None),
        Move(2, (1, 11, 1), 1, 1, false),
        Create(0, Some(0)),
        Switch(1, Some(2)),
        Networks(Some([1, 1])),
        Edit(0, 0, false, false),
        Edit(2, 0, true, false),
        Restore(1, false),
    ]);
}

/// Regression: a late request, for a deleted LoadBalancer, got an address of a deleted pool,
/// although another LoadBalancer had that address. A stale view showed that the deleted
/// LoadBalancer published the address.
#[test]
fn a_late_request_gains_no_address_whose_pool_is_gone() {
    use Step::{AskLate, Create, Delete, Edit, Move, Publish, RemovePool};
    hold(&[
        Edit(0, 1, true, false),
        Create(0, None),
        Publish(0),
        RemovePool(0),
        Delete(0),
        Move(1, (0, 10, 1), 0, 1, false),
        Create(2, None),
        Publish(2),
        RemovePool(1),
        AskLate(0),
    ]);
}

/// The address may be announced on two segments, and only the deleted pool showed on which. The new
/// leader does not know the segment, so the owner in the other pool's ledger keeps the address.
#[test]
fn the_ledger_wins_over_a_published_address_whose_pool_was_deleted() {
    use Step::{Create, Move, Networks, Publish, RemovePool, Restart};
    hold(&[
        Networks(Some([1, 2])),
        Move(0, (0, 10, 1), 1, 1, false),
        Move(1, (0, 10, 1), 2, 2, false),
        Create(0, Some(0)),
        Publish(0),
        Create(2, Some(1)),
        RemovePool(0),
        Restart(false),
    ]);
}

/// LoadBalancer 1 names a network, so its address is not announced where the other owner's is.
#[test]
fn a_published_address_stays_after_its_pool_when_its_other_owner_is_on_another_segment() {
    use Step::{Create, Move, Networks, Publish, RemovePool, Restart};
    hold(&[
        Networks(Some([1, 2])),
        Move(0, (0, 10, 1), 1, 1, false),
        Move(1, (0, 10, 1), 2, 2, false),
        Create(1, Some(1)),
        Publish(1),
        Create(0, Some(0)),
        RemovePool(1),
        Restart(false),
    ]);
}

/// Regression: a late request, for a deleted LoadBalancer of type vm, got back an address of a
/// VLAN's pool. Nodes announce the address in their own network, where another LoadBalancer had it.
#[test]
fn a_late_request_gains_no_address_that_is_announced_beside_the_pools_network() {
    use Step::{AskLate, Create, Delete, Move, Networks, Publish};
    hold(&[
        Networks(Some([1, 2])),
        Move(0, (0, 10, 1), 1, 1, false),
        Create(4, Some(0)),
        Publish(4),
        Delete(4),
        Move(1, (0, 10, 1), 0, 2, false),
        Create(0, None),
        Publish(0),
        AskLate(4),
    ]);
}
