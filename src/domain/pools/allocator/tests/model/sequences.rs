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

/// The two addresses are announced on two segments, and only the deleted pool showed where
/// LoadBalancer 0 announces its address. The new leader does not know the segment, so the owner in
/// the other pool's ledger keeps the address.
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

/// LoadBalancer 2 had the address of pool 1, on another segment, before LoadBalancer 0 had it of pool
/// 0. Pool 0 was deleted, and LoadBalancer 2 is created again. If it got the address, the next leader
/// would withdraw the address from LoadBalancer 0.
#[test]
fn an_address_of_a_deleted_pool_does_not_go_back_to_a_former_owner() {
    use Step::{Create, Delete, Move, Networks, Publish, RemovePool, Restart};
    let then = |steps: &[Step]| {
        let on = |pool, network| Move(pool, (0, 10, 1), network, 1, false);
        let begin = [Networks(Some([1, 2])), on(0, 1), on(1, 2), Create(2, Some(1)), Publish(2)];
        let end = [RemovePool(0), Create(2, Some(1)), Restart(false)];
        hold(&[&begin[..], steps, &end[..]].concat());
    };
    then(&[Delete(2), Create(0, Some(0)), Publish(0)]);
    then(&[Create(0, Some(0)), Publish(0), Delete(2)]);
}

/// Pool 0 is deleted while a LoadBalancer publishes its address. Then pool 1 has the same address,
/// on a segment where the LoadBalancer may announce it. In the first sequence, the LoadBalancer is
/// of type vm, so a node with a link announces the address on the VLAN. In the second one, pool 0
/// was global. In the last one, the network of pool 0 moves to the other VLAN.
#[test]
fn an_address_of_a_deleted_pool_is_given_to_no_other_where_it_is_announced() {
    use Step::{Create, Move, Networks, Publish, RemovePool};
    let on = |pool, network| Move(pool, (0, 10, 1), network, 1, false);
    let vlans = || Networks(Some([1, 2]));
    let vm = [vlans(), on(0, 1), Create(4, Some(0)), Publish(4), RemovePool(0), on(1, 1)];
    let global = Move(0, (0, 10, 1), 1, 1, true);
    let global = [vlans(), global, Create(0, None), Publish(0), RemovePool(0), on(1, 2)];
    let moved = [vlans(), on(0, 1), Create(0, Some(0)), Publish(0), RemovePool(0)];
    let after = [Networks(Some([2, 1])), on(1, 1)];
    let moved = [&moved[..], &after[..]].concat();
    for steps in [&vm[..], &global[..], &moved[..]] {
        hold(&[steps, &[Create(2, Some(1))][..]].concat());
    }
}

/// Regression: a LoadBalancer that lost its address at the start of a term still announced it when
/// another LoadBalancer got it.
#[test]
fn an_address_that_is_lost_is_given_to_no_other_while_it_is_published() {
    use Step::{Create, Move, Networks, Publish, RemovePool, Restart};
    hold(&[
        Networks(Some([1, 2])),
        Move(0, (0, 10, 1), 1, 1, false),
        Move(1, (0, 10, 1), 2, 2, false),
        Create(0, Some(0)),
        Publish(0),
        Create(2, Some(1)),
        Create(3, Some(2)),
        RemovePool(0),
        Restart(false),
        Move(2, (0, 10, 1), 1, 3, false),
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

/// The claim of LoadBalancer 0 was reserved on the segment of pool 0 since the deletion of pool 2.
/// LoadBalancer 0 gets the claim again from the new pool 2, on another segment. This frees the
/// address in pool 0, for which LoadBalancer 5 waits.
#[test]
fn an_address_that_one_waiter_frees_is_given_to_another() {
    use Step::{Create, Edit, Move, Networks, Publish, RemovePool};
    hold(&[
        Create(0, Some(2)),
        Move(2, (0, 10, 1), 1, 1, false),
        Create(5, Some(0)),
        Edit(2, 0, false, false),
        RemovePool(2),
        Publish(0),
        Edit(0, 1, true, false),
        Move(2, (0, 10, 1), 1, 3, false),
        Networks(Some([1, 0])),
    ]);
}

/// Regression: an address of a deleted pool was given out on another segment, and the next leader,
/// which does not know the segment of the deleted pool, withdrew it from the LoadBalancer that had
/// it first.
#[test]
fn an_address_of_a_deleted_pool_is_new_for_no_other_on_any_segment() {
    use Step::{Create, Move, Networks, Publish, RemovePool, Restart};
    let on = |pool, network, size| Move(pool, (0, 10, size), network, 1, false);
    hold(&[
        Networks(Some([1, 2])),
        on(0, 1, 1),
        Create(0, Some(0)),
        Publish(0),
        RemovePool(0),
        on(1, 2, 1),
        Create(2, Some(1)),
        Restart(false),
        on(1, 2, 2),
        Publish(2),
        Restart(false),
    ]);
}

/// Regression: an address that was reserved for a waiter was the only free one in its pool, and was
/// held back from the waiter too.
#[test]
fn a_waiter_gets_the_address_that_is_reserved_for_it() {
    use Step::{Create, Move, RemovePool};
    let on = |pool| Move(pool, (0, 10, 1), 0, 1, false);
    hold(&[on(0), Create(0, None), RemovePool(0), on(1)]);
    hold(&[on(0), Create(0, None), RemovePool(0), on(0)]);
}

/// Regression: an address that had to be withdrawn, and that a new pool recorded for its
/// LoadBalancer again, was still to be withdrawn when that pool was deleted.
#[test]
fn an_address_that_is_recorded_again_is_not_withdrawn() {
    use Step::{Ask, Create, Move, Networks, Publish, RemovePool, Restart};
    let on = |pool, network| Move(pool, (0, 10, 1), network, 1, false);
    hold(&[
        Networks(Some([1, 2])),
        on(0, 1),
        on(1, 2),
        Create(0, Some(0)),
        Publish(0),
        Create(2, Some(1)),
        RemovePool(0),
        Restart(false),
        on(0, 1),
        RemovePool(0),
        Ask(0),
    ]);
}
