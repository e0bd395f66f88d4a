//! Service of a VM load balancer: its required content, and the writes that produce this content.
//! The Service asks kube-vip to announce an address.
//!
//! Invariants:
//!
//! * A stored object is changed or deleted only if it names the LoadBalancer as an owner, by UID.
//! * Of a Service, the operator owns the type, the ports, the families, the requested address, the
//!   absence of a selector, the owner reference, and the operator's label and annotations.
//!   Everything else (policies, other labels and annotations, node ports) belongs to the user or
//!   program that set it, and stays.

mod announcement_delay;
mod ineffective_settings;
mod interface;
pub mod settings;
pub mod stored;

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use chrono::{DateTime, FixedOffset, TimeDelta};
use serde_json::{Map, Value, json};

use super::endpoint_slices::{SINK_PORT, StoredSlice};
use super::endpoints::AddressFamily;
use super::lb_identity::{LbIdentity, owner_reference};
use super::ports::{EndpointPort, ListenerPort};
use crate::network::NetworkAttachment;
use crate::network::host_links::NetworkReach;
pub use announcement_delay::{HELD_UNTIL, IGNORED, NOT_ANNOUNCED, delay_announcement};
use api::{DHCP_ADDRESS, LABEL_SERVICE_LB};
pub use ineffective_settings::{SettingMisfit, misfit};
use interface::{changed_hints, hints, is_elsewhere};

/// Annotation with the address that kube-vip is asked to announce. The annotation has precedence
/// over `spec.loadBalancerIP`.
pub const ASKED_ADDRESS: &str = "kube-vip.io/loadbalancerIPs";
/// Annotation with the interface on which kube-vip is asked to announce the address.
pub const ASKED_INTERFACE: &str = "kube-vip.io/serviceInterface";
/// Annotation with the VLAN interface that kube-vip is asked to create and use, as `parent.tag`.
/// The operator never sets this annotation, because kube-vip 1.2.0 to 1.2.3 panics if that
/// interface exists. After such a panic, kube-vip no longer announces Harvester's management
/// address. Cause: `addVLAN` passes a nil parent to `ValidateVLANInterface`
/// (pkg/instance/instance.go).
pub const ASKED_VLAN: &str = "kube-vip.io/serviceVLAN";

/// Annotation with the external traffic policy with which the Service was created. If the Service
/// now has another policy, the operator replaces the Service. If the annotation is missing, the
/// operator adds it with the Service's present policy.
pub const MADE_WITH_POLICY: &str = "loadbalancer.harvesterhci.io/made-with-traffic-policy";
/// Annotation with the ports with which the Service was created. If the LoadBalancer no longer has
/// all of these ports, the operator replaces the Service. If the annotation is missing, the
/// operator adds it with the Service's present ports.
pub const MADE_WITH_PORTS: &str = "loadbalancer.harvesterhci.io/made-with-ports";
/// Annotation in which kube-vip writes the node that last announced the Service.
pub const ANNOUNCING_NODE: &str = "kube-vip.io/vipHost";
/// External traffic policy of a Service that names no policy.
const DEFAULT_POLICY: &str = "Cluster";

/// Reference to an object's owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerRef {
    /// Kind of the owner.
    pub kind: String,
    /// Name of the owner.
    pub name: String,
    /// UID of the owner.
    pub uid: String,
}

