//! Where kube-vip is told to announce: what the operator says, and what users do.

use super::super::*;

fn annotations(service: &Value) -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, String> =
        serde_json::from_value(service["metadata"]["annotations"].clone()).unwrap();
    assert_eq!(all.remove(ASKED_ADDRESS).as_deref(), Some("10.0.0.100"));
    all
}

fn texts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn hints_name_the_interface_or_the_vlan_and_what_they_were_made_from() {
    let listeners = listeners();
    let plain = wanted("10.0.0.100", &listeners);
    let untagged = Attachment { bridge: "mgmt-br".into(), vlan: 0 };
    let tagged = Attachment { bridge: "prod-br".into(), vlan: 7 };
    let network = |name| (ANNOTATION_NETWORK, name);
    let by_interface = texts(&[(ASKED_INTERFACE, "mgmt-br"), network("apps/mgmt")]);
    let by_vlan = texts(&[(ASKED_VLAN, "prod-br.7"), network("apps/vlan7")]);
    let (mgmt, vlan7) = (on("apps/mgmt", &untagged, &plain), on("apps/vlan7", &tagged, &plain));
    let unknown = Wanted { network: "apps/vlan7", ..plain.clone() };
    assert_eq!(annotations(&made(&mgmt)), by_interface);
    assert_eq!(annotations(&made(&vlan7)), by_vlan);
    assert_eq!(annotations(&made(&unknown)), texts(&[]), "not known how it is reached");
    assert_eq!(annotations(&made(&on("", &tagged, &plain))), texts(&[]), "no network is named");
    for (before, after, expected) in [
        // As soon as it is known.
        (&unknown, &vlan7, &by_vlan),
        (&plain, &vlan7, &by_vlan),
        // Another network: nothing of the former stays.
        (&mgmt, &vlan7, &by_vlan),
        (&vlan7, &mgmt, &by_interface),
        (&mgmt, &unknown, &texts(&[])),
        // Taken back with the network.
        (&mgmt, &plain, &texts(&[])),
        (&vlan7, &plain, &texts(&[])),
    ] {
        let service = made(before);
        let (changed, _) = repaired(&service, after);
        assert_eq!(annotations(&changed), *expected, "{before:?} to {after:?}");
        assert!(!repaired(&changed, after).1, "written once");
        let announced = announced(service.clone(), "10.0.0.100");
        assert_eq!(repaired(&announced, after), (announced, false), "what is announced stays");
    }
    // Which way the network is reached has changed, or is not known for a while: it stays.
    let moved = on("apps/vlan7", &untagged, &plain);
    for wanted in [&moved, &unknown] {
        assert!(!repaired(&made(&vlan7), wanted).1);
    }
}

#[test]
fn hints_that_a_user_gave_are_the_users() {
    let listeners = listeners();
    let plain = wanted("10.0.0.100", &listeners);
    let tagged = Attachment { bridge: "prod-br".into(), vlan: 7 };
    let untagged = Attachment { bridge: "prod-br".into(), vlan: 0 };
    for (key, value) in [(ASKED_INTERFACE, "eth1"), (ASKED_VLAN, "eth1.5")] {
        let mut service = made(&plain);
        service["metadata"]["annotations"][key] = json!(value);
        let named = [&tagged, &untagged].map(|attachment| on("apps/vlan7", attachment, &plain));
        for wanted in named.iter().chain([&plain]) {
            let (after, wrote) = repaired(&service, wanted);
            assert_eq!((annotations(&after), wrote), (texts(&[(key, value)]), false));
        }
    }
}
