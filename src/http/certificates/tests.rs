//! Tests that new certificates are valid, and that invalid content of the Secret is recognised.

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use crate::domain::admission::certificates::{CertificateStep, SERVING_LIFE, plan};

const NOW: Duration = Duration::from_hours(500_000);

fn names() -> BTreeSet<String> {
    ["svc.ns.svc", "127.0.0.1", "::1"].map(str::to_owned).into()
}

fn material() -> CertificateMaterial {
    CertificateMaterial::start(NOW, &names(), "").unwrap()
}

#[test]
fn what_is_made_is_good_and_reads_back_the_same() {
    let made = material();
    let read = CertificateMaterial::read(&made.data()).unwrap();
    assert_eq!(made.data(), read.data());
    let facts = read.facts(None);
    assert_eq!(facts.ca.not_after, NOW + AUTHORITY_LIFE);
    let serving = facts.serving.clone().unwrap();
    assert_eq!((serving.not_after, serving.fits), (NOW + SERVING_LIFE, true));
    assert_eq!(serving.names, names());
    assert!(read.identity().is_some());
    let names = names();
    let at = crate::domain::admission::certificates::StepInput {
        now: NOW,
        early: Duration::ZERO,
        names: &names,
        trusted_for: None,
    };
    assert!(matches!(plan(Some(&facts), at), CertificateStep::Wait(_)));
}

#[test]
fn a_change_of_authority_goes_through_the_bundle() {
    let begun = material().with_next_authority(NOW).unwrap();
    let next = begun.next().unwrap();
    let old = begun.identity().unwrap().authority;
    assert!(next.is_in(begun.bundle().as_bytes()) && old.is_in(begun.bundle().as_bytes()));
    let switched =
        CertificateMaterial::read(&begun.data()).unwrap().switched(NOW, &names()).unwrap();
    assert!(switched.identity().unwrap().authority == next);
    assert!(old.is_in(switched.bundle().as_bytes()));
    assert!(switched.facts(Some(&old)).knows_ours);
    let forgot = switched.forgetting(NOW + AUTHORITY_LIFE);
    assert!(!forgot.facts(Some(&old)).knows_ours);
    assert!(forgot.remembering(&old).facts(Some(&old)).knows_ours);
}

#[test]
fn any_stored_content_is_judged() {
    let good = material();
    let spoiled = |change: &dyn Fn(&mut Data)| {
        let mut data = good.data();
        change(&mut data);
        CertificateMaterial::read(&data)
    };
    for (what, change) in [
        ("no authority", &(|data: &mut Data| drop(data.remove("ca.crt"))) as &dyn Fn(&mut Data)),
        ("not PEM", &|data| drop(data.insert("ca.crt".into(), b"x".to_vec()))),
        ("not a certificate", &|data| {
            let text = "-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----\n";
            drop(data.insert("ca.crt".into(), text.into()));
        }),
    ] {
        let error = spoiled(change).unwrap_err().to_string();
        assert!(error.starts_with("ca.crt: "), "{what}: {error}");
    }
    let other = material().data();
    let without_key = spoiled(&|data| drop(data.remove("ca.key"))).unwrap();
    assert!(!without_key.facts(None).ca.signs && without_key.identity().is_some());
    for key in ["ca.key", "tls.key", "tls.crt"] {
        let foreign = spoiled(&|data| drop(data.insert(key.into(), other[key].clone()))).unwrap();
        let facts = foreign.facts(None);
        let fits = facts.serving.as_ref().is_some_and(|serving| serving.fits);
        assert!(!facts.ca.signs || !fits, "{key}");
        if key != "ca.key" {
            assert!(foreign.identity().is_none(), "{key}");
        }
    }
    let rubbish = spoiled(&|data| {
        for key in ["tls.crt", "next-ca.crt", "previous-ca.crt"] {
            data.insert(key.into(), b"\xff rubbish".to_vec());
        }
    });
    let facts = rubbish.unwrap().facts(None);
    assert_eq!((facts.serving, facts.next, facts.previous), (None, None, Vec::new()));
}

#[test]
fn keys_are_not_printed() {
    let text = format!("{:?}", material());
    assert!(text.contains("harvester-guest-operator") && !text.contains("KEY"), "{text}");
}
