//! The view of NetworkAttachmentDefinitions: how a node reaches each network.

use std::collections::{BTreeMap, HashMap};

use ipnet::IpNet;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Api, Resource, ResourceExt};
use kube_runtime::watcher::{Config, Event};
use serde::Deserialize;

use super::{ChangeEvent, InformerContext, ViewPart, Views, lock};
use crate::api::kubevirt::{NetworkAttachmentDefinition, NetworkAttachmentDefinitionSpec};
use crate::api::{
    ANNOTATION_DHCP, ANNOTATION_DHCP_BROADCAST, ANNOTATION_DHCP_CLIENT_ID,
    ANNOTATION_DHCP_ON_LEASE_LOSS, ANNOTATION_DHCP_STATUS, ANNOTATION_DHCP_SUBNETS,
    ANNOTATION_NETWORK, ANNOTATION_ROUTE, LABEL_CLUSTER_NETWORK, LABEL_VLAN, LoadBalancer,
};
use crate::domain::dhcp_lease::{DhcpDeclaration, NetworkForm};
use crate::domain::load_balancer::bounds::{LONGEST_TEXT, LONGEST_WORD, cut};
use crate::domain::network::NetworkAttachment;
use crate::domain::vm_backends::backend_address::NetworkRange;
use crate::k8s::guard::Guard;
use crate::k8s::informer;

/// Suffix of the name of a cluster network's bridge. Source: network-controller-harvester,
/// pkg/utils/bridge.go.
const BRIDGE: &str = "-br";

/// The fields of a bridge plugin's configuration that locate a network.
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

/// The fields of Harvester's annotation that contain a network's addresses. Empty if they were
/// neither entered nor detected.
#[derive(Deserialize)]
struct NetworkRoute {
    #[serde(default)]
    cidr: String,
    #[serde(default)]
    gateway: String,
    /// Whether the network has changed since the addresses were detected.
    #[serde(default)]
    outdated: bool,
}

pub(super) async fn watch(at: InformerContext) {
    let InformerContext { client, views, .. } = at.clone();
    let mut listed: HashMap<String, NetworkFacts> = HashMap::new();
    let on_event = |event: Event<Guard<NetworkAttachmentDefinition>>| match event {
        Event::Init => listed.clear(),
        Event::InitApply(network) => {
            let network = readable(network, &at);
            listed.insert(key(&network), known(&network));
        }
        Event::InitDone => {
            let new = std::mem::take(&mut listed);
            let before = std::mem::replace(&mut *lock(&views.networks), new.clone());
            at.done(ViewPart::Networks);
            // A network that was not listed does not exist.
            views.tell(ChangeEvent::Networks);
            let gone = before.keys().filter(|key| !new.contains_key(*key));
            for key in new.keys().chain(gone) {
                views.tell_users(key, before.get(key), new.get(key));
            }
        }
        Event::Apply(network) => {
            let network = readable(network, &at);
            views.set_network(&key(&network), &known(&network));
        }
        Event::Delete(network) => views.remove_network(&key(&network)),
    };
    // Without Multus the cluster has no such networks.
    let not_served = || at.done(ViewPart::Networks);
    let api = Api::<Guard<NetworkAttachmentDefinition>>::all(client);
    let kind = "NetworkAttachmentDefinition";
    informer::run_if_served(api, Config::default(), kind, &at.metrics, on_event, not_served).await;
}

/// Unwraps a network. One that does not fit its type still exists, but its segment is unknown. Its
/// CRD allows a network without a spec.
fn readable(
    network: Guard<NetworkAttachmentDefinition>,
    at: &InformerContext,
) -> NetworkAttachmentDefinition {
    network.0.unwrap_or_else(|misfit| {
        let kind = "NetworkAttachmentDefinition";
        at.metrics.unreadable.with_label_values(&[kind]).inc();
        let (name, error) = (&misfit.metadata.name, &misfit.error);
        tracing::warn!(name, error, kind, "cannot be read");
        let spec = NetworkAttachmentDefinitionSpec::default();
        NetworkAttachmentDefinition { metadata: misfit.metadata, spec }
    })
}