/// Facts that decisions use, from a stored Service. `annotations`, `ports` and `ingress` are empty
/// if no LoadBalancer owns the Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredService {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub version: String,
    /// Owners of the Service, as [`stored::owners`] reads them.
    pub owners: Vec<OwnerRef>,
    /// Whether the Service is being deleted.
    pub deleting: bool,
    /// First of `metadata.finalizers`, cut at 320 bytes. It delays a deletion.
    pub finalizer: Option<String>,
    /// Whether the Service has the label that marks Services of load balancers.
    pub labelled: bool,
    /// Annotations that decisions use: annotations for kube-vip, annotations that kube-vip writes,
    /// and the operator's own.
    pub annotations: BTreeMap<String, String>,
    /// `spec.type`.
    pub type_: String,
    /// Whether the Service has a `spec.selector`, so that Kubernetes itself manages its endpoints.
    pub has_selector: bool,
    /// `spec.loadBalancerIP`, cut at 320 bytes.
    pub load_balancer_ip: String,
    /// `spec.externalTrafficPolicy`.
    pub policy: String,
    /// First of `spec.loadBalancerSourceRanges`, cut at 320 bytes.
    pub source_range: Option<String>,
    /// First of `spec.ipFamilies`. `None`: the Service names no family.
    pub family: Option<AddressFamily>,
    /// `spec.ports`, at most one more than a LoadBalancer may have.
    pub ports: Vec<StoredPort>,
    /// Addresses at which an announcer announces the Service: `status.loadBalancer.ingress[].ip`,
    /// without an address that the operator itself wrote ([`NOT_ANNOUNCED`]).
    pub ingress: Vec<String>,
}

/// Port of a stored Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredPort {
    /// Name of the port; may be empty if it is the only port.
    pub name: String,
    /// Protocol: TCP, UDP, or another one that a user has set.
    pub protocol: String,
    /// Port at the address of the LoadBalancer.
    pub port: i32,
    /// Port of the endpoints, 1 to 65535: `targetPort`, or `port` if `targetPort` is unset. `None`:
    /// `targetPort` is a name, or not a valid number.
    pub target: Option<u16>,
    /// Port that every node opens for `port` (`nodePort`). 0: nodes open none.
    pub node_port: i32,
}

/// Facts from which the content of the LoadBalancer's Service is made.
#[derive(Clone, Debug)]
pub struct WantedService<'a> {
    /// Identity of the LoadBalancer.
    pub lb: LbIdentity<'a>,
    /// Address that kube-vip is asked to announce. `None`: kube-vip leases an address.
    pub address: Option<IpAddr>,
    /// Listeners of the LoadBalancer. Empty if the LoadBalancer's name or its listeners have a
    /// fault. In that case, no Service is written.
    pub listeners: &'a [ListenerPort],
    /// Network of the address, `namespace/name`; empty for the nodes' own network.
    pub network: &'a str,
    /// Bridge and VLAN of the network, if known.
    pub attachment: Option<&'a NetworkAttachment>,
    /// Whether announcers reach the network of `attachment` through VLAN links of their nodes.
    pub link: NetworkReach,
}

/// Next action on the LoadBalancer's Service.
#[derive(Clone, Debug, PartialEq)]
pub enum ServicePlan {
    /// Change nothing: the Service is as required.
    Keep,
    /// Create this Service, because no Service of this name exists.
    Create(Value),
    /// Apply this merge patch to the Service.
    Change(Value),
    /// Apply this merge patch to the status of a Service whose announcement is delayed.
    ChangeStatus(Value),
    /// Change nothing for this length of time: the announcement of the Service is delayed.
    DelayAnnouncement(TimeDelta),
    /// Change nothing, because the LoadBalancer does not own the Service. The text is from
    /// [`foreign`]: it names the owner, or says that the Service names no owner.
    Foreign(String),
    /// Wait, because the Service of this name is being deleted.
    Leaving,
    /// Delete the Service, so that it can be created again, for one of these reasons:
    ///
    /// * The Service has the wrong address family, which cannot be changed.
    /// * The Service asks for the wrong address. If a patch changed this address, kube-vip 1.2
    ///   would withdraw the old address, and would not announce the new one (`serviceChanged` in
    ///   pkg/services/processor.go).
    /// * The external traffic policy of the Service has changed since its creation. kube-vip 1.2
    ///   then withdraws the address, and does not announce it again (`serviceChanged`).
    /// * The Service asks for the wrong interface. kube-vip reads the interface once (see the
    ///   module `interface`).
    /// * The LoadBalancer no longer has a port with which the Service was created. kube-vip reads
    ///   the ports once, and still lets traffic for a removed port reach the node itself
    ///   (`SetServicePorts` in pkg/instance/instance.go, `insertIPTablesRulesForServicePorts`).
    Replace,
}

