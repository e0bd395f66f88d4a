//! Decision whether failures of probes are the fault of the backends or of the prober.
//!
//! If a prober loses its own path to the VMs, most VMs fall silent at one moment: their probes
//! passed before this moment, and only fail after it. The failures of these VMs are doubted: the
//! VMs still count as healthy, and stay endpoints. If the VMs have in fact failed, they still get
//! traffic until the doubt ends, and do not serve it.
//!
//! A VM has one target for each LoadBalancer that probes it.
//!
//! Invariants:
//!
//! * If a target has passed after the moment at which most VMs fell silent, its failures count as
//!   usual.
//! * A doubt ends when no target counts as healthy because of the doubt.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use super::{BackendHealth, CheckSettings};

/// Smallest number of silent VMs that begins a doubt. At least this number of load balancers must
/// also have a silent VM. One or two VMs may well fail together because of a real fault.
pub const MANY: usize = 3;

/// Largest number of moments that a [`Doubt`] stores. At each moment, most of the VMs that were not
/// silent yet fell silent. There are several moments if a fault spreads.
const MOST_MOMENTS: usize = 16;

/// Probe results of a target whose verdict is healthy, or was healthy before the target's failures.
/// The healthy verdict may come from an earlier leader or an earlier check.
#[derive(Clone, Copy, Debug)]
pub struct ProbeHistory<'a> {
    /// LoadBalancer of the target, `namespace/name`.
    pub lb: &'a str,
    /// Address of the VM.
    pub address: IpAddr,
    /// Time of the last probe that passed and after which the verdict was healthy. Zero: there was
    /// no such probe in this process.
    pub passed: Duration,
    /// Time of the first failure after `passed`. `None`: there is no such failure.
    pub failing: Option<Duration>,
}

/// Returns the moment from `from` to `until` at which the largest number of VMs fell silent.
/// `histories`: probe results of all targets.
///
/// A target fell silent between its last success and its first failure. A VM fell silent at a
/// moment if at least one of its targets has failed, none passed after the moment, and none failed
/// before it. VMs are counted, not targets, because one VM may be behind every load balancer.
///
/// `None`: no VM fell silent in this time, or one of these conditions is not met:
///
/// * At least [`MANY`] VMs fell silent at the moment.
/// * At least [`MANY`] load balancers have a target that fell silent at the moment.
/// * The VMs that fell silent are more than half of all VMs that had not fallen silent before.
pub fn moment<'a>(
    histories: impl Iterator<Item = ProbeHistory<'a>>,
    (from, until): (Duration, Duration),
) -> Option<Duration> {
    let mut vms = HashMap::<IpAddr, (Duration, Option<Duration>)>::new();
    let mut failing = Vec::new();
    for ProbeHistory { lb, address, passed, failing: since } in histories {
        failing.extend(since.map(|since| (lb, passed, since)));
        let (last, first) = vms.entry(address).or_default();
        *last = passed.max(*last);
        *first = since.into_iter().chain(*first).min();
    }
    let silent = vms
        .values()
        .filter_map(|(last, first)| Some((*last, (*first).filter(|first| last <= first)?)));
    let (mut begins, mut ends): (Vec<_>, Vec<_>) = silent.unzip();
    begins.sort_unstable();
    ends.sort_unstable();
    // If VMs fell silent together, the last success of each VM is earlier than the first failure of
    // any of them. So it is enough to try the times of first failures as the moment.
    let explained = ends.iter().copied().filter(|at| (from..=until).contains(at)).map(|at| {
        let earlier = ends.partition_point(|end| *end < at);
        (begins.partition_point(|begin| *begin <= at) - earlier, vms.len() - earlier, at)
    });
    let (count, answered, at) = explained.max_by_key(|(count, ..)| *count)?;
    let lbs: BTreeSet<&str> = failing
        .iter()
        .filter(|(_, passed, since)| (*passed..=*since).contains(&at))
        .map(|(lb, ..)| *lb)
        .collect();
    (count >= MANY && lbs.len() >= MANY && 2 * count > answered).then_some(at)
}

/// Doubt whether failures are the backends' fault or the prober's. A target with doubted failures
/// counts as healthy until the doubt ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Doubt {
    /// Moments at which most VMs fell silent, as [`moment`] found them. A target's failures are
    /// doubted if such a moment is between the target's last success and its first failure.
    moments: Vec<Duration>,
    /// Number of doubted targets. Their probes fail, and they still count as healthy.
    held: usize,
    /// Number of targets whose failures were doubted before, and whose probes now pass again. The
    /// count starts again at zero when a moment is added.
    answered: usize,
    /// Time of the first observation that `answered` is greater than `held`. `None`: there is no
    /// such observation since the latest moment was added to `moments`.
    mending: Option<Duration>,
}

impl Doubt {
    /// Adds a moment at which most VMs fell silent, as [`moment`] found it. If [`Doubt`] stores the
    /// maximum number of moments, the oldest is removed.
    pub fn grow(&mut self, moment: Duration) {
        if self.moments.len() == MOST_MOMENTS {
            self.moments.remove(0);
        }
        self.moments.push(moment);
        (self.answered, self.mending) = (0, None);
    }

    /// Whether the target with this health fell silent at a moment at which most VMs fell silent.
    /// If so, the target's failures are doubted.
    pub fn explains(&self, health: BackendHealth) -> bool {
        self.moments.iter().any(|moment| health.fell_silent_at(*moment))
    }

    /// Doubts the failures of the target with this health, so that the target still counts as
    /// healthy.
    pub fn hold(&mut self, health: &mut BackendHealth) {
        health.held = true;
        self.held += 1;
    }

    /// Records that the probes of a doubted target pass again at `now`, so that the target is not
    /// doubted any more.
    pub fn answers(&mut self, now: Duration) {
        self.gone();
        self.answered += 1;
        self.observe_majority(now);
    }

    fn observe_majority(&mut self, now: Duration) {
        if self.answered > self.held {
            self.mending.get_or_insert(now);
        }
    }

    /// Reduces the number of doubted targets by one, for example because a target was removed.
    pub fn gone(&mut self) {
        self.held = self.held.saturating_sub(1);
    }

    /// Ends the doubt about the target with this health, so that its failures count as real.
    pub fn believe(&mut self, health: &mut BackendHealth) {
        health.held = false;
        health.settled = true;
        self.gone();
    }

    /// Whether the failures of a doubted target must count as real at `now`. `true`: most of the
    /// doubted targets pass again, and since then, this target has had the time for
    /// `success_threshold` probes. `check`: settings of this target's probes.
    pub fn is_over_for(&mut self, check: &CheckSettings, now: Duration) -> bool {
        // Targets may have been removed since the last one answered.
        self.observe_majority(now);
        let time = check.period * check.success_threshold + check.timeout;
        self.mending.is_some_and(|since| now >= since + time)
    }

    /// Number of targets that count as healthy only because of this doubt.
    pub fn held(&self) -> usize {
        self.held
    }
}

#[cfg(test)]
mod tests;
