//! Tests of the reports that an informer's event makes, before and after its kind was listed.

use std::future::pending;
use std::mem;

use http::{Request, Response};
use kube::Resource as _;
use kube::client::{Body, ClientBuilder};
use kube::core::{ObjectMeta, Status};
use tower::{BoxError, service_fn};

use super::*;
use crate::api::ANNOTATION_NAMESPACE_PROJECT;
use crate::api::kubevirt::{HostNetworkConfig, LauncherPod};
use crate::k8s::informer::ObjectEvent;

impl LeaderViews {
    /// Inputs of the informers. The server of the client answers no request.
    pub(super) fn informer(&self) -> InformerContext {
        let server = service_fn(|_: Request<Body>| pending::<Result<Response<Body>, BoxError>>());
        InformerContext {
            client: ClientBuilder::new(server, "ns").build(),
            views: self.views.clone(),
            metrics: self.metrics.clone(),
        }
    }
}

/// Event that reports the end of an object that a list does not contain.
fn unlisted<K>(key: &str) -> ObjectEvent<K> {
    ObjectEvent::Gone(key.to_owned(), None)
}

pub(super) fn refused<K>(code: u16) -> ObjectEvent<K> {
    ObjectEvent::Refused(Status::failure("no", "").with_code(code).boxed())
}

/// Record of the LoadBalancer `name` in namespace `ns`, with a leased address.
fn record(name: &str, address: &str) -> DHCPLease {
    read(json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1alpha1", "kind": "DHCPLease",
        "metadata": {"namespace": "ns", "name": name},
        "spec": {
            "network": "ns/lan", "macAddress": "02:00:5e:10:00:01", "clientID": "",
            "hostname": name,
        },
        "status": {"address": address},
    }))
}

#[tokio::test]
async fn a_launcher_pod_wakes_the_load_balancers_that_select_its_vm() {
    let mut leader = LeaderViews::new();
    let at = leader.informer();
    for lb in ["ns/db", "ns/web", "other/web"] {
        leader.vm_lb(lb);
    }
    leader.vm("web", "10.52.0.7", true);
    leader.reports(&["ns/web"]);
    assert!(leader.views.take_touched("ns/web").is_some());
    let pod = |vm: &str, ready: &str| {
        read::<LauncherPod>(json!({
            "metadata": {"namespace": "ns", "name": "virt-launcher-a", "uid": "pod",
                "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "name": vm, "uid": vm,
                    "kind": "VirtualMachineInstance", "controller": true}]},
            "spec": {"nodeName": "node-1"},
            "status": {"phase": "Running", "podIPs": [{"ip": "10.52.0.7"}],
                "conditions": [{"type": "Ready", "status": ready}]},
        }))
    };
    let apply = |event| vms::apply_pod(&at, event);
    apply(ObjectEvent::Listed(pod("a", "False")));
    leader.reports(&["ns/web"]);
    assert!(leader.views.take_touched("ns/web").is_some());
    apply(ObjectEvent::Changed(pod("a", "False")));
    leader.reports(&[]);
    apply(ObjectEvent::Changed(pod("a", "True")));
    leader.reports(&["ns/web"]);
    assert!(leader.views.take_touched("ns/web").is_some());
    apply(unlisted("ns/virt-launcher-a"));
    leader.reports(&["ns/web"]);
    assert!(leader.views.take_touched("ns/web").is_some());
    apply(unlisted("ns/virt-launcher-a"));
    leader.reports(&[]);
    apply(ObjectEvent::Changed(pod("another", "True")));
    leader.reports(&[]);
    leader.views.synced.send_replace(!(ViewPart::Nodes as u32));
    apply(ObjectEvent::Changed(pod("a", "True")));
    leader.reports(&[]);
}

