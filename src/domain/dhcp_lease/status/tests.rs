//! Conversion from a record to a status and back.

use std::time::Duration;

use chrono::{DateTime, TimeDelta};
use serde_json::json;

use super::*;
use crate::dhcp::{GrantedLease, Mac};

const fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn moment(now: u64) -> Moment {
    let wall = DateTime::parse_from_rfc3339("2026-01-01T00:00:00Z").unwrap();
    Moment { now: at(now), wall: wall + TimeDelta::seconds(now.try_into().unwrap()) }
}

fn lease(seconds: Option<u32>) -> GrantedLease {
    GrantedLease {
        address: [10, 0, 0, 9].into(),
        prefix: Some(24),
        gateway: Some([10, 0, 0, 254].into()),
        name_servers: vec![[10, 0, 0, 253].into()],
        server: [10, 0, 0, 1].into(),
        server_mac: Mac([2, 0, 0, 0, 0, 1]),
        seconds,
        obtained: at(100),
        granted: at(200),
        renew: at(260),
        rebind: seconds.map(|_| at(305)),
        expires: seconds.map(|seconds| at(200 + u64::from(seconds))),
    }
}

fn record(lease: Option<GrantedLease>, trouble: Option<ClientTrouble>) -> LeaseRecord {
    let state = if lease.is_some() { LeaseState::Bound } else { LeaseState::Lost };
    let (announced, still_announced) = (None, None);
    LeaseRecord { serial: 1, state, lease, trouble, keeps: false, announced, still_announced }
}

#[test]
fn a_lease_survives_its_record() {
    let bound = record(Some(lease(Some(120))), None);
    let status = report(&bound, moment(210), "me", &DHCPLeaseStatus::default());
    assert_eq!(status.expires_at.as_deref(), Some("2026-01-01T00:05:20.000Z"));
    assert_eq!(status.renew_at.as_deref(), Some("2026-01-01T00:04:20.000Z"));
    let held = held(&status, moment(250).wall).unwrap();
    assert_eq!((held.left, held.age, held.seconds), (at(70), at(150), Some(120)));
    assert_eq!((held.prefix, held.server_mac), (Some(24), Some(Mac([2, 0, 0, 0, 0, 1]))));
    // The first lease has expired, and the second one never expires.
    assert_eq!(super::held(&status, moment(999).wall).unwrap().left, at(0));
    let for_ever = record(Some(lease(None)), None);
    let status = report(&for_ever, moment(210), "me", &DHCPLeaseStatus::default());
    assert_eq!(super::held(&status, moment(250).wall).unwrap().seconds, None);
}

#[test]
fn a_record_without_an_address_holds_nothing() {
    let lost = record(None, Some(ClientTrouble::Expired));
    let bound = report(
        &record(Some(lease(Some(120))), None),
        moment(210),
        "me",
        &DHCPLeaseStatus::default(),
    );
    let status = report(&lost, moment(400), "me", &bound);
    assert_eq!(held(&status, moment(400).wall), None);
    let patch = status_patch(&status, &bound);
    for field in ["address", "server", "expiresAt", "gateway", "nameServers", "leaseSeconds"] {
        assert_eq!(patch[field], json!(null), "{field}");
        assert!(patch.as_object().unwrap().contains_key(field), "{field}");
    }
    let ready = &status.conditions[0];
    assert_eq!((ready.status, ready.reason.as_deref()), (ConditionStatus::False, Some("Expired")));
    assert_ne!(ready.last_transition_time, bound.conditions[0].last_transition_time);
}

#[test]
fn a_kept_address_is_ready_and_says_so() {
    let mut kept = record(Some(lease(Some(120))), Some(ClientTrouble::Kept));
    kept.keeps = true;
    let status = report(&kept, moment(400), "me", &DHCPLeaseStatus::default());
    assert_eq!(status.on_lease_loss, Some(OnLeaseLoss::Keep));
    assert_eq!(status.expires_at.as_deref(), Some("2026-01-01T00:05:20.000Z"));
    let ready = &status.conditions[0];
    assert_eq!((ready.status, ready.reason.as_deref()), (ConditionStatus::True, Some("Kept")));
    // The option `keep` was removed, and then the client was resumed.
    let lost = record(None, Some(ClientTrouble::Expired));
    let patch = status_patch(&report(&lost, moment(500), "me", &status), &status);
    assert_eq!(patch["onLeaseLoss"], json!(null));
}

#[test]
fn nonsense_in_a_record_is_nothing() {
    let mut status = report(
        &record(Some(lease(Some(120))), None),
        moment(210),
        "me",
        &DHCPLeaseStatus::default(),
    );
    status.expires_at = Some("soon".to_owned());
    assert_eq!(held(&status, moment(210).wall).unwrap().left, at(0));
    status.address = Some("10.0.0.999".to_owned());
    assert_eq!(held(&status, moment(210).wall), None);
}

#[test]
fn a_condition_keeps_its_times_while_it_stays_the_same() {
    let first = report(
        &record(None, Some(ClientTrouble::NoOffer)),
        moment(1),
        "me",
        &DHCPLeaseStatus::default(),
    );
    let same = report(&record(None, Some(ClientTrouble::NoOffer)), moment(9), "me", &first);
    assert_eq!(same.conditions, first.conditions);
    let other = report(&record(None, Some(ClientTrouble::Refused)), moment(9), "me", &first);
    assert_eq!(other.conditions[0].last_transition_time, first.conditions[0].last_transition_time);
    assert_ne!(other.conditions[0].last_update_time, first.conditions[0].last_update_time);
    let failed = link_failed("no such device", moment(9), &first);
    assert_eq!(failed.conditions[0].reason.as_deref(), Some("LinkFailed"));
}
