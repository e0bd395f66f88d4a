//! Tests that the conversion between state and status loses nothing.

use serde_json::{Value, json};

use super::*;
use crate::credentials::rotation::RotationStep;
use crate::credentials::rotation::ready::UNREADABLE;
use api::ConditionStatus::{False, True};
use api::{TokenRotationSpec, WatchedCredential};

fn rotation(spec: Value) -> TokenRotation {
    let spec: TokenRotationSpec = serde_json::from_value(spec).unwrap();
    let mut rotation = TokenRotation::new("guest", spec);
    rotation.metadata.uid = Some("uid".into());
    rotation.metadata.generation = Some(3);
    rotation
}

fn account() -> Value {
    json!({
        "source": {"serviceAccountToken": {"serviceAccountName": "guest", "lifetimeSeconds": 600}},
        "target": {"secret": {"name": "guest", "key": "token"}},
    })
}

fn rancher(token: &Value) -> Value {
    json!({
        "source": {"rancherToken": token}, "target": {"cloudCredential": {"name": "cc-abcde"}},
        "rancher": {"url": "https://rancher", "minter": {"secretName": "rancher", "key": "token"}},
    })
}

fn full() -> RotationState {
    let made = MintedCredential { hash: "h".into(), issued: 50, expires: Some(650) };
    RotationState {
        serial: 9,
        current: Some(CurrentEntry {
            name: "a-8".into(),
            hash: "g".into(),
            ours: true,
            issued: 40,
            expires: None,
            kept_alive: true,
        }),
        pending: Some(PendingEntry {
            name: "a-9".into(),
            since: 60,
            requests: RotationRequests { rotate: Some("1".into()), leaked: None },
            publishing: Some(PendingPublication { made, replaces: String::new() }),
        }),
        previous: vec![
            RetiredCredential { name: "a-7".into(), failures: 4, ..RetiredCredential::default() },
            RetiredCredential {
                name: "a-6".into(),
                hash: Some("f".into()),
                after: Some(70),
                replaces: Some("12".into()),
                failures: 0,
            },
        ],
        restarted_for: Some("a-8".into()),
        done: RotationRequests { rotate: None, leaked: Some("2".into()) },
        failures: 3,
        retry_after: Some(80),
        last_rotation: Some(90),
        last_result: Some("Failed Verify".into()),
    }
}

#[test]
fn what_is_recorded_is_read_again() {
    for kept in [full(), RotationState::default()] {
        let written = status(
            &rotation(account()),
            &kept,
            &StatusObservations::default(),
            Some(&ReadyState::current()),
            100,
        );
        assert_eq!(state(Some(&written)), kept);
        let text = serde_json::to_string(&written).unwrap();
        assert_eq!(state(serde_json::from_str(&text).ok().as_ref()), kept);
    }
    assert_eq!(state(None), RotationState::default());
}

#[test]
fn what_is_left_out_has_a_default_and_each_rotation_names_of_its_own() {
    let mut first = rotation(account());
    let plan = super::plan(&first);
    assert_eq!(
        (plan.lifetime, plan.overlap, plan.restarts, plan.revokes),
        (600, 3_600, false, false)
    );
    assert_eq!(plan.schedule.left_percent, 33);
    assert!(plan.prefix.starts_with("guest-") && plan.prefix.len() == 14, "{}", plan.prefix);
    // If the spec sets no lifetime, `lifetime` is longer than Rancher grants. `presumed`, the
    // lifetime of a credential without a known expiry, is then the default of 30 days.
    for (given, asked, presumed) in
        [(json!({}), 31_536_000, 2_592_000), (json!({"lifetimeSeconds": 3_600}), 3_600, 3_600)]
    {
        let plan = super::plan(&rotation(rancher(&given)));
        assert_eq!((plan.lifetime, plan.presumed), (asked, presumed));
        assert_eq!(plan.overlap, 86_400, "for as long as a job that makes machines may take");
    }
    first.metadata.uid = Some("another".into());
    assert_ne!(super::plan(&first).prefix, plan.prefix, "made again under its name");
    first.metadata.name = Some("x".repeat(253));
    assert!(super::plan(&first).prefix.len() < 230, "a number must fit behind it");
    let watched = rotation(json!({"target": {"secret": {"name": "guest", "key": "token"}}}));
    assert_eq!(super::plan(&watched).source, None);
}

#[test]
fn every_target_is_named_in_one_word() {
    let named = |target| {
        let rotation = rotation(json!({"target": target}));
        status(&rotation, &RotationState::default(), &StatusObservations::default(), None, 0)
            .target
            .unwrap()
    };
    assert_eq!(named(json!({"secret": {"name": "guest", "key": "k"}})), "secret/guest");
    let credential = json!({"cloudCredential": {"name": "cc-abcde"}});
    assert_eq!(named(credential), "cloudcredential/cc-abcde");
    assert_eq!(named(json!({"allCloudCredentials": {}})), "cloudcredential/*");
}

#[test]
fn a_window_is_read_as_minutes_and_days() {
    let mut spec = account();
    spec["schedule"] =
        json!({"maintenanceWindow": {"start": "02:30", "durationMinutes": 60, "days": ["Sat"]}});
    let window = super::plan(&rotation(spec)).schedule.window.unwrap();
    assert_eq!((window.start, window.minutes), (150, 60));
    assert_eq!(window.days, [false, false, false, false, false, true, false]);
}

