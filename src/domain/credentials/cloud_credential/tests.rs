//! Tests of refused content and of the content that is written.

use super::*;

const CONTENT: &str = "apiVersion: v1
kind: Config
clusters:
- name: \"prod\"
  cluster:
    server: \"https://rancher/k8s/clusters/c-m-x\"
- {name: rancher, cluster: {server: \"https://rancher\"}}
users:
- name: \"prod\"
  user:
    token: \"kubeconfig-u-abcde12345:one\"

contexts:
- name: \"prod\"
  context: {user: \"prod\", cluster: \"prod\"}
- name: rancher
  context: {user: prod, cluster: rancher}
current-context: \"prod\"
";

fn read(content: &str) -> Result<CloudCredential, CredentialFault> {
    let annotations = BTreeMap::from([(CREATOR.to_owned(), "u-abcde".to_owned())]);
    CloudCredential::read(&annotations, false, Some(content))
}

fn token(text: &str) -> SecretText {
    SecretText::trimmed(text.to_owned())
}

#[test]
fn what_rancher_would_not_take_is_refused_by_name() {
    let with = |from: &str, to: &str| read(&CONTENT.replace(from, to)).unwrap_err().to_string();
    let none = BTreeMap::new();
    let other = BTreeMap::from([("field.cattle.io/name".to_owned(), "prod".to_owned())]);
    let empty = BTreeMap::from([(CREATOR.to_owned(), String::new())]);
    for annotations in [&none, &other, &empty] {
        let why = CloudCredential::read(annotations, false, Some(CONTENT)).unwrap_err().to_string();
        assert!(why.contains("field.cattle.io/creatorId"), "{why}");
    }
    let good = BTreeMap::from([(CREATOR.to_owned(), "u".to_owned())]);
    let why = CloudCredential::read(&good, true, Some(CONTENT)).unwrap_err().to_string();
    assert!(why.contains("deleted"), "{why}");
    let why = CloudCredential::read(&good, false, None).unwrap_err().to_string();
    assert!(why.contains("not a credential for Harvester"), "{why}");
    for (from, to, said) in [
        ("    token: \"kubeconfig-u-abcde12345:one\"", "    exec: {command: rancher}", "exec"),
        ("current-context: \"prod\"", "", "current context"),
        ("current-context: \"prod\"", "current-context: other", "current context"),
        ("server: \"https://rancher/k8s/clusters/c-m-x\"", "server: null", "no server"),
        ("kind: Config", "kind: [", "not YAML"),
        ("users:", "people:", "no users"),
        (
            "server: \"https://rancher/k8s/clusters/c-m-x\"",
            "server: https://rancher/x\n    insecure-skip-tls-verify: true",
            "insecure-skip-tls-verify",
        ),
    ] {
        let why = with(from, to);
        assert!(why.contains(said) && !why.contains("one"), "{said}: {why}");
    }
}

#[test]
fn a_token_is_exchanged_beside_the_old_one_or_without_it() {
    let was = read(CONTENT).unwrap();
    assert_eq!(was.reach.server, "https://rancher/k8s/clusters/c-m-x");
    assert_eq!(was.token.as_ref().unwrap().reveal(), "kubeconfig-u-abcde12345:one");
    assert!(was.kept_token().is_none() && was.other_tokens().is_empty());
    assert!(was.without_kept().unwrap().is_none());

    let both = read(&was.with_token(&token("token-bbbbb:two"), true, None).unwrap()).unwrap();
    assert_eq!(both.token.as_ref().unwrap().reveal(), "token-bbbbb:two");
    assert_eq!(both.kept_token().unwrap().reveal(), "kubeconfig-u-abcde12345:one");
    assert_eq!(both.other_tokens(), [token("kubeconfig-u-abcde12345:one").hash()]);
    // A second write of the same token does not change the kept token. If the content had no token
    // before, no token is kept.
    let again = read(&both.with_token(&token("token-bbbbb:two"), true, None).unwrap()).unwrap();
    assert_eq!(again.kept_token().unwrap().reveal(), "kubeconfig-u-abcde12345:one");
    let none = read(&CONTENT.replace("\"kubeconfig-u-abcde12345:one\"", "null")).unwrap();
    let given = read(&none.with_token(&token("token-bbbbb:two"), true, None).unwrap()).unwrap();
    assert!(given.other_tokens().is_empty());

    let one = read(&both.without_kept().unwrap().unwrap()).unwrap();
    assert!(one.kept_token().is_none());
    let same = read(&was.with_token(&token("token-bbbbb:two"), false, None).unwrap()).unwrap();
    for alone in [&one, &same] {
        assert_eq!(alone.token.as_ref().unwrap().reveal(), "token-bbbbb:two");
        assert!(alone.other_tokens().is_empty());
    }
}

#[test]
fn for_another_server_the_kubeconfig_is_made_anew() {
    let to = ServerEndpoint {
        server: "https://192.168.5.10:6443".to_owned(),
        authority: Some("UEVN".to_owned()),
        server_name: None,
        insecure: false,
    };
    let was = read(CONTENT).unwrap();
    let text = was.with_token(&token("a.b.c"), true, Some(&to)).unwrap();
    assert!(!text.contains("https://rancher"), "{text}");
    let both = read(&text).unwrap();
    assert_eq!(both.reach, to);
    assert_eq!(both.token.as_ref().unwrap().reveal(), "a.b.c");
    assert_eq!(both.kept_token().unwrap().reveal(), "kubeconfig-u-abcde12345:one");
    let next = read(&both.with_token(&token("d.e.f"), true, Some(&to)).unwrap()).unwrap();
    assert_eq!(next.kept_token().unwrap().reveal(), "a.b.c");
    assert_eq!(next.other_tokens().len(), 1);
    // If the written token equals the token in use, it is not kept as the old token. Otherwise the
    // file would contain one token under two names.
    let same = read(&next.with_token(&token("d.e.f"), true, Some(&to)).unwrap()).unwrap();
    assert!(same.other_tokens().is_empty());
    let alone = read(&next.without_kept().unwrap().unwrap()).unwrap();
    assert_eq!((alone.reach, alone.config.tokens().len()), (to, 1));
}

#[test]
fn white_space_around_a_content_or_a_token_is_no_other_credential() {
    let hash = |content: &str| read(content).unwrap().token.unwrap().hash();
    let plain = hash(CONTENT);
    assert_eq!(hash(CONTENT.trim()), plain);
    assert_eq!(hash(&format!("\n{CONTENT}\n\n")), plain);
    assert_eq!(hash(&CONTENT.replace(":one\"", ":one \"")), plain);
}
