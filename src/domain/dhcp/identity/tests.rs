//! Tests of a client's identity, which never changes and is unique.

use std::collections::BTreeSet;

use super::*;

fn derive(name: &str) -> ClientIdentity {
    ClientIdentity::derive("cluster", "default/net", "default", name)
}

fn id(identity: &ClientIdentity) -> String {
    identity.client_id.as_ref().unwrap().to_string()
}

/// Servers recognise a client by its identity. If a new version derived another identity, all
/// addresses would be lost.
#[test]
fn it_never_changes() {
    let identity = derive("web");
    assert_eq!(identity.mac.to_string(), "16:53:8e:69:17:a7");
    assert_eq!(id(&identity), "ffc6ad4e9300047f3a99e24396e151161a30f46b20e3e3");
    assert_eq!(identity.hostname, "web");
}

#[test]
fn each_part_matters_and_where_it_ends() {
    let all = [
        ClientIdentity::derive("c", "n/n", "a", "b"),
        ClientIdentity::derive("d", "n/n", "a", "b"),
        ClientIdentity::derive("c", "n/m", "a", "b"),
        ClientIdentity::derive("c", "n/n", "b", "b"),
        ClientIdentity::derive("c", "n/n", "a", "c"),
        ClientIdentity::derive("c", "n/n", "ab", ""),
        ClientIdentity::derive("c", "n/n", "", "ab"),
    ];
    let macs: BTreeSet<Mac> = all.iter().map(|identity| identity.mac).collect();
    let ids: BTreeSet<String> = all.iter().map(id).collect();
    assert_eq!((macs.len(), ids.len()), (all.len(), all.len()));
}

#[test]
fn a_hardware_address_is_of_one_station_and_of_no_vendor() {
    let macs: BTreeSet<Mac> = (0..5000).map(|n| derive(&format!("lb-{n}")).mac).collect();
    assert_eq!(macs.len(), 5000);
    for mac in macs {
        assert!(mac.is_unicast() && mac.0[0] & 2 == 2, "{mac}");
        assert_eq!(mac.to_string().parse(), Ok(mac));
    }
}

#[test]
fn a_client_identifier_is_of_rfc_4361_with_a_uuid() {
    let id = derive("web").client_id.unwrap();
    assert_eq!((id.octets().len(), id.octets()[0], &id.octets()[5..7]), (23, 255, &[0, 4][..]));
    assert_eq!(id.to_string().parse(), Ok(id));
    for bad in ["", "ff", "fff", "zz00", "+1+1", "ff0", &"00".repeat(256), "éé"] {
        assert!(bad.parse::<ClientId>().is_err(), "{bad}");
    }
    assert!("00".repeat(255).parse::<ClientId>().is_ok());
}

#[test]
fn a_host_name_is_a_label() {
    assert_eq!(derive("web.example").hostname, "web-example");
    let whole = "x".repeat(63);
    assert_eq!(derive(&whole).hostname, whole);
    // Two long names that differ only at their end get different host names.
    let long = |end: &str| derive(&format!("{}.{end}", "a".repeat(53))).hostname;
    assert_ne!(long("bbbbbbbbbb-1a2b3c4d"), long("bbbbbbbbbb-5e6f7a8b"));
    assert_eq!(long("bbbbbbbbbb"), format!("{}-e9c27692", "a".repeat(53)));
    assert_eq!(derive(&"x".repeat(253)).hostname.len(), 63);
}

#[test]
fn a_client_identifier_has_the_form_that_is_chosen() {
    let of = |form: &str| derive("web").with_form(form.parse().unwrap()).client_id;
    assert_eq!(of("duid"), derive("web").client_id);
    assert_eq!(of("mac").unwrap().to_string(), "0116538e6917a7");
    assert_eq!(of("none"), None);
    for wrong in ["", "MAC", "01", "hostname"] {
        let error = wrong.parse::<ClientIdForm>().unwrap_err();
        assert!(error.contains("duid, mac or none"), "{error}");
    }
}

#[test]
fn text_that_is_no_hardware_address_is_refused() {
    for bad in [
        "",
        "02:00:00:00:00",
        "02:00:00:00:00:00:00",
        "2:0:0:0:0:0",
        "+2:00:00:00:00:00",
        "0g:00:00:00:00:00",
    ] {
        assert!(bad.parse::<Mac>().is_err(), "{bad}");
    }
    assert_eq!("02:00:5E:10:00:01".parse(), Ok(Mac([2, 0, 0x5e, 0x10, 0, 1])));
}
