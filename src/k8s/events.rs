//! Writes Kubernetes Events, best effort, from a bounded queue. Events that are not written are
//! counted. Namespaces take turns: many warnings of one tenant delay an Event of another tenant by
//! one turn only.
//!
//! One budget limits all Events together, so that they do not slow the writes of addresses. kube's
//! `Recorder` has no limit. client-go's filter limits only each pair of source and object (25
//! Events, and then one Event in five minutes), so Events about many objects are not limited
//! together.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube_runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::Notify;

use super::calls::run_call;
use super::{CALL_DEADLINE, CallError};
use crate::domain::limits::fair_queue::FairQueue;
use crate::domain::limits::text::cut;
use crate::domain::limits::token_bucket::TokenBucket;
use crate::locks::lock;
use crate::metrics::Metrics;

/// Maximum length of a note in bytes. The API server refuses an Event with a longer note.
const LONGEST_NOTE: usize = 1024;
/// Budget of Events: one Event every half second. After ten seconds without an Event, up to 20
/// Events are sent without delay.
const BUDGET: TokenBucket = TokenBucket::new(20, Duration::from_millis(500));
/// Maximum number of tries to write one warning, the first try included.
const WARNING_TRIES: u32 = 3;
/// Pause between two tries to write the same warning.
const AGAIN: Duration = Duration::from_secs(1);

/// Sender of Events. A call of its methods does not wait for the API server.
#[derive(Clone)]
pub struct EventRecorder {
    queue: Arc<EventQueue>,
    metrics: Metrics,
}

#[derive(Default)]
struct EventQueue {
    waiting: Mutex<FairQueue<(Event, ObjectReference)>>,
    /// Notified when an Event is queued.
    news: Notify,
}

impl EventQueue {
    fn pop(&self) -> Option<(Event, ObjectReference)> {
        lock(&self.waiting).pop()
    }
}

impl EventRecorder {
    /// Starts the task that writes the queued Events to the API server. The task runs until the
    /// process ends. Returns the sender of Events. `me`: name of this process in the Events.
    pub fn start(client: Client, me: &str, metrics: Metrics) -> Self {
        let queue = Arc::<EventQueue>::default();
        let reporter = Reporter {
            controller: "harvester-guest-operator".to_owned(),
            instance: Some(me.to_owned()),
        };
        let recorder = Recorder::new(client, reporter);
        tokio::spawn(write(queue.clone(), recorder, metrics.clone()));
        Self { queue, metrics }
    }

    /// Sends an Event of type Normal, for an expected change.
    pub fn normal(&self, object: ObjectReference, reason: &str, note: String) {
        self.send(EventType::Normal, object, reason, note);
    }

    /// Sends an Event of type Warning, for a state in which an admin or a user should act.
    pub fn warning(&self, object: ObjectReference, reason: &str, note: String) {
        self.send(EventType::Warning, object, reason, note);
    }

    fn send(&self, type_: EventType, object: ObjectReference, reason: &str, note: String) {
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(cut(note, LONGEST_NOTE)),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        let namespace = object.namespace.clone().unwrap_or_default();
        let mut waiting = lock(&self.queue.waiting);
        if waiting.push(&namespace, (event, object)).is_some() {
            self.metrics.events_dropped.inc();
        }
        drop(waiting);
        self.queue.news.notify_one();
    }
}

async fn write(queue: Arc<EventQueue>, recorder: Recorder, metrics: Metrics) {
    let (mut budget, began) = (BUDGET, Instant::now());
    'events: loop {
        let Some((event, object)) = queue.pop() else {
            queue.news.notified().await;
            continue;
        };
        // When the budget is used up, a Normal Event is dropped, and a Warning waits.
        while let Err(later) = budget.take(began.elapsed()) {
            if event.type_ == EventType::Normal {
                metrics.events_dropped.inc();
                continue 'events;
            }
            tokio::time::sleep(later.saturating_sub(began.elapsed())).await;
        }
        let published = publish(&recorder, &event, &object).await;
        if let Err(error) = published {
            metrics.events_dropped.inc();
            tracing::debug!(%error, reason = event.reason, "event not written");
        }
    }
}