#[test]
fn a_near_end_is_reported_for_rotated_and_watched_credentials() {
    let says =
        |rotation: &TokenRotation, state: &RotationState, watched: &[WatchedCredential], now| {
            let watched = Some(WatchedCredentials::of(watched.to_vec()));
            let beside =
                StatusObservations { rancher_url: None, watched, ..StatusObservations::default() };
            let status = status(rotation, state, &beside, Some(&ReadyState::current()), now);
            let found = status.conditions.into_iter().find(|c| c.type_ == EXPIRING).unwrap();
            found.reason.unwrap()
        };
    let current =
        CurrentEntry { issued: 0, expires: Some(600), ours: true, ..CurrentEntry::default() };
    let state = RotationState { current: Some(current), ..RotationState::default() };
    let rotated = rotation(account());
    assert_eq!(says(&rotated, &state, &[], 449), "TimeLeft");
    assert_eq!(says(&rotated, &state, &[], 450), "Overdue");
    assert_eq!(says(&rotated, &state, &[], 600), "Expired");
    let watched = rotation(json!({"target": {"secret": {"name": "guest", "key": "token"}}}));
    let token = |end| WatchedCredential { expires_at: Some(rfc3339(end)), ..Default::default() };
    let none = RotationState::default();
    let (near, far) = (token(700_000), token(9_000_000));
    assert_eq!(says(&watched, &none, std::slice::from_ref(&far), 0), "TimeLeft");
    assert_eq!(says(&watched, &none, &[far, near], 100_000), "NotReplaced", "the first counts");
    assert_eq!(says(&watched, &none, &[], 100_000), "NoEnd");
}

/// A status shows no expiry and no next rotation for a token that Rancher keeps alive. The reason
/// of Ready names Rancher.
#[test]
fn what_rancher_keeps_alive_is_shown_as_such() {
    let current =
        CurrentEntry { name: "kubeconfig-u-a".into(), kept_alive: true, ..CurrentEntry::default() };
    let state = RotationState { current: Some(current), ..RotationState::default() };
    let (ready, beside) = (ReadyState::kept_by_rancher(), StatusObservations::default());
    let status = status(&rotation(rancher(&json!({}))), &state, &beside, Some(&ready), 50);
    assert_eq!((&status.expires_at, &status.next_rotation), (&None, &None));
    assert!(status.current.is_some_and(|current| current.kept_by_rancher));
    let [ready, expiring] = &status.conditions[..] else { panic!("{:?}", status.conditions) };
    assert_eq!((ready.status, expiring.status), (True, False));
    assert_eq!(ready.reason.as_deref(), Some("KeptByRancher"));
    assert!(ready.message.as_ref().is_some_and(|message| message.contains("does not replace it")));
    assert_eq!(expiring.reason.as_deref(), Some("NoEnd"));
}

#[test]
fn what_is_watched_and_cannot_be_read_now_stays_listed() {
    let mut rotation = rotation(json!({
        "target": {"allCloudCredentials": {}},
        "rancher": {"url": "https://rancher", "minter": {"secretName": "rancher", "key": "token"}},
    }));
    let one = |name: &str, end| WatchedCredential {
        credential: Some(name.into()),
        expires_at: Some(rfc3339(end)),
        ..WatchedCredential::default()
    };
    let rotated = WatchedCredential { rotated: true, ..one("cc-a", 100) };
    let all = (0..40).map(|n| one(&format!("cc-{n}"), 9_000_000 + n)).chain([rotated]);
    let beside = StatusObservations {
        watched: Some(WatchedCredentials::of(all.collect())),
        key: Some(ApiKey { name: "token-a".into(), ..ApiKey::default() }),
        refused: false,
        rancher_url: Some("https://a".into()),
    };
    let watched = ReadyState::new(True, "Watched", "");
    let first = status(&rotation, &RotationState::default(), &beside, Some(&watched), 50);
    assert_eq!(first.expires_at, Some(rfc3339(9_000_000)), "the other one is replaced");
    assert_eq!((first.watched.len(), first.watched_beyond), (32, Some(9)));
    assert_eq!(first.rancher_url.as_deref(), Some("https://a"));
    rotation.status = Some(first.clone());
    let blind = ReadyState::new(False, UNREADABLE, "Rancher: no answer");
    let later = status(
        &rotation,
        &RotationState::default(),
        &StatusObservations::default(),
        Some(&blind),
        9_000_001,
    );
    assert_eq!((&later.watched, later.watched_beyond), (&first.watched, Some(9)));
    assert_eq!(later.rancher_url, first.rancher_url);
    assert_eq!((&later.api_key, &later.expires_at), (&first.api_key, &first.expires_at));
    let said: Vec<_> = later.conditions.iter().filter_map(|c| c.reason.as_deref()).collect();
    assert_eq!(said, ["TargetUnreadable", "Expired", "NoEnd"]);
    let refused = StatusObservations { refused: true, ..StatusObservations::default() };
    let refused = status(&rotation, &RotationState::default(), &refused, Some(&blind), 60);
    assert_eq!(refused.conditions[2].reason.as_deref(), Some("NotAccepted"));
    let message = later.conditions[1].message.clone().unwrap_or_default();
    assert!(message.contains("cc-0 expired at") && message.contains("others"), "{message}");
}

#[test]
fn without_a_reason_the_conditions_stay() {
    let mut rotation = rotation(account());
    let failed = ReadyState::failed(RotationStep::Verify, "401".into());
    rotation.status =
        Some(status(&rotation, &full(), &StatusObservations::default(), Some(&failed), 1));
    let later = status(&rotation, &full(), &StatusObservations::default(), None, 2);
    assert_eq!(later.conditions, rotation.status.unwrap().conditions);
    assert_eq!(later.conditions[0].reason.as_deref(), Some("VerifyFailed"));
}
