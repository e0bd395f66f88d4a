//! Informer: lists and watches one kind with its own backoff, and reports objects to a function.
//!
//! Shared reflector streams are deliberately not used, because they never report deletions.

use std::collections::HashSet;
use std::fmt::Debug;
use std::time::Duration;

use futures::StreamExt;
use kube::core::{ObjectMeta, Status};
use kube::{Api, Resource};
use kube_runtime::WatchStreamExt;
use kube_runtime::utils::{Backoff, ResetTimerBackoff};
use kube_runtime::watcher::{self, Config, Event};
use serde::de::DeserializeOwned;

use super::PAGE;
use super::guard::{Guard, ObjectMisfit};
use super::request_path::resource_at;
use crate::metrics::Metrics;

/// Duration of a watch, in seconds. It is shorter than [`super::SILENCE`]. A live connection brings
/// data at the latest when a watch ends, so a connection without data for the time `SILENCE` is
/// dead. The API server sends a bookmark two seconds before a watch ends. The next watch resumes
/// from the bookmark, without a list.
pub const WATCH_SECONDS: u32 = 8;

/// Event that an informer reports about the objects of its kind.
#[derive(Debug)]
pub enum ObjectEvent<K> {
    /// An object that a list contains, changed or not.
    Listed(K),
    /// An object that was created or changed.
    Changed(K),
    /// Metadata of an object that was listed, created or changed, but does not fit the type `K`.
    Unreadable(ObjectMeta),
    /// Deletion of an object. Field 0: the object's key. Field 1: the object's metadata at the
    /// deletion. Field 1 is `None` if the watch missed the deletion, and a later list did not
    /// contain the object.
    Gone(String, Option<ObjectMeta>),
    /// End of a list. Before this event, each known object that the list did not contain was
    /// reported as gone.
    Complete,
    /// Refusal of a list by the API server, with the `Status` object in the answer.
    Refused(Box<Status>),
}

