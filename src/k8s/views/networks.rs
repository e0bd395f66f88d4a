//! The view of NetworkAttachmentDefinitions: how a node reaches each network.

use std::collections::HashMap;

use ipnet::IpNet;
use kube::{Api, ResourceExt};
use kube_runtime::watcher::{Config, Event};
use serde::Deserialize;

use super::{Informer, Part, Signal, lock};
use crate::api::kubevirt::NetworkAttachmentDefinition;
use crate::api::{ANNOTATION_DHCP, ANNOTATION_NETWORK, ANNOTATION_ROUTE, LABEL_VLAN};
use crate::domain::backend_address::NetworkRange;
use crate::domain::bounds::{LONGEST_WORD, cut};
use crate::domain::service::Attachment;
use crate::k8s::informer;

/// The part of a bridge plugin's configuration that says where a network is.
#[derive(Deserialize)]
struct Plugin {
    #[serde(rename = "type")]
    type_: String,
    #[serde(default)]
    bridge: String,
    #[serde(default)]
    vlan: u16,
}

/// The part of Harvester's annotation that says which addresses a network has. Where nobody has
/// entered or found them, they are empty.
#[derive(Deserialize)]
struct Route {
    #[serde(default)]
    cidr: String,
    #[serde(default)]
    gateway: String,
    /// The network has changed since.
    #[serde(default)]
    outdated: bool,
}

pub(super) async fn watch(at: Informer) {
    let Informer { client, views, .. } = at.clone();
    let mut listed: HashMap<String, Network> = HashMap::new();
    let on_event = |event| match event {
        Event::Init => listed.clear(),
        Event::InitApply(network) => {
            listed.insert(key(&network), known(&network));
        }
        Event::InitDone => {
            let new = std::mem::take(&mut listed);
            let before = std::mem::replace(&mut *lock(&views.networks), new.clone());
            at.done(Part::Networks);
            views.tell(Signal::Networks);
            let dhcp = |known: Option<&Network>| known.map(|known| known.dhcp.clone());
            for key in new.keys().chain(before.keys()) {
                if dhcp(before.get(key)) != dhcp(new.get(key)) {
                    views.tell_network(key);
                }
            }
        }
        Event::Apply(network) => {
            let key = key(&network);
            let new = known(&network);
            let old = lock(&views.networks).insert(key.clone(), new.clone());
            let attachment = |known: Option<&Network>| known.and_then(|n| n.attachment.clone());
            if attachment(old.as_ref()) != new.attachment {
                tell_users(&at, &key);
                views.tell(Signal::Networks);
            }
            if old.as_ref().map_or("", |old| &old.dhcp) != new.dhcp {
                views.tell_network(&key);
            }
            if old.and_then(|old| old.range) != new.range {
                views.tell_on_network(&key);
            }
        }
        Event::Delete(network) => {
            let key = key(&network);
            let old = lock(&views.networks).remove(&key);
            views.tell(Signal::Networks);
            views.tell_network(&key);
            if old.is_some_and(|old| old.range.is_some()) {
                views.tell_on_network(&key);
            }
        }
    };
    // Without Multus there are no networks to name.
    let not_served = || at.done(Part::Networks);
    let api = Api::<NetworkAttachmentDefinition>::all(client);
    let kind = "NetworkAttachmentDefinition";
    informer::run_if_served(api, Config::default(), kind, &at.metrics, on_event, not_served).await;
}

fn tell_users(at: &Informer, network: &str) {
    let names = |lb: &crate::api::LoadBalancer| {
        lb.annotations().get(ANNOTATION_NETWORK).is_some_and(|named| named == network)
    };
    let users = at.views.load_balancers.state_filter(names);
    at.views.tell_lbs(users.iter().map(|lb| key(lb.as_ref())));
}

/// A network that there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Network {
    /// How nodes reach it, if they do.
    pub(super) attachment: Option<Attachment>,
    /// Its VLAN, by the label that Harvester puts on it, else by its configuration.
    pub(super) vlan: u16,
    /// Its addresses, if they are known.
    pub(super) range: Option<NetworkRange>,
    /// What its annotation says of who leases there; empty for none.
    pub(super) dhcp: String,
}

fn known(network: &NetworkAttachmentDefinition) -> Network {
    let attachment = attachment(network);
    let labelled = network.labels().get(LABEL_VLAN).and_then(|vlan| vlan.parse().ok());
    let configured = attachment.as_ref().map(|attachment| attachment.vlan);
    let vlan = labelled.or(configured).unwrap_or_default();
    let dhcp = network.annotations().get(ANNOTATION_DHCP).cloned().unwrap_or_default();
    Network { vlan, attachment, range: range(network), dhcp: cut(dhcp, LONGEST_WORD) }
}

/// `None`: not a network that a bridge of the node leads to.
fn attachment(network: &NetworkAttachmentDefinition) -> Option<Attachment> {
    let Plugin { type_, bridge, vlan } = serde_json::from_str(&network.spec.config).ok()?;
    (type_ == "bridge" && !bridge.is_empty()).then_some(Attachment { bridge, vlan })
}

/// `None`: they are not known.
fn range(network: &NetworkAttachmentDefinition) -> Option<NetworkRange> {
    let route = network.annotations().get(ANNOTATION_ROUTE)?;
    let Route { cidr, gateway, outdated } = serde_json::from_str(route).ok()?;
    let cidr: IpNet = cidr.parse().ok().filter(|_| !outdated)?;
    Some(NetworkRange { cidr: cidr.trunc(), gateway: gateway.parse().ok() })
}

fn key(object: &impl ResourceExt) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}
