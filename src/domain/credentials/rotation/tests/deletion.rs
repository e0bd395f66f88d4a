//! Tests of the steps before the deletion of a TokenRotation completes.

use super::super::ready::{ReadyFacts, ReadyState, UNREADABLE, UnknownTargetReport};
use super::*;
use crate::credentials::timestamp::rfc3339;

/// Plan and state of a rotation whose deletion was requested 60 seconds before `DAY`. One
/// credential is in use. The overlap of a replaced credential ends 600 seconds after `DAY`.
/// `revokes`: whether the deletion revokes the credential in use.
fn leaving(revokes: bool) -> (RotationPlan, RotationState) {
    let plan = RotationPlan { revokes, overlap: 3_600, deleting: Some(DAY - 60), ..plan() };
    (plan, RotationState { last_rotation: Some(DAY - 100), ..replaced(DAY + 600) })
}

/// Runs a deletion until it completes. Field 0: its actions, each with the time in seconds after
/// the first observation. Field 1: names of the credentials that it should have revoked but has
/// not. `refuses`: whether each revocation is refused.
fn left(
    (plan, mut state): (RotationPlan, RotationState),
    target: &TargetState,
    unknown: UnknownReason,
    refuses: bool,
) -> (Vec<(Seconds, String)>, Vec<String>) {
    let mut existing = vec!["r-1".to_owned(), "r-2".to_owned()];
    let (mut now, mut acts, mut target) = (DAY, Vec::new(), target.clone());
    for _ in 0..10_000 {
        let seen = ObservedState {
            now,
            target: target.clone(),
            existing: Some(existing.clone()),
            unknown,
            ..ObservedState::default()
        };
        let act = decide(&plan, &state, &seen);
        match act {
            RotationAction::Wait(until) => {
                now = until.filter(|at| *at > now).unwrap_or(now + READ_AGAIN_AFTER);
            }
            RotationAction::Write(_, next) => state = *next,
            RotationAction::Revoke(name) if refuses => {
                state = failed(&plan, &state, RotationStep::Revoke, &name, now);
            }
            RotationAction::Revoke(name) => {
                existing.retain(|one| *one != name);
                acts.push((now - DAY, name));
            }
            RotationAction::DropOld => {
                if let TargetState::There { kept, other_tokens, .. } = &mut target {
                    (*kept, *other_tokens) = (None, Vec::new());
                }
                acts.push((now - DAY, "taken out".to_owned()));
            }
            RotationAction::Finish => {
                acts.push((now - DAY, "gone".to_owned()));
                let left = left_behind(&plan, &state).into_iter().map(str::to_owned).collect();
                return (acts, left);
            }
            act => panic!("{act:?}"),
        }
    }
    panic!("it never goes: {acts:?}")
}

/// A deletion ends even if a server does not answer or refuses. `left_behind` then names the
/// credentials that the deletion should have revoked but has not.
#[test]
fn a_deletion_ends_whatever_happens() {
    let there = |kept: Option<&str>| there(Some("h2"), kept);
    // Deadlines of the deletion, in seconds after the first observation. `asked`: 15 minutes after
    // the request to delete, which came 60 seconds before the first observation. `last`: 15 minutes
    // after the end of the last publication's overlap.
    let (asked, last) = (900 - 60, 900 + 3_501);
    let (silent, barred, only) =
        (UnknownReason::Silent, UnknownReason::Barred, UnknownReason::TargetBarred);
    for (what, revokes, target, unknown, refuses, acts, left_over) in [
        (
            "nothing in the way, kept",
            false,
            there(None),
            silent,
            false,
            &[(600, "r-1"), (600, "gone")][..],
            &[][..],
        ),
        (
            "and revoked",
            true,
            there(None),
            silent,
            false,
            &[(0, "r-1"), (0, "r-2"), (0, "gone")],
            &[],
        ),
        ("silence", false, TargetState::Unknown, silent, false, &[(last, "gone")], &["r-1"]),
        (
            "silence, revoked",
            true,
            TargetState::Unknown,
            silent,
            false,
            &[(asked, "gone")],
            &["r-1", "r-2"],
        ),
        ("no rights", true, TargetState::Unknown, barred, false, &[(0, "gone")], &["r-1", "r-2"]),
        (
            "no target",
            false,
            TargetState::Unknown,
            only,
            false,
            &[(600, "r-1"), (600, "gone")],
            &[],
        ),
        (
            "no target, revoked",
            true,
            TargetState::Unknown,
            only,
            false,
            &[(0, "r-1"), (0, "r-2"), (0, "gone")],
            &[],
        ),
        ("refused", true, there(None), silent, true, &[(asked, "gone")], &["r-1", "r-2"]),
        // The foreign token `x` has no expiry in Rancher. The target keeps `x` beside the
        // operator's token until the overlap ends.
        (
            "another's, kept",
            false,
            there(Some("x")),
            silent,
            false,
            &[(600, "r-1"), (3_501, "taken out"), (3_501, "gone")],
            &[],
        ),
        (
            "another's, revoked",
            true,
            there(Some("x")),
            silent,
            false,
            &[(0, "taken out"), (0, "r-1"), (0, "r-2"), (0, "gone")],
            &[],
        ),
    ] {
        let (done, left) = left(leaving(revokes), &target, unknown, refuses);
        let done: Vec<_> = done.iter().map(|(at, act)| (*at, act.as_str())).collect();
        assert_eq!(done, acts, "{what}");
        assert_eq!(left, left_over, "{what}");
    }
}

