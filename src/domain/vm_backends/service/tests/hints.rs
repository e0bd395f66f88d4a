//! Tests of the interfaces on which the operator or a user asks kube-vip to announce.

use super::*;
use api::ANNOTATION_NETWORK;

fn annotations(service: &Value) -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, String> =
        serde_json::from_value(service["metadata"]["annotations"].clone()).unwrap();
    assert_eq!(all.remove(ASKED_ADDRESS).as_deref(), Some("10.0.0.100"));
    all.remove(MADE_WITH_POLICY);
    all.remove(MADE_WITH_PORTS);
    all
}

fn texts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn hints_name_the_bridge_of_an_untagged_network_and_what_they_were_made_from() {
    let listeners = listeners();
    let plain = wanted("10.0.0.100", &listeners);
    let untagged = NetworkAttachment { bridge: "mgmt-br".into(), vlan: 0 };
    let tagged = NetworkAttachment { bridge: "prod-br".into(), vlan: 7 };
    let network = |name| (ANNOTATION_NETWORK, name);
    let by_interface = texts(&[(ASKED_INTERFACE, "mgmt-br"), network("apps/mgmt")]);
    let (mgmt, vlan7) = (on("apps/mgmt", &untagged, &plain), on("apps/vlan7", &tagged, &plain));
    let unknown = WantedService { network: "apps/vlan7", ..plain.clone() };
    assert_eq!(annotations(&made(&mgmt)), by_interface);
    assert_eq!(annotations(&made(&vlan7)), texts(&[]), "nodes have no link for a VLAN");
    assert_eq!(annotations(&made(&unknown)), texts(&[]), "not known how it is reached");
    assert_eq!(annotations(&made(&on("", &tagged, &plain))), texts(&[]), "no network is named");
    for (before, after, expected) in [
        // The hints are set as soon as the bridge of the network is known.
        (&WantedService { network: "apps/mgmt", ..plain.clone() }, &mgmt, &by_interface),
        (&plain, &mgmt, &by_interface),
        // The LoadBalancer names another network, so the former hints are removed.
        (&mgmt, &vlan7, &texts(&[])),
        (&vlan7, &mgmt, &by_interface),
        (&mgmt, &unknown, &texts(&[])),
        // The network is no longer named, so the hints are removed.
        (&mgmt, &plain, &texts(&[])),
    ] {
        let service = made(before);
        let (changed, _) = repaired(&service, after);
        assert_eq!(annotations(&changed), *expected, "{before:?} to {after:?}");
        assert!(!repaired(&changed, after).1, "written once");
        let announced = announced(service.clone(), "10.0.0.100");
        assert_eq!(repaired(&announced, after), (announced, false), "what is announced stays");
    }
    // In the first case, the network's bridge or VLAN has changed. In the second case, they are
    // unknown for a while. The hints stay as long as the LoadBalancer names the network.
    let moved = on("apps/mgmt", &tagged, &plain);
    let unknown = WantedService { network: "apps/mgmt", ..plain.clone() };
    for wanted in [&moved, &unknown] {
        assert!(!repaired(&made(&mgmt), wanted).1);
    }
}

/// kube-vip 1.2.0 to 1.2.3 panics if the requested VLAN interface exists. So the annotation that
/// requests the VLAN is removed even from an announced Service.
#[test]
fn a_vlan_that_an_earlier_version_asked_for_is_taken_back_even_while_announced() {
    let listeners = listeners();
    let plain = wanted("10.0.0.100", &listeners);
    let tagged = NetworkAttachment { bridge: "prod-br".into(), vlan: 7 };
    let vlan7 = on("apps/vlan7", &tagged, &plain);
    let mut service = made(&vlan7);
    service["metadata"]["annotations"][ASKED_VLAN] = json!("prod-br.7");
    service["metadata"]["annotations"][ANNOTATION_NETWORK] = json!("apps/vlan7");
    for stored in [service.clone(), announced(service, "10.0.0.100")] {
        for wanted in [&vlan7, &plain, &WantedService { network: "apps/vlan7", ..plain.clone() }] {
            let (changed, wrote) = repaired(&stored, wanted);
            assert_eq!((annotations(&changed), wrote), (texts(&[]), true), "{wanted:?}");
            assert!(!repaired(&changed, wanted).1, "written once");
        }
    }
}

