//! Reads the records (DHCPLeases) of one network, for the network's agent. A single watch reports
//! all events of these records, in order.

use std::collections::HashSet;
use std::sync::Mutex;

use kube::{Api, Client, Resource as _};
use kube_runtime::watcher::Config;
use tokio::sync::mpsc::UnboundedSender;

use super::CallError;
use super::calls::ApiCalls as _;
use super::guard::Guard;
use super::informer::{self, ObjectEvent, key};
use crate::api::DHCPLease;
use crate::locks::lock;
use crate::metrics::Metrics;

/// Event of [`RecordClient::watch`], about a record (DHCPLease) of the watched network.
#[derive(Clone, Debug)]
pub enum RecordEvent {
    /// A record that was listed, created or changed, and whose spec names the watched network.
    Is(Box<DHCPLease>),
    /// `namespace/name` of a record that was deleted, or whose spec no longer names the watched
    /// network.
    Gone(String),
    /// End of a list. Each listed record that can be parsed, and whose spec names the watched
    /// network, was reported as [`Self::Is`].
    Complete,
}

/// Client that reads records (DHCPLeases).
#[derive(Clone)]
pub struct RecordClient {
    client: Client,
    metrics: Metrics,
}

impl RecordClient {
    /// Creates a client that sends its calls through `client`.
    pub fn new(client: Client, metrics: Metrics) -> Self {
        Self { client, metrics }
    }

    /// Watches the records of `network`, and sends each event to `sender`, until this future is
    /// dropped. A record that this version of the operator cannot parse still exists, so it is not
    /// reported as gone.
    pub async fn watch(self, network: String, sender: UnboundedSender<RecordEvent>) {
        let names: Mutex<HashSet<String>> = Mutex::default();
        let names = || lock(&names);
        let on_event = |event: ObjectEvent<DHCPLease>| {
            let seen = match event {
                ObjectEvent::Listed(mut record) | ObjectEvent::Changed(mut record) => {
                    let name = key(record.meta());
                    if record.spec.network == network {
                        names().insert(name);
                        record.metadata.managed_fields = None;
                        Some(RecordEvent::Is(Box::new(record)))
                    } else {
                        names().remove(&name).then_some(RecordEvent::Gone(name))
                    }
                }
                ObjectEvent::Gone(name, _) => {
                    names().remove(&name).then_some(RecordEvent::Gone(name))
                }
                ObjectEvent::Complete => Some(RecordEvent::Complete),
                ObjectEvent::Unreadable(_) | ObjectEvent::Refused(_) => None,
            };
            // `send` fails if the receiver is gone. Then the agent's term of leadership is over,
            // and this watch is dropped soon.
            seen.map(|seen| sender.send(seen));
        };
        let api = Api::<Guard<DHCPLease>>::all(self.client);
        let known = || names().clone();
        informer::watch_guarded(api, Config::default(), &self.metrics, known, on_event).await;
    }

    /// The record `namespace/name`, as the API server has it now. `None`: the record does not
    /// exist.
    pub async fn read(&self, namespace: &str, name: &str) -> Result<Option<DHCPLease>, CallError> {
        let api = Api::<DHCPLease>::namespaced(self.client.clone(), namespace);
        Box::pin(api.call_get_opt(name)).await
    }
}
