//! Tests of the Service: an API server stores it, users and programs edit it, and the view reads it
//! back.

mod anew;
mod hints;
mod slices;

use k8s_openapi::api::core::v1::Service;
use proptest::prelude::*;

use super::stored::read_service;
use super::*;
use crate::network::host_links::HostLinks;

const LB: LbIdentity<'_> = LbIdentity { namespace: "apps", name: "web", uid: "lb-1" };

fn listener(name: &str, protocol: &str, port: u16, backend_port: u16) -> ListenerPort {
    ListenerPort { name: name.into(), protocol: protocol.into(), port, backend_port }
}

pub(super) fn listeners() -> [ListenerPort; 2] {
    [listener("http", "TCP", 80, 8080), listener("dns", "UDP", 53, 53)]
}

pub(super) fn wanted<'a>(address: &str, listeners: &'a [ListenerPort]) -> WantedService<'a> {
    let address = address.parse().ok();
    WantedService {
        lb: LB,
        address,
        listeners,
        network: "",
        attachment: None,
        link: NetworkReach::NotConfigured,
    }
}

/// Returns a copy of `wanted` that names a network. `network`: name of the network. `attachment`:
/// bridge and VLAN of the network. The copy assumes that nodes have a bridge for each cluster
/// network, and no link for a VLAN.
fn on<'a>(
    network: &'a str,
    attachment: &'a NetworkAttachment,
    wanted: &WantedService<'a>,
) -> WantedService<'a> {
    let link = HostLinks::default().link(attachment);
    WantedService { network, attachment: Some(attachment), link, ..wanted.clone() }
}

pub(super) fn read(service: &Value) -> StoredService {
    read_service(&serde_json::from_value::<Service>(service.clone()).unwrap())
}

/// Returns the created `service` as an API server stores it, with default values.
fn defaulted(mut service: Value) -> Value {
    service["metadata"]["uid"] = json!("svc-1");
    service["metadata"]["resourceVersion"] = json!("7");
    service["status"] = json!({"loadBalancer": {}});
    let spec = service["spec"].as_object_mut().unwrap();
    for (field, value) in [
        ("clusterIP", "10.53.0.9"),
        ("sessionAffinity", "None"),
        ("externalTrafficPolicy", "Cluster"),
    ] {
        spec.entry(field).or_insert_with(|| json!(value));
    }
    service
}

/// Returns the created `service` as an API server stores it, after a user has asked for node ports.
fn accepted(service: Value) -> Value {
    let mut service = defaulted(service);
    service["spec"]["allocateLoadBalancerNodePorts"] = json!(true);
    for (n, port) in service["spec"]["ports"].as_array_mut().unwrap().iter_mut().enumerate() {
        port["nodePort"] = json!(30_000 + n);
    }
    service
}

/// Service that the operator creates if no Service exists.
pub(super) fn fresh(wanted: &WantedService<'_>) -> Value {
    let ServicePlan::Create(service) = plan(None, wanted) else { panic!("there is none") };
    service
}

fn made(wanted: &WantedService<'_>) -> Value {
    accepted(fresh(wanted))
}

fn announced(mut service: Value, ip: &str) -> Value {
    service["status"]["loadBalancer"]["ingress"] = json!([{"ip": ip, "ipMode": "VIP"}]);
    service
}

/// Plan at a fixed time. The time matters only for a Service whose announcement is delayed.
pub(super) fn plan(stored: Option<&StoredService>, wanted: &WantedService<'_>) -> ServicePlan {
    super::plan(stored, wanted, noon())
}

fn noon() -> DateTime<FixedOffset> {
    "2026-11-25T12:00:00Z".parse().unwrap()
}

