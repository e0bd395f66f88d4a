//! Requested identities. An annotation is followed as kube-vip follows it, or refused with an error
//! that names the annotation.

use super::super::{identity_taken, is_one_client, record};
use super::*;
use api::{DHCPLeaseSpec, DHCPLeaseStatus};

const NETWORK: &str = "default/vlan7";
const MAC: &str = "00:00:6c:0d:5a:be";

fn lb(annotations: &[(&str, &str)]) -> LoadBalancer {
    let mut lb = LoadBalancer::default();
    lb.metadata.name = Some("web".into());
    lb.metadata.namespace = Some("default".into());
    lb.metadata.resource_version = Some("7".into());
    let all = annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    lb.metadata.annotations = Some(all.collect());
    lb
}

fn recorded(annotations: &[(&str, &str)], form: ClientIdForm) -> DHCPLease {
    record(&lb(annotations), "cluster", NETWORK, form).unwrap()
}

#[test]
fn who_asks_by_kube_vips_annotations_is_kube_vips_client() {
    let usual = recorded(&[], ClientIdForm::Duid).spec;
    for (annotations, mac, id, hostname) in [
        // kube-vip sends no client identifier, whatever form the network has.
        (&[(KUBE_VIP_HWADDR, MAC)][..], MAC, "", "web"),
        (&[(KUBE_VIP_HWADDR, " 00:00:6C:0D:5A:BE ")], MAC, "", "web"),
        // If a host name is set, kube-vip sends it as the client identifier, without a type octet
        // before it.
        (
            &[(KUBE_VIP_HWADDR, MAC), (KUBE_VIP_HOSTNAME, "Shop.example")],
            MAC,
            "53686f702e6578616d706c65",
            "Shop.example",
        ),
        // A host name of one octet is too short for a client identifier.
        (&[(KUBE_VIP_HWADDR, MAC), (KUBE_VIP_HOSTNAME, "a")], MAC, "", "a"),
        // A requested form has precedence over kube-vip's behaviour.
        (
            &[(KUBE_VIP_HWADDR, MAC), (ANNOTATION_DHCP_CLIENT_ID, "mac")],
            MAC,
            "0100006c0d5abe",
            "web",
        ),
        (
            &[(KUBE_VIP_HWADDR, MAC), (ANNOTATION_DHCP_CLIENT_ID, "duid")],
            MAC,
            &usual.client_id,
            "web",
        ),
        (&[(KUBE_VIP_HOSTNAME, "shop")], &usual.mac_address, &usual.client_id, "shop"),
        (&[(ANNOTATION_DHCP_CLIENT_ID, "none")], &usual.mac_address, "", "web"),
        (&[(KUBE_VIP_HWADDR, "")], &usual.mac_address, &usual.client_id, "web"),
    ] {
        let form = if annotations.first().is_some_and(|(key, _)| *key == KUBE_VIP_HWADDR)
            && annotations != [(KUBE_VIP_HWADDR, "")]
        {
            ClientIdForm::Mac
        } else {
            ClientIdForm::Duid
        };
        let record = recorded(annotations, form);
        let spec = &record.spec;
        let is = (spec.mac_address.as_str(), spec.client_id.as_str(), spec.hostname.as_str());
        assert_eq!(is, (mac, id, hostname), "{annotations:?}");
        assert!(asked(&lb(annotations)).unwrap().fits(&record), "{annotations:?}");
    }
    let of_network = recorded(&[], ClientIdForm::Mac).spec;
    assert_eq!(of_network.mac_address, usual.mac_address);
    assert_eq!(of_network.client_id, format!("01{}", usual.mac_address.replace(':', "")));
    assert_eq!(recorded(&[], ClientIdForm::None).spec.client_id, "");
    let wishes = [(KUBE_VIP_REQUESTED_IP, "10.7.0.9"), (KUBE_VIP_BROADCAST, "true")];
    let wishes = recorded(&wishes, ClientIdForm::Duid).spec;
    assert_eq!((wishes.requested_address.as_deref(), wishes.broadcast), (Some("10.7.0.9"), true));
    assert_eq!((usual.requested_address, usual.broadcast), (None, false));
}

