//! Tests of the LoadBalancers that a change enqueues, by the kind of the changed object.

mod awaited_vms;
mod conversion;
mod events;
mod leased;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;
use crate::api::kubevirt::{NetworkAttachmentDefinition, Node, VirtualMachineInstance};
use crate::api::{ANNOTATION_DHCP, ANNOTATION_NETWORK, ANNOTATION_ROUTE};
use crate::domain::network::infrastructure::Reserved;
use crate::k8s::informer::split_key;
use crate::k8s::lazy_object::LazyObject;
use crate::k8s::trimmed::{LbTrimming, TrimmedLb};

/// Views of a leader, and the changes that the views have reported to the leader.
struct LeaderViews {
    views: Views,
    load_balancers: StoreWriter<LoadBalancer>,
    records: StoreWriter<DHCPLease>,
    metrics: Metrics,
    reported: Arc<Mutex<Vec<String>>>,
    _subscription: ChangeSubscription,
}

fn read<T: DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).unwrap()
}

fn text(change: ChangeEvent) -> String {
    match change {
        ChangeEvent::LoadBalancer(lb) => format!("{}/{}", lb.namespace.unwrap(), lb.name),
        ChangeEvent::Gone(owner) => format!("gone {} {}", owner.name, owner.uid),
        ChangeEvent::Pool(name, version) => format!("pool {name} {version}"),
        ChangeEvent::PoolGone(name) => format!("pool gone {name}"),
        ChangeEvent::Networks => "networks".to_owned(),
        ChangeEvent::Moved(vm) => format!("moved {vm}"),
    }
}

impl LeaderViews {
    /// Views in which each kind counts as listed, and networks of namespace `ns` may be declared.
    fn new() -> Self {
        let namespaces = ["ns".to_owned()].into();
        let dhcp = dhcp_lease::DhcpNetworks { namespaces, ..dhcp_lease::DhcpNetworks::default() };
        let (views, load_balancers, records) = Views::new(dhcp);
        views.synced.send_replace(u32::MAX);
        let reported: Arc<Mutex<Vec<String>>> = Arc::default();
        let heard = reported.clone();
        let subscription = views.subscribe(move |change| lock(&heard).push(text(change)));
        let metrics = Metrics::new().unwrap();
        Self { views, load_balancers, records, metrics, reported, _subscription: subscription }
    }

    /// Adds the LoadBalancer `key`, which is a `namespace/name`.
    fn lb(&mut self, key: &str, annotations: &Value, spec: &Value) {
        let (namespace, name) = split_key(key);
        let lb: LoadBalancer = read(json!({
            "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
            "metadata": {
                "namespace": namespace, "name": name, "uid": format!("uid-{name}"),
                "annotations": annotations,
                "labels": {"cloudprovider.harvesterhci.io/cluster": "guest"},
            },
            "spec": spec,
        }));
        let seen = TrimmedLb { lb, trimming: LbTrimming::default() };
        let writer = &mut self.load_balancers;
        load_balancers::set(&self.views, &self.metrics, writer, seen);
    }

    /// Adds a LoadBalancer that selects the VMs whose label `app` is its name.
    fn vm_lb(&mut self, key: &str) {
        let (_, name) = split_key(key);
        self.lb(key, &json!({}), &json!({"backendServerSelector": {"app": [name]}}));
    }