/// Only vm LoadBalancers are announced by nodes, so only the vm LoadBalancer is enqueued.
#[tokio::test]
async fn a_changed_link_of_a_node_wakes_every_load_balancer_of_vms() {
    let mut leader = LeaderViews::new();
    let at = leader.informer();
    leader.vm_lb("ns/web");
    leader.lb("ns/guest", &json!({}), &json!({"workloadType": "cluster"}));
    let config = |ready: &str| {
        read::<HostNetworkConfig>(json!({
            "apiVersion": "network.harvesterhci.io/v1beta1", "kind": "HostNetworkConfig",
            "metadata": {"name": "lan"}, "spec": {"clusterNetwork": "mgmt", "vlanID": 5},
            "status": {"nodeStatus": {
                "node-1": {"conditions": [{"type": "Ready", "status": ready}]},
            }},
        }))
    };
    let apply = |event| host_links::apply(&at, event);
    apply(ObjectEvent::Listed(config("False")));
    leader.reports(&["ns/web"]);
    apply(ObjectEvent::Changed(config("False")));
    leader.reports(&[]);
    apply(ObjectEvent::Changed(config("True")));
    leader.reports(&["ns/web"]);
    apply(ObjectEvent::Unreadable(config("True").metadata));
    leader.reports(&["ns/web"]);
    apply(ObjectEvent::Unreadable(config("True").metadata));
    leader.reports(&[]);
    apply(ObjectEvent::Listed(config("True")));
    leader.reports(&["ns/web"]);
    apply(unlisted("lan"));
    leader.reports(&["ns/web"]);
    apply(unlisted("lan"));
    leader.reports(&[]);
    leader.views.synced.send_replace(!(ViewPart::Slices as u32));
    apply(ObjectEvent::Listed(config("True")));
    leader.reports(&[]);
}

/// A record that has become unreadable stays in the view as it was.
#[tokio::test]
async fn a_record_wakes_the_load_balancer_of_its_name() {
    let mut leader = LeaderViews::new();
    let at = leader.informer();
    let mut writer = mem::take(&mut leader.records);
    let mut apply = |event| leases::apply_record(&at, &mut writer, event);
    let address = || leader.views.record("ns/web")?.status.as_ref()?.address.clone();
    apply(ObjectEvent::Listed(record("web", "10.7.0.7")));
    leader.reports(&["ns/web"]);
    apply(ObjectEvent::Changed(record("web", "10.7.0.8")));
    leader.reports(&["ns/web"]);
    assert_eq!(address().as_deref(), Some("10.7.0.8"));
    apply(ObjectEvent::Unreadable(record("web", "10.7.0.8").metadata));
    leader.reports(&["ns/web"]);
    assert_eq!(address().as_deref(), Some("10.7.0.8"));
    apply(unlisted("ns/web"));
    leader.reports(&["ns/web"]);
    assert_eq!(address(), None);
}

/// A claim changes the version of its pool. The generation stays the same where IPPool has a status
/// subresource.
#[tokio::test]
async fn every_version_of_a_pool_is_reported_and_its_end_by_name() {
    let mut leader = LeaderViews::new();
    let at = leader.informer();
    leader.vm_lb("ns/web");
    let pool = |version: &str| {
        read::<pools::PoolMetadata>(json!({
            "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "IPPool",
            "metadata": {"name": "p", "uid": "u", "generation": 1, "resourceVersion": version},
        }))
    };
    let apply = |event| pools::apply(&at, event);
    assert!(apply(ObjectEvent::Listed(pool("7"))), "its spec is to be read");
    leader.reports(&["pool p 7"]);
    assert!(!apply(ObjectEvent::Changed(pool("8"))), "the same generation");
    leader.reports(&["pool p 8"]);
    assert!(apply(unlisted("p")), "its spec was to be read");
    leader.reports(&["pool gone p"]);
    assert!(apply(ObjectEvent::Complete), "the reads of the list may be complete");
    leader.reports(&[]);
}

