//! Tests that a token that Rancher keeps alive is not replaced, and that any other token is
//! replaced in time.

use super::super::{
    CurrentEntry, ObservedState, RotationAction, RotationPlan, RotationRequests, RotationStep,
    StateChange, TargetState, decide, due, expiry, failed, status,
};
use super::*;

const DAY: Seconds = 86_400;
const NOW: Seconds = 1_000 * DAY;

fn token(text: &str) -> SecretText {
    SecretText::trimmed(text.to_owned())
}

fn claims(expires: Option<Seconds>) -> TokenClaims {
    TokenClaims { name: String::new(), issued: Some(NOW), expires }
}

#[test]
fn what_rancher_keeps_alive_is_its_own_kind_without_an_end_in_a_cloud_credential() {
    for (text, end, in_cloud_credential, kept) in [
        ("kubeconfig-u-abcdefghij:s", None, true, true),
        ("kubeconfig-user-abcdefghij:s", None, true, true),
        ("kubeconfig-u-abcdefghij:s", Some(NOW), true, false),
        ("kubeconfig-u-abcdefghij:s", None, false, false),
        ("kubeconfig-abcde:s", None, true, false),
        ("token-abcde:s", None, true, false),
        ("ext/token-abcde:s", None, true, false),
    ] {
        let report = IssuerReport::of(&token(text), &claims(end), in_cloud_credential).unwrap();
        assert_eq!((report.kept_alive, report.expires), (kept, end), "{text} {end:?}");
        assert_eq!(Some(report.id.as_str()), text.strip_suffix(":s"));
    }
}

/// `IssuerReport::of` returns `None` if Rancher's answer lacks the token, for example because the
/// token is another user's. Such a token may end at any time.
#[test]
fn silence_is_no_word_of_a_token_without_expiry() {
    let unknown = TokenClaims { issued: None, ..claims(None) };
    assert_eq!(IssuerReport::of(&token("kubeconfig-u-abcdefghij:s"), &unknown, true), None);
    // {"exp":2000000000,"iat":1000000000}: the token states its own times, so it is not Rancher's.
    let signed = "eyJhbGciOiJSUzI1NiJ9.eyJleHAiOjIwMDAwMDAwMDAsImlhdCI6MTAwMDAwMDAwMH0.c2ln";
    let claims = token(signed).claims();
    assert!(claims.issued.is_some());
    assert_eq!(IssuerReport::of(&token(signed), &claims, true), None);
}

fn plan() -> RotationPlan {
    let rotation = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "r", "namespace": "n", "uid": "u"},
        "spec": {
            "source": {"rancherToken": {}}, "target": {"cloudCredential": {"name": "cc"}},
            "rancher": {"url": "https://r", "minter": {"secretName": "s", "key": "k"}},
        },
    }))
    .unwrap();
    status::plan(&rotation)
}

fn seen(now: Seconds, expires: Option<Seconds>, kept_alive: bool) -> ObservedState {
    let id = "kubeconfig-u-abcdefghij".to_owned();
    let held = TargetCredential {
        hash: "ui".into(),
        claims: TokenClaims { name: id.clone(), issued: Some(NOW), expires },
        report: Some(IssuerReport { id, expires, kept_alive }),
        ..TargetCredential::default()
    };
    let target = TargetState::There {
        version: "1".into(),
        holds: Some(held),
        other_tokens: Vec::new(),
        kept: None,
    };
    ObservedState { now, target, existing: Some(Vec::new()), ..ObservedState::default() }
}

/// Applies the changes of the recorded state that follow from `seen`, an observation of the token
/// of Rancher's UI. Returns the new state and the next action.
fn after(
    plan: &RotationPlan,
    state: &RotationState,
    seen: &ObservedState,
) -> (RotationState, RotationAction) {
    let mut state = state.clone();
    loop {
        match decide(plan, &state, seen) {
            RotationAction::Write(
                StateChange::Adopted | StateChange::Retimed | StateChange::Recovered,
                next,
            ) => state = *next,
            act => return (state, act),
        }
    }
}

#[test]
fn what_rancher_keeps_alive_is_left_alone_until_it_has_an_expiry() {
    let plan = plan();
    let (state, act) = after(&plan, &RotationState::default(), &seen(NOW, None, true));
    assert!(state.is_kept_alive());
    assert_eq!((act, due(&plan, &state)), (RotationAction::Wait(None), None));
    assert_eq!(expiry::alarm(&plan, &state, None), None);
    // Ten years later, Rancher still keeps the token alive, and no replacement is due.
    let later = NOW + 3_650 * DAY;
    let (state, act) = after(&plan, &state, &seen(later, None, true));
    assert_eq!(act, RotationAction::Wait(None));
    // If Rancher gives the token an expiry, the token is replaced in time before this expiry. A
    // token that is ten years old is replaced at once.
    let (soon, end) = (NOW + 5 * DAY, NOW + 95 * DAY);
    let (ends, act) = after(&plan, &state, &seen(soon, Some(end), false));
    assert!(
        matches!(act, RotationAction::Wait(Some(at)) if at > soon && at < end - 7 * DAY),
        "{act:?}"
    );
    assert_eq!(ends.current.as_ref().and_then(|current| current.expires), Some(end));
    for (state, now, end) in
        [(&ends, end - 7 * DAY, end), (&state, later, later + 90 * DAY), (&state, later, later)]
    {
        let (_, act) = after(&plan, state, &seen(now, Some(end), false));
        assert!(matches!(act, RotationAction::Write(StateChange::Named, _)), "{act:?}");
    }
}

