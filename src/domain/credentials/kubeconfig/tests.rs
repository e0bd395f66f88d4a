//! Tests of kubeconfigs as Rancher, kubectl and people write them.

use proptest::prelude::*;

use super::*;

const PLAIN: &str = r#"
apiVersion: v1
kind: Config
clusters:
- name: "harvester"
  cluster:
    server: "https://10.0.0.1:6443"
    certificate-authority-data: "QUJD"
- name: other
  cluster: {server: "https://10.0.0.2:6443", tls-server-name: api.example}
users:
- name: "guest"
  user:
    token: "old"
- name: other
  user: {token: theirs}
contexts:
- name: first
  context: {user: guest, cluster: other}
- name: "second"
  context: {user: "guest", cluster: "harvester", namespace: "default"}
current-context: second
preferences: {colors: true}
extensions: [{name: x, extension: {yes: "no", number: "0123", date: "2026-01-01"}}]
"#;

fn parsed(text: &str) -> Kubeconfig {
    Kubeconfig::parse(text).unwrap()
}

fn token(text: &str) -> SecretText {
    SecretText::trimmed(text.to_owned())
}

fn tokens(config: &Kubeconfig) -> Vec<(String, String)> {
    let plain = |(user, token): (String, SecretText)| (user, token.reveal().to_owned());
    config.tokens().into_iter().map(plain).collect()
}

fn pair(user: &str, token: &str) -> (String, String) {
    (user.to_owned(), token.to_owned())
}

#[test]
fn one_users_token_is_replaced_and_nothing_else() {
    let before = parsed(PLAIN);
    let after = parsed(&before.with_token("guest", &token("new"), None).unwrap());
    assert_eq!(tokens(&after), [pair("guest", "new"), pair("other", "theirs")]);
    let mut expected = before.0.clone();
    expected["users"][0]["user"]["token"] = json!("new");
    assert_eq!(after.0, expected);
}

#[test]
fn the_old_token_stays_in_an_entry_of_its_own_until_it_is_taken_out() {
    let both =
        parsed(&parsed(PLAIN).with_token("guest", &token("new"), Some(&token("old"))).unwrap());
    let previous = "guest-previous";
    assert_eq!(
        tokens(&both),
        [pair("guest", "new"), pair("other", "theirs"), pair(previous, "old")]
    );
    // A second write of the same token changes nothing. With a third token, the second token is
    // kept in place of the first one.
    let again = parsed(&both.with_token("guest", &token("new"), None).unwrap());
    assert_eq!(again.0, both.0);
    let third = parsed(&both.with_token("guest", &token("newer"), Some(&token("new"))).unwrap());
    assert_eq!(tokens(&third)[2], pair(previous, "new"));
    let one = parsed(&both.without_kept("guest").unwrap().unwrap());
    assert_eq!(tokens(&one), [pair("guest", "new"), pair("other", "theirs")]);
    assert_eq!(one.without_kept("guest").unwrap(), None);
}

#[test]
fn a_user_who_authenticates_otherwise_is_refused_by_name() {
    for method in OTHER_AUTH_FIELDS {
        let text = format!("users: [{{name: guest, user: {{{method}: x, token: secret}}}}]");
        let config = parsed(&text);
        for said in [
            config.token_of("guest").unwrap_err(),
            config.with_token("guest", &token("new"), None).unwrap_err(),
            config.reach("guest").unwrap_err(),
        ] {
            let said = said.to_string();
            assert!(said.contains("\"guest\"") && said.contains(method), "{said}");
            assert!(!said.contains("secret"));
        }
    }
    for (text, said) in [
        ("users: [{name: other, user: {}}]", "no user \"guest\""),
        ("users: [{name: guest, user: {}}, {name: guest, user: {}}]", "two users"),
    ] {
        assert!(parsed(text).token_of("guest").unwrap_err().to_string().contains(said));
    }
}

#[test]
fn what_is_no_kubeconfig_is_not_repeated() {
    for text in ["", "secret", "{", "users: []", "users: secret", "a: [b", "\u{0}"] {
        let said = Kubeconfig::parse(text).map(|_| ()).unwrap_err().to_string();
        assert!(!said.contains("secret"), "{said}");
    }
}

#[test]
fn a_user_without_a_token_may_be_given_one() {
    for user in ["{}", "{token: ''}", "{token: null}", "null"] {
        let config = parsed(&format!("users: [{{name: guest, user: {user}}}]"));
        assert!(config.token_of("guest").unwrap().is_none(), "{user}");
        assert!(config.tokens().is_empty());
        let given = parsed(&config.with_token("guest", &token("new"), None).unwrap());
        assert_eq!(tokens(&given), [pair("guest", "new")]);
    }
}

#[test]
fn the_way_is_that_of_the_current_context_if_it_is_the_users() {
    let reach = parsed(PLAIN).reach("guest").unwrap();
    assert_eq!(reach.server, "https://10.0.0.1:6443");
    assert_eq!(reach.authority.as_deref(), Some("QUJD"));
    assert!(!reach.insecure);
    let other = parsed(&PLAIN.replace("current-context: second", "current-context: else"));
    assert_eq!(other.reach("guest").unwrap().server_name.as_deref(), Some("api.example"));
    let said = parsed(PLAIN).reach("other").unwrap_err().to_string();
    assert!(said.contains("no context"), "{said}");
    for field in ["proxy-url", "certificate-authority"] {
        let text = PLAIN.replace("server: \"https://10.0.0.1:6443\"", &format!("{field}: x"));
        assert!(parsed(&text).reach("guest").unwrap_err().to_string().contains(field));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// A text that YAML could read as another type, such as `yes`, is written and parsed as text.
    #[test]
    fn whatever_is_in_it_reads_back_the_same(
        name in "[ -~]{1,12}|yes|no|on|null|~|0x1f|1e3|0o17|2026-01-01|true|- a|a: b|#c",
        more in "\\PC{0,40}",
    ) {
        let config = json!({
            "users": [{"name": name, "user": {"token": "old"}}],
            "clusters": [{"name": more, "cluster": {"server": name}}],
            "x": {name.clone(): more},
        });
        let config = Kubeconfig(config);
        if let Ok(text) = config.with_token(&name, &token("new"), Some(&token("old"))) {
            let again = parsed(&text);
            prop_assert_eq!(&again.0["x"], &config.0["x"]);
            prop_assert_eq!(&again.0["clusters"], &config.0["clusters"]);
            let given = again.token_of(&name).unwrap();
            prop_assert_eq!(given.unwrap().hash(), token("new").hash());
        }
    }
}

#[test]
fn a_token_is_not_sent_to_unverified_servers_or_in_clear() {
    let reach = |server: &str, insecure| ServerEndpoint {
        server: server.to_owned(),
        authority: None,
        server_name: None,
        insecure,
    };
    for good in ["https://a", "HTTPS://a"] {
        assert_eq!(reach(good, false).check(), Ok(()), "{good}");
    }
    for bad in ["http://a", "a", "", "https:/a", "\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}"] {
        let why = reach(bad, false).check().unwrap_err().to_string();
        assert!(why.contains("https://"), "{bad}");
    }
    let why = reach("https://a", true).check().unwrap_err().to_string();
    assert!(why.contains("insecure-skip-tls-verify"));
}
