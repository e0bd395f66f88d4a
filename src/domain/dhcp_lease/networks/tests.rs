//! Declared networks, and networks whose agent the operator creates.

use serde_json::json;

use super::*;
use api::ANNOTATION_NETWORK;

#[test]
fn a_network_is_declared_by_name_or_where_its_namespace_may() {
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let networks = DhcpNetworks {
        listed: ["prod/vlan9", "default/vlan9"]
            .map(|name| (name.to_owned(), ClientIdForm::Duid))
            .into(),
        namespaces: set(&["default"]),
        ..DhcpNetworks::default()
    };
    let said = |annotation: &str, form| DhcpDeclaration {
        annotation: annotation.to_owned(),
        form,
        ..DhcpDeclaration::default()
    };
    let refused = "";
    for (network, annotation, form, declared, why) in [
        ("default/vlan7", "host", NetworkForm::Bridge, true, None),
        ("default/vlan7", "", NetworkForm::Bridge, false, None),
        ("prod/vlan9", "", NetworkForm::Other, true, None),
        ("default/vlan7", "guest", NetworkForm::Bridge, false, Some("\"guest\" must be host")),
        ("default/vlan7", "Host", NetworkForm::Bridge, false, Some("must be host")),
        ("default/vlan7", "host", NetworkForm::Trunk, false, Some("trunk")),
        ("default/vlan7", "host", NetworkForm::Other, false, Some("bridge")),
        ("default/a b", "host", NetworkForm::Bridge, false, Some("name")),
        ("default/$(x)", "host", NetworkForm::Bridge, false, Some("name")),
        ("prod/vlan8", "host", NetworkForm::Bridge, false, Some("leaseAgent.namespaces")),
        ("default-2/vlan7", "host", NetworkForm::Bridge, false, Some("leaseAgent.namespaces")),
        ("default", "host", NetworkForm::Bridge, false, Some(refused)),
        ("", "host", NetworkForm::Bridge, false, Some(refused)),
        // The operator creates no second agent for a network that the options list.
        ("default/vlan9", "host", NetworkForm::Bridge, true, Some("leaseAgent.networks")),
        ("prod/vlan9", "host", NetworkForm::Bridge, true, Some("leaseAgent.namespaces")),
    ] {
        let said = said(annotation, form);
        assert_eq!(networks.declare(network, Some(&said)), declared, "{network} {annotation}");
        match (networks.agent(network, &said), why) {
            (WantedAgent::Refused(text), Some(why)) => {
                assert!(text.contains(ANNOTATION_DHCP) && text.contains(why), "{text}");
            }
            (WantedAgent::None | WantedAgent::Others | WantedAgent::Ours, None) => {}
            other => panic!("{network} {annotation}: {other:?}"),
        }
    }
    assert!(networks.declare("prod/vlan9", None), "listed, whether it exists or not");
    assert!(!networks.declare("default/vlan7", None));
    assert!(
        !DhcpNetworks::default().declare("default/vlan7", Some(&said("host", NetworkForm::Bridge)))
    );
}

/// Returns the fault of a network, and checks that the network is a declared one nevertheless.
fn fault(networks: &DhcpNetworks, said: &DhcpDeclaration) -> String {
    let network = "default/vlan7";
    assert!(networks.declare(network, Some(said)), "{said:?} is the guest's");
    let agent = networks.agent(network, said);
    let WantedAgent::Faulty(why) = &agent else { panic!("{agent:?}") };
    assert_eq!(agent.fault(), Some(why.as_str()));
    assert_eq!(networks.fault(network, Some(said)).as_ref(), Some(why));
    why.clone()
}

/// A fault in another annotation does not change whether the network is declared. The network is
/// declared if its annotation `ANNOTATION_DHCP` has an effect and an agent can be attached.
#[test]
fn a_fault_declares_nothing() {
    let networks =
        DhcpNetworks { namespaces: ["default".to_owned()].into(), ..DhcpNetworks::default() };
    let faulty = |annotation: &str, form| DhcpDeclaration {
        annotation: annotation.to_owned(),
        form,
        subnets: "10.7.0.0/33".to_owned(),
        ..DhcpDeclaration::default()
    };
    for (network, annotation, form, declared) in [
        ("default/vlan7", "host", NetworkForm::Bridge, true),
        ("default/vlan7", "", NetworkForm::Bridge, false),
        ("default/vlan7", "hots", NetworkForm::Bridge, false),
        ("default/vlan7", "host", NetworkForm::Trunk, false),
        ("default/vlan7", "host", NetworkForm::Other, false),
        ("tenant/vlan7", "host", NetworkForm::Bridge, false),
    ] {
        let said = faulty(annotation, form);
        assert_eq!(networks.declare(network, Some(&said)), declared, "{network} {said:?}");
        assert_eq!(networks.fault(network, Some(&said)).is_some(), declared, "{network} {said:?}");
    }
    assert_eq!(networks.fault("default/vlan7", None), None);
}