/// Key of an object: `namespace/name`, or the name of a cluster-scoped object. [`split_key`]
/// returns the parts.
///
/// The key is text and not a type, because the ledger in an IPPool's status contains the same text,
/// and so do logs and messages. A key is compared and printed without conversion.
pub fn key(meta: &ObjectMeta) -> String {
    let name = meta.name.as_deref().unwrap_or_default();
    match &meta.namespace {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}

/// Namespace and name in a [`key`]. The namespace is empty for a cluster-scoped object.
///
/// Precondition: `key` was made from an object's metadata. A text from elsewhere, such as an option
/// or an owner in a stored ledger, may have no slash. Use `split_once` for such a text, and decide
/// what a name without a namespace means.
pub fn split_key(key: &str) -> (&str, &str) {
    key.split_once('/').unwrap_or(("", key))
}

/// Whether the API server refused a list because the cluster does not serve the kind. `status` is
/// the refusal. The code alone decides, and not `status.reason`: if the cluster serves no kind of
/// the whole API group, the API server answers 404 in plain text, without the reason `NotFound`.
pub fn is_unserved(status: &Status) -> bool {
    status.code == 404
}

/// Whether the API server refused a list because the cluster does not serve the kind, or because
/// the operator has no right to list the kind. `status` is the refusal. The caller need not report
/// a missing right: the informer logs and counts it at each list, and the metrics show that the
/// view is stale.
pub fn is_out_of_reach(status: &Status) -> bool {
    is_unserved(status) || status.code == 403
}

/// Watches objects until this future is dropped. Calls `on_event` for each event, in order.
/// `on_event` must not block. `known` returns the keys of the objects that the caller has. A known
/// object that a list does not contain is reported as gone.
pub async fn watch<K>(
    api: Api<K>,
    config: Config,
    metrics: &Metrics,
    known: impl Fn() -> HashSet<String>,
    on_event: impl FnMut(ObjectEvent<K>),
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    run(api, config, metrics, known, Ok, on_event).await;
}

/// Watches objects as [`watch`] does, but goes on after an object that does not fit its type. Such
/// an object is logged and counted, and reported as [`ObjectEvent::Unreadable`].
pub async fn watch_guarded<K>(
    api: Api<Guard<K>>,
    config: Config,
    metrics: &Metrics,
    known: impl Fn() -> HashSet<String>,
    on_event: impl FnMut(ObjectEvent<K>),
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    run(api, config, metrics, known, |object| unwrap(object, metrics), on_event).await;
}

/// The object in a [`Guard`]. `Err`: the metadata of the object, because the object does not fit
/// the type `K`. Such an object is logged and counted.
fn unwrap<K>(Guard(object): Guard<K>, metrics: &Metrics) -> Result<K, Box<ObjectMeta>>
where
    K: Resource<DynamicType = ()>,
{
    object.map_err(|ObjectMisfit { metadata, error }| {
        let kind = &*K::kind(&());
        metrics.unreadable.with_label_values(&[kind]).inc();
        tracing::warn!(
            kind,
            name = key(&metadata),
            error,
            "the object cannot be read and is skipped"
        );
        Box::new(metadata)
    })
}

async fn run<T, K>(
    api: Api<T>,
    config: Config,
    metrics: &Metrics,
    known: impl Fn() -> HashSet<String>,
    read: impl Fn(T) -> Result<K, Box<ObjectMeta>>,
    mut on_event: impl FnMut(ObjectEvent<K>),
) where
    T: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let kind = &*T::kind(&());
    // The registration is created before the watch, so it is dropped after the watch. When a watch
    // ends, for example with the leader's term, the drop removes the resource from the metrics, so
    // that the watch does not count as overdue.
    let watched =
        WatchRegistration { metrics, resource: resource_at(api.resource_url()).to_owned() };
    metrics.watches.asked(&watched.resource);
    let events =
        watcher::watcher(api, config.page_size(PAGE).timeout(WATCH_SECONDS)).backoff(backoff());
    let mut events = std::pin::pin!(events);
    let mut list = UnlistedKeys::default();
    let mut served = true;
    while let Some(event) = events.next().await {
        let error = match event {
            Ok(event) => {
                served |= matches!(event, Event::InitDone);
                list.report(event, &known, &read, &mut on_event);
                continue;
            }
            Err(error) => error,
        };
        if let watcher::Error::InitialListFailed(kube::Error::Api(status)) = &error {
            on_event(ObjectEvent::Refused(status.clone()));
            if is_unserved(status) {
                metrics.watches.forget(&watched.resource);
                if served {
                    tracing::info!(
                        kind,
                        "this cluster does not serve the kind; the watch starts when the cluster serves it"
                    );
                }
                served = false;
                continue;
            }
        }
        // If the kind was not served before, its staleness counts from now on.
        metrics.watches.asked(&watched.resource);
        metrics.watches.errors.with_label_values(&[kind]).inc();
        tracing::warn!(kind, %error, "watch interrupted, resuming");
    }
}

/// Keys of the objects that the caller had at the start of a list, and that the list has not
/// contained so far. When the list is complete, the objects with the remaining keys are reported as
/// gone.
#[derive(Default)]
struct UnlistedKeys(HashSet<String>);

impl UnlistedKeys {
    /// Converts an event of kube-runtime's watcher into events of the informer, and passes them to
    /// `on_event`.
    fn report<T: Resource, K>(
        &mut self,
        event: Event<T>,
        known: impl Fn() -> HashSet<String>,
        read: impl Fn(T) -> Result<K, Box<ObjectMeta>>,
        mut on_event: impl FnMut(ObjectEvent<K>),
    ) {
        let unreadable = |metadata: Box<ObjectMeta>| ObjectEvent::Unreadable(*metadata);
        match event {
            // The watcher sends `Init` at the start of each list, even if the list before it has
            // failed.
            Event::Init => self.0 = known(),
            Event::InitApply(object) => {
                if !self.0.is_empty() {
                    self.0.remove(&key(object.meta()));
                }
                on_event(read(object).map_or_else(unreadable, ObjectEvent::Listed));
            }
            Event::InitDone => {
                for key in std::mem::take(&mut self.0) {
                    on_event(ObjectEvent::Gone(key, None));
                }
                on_event(ObjectEvent::Complete);
            }
            Event::Apply(object) => {
                on_event(read(object).map_or_else(unreadable, ObjectEvent::Changed));
            }
            Event::Delete(mut object) => {
                let deleted = std::mem::take(object.meta_mut());
                on_event(ObjectEvent::Gone(key(&deleted), Some(deleted)));
            }
        }
    }
}