impl StoredService {
    /// Text with the addresses that the Service asks kube-vip to announce. The annotation
    /// [`ASKED_ADDRESS`] has precedence over `spec.loadBalancerIP`, as in kube-vip
    /// (`FetchServiceAddresses`). Empty if the Service asks for no address.
    fn asked(&self) -> &str {
        self.annotations.get(ASKED_ADDRESS).unwrap_or(&self.load_balancer_ip).trim()
    }

    fn policy(&self) -> &str {
        if self.policy.is_empty() { DEFAULT_POLICY } else { &self.policy }
    }

    /// Node that announced the Service last. `None`: no node has reported an announcement.
    pub fn announcing_node(&self) -> Option<&str> {
        self.annotations.get(ANNOUNCING_NODE).map(String::as_str).filter(|name| !name.is_empty())
    }

    /// Ports of the endpoints behind the Service, sorted. `slices`: stored slices of the Service.
    ///
    /// If a `targetPort` is a name, or not a valid number, the number of the endpoints' port is
    /// taken from `slices`. If `slices` have none either, the number is [`SINK_PORT`], on which VMs
    /// do not answer. No port is left out: on a missing port, the announcing node itself would
    /// answer.
    pub fn backend_ports<S: Borrow<StoredSlice>>(&self, slices: &[S]) -> Vec<EndpointPort> {
        let of = |port: &StoredPort| EndpointPort {
            name: port.name.clone(),
            protocol: port.protocol.clone(),
            port: port.target.or_else(|| port.number_in(slices)).unwrap_or(SINK_PORT),
        };
        let mut ports: Vec<EndpointPort> = self.ports.iter().map(of).collect();
        ports.sort();
        ports
    }

    /// Whether the Service asks for `address`, or is announced at it. In both cases, traffic for
    /// the address may reach the Service.
    pub fn asks_for(&self, address: IpAddr) -> bool {
        self.addresses().any(|ip| ip == address)
    }

    /// Addresses that the Service asks for, and those at which it is announced. An address may
    /// occur more than once.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let asked = self.annotations.get(ASKED_ADDRESS).into_iter().flat_map(|ips| ips.split(','));
        let all = asked.chain([self.load_balancer_ip.as_str()]);
        let all = all.chain(self.ingress.iter().map(String::as_str));
        all.filter_map(|ip| ip.trim().parse().ok())
    }
}

impl StoredPort {
    /// Number that `slices`, the stored slices of the Service, have for this port. The numbers 0
    /// and [`SINK_PORT`] do not count, because VMs do not answer on them. `None`: `slices` have no
    /// other number.
    fn number_in<S: Borrow<StoredSlice>>(&self, slices: &[S]) -> Option<u16> {
        let ports = slices.iter().flat_map(|slice| &slice.borrow().ports);
        let mut of_vms = ports.filter(|port| ![0, SINK_PORT].contains(&port.port));
        let same = of_vms.find(|port| port.name == self.name && port.protocol == self.protocol);
        same.map(|port| port.port)
    }
}

impl WantedService<'_> {
    /// Address that the Service must ask for, as text. `0.0.0.0`: kube-vip leases an address.
    pub fn asked(&self) -> String {
        self.address.map_or_else(|| DHCP_ADDRESS.to_owned(), |ip| ip.to_string())
    }

    /// Address family that the Service must have.
    pub fn family(&self) -> AddressFamily {
        self.address.map_or(AddressFamily::V4, AddressFamily::of)
    }
}

