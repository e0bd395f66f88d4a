//! Tests of the order of watched credentials in a status, and of the text about credentials that
//! end soon.

use super::*;

fn one(credential: &str, end: Option<Seconds>) -> WatchedCredential {
    WatchedCredential {
        credential: Some(credential.into()),
        expires_at: end.map(timestamp::rfc3339),
        ..WatchedCredential::default()
    }
}

fn names(watched: &WatchedCredentials) -> Vec<&str> {
    watched.listed.iter().filter_map(|one| one.credential.as_deref()).collect()
}

#[test]
fn what_ends_soonest_without_replacement_is_listed_first() {
    let odd = WatchedCredential { unknown: Some("exec".into()), ..one("odd", None) };
    let rotated = WatchedCredential { rotated: true, ..one("rotated", Some(10)) };
    let all = vec![one("never", None), rotated, odd, one("late", Some(300)), one("soon", Some(20))];
    let watched = WatchedCredentials::of(all);
    assert_eq!(names(&watched), ["soon", "late", "odd", "rotated", "never"]);
    assert_eq!((watched.first_expiry(), watched.unknown_count(), watched.beyond), (Some(20), 1, 0));
    let only =
        WatchedCredentials::of(vec![WatchedCredential { rotated: true, ..one("a", Some(10)) }]);
    assert_eq!(only.first_expiry(), None, "it is replaced");
}

#[test]
fn of_too_many_those_that_matter_least_are_left_out() {
    let far = (0..40).map(|n| one(&format!("far-{n}"), Some(1_000 + n)));
    let all: Vec<_> = far.chain([one("soon", Some(5)), one("never", None)]).collect();
    let watched = WatchedCredentials::of(all);
    assert_eq!((watched.listed.len(), watched.beyond), (32, 10));
    assert_eq!(names(&watched)[..2], ["soon", "far-0"]);
    assert!(!names(&watched).contains(&"never"));
}

#[test]
fn those_that_expire_by_then_are_named() {
    let titled = WatchedCredential { title: Some("prod".into()), ..one("cc-a", Some(0)) };
    let user = token_entry("admin", &TokenClaims { expires: Some(1), ..TokenClaims::default() });
    let alone = token_entry("", &TokenClaims { expires: Some(2), ..TokenClaims::default() });
    let rotated = WatchedCredential { rotated: true, ..one("cc-r", Some(3)) };
    let all = vec![titled, user, alone, rotated, one("cc-x", Some(4)), one("cc-y", Some(5))];
    let watched = WatchedCredentials::of(all);
    assert_eq!(
        watched.expiring_by(1, 0),
        "cloud credential cc-a (prod) expired at 1970-01-01T00:00:00Z, the credential of user \
         \"admin\" expires at 1970-01-01T00:00:01Z"
    );
    let said = watched.expiring_by(9, 9);
    assert!(said.contains("the credential expired at") && said.ends_with("2 others"), "{said}");
    assert!(!said.contains("cc-r"), "it is replaced: {said}");
    assert_eq!(watched.expiring_by(-1, 0), "");
}

#[test]
fn listed_credentials_fit_into_a_status() {
    let long = "x".repeat(600);
    let listed = unknown_entry(&format!("a\n{long}"), &format!("{long}\n"));
    assert_eq!((listed.user.len(), listed.user.contains('\n')), (253, false));
    assert!(listed.unknown.is_some_and(|why| why.len() == 400));
}

#[test]
fn the_end_of_a_dead_one_is_set_once() {
    for (before, now, expected) in [(Some(10), 20, 10), (Some(30), 20, 20), (None, 20, 20)] {
        let mut watched = WatchedCredentials::of(vec![one("cc-a", Some(20))]);
        keep_first_expiries(&mut watched, &[one("cc-a", before), one("cc-b", Some(5))], now);
        assert_eq!(watched.first_expiry(), Some(expected));
    }
    let mut watched = WatchedCredentials::of(vec![one("cc-a", Some(20))]);
    keep_first_expiries(&mut watched, &[one("cc-a", Some(10))], 19);
    assert_eq!(watched.first_expiry(), Some(20), "it is alive");
}
