//! Tests of settings that do not have their documented effect, and of settings that do.

use std::collections::BTreeMap;

use super::super::{ANNOUNCING_NODE, StoredPort};
use super::*;
use crate::vm_backends::endpoint_slices;
use crate::vm_backends::endpoints::AddressFamily;

fn service(policy: &str, node: Option<&str>, is_announced: bool) -> StoredService {
    let annotation = |name: &str| (ANNOUNCING_NODE.to_owned(), name.to_owned());
    StoredService {
        policy: policy.into(),
        annotations: node.map(annotation).into_iter().collect::<BTreeMap<_, _>>(),
        ingress: if is_announced { vec!["10.1.0.5".into()] } else { Vec::new() },
        ports: vec![StoredPort { port: 443, protocol: "TCP".into(), ..StoredPort::default() }],
        ..StoredService::default()
    }
}

fn vm(node: &str, serving: bool, terminating: bool) -> VmEndpoint {
    VmEndpoint {
        node: node.into(),
        serving,
        terminating,
        ..endpoint_slices::sink_endpoint("a", AddressFamily::V4, None)
    }
}

#[test]
fn with_policy_local_the_announcing_node_must_run_a_vm_that_serves() {
    let elsewhere = [vm("n2", true, false), vm("n3", true, false), vm("n4", false, false)];
    let of = |stored: &StoredService, endpoints: &[VmEndpoint]| match misfit(stored, endpoints) {
        Some(SettingMisfit::NoLocalBackend(why)) => Some(why),
        None => None,
        other => panic!("{other:?}"),
    };
    let why = of(&service("Local", Some("n1"), true), &elsewhere).unwrap();
    assert!(why.contains("Node n1 announced it last, and ready VMs are on n2, n3:"), "{why}");
    let why = of(&service("Local", None, false), &elsewhere).unwrap();
    assert!(why.contains("no node has announced it yet"), "{why}");

    for policy in ["Cluster", ""] {
        assert_eq!(of(&service(policy, Some("n1"), true), &elsewhere), None, "{policy}");
    }
    // An endpoint on the announcing node that serves is enough for kube-vip, even if the endpoint
    // terminates.
    for here in [vm("n1", true, false), vm("n1", true, true)] {
        assert_eq!(of(&service("Local", Some("n1"), true), &[here]), None);
    }
    assert!(of(&service("Local", Some("n1"), true), &[vm("n1", false, false)]).is_some());
    // The address is announced, but no node is known: an announcer other than kube-vip announces
    // it.
    assert_eq!(of(&service("Local", None, true), &elsewhere), None);
}

#[test]
fn of_source_ranges_it_is_said_which_ports_they_do_not_close() {
    let with = |policy: &str| StoredService {
        source_range: Some("10.0.0.0/8".into()),
        ..service(policy, Some("n1"), true)
    };
    let here = [vm("n1", true, false)];
    let Some(SettingMisfit::SourceRanges(why)) = misfit(&with("Cluster"), &here) else { panic!() };
    assert!(why.contains("what the announcing node itself serves on TCP 443:"), "{why}");
    // If both settings are without effect, the setting that blocks all clients is reported.
    assert!(matches!(misfit(&with("Local"), &[]), Some(SettingMisfit::NoLocalBackend(_))));
    assert_eq!(misfit(&service("Cluster", Some("n1"), true), &here), None);
}