/// The API server deletes a namespace after the LoadBalancers in it. So a deletion that was
/// observed enqueues none.
#[tokio::test]
async fn a_namespace_that_a_list_does_not_contain_wakes_its_load_balancers() {
    let mut leader = LeaderViews::new();
    let at = leader.informer();
    for lb in ["ns/db", "ns/web", "other/web"] {
        leader.vm_lb(lb);
    }
    let namespace: namespaces::NamespaceMetadata = read(json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "ns", "annotations": {ANNOTATION_NAMESPACE_PROJECT: "c:p"}},
    }));
    let project = || leader.views.project_of("ns");
    let apply = |event| namespaces::apply(&at, event);
    apply(ObjectEvent::Listed(namespace.clone()));
    leader.reports(&["ns/db", "ns/web"]);
    assert_eq!(project(), Project::In("c/p".to_owned()));
    apply(ObjectEvent::Changed(namespace.clone()));
    leader.reports(&[]);
    apply(unlisted("ns"));
    leader.reports(&["ns/db", "ns/web"]);
    assert_eq!(project(), Project::Unknown);
    apply(ObjectEvent::Listed(namespace.clone()));
    leader.reports(&["ns/db", "ns/web"]);
    apply(ObjectEvent::Gone("ns".to_owned(), Some(namespace.metadata)));
    leader.reports(&[]);
    assert_eq!(project(), Project::Unknown);
}

#[tokio::test]
async fn a_service_that_a_list_does_not_contain_wakes_its_load_balancer() {
    let leader = LeaderViews::new();
    let at = leader.informer();
    let service: Service = read(json!({
        "metadata": {"namespace": "ns", "name": "web", "resourceVersion": "7"},
    }));
    let apply = |event| services_and_slices::apply_service(&at, event);
    apply(ObjectEvent::Listed(service.clone()));
    leader.reports(&["ns/web"]);
    apply(ObjectEvent::Changed(service));
    leader.reports(&[]);
    apply(unlisted("ns/web"));
    leader.reports(&["ns/web"]);
    assert!(leader.views.services.keys().is_empty());
    apply(unlisted("ns/web"));
    leader.reports(&[]);
}

/// The metadata of a deleted slice names the LoadBalancer even if the view does not have the slice,
/// or has a newer version of it.
#[tokio::test]
async fn a_slice_that_is_gone_wakes_its_load_balancer() {
    let leader = LeaderViews::new();
    let at = leader.informer();
    let deleted = |version: &str| {
        ObjectEvent::Gone("ns/web-1".to_owned(), Some(slice("web", version).meta().clone()))
    };
    let apply = |event| services_and_slices::apply_slice(&at, event);
    apply(ObjectEvent::Listed(slice("web", "5")));
    leader.reports(&["ns/web"]);
    apply(unlisted("ns/web-1"));
    leader.reports(&["ns/web"]);
    assert!(leader.views.slices.keys().is_empty());
    apply(unlisted("ns/web-1"));
    leader.reports(&[]);
    apply(ObjectEvent::Listed(slice("web", "7")));
    leader.reports(&["ns/web"]);
    apply(deleted("6"));
    leader.reports(&["ns/web"]);
    assert_eq!(leader.views.slices.of("ns/web").count(), 1);
    for _ in 0..2 {
        apply(deleted("8"));
        leader.reports(&["ns/web"]);
        assert!(leader.views.slices.keys().is_empty());
    }
}

