//! Probes the backends of VM load balancers. Only this module opens sockets to backends.
//!
//! A replica that is not the leader makes only single probes, for a second opinion ([`survey`]).
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
use target_schedule::{TargetKey, TargetSchedule};
pub use unscheduled_probes::survey;

/// Handle that sets targets and reads verdicts. A clone is cheap, and shares all state with the
/// original.
#[derive(Clone)]
pub struct Prober(Arc<ProberShared>);

struct ProberShared {
    state: Mutex<ProberState>,
    /// Wakes the scheduler from its sleep, when a target may be due before the end of this sleep.
    wake: Notify,
    metrics: Metrics,
    /// Function to call with the key of a LoadBalancer when the verdict on one of its targets
    /// flips, or the doubt about one of them begins, ends, or gets another explanation.
    flipped: Box<dyn Fn(&str) + Send + Sync>,
    /// Number of targets that count as healthy only because their failures are doubted.
    held: watch::Sender<usize>,
    /// Start of this term of leadership. All times are offsets from this start.
    epoch: Instant,
}

#[derive(Default)]
struct ProberState {
    schedule: TargetSchedule,
    /// Probes under way, each with the handle that aborts it. The scheduler removes the entry of a
    /// probe that has ended.
    under_way: HashMap<TargetKey, AbortHandle>,
    /// Explanation why failures are doubted. Empty: [`ASKED`] is the explanation.
    why_doubted: String,
}

impl Prober {
    /// Creates a prober without targets, and the scheduler that runs the probes.
    ///
    /// `flipped` is called when a verdict flips, and when a doubt about a target begins, ends, or
    /// gets another explanation. The argument of `flipped` is the LoadBalancer's key, which
    /// [`Self::set`] got as `lb`. If several verdicts of one LoadBalancer flip at the same time,
    /// `flipped` is called once.
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

    /// Sets the targets of a LoadBalancer. Removes its former targets that are not in `targets`.
    ///
    /// A target that has the id of a former target may keep its verdict and its results:
    /// * If its address has changed, the target is new and keeps neither.
    /// * If the probe or the port of the check has changed, the target keeps only the verdict.
    /// * Otherwise, the target keeps both, even if a threshold, the timeout or the period has
    ///   changed. A new period changes the times of the probes.
    ///
    /// A target whose address cannot belong to a backend is unhealthy and never probed.
    ///
    /// Fails if the check's path, CA bundle or server name is invalid, or if TLS cannot be set up.
    /// After such a failure, the LoadBalancer has no targets.
    pub fn set(
        &self,
        lb: &str,
        check: &CheckSettings,
        targets: &[ProbeTarget],
    ) -> Result<(), HealthSpecFault> {
        let mut state = self.0.lock();
        // Certificates are parsed to make connection settings. So if the check is unchanged, the
        // settings are not made again.
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
                "the target is not probed: a backend cannot have this address");
        }
        self.0.abort_dropped(state, &change.dropped);
        Ok(())
    }

    /// Removes the LoadBalancer `lb` and its targets from the schedule.
    pub fn remove(&self, lb: &str) {
        let mut state = self.0.lock();
        let dropped = state.schedule.remove(lb);
        // Most LoadBalancers have no health check, and `remove` is called for them at each
        // reconcile. So the scheduler is not notified if no target was removed.
        if !dropped.is_empty() {
            self.0.abort_dropped(state, &dropped);
        }
    }

    /// Verdicts on all targets of a LoadBalancer, by the id of the target. `true`: the target
    /// counts as healthy.
    pub fn verdicts(&self, lb: &str) -> HashMap<String, bool> {
        self.0.lock().schedule.verdicts(lb)
    }

    /// Watches the number of targets that count as healthy only because their failures are doubted.
    pub fn held(&self) -> watch::Receiver<usize> {
        self.0.held.subscribe()
    }

    /// Chooses some of the doubted targets, as [`second_opinion::sample`] does. `at`: seed of the
    /// choice.
    pub fn sample(&self, at: &str) -> Vec<AskedTarget> {
        second_opinion::sample(self.0.lock().schedule.held(), at)
    }

    /// Sets the explanation that [`Self::why_doubted`] returns for LoadBalancers with doubted
    /// targets. An empty `why` stands for [`ASKED`], which says that another replica is asked.
    pub fn explain(&self, why: String) {
        let mut state = self.0.lock();
        if state.why_doubted != why {
            state.why_doubted = why;
            let lbs = state.schedule.held().map(|asked| asked.lb.into()).collect();
            self.0.notify(state, lbs);
        }
    }

    /// Explanation why failures of targets of the LoadBalancer `lb` are doubted. `None`: no failure
    /// of its targets is doubted.
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
    /// Locks the state of the prober.
    fn lock(&self) -> MutexGuard<'_, ProberState> {
        lock(&self.state)
    }

    fn now(&self) -> std::time::Duration {
        self.epoch.elapsed()
    }

    /// Aborts the probes of the targets `dropped`, which the schedule no longer has. Then updates
    /// the metric of the number of targets, calls [`Self::notify`], and wakes the scheduler.
    fn abort_dropped(&self, mut state: MutexGuard<'_, ProberState>, dropped: &[TargetKey]) {
        for key in dropped {
            if let Some(probe) = state.under_way.remove(key) {
                probe.abort();
            }
        }
        self.metrics.probes.targets.set(i64::try_from(state.schedule.len()).unwrap_or(i64::MAX));
        self.notify(state, BTreeSet::new());
        self.wake.notify_one();
    }

    /// Updates `held`. Calls `flipped` for the LoadBalancers `lbs`, and for each LoadBalancer with
    /// a target whose doubt began or ended after the previous call of this function.
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