/// Carries out one plan. Returns the Service after the plan, and whether the plan had a write.
fn repaired(service: &Value, wanted: &WantedService<'_>) -> (Value, bool) {
    match plan(Some(&read(service)), wanted) {
        ServicePlan::Keep => (service.clone(), false),
        ServicePlan::Replace => {
            (defaulted(settings::applied(fresh(wanted), &settings::of(service).text)), true)
        }
        ServicePlan::Change(patch) => {
            assert_eq!(patch["metadata"]["resourceVersion"], "7", "every write is a swap");
            let mut service = service.clone();
            json_patch::merge(&mut service, &patch);
            (service, true)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_service_says_who_asks_for_which_address_and_selects_nothing() {
    let listeners = listeners();
    let expected = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": "web", "namespace": "apps",
            "labels": {"loadbalancer.harvesterhci.io/servicelb": "true"},
            "annotations": {
                "kube-vip.io/loadbalancerIPs": "10.0.0.100",
                "loadbalancer.harvesterhci.io/made-with-traffic-policy": "Cluster",
                "loadbalancer.harvesterhci.io/made-with-ports": "80/TCP,53/UDP",
            },
            "ownerReferences": [{"apiVersion": "loadbalancer.harvesterhci.io/v1beta1",
                "kind": "LoadBalancer", "name": "web", "uid": "lb-1"}],
        },
        "spec": {
            "type": "LoadBalancer", "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
            "allocateLoadBalancerNodePorts": false, "loadBalancerIP": "10.0.0.100",
            "ports": [
                {"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080},
                {"name": "dns", "protocol": "UDP", "port": 53, "targetPort": 53},
            ],
        },
    });
    assert_eq!(plan(None, &wanted("10.0.0.100", &listeners)), ServicePlan::Create(expected));
}

#[test]
fn what_was_created_needs_no_further_write() {
    let listeners = listeners();
    let vlan = NetworkAttachment { bridge: "mgmt-br".into(), vlan: 7 };
    for (address, asked, family) in [
        ("10.0.0.100", "10.0.0.100", "IPv4"),
        ("fd00::100", "fd00::100", "IPv6"),
        // kube-vip leases the address.
        ("", "0.0.0.0", "IPv4"),
    ] {
        let wanted = wanted(address, &listeners);
        let service = made(&wanted);
        let expected = json!({
            ASKED_ADDRESS: asked, MADE_WITH_POLICY: "Cluster", MADE_WITH_PORTS: "80/TCP,53/UDP",
        });
        assert_eq!(service["metadata"]["annotations"], expected);
        assert_eq!(service["spec"]["loadBalancerIP"], asked);
        assert_eq!(service["spec"]["ipFamilies"], json!([family]));
        for service in [announced(service.clone(), "10.0.0.100"), service] {
            assert_eq!(plan(Some(&read(&service)), &wanted), ServicePlan::Keep, "{address:?}");
        }
        let wanted = on("apps/vlan7", &vlan, &wanted);
        assert_eq!(plan(Some(&read(&made(&wanted))), &wanted), ServicePlan::Keep, "{address:?}");
    }
}

/// Edits that a user makes by hand, as merge patches. Each edit changes a field that the operator
/// owns.
fn edits() -> Vec<Value> {
    let ports = |ports: Value| json!({"spec": {"ports": ports}});
    let http = json!({"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080,
        "nodePort": 30000});
    let dns = json!({"name": "dns", "protocol": "UDP", "port": 53, "targetPort": 53,
        "nodePort": 30001});
    let with = |port: &Value, key: &str, value: Value| {
        let mut port = port.clone();
        port[key] = value;
        port
    };
    vec![
        json!({"metadata": {"labels": {LABEL_SERVICE_LB: null}}}),
        json!({"metadata": {"labels": {LABEL_SERVICE_LB: "false"}}}),
        json!({"metadata": {"labels": null, "annotations": null}}),
        json!({"metadata": {"annotations": {ASKED_ADDRESS: null}}}),
        json!({"spec": {"type": "ClusterIP"}}),
        json!({"spec": {"type": "NodePort"}}),
        json!({"spec": {"selector": {"app": "web"}}}),
        json!({"spec": {"loadBalancerIP": "10.0.0.101"}}),
        json!({"spec": {"loadBalancerIP": null}}),
        ports(json!([dns, http])),
        ports(json!([http])),
        ports(json!([http, dns, {"name": "ssh", "protocol": "TCP", "port": 22}])),
        ports(json!([with(&http, "targetPort", json!(8081)), dns])),
        ports(json!([with(&http, "targetPort", json!("by-name")), dns])),
        ports(json!([with(&http, "name", json!("www")), dns])),
        ports(json!([http, with(&dns, "name", json!("domain"))])),
    ]
}

#[test]
fn what_is_the_operators_is_put_right_with_node_ports_kept() {
    let listeners = listeners();
    let wanted = wanted("10.0.0.100", &listeners);
    let service = announced(made(&wanted), "10.0.0.100");
    for edit in edits() {
        let mut edited = service.clone();
        json_patch::merge(&mut edited, &edit);
        let (after, wrote) = repaired(&edited, &wanted);
        assert!(wrote, "{edit}");
        // A listener keeps its node port, unless the edit removed the listener's port from the
        // Service.
        let all_there = edited["spec"]["ports"].as_array().unwrap().len() >= 2;
        let mut expected = service.clone();
        if !all_there {
            expected["spec"]["ports"][1].as_object_mut().unwrap().remove("nodePort");
        }
        assert_eq!(after, expected, "{edit}");
    }
}

/// A patch contains only the fields that differ.
#[test]
fn a_repair_says_no_more_than_it_must() {
    let listeners = listeners();
    let wanted = wanted("10.0.0.100", &listeners);
    for (edit, expected) in [
        (
            json!({"metadata": {"labels": null}}),
            json!({"metadata": {"resourceVersion": "7", "labels": {LABEL_SERVICE_LB: "true"}}}),
        ),
        (
            json!({"spec": {"selector": {"app": "web"}}}),
            json!({"metadata": {"resourceVersion": "7"}, "spec": {"selector": null}}),
        ),
        (
            json!({"spec": {"type": "ClusterIP"}}),
            json!({"metadata": {"resourceVersion": "7"}, "spec": {"type": "LoadBalancer"}}),
        ),
    ] {
        let mut service = made(&wanted);
        json_patch::merge(&mut service, &edit);
        assert_eq!(plan(Some(&read(&service)), &wanted), ServicePlan::Change(expected), "{edit}");
    }
}

/// Merge patch with fields that users, kube-vip and API servers add to a Service.
fn additions() -> Value {
    json!({
        "metadata": {
            "labels": {"team": "blue"},
            "annotations": {
                "kube-vip.io/vipHost": "n1", "kube-vip.io/hwaddr": "00:00:6c:0d:5a:be",
                "kube-vip.io/requestedIP": "10.0.0.9", "field.cattle.io/description": "mine",
                MADE_WITH_POLICY: "Local",
            },
            "finalizers": ["service.kubernetes.io/load-balancer-cleanup"],
        },
        "spec": {
            "externalTrafficPolicy": "Local", "healthCheckNodePort": 32000,
            "sessionAffinity": "ClientIP", "loadBalancerSourceRanges": ["10.0.0.0/8"],
            "allocateLoadBalancerNodePorts": false, "publishNotReadyAddresses": true,
            "loadBalancerClass": "kube-vip.io/kube-vip-class", "trafficDistribution": "PreferClose",
        },
    })
}

#[test]
fn what_others_added_is_left_alone() {
    let listeners = listeners();
    let wanted = wanted("10.0.0.100", &listeners);
    let mut service = made(&wanted);
    json_patch::merge(&mut service, &additions());
    let second = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "cm-1"});
    service["metadata"]["ownerReferences"].as_array_mut().unwrap().insert(0, second);
    service["spec"]["ports"][0]["nodePort"] = json!(31_000);
    service["spec"]["ports"][0]["appProtocol"] = json!("http");
    assert_eq!(plan(Some(&read(&service)), &wanted), ServicePlan::Keep);
    let edit = json!({"metadata": {"labels": {LABEL_SERVICE_LB: null}, "annotations":
        {ASKED_ADDRESS: null}}, "spec": {"selector": {"app": "web"}, "loadBalancerIP": ""}});
    let mut edited = service.clone();
    json_patch::merge(&mut edited, &edit);
    assert_eq!(repaired(&edited, &wanted), (service, true), "a repair touches nothing else");
}

