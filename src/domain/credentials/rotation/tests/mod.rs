//! Tests of failures and of single decisions. The model covers the order of steps.

use api::TokenRotation;

use super::*;

mod deletion;
mod failures;
mod foreign_credentials;
mod kept_credential;
mod model;
mod waiting;

const DAY: Seconds = 86_400;

/// Plan of a rotation of a Rancher's token in a cloud credential.
fn plan() -> RotationPlan {
    let rotation: TokenRotation = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "r", "namespace": "n", "uid": "u"},
        "spec": {
            "source": {"rancherToken": {}}, "target": {"cloudCredential": {"name": "cc"}},
            "rancher": {"url": "https://r", "minter": {"secretName": "s", "key": "k"}},
        },
    }))
    .unwrap();
    RotationPlan { prefix: "r".into(), ..status::plan(&rotation) }
}

/// State of a rotation with [`plan`], after its second publication.
fn published() -> RotationState {
    let current = CurrentEntry {
        name: "r-2".into(),
        hash: "h2".into(),
        ours: true,
        issued: DAY,
        expires: Some(31 * DAY),
        ..CurrentEntry::default()
    };
    RotationState {
        serial: 2,
        current: Some(current),
        restarted_for: Some("r-2".into()),
        last_rotation: Some(0),
        ..RotationState::default()
    }
}

/// State in which the first credential is to be revoked at the time `after`.
fn replaced(after: Seconds) -> RotationState {
    let old = RetiredCredential {
        name: "r-1".into(),
        hash: Some("h1".into()),
        after: Some(after),
        ..RetiredCredential::default()
    };
    RotationState { previous: vec![old], ..published() }
}

/// Target that holds the credential with the hash `holds`, and keeps the one with the hash `kept`
/// beside it.
fn there(holds: Option<&str>, kept: Option<&str>) -> TargetState {
    let held = |hash: &str| TargetCredential { hash: hash.into(), ..TargetCredential::default() };
    TargetState::There {
        version: "1".into(),
        holds: holds.map(held),
        other_tokens: kept.iter().map(|kept| (*kept).to_owned()).collect(),
        kept: kept.map(str::to_owned),
    }
}

#[test]
fn a_revocation_that_fails_is_tried_ever_later_and_holds_nothing_else_up() {
    let plan = status::plan(&api::TokenRotation::default());
    let old = |name: &str| RetiredCredential {
        name: name.to_owned(),
        after: Some(7),
        ..RetiredCredential::default()
    };
    let mut state =
        RotationState { previous: vec![old("a"), old("b")], ..RotationState::default() };
    for pause in [5, 10, 20, 40, 80, 120, 120] {
        state = failed(&plan, &state, RotationStep::Revoke, "a", 100);
        assert_eq!(state.previous[0].after, Some(100 + pause));
    }
    assert_eq!(state.previous[1], old("b"));
    assert_eq!((state.failures, state.retry_after), (0, None));
}

