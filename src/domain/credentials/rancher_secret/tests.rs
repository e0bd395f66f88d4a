//! Tests of errors, of the printed Secret and of the report about the key.

use super::*;
use serde_json::Value;

const URL: &str = "https://rancher.example.com";
const SUM: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

fn token(text: &str) -> SecretText {
    SecretText::trimmed(text.to_owned())
}

#[test]
fn each_option_that_does_not_fit_is_named() {
    let key = token("token-abcde:secret");
    let right = RancherSecretOptions {
        url: URL,
        checksum: Some(SUM),
        namespace: "rancher-credentials",
        name: "rancher",
        key: &key,
    };
    assert_eq!(right.faults(), Vec::<String>::new());
    assert!(RancherSecretOptions { checksum: None, ..right.clone() }.faults().is_empty());
    let (ext, empty) = (token("ext/token-abcde:secret"), token(" \n"));
    assert!(RancherSecretOptions { key: &ext, ..right.clone() }.faults().is_empty());
    let (half, two) = (token("secret"), token("token-abcde:secret\ntoken-fghij:secret"));
    for (order, option) in [
        (
            RancherSecretOptions { url: "http://rancher", ..right.clone() },
            "--url \"http://rancher\"",
        ),
        (RancherSecretOptions { url: "https://rancher/v3", ..right.clone() }, "--url"),
        (
            RancherSecretOptions { checksum: Some("9f86"), ..right.clone() },
            "--ca-checksum \"9f86\"",
        ),
        (RancherSecretOptions { checksum: Some(""), ..right.clone() }, "--ca-checksum \"\""),
        (RancherSecretOptions { namespace: "a.b", ..right.clone() }, "--namespace \"a.b\""),
        (RancherSecretOptions { name: "Rancher", ..right.clone() }, "--name \"Rancher\""),
        (RancherSecretOptions { key: &empty, ..right.clone() }, "standard input"),
        (RancherSecretOptions { key: &half, ..right.clone() }, "standard input"),
        (RancherSecretOptions { key: &two, ..right.clone() }, "standard input"),
    ] {
        let faults = order.faults();
        assert!(faults.len() == 1 && faults[0].starts_with(option), "{option}: {faults:?}");
        assert!(faults[0].contains(": must be ") && !faults[0].contains("secret\""), "{faults:?}");
    }
    let wrong =
        RancherSecretOptions { url: "", checksum: Some("x"), namespace: "", name: "", key: &empty };
    assert_eq!(wrong.faults().len(), 5);
}

#[test]
fn the_secret_has_the_key_the_authority_and_the_url() {
    let key = token("token-abcde:secret\n");
    let order = RancherSecretOptions {
        url: "https://rancher.example.com/",
        checksum: None,
        namespace: "guests",
        name: "rancher",
        key: &key,
    };
    let text = order.text(Some("PEM\n"));
    let secret = "apiVersion: v1\nkind: Secret\nmetadata:\n  name: \"rancher\"\n  namespace: \"guests\"\n  annotations:\n    \
                  credentials.harvesterhci.io/rancher-url: \"https://rancher.example.com\"\ntype: Opaque\ndata:\n  \
                  token: dG9rZW4tYWJjZGU6c2VjcmV0\n";
    assert_eq!(text.as_str(), format!("{secret}  ca.crt: UEVNCg==\n"));
    assert_eq!(order.text(None).as_str(), secret);
}

#[test]
fn an_authority_is_taken_by_its_checksum_alone() {
    // `SUM` is the SHA-256 of "test", as sha256sum prints it.
    assert_eq!(checksum("test"), SUM);
    assert_eq!(authority("test".to_owned(), SUM), Ok("test".to_owned()));
    assert_eq!(authority("test".to_owned(), &SUM.to_uppercase()), Ok("test".to_owned()));
    let other = authority("another".to_owned(), SUM).unwrap_err();
    assert!(other.contains(&checksum("another")) && other.contains("another server"), "{other}");
    let none = authority("\n".to_owned(), SUM).unwrap_err();
    assert!(none.contains("shows no authority"), "{none}");
    assert!(unknown_authority("test").contains(SUM));
}