#[test]
fn a_network_says_as_which_client_addresses_are_leased() {
    let networks = DhcpNetworks {
        listed: [("prod/vlan9".to_owned(), ClientIdForm::Mac)].into(),
        namespaces: ["default".to_owned()].into(),
        ..DhcpNetworks::default()
    };
    let said = |client_id: &str, broadcast: &str| DhcpDeclaration {
        annotation: "host".to_owned(),
        form: NetworkForm::Bridge,
        client_id: client_id.to_owned(),
        broadcast: broadcast.to_owned(),
        ..DhcpDeclaration::default()
    };
    let of = |network, said: &DhcpDeclaration| networks.client_id_form(network, Some(said));
    assert_eq!(of("default/vlan7", &said("", "")), ClientIdForm::Duid);
    assert_eq!(of("default/vlan7", &said("none", "")), ClientIdForm::None);
    assert_eq!(of("prod/vlan9", &said("none", "")), ClientIdForm::Mac, "its list counts");
    assert_eq!(networks.client_id_form("prod/vlan9", None), ClientIdForm::Mac);
    assert_eq!(networks.agent("default/vlan7", &said("mac", "true")), WantedAgent::Ours);
    for (client_id, broadcast, key) in
        [("MAC", "", ANNOTATION_DHCP_CLIENT_ID), ("", "yes", ANNOTATION_DHCP_BROADCAST)]
    {
        let why = fault(&networks, &said(client_id, broadcast));
        assert!(why.contains(key) && why.contains("must be"), "{why}");
    }
}

#[test]
fn subnets_are_read_whole_or_refused_by_name() {
    let networks =
        DhcpNetworks { namespaces: ["default".to_owned()].into(), ..DhcpNetworks::default() };
    let said = |subnets: &str| DhcpDeclaration {
        annotation: "host".to_owned(),
        form: NetworkForm::Bridge,
        subnets: subnets.to_owned(),
        ..DhcpDeclaration::default()
    };
    let agent = |subnets: &str| networks.agent("default/vlan7", &said(subnets));
    for (subnets, count) in [("", 0), ("10.7.0.0/24", 1), (" 10.7.0.0/24, 10.8.0.0/16,", 2)] {
        assert_eq!(agent(subnets), WantedAgent::Ours);
        assert_eq!(said(subnets).subnets().unwrap().len(), count, "{subnets}");
    }
    for wrong in ["10.7.0.0", "10.7.0.0/33", "fd00::/64", "--interface"] {
        let text = fault(&networks, &said(&format!("10.7.0.0/24,{wrong}")));
        assert!(text.contains(ANNOTATION_DHCP_SUBNETS) && text.contains(wrong), "{text}");
    }
}

#[test]
fn what_becomes_of_a_lost_address_is_one_of_two_words() {
    let networks =
        DhcpNetworks { namespaces: ["default".to_owned()].into(), ..DhcpNetworks::default() };
    let said = |word: &str| DhcpDeclaration {
        annotation: "host".to_owned(),
        form: NetworkForm::Bridge,
        on_lease_loss: word.to_owned(),
        ..DhcpDeclaration::default()
    };
    for (word, keeps) in [("", false), ("Withdraw", false), ("Keep", true)] {
        assert_eq!(said(word).keeps(), Ok(keeps));
        assert_eq!(networks.agent("default/vlan7", &said(word)), WantedAgent::Ours);
    }
    assert_eq!(
        fault(&networks, &said("keep")),
        format!(
            "metadata.annotations[{ANNOTATION_DHCP_ON_LEASE_LOSS}]: \"keep\" must be Withdraw or Keep"
        )
    );
}

#[test]
fn the_default_network_is_for_vms_that_name_none() {
    let networks = DhcpNetworks { default: "default/lan".to_owned(), ..DhcpNetworks::default() };
    let lb = |workload: &str, network: Option<&str>| -> LoadBalancer {
        let annotations = network.map(|network| json!({ANNOTATION_NETWORK: network}));
        serde_json::from_value(json!({
            "metadata": {"name": "web", "annotations": annotations},
            "spec": {"workloadType": workload, "ipam": "dhcp"},
        }))
        .unwrap()
    };
    let around = LbSurroundings::default();
    assert_eq!(networks.of(&lb("vm", None), &around), "default/lan");
    assert_eq!(networks.of(&lb("vm", Some("")), &around), "default/lan");
    assert_eq!(networks.of(&lb("vm", Some("a/b")), &around), "a/b");
    assert_eq!(networks.of(&lb("cluster", None), &around), "");
    let vms = LbSurroundings { vm_network: Some("a/b".to_owned()), ..LbSurroundings::default() };
    assert_eq!(networks.of(&lb("vm", None), &vms), "default/lan");
    assert_eq!(DhcpNetworks::default().of(&lb("vm", None), &around), "");
}