    /// Adds or changes VM `ns/a`, with label `app` and one address on network `ns/lan`.
    fn vm(&self, app: &str, address: &str, is_ready: bool) {
        let ready = if is_ready { "True" } else { "False" };
        self.views.set_vm(&read::<VirtualMachineInstance>(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"namespace": "ns", "name": "a", "uid": "a", "labels": {"app": app}},
            "spec": {"networks": [{"name": "lan", "multus": {"networkName": "ns/lan"}}]},
            "status": {
                "phase": "Running", "nodeName": "node-1",
                "conditions": [{"type": "Ready", "status": ready}],
                "interfaces": [{"name": "lan", "ipAddress": address, "ipAddresses": [address]}],
            },
        })));
    }

    /// Adds or changes network `ns/lan`.
    fn network(&self, vlan: u16, annotations: &Value) {
        let config = json!({"type": "bridge", "bridge": "mgmt-br", "vlan": vlan}).to_string();
        let network = read::<NetworkAttachmentDefinition>(json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": {"namespace": "ns", "name": "lan", "annotations": annotations},
            "spec": {"config": config},
        }));
        self.views.set_network(&network);
    }

    fn node(&self, labels: &Value) {
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "node-1", "labels": labels},
        });
        self.views.set_node(&read::<Node>(node));
    }

    /// Checks that exactly the changes in `expected` were reported since the last call, in any
    /// order.
    #[track_caller]
    fn reports(&self, expected: &[&str]) {
        let mut reported = std::mem::take(&mut *lock(&self.reported));
        reported.sort();
        reported.dedup();
        assert_eq!(reported, expected);
    }
}

#[test]
fn a_vm_wakes_the_load_balancers_that_select_it() {
    let mut leader = LeaderViews::new();
    for lb in ["ns/db", "ns/web", "other/web"] {
        leader.vm_lb(lb);
    }
    leader.vm("web", "10.52.0.7", true);
    leader.reports(&["ns/web"]);
    leader.vm("web", "10.52.0.7", true);
    leader.reports(&[]);
    leader.vm("web", "10.52.0.7", false);
    leader.reports(&["ns/web"]);
    leader.vm("db", "10.52.0.7", false);
    leader.reports(&["ns/db", "ns/web"]);
    assert!(leader.views.take_touched("ns/db").is_some());
    leader.views.remove_vm("ns/a");
    leader.reports(&["ns/db"]);
}

#[test]
fn a_node_in_another_zone_moves_its_vms_and_wakes_no_load_balancer() {
    let mut leader = LeaderViews::new();
    leader.vm_lb("ns/web");
    leader.vm("web", "10.52.0.7", true);
    leader.reports(&["ns/web"]);
    let zone = json!({"topology.kubernetes.io/zone": "z1"});
    leader.node(&zone);
    leader.reports(&["moved ns/a"]);
    leader.node(&zone);
    leader.reports(&[]);
}

/// A new node may run an announcer, which announces addresses on links of that node. Only vm
/// LoadBalancers are announced by nodes, so only the vm LoadBalancer is enqueued.
#[test]
fn an_announcing_node_wakes_every_load_balancer_of_vms() {
    let mut leader = LeaderViews::new();
    leader.vm_lb("ns/web");
    leader.lb("ns/guest", &json!({}), &json!({"workloadType": "cluster"}));
    leader.node(&json!({"node-role.kubernetes.io/control-plane": "true"}));
    leader.reports(&["ns/web"]);
    leader.views.synced.send_replace(0);
    leader.views.remove_node("node-1");
    leader.reports(&[]);
}

#[test]
fn a_network_wakes_those_that_depend_on_what_has_changed() {
    let mut leader = LeaderViews::new();
    leader.vm_lb("ns/web");
    leader.vm("web", "10.7.0.7", true);
    let on_lan = json!({ANNOTATION_NETWORK: "ns/lan"});
    leader.lb("ns/named", &on_lan, &json!({}));
    leader.lb("ns/leased", &on_lan, &json!({"ipam": "dhcp"}));
    leader.lb("ns/elsewhere", &json!({ANNOTATION_NETWORK: "ns/wan"}), &json!({"ipam": "dhcp"}));
    leader.reports(&["ns/web"]);
    leader.network(5, &json!({}));
    leader.reports(&["networks", "ns/leased", "ns/named"]);
    leader.network(5, &json!({"unknown": "annotation"}));
    leader.reports(&[]);
    leader.network(6, &json!({}));
    leader.reports(&["networks", "ns/leased", "ns/named"]);
    leader.network(6, &json!({ANNOTATION_DHCP: "true"}));
    leader.reports(&["ns/leased"]);
    let range = json!({"cidr": "10.7.0.0/24", "gateway": "10.7.0.1"}).to_string();
    leader.network(6, &json!({ANNOTATION_DHCP: "true", ANNOTATION_ROUTE: range}));
    leader.reports(&["ns/leased", "ns/web"]);
    leader.views.remove_network("ns/lan");
    leader.reports(&["networks", "ns/leased", "ns/named", "ns/web"]);
    leader.views.remove_network("ns/lan");
    leader.reports(&[]);
}

