//! Tests of which waiters are tried again after a change.

use super::super::tests::{everybody, for_namespace, lb, named, seen};
use super::*;

/// A change by one tenant causes no search for the waiters of other pools.
#[test]
fn only_those_are_asked_again_whom_a_change_may_serve() {
    let mut allocator = PoolAllocator::default();
    allocator.merge(&seen("a", "10.0.0", 1), &everybody());
    allocator.merge(&for_namespace(seen("b", "10.0.1", 1), "other"), &everybody());
    allocator.claim(&lb(1));
    allocator.claim(&lb(2));
    let mut others = lb(3);
    others.requirement.namespace = "nowhere".into();
    allocator.claim(&others);
    allocator.claim(&named(4, "c"));
    let concerned = |pool: &str| {
        let changes =
            WaiterChanges { pools: BTreeSet::from([pool.to_owned()]), ..WaiterChanges::default() };
        let all =
            allocator.waiting().filter(|(facts, wait)| allocator.may_change(facts, wait, &changes));
        all.map(|(facts, _)| facts.owner.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(allocator.waiting().count(), 3);
    assert_eq!(concerned("a"), [""; 0], "it is as full as it was");
    assert_eq!(concerned("b"), [""; 0], "it admits none of them");
    assert_eq!(concerned("c").len(), 3, "it is gone, or new");
    allocator.release("u1");
    assert_eq!(allocator.serve_waiters(), [lb(2).owner]);
}