/// Plans the next action on the Service. `stored`: `None` if there is no Service of this name.
///
/// While the announcement of a Service is delayed, the content of the Service is corrected before
/// the delay is ended. So kube-vip does not announce a Service in which a tenant has changed a
/// field that the operator owns.
pub fn plan(
    stored: Option<&StoredService>,
    wanted: &WantedService<'_>,
    now: DateTime<FixedOffset>,
) -> ServicePlan {
    let Some(stored) = stored else { return ServicePlan::Create(create(wanted)) };
    if let Some(whose) = foreign(&stored.owners, wanted.lb) {
        return ServicePlan::Foreign(whose);
    }
    if stored.deleting {
        return ServicePlan::Leaving;
    }
    let made_with = stored.annotations.get(MADE_WITH_POLICY);
    let other_policy = made_with.is_some_and(|made_with| made_with != stored.policy());
    let other_place = asks_for_another(stored, wanted) || is_elsewhere(stored, wanted);
    if other_family(stored, wanted) || other_policy || other_place || loses_a_port(stored, wanted) {
        return ServicePlan::Replace;
    }
    if let Some(patch) = patch(stored, wanted) {
        return ServicePlan::Change(patch);
    }
    announcement_delay::next_step(stored, &wanted.asked(), now)
}

/// Whether the Service has another address family than the wanted one.
pub fn other_family(stored: &StoredService, wanted: &WantedService<'_>) -> bool {
    stored.family.is_some_and(|family| family != wanted.family())
}

/// Whether the Service asks kube-vip for an address other than the wanted address. `false` for a
/// Service that asks for no address. Such a Service can be patched: kube-vip announces the wanted
/// address as soon as the Service asks for it.
fn asks_for_another(stored: &StoredService, wanted: &WantedService<'_>) -> bool {
    let (asked, wanted) = (stored.asked(), wanted.asked());
    !asked.is_empty() && asked.parse::<IpAddr>().ok() != wanted.parse().ok()
}

/// Text that lists ports as `port/protocol`, separated by commas.
fn ports_text(ports: impl Iterator<Item = (i32, String)>) -> String {
    ports.map(|(port, protocol)| format!("{port}/{protocol}")).collect::<Vec<_>>().join(",")
}

/// Ports with which the Service was created, as [`ports_text`] lists them. Without the annotation
/// [`MADE_WITH_PORTS`], the Service's present ports are assumed.
fn made_with_ports(stored: &StoredService) -> String {
    let now = || ports_text(stored.ports.iter().map(|port| (port.port, port.protocol.clone())));
    stored.annotations.get(MADE_WITH_PORTS).cloned().unwrap_or_else(now)
}

/// Ports that the Service must have, as [`ports_text`] lists them.
fn wanted_ports(wanted: &WantedService<'_>) -> String {
    ports_text(wanted.listeners.iter().map(|l| (i32::from(l.port), l.protocol.clone())))
}

/// Whether a port with which the Service was created is no longer wanted.
fn loses_a_port(stored: &StoredService, wanted: &WantedService<'_>) -> bool {
    let (before, after) = (made_with_ports(stored), wanted_ports(wanted));
    let after: BTreeSet<&str> = after.split(',').collect();
    before.split(',').any(|port| !port.is_empty() && !after.contains(port))
}

/// Text of a condition: the Service that has the LoadBalancer's name does not belong to the
/// LoadBalancer. `lb`: `namespace/name`. `whose`: text from [`foreign`].
pub fn conflict(lb: &str, whose: &str) -> String {
    format!(
        "a Service {lb} exists: {whose}; the operator does not change it: remove it, or create the LoadBalancer under another name"
    )
}

/// Text that names the owner of an object, or says that the object names no owner. `None`: the
/// LoadBalancer `lb` owns the object. `owners`: owners of the object.
pub fn foreign(owners: &[OwnerRef], lb: LbIdentity<'_>) -> Option<String> {
    if owners.iter().any(|owner| owner.uid == lb.uid) {
        return None;
    }
    Some(match owners.first() {
        None => "it names no owner, so it was created by hand or with another tool".to_owned(),
        Some(owner) if owner.kind == "LoadBalancer" && owner.name == lb.name => {
            "it belongs to an earlier LoadBalancer of the same name, and is deleted with it"
                .to_owned()
        }
        Some(owner) => format!("it belongs to {} {}", owner.kind, owner.name),
    })
}

