//! Tests of all kinds of tokens.

use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::json;

use super::*;

fn jwt(claims: &Value) -> SecretText {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    SecretText::trimmed(format!("{}.{}.c2ln", part(&json!({"alg": "RS256"})), part(claims)))
}

#[test]
fn a_signed_token_says_when_it_ends_and_what_it_is_bound_to() {
    let bound = json!({"iat": 100, "exp": 700, "kubernetes.io": {
        "namespace": "default", "secret": {"name": "r-1a2b-7", "uid": "u"},
        "serviceaccount": {"name": "guest", "uid": "v"},
    }});
    let claims = TokenClaims { name: "r-1a2b-7".into(), issued: Some(100), expires: Some(700) };
    assert_eq!(jwt(&bound).claims(), claims);
    let unbound = json!({"iat": 1, "exp": 2, "kubernetes.io": {"serviceaccount": {"name": "sa"}}});
    assert_eq!(jwt(&unbound).claims().name, "sa");
    let stored = json!({"kubernetes.io/serviceaccount/secret.name": "guest-token"});
    assert_eq!(
        jwt(&stored).claims(),
        TokenClaims { name: "guest-token".into(), ..TokenClaims::default() }
    );
}

#[test]
fn of_a_ranchers_token_only_the_name_is_shown() {
    for (token, name) in [
        ("kubeconfig-u-hc8k5lksjd:secret", "kubeconfig-u-hc8k5lksjd"),
        ("token-abcde:secret", "token-abcde"),
        ("ext/token-abcde:secret", "ext/token-abcde"),
        ("admin:password", ""),
        ("token-ABC:secret", ""),
        ("token-without-secret", ""),
        ("", ""),
        ("a.b.c", ""),
        ("....", ""),
    ] {
        assert_eq!(
            SecretText::trimmed(token.into()).claims(),
            TokenClaims { name: name.into(), ..TokenClaims::default() }
        );
    }
}

/// An invalid name or time is not reported. Such a name may be any text of any length.
#[test]
fn what_makes_no_sense_is_left_out() {
    for name in [json!("Not A Name"), json!("x".repeat(300)), json!(7), json!("a\nb")] {
        let claims =
            json!({"iat": -1, "exp": i64::MAX, "kubernetes.io": {"secret": {"name": name}}});
        assert_eq!(jwt(&claims).claims(), TokenClaims::default());
    }
    assert_eq!(jwt(&json!([])).claims(), TokenClaims::default());
}
