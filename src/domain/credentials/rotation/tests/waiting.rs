//! Tests of a rotation that waits: its condition Ready, and its pause without a read of the target.

use super::super::idle::step_if_unchanged;
use super::super::ready::{ReadyFacts, ReadyState, UNREADABLE, UnknownTargetReport, failure_note};
use super::*;

/// Ready reports the most important obstacle, if there are several.
#[test]
fn ready_says_what_hinders_most() {
    let facts = ReadyFacts::default;
    let silent = UnknownTargetReport { ready: UNREADABLE, why: "silent" };
    let unknown = || ReadyFacts { unknown: Some(silent), ..facts() };
    let second = || ReadyFacts { second: Some("first".into()), ..unknown() };
    let (usual, source) = (plan(), plan().source);
    let mut paused = plan();
    paused.schedule.paused = true;
    let watching = RotationPlan { source: None, ..plan() };
    let leaving = RotationPlan { deleting: Some(DAY), ..plan() };
    let failed = RotationState { last_result: Some("Failed Mint".into()), ..published() };
    let old = RetiredCredential::default();
    let stuck = RotationState { previous: vec![old; MOST_PREVIOUS], ..published() };
    let mut kept = published();
    kept.current.iter_mut().for_each(|current| current.kept_alive = true);
    let (holds, unfit) = (there(Some("h2"), None), TargetState::Unfit("exec".into()));
    assert!(source.is_some());
    for (plan, state, target, facts, ready) in [
        (&usual, &published(), &holds, facts(), Some(("Current", ""))),
        (&usual, &kept, &holds, facts(), Some(("KeptByRancher", ""))),
        (&usual, &stuck, &holds, facts(), Some(("NotRevoked", ""))),
        (&usual, &failed, &holds, facts(), None),
        (&watching, &failed, &holds, facts(), {
            let why = "there is no cloud credential for Harvester that the API key's user may see";
            Some(("TargetMissing", why))
        }),
        (&paused, &failed, &holds, facts(), Some(("Paused", ""))),
        (&paused, &failed, &unfit, facts(), Some(("TargetUnfit", "exec"))),
        (&paused, &failed, &unfit, unknown(), Some((UNREADABLE, "silent"))),
        (&paused, &failed, &unfit, second(), Some(("SecondRotation", "first"))),
        (&leaving, &failed, &unfit, second(), Some(("Deleting", "first: silent"))),
        (&leaving, &failed, &holds, facts(), Some(("Deleting", "first: Failed Mint"))),
        (&leaving, &published(), &holds, facts(), Some(("Deleting", "are revoked first"))),
    ] {
        let seen = ObservedState { now: 2 * DAY, target: target.clone(), ..Default::default() };
        let found = ReadyState::of(plan, state, &seen, &api::Target::default(), facts.clone());
        let (reason, why) = ready.unzip();
        let said = found.as_ref().map(|found| found.reason.as_str());
        assert_eq!(said, reason, "{state:?} {target:?} {facts:?}");
        // The deadline of a deletion follows the reason why it waits.
        let message = found.map(|found| found.message).unwrap_or_default();
        let message = message.split("; the deletion").next().unwrap_or_default();
        assert!(message.ends_with(why.unwrap_or_default()), "{message}");
    }
}

#[test]
fn the_event_about_a_failed_removal_says_what_was_to_be_removed() {
    assert_eq!(failure_note("r-3", "500"), "credential r-3: 500");
    assert_eq!(failure_note("", "500"), "removal of the old credential from the target: 500");
}

/// A new leader waits while a former leader may still have the pending credential in memory. If the
/// credential in the target ends meanwhile, Ready reports this.
#[test]
fn a_rotation_is_not_ready_while_the_credential_in_its_target_does_not_work() {
    let (plan, end) = (plan(), 31 * DAY);
    let pending = Some(PendingEntry { name: "r-3".into(), since: end - 5, ..Default::default() });
    let state = RotationState { pending, ..published() };
    let seen = |now, existing: &[&str]| ObservedState {
        now,
        target: there(Some("h2"), None),
        existing: Some(existing.iter().map(|name| (*name).to_owned()).collect()),
        ..Default::default()
    };
    let mut dead = seen(end - 1, &["r-2"]);
    if let TargetState::There { holds: Some(held), .. } = &mut dead.target {
        held.is_dead = true;
    }
    let empty = |target| ObservedState { target, ..seen(end - 1, &["r-2"]) };
    for (seen, said) in [
        (seen(end - 1, &["r-2"]), None),
        (seen(end, &["r-2"]), Some("expired at 1970-02-01T00:00:00Z, and the next one is not")),
        (seen(end - 1, &[]), Some("does not work any more")),
        (dead, Some("does not work any more")),
        (empty(TargetState::Absent), Some("holds no credential")),
        (empty(there(None, None)), Some("holds no credential")),
    ] {
        let until = RotationAction::Wait(Some(end - 5 + HELD_ELSEWHERE));
        assert_eq!(decide(&plan, &state, &seen), until, "{seen:?}");
        let spec = api::Target::default();
        let ready = ReadyState::of(&plan, &state, &seen, &spec, ReadyFacts::default());
        let ReadyState { status, reason, message: text } = ready.unwrap();
        let expected = match said {
            None => (api::ConditionStatus::True, "Current"),
            Some(_) => (api::ConditionStatus::False, "NotPublished"),
        };
        assert_eq!((status, reason.as_str()), expected, "{seen:?}");
        assert!(text.contains(said.unwrap_or_default()), "{text}");
    }
}

