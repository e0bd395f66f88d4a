//! The one task that starts probes when they are due and records their results.
//!
//! Invariants: at most as many probes are under way as [`super::sockets`] allows; further targets
//! wait in the order in which they became due. The drop of the future of [`Scheduler::run`] ends
//! all probes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use prometheus::IntGauge;
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use super::probe::{ProbeOutcome, ask};
use super::target_schedule::{ProbeStart, TargetKey};
use super::{ProberShared, sockets};

/// Divisor of a check's period. A probe counts as late if it starts more than a tenth of the period
/// after it was due.
const LATE_SHARE: u32 = 10;

/// Maximum number of probes that are started in one batch. The probes under way are polled before
/// the next batch. So thousands of due probes do not allocate their buffers all at once.
const AT_ONCE: usize = 32;

/// Task that starts the probes of a [`Prober`](super::Prober) when they are due.
#[must_use = "nothing is probed unless it runs"]
pub struct Scheduler(Arc<ProberShared>);

struct ProbeAnswer {
    key: TargetKey,
    protocol: &'static str,
    outcome: ProbeOutcome,
    took: Duration,
}

impl Scheduler {
    pub(super) fn new(shared: Arc<ProberShared>) -> Self {
        Self(shared)
    }

    /// Probes the targets until this future is dropped. Raises the process's limit of open files as
    /// far as possible. After the future is dropped, the runtime drops the probes, which closes
    /// their sockets.
    pub async fn run(self) {
        let most = sockets::allowance();
        // The schedule runs in a task of its own. So its thousands of wake-ups a second do not wake
        // the caller's task.
        let task = AbortOnDropHandle::new(tokio::spawn(schedule(self.0, most)));
        if let Err(error) = task.await {
            tracing::error!(%error, "the probe scheduler ended");
        }
    }
}

/// Guard for the metric of the number of targets. Its drop sets the metric to 0, because no target
/// is probed after the drop.
struct AtEnd(IntGauge);

impl Drop for AtEnd {
    fn drop(&mut self) {
        self.0.set(0);
    }
}

async fn schedule(shared: Arc<ProberShared>, most: usize) {
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
            Begun::All => shared.lock().schedule.next_due(),
            Begun::NoRoom => None,
        };
        // Sleeps until a time, not for a duration. So the time that passes before the sleep begins
        // does not lengthen the wait.
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

/// Result of starting the due probes.
enum Begun {
    /// All due probes were started.
    All,
    /// A full batch of [`AT_ONCE`] probes was started. More probes may be due.
    Some,
    /// The maximum number of probes is under way. Further probes wait until one of them ends.
    NoRoom,
}

fn begin_due(shared: &ProberShared, probes: &mut JoinSet<ProbeAnswer>, most: usize) -> Begun {
    let mut state = shared.lock();
    for _ in 0..AT_ONCE {
        if probes.len() >= most {
            return Begun::NoRoom;
        }
        let Some(start) = state.schedule.begin(shared.now()) else { return Begun::All };
        if start.late > start.check.period / LATE_SHARE {
            shared.metrics.probes.late.inc();
        }
        let key = start.key;
        let probe = probes.spawn(probe(start));
        state.under_way.insert(key, probe);
    }
    Begun::Some
}

async fn probe(start: ProbeStart) -> ProbeAnswer {
    let ProbeStart { key, address, check, dial, .. } = start;
    let began = Instant::now();
    let outcome = ask(address, &check, &dial).await;
    ProbeAnswer { key, protocol: check.probe.protocol(), outcome, took: began.elapsed() }
}

/// Records the result `first`, and the results of all other probes that have ended, in the schedule
/// and the metrics. Then calls [`ProberShared::notify`] with the LoadBalancers whose verdicts
/// flipped.
fn take_in(
    shared: &ProberShared,
    first: Result<ProbeAnswer, JoinError>,
    probes: &mut JoinSet<ProbeAnswer>,
) {
    let mut flipped = BTreeSet::new();
    let mut state = shared.lock();
    let rest = std::iter::from_fn(|| probes.try_join_next());
    for answer in std::iter::once(first).chain(rest) {
        let (key, passed) = match answer {
            Ok(ProbeAnswer { key, protocol, outcome, took }) => {
                let metrics = &shared.metrics;
                metrics.probes.done.with_label_values(&[protocol, outcome.word()]).inc();
                metrics.probes.seconds.with_label_values(&[protocol]).observe(took.as_secs_f64());
                (key, outcome.verdict())
            }
            // An aborted probe has no entry in `under_way` any more, and is skipped. A probe that
            // panicked has no result, and its target is probed again at its next time.
            Err(error) => {
                let of_task = |(_, probe): &(&TargetKey, &AbortHandle)| probe.id() == error.id();
                let Some((key, _)) = state.under_way.iter().find(of_task) else { continue };
                let target = state.schedule.target(*key);
                let target = target.map(|target| format!("{} of {}", target.address, target.lb));
                tracing::error!(probed = target, %error, "a probe panicked, and will be repeated");
                (*key, None)
            }
        };
        state.under_way.remove(&key);
        if let Some((lb, healthy)) = state.schedule.end(key, passed, shared.now()) {
            shared.metrics.probes.flipped(healthy, 1);
            flipped.insert(lb);
        }
    }
    shared.notify(state, flipped);
}
