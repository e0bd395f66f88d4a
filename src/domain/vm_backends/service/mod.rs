//! The Service that asks for an address: what it must say, and what to write so that it does.
//!
//! Invariants: only objects that name the LoadBalancer as their owner, by UID, are written or
//! deleted; what others add to them stays. Of a Service the operator owns: type, ports, families,
//! requested address, no selector, its label and owner. Everything else (policies, more labels
//! and annotations, node ports) belongs to whoever set it.

mod held;
mod interface;
mod misfit;
pub mod settings;
pub mod stored;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::{Map, Value, json};

use super::endpoint_slices::Port;
use super::endpoints::Family;
use super::listeners::Listener;
use crate::network::Attachment;
use crate::network::host_links::Link;
use api::{DHCP_ADDRESS, GROUP, LABEL_SERVICE_LB};
pub use held::{HELD_UNTIL, Held, IGNORED, NOT_ANNOUNCED, held, hold_back};
use interface::{changed_hints, hints, is_elsewhere};
pub use misfit::{Misfit, misfit};

/// The address that kube-vip is asked for. Wins over `spec.loadBalancerIP`.
pub const ASKED_ADDRESS: &str = "kube-vip.io/loadbalancerIPs";
/// The interface that kube-vip is asked to use.
pub const ASKED_INTERFACE: &str = "kube-vip.io/serviceInterface";
/// `parent.tag`: the VLAN interface that kube-vip is asked to make and use. Never written: kube-vip
/// 1.2.0 to 1.2.3 ends in a panic where that interface exists (`ValidateVLANInterface` with the nil
/// parent of `addVLAN`, pkg/instance/instance.go), and Harvester's management address goes with it.
pub const ASKED_VLAN: &str = "kube-vip.io/serviceVLAN";

/// The external traffic policy that a Service had when it was made, by which a change of it is seen.
pub const MADE_WITH_POLICY: &str = "loadbalancer.harvesterhci.io/made-with-traffic-policy";
/// The ports that a Service had when it was made, by which it is seen that one of them is no more.
pub const MADE_WITH_PORTS: &str = "loadbalancer.harvesterhci.io/made-with-ports";
/// The node that announces a Service at last, as kube-vip writes it.
pub const ANNOUNCING_NODE: &str = "kube-vip.io/vipHost";
/// Traffic policy of a Service that names none.
const DEFAULT_POLICY: &str = "Cluster";

/// A reference to an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerRef {
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// A Service by a LoadBalancer's name, as stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub version: String,
    /// Whose it is.
    pub owners: Vec<OwnerRef>,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Whether it carries the label that load balancers' Services carry.
    pub labelled: bool,
    /// The annotations that say something to kube-vip, and the network they were made from.
    pub annotations: BTreeMap<String, String>,
    /// `spec.type`.
    pub type_: String,
    /// Whether it selects pods by itself.
    pub has_selector: bool,
    /// `spec.loadBalancerIP`.
    pub load_balancer_ip: String,
    /// `spec.externalTrafficPolicy`.
    pub policy: String,
    /// The first of `spec.loadBalancerSourceRanges`.
    pub source_range: Option<String>,
    /// `spec.ipFamilies`.
    pub families: Vec<String>,
    /// `spec.ports`.
    pub ports: Vec<StoredPort>,
    /// `status.loadBalancer.ingress[].ip`: what is announced.
    pub ingress: Vec<String>,
}

/// A port of a stored Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredPort {
    /// Name; empty for the only one.
    pub name: String,
    /// TCP or UDP.
    pub protocol: String,
    /// Port of the address.
    pub port: i32,
    /// Port of the endpoints; 0 if it is a name.
    pub target: i32,
    /// Port of every node, allocated by the API server; 0 for none.
    pub node_port: i32,
}

/// What the Service must say.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    /// The LoadBalancer.
    pub lb: Identity<'a>,
    /// The address to ask for; `None` has it leased by kube-vip.
    pub address: Option<IpAddr>,
    /// Ports, at least one.
    pub listeners: &'a [Listener],
    /// The network of the address; empty for the nodes' own.
    pub network: &'a str,
    /// How that is reached, if known.
    pub attachment: Option<&'a Attachment>,
    /// Whether announcers reach it so.
    pub link: Link,
}

/// A LoadBalancer as its Service refers to it.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    /// `metadata.namespace`.
    pub namespace: &'a str,
    /// `metadata.name`.
    pub name: &'a str,
    /// `metadata.uid`.
    pub uid: &'a str,
}