#[test]
fn a_namespace_in_another_project_wakes_its_load_balancers() {
    let mut leader = LeaderViews::new();
    leader.vm_lb("ns/web");
    leader.vm_lb("other/web");
    for (project, expected) in [("a", &["ns/web"][..]), ("a", &[]), ("b", &["ns/web"])] {
        leader.views.set_project("ns", Project::In(project.to_owned()));
        leader.reports(expected);
    }
}

#[test]
fn the_removal_of_a_guest_cluster_wakes_its_load_balancers_in_its_namespace() {
    let mut leader = LeaderViews::new();
    let guest = json!({"workloadType": "cluster"});
    leader.lb("ns/guest", &json!({}), &guest);
    leader.lb("other/guest", &json!({}), &guest);
    leader.vm_lb("ns/web");
    leader.views.set_machine("ns/vm", Some("another".to_owned()));
    leader.reports(&[]);
    for cluster in [Some("guest".to_owned()), None] {
        leader.views.set_machine("ns/vm", cluster);
        leader.reports(&["ns/guest"]);
    }
}

#[test]
fn an_address_of_the_cluster_wakes_those_whose_vms_report_it() {
    let mut leader = LeaderViews::new();
    leader.vm_lb("ns/web");
    leader.vm("web", "10.7.0.7", true);
    leader.reports(&["ns/web"]);
    let (node, service) = (Reserved::Node("n".into()), Reserved::ClusterIp("ns/s".into()));
    let net = |text: &str| vec![text.parse().unwrap()];
    leader.views.reserve(&node, net("10.7.0.8/32"));
    leader.reports(&["networks"]);
    leader.views.reserve(&node, net("10.7.0.7/32"));
    leader.reports(&["networks", "ns/web"]);
    leader.views.reserve(&node, net("10.7.0.7/32"));
    leader.reports(&[]);
    // A pool holds back whole service networks, not the cluster IP of one Service. So the change
    // concerns no pool, and `networks` is not reported.
    leader.views.reserve(&service, net("10.7.0.7/32"));
    leader.reports(&["ns/web"]);
    leader.views.synced.send_replace(0);
    leader.views.reserve(&service, Vec::new());
    leader.reports(&[]);
}

#[test]
fn an_agent_that_comes_or_goes_wakes_those_that_lease_on_its_network() {
    let mut leader = LeaderViews::new();
    let dhcp = json!({"ipam": "dhcp"});
    leader.lb("ns/leased", &json!({ANNOTATION_NETWORK: "ns/lan"}), &dhcp);
    leader.lb("ns/elsewhere", &json!({ANNOTATION_NETWORK: "ns/wan"}), &dhcp);
    leader.network(5, &json!({ANNOTATION_DHCP: "host"}));
    leader.reports(&["networks", "ns/leased"]);
    // A tenant can name any network, so only a declared one is watched.
    assert_eq!(leader.views.leasing_networks(), ["ns/lan".to_owned()].into());
    let lease_of = |seconds: u64, name: &str, holder: &str, renewed: &str| {
        let lease: Lease = read(json!({
            "metadata": {"name": name, "resourceVersion": renewed},
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": seconds,
                "renewTime": renewed},
        }));
        leader.views.set_agent(&lease);
    };
    let lease = |name: &str, holder: &str, renewed: &str| lease_of(600, name, holder, renewed);
    let agent = crate::domain::dhcp_lease::agent_name("ns/lan");
    lease(&agent, "one", "2100-01-01T00:00:00.000000Z");
    leader.reports(&["ns/leased"]);
    lease(&agent, "one", "2100-01-01T00:00:01.000000Z");
    leader.reports(&[]);
    lease(&agent, "two", "2100-01-01T00:00:02.000000Z");
    leader.reports(&["ns/leased"]);
    // The Lease is over at once, so the next renewal is late.
    lease_of(0, &agent, "two", "2100-01-01T00:00:03.000000Z");
    leader.reports(&[]);
    lease(&agent, "two", "2100-01-01T00:00:04.000000Z");
    leader.reports(&["ns/leased"]);
    leader.views.remove_agent(&format!("ns/{agent}"));
    leader.reports(&["ns/leased"]);
    leader.views.remove_agent(&format!("ns/{agent}"));
    leader.reports(&[]);
    lease("another", "one", "2100-01-01T00:00:00.000000Z");
    leader.reports(&[]);
}