/// A separate issuer can revoke credentials although the target's server does not answer. Only the
/// target's server can show which credential must stay. If the issuer refuses to list its
/// credentials, none is revoked.
#[test]
fn the_deletion_of_an_accounts_tokens_waits_for_a_rancher_only_to_spare_one() {
    let last = 900 + 3_501;
    for (what, revokes, unknown, acts) in [
        ("silent", true, UnknownReason::Silent, &[(0, "r-1"), (0, "r-2"), (0, "gone")][..]),
        ("silent, kept", false, UnknownReason::Silent, &[(last, "gone")]),
        ("barred", true, UnknownReason::Barred, &[(0, "r-1"), (0, "r-2"), (0, "gone")]),
        ("barred, kept", false, UnknownReason::Barred, &[(600, "r-1"), (600, "gone")]),
        ("unlisted", true, UnknownReason::Unlisted, &[(0, "gone")]),
        ("unlisted, kept", false, UnknownReason::Unlisted, &[(0, "gone")]),
    ] {
        let (plan, state) = leaving(revokes);
        let source = plan.source.map(|source| IssuerTraits { is_apart: true, ..source });
        let plan = RotationPlan { source, ..plan };
        let (done, _) = left((plan, state), &TargetState::Unknown, unknown, false);
        let done: Vec<_> = done.iter().map(|(at, act)| (*at, act.as_str())).collect();
        assert_eq!(done, acts, "{what}");
    }
}

/// A TokenRotation without precedence makes no credential. Its deletion revokes neither the
/// credential that the TokenRotation with precedence has adopted, nor one that the target keeps.
#[test]
fn the_second_of_two_does_nothing_and_leaves_what_the_first_one_uses() {
    let second = |deleting| {
        let (plan, state) = leaving(true);
        (RotationPlan { deleting, ..plan }.second(), state)
    };
    let (adopted, kept) = (there(Some("h2"), None), there(Some("theirs"), Some("h2")));
    for target in [adopted.clone(), kept.clone(), TargetState::Absent, TargetState::Unknown] {
        let (plan, state) = second(None);
        let seen = ObservedState { now: 40 * DAY, target, ..ObservedState::default() };
        assert_eq!(decide(&plan, &state, &seen), RotationAction::Wait(None), "{seen:?}");
    }
    for (target, end) in [(adopted, 600), (kept, 3_601)] {
        let (done, _) = left(second(Some(DAY - 60)), &target, UnknownReason::Silent, false);
        let done: Vec<_> = done.iter().map(|(at, act)| (*at, act.as_str())).collect();
        assert_eq!(done, [(600, "r-1"), (end, "gone")], "{target:?}");
    }
}

/// Ready says which credentials a deletion revokes, and when the deletion ends at the latest. Both
/// are as in the decision with the same plan. The third TokenRotation has no precedence, and its
/// spec says `Revoke`.
#[test]
fn ready_says_of_a_deletion_what_the_decision_does() {
    let (plan, state) = leaving(true);
    for ((plan, state), revoked, end) in [
        (leaving(false), "old credentials", 900 + 3_501),
        (leaving(true), "all credentials", 900 - 60),
        ((plan.second(), state), "old credentials", 900 + 3_501),
    ] {
        let seen = ObservedState { now: DAY, ..ObservedState::default() };
        let unknown = Some(UnknownTargetReport { ready: UNREADABLE, why: "silent" });
        let facts = ReadyFacts { unknown, ..ReadyFacts::default() };
        let ready = ReadyState::of(&plan, &state, &seen, &api::Target::default(), facts);
        let message = format!(
            "{revoked} are revoked first: silent; the deletion continues without the revocation \
             at {}",
            rfc3339(DAY + end)
        );
        assert_eq!(ready.map(|ready| ready.message), Some(message));
        let (done, _) = left((plan, state), &TargetState::Unknown, UnknownReason::Silent, false);
        assert_eq!(done, [(end, "gone".to_owned())]);
    }
}

