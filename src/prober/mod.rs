//! Probes the backends of VM load balancers: the only room that opens sockets to them.
//!
//! Invariants: everything here belongs to one term of leadership. Probes run only while
//! [`Scheduler::run`] does, and end with it. What [`Prober::set`] no longer lists is not probed
//! again, and what a probe of it still under way would have said is thrown away. One task
//! schedules all targets; sockets open at the same time are bounded.

mod ask;
mod dial;
mod roster;
mod scheduler;
mod sockets;
mod survey;
mod tls;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

pub use crate::domain::vm_backends::health::Target;
use crate::domain::vm_backends::health::second_opinion::{self, ASKED, Asked};
use crate::domain::vm_backends::health::{Check, Fault};
use crate::metrics::Metrics;
use dial::Dial;
use roster::{Key, Roster};
pub use scheduler::Scheduler;
pub use survey::survey;

/// Says what to probe, and knows the verdicts. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Prober(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// Something may be due earlier than the scheduler expects.
    wake: Notify,
    metrics: Metrics,
    changed: mpsc::UnboundedSender<String>,
    /// Number of targets that are healthy only because their failures are doubted.
    held: watch::Sender<usize>,
    /// When the clock of this term read zero.
    epoch: Instant,
}

#[derive(Default)]
struct State {
    roster: Roster<Dial>,
    /// Probes under way. Entries of probes that ended are taken out by the scheduler.
    under_way: HashMap<Key, AbortHandle>,
    /// Words about the failures that are doubted.
    why_doubted: String,
}

impl Prober {
    /// A prober without targets, and the scheduler that does its work while it runs.
    ///
    /// When a verdict flips, the LoadBalancer's key, as it was given to [`Self::set`], is sent
    /// to `changed`. Flips at the same time are sent as one.
    pub fn new(metrics: Metrics, changed: mpsc::UnboundedSender<String>) -> (Self, Scheduler) {
        metrics.probes.targets.set(0);
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            wake: Notify::new(),
            metrics,
            changed,
            held: watch::Sender::new(0),
            epoch: Instant::now(),
        });
        (Self(Arc::clone(&shared)), Scheduler::new(shared))
    }

    /// Makes these the targets of the LoadBalancer, and no others.
    ///
    /// A target whose id and address are the same, and of which the same is asked, keeps its
    /// verdict, its results so far and its place in time; thresholds, period and timeout may
    /// change under it. If something else is asked, it starts anew from its verdict. At another
    /// address it is a new target. `check: None` removes all.
    ///
    /// A target at an address that cannot be a backend's is unhealthy and never probed.
    ///
    /// Fails, and removes all, when the check's CA bundle or server name cannot be used.
    pub fn set(&self, lb: &str, check: Option<&Check>, targets: &[Target]) -> Result<(), Fault> {
        let Some(check) = check else {
            self.remove(lb);
            return Ok(());
        };
        let mut state = self.0.lock();
        // Building a dial parses certificates; a reconcile that changes nothing does not.
        let dial = match state.roster.dial(lb, check) {
            Some(dial) => dial,
            None => match Dial::new(check) {
                Ok(dial) => Arc::new(dial),
                Err(fault) => {
                    drop(state);
                    self.remove(lb);
                    return Err(fault);
                }
            },
        };
        let change = state.roster.set(lb, check, &dial, targets, self.0.now());
        for refused in change.refused {
            tracing::warn!(lb, target = refused.id, address = %refused.address,
                "not probed: no backend can be at this address");
        }
        self.0.settle(state, &change.dropped);
        Ok(())
    }

    /// Forgets the LoadBalancer and all its targets.
    pub fn remove(&self, lb: &str) {
        let mut state = self.0.lock();
        let dropped = state.roster.remove(lb);
        // Most have no health check, and this is asked of each of them again and again.
        if !dropped.is_empty() {
            self.0.settle(state, &dropped);
        }
    }

    /// The verdict on a target. `None`: it is not one.
    pub fn is_healthy(&self, lb: &str, id: &str) -> Option<bool> {
        self.0.lock().roster.is_healthy(lb, id)
    }

    /// The verdicts on all targets of a LoadBalancer, by id.
    pub fn verdicts(&self, lb: &str) -> HashMap<String, bool> {
        self.0.lock().roster.verdicts(lb)
    }

    /// Tells how many targets are healthy only because their failures are doubted.
    pub fn held(&self) -> watch::Receiver<usize> {
        self.0.held.subscribe()
    }

    /// Returns some of these, as [`second_opinion::sample`] picks them.
    pub fn sample(&self, at: &str) -> Vec<Asked> {
        second_opinion::sample(self.0.lock().roster.held(), at)
    }

    /// Says of LoadBalancers with such targets what is known of the doubt. Empty: that another replica
    /// is asked.
    pub fn explain(&self, why: String) {
        let mut state = self.0.lock();
        if state.why_doubted != why {
            state.why_doubted = why;
            let lbs = state.roster.held().map(|asked| asked.lb.into()).collect();
            self.0.tell(state, lbs);
        }
    }

    /// Words about the doubt, if the LoadBalancer has such a target.
    pub fn why_doubted(&self, lb: &str) -> Option<String> {
        let state = self.0.lock();
        let why = if state.why_doubted.is_empty() { ASKED } else { &state.why_doubted };
        state.roster.holds(lb).then(|| why.to_owned())
    }

    /// Believes all failures that are doubted.
    pub fn believe(&self) {
        let mut state = self.0.lock();
        let believed = state.roster.count_held();
        self.0.metrics.probes.flipped(false, believed);
        state.roster.believe();
        self.0.tell(state, BTreeSet::new());
    }
}

impl Shared {
    /// A panic elsewhere leaves whole entries behind: each is changed by one statement.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> std::time::Duration {
        self.epoch.elapsed()
    }

    /// Ends the probes of targets that are gone, and has the schedule read again.
    fn settle(&self, mut state: MutexGuard<'_, State>, dropped: &[Key]) {
        for key in dropped {
            if let Some(probe) = state.under_way.remove(key) {
                probe.abort();
            }
        }
        self.metrics.probes.targets.set(i64::try_from(state.roster.len()).unwrap_or(i64::MAX));
        self.tell(state, BTreeSet::new());
        self.wake.notify_one();
    }

    /// Tells what there is to tell of these LoadBalancers, and of those that a doubt concerns.
    fn tell(&self, mut state: MutexGuard<'_, State>, mut lbs: BTreeSet<Arc<str>>) {
        lbs.append(&mut state.roster.take_concerned());
        let held = state.roster.count_held();
        self.held.send_if_modified(|known| std::mem::replace(known, held) != held);
        drop(state);
        for lb in lbs {
            // There is no listener when the term is ending.
            let _ = self.changed.send(lb.to_string());
        }
    }
}