/// A node gets or loses an address that a VM reports and that a record has, while one part of the
/// views is not listed. The leader decides all endpoints, or all leases, after that list.
#[test]
fn an_address_of_the_cluster_wakes_only_those_that_can_be_decided() {
    let mut leader = LeaderViews::new();
    leader.vm_lb("ns/web");
    leader.vm("web", "10.7.0.7", true);
    leader.records.set(record("leased", "10.7.0.7"));
    leader.reports(&["ns/web"]);
    let node = Reserved::Node("n".into());
    let of_endpoints =
        [ViewPart::Vms, ViewPart::Pods, ViewPart::Services, ViewPart::Slices, ViewPart::HostLinks];
    let of_leases = [ViewPart::Records, ViewPart::Agents];
    let of_both = [
        ViewPart::Nodes,
        ViewPart::Addresses,
        ViewPart::ServiceNetworks,
        ViewPart::Management,
        ViewPart::Networks,
    ];
    let of_none = [
        ViewPart::LoadBalancers,
        ViewPart::Pools,
        ViewPart::PoolSpecs,
        ViewPart::Namespaces,
        ViewPart::Machines,
    ];
    for (parts, expected) in [
        (&of_endpoints[..], &["networks", "ns/leased"][..]),
        (&of_leases, &["networks", "ns/web"]),
        (&of_both, &["networks"]),
        (&of_none, &["networks", "ns/leased", "ns/web"]),
    ] {
        for part in parts {
            leader.views.synced.send_replace(!(*part as u32));
            for networks in [vec!["10.7.0.7/32".parse().unwrap()], Vec::new()] {
                leader.views.reserve(&node, networks);
                leader.reports(expected);
            }
        }
    }
}

#[tokio::test]
async fn the_first_list_of_a_part_that_leases_need_wakes_those_with_leased_addresses() {
    let mut leader = LeaderViews::new();
    let at = leader.informer();
    leader.vm_lb("ns/web");
    leader.lb("ns/leased", &json!({}), &json!({"ipam": "dhcp"}));
    leader.views.synced.send_replace(0);
    let of_leases = [
        ViewPart::Vms,
        ViewPart::Nodes,
        ViewPart::Addresses,
        ViewPart::ServiceNetworks,
        ViewPart::Management,
        ViewPart::Networks,
        ViewPart::Records,
        ViewPart::Agents,
    ];
    let others = [
        ViewPart::LoadBalancers,
        ViewPart::Pools,
        ViewPart::PoolSpecs,
        ViewPart::Namespaces,
        ViewPart::Machines,
        ViewPart::Pods,
        ViewPart::Services,
        ViewPart::Slices,
        ViewPart::HostLinks,
    ];
    for (parts, expected) in [(&of_leases[..], &["ns/leased"][..]), (&others, &[])] {
        for part in parts {
            at.done(*part);
            leader.reports(expected);
            at.done(*part);
            leader.reports(&[]);
        }
    }
    let views = &leader.views;
    assert!(views.is_synced() && views.endpoints_synced() && views.leasing_synced());
}

/// The view may lack LoadBalancers that compete with the listed one, until the list is complete.
#[tokio::test]
async fn the_end_of_a_list_of_load_balancers_wakes_all_of_them() {
    let mut leader = LeaderViews::new();
    let at = leader.informer();
    leader.vm_lb("ns/web");
    let lb = LoadBalancer::clone(&leader.views.load_balancers.state()[0]);
    let seen = TrimmedLb { lb, trimming: LbTrimming::default() };
    leader.vm_lb("ns/db");
    let mut writer = mem::take(&mut leader.load_balancers);
    let mut apply = |event| load_balancers::apply(&at, &mut writer, event);
    apply(ObjectEvent::Listed(seen.clone()));
    leader.reports(&[]);
    apply(ObjectEvent::Changed(seen));
    leader.reports(&["ns/web"]);
    apply(ObjectEvent::Complete);
    leader.reports(&["ns/db", "ns/web"]);
}

