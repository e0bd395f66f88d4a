//! Interfaces on which kube-vip is asked to announce Services, and on which it announces them.
//!
//! kube-vip 1.2 reads the interface of a Service once (`NewInstance`, pkg/instance/instance.go). On
//! a node without this interface, kube-vip cannot serve the Service. So the operator asks for the
//! interface of a VLAN only if each node that may announce has a working link for the VLAN. A
//! Service that is not announced yet is created again if it needs another interface.

use serde_json::{Map, Value, json};

use super::{ASKED_INTERFACE, ASKED_VLAN, StoredService, WantedService};
use crate::network::NetworkAttachment;
use crate::network::host_links::NetworkReach;
use api::ANNOTATION_NETWORK;

impl NetworkAttachment {
    /// Name of the interface by which a node reaches the network.
    fn interface(&self) -> String {
        match self.vlan {
            0 => self.bridge.clone(),
            vlan => format!("{}.{vlan}", self.bridge),
        }
    }
}

impl WantedService<'_> {
    /// Interface on which kube-vip is asked to announce. `None`: the announcer's default interface.
    fn interface(&self) -> Option<String> {
        let attachment = self.attachment.filter(|_| !self.network.is_empty())?;
        (self.link == NetworkReach::Ready).then(|| attachment.interface())
    }

    /// Text that names the interface of the announcement, and says why this interface is not a
    /// working link of the address's network. An announced address stays on its interface, even if
    /// a node loses the link. `None` in each of these cases:
    ///
    /// * The address is on the nodes' own network.
    /// * A user set the interface.
    /// * The interface is a working link of the network.
    /// * There is no Service yet, and nodes have a working link. The new Service will ask for this
    ///   link.
    /// * The operator chose the interface earlier, and the network's bridge is not known now.
    pub fn misplacement(&self, stored: Option<&StoredService>) -> Option<String> {
        let network = Some(self.network).filter(|network| !network.is_empty())?;
        let hint = |key: &str| stored.and_then(|stored| stored.annotations.get(key));
        let asked = hint(ASKED_INTERFACE);
        if asked.is_some() && hint(ANNOTATION_NETWORK).is_none() {
            return None;
        }
        let place = asked.map_or("the announcer's default interface", String::as_str);
        let Some(attachment) = self.attachment else {
            // The network is unknown now. An interface that the operator chose earlier stays.
            return asked
                .is_none()
                .then(|| format!("{place}: nodes have no bridge for network {network}"));
        };
        let NetworkAttachment { bridge, vlan } = attachment;
        let (interface, of) =
            (attachment.interface(), format!("VLAN {vlan} of {bridge}, network {network}"));
        let why = match (&self.link, asked) {
            (NetworkReach::Ready, Some(asked)) if *asked == interface => return None,
            (NetworkReach::Ready, None) if stored.is_none() => return None,
            (NetworkReach::Ready, Some(_)) => format!(
                "network {network} is on {interface} now: delete the Service to announce it there"
            ),
            (NetworkReach::Ready, None) => format!(
                "it was announced before nodes had the link {interface}: delete the Service to announce it there"
            ),
            (NetworkReach::NotConfigured, _) => {
                format!("nodes have no link for {of}: a HostNetworkConfig creates one")
            }
            (NetworkReach::Missing(nodes), _) => format!(
                "nodes {} have no working link for {of}: see the HostNetworkConfig",
                nodes.join(", ")
            ),
        };
        Some(format!("{place}: {why}"))
    }
}

/// Hints are two annotations of the Service. One names the interface on which kube-vip is asked to
/// announce. The other names the network to which this interface leads. The map is empty if
/// kube-vip is to announce on its default interface.
pub(super) fn hints(wanted: &WantedService<'_>) -> Map<String, Value> {
    let Some(interface) = wanted.interface() else { return Map::new() };
    Map::from_iter([
        (ASKED_INTERFACE.to_owned(), json!(interface)),
        (ANNOTATION_NETWORK.to_owned(), json!(wanted.network)),
    ])
}

/// Whether the stored Service must be created again, because its annotation [`ASKED_INTERFACE`]
/// must be added, changed or removed. `false` for an announced Service, whose address stays on its
/// interface.
pub(super) fn is_elsewhere(stored: &StoredService, wanted: &WantedService<'_>) -> bool {
    changed_hints(stored, wanted).contains_key(ASKED_INTERFACE)
}

/// Returns the changes of the Service's [`hints`], and of [`ASKED_VLAN`], a hint that earlier
/// versions of the operator wrote. Null removes an annotation. These rules apply:
///
/// * If the operator wrote [`ASKED_VLAN`], this annotation and the annotation with the network are
///   removed, even while the Service is announced. kube-vip would fail on this VLAN at its next
///   start.
/// * While the Service is announced, all other hints stay.
/// * Hints of a user stay.
/// * Hints that the operator wrote for another network are replaced by the hints of the address's
///   network. A Service without hints gets these hints too.
pub(super) fn changed_hints(
    stored: &StoredService,
    wanted: &WantedService<'_>,
) -> Map<String, Value> {
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
