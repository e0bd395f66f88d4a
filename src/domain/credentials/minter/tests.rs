//! Uses of an API key that are refused, and those that are not.

use super::*;

#[test]
fn a_token_of_another_user_is_given_only_if_the_spec_says_so() {
    let gift =
        Gift { credential: "cc-abcde", owner: "u-owner", user: "user-admin", allowed: false };
    let why = gift.fault().unwrap();
    for part in [
        "spec.rancher.minter",
        "\"cc-abcde\"",
        "\"u-owner\"",
        "\"user-admin\"",
        "field.cattle.io/creatorId",
        "spec.source.rancherToken.allowOtherUser must be true",
    ] {
        assert!(why.contains(part), "{part}: {why}");
    }
    assert_eq!(Gift { allowed: true, ..gift }.fault(), None);
    for allowed in [false, true] {
        assert_eq!(Gift { user: "u-owner", allowed, ..gift }.fault(), None);
    }
    // A user whose id begins as the owner's does is another one, and so is one without an id.
    for user in ["u-owner2", "U-OWNER", "u-owne", ""] {
        assert!(Gift { user, ..gift }.fault().is_some(), "{user}");
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

#[test]
fn an_api_key_is_sent_to_the_url_that_its_secret_names() {
    for (named, url, is_sent) in [
        (Some("https://rancher.example.com"), "https://rancher.example.com", true),
        (Some("https://rancher.example.com/"), "https://Rancher.example.com", true),
        (Some(" https://rancher.example.com\n"), "https://rancher.example.com/", true),
        (
            Some("https://rancher.example.com"),
            "https://rancher.example.com.attacker.example",
            false,
        ),
        (Some("https://rancher.example.com"), "https://rancher.example.com:444", false),
        (Some("https://rancher.example.com"), "https://attacker.example", false),
        (Some("rancher.example.com"), "https://rancher.example.com", false),
        (Some(""), "https://rancher.example.com", false),
        (Some(" "), "", false),
        (None, "https://rancher.example.com", false),
    ] {
        let fault = address_fault("rancher", named, url);
        assert_eq!(fault.is_none(), is_sent, "{named:?} {url}");
        for part in
            ["spec.rancher.minter", "\"rancher\"", "credentials.harvesterhci.io/rancher-url"]
        {
            assert!(fault.as_ref().is_none_or(|why| why.contains(part)), "{fault:?}");
        }
    }
    let long = "x".repeat(10_000);
    assert!(address_fault("rancher", Some(&long), "https://rancher").unwrap().len() < 600);
}
