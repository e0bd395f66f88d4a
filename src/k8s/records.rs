//! A network's records, as its agent sees them: one watch, told in order.

use kube::core::ObjectMeta;
use kube::{Api, Client, ResourceExt as _};
use kube_runtime::watcher::{Config, Event};
use tokio::sync::mpsc::UnboundedSender;

use super::guard::Guard;
use super::{CallError, call, informer};
use crate::api::DHCPLease;
use crate::metrics::Metrics;

/// Objects of a list that are read at a time.
const PAGE: u32 = 100;

/// What the watch tells.
#[derive(Clone, Debug)]
pub enum Seen {
    /// A list begins: what it does not name is gone.
    Begins,
    /// A record of the network, as it is now.
    Is(Box<DHCPLease>),
    /// A record is there that this version cannot read: namespace and name. It is not gone.
    Unreadable(String, String),
    /// A record is gone: namespace and name.
    Gone(String, String),
    /// The list is complete.
    Complete,
}

/// The way to a network's records.
#[derive(Clone)]
pub struct Records {
    client: Client,
    metrics: Metrics,
}

impl Records {
    /// Reads with this client's rights.
    pub fn new(client: Client, metrics: Metrics) -> Self {
        Self { client, metrics }
    }

    /// Watches the network's records until dropped. What is of another network is left out.
    pub async fn watch(self, network: String, tell: UnboundedSender<Seen>) {
        let api = Api::<Guard<DHCPLease>>::all(self.client);
        let config = Config::default().page_size(PAGE);
        let metrics = self.metrics;
        let on_event = |event: Event<Guard<DHCPLease>>| {
            let seen = match event {
                Event::Init => Some(Seen::Begins),
                Event::InitDone => Some(Seen::Complete),
                Event::InitApply(record) | Event::Apply(record) => {
                    readable(record, &network, &metrics)
                }
                Event::Delete(record) => {
                    Some(Seen::Gone(record.namespace().unwrap_or_default(), record.name_any()))
                }
            };
            // Without a receiver the term is over, and this is about to be dropped.
            seen.map(|seen| tell.send(seen));
        };
        informer::run(api, config, "DHCPLease", &metrics, on_event).await;
    }

    /// A record as it is now. `None`: there is none.
    pub async fn read(&self, namespace: &str, name: &str) -> Result<Option<DHCPLease>, CallError> {
        let api = Api::<DHCPLease>::namespaced(self.client.clone(), namespace);
        match Box::pin(call(api.get(name))).await {
            Ok(record) => Ok(Some(record)),
            Err(CallError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn readable(record: Guard<DHCPLease>, network: &str, metrics: &Metrics) -> Option<Seen> {
    match record.0 {
        Ok(mut record) if record.spec.network == network => {
            record.metadata.managed_fields = None;
            Some(Seen::Is(Box::new(record)))
        }
        Ok(_) => None,
        Err(misfit) => {
            metrics.unreadable.with_label_values(&["DHCPLease"]).inc();
            tracing::warn!(record = misfit.metadata.name, error = misfit.error, "unreadable");
            let ObjectMeta { namespace, name, .. } = misfit.metadata;
            Some(Seen::Unreadable(namespace.unwrap_or_default(), name.unwrap_or_default()))
        }
    }
}
