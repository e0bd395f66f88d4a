//! One list-and-watch, told as events to a function, with its own backoff.
//!
//! Shared reflector streams are avoided on purpose: they never report deletions.

use std::fmt::Debug;
use std::time::Duration;

use futures::StreamExt;
use kube::core::Status;
use kube::{Api, Resource};
use kube_runtime::WatchStreamExt;
use kube_runtime::utils::ResetTimerBackoff;
use kube_runtime::watcher::{self, Event};
use serde::de::DeserializeOwned;

use crate::metrics::Metrics;

/// Watches until dropped. `on_event` is called in order, and must not block.
pub async fn run<K>(
    api: Api<K>,
    config: watcher::Config,
    kind: &'static str,
    metrics: &Metrics,
    on_event: impl FnMut(Event<K>),
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    run_if_served(api, config, kind, metrics, on_event, || ()).await;
}

/// The same, and tells each time that the cluster turns out not to serve the kind.
pub async fn run_if_served<K>(
    api: Api<K>,
    config: watcher::Config,
    kind: &'static str,
    metrics: &Metrics,
    on_event: impl FnMut(Event<K>),
    mut not_served: impl FnMut(),
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let refused = |status: &Status| {
        if status.is_not_found() {
            not_served();
        }
    };
    run_or_tell(api, config, kind, metrics, on_event, refused).await;
}

/// The same, and tells each time that the list is refused.
pub async fn run_or_tell<K>(
    api: Api<K>,
    config: watcher::Config,
    kind: &'static str,
    metrics: &Metrics,
    mut on_event: impl FnMut(Event<K>),
    mut refused: impl FnMut(&Status),
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let events = watcher::watcher(api, config).backoff(backoff());
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        let error = match event {
            Ok(event) => {
                on_event(event);
                continue;
            }
            Err(error) => error,
        };
        if let watcher::Error::InitialListFailed(kube::Error::Api(status)) = &error {
            refused(status);
            if status.is_not_found() {
                tracing::debug!(kind, "not served by this cluster");
                continue;
            }
        }
        metrics.watch_errors.with_label_values(&[kind]).inc();
        tracing::warn!(kind, %error, "watch interrupted, resuming");
    }
}

/// The library's own begins at 800 ms. An API server that has just been given a CRD refuses the
/// first watch and takes the next one a moment later: a guest need not wait a second for that.
fn backoff() -> ResetTimerBackoff<watcher::ExponentialBackoff> {
    let delays = backon::ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(100))
        .with_max_delay(Duration::from_secs(30))
        .with_factor(2.0)
        .with_jitter()
        .without_max_times();
    ResetTimerBackoff::new(delays.into(), Duration::from_mins(2))
}
