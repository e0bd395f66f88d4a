//! Kubernetes Events: best effort, from a bounded queue, at a rate that never competes with
//! the addresses themselves. What the budget refuses is logged and counted.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube_runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;

use crate::metrics::Metrics;

/// Events that may wait to be written.
const QUEUE: usize = 128;
/// Events written in a row after a rest.
const BURST: u32 = 20;
/// Bytes of a note at most: the API server refuses an Event with more.
const LONGEST_NOTE: usize = 1024;
/// Time that earns one more Event.
const EARN: Duration = Duration::from_millis(500);

/// Hands Events over without waiting.
#[derive(Clone)]
pub struct Events {
    queue: mpsc::Sender<(Event, ObjectReference)>,
    metrics: Metrics,
}

impl Events {
    /// Starts the writer. It ends with the last handle.
    pub fn start(client: Client, me: &str, metrics: Metrics) -> Self {
        let (queue, receiver) = mpsc::channel(QUEUE);
        let reporter = Reporter {
            controller: "harvester-guest-operator".to_owned(),
            instance: Some(me.to_owned()),
        };
        tokio::spawn(write(receiver, Recorder::new(client, reporter), metrics.clone()));
        Self { queue, metrics }
    }

    /// Something went as it should.
    pub fn normal(&self, object: ObjectReference, reason: &str, note: String) {
        self.send(EventType::Normal, object, reason, note);
    }

    /// Something needs somebody's attention.
    pub fn warning(&self, object: ObjectReference, reason: &str, note: String) {
        self.send(EventType::Warning, object, reason, note);
    }

    fn send(&self, type_: EventType, object: ObjectReference, reason: &str, mut note: String) {
        note.truncate(note.floor_char_boundary(LONGEST_NOTE));
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(note),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        if self.queue.try_send((event, object)).is_err() {
            self.metrics.events_dropped.inc();
        }
    }
}

async fn write(
    mut queue: mpsc::Receiver<(Event, ObjectReference)>,
    recorder: Recorder,
    metrics: Metrics,
) {
    let mut budget = BURST;
    let mut earned = Instant::now();
    while let Some((event, object)) = queue.recv().await {
        let periods =
            u32::try_from(earned.elapsed().as_millis() / EARN.as_millis()).unwrap_or(BURST);
        budget = budget.saturating_add(periods).min(BURST);
        earned += EARN * periods;
        // A flood of good news is dropped; a warning waits for its turn.
        if budget == 0 {
            if event.type_ == EventType::Normal {
                metrics.events_dropped.inc();
                continue;
            }
            tokio::time::sleep(EARN).await;
            earned = Instant::now();
            budget = 1;
        }
        budget -= 1;
        if let Err(error) = super::call(recorder.publish(&event, &object)).await {
            metrics.events_dropped.inc();
            tracing::debug!(%error, reason = event.reason, "event not written");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The API server counts bytes, not characters.
    #[test]
    fn a_long_note_is_cut_and_what_finds_no_room_is_counted() {
        let (queue, mut queued) = mpsc::channel(1);
        let events = Events { queue, metrics: Metrics::new().unwrap() };
        for letter in ["x", "€"] {
            events.warning(ObjectReference::default(), "Reason", letter.repeat(5_000));
            let (event, _) = queued.try_recv().unwrap();
            let length = event.note.unwrap().len();
            assert!((1022..=1024).contains(&length), "{length} bytes of {letter}");
        }
        assert_eq!(events.metrics.events_dropped.get(), 0);
        for _ in 0..3 {
            events.normal(ObjectReference::default(), "Reason", String::new());
        }
        assert_eq!(events.metrics.events_dropped.get(), 2);
    }
}
