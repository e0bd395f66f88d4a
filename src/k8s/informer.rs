//! A single list-and-watch that passes events to a function, with its own backoff.
//!
//! Shared reflector streams are not used on purpose: they never report deletions.

use std::fmt::Debug;
use std::time::Duration;

use futures::StreamExt;
use kube::core::Status;
use kube::{Api, Resource};
use kube_runtime::WatchStreamExt;
use kube_runtime::utils::{Backoff, ResetTimerBackoff};
use kube_runtime::watcher::{self, Event};
use serde::de::DeserializeOwned;

use super::request_path::resource_at;
use crate::metrics::Metrics;

/// Duration of a watch, in seconds. The API server sends a bookmark two seconds before a watch
/// ends, so a connection without data for more than [`super::SILENCE`] is dead. The next watch
/// resumes from the bookmark: that costs one call and no list.
pub const WATCH_SECONDS: u32 = 8;

/// Watches until dropped. Calls `on_event` in order; it must not block.
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

/// Watches as [`run`] does, and calls `not_served` each time that the cluster does not serve the
/// kind.
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
        if is_unserved(status) {
            not_served();
        }
    };
    run_or_tell(api, config, kind, metrics, on_event, refused).await;
}

/// Watches as [`run`] does, and calls `refused` each time that the list is refused.
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
    // Created before the watch: a watch that is dropped, with a term for example, is not overdue.
    let watched =
        WatchRegistration { metrics, resource: resource_at(api.resource_url()).to_owned() };
    let events = watcher::watcher(api, config.timeout(WATCH_SECONDS)).backoff(backoff());
    let mut events = std::pin::pin!(events);
    let mut served = true;
    while let Some(event) = events.next().await {
        let error = match event {
            Ok(event) => {
                served |= matches!(event, Event::InitDone);
                on_event(event);
                continue;
            }
            Err(error) => error,
        };
        if let watcher::Error::InitialListFailed(kube::Error::Api(status)) = &error {
            refused(status);
            if is_unserved(status) {
                metrics.watches.forget(&watched.resource);
                if served {
                    tracing::info!(
                        kind,
                        "not served by this cluster; the watch starts as soon as it is"
                    );
                }
                served = false;
                continue;
            }
        }
        metrics.watches.errors.with_label_values(&[kind]).inc();
        tracing::warn!(kind, %error, "watch interrupted, resuming");
    }
}

/// Registration of a watched resource in the metrics, until dropped.
struct WatchRegistration<'a> {
    metrics: &'a Metrics,
    resource: String,
}

impl Drop for WatchRegistration<'_> {
    fn drop(&mut self) {
        self.metrics.watches.forget(&self.resource);
    }
}

/// Whether the cluster does not serve the kind. Without any kind of the group, the answer is plain
/// text without a reason.
fn is_unserved(status: &Status) -> bool {
    status.code == 404
}

/// Delays between consecutive failures, of at most [`LAST_DELAY`] and some jitter.
///
/// The library's own delays begin at 800 ms. An API server that has just received a CRD refuses the
/// first watch and accepts the next one a moment later: a guest need not wait a second for that.
struct RetryDelays(ResetTimerBackoff<watcher::ExponentialBackoff>);

/// Longest delay: how often each kind is tried while it cannot be listed.
const LAST_DELAY: Duration = Duration::from_secs(3);
/// Time after a failure from which the next failure counts as the first one again.
const FORGIVEN: Duration = Duration::from_secs(30);

impl Iterator for RetryDelays {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next()
    }
}

impl Backoff for RetryDelays {
    /// No effect. The library calls it at each event that is not an error, and a list that fails
    /// begins with such an event, so only the time may reset the delays.
    fn reset(&mut self) {}
}

fn backoff() -> RetryDelays {
    let delays = backon::ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(100))
        .with_max_delay(LAST_DELAY)
        .with_factor(2.0)
        .with_jitter()
        .without_max_times();
    RetryDelays(ResetTimerBackoff::new(delays.into(), FORGIVEN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_again_and_again_is_asked_for_ever_less() {
        let mut delays = backoff();
        let mut next = || {
            // The library does this before each list.
            delays.reset();
            delays.next().unwrap()
        };
        assert!(next() <= Duration::from_millis(200));
        let later: Vec<Duration> = (0..20).map(|_| next()).skip(10).collect();
        let bounds = LAST_DELAY..=LAST_DELAY * 2;
        assert!(later.iter().all(|delay| bounds.contains(delay)), "{later:?}");
    }

    #[test]
    fn an_unserved_group_is_answered_without_a_reason() {
        let answer = Status::failure("404 page not found", "Failed to parse error data");
        assert!(is_unserved(&answer.with_code(404)));
        assert!(!is_unserved(&Status::failure("no rights", "Forbidden").with_code(403)));
    }
}
