//! Tests of the list of credentials, and of the guests that are gone.

use api::kubevirt::{LABEL_CREATOR, LABEL_GUEST_CLUSTER, NODE_DRIVER};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::*;

fn credential(machines: Option<usize>, found: ExistingObjects) -> GuestCredential {
    GuestCredential { guest: guest(), found, machines, rotation: None }
}

#[test]
fn a_guest_is_gone_without_vms_and_without_use() {
    let gone = |machines, found: ExistingObjects, days| {
        credential(machines, found).reason_to_keep(NOW, days).is_none()
    };
    let aged = |created: i64, last_used: Option<&str>| {
        let mut found = whole();
        found.account.as_mut().unwrap().created = created;
        found.tokens[0].created = created;
        found.tokens[0].last_used = last_used.map(str::to_owned);
        found
    };
    // NOW is on 2027-01-15.
    assert!(!gone(Some(1), aged(0, None), 7) && !gone(None, aged(0, None), 7));
    assert!(
        gone(Some(0), aged(NOW - 7 * DAY, None), 7) && !gone(Some(0), aged(NOW - 6 * DAY, None), 7)
    );
    assert!(
        gone(Some(0), aged(0, Some("2027-01-08")), 7)
            && !gone(Some(0), aged(0, Some("2027-01-09")), 7)
    );
    // A day of last use that cannot be parsed is ignored. A future day counts as today.
    assert!(
        gone(Some(0), aged(0, Some("yesterday")), 7)
            && !gone(Some(0), aged(0, Some("2030-01-01")), 7)
    );
    assert!(gone(Some(0), aged(NOW, None), 0));
    assert!(
        gone(Some(0), ExistingObjects { account: None, ..aged(NOW, None) }, 7),
        "no token is valid"
    );
    // The use of tokens that a TokenRotation makes is not recorded, so the guest does not count as
    // gone.
    let mut rotated = credential(Some(0), aged(0, None));
    rotated.rotation = Some("keeper".to_owned());
    assert!(rotated.reason_to_keep(NOW, 7).is_some_and(|why| why.contains("keeper")));
    rotated.found.account = None;
    assert!(rotated.reason_to_keep(NOW, 7).is_none());
    // One new token is enough to keep the credential of an old account.
    let mut found = aged(0, None);
    found.tokens.push(token("blue-token-2", NOW));
    assert!(!gone(Some(0), found, 7));
}

#[test]
fn guests_are_known_by_their_vms() {
    let vm = |name: &str, namespace: &str, cluster: Option<&str>, by_driver: bool| {
        let cluster = cluster.map(|cluster| (LABEL_GUEST_CLUSTER.to_owned(), cluster.to_owned()));
        let creator = by_driver.then(|| (LABEL_CREATOR.to_owned(), NODE_DRIVER.to_owned()));
        ObjectMeta {
            namespace: Some(namespace.into()),
            name: Some(name.into()),
            labels: Some(cluster.into_iter().chain(creator).collect()),
            ..ObjectMeta::default()
        }
    };
    let survey = |machines: Vec<ObjectMeta>| GuestObjects {
        bindings: whole().bindings,
        machines: Some(machines),
        ..GuestObjects::default()
    };
    let rotation = |namespace: &str, account: Option<&str>| {
        let source =
            account.map(|name| json!({"serviceAccountToken": {"serviceAccountName": name}}));
        let rotation = serde_json::from_value(json!({
            "metadata": {"name": "keeper", "namespace": namespace},
            "spec": {"source": source, "target": {"secret": {"name": "s", "key": "k"}}},
        }));
        let rotations = vec![rotation.unwrap()];
        GuestObjects { rotations, ..survey(Vec::new()) }.credentials(None)[0].rotation.clone()
    };
    assert_eq!(rotation("guests", Some("blue")).as_deref(), Some("keeper"));
    assert_eq!(rotation("other", Some("blue")).or(rotation("guests", Some("red"))), None);
    let count = |machine: ObjectMeta| survey(vec![machine]).credentials(None)[0].machines;
    assert_eq!(count(vm("x", "guests", Some("blue"), false)), Some(1));
    assert_eq!(count(vm("blue-pool-1", "guests", None, true)), Some(1));
    assert_eq!(count(vm("blue-pool-1", "guests", Some("blue-2"), true)), Some(0));
    assert_eq!(count(vm("blue-pool-1", "guests", None, false)), Some(0));
    assert_eq!(count(vm("bluer", "guests", None, true)), Some(0));
    assert_eq!(count(vm("x", "other", Some("blue"), true)), Some(0));
    // An account without bindings is listed only if its annotation holds the account's own name.
    let marked = |made_for: Option<&str>| {
        let account =
            StoredAccount { made_for: made_for.map(str::to_owned), ..StoredAccount::default() };
        let accounts = vec![(("guests".to_owned(), "blue".to_owned()), account)];
        GuestObjects { accounts, ..GuestObjects::default() }.credentials(None).len()
    };
    assert_eq!((marked(Some("blue")), marked(Some("red")), marked(None)), (1, 0, 0));
    let survey = GuestObjects { machines: None, ..survey(Vec::new()) };
    assert_eq!(survey.credentials(Some("guests"))[0].machines, None);
    assert_eq!(survey.credentials(Some("other")), []);
}

#[test]
fn the_table_says_what_there_is() {
    let mut found = whole();
    found.tokens = vec![
        used("blue-token", NOW - 40 * DAY, "2027-01-14"),
        TokenSecret {
            invalid_since: Some("2027-01-01".into()),
            ..token("blue-token-1", NOW - 3 * 3600)
        },
        token("blue-token-2", NOW - 61),
    ];
    found.bindings.push(binding(None, "blue", CLOUD_PROVIDER, &["blue"]));
    let left = ExistingObjects { account: None, tokens: Vec::new(), ..whole() };
    let mut over = credential(None, left);
    over.guest.cluster = "red".to_owned();
    let text = table(&[credential(Some(2), found), over], NOW, 7);
    let lines: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split("   ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
        .collect();
    assert_eq!(lines[0], ["NAMESPACE", "CLUSTER", "TOKEN", "AGE", "LAST USED", "GUEST", "NOTES"]);
    assert_eq!(lines[1][..6], ["guests", "blue", "blue-token", "40d", "2027-01-14", "2 VMs"]);
    assert!(lines[1][6].contains("ClusterRoleBinding blue gives the guest"), "{text}");
    assert_eq!(
        lines[2],
        ["guests", "blue", "blue-token-1", "3h", "never", "2 VMs", "refused since 2027-01-01"]
    );
    assert_eq!(lines[3], ["guests", "blue", "blue-token-2", "61s", "never", "2 VMs", "newest"]);
    assert_eq!(lines[4][..6], ["guests", "red", "-", "-", "-", "unknown"]);
    assert!(lines[4][6].contains("left over"), "{text}");
}
