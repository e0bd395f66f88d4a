//! Tests of the reads of target Secrets.

use super::*;

fn wants(user: Option<&str>) -> SecretTarget {
    let kubeconfig_user = user.map(str::to_owned);
    SecretTarget { name: "guest".into(), key: "k".into(), kubeconfig_user }
}

fn content(value: &str) -> SecretContent {
    let value = Some(SecretText::trimmed(value.to_owned()));
    SecretContent { version: "7".into(), value, immutable: false, rancher_url: None }
}

const CONFIG: &str = "users: [{name: a, user: {token: one}}, {name: b, user: {token: two}}]
clusters: [{name: c, cluster: {server: 'https://x'}}]
contexts: [{name: d, context: {user: a, cluster: c}}]";

fn why(wants: &SecretTarget, rotated: bool, secret: Option<&SecretContent>) -> String {
    match read(wants, rotated, secret).target {
        TargetState::Unfit(why) => why,
        other => panic!("{other:?}"),
    }
}

fn hash(token: &str) -> String {
    SecretText::trimmed(token.to_owned()).hash()
}

#[test]
fn a_token_alone_is_made_where_there_is_none_and_a_kubeconfig_is_not() {
    assert_eq!(read(&wants(None), true, None).target, TargetState::Absent);
    assert!(why(&wants(Some("a")), true, None).contains("no Secret \"guest\""));
    assert!(why(&wants(None), false, None).contains("no Secret"));
    let empty = SecretContent { value: None, ..content("") };
    let TargetState::There { holds: None, version, .. } =
        read(&wants(None), true, Some(&empty)).target
    else {
        panic!()
    };
    assert_eq!(version, "7");
    assert!(
        why(&wants(Some("a")), true, Some(&empty)).contains("key \"k\": it is missing or empty")
    );
}

#[test]
fn one_users_token_counts_and_the_others_are_known() {
    let seen = read(&wants(Some("a")), true, Some(&content(CONFIG)));
    let TargetState::There { holds: Some(held), other_tokens, .. } = &seen.target else { panic!() };
    assert_eq!((held.hash.as_str(), other_tokens), (hash("one").as_str(), &vec![hash("two")]));
    assert_eq!(seen.reach.as_ref().unwrap().server, "https://x");
    let new = seen.value_with(&wants(Some("a")), &SecretText::trimmed("three".into())).unwrap();
    let again = read(&wants(Some("a")), true, Some(&content(new.reveal())));
    let TargetState::There { holds: Some(held), other_tokens, .. } = &again.target else {
        panic!()
    };
    assert_eq!((&held.hash, other_tokens), (&hash("three"), &vec![hash("two")]));
    assert!(!new.reveal().contains("one"));
}

#[test]
fn what_would_do_harm_is_refused_and_not_repeated() {
    let said = why(&wants(None), true, Some(&content(CONFIG)));
    assert!(said.contains("kubeconfigUser"), "{said}");
    let said = why(&wants(Some("a")), true, Some(&content("secret")));
    assert!(said.contains("not a kubeconfig") && !said.contains("secret"), "{said}");
    assert!(why(&wants(Some("b")), true, Some(&content(CONFIG))).contains("no context"));
    let fixed = SecretContent { immutable: true, ..content("x") };
    assert!(why(&wants(None), true, Some(&fixed)).contains("immutable"));
    let exec = "users: [{name: a, user: {exec: {command: rancher}}}]";
    assert!(why(&wants(Some("a")), true, Some(&content(exec))).contains("exec"));
}

#[test]
fn every_token_of_a_watched_target_is_listed() {
    for user in [None, Some("b")] {
        let seen = read(&wants(user), false, Some(&content(CONFIG)));
        let users: Vec<&str> = seen.watched.listed.iter().map(|w| w.user.as_str()).collect();
        assert_eq!(users, ["a", "b"]);
    }
    for (rotated, listed) in [(false, 1), (true, 0)] {
        let seen = read(&wants(None), rotated, Some(&content("alone")));
        assert_eq!(seen.watched.listed.len(), listed, "{rotated}");
    }
}

#[test]
fn other_ways_to_authenticate_are_listed_by_user() {
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, "system:admin");
    params.not_after = rcgen::date_time_ymd(2031, 5, 6);
    let pair = rcgen::KeyPair::generate().unwrap();
    let pem = params.self_signed(&pair).unwrap().pem();
    let data = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, pem);
    let config = serde_json::json!({"users": [
        {"name": "certificate", "user": {"client-certificate-data": data, "client-key-data": "x"}},
        {"name": "both", "user": {"client-certificate-data": data, "token": "one"}},
        {"name": "exec", "user": {"exec": {"command": "rancher"}}},
        {"name": "file", "user": {"tokenFile": "/a", "token": "old"}},
        {"name": "path", "user": {"client-certificate": "/a", "client-key": "/b"}},
        {"name": "basic", "user": {"username": "a", "password": "secret"}},
        {"name": "odd", "user": {"client-certificate-data": "bm90IG9uZQ=="}},
        {"name": "nothing", "user": {}},
    ]});
    let seen = read(&wants(None), false, Some(&content(&config.to_string())));
    let watched = |user: &str| -> Vec<String> {
        let of = seen.watched.listed.iter().filter(|one| one.user == user);
        of.map(|one| {
            let end = one.expires_at.as_deref().unwrap_or_default();
            format!("{}|{end}|{}", one.name, one.unknown.as_deref().unwrap_or_default())
        })
        .collect()
    };
    let end = "system:admin|2031-05-06T00:00:00Z|".to_owned();
    assert_eq!(watched("certificate"), std::slice::from_ref(&end));
    assert_eq!(watched("both"), [end, "||".into()]);
    for (user, way) in [
        ("exec", "exec"),
        ("file", "tokenFile"),
        ("path", "client-certificate:"),
        ("basic", "username"),
    ] {
        let said = watched(user);
        assert!(said.len() == 1 && said[0].contains(way), "{user}: {said:?}");
    }
    assert!(watched("odd")[0].contains("not a certificate"));
    assert!(watched("nothing").is_empty());
    assert_eq!(seen.watched.unknown_count(), 5);
    assert!(matches!(seen.target, TargetState::There { holds: Some(_), .. }), "{:?}", seen.target);
    assert!(!format!("{:?}", seen.watched).contains("secret"));
    // If the spec names a user, only the token of this user counts, and the user `exec` has none. A
    // user that the kubeconfig lacks is an error.
    let seen = read(&wants(Some("exec")), false, Some(&content(&config.to_string())));
    assert!(matches!(seen.target, TargetState::There { holds: None, .. }), "{:?}", seen.target);
    assert!(why(&wants(Some("x")), false, Some(&content(CONFIG))).contains("no user \"x\""));
}
