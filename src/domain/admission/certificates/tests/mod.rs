//! Tests of each rule of the plan by itself. `model` tests all rules together, over years.

mod model;

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;

const NOW: Duration = DAY.saturating_mul(20_000);

fn names(all: &[&str]) -> BTreeSet<String> {
    all.iter().map(|name| (*name).to_owned()).collect()
}

/// A Secret whose certificates were just made.
fn fresh() -> CertificateSecret {
    CertificateSecret {
        ca: StoredAuthority { not_after: NOW + AUTHORITY_LIFE, signs: true },
        next: None,
        serving: Some(StoredCertificate {
            not_after: NOW + SERVING_LIFE,
            names: names(&["a"]),
            fits: true,
        }),
        previous: Vec::new(),
        knows_ours: true,
    }
}

fn planned(
    stored: &CertificateSecret,
    now: Duration,
    trusted_for: Option<Duration>,
) -> CertificateStep {
    let names = names(&["a"]);
    plan(Some(stored), StepInput { now, early: Duration::ZERO, names: &names, trusted_for })
}

#[test]
fn nothing_is_replaced_before_a_third_of_its_life_is_left() {
    let due = NOW + SERVING_LIFE / 3 * 2;
    assert_eq!(planned(&fresh(), NOW, None), CertificateStep::Wait(due));
    assert_eq!(
        planned(&fresh(), due.saturating_sub(Duration::from_secs(1)), None),
        CertificateStep::Wait(due)
    );
    assert_eq!(planned(&fresh(), due, None), CertificateStep::Renew(names(&["a"])));
    let mut stored = fresh();
    stored.serving.as_mut().unwrap().not_after = NOW + AUTHORITY_LIFE;
    let due = NOW + AUTHORITY_LIFE.saturating_sub(AUTHORITY_LIFE / 3);
    assert_eq!(planned(&stored, due, None), CertificateStep::Begin);
}

#[test]
fn jitter_only_makes_it_earlier() {
    let hour = Duration::from_hours(1);
    let names = names(&["a"]);
    let due = NOW + (SERVING_LIFE / 3 * 2).saturating_sub(hour);
    let at = |now| StepInput { now, early: hour, names: &names, trusted_for: None };
    assert_eq!(plan(Some(&fresh()), at(NOW)), CertificateStep::Wait(due));
    assert_eq!(plan(Some(&fresh()), at(due)), CertificateStep::Renew(names.clone()));
}

#[test]
fn without_anything_all_is_made() {
    let names = names(&["a"]);
    let at = StepInput { now: NOW, early: Duration::ZERO, names: &names, trusted_for: None };
    assert_eq!(plan(None, at), CertificateStep::Start);
}

#[test]
fn a_certificate_that_does_not_serve_is_signed_again() {
    for spoil in [
        |stored: &mut CertificateSecret| stored.serving = None,
        |stored: &mut CertificateSecret| stored.serving.as_mut().unwrap().fits = false,
        |stored: &mut CertificateSecret| stored.serving.as_mut().unwrap().not_after = NOW,
    ] {
        let mut stored = fresh();
        spoil(&mut stored);
        assert_eq!(
            planned(&stored, NOW, None),
            CertificateStep::Renew(names(&["a"])),
            "{stored:?}"
        );
    }
}

#[test]
fn names_of_others_are_kept_up_to_a_bound() {
    let mut stored = fresh();
    stored.serving.as_mut().unwrap().names = names(&["b"]);
    assert_eq!(planned(&stored, NOW, None), CertificateStep::Renew(names(&["a", "b"])));
    // Each of the two replicas accepts a certificate that has its own name and the name of the
    // other replica. So the replicas do not replace the certificate in turn.
    stored.serving.as_mut().unwrap().names = names(&["a", "b"]);
    assert!(matches!(planned(&stored, NOW, None), CertificateStep::Wait(_)));
    let many = (0..MOST_NAMES).map(|n| format!("n{n}")).collect();
    stored.serving.as_mut().unwrap().names = many;
    assert_eq!(planned(&stored, NOW, None), CertificateStep::Renew(names(&["a"])));
}

#[test]
fn the_next_authority_signs_when_it_has_been_trusted_for_a_while() {
    let mut stored = fresh();
    stored.next = Some(stored.ca);
    let trusted = |secs| Some(Duration::from_secs(secs));
    assert_eq!(planned(&stored, NOW, None), CertificateStep::Wait(NOW + LONGEST_SETTLING));
    assert_eq!(
        planned(&stored, NOW, trusted(599)),
        CertificateStep::Wait(NOW + Duration::from_secs(1))
    );
    assert_eq!(planned(&stored, NOW, trusted(600)), CertificateStep::Switch);
    // The wait before the switch is shorter when the present authority expires soon. The wait is
    // never zero.
    stored.ca.not_after = NOW + Duration::from_secs(100);
    assert_eq!(planned(&stored, NOW, trusted(10)), CertificateStep::Switch);
    assert!(matches!(planned(&stored, NOW, trusted(9)), CertificateStep::Wait(_)));
    stored.ca.not_after = NOW;
    assert_eq!(planned(&stored, NOW, trusted(2)), CertificateStep::Switch);
    assert!(matches!(planned(&stored, NOW, trusted(1)), CertificateStep::Wait(_)));
    assert!(matches!(planned(&stored, NOW, None), CertificateStep::Wait(_)));
}

#[test]
fn an_authority_that_cannot_sign_is_replaced() {
    for spoil in
        [|ca: &mut StoredAuthority| ca.signs = false, |ca: &mut StoredAuthority| ca.not_after = NOW]
    {
        let mut stored = fresh();
        spoil(&mut stored.ca);
        assert_eq!(planned(&stored, NOW, None), CertificateStep::Begin);
        // A next authority that cannot sign is replaced.
        let mut stored = fresh();
        stored.next = Some(stored.ca);
        spoil(stored.next.as_mut().unwrap());
        assert_eq!(planned(&stored, NOW, Some(DAY)), CertificateStep::Begin);
    }
}

#[test]
fn a_short_lived_authority_is_not_signed_with_over_and_over() {
    let mut stored = fresh();
    stored.ca.not_after = NOW + DAY;
    stored.serving.as_mut().unwrap().not_after = NOW + DAY;
    assert_eq!(planned(&stored, NOW, None), CertificateStep::Begin);
}

#[test]
fn previous_authorities_are_kept_until_they_have_expired() {
    let mut stored = fresh();
    stored.previous = vec![NOW + DAY];
    assert_eq!(planned(&stored, NOW, None), CertificateStep::Wait(NOW + DAY));
    assert_eq!(planned(&stored, NOW + DAY, None), CertificateStep::Forget);
}

#[test]
fn what_is_served_stays_trusted_first_of_all() {
    let mut stored = fresh();
    stored.knows_ours = false;
    stored.serving = None;
    assert_eq!(planned(&stored, NOW, None), CertificateStep::Remember);
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
