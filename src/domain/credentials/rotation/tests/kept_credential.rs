//! Tests of the credential that the target keeps beside the one in use.

use super::*;

/// A leaked credential has no overlap, so the publication of the next one removes it from the
/// target.
#[test]
fn the_target_keeps_no_leaked_credential() {
    for (leaked, keep) in [(None, true), (Some("1".to_owned()), false)] {
        let made = MintedCredential { hash: "h3".into(), issued: DAY, expires: Some(31 * DAY) };
        let publishing = PendingPublication { made: made.clone(), replaces: "1".into() };
        let pending = PendingEntry {
            name: "r-3".into(),
            since: DAY,
            requests: RotationRequests { rotate: None, leaked },
            publishing: Some(publishing),
        };
        let state = RotationState { serial: 3, pending: Some(pending), ..published() };
        let unpublished =
            UnpublishedCredential { name: "r-3".into(), made: Some(made), verified: true };
        let seen = ObservedState {
            now: DAY + 1,
            target: there(Some("h2"), None),
            unpublished: Some(unpublished),
            ..ObservedState::default()
        };
        assert_eq!(decide(&plan(), &state, &seen), RotationAction::Publish { keep });
    }
}

/// The annotation that reports a leak stays on the TokenRotation after the report was carried out.
/// The overlap of a foreign credential that is replaced later does not depend on that report.
#[test]
fn a_foreign_credential_has_its_overlap_although_a_leak_was_reported_before() {
    let leaked = RotationRequests { rotate: None, leaked: Some("1".into()) };
    let plan = RotationPlan { requests: leaked.clone(), ..plan() };
    let state = RotationState { done: leaked, last_rotation: Some(DAY), ..published() };
    let target = there(Some("h2"), Some("x"));
    let seen = ObservedState { now: DAY + 10, target, ..ObservedState::default() };
    let end = DAY + plan.overlap + 1;
    assert_eq!(decide(&plan, &state, &seen), RotationAction::Wait(Some(end)));
    let later = ObservedState { now: end, ..seen };
    assert_eq!(decide(&plan, &state, &later), RotationAction::DropOld);
}

/// A publication succeeds after the operator has abandoned it. The operator adopts the credential,
/// and the overlap of the foreign credential that the target keeps begins then.
#[test]
fn a_foreign_credential_has_its_overlap_after_a_late_publication() {
    let late = RetiredCredential {
        name: "r-3".into(),
        hash: Some("h3".into()),
        after: Some(DAY),
        replaces: Some("0".into()),
        ..RetiredCredential::default()
    };
    let foreign = CurrentEntry { hash: "x".into(), issued: DAY, ..CurrentEntry::default() };
    let state = RotationState {
        serial: 3,
        current: Some(foreign),
        previous: vec![late],
        last_rotation: Some(0),
        ..RotationState::default()
    };
    let (plan, now) = (plan(), 3 * DAY);
    let target = there(Some("h3"), Some("x"));
    let seen = ObservedState { now, target, ..ObservedState::default() };
    let RotationAction::Write(StateChange::Adopted, state) = decide(&plan, &state, &seen) else {
        panic!("{:?}", decide(&plan, &state, &seen))
    };
    let end = now + plan.overlap + 1;
    assert_eq!(decide(&plan, &state, &seen), RotationAction::Wait(Some(end)));
    let later = ObservedState { now: end, ..seen };
    assert_eq!(decide(&plan, &state, &later), RotationAction::DropOld);
}