/// A LoadBalancer that cannot be read, and one that the first list has not reached, exist.
#[tokio::test]
async fn the_end_of_a_service_proves_nothing_about_an_owner_that_is_not_in_the_view() {
    let mut leader = LeaderViews::new();
    let meta = |uid: &str| -> ObjectMeta {
        read(json!({
            "namespace": "ns", "name": "web", "uid": uid, "resourceVersion": "7",
            "ownerReferences": [{"apiVersion": "loadbalancer.harvesterhci.io/v1beta1",
                "kind": "LoadBalancer", "name": "web", "uid": uid}],
        }))
    };
    let at = leader.informer();
    let event = ObjectEvent::Unreadable(meta("unreadable"));
    load_balancers::apply(&at, &mut leader.load_balancers, event);
    leader.views.remove_service(&meta("unreadable"));
    leader.reports(&["ns/web"]);
    leader.views.synced.send_replace(0);
    leader.views.remove_service(&meta("unlisted"));
    leader.reports(&["ns/web"]);
}

/// A list reports the end of known LoadBalancers only. No event has reported the deletion of the
/// first LoadBalancer, nor of the second one of the same name.
#[tokio::test]
async fn a_load_balancer_that_could_never_be_read_ends_with_a_list() {
    let mut leader = LeaderViews::new();
    let at = leader.informer();
    let mut writer = mem::take(&mut leader.load_balancers);
    let mut apply = |event| load_balancers::apply(&at, &mut writer, event);
    let known = || load_balancers::known(&leader.views);
    let meta =
        |uid: &str| -> ObjectMeta { read(json!({"namespace": "ns", "name": "web", "uid": uid})) };
    apply(ObjectEvent::Unreadable(meta("first")));
    assert_eq!(known(), ["ns/web".to_owned()].into());
    leader.reports(&[]);
    apply(ObjectEvent::Unreadable(meta("second")));
    assert_eq!(known(), ["ns/web".to_owned()].into());
    leader.reports(&["gone ns/web first"]);
    apply(unlisted("ns/web"));
    assert!(known().is_empty());
    leader.reports(&["gone ns/web second"]);
    assert!(!leader.views.has_uid("first") && !leader.views.has_uid("second"));
}

/// A network that the view lacks is unknown before the list is complete, and does not exist
/// afterwards. So pools are compared again.
#[tokio::test]
async fn the_end_of_each_list_of_networks_is_reported() {
    let mut leader = LeaderViews::new();
    let at = leader.informer();
    leader.lb("ns/leased", &json!({}), &json!({"ipam": "dhcp"}));
    leader.views.synced.send_replace(0);
    networks::apply(&at, ObjectEvent::Complete);
    leader.reports(&["networks", "ns/leased"]);
    networks::apply(&at, ObjectEvent::Complete);
    leader.reports(&["networks"]);
}

/// VMs that are not served do not count as listed, because their kind may be served later. But
/// leases do not wait for them.
#[tokio::test]
async fn a_kind_that_cannot_be_listed_does_not_hold_up_leases() {
    for (code, is_out_of_reach, is_unserved) in
        [(404, true, true), (403, true, false), (500, false, false)]
    {
        let mut leader = LeaderViews::new();
        let at = leader.informer();
        leader.lb("ns/leased", &json!({}), &json!({"ipam": "dhcp"}));
        leader.views.synced.send_replace(0);
        let leased_if = |holds: bool| -> &[&str] { if holds { &["ns/leased"] } else { &[] } };
        leases::apply_record(&at, &mut leader.records, refused(code));
        leader.reports(leased_if(is_out_of_reach));
        networks::apply(&at, refused(code));
        leader.reports(if is_unserved { &["networks", "ns/leased"] } else { &[] });
        networks::apply(&at, refused(code));
        leader.reports(&[]);
        vms::apply_vm(&at, refused(code));
        leader.reports(leased_if(is_unserved));
        vms::apply_vm(&at, refused(code));
        leader.reports(&[]);
        assert_eq!(leader.views.has_no_vms(), is_unserved, "{code}");
        assert!(!leader.views.is_listed(ViewPart::Vms), "{code}");
        host_links::apply(&at, refused(code));
        leader.reports(&[]);
        assert_eq!(leader.views.is_listed(ViewPart::HostLinks), is_out_of_reach, "{code}");
    }
}
