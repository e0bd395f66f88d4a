//! Which networks are declared, and whose agent is made.

use super::*;

#[test]
fn a_network_is_declared_by_name_or_where_its_namespace_may() {
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let networks =
        Networks { listed: set(&["prod/vlan9", "default/vlan9"]), namespaces: set(&["default"]) };
    let said = |annotation: &str, form| Declaration {
        annotation: annotation.to_owned(),
        form,
        ..Declaration::default()
    };
    let refused = "";
    for (network, annotation, form, declared, why) in [
        ("default/vlan7", "host", Form::Bridge, true, None),
        ("default/vlan7", "", Form::Bridge, false, None),
        ("prod/vlan9", "", Form::Other, true, None),
        ("default/vlan7", "guest", Form::Bridge, false, Some("\"guest\" must be host")),
        ("default/vlan7", "Host", Form::Bridge, false, Some("must be host")),
        ("default/vlan7", "host", Form::Trunk, false, Some("trunk")),
        ("default/vlan7", "host", Form::Other, false, Some("bridge")),
        ("default/a b", "host", Form::Bridge, false, Some("name")),
        ("default/$(x)", "host", Form::Bridge, false, Some("name")),
        ("prod/vlan8", "host", Form::Bridge, false, Some("leaseAgent.namespaces")),
        ("default-2/vlan7", "host", Form::Bridge, false, Some("leaseAgent.namespaces")),
        ("default", "host", Form::Bridge, false, Some(refused)),
        ("", "host", Form::Bridge, false, Some(refused)),
        // Two agents for one network are none that the operator makes.
        ("default/vlan9", "host", Form::Bridge, true, Some("leaseAgent.networks")),
        ("prod/vlan9", "host", Form::Bridge, true, Some("leaseAgent.namespaces")),
    ] {
        let said = said(annotation, form);
        assert_eq!(networks.declare(network, Some(&said)), declared, "{network} {annotation}");
        match (networks.agent(network, &said), why) {
            (Agent::Refused(text), Some(why)) => {
                assert!(text.contains(ANNOTATION_DHCP) && text.contains(why), "{text}");
            }
            (Agent::None | Agent::Others | Agent::Ours, None) => {}
            other => panic!("{network} {annotation}: {other:?}"),
        }
    }
    assert!(networks.declare("prod/vlan9", None), "listed, whether it exists or not");
    assert!(!networks.declare("default/vlan7", None));
    assert!(!Networks::default().declare("default/vlan7", Some(&said("host", Form::Bridge))));
}
