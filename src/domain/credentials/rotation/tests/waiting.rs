//! Tests of a rotation that waits: its condition Ready, and its pause without a read of the target.

use super::super::idle::step_if_unchanged;
use super::super::ready::{ReadyFacts, ReadyReason};
use super::*;

/// Ready reports the most important obstacle, if there are several.
#[test]
fn ready_says_what_hinders_most() {
    let facts = ReadyFacts::default;
    let silent = || ReadyReason::Unreadable("silent".into());
    let unknown = || ReadyFacts { unknown: Some(("silent", silent())), ..facts() };
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
        (&usual, &published(), &holds, facts(), Some(ReadyReason::Current)),
        (&usual, &kept, &holds, facts(), Some(ReadyReason::KeptByRancher)),
        (&usual, &stuck, &holds, facts(), Some(ReadyReason::NotRevoked)),
        (&usual, &failed, &holds, facts(), None),
        (&watching, &failed, &holds, facts(), {
            let why = "there is no cloud credential for Harvester that the API key's user may see";
            Some(ReadyReason::Missing(why.into()))
        }),
        (&paused, &failed, &holds, facts(), Some(ReadyReason::Paused)),
        (&paused, &failed, &unfit, facts(), Some(ReadyReason::Unfit("exec".into()))),
        (&paused, &failed, &unfit, unknown(), Some(silent())),
        (&paused, &failed, &unfit, second(), Some(ReadyReason::Second("first".into()))),
        (&leaving, &failed, &unfit, second(), Some(ReadyReason::Deleting(Some("silent".into())))),
        (&leaving, &failed, &holds, facts(), {
            Some(ReadyReason::Deleting(Some("Failed Mint".into())))
        }),
        (&leaving, &published(), &holds, facts(), Some(ReadyReason::Deleting(None))),
    ] {
        let seen = ObservedState { now: 2 * DAY, target: target.clone(), ..Default::default() };
        let found = ReadyReason::of(plan, state, &seen, &api::Target::default(), facts.clone());
        assert_eq!(found, ready, "{state:?} {target:?} {facts:?}");
    }
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
        let ready = ReadyReason::of(&plan, &state, &seen, &spec, ReadyFacts::default());
        let (status, reason, text) = ready.unwrap().condition(&plan, &state);
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
    let ready = Some(&ReadyReason::Current);
    rotation.status = Some(status::status(&rotation, state, &observed, ready, DAY));
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
