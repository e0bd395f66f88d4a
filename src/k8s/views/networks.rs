//! The view of NetworkAttachmentDefinitions: the bridge, VLAN, address range and DHCP settings of
//! each network.

use std::collections::BTreeMap;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Api, Resource, ResourceExt};
use kube_runtime::watcher::Config;
use serde::Deserialize;

use super::{ChangeEvent, InformerContext, ViewPart, Views, lock};
use crate::api::kubevirt::{NetworkAttachmentDefinition, NetworkAttachmentDefinitionSpec};
use crate::api::{
    ANNOTATION_DHCP, ANNOTATION_DHCP_BROADCAST, ANNOTATION_DHCP_CLIENT_ID,
    ANNOTATION_DHCP_ON_LEASE_LOSS, ANNOTATION_DHCP_STATUS, ANNOTATION_DHCP_SUBNETS,
    ANNOTATION_NETWORK, ANNOTATION_ROUTE, LABEL_CLUSTER_NETWORK, LABEL_VLAN,
};
use crate::domain::dhcp_lease::{DhcpDeclaration, NetworkForm};
use crate::domain::limits::text::{LONGEST_TEXT, LONGEST_WORD, cut};
use crate::domain::network::NetworkAttachment;
use crate::domain::vm_backends::backend_address::NetworkRange;
use crate::k8s::guard::Guard;
use crate::k8s::informer::{self, ObjectEvent, is_unserved, key};

/// Suffix of the name of a cluster network's bridge. Source: network-controller-harvester,
/// pkg/utils/bridge.go.
const BRIDGE: &str = "-br";

/// Fields of a bridge plugin's configuration that show where a network is: its bridge and its
/// VLANs.
#[derive(Deserialize)]
struct BridgePlugin {
    #[serde(rename = "type")]
    type_: String,
    #[serde(default)]
    bridge: String,
    #[serde(default)]
    vlan: u16,
    #[serde(default, rename = "vlanTrunk")]
    vlan_trunk: Vec<serde::de::IgnoredAny>,
}

/// Fields of the annotation [`ANNOTATION_ROUTE`]. The subnet (`cidr`) and the router (`gateway`)
/// have a value only if a user entered the value or Harvester detected it.
#[derive(Deserialize)]
struct NetworkRoute {
    #[serde(default)]
    cidr: String,
    #[serde(default)]
    gateway: String,
    /// Whether the network has changed since Harvester detected the subnet and the router.
    #[serde(default)]
    outdated: bool,
}

pub(super) async fn watch(at: InformerContext) {
    let known = || lock(&at.views.index.networks).keys().cloned().collect();
    let on_event = |event| apply(&at, event);
    let api = Api::<Guard<NetworkAttachmentDefinition>>::all(at.client.clone());
    informer::watch_guarded(api, Config::default(), &at.metrics, known, on_event).await;
}

/// Applies an event of a network to the view. Enqueues the LoadBalancers that depend on the changed
/// facts of the network. Reports [`ChangeEvent::Networks`] if the network's bridge or VLAN has
/// changed, if a list of networks is complete, or if the cluster turns out not to serve networks.
pub(super) fn apply(at: &InformerContext, event: ObjectEvent<NetworkAttachmentDefinition>) {
    let views = &at.views;
    match event {
        ObjectEvent::Listed(network) | ObjectEvent::Changed(network) => views.set_network(&network),
        // A NetworkAttachmentDefinition that cannot be parsed still exists, so it is stored with an
        // empty spec, and its segment is unknown. For example, the CRD allows an object without a
        // spec.
        ObjectEvent::Unreadable(metadata) => {
            let spec = NetworkAttachmentDefinitionSpec::default();
            views.set_network(&NetworkAttachmentDefinition { metadata, spec });
        }
        ObjectEvent::Gone(key, _) => views.remove_network(&key),
        ObjectEvent::Complete => {
            at.done(ViewPart::Networks);
            // The list is complete, so from now on a network that the view lacks does not exist.
            views.notify(ChangeEvent::Networks);
        }
        // The kind is not served where Multus is not installed. Then there are no such networks.
        ObjectEvent::Refused(status) if is_unserved(&status) => {
            let is_news = !views.is_listed(ViewPart::Networks);
            at.done(ViewPart::Networks);
            // Until now, any two networks could be on one segment, so some pools waited.
            if is_news {
                views.notify(ChangeEvent::Networks);
            }
        }
        ObjectEvent::Refused(_) => {}
    }
}

impl Views {
    pub(super) fn set_network(&self, network: &NetworkAttachmentDefinition) {
        self.replace_network(&key(network.meta()), Some(known(network)));
    }

    pub(super) fn remove_network(&self, network: &str) {
        self.replace_network(network, None);
    }

    /// Stores the facts of `network`, and enqueues the LoadBalancers that depend on changed facts.
    /// Reports a changed bridge or VLAN as [`ChangeEvent::Networks`]. `new: None`: the network is
    /// gone.
    fn replace_network(&self, network: &str, new: Option<NetworkFacts>) {
        let mut networks = lock(&self.index.networks);
        let old = networks.remove(network);
        let (before, now) = (old.as_ref(), new.as_ref());
        let attachment = |facts: &NetworkFacts| facts.attachment.clone();
        let other_attachment = before.and_then(attachment) != now.and_then(attachment);
        let other_range = before.and_then(|old| old.range) != now.and_then(|new| new.range);
        let other_declaration =
            before.map(|old| &old.declaration) != now.map(|new| &new.declaration);
        networks.extend(new.map(|new| (network.to_owned(), new)));
        drop(networks);
        if other_attachment {
            self.enqueue_lbs_that(|lb| {
                lb.annotations().get(ANNOTATION_NETWORK).is_some_and(|named| named == network)
            });
            self.notify(ChangeEvent::Networks);
        }
        if other_range {
            self.enqueue_vm_lbs_on(network);
        }
        if other_range || other_declaration {
            self.enqueue_lbs_leasing_on(network);
        }
    }
}

