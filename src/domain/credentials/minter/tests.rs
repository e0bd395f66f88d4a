//! Tests of allowed and refused uses of an API key.

use super::*;

#[test]
fn a_token_of_another_user_is_given_only_if_the_spec_says_so() {
    let gift =
        TokenGrant { credential: "cc-abcde", owner: "u-owner", user: "user-admin", allowed: false };
    let why = gift.fault().unwrap();
    for part in [
        "spec.rancher.minter",
        "\"cc-abcde\"",
        "\"u-owner\"",
        "\"user-admin\"",
        "field.cattle.io/creatorId",
        "set spec.source.rancherToken.allowOtherUser to true",
    ] {
        assert!(why.contains(part), "{part}: {why}");
    }
    assert_eq!(TokenGrant { allowed: true, ..gift }.fault(), None);
    for allowed in [false, true] {
        assert_eq!(TokenGrant { user: "u-owner", allowed, ..gift }.fault(), None);
    }
    // A user whose ID is empty, or only similar to the owner's ID, is not the owner.
    for user in ["u-owner2", "U-OWNER", "u-owne", ""] {
        assert!(TokenGrant { user, ..gift }.fault().is_some(), "{user}");
    }
}

#[test]
fn a_token_is_good_for_the_cluster_to_which_its_kubeconfig_leads() {
    for (wanted, server, cluster) in [
        (None, "https://rancher.example.com/k8s/clusters/c-m-abcdefgh", Some("c-m-abcdefgh")),
        (None, "https://[2001:db8::1]:444/k8s/clusters/c-abcde/", Some("c-abcde")),
        (None, "https://rancher/k8s/clusters/local", Some("local")),
        (Some("c-m-other"), "https://rancher/k8s/clusters/c-m-abcdefgh", Some("c-m-other")),
        (Some("local"), "https://harvester:6443", Some("local")),
        (None, "https://rancher", None),
        (None, "https://rancher/", None),
        (None, "https://rancher/k8s/clusters/", None),
        (None, "https://rancher/k8s/clusters/c-1/api", None),
        (None, "https://rancher/k8s/clusters/c-1?x=y", None),
        (None, "https://rancher/x/k8s/clusters/c-1", None),
        (None, "https://rancher/k8s/clusters/../../v3", None),
        (None, "/k8s/clusters/c-1", None),
        (None, "", None),
    ] {
        let found = scope(wanted, server);
        assert_eq!(found.as_deref().ok(), cluster, "{server}");
        if let Err(why) = found {
            assert!(
                why.contains("/k8s/clusters/ID") && why.contains("rancherToken.cluster"),
                "{why}"
            );
        }
    }
}

const RANCHER: &str = "https://rancher.example.com";

fn letter<'a>(named: Option<&'a str>, wanted: Option<&'a str>) -> MinterSecret<'a> {
    MinterSecret { secret: "rancher", named, wanted, first: None }
}

#[test]
fn an_api_key_is_sent_to_the_url_that_its_secret_names() {
    for (named, url, is_sent) in [
        (Some(RANCHER), RANCHER, true),
        (Some("https://rancher.example.com/"), "https://Rancher.example.com", true),
        (Some(" https://rancher.example.com\n"), "https://rancher.example.com/", true),
        (Some(RANCHER), "https://rancher.example.com.attacker.example", false),
        (Some(RANCHER), "https://rancher.example.com:444", false),
        (Some(RANCHER), "https://attacker.example", false),
        (Some("rancher.example.com"), RANCHER, false),
        (Some(""), RANCHER, false),
        (Some(" "), "", false),
        (None, RANCHER, false),
    ] {
        let found = letter(named, Some(url)).address();
        assert_eq!(found.as_deref().ok(), is_sent.then_some(url), "{named:?} {url}");
        is_named(found.as_ref().err());
    }
    let long = "x".repeat(10_000);
    assert!(letter(Some(&long), Some("https://rancher")).address().unwrap_err().len() < 600);
}

fn is_named(why: Option<&String>) {
    for part in ["spec.rancher.minter", "\"rancher\"", "credentials.harvesterhci.io/rancher-url"] {
        assert!(why.is_none_or(|why| why.contains(part)), "{why:?}");
    }
}

/// Every case has a spec without a URL. If `first` is given, the status records this URL, and an
/// API key for another URL is refused.
#[test]
fn a_secret_may_say_alone_where_its_api_key_goes() {
    for (named, first, url) in [
        (Some(RANCHER), None, Some(RANCHER)),
        (Some("https://rancher:8443/"), None, Some("https://rancher:8443")),
        (Some("https://Rancher.example.com/"), Some(RANCHER), Some(RANCHER)),
        (Some("https://attacker.example"), Some(RANCHER), None),
        (None, Some(RANCHER), None),
        (None, None, None),
        (Some("http://rancher"), None, None),
        (Some("https://"), None, None),
        (Some("https://rancher/k8s"), None, None),
        (Some("https://user@rancher"), None, None),
        (Some("https://rancher?x"), None, None),
        (Some("https://ran cher"), None, None),
    ] {
        let found = MinterSecret { first, ..letter(named, None) }.address();
        assert_eq!(found.as_deref().ok(), url, "{named:?} {first:?}");
        is_named(found.as_ref().err());
    }
}
