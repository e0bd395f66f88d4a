//! Tests of the order of two TokenRotations.

use super::super::children;
use super::*;
use serde_json::{Value, json};

/// TokenRotation with this name and spec. `made`: creation time in seconds since the epoch.
fn rotation(name: &str, made: i64, spec: &Value) -> TokenRotation {
    let at = chrono::DateTime::from_timestamp(made, 0).unwrap().to_rfc3339();
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name, "creationTimestamp": at},
        "spec": spec,
    }))
    .unwrap()
}

fn cloud(name: &str, made: i64, url: Option<&str>) -> TokenRotation {
    let mut rancher = json!({"minter": {"secretName": "rancher"}});
    if let Some(url) = url {
        rancher["url"] = json!(url);
    }
    let target = json!({"cloudCredential": {"name": "cc-abcde"}});
    rotation(
        name,
        made,
        &json!({"source": {"rancherToken": {}}, "target": target, "rancher": rancher}),
    )
}

fn child(name: &str, made: i64) -> TokenRotation {
    let mut child = cloud(name, made, Some("https://a"));
    let owner = json!({"apiVersion": API_VERSION, "kind": KIND, "name": "all", "uid": "all",
        "controller": true});
    child.metadata.owner_references = Some(vec![serde_json::from_value(owner).unwrap()]);
    child
}

fn first(one: &TokenRotation, other: &TokenRotation) -> (bool, bool) {
    (first_rival(one, [one, other]).is_some(), first_rival(other, [one, other]).is_some())
}

#[test]
fn of_two_exactly_one_goes_first() {
    let (young, old) = (cloud("a", 20, Some("https://a")), cloud("b", 10, Some("https://A/")));
    assert_eq!(first(&young, &old), (true, false));
    let twin = cloud("z", 10, Some("https://a"));
    assert_eq!(first(&old, &twin), (false, true), "of the same age by name");
    assert_eq!(first(&young, &child("c", 1)), (false, true), "by hand before made for all");
    assert_eq!(first(&child("c", 1), &child("d", 2)), (false, true));
    assert_eq!(first_rival(&old, [&old]), None, "itself");
    let said = children::second_message(first_rival(&young, [&young, &old, &twin]).unwrap());
    assert!(said.contains("ns/b") && said.contains("the older one"), "{said}");
}

/// A tenant may make TokenRotations in one namespace. With them, the tenant must not be able to
/// stop the renewal of credentials in other namespaces.
#[test]
fn in_another_namespace_only_one_that_has_seen_the_credential_goes_first() {
    let made = child("all-cc", 1);
    let mut other = cloud("a", 2, Some("https://a"));
    other.metadata.namespace = Some("team".to_owned());
    assert_eq!(first(&made, &other), (false, false), "it may have no right to the credential");
    let seen =
        json!({"current": {"name": "token-1", "hash": "x", "issuedAt": "2026-01-01T00:00:00Z"}});
    other.status = Some(serde_json::from_value(seen).unwrap());
    assert_eq!(first(&made, &other), (true, false));
}

#[test]
fn what_does_nothing_goes_before_none() {
    let (young, old) = (cloud("a", 20, Some("https://a")), cloud("b", 10, Some("https://a")));
    let mut watches = old.clone();
    watches.spec.source = None;
    assert_eq!(first(&young, &watches), (false, false));
    let mut goes = old.clone();
    goes.metadata.deletion_timestamp = old.metadata.creation_timestamp.clone();
    assert_eq!(first_rival(&young, [&goes]), None);
}

#[test]
fn a_credential_is_known_by_its_rancher_and_its_name() {
    let here = cloud("a", 20, Some("https://a"));
    let mut other = cloud("b", 10, Some("https://b"));
    assert!(!is_same(&here, &other), "another Rancher");
    other = cloud("b", 10, None);
    assert!(is_same(&here, &other), "the same API key");
    other.metadata.namespace = Some("elsewhere".to_owned());
    assert!(!is_same(&here, &other), "another API key");
    let seen = json!({"rancherUrl": "https://a"});
    other.status = Some(serde_json::from_value(seen).unwrap());
    assert!(is_same(&here, &other) && rancher_url(&other) == Some("https://a"), "by what was seen");
    other.spec.target.cloud_credential.as_mut().unwrap().name = "cc-other".to_owned();
    assert!(!is_same(&here, &other));

    let secret = |name: &str, target: &Value| {
        rotation(name, 1, &json!({"source": {"rancherToken": {}}, "target": {"secret": target}}))
    };
    let token = secret("a", &json!({"name": "s", "key": "k"}));
    assert!(is_same(&token, &secret("b", &json!({"name": "s", "key": "k"}))));
    for other in [
        json!({"name": "s", "key": "l"}),
        json!({"name": "t", "key": "k"}),
        json!({"name": "s", "key": "k", "kubeconfigUser": "u"}),
    ] {
        assert!(!is_same(&token, &secret("b", &other)));
    }
    assert!(!is_same(&token, &here));
}