/// Number of attempts of the step `fails` in each of ten minutes. Each attempt fails, and every
/// other step succeeds.
fn attempts(mut state: RotationState, target: &TargetState, fails: RotationStep) -> Vec<u32> {
    let plan = RotationPlan { restarts: true, ..plan() };
    let names = state.previous.iter().map(|old| &old.name);
    let mut existing: Vec<String> =
        names.chain(state.current.as_ref().map(|current| &current.name)).cloned().collect();
    let (mut now, mut minutes, mut unpublished) = (DAY, vec![0; 10], None::<UnpublishedCredential>);
    for _ in 0..10_000 {
        let Some(count) =
            usize::try_from((now - DAY) / 60).ok().and_then(|minute| minutes.get_mut(minute))
        else {
            return minutes;
        };
        let seen = ObservedState {
            now,
            target: target.clone(),
            existing: Some(existing.clone()),
            unpublished: unpublished.clone(),
            ..ObservedState::default()
        };
        let (step, name) = match decide(&plan, &state, &seen) {
            RotationAction::Wait(until) => {
                let next = now + READ_AGAIN_AFTER;
                now = until.filter(|at| *at > now).map_or(next, |until| until.min(next));
                continue;
            }
            RotationAction::Write(change, next) => {
                state = *next;
                if change == StateChange::Named {
                    unpublished = state.pending.as_ref().map(|pending| UnpublishedCredential {
                        name: pending.name.clone(),
                        ..UnpublishedCredential::default()
                    });
                }
                continue;
            }
            RotationAction::Mint(name) => (RotationStep::Mint, name),
            RotationAction::Verify => (RotationStep::Verify, String::new()),
            RotationAction::Publish { .. } | RotationAction::DropOld => {
                (RotationStep::Publish, String::new())
            }
            RotationAction::Restart => (RotationStep::Restart, String::new()),
            RotationAction::Revoke(name) => (RotationStep::Revoke, name),
            RotationAction::Finish => panic!("nothing is deleted"),
        };
        if step == fails {
            *count += 1;
            state = failed(&plan, &state, step, &name, now);
            continue;
        }
        match (step, &mut unpublished) {
            (RotationStep::Mint, Some(unpublished)) => {
                unpublished.made = Some(MintedCredential {
                    hash: format!("hash of {name}"),
                    issued: now,
                    expires: Some(now + 30 * DAY),
                });
                existing.push(name);
            }
            (RotationStep::Verify, Some(unpublished)) => unpublished.verified = true,
            (RotationStep::Revoke, _) => existing.retain(|one| *one != name),
            _ => panic!("{step:?} is not reached by what fails at {fails:?}"),
        }
    }
    panic!("it never rests: {minutes:?}")
}

/// A step that always fails is tried at most once a minute after the first minute. This holds for
/// every step.
#[test]
fn a_fault_that_lasts_is_met_ever_more_rarely_at_each_step() {
    let rotate = |mut state: RotationState| {
        if let Some(current) = &mut state.current {
            (current.issued, current.expires) = (DAY - 100 * DAY, Some(DAY + 3_600));
        }
        state
    };
    let new = || (RotationState::default(), there(None, None));
    for (what, (state, target), fails) in [
        ("mint", new(), RotationStep::Mint),
        ("verify", new(), RotationStep::Verify),
        ("publish", new(), RotationStep::Publish),
        (
            "restart",
            (RotationState { restarted_for: None, ..published() }, there(Some("h2"), None)),
            RotationStep::Restart,
        ),
        ("revoke", (replaced(1), there(Some("h2"), None)), RotationStep::Revoke),
        ("take out ours", (replaced(1), there(Some("h2"), Some("h1"))), RotationStep::Publish),
        ("take out another's", (published(), there(Some("h2"), Some("x"))), RotationStep::Publish),
        ("make room", (rotate(published()), there(Some("h2"), Some("x"))), RotationStep::Publish),
    ] {
        let attempts = attempts(state, &target, fails);
        assert!(attempts[0] >= 2, "{what}: {attempts:?}");
        assert!(attempts[1..].iter().all(|count| *count <= 1), "{what}: {attempts:?}");
    }
}

/// A person has put a copy of an old token under another user of the kubeconfig. The operator
/// neither removes the copy nor repeats a step.
#[test]
fn a_copy_of_an_old_token_elsewhere_in_the_target_is_left_alone() {
    let target = TargetState::There {
        version: "1".into(),
        holds: Some(TargetCredential { hash: "h2".into(), ..TargetCredential::default() }),
        other_tokens: vec!["h1".into()],
        kept: None,
    };
    assert_eq!(attempts(replaced(1), &target, RotationStep::Publish), [0; 10]);
}