/// A token that the issuer reported before, and does not list now, is replaced at once. Such a
/// token was revoked by hand, or the API key now belongs to another user.
#[test]
fn what_was_seen_and_is_missing_is_replaced_at_once() {
    let plan = plan();
    let missing = || {
        let mut missing = seen(NOW + 1, None, false);
        let TargetState::There { holds: Some(held), .. } = &mut missing.target else {
            unreachable!()
        };
        *held = TargetCredential {
            hash: held.hash.clone(),
            claims: TokenClaims { name: held.claims.name.clone(), ..TokenClaims::default() },
            is_unseen: true,
            ..TargetCredential::default()
        };
        missing
    };
    for before in [seen(NOW, Some(NOW + 90 * DAY), false), seen(NOW, None, true)] {
        let (state, _) = after(&plan, &RotationState::default(), &before);
        // The state `missing()` has `held.is_missing` false: the issuer's list could not be read.
        // The token is not replaced.
        let (_, act) = after(&plan, &state, &missing());
        assert!(matches!(act, RotationAction::Wait(_)), "{act:?}");
        let mut gone = missing();
        let TargetState::There { holds: Some(held), .. } = &mut gone.target else { unreachable!() };
        held.is_missing = true;
        let (state, act) = after(&plan, &state, &gone);
        assert!(matches!(act, RotationAction::Write(StateChange::Named, _)), "{act:?}");
        let current = state.current.unwrap();
        assert_eq!((current.expires, current.kept_alive), (Some(NOW + 1), false));
    }
}

/// Rancher removes the expiry of a token within a tenth of a second after a cloud credential names
/// the token. The operator may observe the token before Rancher removes the expiry.
#[test]
fn what_rancher_begins_to_keep_alive_is_left_alone_from_then_on() {
    let plan = plan();
    let soon = NOW + 30 * DAY;
    let (state, act) = after(&plan, &RotationState::default(), &seen(NOW, Some(soon), false));
    assert!(matches!(act, RotationAction::Wait(Some(at)) if at < soon), "{act:?}");
    let (state, act) = after(&plan, &state, &seen(NOW + 1, None, true));
    assert_eq!((state.is_kept_alive(), act), (true, RotationAction::Wait(None)));
    let (_, act) = after(&plan, &state, &seen(soon, None, true));
    assert_eq!(act, RotationAction::Wait(None));
}

/// A pending replacement is abandoned if Rancher begins to keep the token in use alive. A failed
/// step of this replacement is not reported any more.
#[test]
fn what_was_due_before_rancher_kept_it_alive_is_given_up() {
    let plan = plan();
    let late = NOW + 25 * DAY;
    let before = seen(late, Some(NOW + 30 * DAY), false);
    let (state, act) = after(&plan, &RotationState::default(), &before);
    let named = match act {
        RotationAction::Write(StateChange::Named, next) => *next,
        act => panic!("{act:?}"),
    };
    let (kept, act) = after(&plan, &named, &seen(late, None, true));
    assert!(
        kept.is_kept_alive() && matches!(act, RotationAction::Write(StateChange::Abandoned, _)),
        "{act:?}"
    );
    let failed = failed(&plan, &state, RotationStep::Mint, "", late);
    assert!(failed.has_failed());
    let (kept, act) = after(&plan, &failed, &seen(late, None, true));
    assert_eq!(
        (kept.has_failed(), kept.retry_after, act),
        (false, None, RotationAction::Wait(None))
    );
}

#[test]
fn what_rancher_keeps_alive_is_replaced_when_that_is_asked_for() {
    let (state, _) = after(&plan(), &RotationState::default(), &seen(NOW, None, true));
    for requests in [
        RotationRequests { rotate: Some("1".into()), leaked: None },
        RotationRequests { rotate: None, leaked: Some("1".into()) },
    ] {
        let plan = RotationPlan { requests, ..plan() };
        let (_, act) = after(&plan, &state, &seen(NOW, None, true));
        assert!(matches!(act, RotationAction::Write(StateChange::Named, _)), "{act:?}");
    }
}

/// Rancher reports a later end of a revoked token at each read. Only the first end is recorded.
#[test]
fn a_dead_one_is_recorded_once() {
    let plan = RotationPlan { source: None, ..plan() };
    let (state, _) = after(&plan, &RotationState::default(), &seen(NOW, None, true));
    let (dead, _) = after(&plan, &state, &seen(NOW + 60, Some(NOW + 60), false));
    let end = dead.current.as_ref().and_then(|current| current.expires);
    assert_eq!(end, Some(NOW + 60));
    let (again, _) = after(&plan, &dead, &seen(NOW + 360, Some(NOW + 360), false));
    assert_eq!(again, dead);
    let current = CurrentEntry { expires: Some(NOW + 90), ..dead.current.clone().unwrap() };
    let alive = RotationState { current: Some(current), ..dead.clone() };
    assert_eq!(after(&plan, &dead, &seen(NOW + 61, Some(NOW + 90), false)).0, alive);
}