/// A failed step has succeeded since, or a deletion does not want it. The deletion then waits for
/// the overlap of a replaced credential, and Ready names no failed step.
#[test]
fn a_deletion_names_no_failed_step_that_it_does_not_wait_for() {
    let (plan, state) = leaving(false);
    // The overlap of the foreign credential `x` is over, so the deletion removes it.
    let state = RotationState { last_rotation: Some(DAY - 2 * plan.overlap), ..state };
    let seen = |now, kept| {
        let target = there(Some("h2"), kept);
        ObservedState { now, target, ..ObservedState::default() }
    };
    let message = |state: &RotationState, seen: &ObservedState| {
        let (wants, facts) = (api::Target::default(), ReadyFacts::default());
        ReadyState::of(&plan, state, seen, &wants, facts).map(|ready| ready.message)
    };
    assert_eq!(decide(&plan, &state, &seen(DAY, Some("x"))), RotationAction::DropOld);
    let refused = failed(&plan, &state, RotationStep::Publish, "", DAY);
    let kept = seen(DAY, Some("x"));
    assert_eq!(decide(&plan, &refused, &kept), RotationAction::Wait(Some(DAY + 5)));
    assert!(message(&refused, &kept).unwrap().contains("first: Failed Publish;"));
    let unmade = failed(&plan, &state, RotationStep::Mint, "", DAY);
    for (state, now) in [(refused, DAY + 5), (unmade, DAY)] {
        let gone = seen(now, None);
        let act = decide(&plan, &state, &gone);
        let RotationAction::Write(StateChange::Recovered, state) = act else { panic!("{act:?}") };
        assert_eq!(decide(&plan, &state, &gone), RotationAction::Wait(Some(DAY + 600)));
        assert_eq!(message(&state, &gone).unwrap(), "old credentials are revoked first");
    }
}

/// A deletion waits for an overlap only if one runs, and at most for the length of one overlap.
#[test]
fn the_end_of_a_deletion_depends_on_the_overlap_that_runs() {
    let (plan, state) = leaving(false);
    let asked = plan.deleting.unwrap();
    let last = |state: &RotationState| super::super::deletion::deadline(&plan, state) - asked;
    let idle = RotationState {
        previous: Vec::new(),
        last_rotation: Some(DAY - 10 * 3_600),
        ..state.clone()
    };
    assert_eq!(last(&idle), 900);
    let restarting = RotationState { last_rotation: None, ..state.clone() };
    assert_eq!(last(&restarting), 660 + 900);
    // A failed revocation is tried again after a pause. The pause does not change the deadline.
    let mut refused = idle;
    refused.previous.push(RetiredCredential {
        failures: 3,
        after: Some(DAY + 1_000),
        ..RetiredCredential::default()
    });
    assert_eq!(last(&refused), 900);
    // A wrong clock has recorded an end of the overlap that is far in the future. The deadline
    // counts at most one overlap from the request to delete.
    let mut far = state;
    far.previous[0].after = Some(100 * DAY);
    assert_eq!(last(&far), 3_600 + 900);
}

/// Clients of the target may still read a replaced credential, with `onDelete: Keep`. So its
/// revocation waits for an overlap, even if the overlap had not begun before the deletion.
/// Exception: the target was deleted, and no late write can create it.
#[test]
fn a_deletion_revokes_no_credential_that_a_client_may_read() {
    let late = |replaces: &str, mut state: RotationState| {
        state.previous[0].replaces = Some(replaces.to_owned());
        state
    };
    let (_, state) = leaving(false);
    let mut restarting = state.clone();
    restarting.previous[0].after = None;
    for (what, state, target, end) in [
        ("the target was deleted", state.clone(), TargetState::Absent, 0),
        ("a late write may create the target", late("", state.clone()), TargetState::Absent, 600),
        ("a late write was refused or replaced", late("0", state), there(Some("h2"), None), 3_601),
        ("the workloads were not restarted", restarting, there(Some("h2"), None), 3_601),
    ] {
        let (plan, _) = leaving(false);
        let (done, left) = left((plan, state), &target, UnknownReason::Silent, false);
        let done: Vec<_> = done.iter().map(|(at, act)| (*at, act.as_str())).collect();
        assert_eq!(done, [(end, "r-1"), (end, "gone")], "{what}");
        assert!(left.is_empty(), "{what}: {left:?}");
    }
}

/// A publication that is under way when the deletion is requested may still succeed. The credential
/// is not revoked before the publication has surely ended, even if the spec sets no overlap.
#[test]
fn a_deletion_waits_for_the_end_of_a_publication() {
    let (plan, state) = leaving(false);
    let plan = RotationPlan { overlap: 0, ..plan };
    let made = MintedCredential { hash: "h3".into(), issued: DAY, expires: Some(31 * DAY) };
    let pending = PendingEntry {
        name: "r-3".into(),
        since: DAY - 600,
        publishing: Some(PendingPublication { made, replaces: "1".into() }),
        ..PendingEntry::default()
    };
    let state = RotationState { serial: 3, pending: Some(pending), ..state };
    let seen =
        ObservedState { now: DAY, target: there(Some("h2"), None), ..ObservedState::default() };
    let RotationAction::Write(StateChange::Abandoned, next) = decide(&plan, &state, &seen) else {
        panic!("{:?}", decide(&plan, &state, &seen))
    };
    let abandoned = next.previous.iter().find(|old| old.name == "r-3");
    assert_eq!(abandoned.and_then(|old| old.after), Some(DAY + SURELY_ANSWERED));
}
