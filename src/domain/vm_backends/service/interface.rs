//! Interfaces on which kube-vip is asked to announce, and on which it does.
//!
//! kube-vip 1.2 reads the interface of a Service once (`NewInstance`, pkg/instance/instance.go), and
//! cannot serve one whose interface a node lacks. So a VLAN is asked for only where each node that may
//! announce has a working link for it, and a Service that nothing announces yet is made anew for it.

use serde_json::{Map, Value, json};

use super::{ASKED_INTERFACE, ASKED_VLAN, Stored, Wanted};
use crate::network::Attachment;
use crate::network::host_links::Link;
use api::ANNOTATION_NETWORK;

impl Attachment {
    /// The interface of a node by which it reaches the network.
    fn interface(&self) -> String {
        match self.vlan {
            0 => self.bridge.clone(),
            vlan => format!("{}.{vlan}", self.bridge),
        }
    }
}

impl Wanted<'_> {
    /// The interface to ask for. `None`: the announcer's default.
    fn interface(&self) -> Option<String> {
        let attachment = self.attachment.filter(|_| !self.network.is_empty())?;
        (self.link == Link::Ready).then(|| attachment.interface())
    }

    /// Why the address is announced on the announcer's default interface and not on its network.
    /// `None`: it is announced where it belongs, or where a user wants it.
    pub fn on_default_interface(&self, stored: Option<&Stored>) -> Option<String> {
        let network = Some(self.network).filter(|network| !network.is_empty())?;
        let says = |key: &str| stored.is_some_and(|stored| stored.annotations.contains_key(key));
        if says(ASKED_INTERFACE) && !says(ANNOTATION_NETWORK) {
            return None;
        }
        let Some(attachment) = self.attachment else {
            return Some(format!("nodes have no bridge for network {network}"));
        };
        let Attachment { bridge, vlan } = attachment;
        let of = format!("VLAN {vlan} of {bridge}, network {network}");
        match &self.link {
            Link::Ready if stored.is_none() || says(ASKED_INTERFACE) => None,
            Link::Ready => Some(format!(
                "it was announced before nodes had the link {}: delete the Service to have it announced there",
                attachment.interface()
            )),
            Link::NotConfigured => {
                Some(format!("nodes have no link for {of}: a HostNetworkConfig makes one"))
            }
            Link::Missing(nodes) => Some(format!(
                "nodes {} have no working link for {of}: see the HostNetworkConfig",
                nodes.join(", ")
            )),
        }
    }
}

/// Hints on which interface kube-vip should announce, and the network that they were made from.
pub(super) fn hints(wanted: &Wanted<'_>) -> Map<String, Value> {
    let Some(interface) = wanted.interface() else { return Map::new() };
    Map::from_iter([
        (ASKED_INTERFACE.to_owned(), json!(interface)),
        (ANNOTATION_NETWORK.to_owned(), json!(wanted.network)),
    ])
}

/// Whether it must be announced on another interface than it asks for, and may be: nothing announces
/// it yet.
pub(super) fn is_elsewhere(stored: &Stored, wanted: &Wanted<'_>) -> bool {
    changed_hints(stored, wanted).contains_key(ASKED_INTERFACE)
}

/// An address that is announced stays where it is. Hints that a user gave stay too: only those that
/// were made from a network are taken back with it. A VLAN that an earlier version asked for is taken
/// back at once, since the next start of kube-vip would fail on it.
pub(super) fn changed_hints(stored: &Stored, wanted: &Wanted<'_>) -> Map<String, Value> {
    let made_from = stored.annotations.get(ANNOTATION_NETWORK).map_or("", String::as_str);
    let mut changes = Map::new();
    if !made_from.is_empty() && stored.annotations.contains_key(ASKED_VLAN) {
        changes.insert(ASKED_VLAN.to_owned(), Value::Null);
        changes.insert(ANNOTATION_NETWORK.to_owned(), Value::Null);
    }
    if !stored.ingress.is_empty() || made_from == wanted.network {
        return changes;
    }
    if made_from.is_empty() {
        if [ASKED_INTERFACE, ASKED_VLAN].iter().any(|key| stored.annotations.contains_key(*key)) {
            return changes;
        }
    } else {
        for key in [ASKED_INTERFACE, ASKED_VLAN, ANNOTATION_NETWORK] {
            if stored.annotations.contains_key(key) {
                changes.insert(key.to_owned(), Value::Null);
            }
        }
    }
    changes.extend(hints(wanted));
    changes
}