/// Registration of a watched resource in the metrics. The drop of a `WatchRegistration` ends the
/// registration.
struct WatchRegistration<'a> {
    metrics: &'a Metrics,
    resource: String,
}

impl Drop for WatchRegistration<'_> {
    fn drop(&mut self) {
        self.metrics.watches.forget(&self.resource);
    }
}

/// Delays before a failed list or watch is tried again. A delay is at most [`LAST_DELAY`] plus
/// jitter.
///
/// kube-runtime's own delays begin at 800 ms, which is too long for a guest that waits. For
/// example, an API server that has just received a CRD rejects the first watch, and accepts the
/// next watch soon after.
struct RetryDelays(ResetTimerBackoff<watcher::ExponentialBackoff>);

/// Longest delay before a failed list or watch is tried again, without jitter.
const LAST_DELAY: Duration = Duration::from_secs(3);
/// Time without a failed list or watch after which the delays begin again with the shortest one.
const FORGIVEN: Duration = Duration::from_secs(30);

impl Iterator for RetryDelays {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next()
    }
}

impl Backoff for RetryDelays {
    /// Does nothing. kube-runtime calls `reset` at each event that is not an error, and even a
    /// failed list begins with such an event. So only the time [`FORGIVEN`] resets the delays.
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
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;
    use crate::api::LoadBalancer;
    use crate::k8s::tests::changing_client;

    #[test]
    fn what_fails_again_and_again_is_asked_for_ever_less() {
        let mut delays = backoff();
        let mut next = || {
            // The library calls `reset` before each list. The call must not shorten the next delay.
            delays.reset();
            delays.next().unwrap()
        };
        assert!(next() <= Duration::from_millis(200));
        let later: Vec<Duration> = (0..20).map(|_| next()).skip(10).collect();
        let bounds = LAST_DELAY..=LAST_DELAY * 2;
        assert!(later.iter().all(|delay| bounds.contains(delay)), "{later:?}");
    }

    #[test]
    fn a_key_is_split_into_the_parts_that_it_was_made_of() {
        assert_eq!(split_key(&key(&named("ns/web"))), ("ns", "web"));
        let cluster_scoped = ObjectMeta { name: Some("web".into()), ..ObjectMeta::default() };
        assert_eq!(split_key(&key(&cluster_scoped)), ("", "web"));
    }

    fn named(key: &str) -> ObjectMeta {
        let (namespace, name) = split_key(key);
        ObjectMeta {
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        }
    }

    fn fits(key: &str) -> Guard<LoadBalancer> {
        Guard(Ok(LoadBalancer { metadata: named(key), ..LoadBalancer::default() }))
    }

    fn misfit(key: &str) -> Guard<LoadBalancer> {
        Guard(Err(ObjectMisfit { metadata: named(key), error: "port: not a number".to_owned() }))
    }

    fn text(event: ObjectEvent<LoadBalancer>) -> String {
        match event {
            ObjectEvent::Listed(lb) => format!("listed {}", key(&lb.metadata)),
            ObjectEvent::Changed(lb) => format!("changed {}", key(&lb.metadata)),
            ObjectEvent::Unreadable(meta) => format!("unreadable {}", key(&meta)),
            ObjectEvent::Gone(key, None) => format!("gone {key}"),
            ObjectEvent::Gone(key, Some(meta)) => format!("deleted {key} {}", meta.name.unwrap()),
            ObjectEvent::Complete => "complete".to_owned(),
            ObjectEvent::Refused(status) => format!("refused {}", status.code),
        }
    }

    /// Passes a watcher's events to `list`, and returns the reports for the informer's caller.
    /// `known`: keys of the objects that the caller already has.
    fn reports(
        list: &mut UnlistedKeys,
        known: &[&str],
        events: Vec<Event<Guard<LoadBalancer>>>,
    ) -> Vec<String> {
        let metrics = Metrics::new().unwrap();
        let known = || known.iter().map(|key| (*key).to_owned()).collect();
        let (mut seen, mut misfits) = (Vec::new(), 0);
        for event in events {
            list.report(
                event,
                known,
                |lb| unwrap(lb, &metrics),
                |event| {
                    misfits += u64::from(matches!(event, ObjectEvent::Unreadable(_)));
                    seen.push(text(event));
                },
            );
        }
        assert_eq!(metrics.unreadable.with_label_values(&["LoadBalancer"]).get(), misfits);
        seen
    }

