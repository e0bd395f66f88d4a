//! Tests of the children that must exist, and of the messages about them.

use super::super::rivals;
use super::*;

const URL: &str = "https://rancher.example.com";

fn all() -> TokenRotation {
    serde_json::from_value(json!({
        "metadata": {"name": "rancher", "namespace": "ns", "uid": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {
            "source": {"rancherToken": {}}, "target": {"allCloudCredentials": {}},
            "rancher": {"minter": {"secretName": "rancher"}},
            "overlapSeconds": 60, "onDelete": "Revoke",
        },
    }))
    .unwrap()
}

fn listed(all: &[(&str, &str)]) -> Vec<ListedCredential> {
    let one = |(name, owner): &(&str, &str)| ListedCredential {
        name: (*name).to_owned(),
        owner: (*owner).to_owned(),
        ..ListedCredential::default()
    };
    all.iter().map(one).collect()
}

fn observe(
    parent: &TokenRotation,
    listed: &[ListedCredential],
    others: &[&TokenRotation],
) -> ChildRotations {
    children(
        parent,
        &ObservedRancher { url: URL, user: "u-1", listed, key_expires: Some(true), others },
    )
}

fn names(all: &[TokenRotation]) -> Vec<&str> {
    all.iter().filter_map(|one| one.metadata.name.as_deref()).collect()
}

/// Children in `children.missing`, as the API server stores them: with a creation time and a UID.
fn born(children: &ChildRotations) -> Vec<TokenRotation> {
    let made = |(at, child): (usize, &TokenRotation)| {
        let mut child = child.clone();
        child.metadata.uid = Some(format!("child-{at}"));
        child.metadata.creation_timestamp = all().metadata.creation_timestamp;
        child
    };
    children.missing.iter().enumerate().map(made).collect()
}

/// A TokenRotation that was made by hand for a credential of the same Rancher.
fn by_hand(target: &Value) -> TokenRotation {
    serde_json::from_value(json!({
        "metadata": {"name": "prod", "namespace": "ns", "uid": "9",
            "creationTimestamp": "2026-06-01T00:00:00Z"},
        "spec": {"source": {"rancherToken": {}}, "target": target,
            "rancher": {"url": URL, "minter": {"secretName": "rancher"}}},
    }))
    .unwrap()
}

fn with_status(mut child: TokenRotation, ready: &str, reason: &str) -> TokenRotation {
    let condition = json!({"type": "Ready", "status": ready, "reason": reason, "message": "why"});
    child.status = Some(serde_json::from_value(json!({"conditions": [condition]})).unwrap());
    child
}

#[test]
fn each_credential_of_the_keys_user_has_one_and_the_key() {
    let parent = all();
    let creds = listed(&[("cc-b", "u-1"), ("cc-a", "u-1"), ("cc-x", "u-2")]);
    let found = observe(&parent, &creds, &[&parent]);
    assert_eq!(names(&found.missing), ["rancher-api-key", "rancher-cc-a", "rancher-cc-b"]);
    assert!(found.changed.is_empty() && found.superfluous.is_empty());
    let (name, why) = &found.apart[0];
    assert!(found.apart.len() == 1 && name == "cc-x", "{:?}", found.apart);
    assert!(why.contains("user \"u-2\", and the API key to the user \"u-1\""), "{why}");

    let child = &found.missing[1];
    assert!(is_child(child, &parent) && rivals::made_by(child).is_some());
    assert_eq!(child.metadata.namespace.as_deref(), Some("ns"));
    assert_eq!(child.metadata.labels.as_ref().unwrap()[LABEL_ROTATION], "1");
    let spec = json!({
        "source": {"rancherToken": {}}, "target": {"cloudCredential": {"name": "cc-a"}},
        "rancher": {"url": URL, "minter": {"secretName": "rancher", "key": "token"}},
        "overlapSeconds": 60, "onDelete": "Revoke",
    });
    assert_eq!(serde_json::to_value(&child.spec).unwrap(), spec);
    let key = serde_json::to_value(&found.missing[0].spec).unwrap();
    assert_eq!(key["target"], json!({"secret": {"name": "rancher", "key": "token"}}));
    assert_eq!(key.get("onDelete"), None, "the API key is not revoked with its parent");

    // If all children exist, no child is created, changed or deleted.
    let there = born(&found);
    let others: Vec<&TokenRotation> = there.iter().chain([&parent]).collect();
    let again = observe(&parent, &creds, &others);
    assert!(again.missing.is_empty() && again.changed.is_empty() && again.superfluous.is_empty());
    assert_eq!(names(&again.wanted), names(&found.wanted));
    // If `key_expires` is `None` (not known), the child for the API key is neither created nor
    // deleted.
    let unknown = |others: &[&TokenRotation]| {
        let seen =
            ObservedRancher { url: URL, user: "u-1", listed: &creds, key_expires: None, others };
        super::children(&parent, &seen)
    };
    assert_eq!((unknown(&others).superfluous, unknown(&[]).missing.len()), (Vec::new(), 2));
    // An API key that does not expire needs no child. The existing child for the API key must be
    // deleted.
    let seen = ObservedRancher {
        url: URL,
        user: "u-1",
        listed: &creds,
        key_expires: Some(false),
        others: &others,
    };
    let without = super::children(&parent, &seen);
    assert_eq!(without.superfluous.len(), 1);
    assert_eq!(without.superfluous[0].name, "rancher-api-key");
    assert_eq!(without.superfluous[0].unlisted, None);
}

#[test]
fn children_follow_their_parent() {
    let mut parent = all();
    let creds = listed(&[("cc-a", "u-1")]);
    let mut there = born(&observe(&parent, &creds, &[]));
    for child in &mut there {
        child.metadata.resource_version = Some("7".to_owned());
    }
    // A child of the same name in another namespace has the new spec already.
    let mut stranger = there[0].clone();
    stranger.metadata.namespace = Some("other".to_owned());
    stranger.spec.overlap_seconds = Some(120);
    let others: Vec<&TokenRotation> = [&stranger].into_iter().chain(&there).collect();
    parent.spec.overlap_seconds = Some(120);
    let found = observe(&parent, &creds, &others);
    let patch = json!({"metadata": {"resourceVersion": "7"}, "spec": {"overlapSeconds": 120}});
    let change = |name: &str| ChildChange { name: name.to_owned(), patch: patch.clone() };
    assert_eq!(found.changed, [change("rancher-api-key"), change("rancher-cc-a")]);
    // Rancher's list lacks the cloud credential `cc-a`. The child for `cc-a` is deleted only after
    // a read of `cc-a` by name. `unlisted` holds this name.
    let found = observe(&parent, &[], &others);
    let gone: Vec<_> = found.superfluous.iter().map(|one| one.unlisted.as_deref()).collect();
    assert_eq!(gone, [Some("cc-a")]);
    // A child with a deletion timestamp is neither deleted a second time nor created.
    let mut going = there.clone();
    for child in &mut going {
        child.metadata.deletion_timestamp = child.metadata.creation_timestamp.clone();
    }
    let others: Vec<&TokenRotation> = going.iter().collect();
    let found = observe(&parent, &creds, &others);
    assert!(found.missing.is_empty() && found.superfluous.is_empty());
}

#[test]
fn what_is_made_by_hand_goes_first() {
    let parent = all();
    let creds = listed(&[("cc-a", "u-1")]);
    let there = born(&observe(&parent, &creds, &[]));
    let credential = by_hand(&json!({"cloudCredential": {"name": "cc-a"}}));
    let found = observe(&parent, &creds, &[&credential]);
    assert_eq!(names(&found.missing), ["rancher-api-key"]);
    assert_eq!(found.apart, [("cc-a".to_owned(), "TokenRotation ns/prod replaces it".to_owned())]);
    // If a TokenRotation was made by hand for the same credential, an existing child must be
    // deleted.
    let others: Vec<&TokenRotation> = there.iter().chain([&credential]).collect();
    let found = observe(&parent, &creds, &others);
    assert_eq!(found.superfluous.len(), 1);
    assert_eq!(
        (found.superfluous[0].name.as_str(), None),
        ("rancher-cc-a", found.superfluous[0].unlisted.as_ref())
    );
    let key = by_hand(&json!({"secret": {"name": "rancher", "key": "token"}}));
    assert_eq!(names(&observe(&parent, &creds, &[&key]).missing), ["rancher-cc-a"]);

    // A second TokenRotation for all cloud credentials gets no children, because children of the
    // first one already replace these credentials.
    let mut second = parent.clone();
    second.metadata.name = Some("second".to_owned());
    second.metadata.uid = Some("2".to_owned());
    let others: Vec<&TokenRotation> = there.iter().collect();
    let found = observe(&second, &creds, &others);
    assert!(found.wanted.is_empty() && found.superfluous.is_empty(), "{found:?}");
    assert_eq!(found.apart[0].1, "TokenRotation ns/rancher-cc-a replaces it");
}

#[test]
fn what_is_replaced_and_what_is_not_is_said() {
    let parent = all();
    let creds = listed(&[("cc-a", "u-1"), ("cc-b", "u-1"), ("cc-x", "u-2")]);
    let found = observe(&parent, &creds, &[]);
    let there = born(&found);
    let none = BTreeMap::new();
    let (whole, said) = summary(&found, &[], &none);
    assert!(!whole && said.starts_with("0 of 2 cloud credentials are replaced"), "{said}");
    assert!(said.contains("cc-a: not reconciled yet"), "{said}");
    let ready: Vec<TokenRotation> =
        there.iter().map(|one| with_status(one.clone(), "True", "Current")).collect();
    let ready: Vec<&TokenRotation> = ready.iter().collect();
    let (whole, said) = summary(&found, &ready, &none);
    assert!(whole, "{said}");
    assert!(said.starts_with("2 of 2 cloud credentials and the API key are replaced;"), "{said}");
    assert!(said.contains("only watched: cc-x (it belongs to the user"), "{said}");
    let failing = with_status(there[2].clone(), "False", "VerifyFailed");
    let (whole, said) = summary(&found, &[ready[0], ready[1], &failing], &none);
    assert!(!whole && said.contains("not replaced: cc-b: VerifyFailed: why"), "{said}");
    let way = BTreeMap::from([("rancher-cc-a".to_owned(), "no right".to_owned())]);
    let (whole, said) = summary(&found, &ready, &way);
    assert!(!whole && said.contains("cc-a: no right"), "{said}");

    // The message has a maximum length, even for 1,000 credentials.
    let many: Vec<ListedCredential> = (0..500)
        .flat_map(|n| listed(&[(&format!("cc-{n}"), "u-1"), (&format!("x-{n}"), "u-2")]))
        .collect();
    let (_, said) = summary(&observe(&parent, &many, &[]), &[], &none);
    assert!(said.len() < 1100 && said.contains("493 others"), "{said}");
}

#[test]
fn a_credential_with_the_name_of_the_keys_child_is_named_as_left_out() {
    let found = observe(&all(), &listed(&[("api-key", "u-1"), ("cc-a", "u-1")]), &[]);
    assert_eq!(names(&found.wanted), ["rancher-api-key", "rancher-cc-a"]);
    assert!(found.wanted[0].spec.target.secret.is_some(), "the key's");
    assert_eq!(found.apart.len(), 1, "{:?}", found.apart);
    assert!(found.apart[0].1.contains("the name of the API key's"), "{:?}", found.apart);
}

#[test]
fn a_long_name_is_cut() {
    let mut parent = all();
    parent.metadata.name = Some(format!("{}.{}", "a".repeat(179), "b".repeat(60)));
    let found = observe(&parent, &listed(&[("cc-a", "u-1")]), &[]);
    assert_eq!(names(&found.wanted)[1], format!("{}-cc-a", "a".repeat(179)));
}