#[test]
fn what_the_key_is_good_for_is_said() {
    let one = |owner: &str| ListedCredential {
        name: "cc-a".to_owned(),
        owner: owner.to_owned(),
        ..ListedCredential::default()
    };
    let said = report("u-1", Some(1_800_000_000), &[one("u-1"), one("u-2"), one("u-1")]);
    for part in ["\"u-1\"", "expires on 2027-01-15 08:00:00 UTC", "made: 2\n", "only watched: 1"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let said = report("u-1", None, &[one("u-1")]);
    assert!(said.contains("does not expire") && said.ends_with("made: 1"), "{said}");
    let said = report("u-1", None, &[]);
    assert!(said.contains("made: 0\nnone can be renewed"), "{said}");
}

#[test]
fn each_option_about_an_account_is_named() {
    let right = AccountOptions {
        credential: "cc-abcde",
        server: Some("https://192.168.5.10:6443"),
        vm_namespace: Some("guests"),
        account: None,
        namespace: "rancher-credentials",
        secret: "rancher",
    };
    let existing = AccountOptions { vm_namespace: None, account: Some("robot"), ..right };
    assert!(right.faults().is_empty() && existing.faults().is_empty());
    for (behind, option) in [
        (AccountOptions { credential: "CC", ..right }, "--cloud-credential \"CC\""),
        (AccountOptions { credential: "a.b", ..right }, "--cloud-credential"),
        (AccountOptions { server: None, ..right }, "--server"),
        (
            AccountOptions { server: Some("https://here/k8s"), ..right },
            "--server \"https://here/k8s\"",
        ),
        (AccountOptions { vm_namespace: None, ..right }, "--vm-namespace"),
        (AccountOptions { vm_namespace: Some("A"), ..right }, "--vm-namespace \"A\""),
        (AccountOptions { account: Some("robot"), ..right }, "--vm-namespace"),
        (AccountOptions { account: Some("R"), ..existing }, "--service-account \"R\""),
    ] {
        let faults = behind.faults();
        assert!(faults.len() == 1 && faults[0].starts_with(option), "{option}: {faults:?}");
    }
}

#[test]
fn an_account_gets_the_drivers_rights_and_no_others() {
    let behind = AccountOptions {
        credential: "cc-abcde",
        server: Some("https://192.168.5.10:6443"),
        vm_namespace: Some("guests"),
        account: None,
        namespace: "rancher-credentials",
        secret: "rancher",
    };
    let read = |text: &str| serde_saphyr::from_multiple::<Value>(text).unwrap();
    let all = read(&behind.text(true));
    let kinds: Vec<&str> = all.iter().filter_map(|one| one["kind"].as_str()).collect();
    let (role, rotation) = ("ClusterRole", "TokenRotation");
    let bindings = ["RoleBinding", "ClusterRoleBinding"];
    let right = ["ServiceAccount", role, role, bindings[0], bindings[1], rotation, rotation];
    assert_eq!(kinds, right);
    let rules = all[1]["rules"].as_array().unwrap();
    let machines = rules.iter().find(|rule| rule["resources"][0] == "virtualmachines").unwrap();
    assert_eq!(machines["verbs"], serde_json::json!(["create", "get", "update", "delete"]));
    for rule in rules.iter().chain(all[2]["rules"].as_array().unwrap()) {
        assert!(!rule.to_string().contains('*'), "{rule}");
    }
    // The ClusterRole for all namespaces allows the verb get alone, so no object can be listed.
    for rule in all[2]["rules"].as_array().unwrap() {
        assert_eq!(rule["verbs"], serde_json::json!(["get"]));
    }
    assert_eq!(all[3]["metadata"]["namespace"], "guests");
    assert_eq!(all[3]["subjects"][0]["namespace"], "rancher-credentials");
    let existing = AccountOptions { vm_namespace: None, account: Some("robot"), ..behind };
    let few = read(&existing.text(false));
    assert_eq!(few.len(), 1);
    let source = &few[0]["spec"]["source"]["serviceAccountToken"];
    assert_eq!(source["serviceAccountName"], "robot");
    assert!(behind.report().contains("ServiceAccount rancher-credentials/cc-abcde"));
    assert!(!existing.report().contains("ServiceAccount "), "{}", existing.report());
}