impl Views {
    pub(super) fn set_network(&self, network: &str, new: &NetworkFacts) {
        let old = lock(&self.networks).insert(network.to_owned(), new.clone());
        self.tell_users(network, old.as_ref(), Some(new));
    }

    pub(super) fn remove_network(&self, network: &str) {
        let old = lock(&self.networks).remove(network);
        self.tell_users(network, old.as_ref(), None);
    }

    /// Enqueues what depends on a fact of a network that has changed. `None`: the network did not
    /// exist, or does not any more.
    fn tell_users(&self, network: &str, old: Option<&NetworkFacts>, new: Option<&NetworkFacts>) {
        let attachment = |facts: Option<&NetworkFacts>| facts.and_then(|f| f.attachment.clone());
        if attachment(old) != attachment(new) {
            let names = |lb: &LoadBalancer| {
                lb.annotations().get(ANNOTATION_NETWORK).is_some_and(|named| named == network)
            };
            self.tell_lbs(
                self.load_balancers.state_filter(names).iter().map(|lb| key(lb.as_ref())),
            );
            self.tell(ChangeEvent::Networks);
        }
        let has_moved = old.and_then(|old| old.range) != new.and_then(|new| new.range);
        if has_moved {
            self.tell_on_network(network);
        }
        if has_moved || old.map(|old| &old.declaration) != new.map(|new| &new.declaration) {
            self.tell_network(network);
        }
    }
}

/// Facts of an existing network.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NetworkFacts {
    /// Bridge and VLAN by which nodes reach the network. `None`: they do not.
    pub(super) attachment: Option<NetworkAttachment>,
    /// VLAN of the network, by Harvester's label, else by its configuration; 0 for none.
    pub(super) vlan: u16,
    /// Address range of the network. `None`: unknown.
    pub(super) range: Option<NetworkRange>,
    /// DHCP settings of the network, from its annotations.
    pub(super) declaration: DhcpDeclaration,
    /// Agent status in the network's annotation; empty for none.
    pub(super) status: String,
    /// Reference to the network with its resourceVersion, for Events and writes.
    pub(super) reference: Box<ObjectReference>,
}

pub(super) fn known(network: &NetworkAttachmentDefinition) -> NetworkFacts {
    let attachment = attachment(network);
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
        form: form(network),
        // A cut text would be another subnet, so it is replaced by a fixed one.
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

/// Form of a network's configuration, for an agent that attaches to it.
fn form(network: &NetworkAttachmentDefinition) -> NetworkForm {
    match serde_json::from_str::<BridgePlugin>(&network.spec.config) {
        Ok(plugin) if plugin.type_ != "bridge" || plugin.bridge.is_empty() => NetworkForm::Other,
        Ok(plugin) if plugin.vlan_trunk.is_empty() => NetworkForm::Bridge,
        Ok(_) => NetworkForm::Trunk,
        Err(_) => NetworkForm::Other,
    }
}

/// Bridge and VLAN of a network. `None`: the network uses no bridge of the node.
fn attachment(network: &NetworkAttachmentDefinition) -> Option<NetworkAttachment> {
    let BridgePlugin { type_, bridge, vlan, .. } =
        serde_json::from_str(&network.spec.config).ok()?;
    (type_ == "bridge" && !bridge.is_empty()).then_some(NetworkAttachment { bridge, vlan })
}

/// Address range of a network. `None`: unknown.
fn range(network: &NetworkAttachmentDefinition) -> Option<NetworkRange> {
    let route = network.annotations().get(ANNOTATION_ROUTE)?;
    let NetworkRoute { cidr, gateway, outdated } = serde_json::from_str(route).ok()?;
    let cidr: IpNet = cidr.parse().ok().filter(|_| !outdated)?;
    Some(NetworkRange { cidr: cidr.trunc(), gateway: gateway.parse().ok() })
}

fn key(object: &impl ResourceExt) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}
