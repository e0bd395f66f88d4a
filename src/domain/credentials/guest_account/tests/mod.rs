//! Tests of plans, tokens, revocations, placeholders and listings, from given objects.

mod list;

use serde_json::json;

use super::list::{GuestCredential, GuestObjects, table};
use super::*;

type Spoil = fn(&mut ExistingObjects);

const NOW: i64 = 1_800_000_000;
const DAY: i64 = 24 * 60 * 60;

fn guest() -> GuestCluster {
    GuestCluster::new("blue", "guests").unwrap()
}

fn token(name: &str, created: i64) -> TokenSecret {
    TokenSecret {
        name: name.to_owned(),
        account: ("blue".to_owned(), "u1".to_owned()),
        uid: format!("uid of {name}"),
        version: "1".to_owned(),
        created,
        ..TokenSecret::default()
    }
}

fn used(name: &str, created: i64, day: &str) -> TokenSecret {
    TokenSecret { last_used: Some(day.to_owned()), ..token(name, created) }
}

fn binding(namespace: Option<&str>, name: &str, role: &str, accounts: &[&str]) -> StoredBinding {
    let subject = |name: &&str| BindingSubject { name: (*name).to_owned(), ..guest().subject() };
    StoredBinding {
        namespace: namespace.map(str::to_owned),
        name: name.to_owned(),
        role: ("ClusterRole".to_owned(), role.to_owned()),
        subjects: accounts.iter().map(subject).collect(),
        ..StoredBinding::default()
    }
}

/// Objects in a Harvester cluster that has Harvester's roles, and no objects of the guest.
fn empty() -> ExistingObjects {
    let roles = [CLOUD_PROVIDER, CSI_DRIVER].map(|role| (role.to_owned(), json!([])));
    ExistingObjects {
        roles: roles.into(),
        shared: ["harvester-system".to_owned()].into(),
        ..ExistingObjects::default()
    }
}

/// All objects of a guest's credential.
fn whole() -> ExistingObjects {
    ExistingObjects {
        account: Some(StoredAccount {
            uid: "u1".to_owned(),
            created: NOW,
            ..StoredAccount::default()
        }),
        bindings: vec![
            binding(Some("guests"), "guests-blue", CLOUD_PROVIDER, &["blue"]),
            binding(None, "guests-blue", CSI_DRIVER, &["blue"]),
        ],
        tokens: vec![token("blue-token", NOW)],
        ..empty()
    }
}

fn names(steps: &[CreationStep]) -> Vec<String> {
    steps.iter().map(|step| step.object.to_string()).collect()
}