/// An edit of the listeners does not change the node ports of the listeners that stay.
#[test]
fn a_change_of_listeners_keeps_node_ports_of_those_that_stay() {
    let before = listeners();
    let service = made(&wanted("10.0.0.100", &before));
    let after = [
        listener("domain", "UDP", 53, 5353),
        listener("dns-tcp", "TCP", 53, 53),
        listener("https", "TCP", 443, 8443),
    ];
    let after = wanted("10.0.0.100", &after);
    let (service, _) = repaired(&service, &after);
    let expected = json!([
        {"name": "domain", "protocol": "UDP", "port": 53, "targetPort": 5353, "nodePort": 30001},
        {"name": "dns-tcp", "protocol": "TCP", "port": 53, "targetPort": 53},
        {"name": "https", "protocol": "TCP", "port": 443, "targetPort": 8443},
    ]);
    assert_eq!(service["spec"]["ports"], expected);
}

/// An address is given to another LoadBalancer only when it no longer leads to any Service.
#[test]
fn an_address_leads_here_while_it_is_announced_or_asked_for_however_it_is_spelled() {
    let service = |annotation: &str, field: &str, ingress: &[&str]| StoredService {
        annotations: BTreeMap::from([(ASKED_ADDRESS.to_owned(), annotation.to_owned())]),
        load_balancer_ip: field.to_owned(),
        ingress: ingress.iter().map(|ip| (*ip).to_owned()).collect(),
        ..StoredService::default()
    };
    for (stored, expected) in [
        (service("10.0.0.100", "", &[]), [true, false]),
        (service("10.0.0.1, fd00:0::0100", "", &[]), [false, true]),
        (service("", "10.0.0.100", &[]), [true, false]),
        (service("10.0.0.1", "10.0.0.1", &["10.0.0.100", "fd00::100"]), [true, true]),
        (service("nonsense", "10.0.0.10", &["10.0.0.1000"]), [false, false]),
        (StoredService::default(), [false, false]),
    ] {
        let asks = ["10.0.0.100", "fd00::100"].map(|ip| stored.asks_for(ip.parse().unwrap()));
        assert_eq!(asks, expected, "{stored:?}");
    }
}