#[test]
fn the_end_of_a_service_reports_an_owner_that_is_gone() {
    let mut leader = LeaderViews::new();
    leader.vm_lb("ns/web");
    let service = |owner: &str| {
        read::<Service>(json!({
            "metadata": {"namespace": "ns", "name": "web", "resourceVersion": "7",
                "ownerReferences": [{"apiVersion": "loadbalancer.harvesterhci.io/v1beta1",
                    "kind": "LoadBalancer", "name": "web", "uid": owner}]},
        }))
    };
    leader.views.remove_service(&service("uid-web").metadata);
    leader.reports(&["ns/web"]);
    leader.views.remove_service(&service("uid-before").metadata);
    leader.reports(&["gone ns/web uid-before", "ns/web"]);
}

/// A list contains a LoadBalancer with a new UID and the name of a LoadBalancer in the view. No
/// event has reported the deletion of the LoadBalancer in the view.
#[test]
fn a_load_balancer_made_again_under_its_name_ends_the_former_one() {
    let mut leader = LeaderViews::new();
    leader.vm_lb("ns/web");
    let mut again = LoadBalancer::clone(&leader.views.load_balancers.state()[0]);
    again.metadata.uid = Some("another".to_owned());
    let seen = TrimmedLb { lb: again, trimming: LbTrimming::default() };
    load_balancers::set(&leader.views, &leader.metrics, &mut leader.load_balancers, seen.clone());
    leader.reports(&["gone ns/web uid-web"]);
    assert!(!leader.views.has_uid("uid-web") && leader.views.has(&seen.lb));
    leader.vm("web", "10.52.0.7", true);
    leader.reports(&["ns/web"]);
}

