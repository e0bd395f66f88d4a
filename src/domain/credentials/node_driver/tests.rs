//! Tests of the reviews and names of the node driver's rights.

use super::*;

#[test]
fn a_right_is_asked_for_as_the_api_server_knows_it() {
    let asked = |right: &DriverRight| {
        let review = right.review(Some("team"));
        let of = |field: &str| {
            review["spec"]["resourceAttributes"][field].as_str().unwrap_or("none").to_owned()
        };
        ["verb", "group", "resource", "subresource", "namespace"].map(of)
    };
    let start = RIGHTS.iter().find(|right| right.resource.ends_with("/start")).unwrap();
    assert_eq!(
        asked(start),
        ["update", "subresources.kubevirt.io", "virtualmachines", "start", "team"]
    );
    assert_eq!(asked(&RIGHTS[0]), ["create", "kubevirt.io", "virtualmachines", "", "team"]);
    assert_eq!(RIGHTS[0].review(None)["spec"]["resourceAttributes"]["namespace"], "");
}

#[test]
fn what_a_reader_lacks_is_asked_for_first_and_named() {
    let why = RIGHTS[0].lacking();
    assert!(why.contains("may not create virtualmachines.kubevirt.io in any namespace"), "{why}");
    let why = RIGHTS[0].account_lacks("guests/robot");
    assert!(why.starts_with("ServiceAccount guests/robot may not create virtualmachines"), "{why}");
    let secrets = RIGHTS.iter().find(|right| right.resource == "secrets").unwrap();
    assert_eq!(secrets.to_string(), "create secrets");
}
