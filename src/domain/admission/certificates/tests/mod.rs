//! Each rule of the plan by itself; `model` tests them all together, over years.

mod model;

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;

const NOW: Duration = DAY.saturating_mul(20_000);

fn names(all: &[&str]) -> BTreeSet<String> {
    all.iter().map(|name| (*name).to_owned()).collect()
}

/// A Secret whose certificates were just made.
fn fresh() -> Stored {
    Stored {
        ca: Authority { not_after: NOW + AUTHORITY_LIFE, signs: true },
        next: None,
        serving: Some(Serving { not_after: NOW + SERVING_LIFE, names: names(&["a"]), fits: true }),
        previous: Vec::new(),
        knows_ours: true,
    }
}

fn planned(stored: &Stored, now: Duration, trusted_for: Option<Duration>) -> Step {
    let names = names(&["a"]);
    plan(Some(stored), At { now, early: Duration::ZERO, names: &names, trusted_for })
}

#[test]
fn nothing_is_replaced_before_a_third_of_its_life_is_left() {
    let due = NOW + SERVING_LIFE / 3 * 2;
    assert_eq!(planned(&fresh(), NOW, None), Step::Wait(due));
    assert_eq!(
        planned(&fresh(), due.saturating_sub(Duration::from_secs(1)), None),
        Step::Wait(due)
    );
    assert_eq!(planned(&fresh(), due, None), Step::Renew(names(&["a"])));
    let mut stored = fresh();
    stored.serving.as_mut().unwrap().not_after = NOW + AUTHORITY_LIFE;
    let due = NOW + AUTHORITY_LIFE.saturating_sub(AUTHORITY_LIFE / 3);
    assert_eq!(planned(&stored, due, None), Step::Begin);
}

#[test]
fn jitter_only_makes_it_earlier() {
    let hour = Duration::from_hours(1);
    let names = names(&["a"]);
    let due = NOW + (SERVING_LIFE / 3 * 2).saturating_sub(hour);
    let at = |now| At { now, early: hour, names: &names, trusted_for: None };
    assert_eq!(plan(Some(&fresh()), at(NOW)), Step::Wait(due));
    assert_eq!(plan(Some(&fresh()), at(due)), Step::Renew(names.clone()));
}

#[test]
fn without_anything_all_is_made() {
    let names = names(&["a"]);
    let at = At { now: NOW, early: Duration::ZERO, names: &names, trusted_for: None };
    assert_eq!(plan(None, at), Step::Start);
}

#[test]
fn a_certificate_that_does_not_serve_is_signed_again() {
    for spoil in [
        |stored: &mut Stored| stored.serving = None,
        |stored: &mut Stored| stored.serving.as_mut().unwrap().fits = false,
        |stored: &mut Stored| stored.serving.as_mut().unwrap().not_after = NOW,
    ] {
        let mut stored = fresh();
        spoil(&mut stored);
        assert_eq!(planned(&stored, NOW, None), Step::Renew(names(&["a"])), "{stored:?}");
    }
}

#[test]
fn names_of_others_are_kept_up_to_a_bound() {
    let mut stored = fresh();
    stored.serving.as_mut().unwrap().names = names(&["b"]);
    assert_eq!(planned(&stored, NOW, None), Step::Renew(names(&["a", "b"])));
    // A replica that is called by another name accepts this certificate, so the two do not
    // alternate.
    stored.serving.as_mut().unwrap().names = names(&["a", "b"]);
    assert!(matches!(planned(&stored, NOW, None), Step::Wait(_)));
    let many = (0..MOST_NAMES).map(|n| format!("n{n}")).collect();
    stored.serving.as_mut().unwrap().names = many;
    assert_eq!(planned(&stored, NOW, None), Step::Renew(names(&["a"])));
}

#[test]
fn the_next_authority_signs_when_it_has_been_trusted_for_a_while() {
    let mut stored = fresh();
    stored.next = Some(stored.ca);
    let trusted = |secs| Some(Duration::from_secs(secs));
    assert_eq!(planned(&stored, NOW, None), Step::Wait(NOW + LONGEST_SETTLING));
    assert_eq!(planned(&stored, NOW, trusted(599)), Step::Wait(NOW + Duration::from_secs(1)));
    assert_eq!(planned(&stored, NOW, trusted(600)), Step::Switch);
    // Less time left means less waiting, but never none.
    stored.ca.not_after = NOW + Duration::from_secs(100);
    assert_eq!(planned(&stored, NOW, trusted(10)), Step::Switch);
    assert!(matches!(planned(&stored, NOW, trusted(9)), Step::Wait(_)));
    stored.ca.not_after = NOW;
    assert_eq!(planned(&stored, NOW, trusted(2)), Step::Switch);
    assert!(matches!(planned(&stored, NOW, trusted(1)), Step::Wait(_)));
    assert!(matches!(planned(&stored, NOW, None), Step::Wait(_)));
}

#[test]
fn an_authority_that_cannot_sign_is_replaced() {
    for spoil in [|ca: &mut Authority| ca.signs = false, |ca: &mut Authority| ca.not_after = NOW] {
        let mut stored = fresh();
        spoil(&mut stored.ca);
        assert_eq!(planned(&stored, NOW, None), Step::Begin);
        // So is an authority that waits to sign.
        let mut stored = fresh();
        stored.next = Some(stored.ca);
        spoil(stored.next.as_mut().unwrap());
        assert_eq!(planned(&stored, NOW, Some(DAY)), Step::Begin);
    }
}

#[test]
fn a_short_lived_authority_is_not_signed_with_over_and_over() {
    let mut stored = fresh();
    stored.ca.not_after = NOW + DAY;
    stored.serving.as_mut().unwrap().not_after = NOW + DAY;
    assert_eq!(planned(&stored, NOW, None), Step::Begin);
}

#[test]
fn previous_authorities_are_kept_until_they_have_expired() {
    let mut stored = fresh();
    stored.previous = vec![NOW + DAY];
    assert_eq!(planned(&stored, NOW, None), Step::Wait(NOW + DAY));
    assert_eq!(planned(&stored, NOW + DAY, None), Step::Forget);
}

#[test]
fn what_is_served_stays_trusted_first_of_all() {
    let mut stored = fresh();
    stored.knows_ours = false;
    stored.serving = None;
    assert_eq!(planned(&stored, NOW, None), Step::Remember);
}

#[test]
fn a_stored_certificate_is_served_when_that_is_no_worse() {
    let secs = |n| Some(Duration::from_secs(n));
    assert!(adopt(false, None));
    assert!(!adopt(true, None));
    assert!(!adopt(true, secs(1)));
    assert!(adopt(true, secs(2)));
}

#[test]
fn a_replica_is_ready_when_what_it_serves_is_trusted() {
    let secs = |n| Some(Duration::from_secs(n));
    assert!(ready(false, None));
    assert!(!ready(true, None));
    assert!(!ready(true, secs(1)));
    assert!(ready(true, secs(2)));
}
