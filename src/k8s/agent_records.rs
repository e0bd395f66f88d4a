//! A network's records, for its agent: one watch, reported in order.

use kube::core::ObjectMeta;
use kube::{Api, Client, ResourceExt as _};
use kube_runtime::watcher::{Config, Event};
use tokio::sync::mpsc::UnboundedSender;

use super::guard::Guard;
use super::{CallError, call, informer};
use crate::api::DHCPLease;
use crate::metrics::Metrics;

/// Objects in one page of a list.
const PAGE: u32 = 100;

/// An event of the watch.
#[derive(Clone, Debug)]
pub enum RecordEvent {
    /// A list begins: a record that it does not contain is gone.
    Begins,
    /// The present state of a record of the network.
    Is(Box<DHCPLease>),
    /// A record that this version cannot parse: namespace and name. It still exists.
    Unreadable(String, String),
    /// A deleted record: namespace and name.
    Gone(String, String),
    /// The list is complete.
    Complete,
}

/// Client for a network's records.
#[derive(Clone)]
pub struct RecordClient {
    client: Client,
    metrics: Metrics,
}

impl RecordClient {
    /// A client with these rights.
    pub fn new(client: Client, metrics: Metrics) -> Self {
        Self { client, metrics }
    }

    /// Watches the network's records until dropped. Records of other networks are skipped.
    pub async fn watch(self, network: String, tell: UnboundedSender<RecordEvent>) {
        let api = Api::<Guard<DHCPLease>>::all(self.client);
        let config = Config::default().page_size(PAGE);
        let metrics = self.metrics;
        let on_event = |event: Event<Guard<DHCPLease>>| {
            let seen = match event {
                Event::Init => Some(RecordEvent::Begins),
                Event::InitDone => Some(RecordEvent::Complete),
                Event::InitApply(record) | Event::Apply(record) => {
                    readable(record, &network, &metrics)
                }
                Event::Delete(record) => Some(RecordEvent::Gone(
                    record.namespace().unwrap_or_default(),
                    record.name_any(),
                )),
            };
            // Without a receiver the term is over, and this watch is about to be dropped.
            seen.map(|seen| tell.send(seen));
        };
        informer::run(api, config, "DHCPLease", &metrics, on_event).await;
    }

    /// The present state of a record. `None`: it does not exist.
    pub async fn read(&self, namespace: &str, name: &str) -> Result<Option<DHCPLease>, CallError> {
        let api = Api::<DHCPLease>::namespaced(self.client.clone(), namespace);
        match Box::pin(call(api.get(name))).await {
            Ok(record) => Ok(Some(record)),
            Err(CallError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn readable(record: Guard<DHCPLease>, network: &str, metrics: &Metrics) -> Option<RecordEvent> {
    match record.0 {
        Ok(mut record) if record.spec.network == network => {
            record.metadata.managed_fields = None;
            Some(RecordEvent::Is(Box::new(record)))
        }
        Ok(_) => None,
        Err(misfit) => {
            metrics.unreadable.with_label_values(&["DHCPLease"]).inc();
            tracing::warn!(
                record = misfit.metadata.name,
                error = misfit.error,
                "this DHCPLease cannot be read"
            );
            let ObjectMeta { namespace, name, .. } = misfit.metadata;
            Some(RecordEvent::Unreadable(namespace.unwrap_or_default(), name.unwrap_or_default()))
        }
    }
}