fn create(wanted: &WantedService<'_>) -> Value {
    let mut annotations = Map::from_iter([
        (ASKED_ADDRESS.to_owned(), json!(wanted.asked())),
        (MADE_WITH_POLICY.to_owned(), json!(DEFAULT_POLICY)),
        (MADE_WITH_PORTS.to_owned(), json!(wanted_ports(wanted))),
    ]);
    annotations.extend(hints(wanted));
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": wanted.lb.name,
            "namespace": wanted.lb.namespace,
            "labels": {LABEL_SERVICE_LB: "true"},
            "annotations": annotations,
            "ownerReferences": [owner_reference(wanted.lb)],
        },
        "spec": {
            "type": "LoadBalancer",
            "ipFamilies": [wanted.family().name()],
            "ipFamilyPolicy": "SingleStack",
            "loadBalancerIP": wanted.asked(),
            // kube-vip needs no node ports. A node port would be open on every node, and would
            // bypass the source ranges.
            "allocateLoadBalancerNodePorts": false,
            "ports": wanted.listeners.iter().map(|l| port(l, None)).collect::<Vec<_>>(),
        },
    })
}

fn patch(stored: &StoredService, wanted: &WantedService<'_>) -> Option<Value> {
    let asked = wanted.asked();
    let has = |annotation: &str| stored.annotations.contains_key(annotation);
    let asks = stored.annotations.get(ASKED_ADDRESS) == Some(&asked);
    let mut annotations = present([
        (ASKED_ADDRESS, (!asks).then(|| json!(asked))),
        (MADE_WITH_POLICY, (!has(MADE_WITH_POLICY)).then(|| json!(stored.policy()))),
        (MADE_WITH_PORTS, (!has(MADE_WITH_PORTS)).then(|| json!(made_with_ports(stored)))),
    ]);
    annotations.extend(changed_hints(stored, wanted));
    let mut metadata = present([
        ("labels", (!stored.labelled).then(|| json!({LABEL_SERVICE_LB: "true"}))),
        ("annotations", (!annotations.is_empty()).then_some(Value::Object(annotations))),
    ]);
    let of_service = stored.ports.iter().map(|p| (&p.name, &p.protocol, p.port, p.target));
    let of_listeners = wanted.listeners.iter();
    let of_listeners =
        of_listeners.map(|l| (&l.name, &l.protocol, i32::from(l.port), Some(l.backend_port)));
    let with_node_port = |listener: &ListenerPort| {
        let before = stored.ports.iter().find(|port| {
            port.port == i32::from(listener.port) && port.protocol == listener.protocol
        });
        port(listener, before.map(|port| port.node_port).filter(|port| *port != 0))
    };
    let ports = || wanted.listeners.iter().map(with_node_port).collect();
    let spec = present([
        ("type", (stored.type_ != "LoadBalancer").then(|| json!("LoadBalancer"))),
        ("loadBalancerIP", (stored.load_balancer_ip != asked).then(|| json!(asked))),
        ("selector", stored.has_selector.then_some(Value::Null)),
        ("ports", (!of_service.eq(of_listeners)).then(ports)),
    ]);
    if metadata.is_empty() && spec.is_empty() {
        return None;
    }
    metadata.insert("resourceVersion".to_owned(), json!(stored.version));
    let spec = (!spec.is_empty()).then_some(Value::Object(spec));
    let patch = present([("metadata", Some(Value::Object(metadata))), ("spec", spec)]);
    Some(Value::Object(patch))
}

/// JSON object with all `fields` that have a value.
fn present<const N: usize>(fields: [(&str, Option<Value>); N]) -> Map<String, Value> {
    fields.into_iter().filter_map(|(field, value)| Some((field.to_owned(), value?))).collect()
}

fn port(listener: &ListenerPort, node_port: Option<i32>) -> Value {
    let mut port = json!({
        "name": listener.name,
        "protocol": listener.protocol,
        "port": listener.port,
        "targetPort": listener.backend_port,
    });
    if let Some(node_port) = node_port {
        port["nodePort"] = json!(node_port);
    }
    port
}

#[cfg(test)]
mod tests;
