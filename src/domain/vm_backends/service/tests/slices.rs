//! Tests of EndpointSlices as they are written, and as the view reads them back.

use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::*;
use crate::limits::text::LONGEST_WORD;
use crate::vm_backends::endpoint_slices;
use crate::vm_backends::endpoints::VmEndpoint;
use api::LABEL_SERVICE_NAME;

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn endpoints() -> Vec<VmEndpoint> {
    let vm = VmEndpoint {
        address: address("10.0.0.5"),
        name: "vm-1".into(),
        uid: "uid-1".into(),
        node: "n1".into(),
        serving: true,
        terminating: false,
    };
    let draining = VmEndpoint {
        address: address("10.0.0.6"),
        name: "vm-2".into(),
        uid: "uid-2".into(),
        terminating: true,
        ..vm.clone()
    };
    let failing = VmEndpoint {
        address: address("10.0.0.7"),
        name: "vm-3".into(),
        uid: "uid-3".into(),
        node: "".into(),
        serving: false,
        ..vm.clone()
    };
    vec![vm, draining, failing]
}

fn endpoint_port(name: &str, protocol: &str, port: u16) -> EndpointPort {
    EndpointPort { name: name.into(), protocol: protocol.into(), port }
}

fn slice_ports() -> Vec<EndpointPort> {
    vec![endpoint_port("http", "TCP", 8080)]
}

#[test]
fn a_slice_says_who_its_endpoints_are_and_how() {
    let sink = endpoint_slices::sink_endpoint("web", AddressFamily::V4, None);
    let all: Vec<VmEndpoint> = endpoints().into_iter().chain([sink]).collect();
    let slice = endpoint_slices::create(
        LB,
        "web.ipv4-2",
        AddressFamily::V4,
        &slice_ports(),
        &all,
        "2026-01-01T00:00:00Z",
    );
    let slice = serde_json::to_value(slice).unwrap();
    let conditions = |ready: bool, serving: bool, terminating: bool| json!({"ready": ready, "serving": serving, "terminating": terminating});
    let vm = |name: &str, uid: &str| json!({"kind": "VirtualMachineInstance", "namespace": "apps", "name": name, "uid": uid});
    let expected = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "web.ipv4-2", "namespace": "apps",
            "labels": {
                "kubernetes.io/service-name": "web",
                "loadbalancer.harvesterhci.io/servicelb": "true",
                "endpointslice.kubernetes.io/managed-by": "harvester-guest-operator",
            },
            "annotations":
                {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z"},
            "ownerReferences": [{"apiVersion": "loadbalancer.harvesterhci.io/v1beta1",
                "kind": "LoadBalancer", "name": "web", "uid": "lb-1"}],
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        "endpoints": [
            {"addresses": ["10.0.0.5"], "conditions": conditions(true, true, false),
                "nodeName": "n1", "targetRef": vm("vm-1", "uid-1")},
            {"addresses": ["10.0.0.6"], "conditions": conditions(false, true, true),
                "nodeName": "n1", "targetRef": vm("vm-2", "uid-2")},
            {"addresses": ["10.0.0.7"], "conditions": conditions(false, false, false),
                "targetRef": vm("vm-3", "uid-3")},
            // The sink refers to no VM, and has no node if the announcing node is unknown.
            {"addresses": ["192.0.2.1"], "conditions": conditions(false, true, true),
                "targetRef": {"namespace": "apps", "name": "web",
                    "uid": "dummy347-546a-4642-9da6-5608endpoint"}},
        ],
    });
    assert_eq!(slice, expected);
}

fn read_slice(slice: &Value) -> (String, endpoint_slices::StoredSlice) {
    let slice = serde_json::from_value::<EndpointSlice>(slice.clone()).unwrap();
    stored::read_slice(&slice).unwrap()
}