#[test]
fn what_cannot_be_followed_is_refused_by_name() {
    for (key, value, why) in [
        (KUBE_VIP_HWADDR, "web", "must be a hardware address"),
        (KUBE_VIP_HWADDR, "02:00:5e:10:00", "must be a hardware address"),
        (KUBE_VIP_HWADDR, "03:00:5e:10:00:01", "unicast"),
        (KUBE_VIP_HWADDR, "ff:ff:ff:ff:ff:ff", "unicast"),
        // This is the hardware address of a real machine. Frames to that machine would arrive here.
        (KUBE_VIP_HWADDR, "3c:ec:ef:01:02:03", "another machine's"),
        (KUBE_VIP_HWADDR, "00:00:00:00:00:00", "another machine's"),
        (KUBE_VIP_REQUESTED_IP, "fd00::1", "IPv4"),
        (KUBE_VIP_REQUESTED_IP, "10.7.0.9,fd00::1", "IPv4"),
        (KUBE_VIP_REQUESTED_IP, "0.0.0.0", "one host"),
        (KUBE_VIP_REQUESTED_IP, "224.0.0.1", "one host"),
        (KUBE_VIP_HOSTNAME, "a b", "DNS name"),
        (KUBE_VIP_HOSTNAME, "-a", "DNS name"),
        (KUBE_VIP_HOSTNAME, &"a".repeat(254), "253"),
        (KUBE_VIP_BROADCAST, "yes", "true or false"),
        (ANNOTATION_DHCP_CLIENT_ID, "MAC", "duid, mac or none"),
    ] {
        let fault = asked(&lb(&[(key, value)])).unwrap_err();
        assert_eq!(fault.field, format!("metadata.annotations[{key}]"));
        assert!(fault.message.contains(why), "{}", fault.text());
        assert!(record(&lb(&[(key, value)]), "cluster", NETWORK, ClientIdForm::Duid).is_err());
    }
}

#[test]
fn a_record_of_another_client_does_not_fit() {
    let usual = recorded(&[], ClientIdForm::Duid);
    let of_mac = recorded(&[], ClientIdForm::Mac);
    for (key, value) in [
        (KUBE_VIP_HWADDR, MAC),
        (KUBE_VIP_HOSTNAME, "shop"),
        (KUBE_VIP_REQUESTED_IP, "10.7.0.9"),
        (ANNOTATION_DHCP_CLIENT_ID, "mac"),
        (ANNOTATION_DHCP_CLIENT_ID, "none"),
    ] {
        assert!(!asked(&lb(&[(key, value)])).unwrap().fits(&usual), "{key} {value}");
        // If the LoadBalancer does not request a value, a record with any value fits.
        let former = recorded(&[(key, value)], ClientIdForm::Duid);
        assert!(asked(&lb(&[])).unwrap().fits(&former), "{key} {value}");
    }
    let duid = [(ANNOTATION_DHCP_CLIENT_ID, "duid")];
    assert!(!asked(&lb(&duid)).unwrap().fits(&of_mac));
    // A record fits if the leased address in its status is the requested one.
    let mut has = usual;
    let address = Some("10.7.0.9".to_owned());
    has.status = Some(DHCPLeaseStatus { address, ..DHCPLeaseStatus::default() });
    assert!(asked(&lb(&[(KUBE_VIP_REQUESTED_IP, "10.7.0.9")])).unwrap().fits(&has));
    assert!(!asked(&lb(&[(KUBE_VIP_REQUESTED_IP, "10.7.0.8")])).unwrap().fits(&has));
}

/// dnsmasq, Kea and dhcpd recognise a client by its client identifier first, whatever its hardware
/// address is.
#[test]
fn two_holders_with_one_address_or_identifier_are_one_client() {
    let of = |annotations: &[(&str, &str)]| recorded(annotations, ClientIdForm::Duid).spec;
    let own = of(&[(KUBE_VIP_HWADDR, MAC), (KUBE_VIP_HOSTNAME, "shop")]);
    let same_name = of(&[(KUBE_VIP_HWADDR, "00:00:6c:00:00:01"), (KUBE_VIP_HOSTNAME, "shop")]);
    let same_mac = of(&[(KUBE_VIP_HWADDR, MAC)]);
    let no_id = of(&[(KUBE_VIP_HWADDR, "00:00:6c:00:00:02")]);
    assert!(is_one_client(&own, &same_name) && is_one_client(&own, &same_mac));
    assert!(!is_one_client(&same_mac, &no_id), "two without identifier");
    assert!(!is_one_client(&own, &of(&[])));
    let elsewhere = DHCPLeaseSpec { network: "default/vlan8".to_owned(), ..own.clone() };
    assert!(!is_one_client(&own, &elsewhere));
}

/// The message must not help a tenant to find LoadBalancers of another tenant.
#[test]
fn a_holder_in_another_namespace_is_not_named() {
    let new = recorded(&[(KUBE_VIP_HWADDR, MAC)], ClientIdForm::Duid);
    for (other, named) in [
        ("default/other", "LoadBalancer default/other leases"),
        ("theirs/other", "another LoadBalancer leases"),
    ] {
        let message = identity_taken(&new, other).message();
        assert!(message.starts_with(named) && message.contains(MAC), "{message}");
        assert!(!message.contains("theirs"), "{message}");
    }
}