/// What to do about the Service.
#[derive(Clone, Debug, PartialEq)]
pub enum Plan {
    /// It says what it must.
    Keep,
    /// There is none: this one.
    Create(Value),
    /// This merge patch.
    Change(Value),
    /// This merge patch of its status, while it is [`held`].
    ChangeStatus(Value),
    /// It is another's; this says whose.
    Foreign(String),
    /// An earlier one is on its way out.
    Leaving,
    /// Deletion comes first: it is of the other family, which cannot be changed, or asks for another
    /// address or interface, or its policy has changed, or it has lost a port. kube-vip 1.2 takes the address of such a Service away and
    /// announces no other (`serviceChanged` in pkg/services/processor.go: the instance is deleted, and
    /// none is made). It reads ports once, and goes on admitting one that is no more to the node itself
    /// (`SetServicePorts` in pkg/instance/instance.go, `insertIPTablesRulesForServicePorts`).
    Replace,
}

impl Stored {
    /// The addresses that kube-vip takes it to ask for (`FetchServiceAddresses`). Empty: for none.
    fn asked(&self) -> &str {
        self.annotations.get(ASKED_ADDRESS).unwrap_or(&self.load_balancer_ip).trim()
    }

    fn policy(&self) -> &str {
        if self.policy.is_empty() { DEFAULT_POLICY } else { &self.policy }
    }

    /// The node that announced it at last. `None`: none has said so.
    pub fn announcing_node(&self) -> Option<&str> {
        self.annotations.get(ANNOUNCING_NODE).map(String::as_str).filter(|name| !name.is_empty())
    }

    /// Ports of the endpoints behind it, sorted.
    pub fn backend_ports(&self) -> Vec<Port> {
        let of = |port: &StoredPort| {
            let target = u16::try_from(port.target).ok()?;
            Some(Port { name: port.name.clone(), protocol: port.protocol.clone(), port: target })
        };
        let mut ports: Vec<Port> = self.ports.iter().filter_map(of).collect();
        ports.sort();
        ports
    }

    /// Whether the address may lead here: it is announced, or asked for.
    pub fn asks_for(&self, address: IpAddr) -> bool {
        let asked = self.annotations.get(ASKED_ADDRESS).into_iter().flat_map(|ips| ips.split(','));
        let all = asked.chain([self.load_balancer_ip.as_str()]);
        let mut all = all.chain(self.ingress.iter().map(String::as_str));
        all.any(|ip| ip.trim().parse() == Ok(address))
    }
}

impl Wanted<'_> {
    /// The address that the Service asks for, as text.
    pub fn asked(&self) -> String {
        self.address.map_or_else(|| DHCP_ADDRESS.to_owned(), |ip| ip.to_string())
    }

    /// The Service's family.
    pub fn family(&self) -> Family {
        self.address.map_or(Family::V4, Family::of)
    }
}

/// Decides on the Service.
pub fn plan(stored: Option<&Stored>, wanted: &Wanted<'_>) -> Plan {
    let Some(stored) = stored else { return Plan::Create(create(wanted)) };
    if let Some(whose) = foreign(&stored.owners, wanted.lb) {
        return Plan::Foreign(whose);
    }
    if stored.deleting {
        return Plan::Leaving;
    }
    let other_family =
        stored.families.first().is_some_and(|family| family != wanted.family().name());
    let made_with = stored.annotations.get(MADE_WITH_POLICY);
    let other_policy = made_with.is_some_and(|made_with| made_with != stored.policy());
    let other_place = asks_for_another(stored, wanted) || is_elsewhere(stored, wanted);
    if other_family || other_policy || other_place || loses_a_port(stored, wanted) {
        return Plan::Replace;
    }
    match patch(stored, wanted) {
        Some(patch) => Plan::Change(patch),
        None => Plan::Keep,
    }
}

/// Whether kube-vip takes it to ask for another address. One that asks for none is announced as soon as it
/// does.
fn asks_for_another(stored: &Stored, wanted: &Wanted<'_>) -> bool {
    let (asked, wanted) = (stored.asked(), wanted.asked());
    !asked.is_empty() && asked.parse::<IpAddr>().ok() != wanted.parse().ok()
}

/// Ports as text.
fn ports_text(ports: impl Iterator<Item = (i32, String)>) -> String {
    ports.map(|(port, protocol)| format!("{port}/{protocol}")).collect::<Vec<_>>().join(",")
}

/// The ports that it was made with, as text. One that does not say so is believed to have been made
/// as it is.
fn made_with_ports(stored: &Stored) -> String {
    let now = || ports_text(stored.ports.iter().map(|port| (port.port, port.protocol.clone())));
    stored.annotations.get(MADE_WITH_PORTS).cloned().unwrap_or_else(now)
}