/// Facts of an existing network.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NetworkFacts {
    /// Bridge and VLAN by which nodes reach the network. `None`: the network uses no bridge of the
    /// nodes.
    pub(super) attachment: Option<NetworkAttachment>,
    /// VLAN of the network; 0 for no VLAN. The value is from Harvester's label. If there is no such
    /// label, the value is from the network's configuration.
    pub(super) vlan: u16,
    /// Address range of the network. `None`: the range is not known.
    pub(super) range: Option<NetworkRange>,
    /// DHCP settings of the network, from its annotations, from its label for the cluster network,
    /// and from its CNI configuration.
    pub(super) declaration: DhcpDeclaration,
    /// State of the network's agent, from the annotation [`ANNOTATION_DHCP_STATUS`]. Empty: the
    /// network does not have this annotation.
    pub(super) status: String,
    /// Reference to the network with its resourceVersion, for Events and writes.
    pub(super) reference: Box<ObjectReference>,
}

fn known(network: &NetworkAttachmentDefinition) -> NetworkFacts {
    let plugin = serde_json::from_str::<BridgePlugin>(&network.spec.config).ok();
    let attachment = plugin.as_ref().and_then(attachment);
    let labelled = network.labels().get(LABEL_VLAN).and_then(|vlan| vlan.parse().ok());
    let configured = attachment.as_ref().map(|attachment| attachment.vlan);
    let vlan = labelled.or(configured).unwrap_or_default();
    let text = |map: &BTreeMap<String, String>, key| {
        cut(map.get(key).cloned().unwrap_or_default(), LONGEST_WORD)
    };
    let bridge = attachment.as_ref().map_or("", |attachment| &attachment.bridge);
    let mut cluster_network = text(network.labels(), LABEL_CLUSTER_NETWORK);
    if cluster_network.is_empty() {
        bridge.strip_suffix(BRIDGE).unwrap_or_default().clone_into(&mut cluster_network);
    }
    let declaration = DhcpDeclaration {
        annotation: text(network.annotations(), ANNOTATION_DHCP),
        form: plugin.as_ref().map_or(NetworkForm::Other, form),
        // A long text is not cut, because a cut text could name another subnet. A fixed text that
        // is no subnet replaces the long text.
        subnets: network
            .annotations()
            .get(ANNOTATION_DHCP_SUBNETS)
            .map_or("", |text| if text.len() > LONGEST_TEXT { "longer text" } else { text })
            .to_owned(),
        on_lease_loss: text(network.annotations(), ANNOTATION_DHCP_ON_LEASE_LOSS),
        client_id: text(network.annotations(), ANNOTATION_DHCP_CLIENT_ID),
        broadcast: text(network.annotations(), ANNOTATION_DHCP_BROADCAST),
        cluster_network,
    };
    let mut reference = Box::new(network.object_ref(&()));
    reference.resource_version = network.resource_version();
    let status = network.annotations().get(ANNOTATION_DHCP_STATUS).cloned().unwrap_or_default();
    let status = cut(status, LONGEST_TEXT);
    NetworkFacts { vlan, attachment, range: range(network), declaration, status, reference }
}

/// Form of a network's CNI configuration: a bridge, a bridge with several VLANs (trunk), or
/// anything else. The form decides whether an agent can attach to the network.
fn form(plugin: &BridgePlugin) -> NetworkForm {
    if plugin.type_ != "bridge" || plugin.bridge.is_empty() {
        NetworkForm::Other
    } else if plugin.vlan_trunk.is_empty() {
        NetworkForm::Bridge
    } else {
        NetworkForm::Trunk
    }
}

/// Bridge and VLAN of a network. `None`: the network uses no bridge of the nodes. Also `None` if
/// the name of the bridge is empty, or longer than [`LONGEST_WORD`] bytes: no bridge has such a
/// name.
fn attachment(plugin: &BridgePlugin) -> Option<NetworkAttachment> {
    let BridgePlugin { type_, bridge, vlan, .. } = plugin;
    let is_bridge = type_ == "bridge" && (1..=LONGEST_WORD).contains(&bridge.len());
    is_bridge.then(|| NetworkAttachment { bridge: bridge.clone(), vlan: *vlan })
}

/// Address range of a network, from the annotation that Harvester writes. `None`: the annotation is
/// missing, cannot be parsed, or is outdated.
fn range(network: &NetworkAttachmentDefinition) -> Option<NetworkRange> {
    let route = network.annotations().get(ANNOTATION_ROUTE)?;
    let NetworkRoute { cidr, gateway, outdated } = serde_json::from_str(route).ok()?;
    let cidr: IpNet = cidr.parse().ok().filter(|_| !outdated)?;
    Some(NetworkRange { cidr: cidr.trunc(), gateway: gateway.parse().ok() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_bridge_with_a_longer_name_than_a_link_can_have_is_none() {
        for (length, is_bridge) in [(0, false), (15, true), (320, true), (321, false)] {
            let config = json!({"type": "bridge", "bridge": "b".repeat(length)}).to_string();
            let network: NetworkAttachmentDefinition = serde_json::from_value(json!({
                "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
                "metadata": {"namespace": "ns", "name": "lan"}, "spec": {"config": config},
            }))
            .unwrap();
            assert_eq!(known(&network).attachment.is_some(), is_bridge, "{length}");
        }
    }
}