#[test]
fn the_finalizer_that_delays_the_end_of_a_service_is_read() {
    let listeners = listeners();
    let mut service = made(&wanted("10.0.0.100", &listeners));
    assert_eq!(read(&service).finalizer, None);
    service["metadata"]["finalizers"] = json!(["example.com/one", "example.com/two"]);
    assert_eq!(read(&service).finalizer.as_deref(), Some("example.com/one"));
}

#[test]
fn anothers_service_is_left_alone_and_it_is_said_whose_it_is() {
    let listeners = listeners();
    let wanted = wanted("10.0.0.100", &listeners);
    let owner = |kind: &str, name: &str, uid: &str| json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": uid});
    let by_hand = "it names no owner, so it was created by hand or with another tool";
    let earlier = "it belongs to an earlier LoadBalancer of the same name, and is deleted with it";
    for (owners, whose) in [
        (json!([]), by_hand),
        (Value::Null, by_hand),
        (json!([owner("LoadBalancer", "web", "lb-0")]), earlier),
        (json!([owner("LoadBalancer", "other", "lb-0")]), "it belongs to LoadBalancer other"),
        (json!([owner("HelmChart", "web", "x")]), "it belongs to HelmChart web"),
    ] {
        let mut service = made(&wanted);
        service["metadata"]["ownerReferences"] = owners;
        // The result is the same if the other owner's Service also has the wrong family or a
        // selector.
        service["spec"]["ipFamilies"] = json!(["IPv6"]);
        service["spec"]["selector"] = json!({"app": "web"});
        let foreign = ServicePlan::Foreign(whose.to_owned());
        assert_eq!(plan(Some(&read(&service)), &wanted), foreign);
        service["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(plan(Some(&read(&service)), &wanted), foreign);
    }
}

/// A tenant may write texts of any length into these fields.
#[test]
fn of_the_texts_of_a_service_little_is_kept() {
    let listeners = listeners();
    let mut service = made(&wanted("10.0.0.100", &listeners));
    let long = "x".repeat(300_000);
    let owner = |kind: &str| json!({"apiVersion": "v1", "kind": kind, "name": long, "uid": long});
    let owners = service["metadata"]["ownerReferences"].as_array_mut().unwrap();
    owners.extend([owner("LoadBalancer"), owner(&long)]);
    service["spec"]["loadBalancerIP"] = json!(long);
    service["spec"]["loadBalancerSourceRanges"] = json!([long]);
    service["metadata"]["finalizers"] = json!([long]);
    service["metadata"]["annotations"]["kube-vip.io/other"] = json!(long);
    let stored = read(&service);
    assert_eq!(foreign(&stored.owners, LB), None);
    let kept = format!("{stored:?}").len();
    assert!(kept < 4096, "{kept} bytes");
    // An annotation that decisions use is cut.
    service["metadata"]["annotations"][ASKED_INTERFACE] = json!(long);
    let kept = format!("{:?}", read(&service)).len();
    assert!(kept < 8192, "{kept} bytes");
    // Of a Service that no LoadBalancer owns, no annotation is kept.
    service["metadata"]["ownerReferences"] = json!([owner(&long)]);
    assert!(read(&service).annotations.is_empty());
}

#[test]
fn one_on_its_way_out_is_waited_for_and_one_of_the_other_family_goes_first() {
    let listeners = listeners();
    let (v4, v6) = (wanted("10.0.0.100", &listeners), wanted("fd00::100", &listeners));
    for (stored, wanted) in [(&v4, &v6), (&v6, &v4)] {
        let mut service = made(stored);
        assert_eq!(plan(Some(&read(&service)), wanted), ServicePlan::Replace);
        service["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(plan(Some(&read(&service)), wanted), ServicePlan::Leaving);
        assert_eq!(plan(Some(&read(&service)), stored), ServicePlan::Leaving);
    }
    assert_eq!(plan(Some(&read(&made(&v6))), &wanted("", &listeners)), ServicePlan::Replace);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    /// One write corrects the Service after any number of edits. No second write is needed.
    #[test]
    fn one_write_puts_it_right(
        hands in prop::collection::vec(prop::sample::select(edits()), 0..6),
        added in any::<bool>(), is_announced in any::<bool>(), vlan in prop::option::of(0_u16..3),
        address in prop::sample::select(vec!["10.0.0.100", "10.0.0.101", ""]),
    ) {
        let listeners = listeners();
        let mut service = made(&wanted("10.0.0.100", &listeners));
        if added {
            json_patch::merge(&mut service, &additions());
        }
        if is_announced {
            service = announced(service, "10.0.0.100");
        }
        for edit in &hands {
            json_patch::merge(&mut service, edit);
        }
        let attachment = NetworkAttachment { bridge: "br".into(), vlan: vlan.unwrap_or_default() };
        let mut wanted = wanted(address, &listeners);
        if vlan.is_some() {
            wanted = on("apps/net", &attachment, &wanted);
        }
        let (after, _) = repaired(&service, &wanted);
        prop_assert_eq!(plan(Some(&read(&after)), &wanted), ServicePlan::Keep);
        prop_assert_eq!(&after["spec"]["type"], "LoadBalancer");
        prop_assert_eq!(after["spec"].get("selector"), None);
        prop_assert_eq!(read(&after).load_balancer_ip, wanted.asked());
    }
}