/// A slice that was written and read back equals the planned slice. Otherwise, the operator would
/// write it again for ever.
#[test]
fn a_slice_is_read_back_as_it_was_meant() {
    for family in [AddressFamily::V4, AddressFamily::V6] {
        for endpoints in [endpoints(), vec![endpoint_slices::sink_endpoint("web", family, None)]] {
            let slice =
                endpoint_slices::create(LB, "web", family, &slice_ports(), &endpoints, "then");
            let mut slice = serde_json::to_value(slice).unwrap();
            slice["metadata"]["resourceVersion"] = json!("9");
            let (key, read) = read_slice(&slice);
            let expected = endpoint_slices::StoredSlice {
                name: "web".into(),
                version: "9".into(),
                owner: "lb-1".into(),
                family: Some(family),
                ports: slice_ports(),
                endpoints,
                sound: true,
                holds_settings: false,
            };
            assert_eq!((key.as_str(), &read), ("apps/web", &expected));
        }
    }
}

/// Slice as this operator writes it, but with other endpoints.
fn slice_with(endpoints: &[Value]) -> Value {
    let slice = endpoint_slices::create(LB, "web", AddressFamily::V4, &slice_ports(), &[], "then");
    let mut slice = serde_json::to_value(slice).unwrap();
    slice["endpoints"] = json!(endpoints);
    slice
}

fn endpoint(name: &str, uid: &str, node: &str) -> Value {
    json!({
        "addresses": ["10.0.0.5"], "nodeName": node,
        "conditions": {"ready": true, "serving": true, "terminating": false},
        "targetRef": {"name": name, "uid": uid},
    })
}

/// An endpoint that is left out makes the slice not sound, so that the operator writes it again.
#[test]
fn an_endpoint_with_a_longer_name_or_uid_than_an_object_can_have_is_left_out() {
    let (longest, longer) = ("x".repeat(LONGEST_WORD), "x".repeat(LONGEST_WORD + 1));
    for (name, uid, node, expected) in [
        (&longest, &longest, &longest, (2, true)),
        (&longer, &longest, &longest, (1, false)),
        (&longest, &longer, &longest, (1, false)),
        (&longest, &longest, &longer, (1, false)),
    ] {
        let slice = slice_with(&[endpoint(name, uid, node), endpoint("vm-1", "uid-1", "n1")]);
        let read = read_slice(&slice).1;
        assert_eq!((read.endpoints.len(), read.sound), expected);
        assert_eq!(&*read.endpoints.last().unwrap().uid, "uid-1");
    }
}

/// Harvester's Go controller writes all VMs into one slice. An API server stores at most 1,000
/// endpoints of a slice.
#[test]
fn of_a_slice_as_many_endpoints_are_kept_as_a_controller_writes() {
    for (count, length, kept) in [
        (endpoint_slices::MOST, 253, endpoint_slices::MOST),
        (1_000, 40, 1_000),
        (1_001, 4, 1_000),
        // Of each endpoint, the name, the UID and the node have 253 bytes.
        (1_000, 253, 128 * 1024 / (3 * 253)),
    ] {
        let name = |n: usize| format!("{n:0>length$}");
        let each = |n: usize| endpoint(&name(n), &name(n), &name(n));
        let read = read_slice(&slice_with(&(0..count).map(each).collect::<Vec<_>>())).1;
        assert_eq!((read.endpoints.len(), read.sound), (kept, kept == count), "{count} {length}");
        assert_eq!(&*read.endpoints[kept - 1].uid, name(kept - 1));
    }
}

#[test]
fn of_a_slice_as_many_ports_are_kept_as_a_service_can_need() {
    for (count, kept) in [(256, 256), (257, 257), (258, 257), (20_000, 257)] {
        let mut slice = slice_with(&[]);
        let each = |n: usize| json!({"name": format!("p{n}"), "protocol": "TCP", "port": 80});
        slice["ports"] = (0..count).map(each).collect();
        let read = read_slice(&slice).1;
        assert_eq!((read.ports.len(), read.sound), (kept, kept == count), "{count}");
    }
}