/// A credential that is only watched may be a password, so no status contains its hash.
#[test]
fn what_is_only_watched_is_known_by_what_it_says_and_not_by_a_hash() {
    let plan = status::plan(&TokenRotation::default());
    assert_eq!(plan.source, None);
    let see = |hash: &str, name: &str, expires: Option<Seconds>| {
        let claims =
            crate::credentials::token::TokenClaims { name: name.into(), issued: None, expires };
        let held = TargetCredential { hash: hash.into(), claims, ..TargetCredential::default() };
        let target = TargetState::There {
            version: "1".into(),
            holds: Some(held),
            other_tokens: Vec::new(),
            kept: None,
        };
        ObservedState { now: 100, target, ..ObservedState::default() }
    };
    let first = see("secret", "token-1", Some(900));
    let RotationAction::Write(StateChange::Adopted, state) =
        decide(&plan, &RotationState::default(), &first)
    else {
        panic!("not adopted")
    };
    assert_eq!(state.current.as_ref().map(|current| current.hash.as_str()), Some(""));
    for (seen, is_new) in [
        (see("secret", "token-1", Some(900)), false),
        (see("other", "token-1", Some(950)), true),
        (see("other", "token-2", Some(900)), true),
    ] {
        let act = decide(&plan, &state, &seen);
        assert_eq!(
            matches!(act, RotationAction::Write(StateChange::Adopted, _)),
            is_new,
            "{act:?}"
        );
    }
    let observed = status::StatusObservations::default();
    let said = status::status(&TokenRotation::default(), &state, &observed, None, 100);
    let said = serde_json::to_value(&said).unwrap();
    assert_eq!(said["current"].get("hash"), None, "{said}");
}

/// The first token of an account replaces a token that Rancher keeps alive. After that publication,
/// the replacement of a token that Rancher keeps alive is not due.
#[test]
fn an_accounts_first_token_takes_the_place_of_ranchers_at_once() {
    let rotation: TokenRotation = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "r", "namespace": "n", "uid": "u"},
        "spec": {
            "source": {"serviceAccountToken": {"serviceAccountName": "a"}},
            "target": {"cloudCredential": {"name": "cc", "server": "https://here"}},
            "rancher": {"minter": {"secretName": "s", "key": "k"}},
        },
    }))
    .unwrap();
    let plan = status::plan(&rotation);
    let report = IssuerReport { id: "kubeconfig-u-1".into(), expires: None, kept_alive: true };
    let held = TargetCredential {
        hash: "theirs".into(),
        report: Some(report),
        ..TargetCredential::default()
    };
    let target = TargetState::There {
        version: "1".into(),
        holds: Some(held),
        other_tokens: Vec::new(),
        kept: None,
    };
    let theirs = CurrentEntry {
        hash: "theirs".into(),
        issued: DAY,
        kept_alive: true,
        ..CurrentEntry::default()
    };
    let seen = ObservedState {
        now: 2 * DAY,
        target,
        existing: Some(Vec::new()),
        ..ObservedState::default()
    };
    let first = RotationState { current: Some(theirs), ..RotationState::default() };
    let RotationAction::Write(StateChange::Named, named) = decide(&plan, &first, &seen) else {
        panic!("{:?}", decide(&plan, &first, &seen))
    };
    // The pending credential is not abandoned, although Rancher keeps the token in use alive.
    let name = named.pending.clone().unwrap().name;
    let unpublished =
        Some(UnpublishedCredential { name: name.clone(), ..UnpublishedCredential::default() });
    assert_eq!(
        decide(&plan, &named, &ObservedState { unpublished, ..seen.clone() }),
        RotationAction::Mint(name)
    );
    let later = RotationState { last_rotation: Some(DAY), ..first.clone() };
    assert!(matches!(decide(&plan, &later, &seen), RotationAction::Wait(_)));
    // If the source makes Rancher's tokens, a token that Rancher keeps alive is not replaced.
    let minted = plan.source.map(|source| IssuerTraits { is_apart: false, ..source });
    let minted = RotationPlan { source: minted, ..plan };
    assert!(matches!(decide(&minted, &first, &seen), RotationAction::Wait(_)));
}