/// The ports that are wanted, as text.
fn wanted_ports(wanted: &Wanted<'_>) -> String {
    ports_text(wanted.listeners.iter().map(|l| (i32::from(l.port), l.protocol.clone())))
}

/// Whether a port that it was made with is no more wanted.
fn loses_a_port(stored: &Stored, wanted: &Wanted<'_>) -> bool {
    let (before, after) = (made_with_ports(stored), wanted_ports(wanted));
    let after: BTreeSet<&str> = after.split(',').collect();
    before.split(',').any(|port| !port.is_empty() && !after.contains(port))
}

/// Whose an object is, if it is not the LoadBalancer's.
pub fn foreign(owners: &[OwnerRef], lb: Identity<'_>) -> Option<String> {
    if owners.iter().any(|owner| owner.uid == lb.uid) {
        return None;
    }
    Some(match owners.first() {
        None => "it names no owner, so somebody made it by hand or with another tool".to_owned(),
        Some(owner) if owner.kind == "LoadBalancer" && owner.name == lb.name => {
            "it belongs to an earlier LoadBalancer of the same name, and goes with that".to_owned()
        }
        Some(owner) => format!("it belongs to {} {}", owner.kind, owner.name),
    })
}

fn create(wanted: &Wanted<'_>) -> Value {
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
            // kube-vip needs none, and each is a port of every node, past source ranges.
            "allocateLoadBalancerNodePorts": false,
            "ports": wanted.listeners.iter().map(|l| port(l, None)).collect::<Vec<_>>(),
        },
    })
}

fn patch(stored: &Stored, wanted: &Wanted<'_>) -> Option<Value> {
    let mut metadata = Map::new();
    let mut spec = Map::new();
    if !stored.labelled {
        metadata.insert("labels".to_owned(), json!({LABEL_SERVICE_LB: "true"}));
    }
    let asked = wanted.asked();
    let mut annotations = Map::new();
    if stored.annotations.get(ASKED_ADDRESS) != Some(&asked) {
        annotations.insert(ASKED_ADDRESS.to_owned(), json!(asked));
    }
    if !stored.annotations.contains_key(MADE_WITH_POLICY) {
        annotations.insert(MADE_WITH_POLICY.to_owned(), json!(stored.policy()));
    }
    if !stored.annotations.contains_key(MADE_WITH_PORTS) {
        annotations.insert(MADE_WITH_PORTS.to_owned(), json!(made_with_ports(stored)));
    }
    annotations.extend(changed_hints(stored, wanted));
    if !annotations.is_empty() {
        metadata.insert("annotations".to_owned(), Value::Object(annotations));
    }
    if stored.type_ != "LoadBalancer" {
        spec.insert("type".to_owned(), json!("LoadBalancer"));
    }
    if stored.load_balancer_ip != asked {
        spec.insert("loadBalancerIP".to_owned(), json!(asked));
    }
    if stored.has_selector {
        spec.insert("selector".to_owned(), Value::Null);
    }
    let says = |port: &StoredPort, listener: &Listener| {
        (port.name.as_str(), port.protocol.as_str(), port.port, port.target)
            == (
                listener.name.as_str(),
                listener.protocol.as_str(),
                i32::from(listener.port),
                i32::from(listener.backend_port),
            )
    };
    let same = stored.ports.len() == wanted.listeners.len()
        && stored.ports.iter().zip(wanted.listeners).all(|(port, listener)| says(port, listener));
    if !same {
        let with_node_port = |listener: &Listener| {
            let before = stored.ports.iter().find(|port| {
                port.port == i32::from(listener.port) && port.protocol == listener.protocol
            });
            port(listener, before.map(|port| port.node_port).filter(|port| *port != 0))
        };
        let ports: Vec<Value> = wanted.listeners.iter().map(with_node_port).collect();
        spec.insert("ports".to_owned(), Value::Array(ports));
    }
    if metadata.is_empty() && spec.is_empty() {
        return None;
    }
    metadata.insert("resourceVersion".to_owned(), json!(stored.version));
    let mut patch = Map::from_iter([("metadata".to_owned(), Value::Object(metadata))]);
    if !spec.is_empty() {
        patch.insert("spec".to_owned(), Value::Object(spec));
    }
    Some(Value::Object(patch))
}

fn port(listener: &Listener, node_port: Option<i32>) -> Value {
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

/// How what serves a LoadBalancer names it as its owner.
pub(super) fn owner_reference(lb: Identity<'_>) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1beta1"),
        "kind": "LoadBalancer",
        "name": lb.name,
        "uid": lb.uid,
    })
}

#[cfg(test)]
mod tests;
