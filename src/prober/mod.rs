//! Probes the backends of VM load balancers. Only this module opens sockets to backends.
//!
//! A replica that does not lead only probes single targets for a second opinion ([`survey`]).
//! Invariants of all other probes:
//! * all state belongs to one term of leadership;
//! * probes run only while [`Scheduler::run`] runs, and end with it;
//! * a target that [`Prober::set`] no longer lists is not probed again, and if its probe is under
//!   way, the result is dropped;
//! * one task schedules all targets;
//! * the number of open sockets is bounded.

mod check_connection;
mod probe;
mod scheduler;
mod sockets;
mod target_schedule;
mod tls;
mod unscheduled_probes;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

pub use crate::domain::vm_backends::health::ProbeTarget;
use crate::domain::vm_backends::health::second_opinion::{self, ASKED, AskedTarget};
use crate::domain::vm_backends::health::{CheckSettings, HealthSpecFault};
use crate::locks::lock;
use crate::metrics::Metrics;
use check_connection::DialSettings;
pub use scheduler::Scheduler;
use target_schedule::{Key, TargetSchedule};
pub use unscheduled_probes::survey;

/// Handle to set targets and read verdicts. Cheap to clone; clones share all state.
#[derive(Clone)]
pub struct Prober(Arc<ProberShared>);

struct ProberShared {
    state: Mutex<ProberState>,
    /// Notified when a target may be due earlier than the time for which the scheduler waits.
    wake: Notify,
    metrics: Metrics,
    /// Function that is called with the key of a LoadBalancer whose verdicts have flipped. Called
    /// without the lock of `state`. It must not block.
    flipped: Box<dyn Fn(&str) + Send + Sync>,
    /// Number of targets that are healthy only because their failures are doubted.
    held: watch::Sender<usize>,
    /// Start of this term. All times are offsets from it.
    epoch: Instant,
}

#[derive(Default)]
struct ProberState {
    schedule: TargetSchedule<DialSettings>,
    /// Probes under way. The scheduler removes entries of probes that ended.
    under_way: HashMap<Key, AbortHandle>,
    /// Explanation of the doubted failures.
    why_doubted: String,
}

impl Prober {
    /// Creates a prober without targets, and the scheduler that probes while it runs.
    ///
    /// When a verdict flips, `flipped` is called with the LoadBalancer's key, as given to
    /// [`Self::set`]. Several flips of one LoadBalancer at the same time are one call.
    pub fn new(
        metrics: Metrics,
        flipped: impl Fn(&str) + Send + Sync + 'static,
    ) -> (Self, Scheduler) {
        metrics.probes.targets.set(0);
        let shared = Arc::new(ProberShared {
            state: Mutex::default(),
            wake: Notify::new(),
            metrics,
            flipped: Box::new(flipped),
            held: watch::Sender::new(0),
            epoch: Instant::now(),
        });
        (Self(Arc::clone(&shared)), Scheduler::new(shared))
    }

    /// Sets the targets of a LoadBalancer, and removes its other targets.
    ///
    /// A target with the same id, address and request retains its verdict, its results and its
    /// times of probing; thresholds, period and timeout may change. With another request, the
    /// target retains only its verdict. At another address, it is a new target. `check: None`
    /// removes all targets.
    ///
    /// A target whose address cannot belong to a backend is unhealthy and never probed.
    ///
    /// Fails, and removes all targets, when the check's path, CA bundle or server name is invalid.
    pub fn set(
        &self,
        lb: &str,
        check: Option<&CheckSettings>,
        targets: &[ProbeTarget],
    ) -> Result<(), HealthSpecFault> {
        let Some(check) = check else {
            self.remove(lb);
            return Ok(());
        };
        let mut state = self.0.lock();
        // Making connection settings parses certificates, so a reconcile without a change must not
        // make them again.
        let dial = match state.schedule.dial(lb, check) {
            Some(dial) => dial,
            None => match DialSettings::new(check) {
                Ok(dial) => Arc::new(dial),
                Err(fault) => {
                    drop(state);
                    self.remove(lb);
                    return Err(fault);
                }
            },
        };
        let change = state.schedule.set(lb, check, &dial, targets, self.0.now());
        for refused in change.refused {
            tracing::warn!(lb, target = refused.id, address = %refused.address,
                "not probed: this address cannot be a backend's");
        }
        self.0.abort_dropped(state, &change.dropped);
        Ok(())
    }