#[test]
fn an_owner_with_a_longer_name_or_uid_than_an_object_can_have_owns_no_slice() {
    for field in ["name", "uid"] {
        for (length, is_owner) in [(LONGEST_WORD, true), (LONGEST_WORD + 1, false)] {
            let mut slice = slice_with(&[]);
            slice["metadata"]["ownerReferences"][0][field] = json!("x".repeat(length));
            let slice = serde_json::from_value::<EndpointSlice>(slice).unwrap();
            assert_eq!(stored::read_slice(&slice).is_some(), is_owner, "{field} {length}");
        }
    }
}

/// The stored slice is as Harvester's Go controller writes it: it has a dummy endpoint, and `ready`
/// is the only condition.
#[test]
fn a_patch_makes_a_go_controllers_slice_sound() {
    let mut stored = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": "web", "namespace": "apps", "resourceVersion": "9",
            "labels": {LABEL_SERVICE_NAME: "web", LABEL_SERVICE_LB: "true"},
            "annotations": {"others": "stay"},
            "ownerReferences": [{"apiVersion": "loadbalancer.harvesterhci.io/v1beta1",
                "kind": "LoadBalancer", "name": "web", "uid": "lb-1"}],
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "protocol": "TCP", "port": 80}],
        "endpoints": [
            {"addresses": ["10.0.0.5"], "conditions": {"ready": true},
                "targetRef": {"namespace": "apps", "name": "vm-1", "uid": "uid-1"}},
            {"addresses": ["10.52.0.255"], "conditions": {"ready": true},
                "targetRef": {"namespace": "apps", "name": "web", "uid": endpoint_slices::SINK_UID}},
        ],
    });
    let before = read_slice(&stored).1;
    assert!(!before.sound && before.endpoints.len() == 2);
    assert!(before.endpoints.iter().all(VmEndpoint::ready), "what was ready stays so meanwhile");
    let endpoints = endpoints();
    let patch = endpoint_slices::patch(LB, "9", &slice_ports(), &endpoints, "now");
    let patch = serde_json::to_value(patch).unwrap();
    assert_eq!(patch["metadata"]["resourceVersion"], "9");
    json_patch::merge(&mut stored, &patch);
    let annotations =
        json!({"others": "stay", "endpoints.kubernetes.io/last-change-trigger-time": "now"});
    assert_eq!(stored["metadata"]["annotations"], annotations);
    let after = read_slice(&stored).1;
    assert!(after.sound);
    assert_eq!((&after.ports, &after.endpoints), (&slice_ports(), &endpoints));
}

/// Slices with port 0 would be stored, and kube-proxy would ignore the port. So the announcing node
/// itself would answer.
#[test]
fn a_target_port_that_is_a_name_never_makes_a_port_0() {
    let listeners = listeners();
    let mut service = made(&wanted("10.0.0.100", &listeners));
    let slice = |name: &str, protocol: &str, port| StoredSlice {
        ports: vec![endpoint_port(name, protocol, port)],
        ..StoredSlice::default()
    };
    let before = [slice("http", "TCP", 7777)];
    let backend_port = |service: &Value, slices: &[StoredSlice]| {
        let ports = read(service).backend_ports(slices);
        assert_eq!(ports[0], endpoint_port("dns", "UDP", 53));
        assert_eq!((ports.len(), ports[1].name.as_str()), (2, "http"));
        ports[1].port
    };
    assert_eq!(backend_port(&service, &before), 8080, "a number of the Service counts first");
    service["spec"]["ports"][0]["targetPort"] = json!("by-name");
    assert_eq!(backend_port(&service, &before), 7777);
    let sinks = [slice("http", "TCP", SINK_PORT), slice("http", "TCP", 7777)];
    assert_eq!(backend_port(&service, &sinks), 7777, "another slice has the sink");
    let others = [slice("www", "TCP", 1), slice("http", "UDP", 2), slice("http", "TCP", 0)];
    assert_eq!(backend_port(&service, &others), SINK_PORT);
    assert_eq!(backend_port(&service, &sinks[..1]), SINK_PORT);
    assert_eq!(backend_port(&service, &[]), SINK_PORT);
}