/// Writes an Event. A warning has up to [`WARNING_TRIES`] tries, because some warnings are sent
/// only once in a term. A failed write is tried again only if [`CallError::may_pass`] is true for
/// the error. If the answer to a write was lost, the next try may write a second Event.
async fn publish(
    recorder: &Recorder,
    event: &Event,
    object: &ObjectReference,
) -> Result<(), CallError> {
    let name = || {
        let part = |part: &Option<String>| part.clone().unwrap_or_default();
        let (namespace, name) = (part(&object.namespace), part(&object.name));
        format!("Event of {} {namespace}/{name}", part(&object.kind))
    };
    let mut left = if event.type_ == EventType::Warning { WARNING_TRIES } else { 1 };
    loop {
        left -= 1;
        match run_call(CALL_DEADLINE, name, recorder.publish(event, object)).await {
            Err(error) if error.may_pass() && left > 0 => tokio::time::sleep(AGAIN).await,
            published => return published,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::sync::atomic::{AtomicU32, Ordering};

    use http::{Request, Response};
    use kube::client::{Body, ClientBuilder};
    use kube::core::Status;
    use serde_json::json;
    use tower::{BoxError, service_fn};

    use super::*;

    /// The length of a note is counted in bytes, as the API server counts it, and not in
    /// characters.
    #[test]
    fn a_long_note_is_cut_and_what_finds_no_room_is_counted() {
        let events = EventRecorder { queue: Arc::default(), metrics: Metrics::new().unwrap() };
        for letter in ["x", "€"] {
            events.warning(ObjectReference::default(), "Reason", letter.repeat(5_000));
            let (event, _) = events.queue.pop().unwrap();
            let length = event.note.unwrap().len();
            assert!((1022..=1024).contains(&length), "{length} bytes of {letter}");
        }
        assert_eq!(events.metrics.events_dropped.get(), 0);
        for _ in 0..1_000 {
            events.normal(ObjectReference::default(), "Reason", String::new());
        }
        let waiting = std::iter::from_fn(|| events.queue.pop()).count();
        let dropped = events.metrics.events_dropped.get();
        assert!(waiting > 0 && dropped > 0, "{waiting} wait, {dropped} dropped");
        assert_eq!(u64::try_from(waiting).unwrap() + dropped, 1_000);
    }

    /// The API server is overloaded for a moment.
    #[tokio::test]
    async fn a_warning_that_was_not_written_is_written_again() {
        for (type_, code, expected) in [
            (EventType::Warning, 503, 3),
            (EventType::Warning, 403, 1),
            (EventType::Normal, 503, 1),
        ] {
            let count = Arc::new(AtomicU32::new(0));
            let calls = count.clone();
            let server = service_fn(move |_: Request<Body>| {
                let number = calls.fetch_add(1, Ordering::Relaxed) + 1;
                let (code, body) = if number < 3 {
                    (code, json!(Status::failure("no", "Unavailable").with_code(code)))
                } else {
                    let metadata = json!({"name": "event", "namespace": "default"});
                    (201, json!({"metadata": metadata, "eventTime": null}))
                };
                let body = Body::from(body.to_string().into_bytes());
                ready(Ok::<_, BoxError>(Response::builder().status(code).body(body).unwrap()))
            });
            let client = ClientBuilder::new(server, "default").build();
            let recorder = Recorder::new(client, Reporter::from("test"));
            let event = Event {
                type_,
                reason: "Reason".to_owned(),
                note: None,
                action: "Reconcile".to_owned(),
                secondary: None,
            };
            let object = ObjectReference::default();
            let published = publish(&recorder, &event, &object).await;
            assert_eq!(count.load(Ordering::Relaxed), expected, "{code}");
            assert_eq!(published.is_ok(), expected == 3, "{published:?}");
        }
    }

    /// A tenant's warnings delay another tenant's Event by one turn.
    #[test]
    fn an_event_waits_in_the_namespace_of_its_object() {
        let events = EventRecorder { queue: Arc::default(), metrics: Metrics::new().unwrap() };
        for (namespace, count) in [("hostile", 1_000), ("other", 1)] {
            let namespace = Some(namespace.to_owned());
            let object = ObjectReference { namespace, ..ObjectReference::default() };
            for _ in 0..count {
                events.warning(object.clone(), "Reason", String::new());
            }
        }
        let next = || events.queue.pop().unwrap().1.namespace.unwrap();
        assert_eq!([next(), next()], ["hostile", "other"]);
    }
}