/// Harvester's HostNetworkConfig gives the nodes their links for a VLAN. The operator asks for the
/// VLAN's interface only if each node has a working link.
#[test]
fn a_vlan_is_asked_for_where_each_node_has_a_working_link() {
    let listeners = listeners();
    let plain = wanted("10.0.0.100", &listeners);
    let tagged = NetworkAttachment { bridge: "prod-br".into(), vlan: 7 };
    let without = on("apps/vlan7", &tagged, &plain);
    let with = WantedService { link: NetworkReach::Ready, ..without.clone() };
    let missing =
        WantedService { link: NetworkReach::Missing(vec!["n2".into()]), ..without.clone() };
    let hinted = texts(&[(ASKED_INTERFACE, "prod-br.7"), (ANNOTATION_NETWORK, "apps/vlan7")]);
    assert_eq!(annotations(&made(&with)), hinted);
    assert_eq!(annotations(&made(&missing)), texts(&[]));
    // The Service was created for the default interface. kube-vip reads the interface once, so the
    // Service must be created again.
    let service = made(&without);
    assert_eq!(plan(Some(&read(&service)), &with), ServicePlan::Replace);
    assert_eq!(annotations(&repaired(&service, &with).0), hinted);
    assert_eq!(plan(Some(&read(&announced(service, "10.0.0.100"))), &with), ServicePlan::Keep);
    // If a node loses the link, the Service does not change.
    assert_eq!(plan(Some(&read(&made(&with))), &missing), ServicePlan::Keep);
}

#[test]
fn an_interface_that_is_no_working_link_of_the_network_is_explained() {
    const DEFAULT: &str = "the announcer's default interface";
    let listeners = listeners();
    let plain = wanted("10.0.0.100", &listeners);
    let of = |vlan| NetworkAttachment { bridge: "prod-br".into(), vlan };
    let (tagged, moved, untagged) = (of(7), of(8), of(0));
    let said = |wanted: &WantedService<'_>, service: Option<&Value>| {
        wanted.misplacement(service.map(read).as_ref()).unwrap_or_default()
    };
    let without = on("apps/vlan7", &tagged, &plain);
    let with = WantedService { link: NetworkReach::Ready, ..without.clone() };
    let missing = WantedService {
        link: NetworkReach::Missing(vec!["n2".into(), "n3".into()]),
        ..without.clone()
    };
    let elsewhere = WantedService { attachment: Some(&moved), ..with.clone() };
    let unknown = WantedService { attachment: None, ..without.clone() };
    let flat = on("apps/flat", &untagged, &plain);
    let vlan = "VLAN 7 of prod-br, network apps/vlan7";
    let none = format!("nodes have no link for {vlan}: a HostNetworkConfig creates one");
    let some = format!("nodes n2, n3 have no working link for {vlan}: see the HostNetworkConfig");
    let there = "delete the Service to announce it there";
    let early = format!("it was announced before nodes had the link prod-br.7: {there}");
    let late = format!("network apps/vlan7 is on prod-br.8 now: {there}");
    let unreached = "nodes have no bridge for network apps/vlan7".to_owned();
    for (wanted, service, place, why) in [
        (&without, None, DEFAULT, &none),
        (&missing, None, DEFAULT, &some),
        (&with, Some(&made(&without)), DEFAULT, &early),
        (&unknown, None, DEFAULT, &unreached),
        // The Service was announced on the link, and stays there when nodes lose the link, or when
        // the network moves to another VLAN.
        (&missing, Some(&made(&with)), "prod-br.7", &some),
        (&without, Some(&made(&with)), "prod-br.7", &none),
        (&elsewhere, Some(&made(&with)), "prod-br.7", &late),
    ] {
        assert_eq!(said(wanted, service), format!("{place}: {why}"), "{wanted:?}");
    }
    for (wanted, service) in [
        (&plain, None),
        (&flat, Some(&made(&flat))),
        (&with, None),
        (&with, Some(&made(&with))),
        (&unknown, Some(&made(&with))),
    ] {
        assert_eq!(said(wanted, service), "", "{wanted:?}");
    }
    // A user set the interface, so there is nothing to explain.
    let mut by_hand = made(&plain);
    by_hand["metadata"]["annotations"][ASKED_INTERFACE] = json!("eth7");
    assert_eq!(said(&without, Some(&by_hand)), "");
}

#[test]
fn hints_that_a_user_gave_are_the_users() {
    let listeners = listeners();
    let plain = wanted("10.0.0.100", &listeners);
    let tagged = NetworkAttachment { bridge: "prod-br".into(), vlan: 7 };
    let untagged = NetworkAttachment { bridge: "prod-br".into(), vlan: 0 };
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
