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
        // The API refuses notes of a kilobyte and more.
        if let Some((cut, _)) = note.char_indices().nth(900) {
            note.truncate(cut);
        }
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
