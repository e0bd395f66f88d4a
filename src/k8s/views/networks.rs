//! The view of NetworkAttachmentDefinitions: how a node reaches each network.

use std::collections::HashMap;

use kube::{Api, ResourceExt};
use kube_runtime::watcher::{Config, Event};
use serde::Deserialize;

use super::{Informer, Part, lock};
use crate::api::ANNOTATION_NETWORK;
use crate::api::kubevirt::NetworkAttachmentDefinition as Network;
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

pub(super) async fn watch(at: Informer) {
    let Informer { client, views, .. } = at.clone();
    let mut listed: HashMap<String, Attachment> = HashMap::new();
    let on_event = |event| match event {
        Event::Init => listed.clear(),
        Event::InitApply(network) => {
            if let Some(attachment) = attachment(&network) {
                listed.insert(key(&network), attachment);
            }
        }
        Event::InitDone => {
            *lock(&views.networks) = std::mem::take(&mut listed);
            at.done(Part::Networks);
        }
        Event::Apply(network) => {
            let key = key(&network);
            let old = match attachment(&network) {
                Some(new) => lock(&views.networks).insert(key.clone(), new),
                None => lock(&views.networks).remove(&key),
            };
            if old != views.attachment(&key) {
                tell_users(&at, &key);
            }
        }
        Event::Delete(network) => {
            lock(&views.networks).remove(&key(&network));
        }
    };
    // Without Multus there are no networks to name.
    let not_served = || at.done(Part::Networks);
    let api = Api::<Network>::all(client);
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

/// `None`: not a network that a bridge of the node leads to.
fn attachment(network: &Network) -> Option<Attachment> {
    let Plugin { type_, bridge, vlan } = serde_json::from_str(&network.spec.config).ok()?;
    (type_ == "bridge" && !bridge.is_empty()).then_some(Attachment { bridge, vlan })
}

fn key(object: &impl ResourceExt) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}
