//! Tests of recorded failures whose step has succeeded since, or is not wanted any more.

use super::super::ready::{ReadyFacts, ReadyState};
use super::*;

/// Time of the failure. No replacement is due, and the overlap of each old credential is over.
const NOW: Seconds = 2 * DAY;
/// Time of the next try, after the first pause.
const RETRY: Seconds = NOW + 5;

/// Target at the time `now`, which holds the second credential. `kept`: hash of the credential that
/// the target keeps beside it. The issuer has only the second credential.
fn seen(now: Seconds, kept: Option<&str>) -> ObservedState {
    let existing = Some(vec!["r-2".to_owned()]);
    ObservedState { now, target: there(Some("h2"), kept), existing, ..ObservedState::default() }
}

/// Applies all changes of the recorded state that follow from `seen`. Returns the new state and the
/// next action.
fn settled(
    plan: &RotationPlan,
    state: &RotationState,
    seen: &ObservedState,
) -> (RotationState, RotationAction) {
    let mut state = state.clone();
    for _ in 0..10 {
        match decide(plan, &state, seen) {
            RotationAction::Write(_, next) => state = *next,
            act => return (state, act),
        }
    }
    panic!("no end of it: {state:?}")
}

/// Checks that the failure in `state` is forgotten at the observation `seen`, and that Ready is
/// `Current` then.
fn check_forgotten(plan: &RotationPlan, state: &RotationState, seen: &ObservedState) {
    let (state, act) = settled(plan, state, seen);
    assert!(matches!(act, RotationAction::Wait(_)), "{act:?}");
    let failure = (state.failures, state.retry_after, state.last_result.as_deref());
    assert_eq!(failure, (0, None, Some("Published")));
    let (wants, facts) = (api::Target::default(), ReadyFacts::default());
    let ready = ReadyState::of(plan, &state, seen, &wants, facts);
    assert_eq!(ready, Some(ReadyState::current()));
}

/// Checks that the failure in `state` is kept at the observation `seen`, and that the next action
/// waits until `until`.
fn check_kept(plan: &RotationPlan, state: &RotationState, seen: &ObservedState, until: Seconds) {
    let waits = (state.clone(), RotationAction::Wait(Some(until)));
    assert_eq!(settled(plan, state, seen), waits);
}

/// The removal of the kept credential from the target fails once, and then succeeds.
#[test]
fn a_removal_that_succeeds_at_last_leaves_no_failure() {
    let plan = plan();
    for (before, kept) in [(replaced(DAY), "h1"), (published(), "x")] {
        let kept = Some(kept);
        assert_eq!(decide(&plan, &before, &seen(NOW, kept)), RotationAction::DropOld);
        let state = failed(&plan, &before, RotationStep::Publish, "", NOW);
        check_kept(&plan, &state, &seen(RETRY - 1, kept), RETRY);
        assert_eq!(decide(&plan, &state, &seen(RETRY, kept)), RotationAction::DropOld);
        check_forgotten(&plan, &state, &seen(RETRY, None));
    }
}

/// The user withdraws a request for a replacement after a step of that replacement has failed.
#[test]
fn a_replacement_that_is_not_wanted_any_more_leaves_no_failure() {
    let requests = RotationRequests { rotate: Some("1".into()), leaked: None };
    let asked = RotationPlan { requests, ..plan() };
    let state = failed(&asked, &published(), RotationStep::Mint, "", NOW);
    check_kept(&asked, &state, &seen(NOW, None), RETRY);
    let unfit = ObservedState { target: TargetState::Unfit("exec".into()), ..seen(NOW, None) };
    check_kept(&plan(), &state, &unfit, NOW + READ_AGAIN_AFTER);
    check_forgotten(&plan(), &state, &seen(NOW, None));
}

/// The user removes the workloads from the spec after their restart has failed. The first
/// credential of a rotation replaces none. A later one replaces a credential whose overlap begins
/// then.
#[test]
fn a_restart_that_is_not_wanted_any_more_leaves_no_failure() {
    let restarting = RotationPlan { restarts: true, ..plan() };
    let mut later = replaced(0);
    later.previous[0].after = None;
    for before in [published(), later] {
        let before = RotationState { restarted_for: None, ..before };
        assert_eq!(decide(&restarting, &before, &seen(NOW, None)), RotationAction::Restart);
        let state = failed(&restarting, &before, RotationStep::Restart, "r-2", NOW);
        check_kept(&restarting, &state, &seen(NOW, None), RETRY);
        check_forgotten(&plan(), &state, &seen(NOW, None));
    }
}

/// A failed revocation is reported until its next try, although another step has failed and is not
/// wanted any more.
#[test]
fn a_failed_revocation_is_not_forgotten_with_other_failures() {
    let plan = plan();
    let state = failed(&plan, &replaced(DAY), RotationStep::Mint, "", NOW);
    let state = failed(&plan, &state, RotationStep::Revoke, "r-1", NOW);
    let (state, act) = settled(&plan, &state, &seen(NOW, None));
    assert_eq!(act, RotationAction::Wait(Some(RETRY)));
    let failure = (state.failures, state.retry_after, state.last_result.as_deref());
    assert_eq!(failure, (0, None, Some("Failed Revoke")));
}

/// Two revocations fail, and one of them succeeds later. Ready still reports the other one. A
/// deletion that begins then waits for it.
#[test]
fn a_revocation_that_succeeds_hides_no_other_that_failed() {
    let (plan, mut state) = (plan(), replaced(DAY));
    state.previous.push(RetiredCredential {
        name: "r-3".into(),
        after: Some(DAY),
        ..RetiredCredential::default()
    });
    // The revocation of `r-1` fails twice, so its pause is longer than that of `r-3`.
    for name in ["r-3", "r-1", "r-1"] {
        state = failed(&plan, &state, RotationStep::Revoke, name, NOW);
    }
    let existing = Some(vec!["r-1".to_owned(), "r-2".to_owned()]);
    let seen = ObservedState { existing, ..seen(RETRY, None) };
    let (state, act) = settled(&plan, &state, &seen);
    assert_eq!(act, RotationAction::Wait(Some(NOW + 10)));
    assert_eq!(state.previous.iter().map(|old| old.name.as_str()).collect::<Vec<_>>(), ["r-1"]);
    let (wants, facts) = (api::Target::default(), ReadyFacts::default());
    let ready = ReadyState::of(&plan, &state, &seen, &wants, facts);
    let said = ready.map(|ready| (ready.reason, ready.message)).unwrap_or_default();
    assert_eq!(said.0, "RevokeFailed");
    assert!(said.1.ends_with(": r-1"), "{}", said.1);
    assert_eq!(why_deletion_waits(&state, None), Some("Failed Revoke"));
}

/// The name of the new credential has a serial of its own. The replacement stays due nevertheless.
#[test]
fn a_due_replacement_that_failed_is_tried_again() {
    for number in 0..100 {
        let plan = RotationPlan { prefix: format!("r{number}"), ..plan() };
        let now = due(&plan, &published()).unwrap().at;
        let RotationAction::Write(StateChange::Named, named) =
            decide(&plan, &published(), &seen(now, None))
        else {
            panic!("{number}: no new credential")
        };
        let state = failed(&plan, &named, RotationStep::Mint, "", now);
        let (state, act) = settled(&plan, &state, &seen(now, None));
        assert_eq!((state.failures, act), (1, RotationAction::Wait(Some(now + 5))));
    }
}