/// The time until an address is the time until the first one. An event that is late, or the loss of
/// the address, starts no other measurement.
#[test]
fn the_wait_for_an_address_is_measured_once() {
    let mut leader = LeaderViews::new();
    let set = |leader: &mut LeaderViews, name: &str, address: Option<&str>| {
        let status = address.map(|ip| json!({"allocatedAddress": {"ip": ip}}));
        let lb = read(json!({
            "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
            "metadata": {
                "namespace": "ns", "name": name, "uid": name,
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {}, "status": status,
        }));
        let seen = TrimmedLb { lb, trimming: LbTrimming::default() };
        load_balancers::set(&leader.views, &leader.metrics, &mut leader.load_balancers, seen);
    };
    let measured = |leader: &LeaderViews| leader.metrics.time_to_address.get_sample_count();
    set(&mut leader, "web", None);
    leader.metrics.addressed("web");
    for address in [None, Some("10.0.0.1"), None] {
        set(&mut leader, "web", address);
        leader.metrics.addressed("web");
        assert_eq!(measured(&leader), 1);
    }
    // The address is published while another process leads.
    set(&mut leader, "db", None);
    let last = leader.views.subscribe(|_| ());
    drop(last);
    set(&mut leader, "db", Some("10.0.0.2"));
    leader.metrics.addressed("db");
    assert_eq!(measured(&leader), 1);
}

/// An event that is older than the version in the view changes nothing. A list without the object
/// removes the object from the view.
#[test]
fn an_owned_object_never_goes_back_in_time_and_ends_with_a_list() {
    let slices = OwnedObjects::<u8>::default();
    assert!(slices.store("ns/web", "web-2", "5", 2) && slices.store("ns/web", "web-1", "7", 1));
    assert!(!slices.store("ns/web", "web-1", "6", 0), "an event that is older than a write");
    slices.forget("ns/web", "web-1", "6");
    assert_eq!(slices.of("ns/web").collect::<Vec<_>>(), [1, 2], "the end of an earlier one");
    assert_eq!(slices.keys(), ["ns/web-1".to_owned(), "ns/web-2".to_owned()].into());
    assert_eq!(slices.remove("other/web-1", None), None);
    assert_eq!(slices.remove("ns/web-1", None).as_deref(), Some("ns/web"));
    slices.forget("ns/web", "web-2", "5");
    assert!(slices.keys().is_empty());
}

#[test]
fn versions_that_are_no_numbers_are_followed_as_they_arrive() {
    let slices = OwnedObjects::<u8>::default();
    assert!(slices.store("ns/web", "web-1", "b", 1) && slices.store("ns/web", "web-1", "a", 2));
    assert!(!slices.store("ns/web", "web-1", "a", 3), "the version in the view");
    assert_eq!(slices.remove("ns/web-1", Some("c")).as_deref(), Some("ns/web"));
}

fn slice(lb: &str, version: &str) -> LazyObject<EndpointSlice> {
    let owner = json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
        "name": lb, "uid": format!("uid-{lb}"),
    });
    serde_json::from_value(json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "namespace": "ns", "name": "web-1", "uid": "slice", "resourceVersion": version,
            "ownerReferences": if lb.is_empty() { json!([]) } else { json!([owner]) },
        },
        "endpoints": [],
    }))
    .unwrap()
}

#[test]
fn both_load_balancers_are_woken_when_a_slice_gets_another_owner() {
    let leader = LeaderViews::new();
    services_and_slices::store_observed_slice(&leader.views, &slice("web", "5"));
    leader.reports(&["ns/web"]);
    services_and_slices::store_observed_slice(&leader.views, &slice("mail", "6"));
    leader.reports(&["ns/mail", "ns/web"]);
    assert_eq!(leader.views.slices.of("ns/web").count(), 0);
    services_and_slices::store_observed_slice(&leader.views, &slice("web", "5"));
    services_and_slices::store_observed_slice(&leader.views, &slice("mail", "6"));
    leader.reports(&[]);
    assert_eq!(leader.views.slices.of("ns/mail").count(), 1);
    services_and_slices::store_observed_slice(&leader.views, &slice("", "7"));
    leader.reports(&["ns/mail"]);
    assert_eq!(leader.views.slices.of("ns/mail").count(), 0);
}

/// The slices may show a Service that is not watched.
#[test]
fn a_load_balancer_may_have_slices_until_all_are_listed() {
    let leader = LeaderViews::new();
    let owner = |uid: &str| Owner { name: "ns/web".to_owned(), uid: uid.to_owned() };
    let slice = StoredSlice { owner: "uid-web".to_owned(), ..StoredSlice::default() };
    leader.views.slices.store("ns/web", "web-1", "5", Arc::new(slice));
    assert!(leader.views.has_slices(&owner("uid-web")));
    assert!(!leader.views.has_slices(&owner("another")), "they are an earlier one's");
    leader.views.synced.send_replace(ViewPart::Services as u32);
    assert!(leader.views.has_slices(&owner("another")));
}

#[test]
fn a_subscription_that_ends_late_does_not_end_the_next_one() {
    let mut leader = LeaderViews::new();
    leader.vm_lb("ns/web");
    let next = leader.views.subscribe(|_| ());
    leader.views.enqueue_lbs(["ns/web"]);
    leader.reports(&[]);
    let heard = leader.reported.clone();
    let last = leader.views.subscribe(move |change| lock(&heard).push(text(change)));
    drop(next);
    leader.views.enqueue_lbs(["ns/web"]);
    leader.reports(&["ns/web"]);
    drop(last);
    leader.views.enqueue_lbs(["ns/web"]);
    leader.reports(&[]);
}