    /// Removes the LoadBalancer and all its targets.
    pub fn remove(&self, lb: &str) {
        let mut state = self.0.lock();
        let dropped = state.schedule.remove(lb);
        // Most LoadBalancers have no health check, and this function is called repeatedly for each
        // of them. So nothing is notified if no target was removed.
        if !dropped.is_empty() {
            self.0.abort_dropped(state, &dropped);
        }
    }

    /// Verdict on a target. `None`: the target does not exist.
    pub fn is_healthy(&self, lb: &str, id: &str) -> Option<bool> {
        self.0.lock().schedule.is_healthy(lb, id)
    }

    /// Verdicts on all targets of a LoadBalancer, by id.
    pub fn verdicts(&self, lb: &str) -> HashMap<String, bool> {
        self.0.lock().schedule.verdicts(lb)
    }

    /// Watch of the number of targets that are healthy only because their failures are doubted.
    pub fn held(&self) -> watch::Receiver<usize> {
        self.0.held.subscribe()
    }

    /// Some of the doubted targets, as [`second_opinion::sample`] picks them. `at`: seed of the
    /// choice.
    pub fn sample(&self, at: &str) -> Vec<AskedTarget> {
        second_opinion::sample(self.0.lock().schedule.held(), at)
    }

    /// Sets the explanation for LoadBalancers with doubted targets. Empty: no replica has answered
    /// yet, and the explanation says so.
    pub fn explain(&self, why: String) {
        let mut state = self.0.lock();
        if state.why_doubted != why {
            state.why_doubted = why;
            let lbs = state.schedule.held().map(|asked| asked.lb.into()).collect();
            self.0.notify(state, lbs);
        }
    }

    /// Explanation of the doubt, if the LoadBalancer has a doubted target.
    pub fn why_doubted(&self, lb: &str) -> Option<String> {
        let state = self.0.lock();
        let why = if state.why_doubted.is_empty() { ASKED } else { &state.why_doubted };
        state.schedule.holds(lb).then(|| why.to_owned())
    }

    /// Accepts all doubted failures as real, so that their targets become unhealthy.
    pub fn believe(&self) {
        let mut state = self.0.lock();
        let believed = state.schedule.count_held();
        self.0.metrics.probes.flipped(false, believed);
        state.schedule.believe();
        self.0.notify(state, BTreeSet::new());
    }
}

impl ProberShared {
    /// Locks the state.
    fn lock(&self) -> MutexGuard<'_, ProberState> {
        lock(&self.state)
    }

    fn now(&self) -> std::time::Duration {
        self.epoch.elapsed()
    }

    /// Aborts the probes of dropped targets, and wakes the scheduler.
    fn abort_dropped(&self, mut state: MutexGuard<'_, ProberState>, dropped: &[Key]) {
        for key in dropped {
            if let Some(probe) = state.under_way.remove(key) {
                probe.abort();
            }
        }
        self.metrics.probes.targets.set(i64::try_from(state.schedule.len()).unwrap_or(i64::MAX));
        self.notify(state, BTreeSet::new());
        self.wake.notify_one();
    }

    /// Sends notifications for these LoadBalancers, and for LoadBalancers with a target whose doubt
    /// began or ended.
    fn notify(&self, mut state: MutexGuard<'_, ProberState>, mut lbs: BTreeSet<Arc<str>>) {
        lbs.append(&mut state.schedule.take_concerned());
        let held = state.schedule.count_held();
        self.held.send_if_modified(|known| std::mem::replace(known, held) != held);
        drop(state);
        for lb in lbs {
            (self.flipped)(&lb);
        }
    }
}
