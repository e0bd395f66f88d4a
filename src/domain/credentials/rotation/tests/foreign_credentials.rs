//! Tests of two kinds of foreign credentials:
//!
//! * Credentials whose name looks like a name that the operator gives.
//! * Credentials in a target, if their validity and expiry are not known.

use super::*;

fn current(ours: bool, expires: Option<Seconds>) -> RotationState {
    let (name, hash) = ("r-5".to_owned(), "h5".to_owned());
    let current = CurrentEntry { name, hash, ours, issued: DAY, expires, kept_alive: false };
    RotationState { serial: 5, current: Some(current), ..RotationState::default() }
}

fn holds(held: TargetCredential) -> TargetState {
    TargetState::There {
        version: "1".into(),
        holds: Some(held),
        other_tokens: Vec::new(),
        kept: None,
    }
}

fn seen(target: TargetState, existing: &[&str]) -> ObservedState {
    let existing = existing.iter().map(|name| (*name).to_owned()).collect();
    ObservedState { now: DAY + 60, target, existing: Some(existing), ..ObservedState::default() }
}

#[test]
fn a_number_far_ahead_of_ours_is_not_ours() {
    let state = current(true, Some(31 * DAY));
    let held = || holds(TargetCredential { hash: "h5".into(), ..TargetCredential::default() });
    for (name, serial) in [
        ("r-6", Some(6)),
        ("r-1", Some(5)),
        ("r-1005", Some(1_005)),
        ("r-1006", None),
        ("r-9223372036854775807", None),
        ("r-18446744073709551616", None),
        ("r-0", None),
        ("r-06", None),
        ("r-+6", None),
        ("r--6", None),
        ("r-6-7", None),
        ("rr-6", None),
        ("r", None),
    ] {
        let found = match decide(&plan(), &state, &seen(held(), &["r-5", name])) {
            RotationAction::Write(StateChange::Found, next) => Some(next.serial),
            RotationAction::Wait(_) => None,
            act => panic!("{name}: {act:?}"),
        };
        assert_eq!(found, serial, "{name}");
    }
}

/// The CRD has room for 32 credentials that wait for revocation. A status with more is refused, and
/// then nothing is revoked.
#[test]
fn many_unrecorded_credentials_are_revoked_without_a_status_that_is_too_long() {
    let names: Vec<String> = (6..66).map(|number| format!("r-{number}")).collect();
    let mut left: Vec<&str> = std::iter::once("r-5").chain(names.iter().map(|n| &**n)).collect();
    let (mut state, mut now) = (current(true, Some(31 * DAY)), DAY + 60);
    let held = || holds(TargetCredential { hash: "h5".into(), ..TargetCredential::default() });
    while left.len() > 1 {
        match decide(&plan(), &state, &ObservedState { now, ..seen(held(), &left) }) {
            RotationAction::Write(_, next) => state = *next,
            RotationAction::Revoke(name) => left.retain(|one| *one != name),
            RotationAction::Wait(Some(until)) => now = until.max(now + 1),
            act => panic!("{act:?}"),
        }
        assert!(state.previous.len() <= MOST_PREVIOUS && now < 31 * DAY, "{now} {state:?}");
    }
    assert_eq!(left, ["r-5"]);
}

#[test]
fn a_foreign_credential_with_our_name_is_adopted_as_foreign() {
    for (name, is_ours) in [("r-7", true), ("r-9000", false)] {
        let claims =
            crate::credentials::token::TokenClaims { name: name.into(), ..Default::default() };
        let target =
            holds(TargetCredential { hash: "x".into(), claims, ..TargetCredential::default() });
        let act = decide(&plan(), &current(true, None), &seen(target, &["r-5", name]));
        let RotationAction::Write(StateChange::Adopted, next) = act else { panic!("{act:?}") };
        assert_eq!(next.current.map(|current| current.ours), Some(is_ours), "{name}");
    }
}

#[test]
fn one_of_which_nothing_is_known_is_replaced_at_once() {
    let end = Some(31 * DAY);
    for (state, is_unseen, is_replaced) in [
        (current(false, None), true, true),
        (current(false, None), false, false),
        // The state has an expiry of the foreign credential, so the credential is not replaced.
        (current(false, end), true, false),
        (current(true, None), true, false),
        (current(true, end), true, false),
    ] {
        let target =
            holds(TargetCredential { hash: "h5".into(), is_unseen, ..TargetCredential::default() });
        let act = decide(&plan(), &state, &seen(target.clone(), &["r-5"]));
        let named = matches!(act, RotationAction::Write(StateChange::Named, _));
        assert_eq!(named, is_replaced, "{state:?} {is_unseen}: {act:?}");
        // If the issuer is separate (`is_apart`), a person has put the foreign credential into the
        // target. The credential stays until its replacement is due.
        let source = plan().source.map(|source| IssuerTraits { is_apart: true, ..source });
        let apart = RotationPlan { source, ..plan() };
        let state = RotationState { last_rotation: Some(0), ..state };
        let act = decide(&apart, &state, &seen(target.clone(), &["r-5"]));
        assert!(!matches!(act, RotationAction::Write(StateChange::Named, _)), "{act:?}");
        let mut plan = plan();
        plan.schedule.paused = true;
        assert_eq!(decide(&plan, &state, &seen(target, &["r-5"])), RotationAction::Wait(None));
    }
}
