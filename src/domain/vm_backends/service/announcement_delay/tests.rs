//! Tests of the start and the end of the delay of an announcement.

use super::*;

fn stored(until: Option<&str>) -> StoredService {
    let delayed = until.map(|until| (HELD_UNTIL.to_owned(), until.to_owned()));
    let port = StoredPort { port: 443, protocol: "TCP".into(), ..StoredPort::default() };
    StoredService {
        version: "7".into(),
        annotations: delayed.into_iter().collect(),
        ports: vec![port],
        ..StoredService::default()
    }
}

fn at(text: &str) -> DateTime<FixedOffset> {
    text.parse().unwrap()
}

#[test]
fn an_announcement_is_delayed_from_when_the_status_names_the_address() {
    let now = at("2026-11-25T12:00:00Z");
    let next = |until: Option<&str>| next_step(&stored(until), "10.0.0.5", now);
    assert_eq!(next(None), ServicePlan::Keep);
    let ServicePlan::ChangeStatus(patch) = next(Some("")) else { panic!() };
    assert_eq!(patch["metadata"]["resourceVersion"], "7");
    let until = patch["metadata"]["annotations"][HELD_UNTIL].as_str().unwrap();
    assert_eq!(until, "2026-11-25T12:00:02.000Z");
    let ingress = &patch["status"]["loadBalancer"]["ingress"];
    let port = json!({"port": 443, "protocol": "TCP", "error": NOT_ANNOUNCED});
    assert_eq!(*ingress, json!([{"ip": "10.0.0.5", "ports": [port]}]));

    assert_eq!(next(Some(until)), ServicePlan::DelayAnnouncement(DELAY));
    let later = next_step(&stored(Some(until)), "10.0.0.5", at("2026-11-25T12:00:01.500Z"));
    assert_eq!(later, ServicePlan::DelayAnnouncement(TimeDelta::milliseconds(500)));
}

/// The delay ends even if the clock was set back, or if the annotation's text is not a time.
#[test]
fn nothing_delays_an_announcement_for_ever() {
    let now = at("2026-11-25T12:00:00Z");
    for until in ["2026-11-25T12:00:00Z", "2026-11-25T11:00:00Z", "2026-11-25T13:00:00Z", "soon"] {
        let ServicePlan::Change(patch) = next_step(&stored(Some(until)), "10.0.0.5", now) else {
            panic!()
        };
        let both = json!({IGNORED: null, HELD_UNTIL: null});
        let expected = json!({"metadata": {"resourceVersion": "7", "annotations": both}});
        assert_eq!(patch, expected, "{until}");
    }
    // An announcer has already written an address into the status, so the delay ends at once.
    for until in ["", "2026-11-25T12:00:01Z"] {
        let announced = StoredService { ingress: vec!["10.0.0.9".into()], ..stored(Some(until)) };
        assert!(
            matches!(next_step(&announced, "10.0.0.5", now), ServicePlan::Change(_)),
            "{until}"
        );
    }
}

#[test]
fn what_kube_vip_leases_and_what_a_user_has_it_ignore_is_not_delayed() {
    let with = |annotations: Value| json!({"metadata": {"annotations": annotations}});
    let asks = json!({ASKED_ADDRESS: "10.0.0.5"});
    let delayed = json!({ASKED_ADDRESS: "10.0.0.5", IGNORED: "true", HELD_UNTIL: ""});
    assert_eq!(delay_announcement(with(asks)), with(delayed));
    for left in
        [json!({ASKED_ADDRESS: "0.0.0.0"}), json!({ASKED_ADDRESS: "10.0.0.5", IGNORED: "true"})]
    {
        assert_eq!(
            delay_announcement(with(left.clone()))["metadata"]["annotations"][HELD_UNTIL],
            Value::Null
        );
        assert_eq!(
            delay_announcement(with(left.clone()))["metadata"]["annotations"][IGNORED],
            left[IGNORED]
        );
    }
}