/// TokenRotation for an account's token in a Secret, with `state` in its status.
fn waiting(state: &RotationState) -> TokenRotation {
    let mut rotation: TokenRotation = serde_json::from_value(serde_json::json!({
        "metadata": {
            "name": "r", "namespace": "n", "uid": "u", "generation": 1,
            "finalizers": [api::ROTATION_FINALIZER],
        },
        "spec": {
            "source": {"serviceAccountToken": {"serviceAccountName": "a"}},
            "target": {"secret": {"name": "s", "key": "k"}},
        },
    }))
    .unwrap();
    let observed = status::StatusObservations::default();
    let ready = ReadyState::current();
    rotation.status = Some(status::status(&rotation, state, &observed, Some(&ready), DAY));
    rotation
}

#[test]
fn a_rotation_rests_by_its_record_alone_until_something_is_due_or_unknown() {
    let rotation = waiting(&published());
    let Some(RotationAction::Wait(Some(due))) = step_if_unchanged(&rotation, None, 2 * DAY) else {
        panic!("{:?}", step_if_unchanged(&rotation, None, 2 * DAY))
    };
    assert!((15 * DAY..22 * DAY).contains(&due), "{due}");
    assert!(matches!(
        step_if_unchanged(&rotation, None, due),
        Some(RotationAction::Write(StateChange::Named, _))
    ));
    let changed = |change: fn(&mut TokenRotation)| {
        let mut rotation = rotation.clone();
        change(&mut rotation);
        step_if_unchanged(&rotation, None, 2 * DAY)
    };
    for (what, change) in [
        ("another spec", (|r| r.metadata.generation = Some(2)) as fn(&mut TokenRotation)),
        ("no finalizer", |r| r.metadata.finalizers = None),
        ("a deletion", |r| {
            let now = serde_json::from_value(serde_json::json!("1970-01-03T00:00:00Z"));
            r.metadata.deletion_timestamp = now.unwrap();
        }),
        ("a Rancher", |r| r.spec.rancher = Some(api::RancherServer::default())),
        ("no status", |r| r.status = None),
        ("no credential", |r| r.status.iter_mut().for_each(|status| status.current = None)),
        ("a target that was unreadable", |r| {
            for condition in r.status.iter_mut().flat_map(|status| &mut status.conditions) {
                condition.reason = Some("TargetUnreadable".to_owned());
            }
        }),
    ] {
        assert_eq!(changed(change), None, "{what}");
    }
}

/// A process that has the pending credential in memory repeats a failed publication at
/// `retry_after`, the recorded time.
#[test]
fn a_rotation_rests_only_until_its_next_try() {
    let made = MintedCredential { hash: "h3".into(), issued: DAY, expires: Some(31 * DAY) };
    let name = "r-3".to_owned();
    let publishing = PendingPublication { made: made.clone(), replaces: "1".into() };
    let pending = PendingEntry {
        name: name.clone(),
        since: DAY,
        publishing: Some(publishing),
        ..PendingEntry::default()
    };
    let state = RotationState { pending: Some(pending), retry_after: Some(DAY + 5), ..published() };
    let unpublished = Some(UnpublishedCredential { name, made: Some(made), verified: true });
    let rotation = waiting(&state);
    let until = |unpublished: &Option<UnpublishedCredential>, now| match step_if_unchanged(
        &rotation,
        unpublished.clone(),
        now,
    ) {
        Some(RotationAction::Wait(until)) => until,
        _ => Some(now),
    };
    assert_eq!(until(&unpublished, DAY + 1), Some(DAY + 5));
    assert_eq!(until(&unpublished, DAY + 5), Some(DAY + 5));
    // A process without the credential waits longer, because another process may have it in memory.
    assert_eq!(until(&None, DAY + 5), Some(DAY + HELD_ELSEWHERE));
}