fn said(result: Result<Vec<CreationStep>, RefusalReasons>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn names_are_harvesters() {
    assert_eq!((guest().binding(), guest().token()), ("guests-blue".into(), "blue-token".into()));
    let (n, c) = ("n".repeat(20), "c".repeat(36));
    assert_eq!(safe_name(&[&n, &"c".repeat(42)]), format!("{n}-{}", "c".repeat(42)));
    assert_eq!(safe_name(&[&n, &"c".repeat(43)]), format!("{n}-{c}-9ba02"));
    let cut = format!("{}-{}", "c".repeat(35), "d".repeat(20));
    assert_eq!(safe_name(&[&n, &cut]), format!("{n}-{}-8996c1", "c".repeat(35)));
    for bad in ["", "B", "-a", "a-", "a_b", "a..b", "ä", "default", "a b", "a\n"] {
        assert!(GuestCluster::new(bad, "guests").is_err(), "{bad:?}");
    }
    for good in ["a", "rke2-guest-01", "harvester.cp", "0"] {
        assert!(GuestCluster::new(good, "guests").is_ok(), "{good}");
    }
    assert_eq!(GuestCluster::new("A", "B").unwrap_err().0.len(), 2);
}

#[test]
fn what_is_missing_is_made_in_order_and_what_is_there_is_left() {
    let all = plan(&guest(), CsiAccess::Harvester, "blue-token", &empty()).unwrap();
    let expected = [
        "ServiceAccount guests/blue",
        "RoleBinding guests/guests-blue",
        "ClusterRoleBinding guests-blue",
        "Secret guests/blue-token",
    ];
    assert_eq!(names(&all), expected);
    assert_eq!(plan(&guest(), CsiAccess::Harvester, "blue-token", &whole()).unwrap(), []);
    // If one object is missing, the plan creates this object alone.
    let spoils: [(Spoil, &str); 3] = [
        (|found| drop(found.bindings.remove(0)), expected[1]),
        (|found| drop(found.bindings.remove(1)), expected[2]),
        (|found| found.tokens.clear(), expected[3]),
    ];
    for (spoil, missing) in spoils {
        let mut found = whole();
        found.account.as_mut().unwrap().made_for = Some("blue".to_owned());
        spoil(&mut found);
        assert_eq!(
            names(&plan(&guest(), CsiAccess::Harvester, "blue-token", &found).unwrap()),
            [missing]
        );
    }
    let steps = plan(&guest(), CsiAccess::Narrow, "blue-token", &empty()).unwrap();
    assert_eq!(
        names(&steps),
        [
            expected[0],
            "ClusterRole harvester-guest-operator:csi-cluster",
            "ClusterRole harvester-guest-operator:csi-shared",
            expected[1],
            "RoleBinding guests/guests-blue:csi",
            expected[2],
            "RoleBinding harvester-system/guests-blue:csi",
            expected[3],
        ]
    );
    // A binding in another namespace than the account's has no owner reference. The garbage
    // collector deletes an object whose owner is in another namespace.
    let owners =
        |at: usize| steps[at].body["metadata"]["ownerReferences"].as_array().unwrap().len();
    assert_eq!((owners(4), owners(5), owners(6)), (1, 1, 0));
    let none = plan(&guest(), CsiAccess::None, "blue-token", &empty()).unwrap();
    assert_eq!(names(&none), [expected[0], expected[1], expected[3]]);
}

#[test]
fn rights_of_a_csi_driver_stay_as_they_are_unless_others_are_asked_for() {
    let of = |found: &ExistingObjects| csi(&guest(), found, None);
    for asked in [CsiAccess::Harvester, CsiAccess::Narrow, CsiAccess::None] {
        assert_eq!(csi(&guest(), &whole(), Some(asked)), asked);
    }
    assert_eq!((of(&empty()), of(&whole())), (CsiAccess::Narrow, CsiAccess::Harvester));
    let with =
        |bindings: &[StoredBinding]| ExistingObjects { bindings: bindings.to_vec(), ..whole() };
    let provider = || binding(Some("guests"), "guests-blue", CLOUD_PROVIDER, &["blue"]);
    for narrow in [
        binding(Some("guests"), "guests-blue:csi", CSI_DRIVER, &["blue"]),
        binding(None, "guests-blue", CSI_CLUSTER, &["blue"]),
        binding(Some("harvester-system"), "guests-blue:csi", CSI_SHARED, &["blue"]),
    ] {
        let both = binding(None, "guests-blue", CSI_DRIVER, &["blue"]);
        assert_eq!(of(&with(&[provider(), narrow.clone()])), CsiAccess::Narrow, "{narrow:?}");
        assert_eq!(of(&with(&[narrow, both])), CsiAccess::Harvester);
    }
    // A guest with a token was created completely. If it has no rights of a CSI driver, it gets
    // none. A guest without a token was not created completely, so it gets narrow rights.
    let mut found = with(&[provider(), binding(None, "other", CSI_DRIVER, &["red"])]);
    assert_eq!(of(&found), CsiAccess::None);
    found.tokens.clear();
    assert_eq!(of(&found), CsiAccess::Narrow);
    let stands_for = Some("blue-token-2".to_owned());
    found
        .taken
        .insert("blue-token".into(), ForeignSecret { stands_for, ..ForeignSecret::default() });
    assert_eq!(of(&found), CsiAccess::None);
}

#[test]
fn what_reaches_beyond_the_namespace_is_named() {
    let said = too_much(&guest(), &whole());
    assert!(said.len() == 1 && said[0].contains("--csi narrow"), "{said:?}");
    let mut found = whole();
    found.bindings[1].role.1 = CSI_CLUSTER.into();
    found.bindings.push(binding(None, "other", CSI_DRIVER, &["red"]));
    assert_eq!(too_much(&guest(), &found), Vec::<String>::new());
    found.bindings.push(binding(None, "blue", CLOUD_PROVIDER, &["blue"]));
    assert!(too_much(&guest(), &found).iter().any(|note| note.contains("ClusterRoleBinding blue")));
}

#[test]
fn foreign_objects_are_named() {
    let with = |change: &dyn Fn(&mut ExistingObjects)| {
        let mut found = whole();
        change(&mut found);
        said(plan(&guest(), CsiAccess::Harvester, "blue-token", &found))
    };
    let has = |said: String, words: &[&str]| {
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    };
    has(with(&|f| f.bindings.clear()), &["ServiceAccount guests/blue", ANNOTATION_GUEST]);
    has(with(&|f| f.bindings[0].role.1 = "view".into()), &["RoleBinding guests/guests-blue"]);
    has(
        with(&|f| f.bindings[0].role.0 = "Role".into()),
        &["RoleBinding guests/guests-blue", "Role "],
    );
    has(
        with(&|f| f.bindings[1].role.1 = "view".into()),
        &["ClusterRoleBinding guests-blue", "view"],
    );
    has(with(&|f| f.bindings[1].role.1 = CSI_CLUSTER.into()), &["--csi narrow"]);
    has(
        with(&|f| f.bindings[1].subjects.push(BindingSubject::default())),
        &["ClusterRoleBinding", "alone"],
    );
    has(with(&|f| f.bindings[1].subjects.clear()), &["no subject", "--csi none"]);
    has(with(&|f| f.tokens[0].account.0 = "red".into()), &["Secret guests/blue-token", "red"]);
    has(with(&|f| f.tokens[0].account.1 = "u0".into()), &["Secret guests/blue-token", "earlier"]);
    let taken = |f: &mut ExistingObjects| {
        f.tokens.clear();
        f.taken.insert("blue-token".into(), ForeignSecret::default());
    };
    has(with(&taken), &["Secret guests/blue-token", "not a token Secret"]);
    let placeholder = |f: &mut ExistingObjects| {
        taken(f);
        f.taken.get_mut("blue-token").unwrap().stands_for = Some("blue-token-2".into());
    };
    has(with(&placeholder), &["Secret guests/blue-token", "run the command again"]);
    has(with(&|f| f.roles.clear()), &[CLOUD_PROVIDER, CSI_DRIVER, "--csi"]);
    // The existing ClusterRoleBinding, as Rancher's UI makes it, gives more than narrow rights. The
    // plan accepts this binding, but refuses the ClusterRole `CSI_SHARED`, because its rules
    // differ.
    let mut found = whole();
    found.roles.insert(CSI_SHARED.into(), json!([]));
    let narrow = plan(&guest(), CsiAccess::Narrow, "blue-token", &found);
    has(said(narrow), &[CSI_SHARED, "other rules"]);
}

#[test]
fn the_newest_valid_token_is_handed_out_and_no_name_comes_back() {
    let wanted = |found: &ExistingObjects| wanted_token(&guest(), found, "STAMP", false);
    assert_eq!(wanted(&empty()), "blue-token");
    assert_eq!(wanted(&whole()), "blue-token");
    assert_eq!(wanted_token(&guest(), &whole(), "STAMP", true), "blue-token-STAMP");
    let mut found = whole();
    found.tokens.push(token("blue-token-2", NOW + 1));
    found.tokens.push(token("blue-token-1", NOW + 1));
    assert_eq!(wanted(&found), "blue-token-2");
    found.tokens[1].invalid_since = Some("2027-01-01".to_owned());
    assert_eq!(wanted(&found), "blue-token-1");
    found.tokens.iter_mut().for_each(|token| token.invalid_since = Some("2027-01-01".to_owned()));
    assert_eq!(wanted(&found), "blue-token-STAMP");
    found.tokens.clear();
    let stands_for = Some(String::new());
    found
        .taken
        .insert("blue-token".into(), ForeignSecret { stands_for, ..ForeignSecret::default() });
    assert_eq!(wanted(&found), "blue-token-STAMP");
    // A token of an earlier account with the same name (UID `u0`) is not the guest's.
    let mut found = whole();
    found.tokens[0].account.1 = "u0".to_owned();
    assert_eq!(found.valid(&guest()), Vec::<&TokenSecret>::new());
}

#[test]
fn the_first_name_is_used_only_for_a_new_account() {
    let wanted = |found: &ExistingObjects| wanted_token(&guest(), found, "STAMP", false);
    assert_eq!(wanted(&empty()), "blue-token");
    // A token Secret that was deleted by hand leaves no trace. A run that ended before it made the
    // Secret leaves the same objects.
    let mut found = whole();
    found.tokens.clear();
    assert_eq!(wanted(&found), "blue-token-STAMP");
    found.bindings.clear();
    assert_eq!(wanted(&found), "blue-token-STAMP");
    // The name of a foreign Secret is not avoided: the plan refuses it.
    for (name, uid) in [("red", "u2"), ("blue", "u0")] {
        let account = (name.to_owned(), uid.to_owned());
        found.tokens = vec![TokenSecret { account, ..token("blue-token", NOW) }];
        assert_eq!(wanted(&found), "blue-token", "{name} {uid}");
    }
    found.tokens.clear();
    found.taken.insert("blue-token".into(), ForeignSecret::default());
    assert_eq!(wanted(&found), "blue-token");
    // The placeholder of an earlier account.
    let stands_for = Some(String::new());
    found = empty();
    found
        .taken
        .insert("blue-token".into(), ForeignSecret { stands_for, ..ForeignSecret::default() });
    assert_eq!(wanted(&found), "blue-token-STAMP");
}

fn going(found: &ExistingObjects, what: &RevokeScope, kept: Option<&str>) -> Vec<String> {
    let removals = revoke(&guest(), found, what, kept).unwrap().removals;
    removals.iter().map(|removal| removal.object.to_string()).collect()
}

#[test]
fn old_tokens_go_when_the_new_one_is_in_use() {
    let mut found = whole();
    found.tokens = vec![used("blue-token", NOW, "2027-01-15"), token("blue-token-2", NOW + 1)];
    let refused = revoke(&guest(), &found, &RevokeScope::Old, None).unwrap_err().to_string();
    assert!(
        refused.contains("blue-token-2") && refused.contains("--revoke blue-token"),
        "{refused}"
    );
    assert_eq!(
        going(&found, &RevokeScope::Old, Some("blue-token-2")),
        ["Secret guests/blue-token"]
    );
    assert_eq!(going(&found, &RevokeScope::from("blue-token"), None), ["Secret guests/blue-token"]);
    found.tokens[1].last_used = Some("2027-01-15".to_owned());
    assert_eq!(going(&found, &RevokeScope::Old, None), ["Secret guests/blue-token"]);
    // If neither of the two tokens was used, the older one is revoked.
    found.tokens.iter_mut().for_each(|token| token.last_used = None);
    assert_eq!(going(&found, &RevokeScope::Old, None), ["Secret guests/blue-token"]);
    found
        .tokens
        .push(TokenSecret { account: ("red".into(), "u2".into()), ..token("red-token", NOW + 9) });
    assert_eq!(going(&found, &RevokeScope::Old, None), ["Secret guests/blue-token"]);
    let other =
        revoke(&guest(), &found, &RevokeScope::from("red-token"), None).unwrap_err().to_string();
    assert!(other.contains("--revoke \"red-token\"") && other.contains("blue-token, blue-token-2"));
}

#[test]
fn access_goes_first_and_the_last_trace_last() {
    let mut found = whole();
    found.bindings.push(binding(Some("longhorn-system"), "guests-blue:csi", CSI_SHARED, &["blue"]));
    found.bindings.push(binding(None, "blue", CLOUD_PROVIDER, &["blue"]));
    found.bindings.push(binding(None, "team", CSI_DRIVER, &["blue", "red"]));
    found.bindings.push(binding(Some("guests"), "their-own", "view", &["blue"]));
    let expected = [
        "Secret guests/blue-token",
        "ClusterRoleBinding guests-blue",
        "ClusterRoleBinding blue",
        "RoleBinding longhorn-system/guests-blue:csi",
        "ServiceAccount guests/blue",
        "RoleBinding guests/guests-blue",
    ];
    assert_eq!(going(&found, &RevokeScope::All, None), expected);
    let left = revoke(&guest(), &found, &RevokeScope::All, None).unwrap().left;
    assert!(left.len() == 1 && left[0].contains("team"), "{left:?}");
    // If a revocation ended early, the same request still finds the remaining objects.
    found.tokens.clear();
    found.bindings.retain(|b| b.namespace.as_deref() == Some("guests"));
    assert_eq!(going(&found, &RevokeScope::All, None), expected[4..]);
    found.account = None;
    assert_eq!(going(&found, &RevokeScope::All, None), expected[5..]);
    found.bindings.clear();
    found.account = Some(StoredAccount::default());
    assert!(
        revoke(&guest(), &found, &RevokeScope::All, None).is_err(),
        "an account that is not the guest's"
    );
}

#[test]
fn a_stand_in_holds_the_name_of_a_first_token_that_is_missing() {
    let of = |found: &ExistingObjects, kept: Option<&str>| {
        name_placeholder(&guest(), found, kept)
            .map(|s| (s.old.is_some(), s.copies.unwrap_or_default()))
    };
    let mut found = whole();
    assert_eq!(of(&found, Some("blue-token")), None, "the first token is there");
    assert_eq!(of(&found, Some("blue-token-2")), None, "the first token is there");
    found.tokens = vec![token("blue-token-2", NOW)];
    assert_eq!(of(&found, Some("blue-token")), None, "the first token was just made");
    assert_eq!(of(&found, Some("blue-token-2")), Some((false, "blue-token-2".into())));
    assert_eq!(of(&found, None), Some((false, String::new())));
    let mut holds = |what: Option<&str>| {
        let stands_for = what.map(str::to_owned);
        found
            .taken
            .insert("blue-token".into(), ForeignSecret { stands_for, ..ForeignSecret::default() });
        of(&found, Some("blue-token-3"))
    };
    assert_eq!(holds(Some("blue-token-3")), None);
    assert_eq!(holds(Some("blue-token-2")), Some((true, "blue-token-3".into())));
    assert_eq!(holds(None), None, "a foreign Secret");
    found.account = None;
    assert_eq!(of(&found, None), None);
}
