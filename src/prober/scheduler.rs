//! The one task that begins probes when they are due and takes in what they say.
//!
//! Invariants: at most so many probes are under way as [`super::sockets`] allows; what is due
//! meanwhile waits in the order in which it became due. No probe outlives the future of
//! [`Scheduler::run`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use prometheus::IntGauge;
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use super::ask::{Outcome, ask};
use super::roster::{Key, Start};
use super::{Dial, Shared, sockets};

/// A probe that begins later than this share of its period counts as late: one part in ten.
const LATE_SHARE: u32 = 10;

/// Probes begun in a row. Those that are under way get their turn before the next are begun, so
/// that a burst takes the time it takes instead of holding all its buffers at once.
const AT_ONCE: usize = 32;

/// Does a prober's work.
#[must_use = "nothing is probed unless it runs"]
pub struct Scheduler(Arc<Shared>);

struct Answer {
    key: Key,
    protocol: &'static str,
    outcome: Outcome,
    took: Duration,
}

impl Scheduler {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    /// Probes until dropped. Raises the process's limit of open files as far as it may. Dropping
    /// it closes every socket as soon as the runtime gets to it.
    pub async fn run(self) {
        let most = sockets::allowance();
        // A task of its own: thousands of wake-ups a second are not those of whoever waits here.
        let task = AbortOnDropHandle::new(tokio::spawn(schedule(self.0, most)));
        if let Err(error) = task.await {
            tracing::error!(%error, "the scheduler of probes ended");
        }
    }
}

/// After the last probe, nothing is a target: another process probes, or nobody does.
struct AtEnd(IntGauge);

impl Drop for AtEnd {
    fn drop(&mut self) {
        self.0.set(0);
    }
}

async fn schedule(shared: Arc<Shared>, most: usize) {
    let _at_end = AtEnd(shared.metrics.probes.targets.clone());
    let mut probes = JoinSet::new();
    loop {
        let next = match begin_due(&shared, &mut probes, most) {
            Begun::Some => {
                tokio::task::yield_now().await;
                if let Some(answer) = probes.try_join_next() {
                    take_in(&shared, answer, &mut probes);
                }
                continue;
            }
            Begun::All => shared.lock().roster.next_due(),
            Begun::NoRoom => None,
        };
        // A deadline, not a duration: what passes between here and there counts.
        let sleep = async {
            match next {
                Some(due) => sleep_until(shared.epoch + due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = sleep => {}
            () = shared.wake.notified() => {}
            Some(answer) = probes.join_next() => take_in(&shared, answer, &mut probes),
        }
    }
}

/// How much of what is due was begun.
enum Begun {
    All,
    Some,
    /// The rest has to wait until probes end.
    NoRoom,
}

fn begin_due(shared: &Shared, probes: &mut JoinSet<Answer>, most: usize) -> Begun {
    let mut state = shared.lock();
    for _ in 0..AT_ONCE {
        if probes.len() >= most {
            return Begun::NoRoom;
        }
        let Some(start) = state.roster.begin(shared.now()) else { return Begun::All };
        if start.late > start.check.period / LATE_SHARE {
            shared.metrics.probes.late.inc();
        }
        let key = start.key;
        let probe = probes.spawn(probe(start));
        state.under_way.insert(key, probe);
    }
    Begun::Some
}

async fn probe(start: Start<Dial>) -> Answer {
    let Start { key, address, check, dial, .. } = start;
    let began = Instant::now();
    let outcome = ask(address, &check, &dial).await;
    Answer { key, protocol: check.probe.protocol(), outcome, took: began.elapsed() }
}

/// Takes in one answer and all others that are there, and tells whose verdicts flipped.
fn take_in(shared: &Shared, first: Result<Answer, JoinError>, probes: &mut JoinSet<Answer>) {
    let mut flipped = BTreeSet::new();
    let mut state = shared.lock();
    let rest = std::iter::from_fn(|| probes.try_join_next());
    for answer in std::iter::once(first).chain(rest) {
        let (key, passed) = match answer {
            Ok(Answer { key, protocol, outcome, took }) => {
                let metrics = &shared.metrics;
                metrics.probes.done.with_label_values(&[protocol, outcome.word()]).inc();
                metrics.probes.seconds.with_label_values(&[protocol]).observe(took.as_secs_f64());
                (key, outcome.verdict())
            }
            // What was aborted is no longer in the map. What panicked says nothing, and its
            // target is probed again.
            Err(error) => {
                let of_task = |(_, probe): &(&Key, &AbortHandle)| probe.id() == error.id();
                let Some((key, _)) = state.under_way.iter().find(of_task) else { continue };
                tracing::error!(%error, "a probe failed");
                (*key, None)
            }
        };
        state.under_way.remove(&key);
        if let Some((lb, healthy)) = state.roster.end(key, passed, shared.now()) {
            shared.metrics.probes.flipped(healthy, 1);
            flipped.insert(lb);
        }
    }
    shared.tell(state, flipped);
}