    #[test]
    fn an_object_that_a_list_does_not_contain_is_gone_before_the_list_is_complete() {
        let mut list = UnlistedKeys::default();
        let events = vec![
            Event::Init,
            Event::InitApply(fits("ns/b")),
            Event::InitApply(fits("ns/new")),
            Event::InitDone,
        ];
        let seen = reports(&mut list, &["ns/a", "ns/b"], events);
        assert_eq!(seen, ["listed ns/b", "listed ns/new", "gone ns/a", "complete"]);
        let events = vec![Event::Apply(fits("ns/a")), Event::Delete(fits("ns/b"))];
        let seen = reports(&mut list, &[], events);
        assert_eq!(seen, ["changed ns/a", "deleted ns/b b"]);
    }

    #[test]
    fn an_object_that_cannot_be_read_exists_until_it_is_deleted() {
        let mut list = UnlistedKeys::default();
        let events = vec![
            Event::Init,
            Event::InitApply(misfit("ns/a")),
            Event::InitDone,
            Event::Apply(misfit("ns/a")),
            Event::Delete(misfit("ns/a")),
        ];
        let seen = reports(&mut list, &["ns/a"], events);
        let expected = ["unreadable ns/a", "complete", "unreadable ns/a", "deleted ns/a a"];
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_list_that_fails_says_nothing_about_what_it_has_not_reached() {
        let mut list = UnlistedKeys::default();
        let events = vec![Event::Init, Event::InitApply(fits("ns/a"))];
        assert_eq!(reports(&mut list, &["ns/a", "ns/b"], events), ["listed ns/a"]);
        let events = vec![Event::Init, Event::InitApply(fits("ns/b")), Event::InitDone];
        let seen = reports(&mut list, &["ns/a", "ns/b"], events);
        assert_eq!(seen, ["listed ns/b", "gone ns/a", "complete"]);
    }

    /// The caller adds an object that it has written itself, between `Init` and `InitDone`. The
    /// list does not contain this object.
    #[test]
    fn an_object_that_the_caller_adds_during_a_list_is_not_gone() {
        let mut list = UnlistedKeys::default();
        assert!(reports(&mut list, &[], vec![Event::Init]).is_empty());
        assert_eq!(reports(&mut list, &["ns/a"], vec![Event::InitDone]), ["complete"]);
    }

    /// The alert `HGOViewStale` needs the series `hgo_watch_staleness_seconds` of a kind that the
    /// operator may not list (403), even if the kind was not served (404) at first.
    #[tokio::test]
    async fn a_view_that_no_right_fills_is_stale_and_one_of_an_unserved_kind_is_not() {
        for (first, later, is_stale) in [(403, 403, true), (404, 404, false), (404, 403, true)] {
            let metrics = Metrics::new().unwrap();
            let (refused, mut refusals) = unbounded_channel();
            let on_event = |event: ObjectEvent<LoadBalancer>| {
                assert!(text(event).starts_with("refused "));
                let series = "hgo_watch_staleness_seconds{resource=\"loadbalancers\"}";
                refused.send(metrics.render().unwrap().contains(series)).unwrap();
            };
            let api = Api::all(changing_client(first, later, "no"));
            let watching = watch(api, Config::default(), &metrics, HashSet::new, on_event);
            // The third list follows when the second refusal was handled.
            let third = async {
                refusals.recv().await;
                refusals.recv().await;
                refusals.recv().await
            };
            tokio::select! {
                () = watching => panic!("the watch has ended"),
                seen = third => assert_eq!(seen, Some(is_stale), "{first} {later}"),
            }
        }
    }

    #[test]
    fn an_unserved_group_is_answered_without_a_reason() {
        let answer = Status::failure("404 page not found", "Failed to parse error data");
        assert!(is_unserved(&answer.with_code(404)));
        assert!(!is_unserved(&Status::failure("no rights", "Forbidden").with_code(403)));
    }
}
