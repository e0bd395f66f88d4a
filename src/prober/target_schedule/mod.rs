//! The targets, and the time of each target's next probe. This module has no socket and no clock:
//! times are arguments.
//!
//! Invariants:
//! * a key is used for one target only. So the result of a probe matches no target after the
//!   probe's target was removed or replaced;
//! * a target is in exactly one of three states: its next probe has a time, or its probe is under
//!   way, or it is refused. So it has at most one probe at a time;
//! * a doubt exists only while at least one target is doubted.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::check_connection::DialSettings;
use crate::domain::vm_backends::health::second_opinion::AskedTarget;
use crate::domain::vm_backends::health::{
    BackendHealth, CheckSettings, Doubt, ProbePhase, ProbeTarget, first, may_be_backend, moment,
    next,
};

/// Key of a target. The target gets a new key when its address changes, and when the probe or the
/// port of its health check changes.
pub(super) type TargetKey = u64;

/// All targets, and the times of their probes.
#[derive(Default)]
pub(super) struct TargetSchedule {
    lbs: HashMap<Arc<str>, CheckGroup>,
    entries: HashMap<TargetKey, ScheduledTarget>,
    /// Times at which targets are due, each with the key of its target.
    due: BTreeSet<(Duration, TargetKey)>,
    next_key: TargetKey,
    /// Doubt about failures that the prober's own path to the VMs may have caused. `None`: no
    /// failure is doubted.
    doubt: Option<Doubt>,
    /// LoadBalancers with a target whose doubt began or ended since the last call of
    /// [`TargetSchedule::take_concerned`].
    concerned: BTreeSet<Arc<str>>,
}

struct CheckGroup {
    check: Arc<CheckSettings>,
    dial: Arc<DialSettings>,
    members: BTreeMap<String, TargetKey>,
}

struct ScheduledTarget {
    lb: Arc<str>,
    address: IpAddr,
    phase: ProbePhase,
    health: BackendHealth,
    /// Time of the next probe. `None`: a probe is under way, or the target is refused.
    due: Option<Duration>,
}

/// Effects of a new list of a LoadBalancer's targets.
#[derive(Default)]
pub(super) struct TargetChange {
    /// Keys of the targets that were removed or replaced.
    pub(super) dropped: Vec<TargetKey>,
    /// New targets that will not be probed, because their addresses cannot belong to a backend.
    pub(super) refused: Vec<ProbeTarget>,
}

/// Target whose probe is due, with all that the probe needs.
pub(super) struct ProbeStart {
    pub(super) key: TargetKey,
    pub(super) address: IpAddr,
    pub(super) check: Arc<CheckSettings>,
    pub(super) dial: Arc<DialSettings>,
    /// Time that has passed since the probe was due.
    pub(super) late: Duration,
}

impl TargetSchedule {
    /// Connection settings that were made for the health check of the LoadBalancer `lb`, if `check`
    /// can use them too. `None`: new settings must be made for `check`.
    pub(super) fn dial(&self, lb: &str, check: &CheckSettings) -> Option<Arc<DialSettings>> {
        let group = self.lbs.get(lb).filter(|group| group.check.asks_the_same(check))?;
        Some(Arc::clone(&group.dial))
    }

    /// Sets the targets of the LoadBalancer `lb`. If several targets have the same id, only the
    /// first of them counts.
    pub(super) fn set(
        &mut self,
        lb: &str,
        check: &CheckSettings,
        dial: &Arc<DialSettings>,
        targets: &[ProbeTarget],
        now: Duration,
    ) -> TargetChange {
        let mut change = TargetChange::default();
        let name: Arc<str> =
            self.lbs.get_key_value(lb).map_or_else(|| Arc::from(lb), |(name, _)| Arc::clone(name));
        let former = self.lbs.remove(lb);
        let same_question = former.as_ref().is_some_and(|g| g.check.asks_the_same(check));
        let same_check =
            former.as_ref().filter(|g| *g.check == *check).map(|g| Arc::clone(&g.check));
        let same_period = former.as_ref().is_some_and(|g| g.check.period == check.period);
        let mut former = former.map(|group| group.members).unwrap_or_default();
        let mut members = BTreeMap::new();
        for target in targets {
            if members.contains_key(&target.id) {
                continue;
            }
            let mut verdict = None;
            let kept = former.remove(&target.id).and_then(|key| {
                let same_address = self.entries.get(&key)?.address == target.address;
                if same_address && same_question {
                    return Some(key);
                }
                let entry = self.drop_entry(key)?;
                change.dropped.push(key);
                verdict = same_address.then(|| entry.health.is_healthy());
                None
            });
            let key = kept.unwrap_or_else(|| self.add(&name, target, verdict, check, now));
            if kept.is_none() && self.entries.get(&key).is_some_and(|entry| entry.due.is_none()) {
                change.refused.push(target.clone());
            } else if kept.is_some() && !same_period {
                self.reschedule(key, check, now);
            }
            members.insert(target.id.clone(), key);
        }
        for key in former.into_values() {
            self.drop_entry(key);
            change.dropped.push(key);
        }
        let check = same_check.unwrap_or_else(|| Arc::new(check.clone()));
        self.lbs.insert(name, CheckGroup { check, dial: Arc::clone(dial), members });
        change
    }

    /// Removes the LoadBalancer `lb`. Returns the keys of its targets.
    pub(super) fn remove(&mut self, lb: &str) -> Vec<TargetKey> {
        let keys: Vec<TargetKey> = self
            .lbs
            .remove(lb)
            .map(|group| group.members.into_values().collect())
            .unwrap_or_default();
        for key in &keys {
            self.drop_entry(*key);
        }
        keys
    }

    /// Time at which the next target is due. `None`: no target is due at any time.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Takes the target that has been due for the longest time, and returns its probe. The probe
    /// counts as under way until [`Self::end`]. `None`: no target is due at `now`.
    pub(super) fn begin(&mut self, now: Duration) -> Option<ProbeStart> {
        let (due, key) = *self.due.first().filter(|(due, _)| *due <= now)?;
        self.due.pop_first();
        let entry = self.entries.get_mut(&key)?;
        entry.due = None;
        let group = self.lbs.get(&entry.lb)?;
        Some(ProbeStart {
            key,
            address: entry.address,
            check: Arc::clone(&group.check),
            dial: Arc::clone(&group.dial),
            late: now.saturating_sub(due),
        })
    }

    /// Records the result of a probe of the target `key`, and sets the time of the target's next
    /// probe (see [`next`]).
    ///
    /// `passed`: whether the target passed. `passed: None`: the probe showed nothing about the
    /// target.
    ///
    /// If the verdict on the target flipped, returns the LoadBalancer, and whether the target is
    /// healthy now. Otherwise returns `None`. A doubted failure flips no verdict. If the target was
    /// removed, records nothing and returns `None`.
    pub(super) fn end(
        &mut self,
        key: TargetKey,
        passed: Option<bool>,
        now: Duration,
    ) -> Option<(Arc<str>, bool)> {
        let entry = self.entries.get_mut(&key)?;
        let check = &self.lbs.get(&entry.lb)?.check;
        let due = next(now, entry.phase, check.period);
        entry.due = Some(due);
        self.due.insert((due, key));
        let was_held = entry.health.is_held();
        let turned = passed.is_some_and(|passed| entry.health.observe(passed, check, now));
        let (lb, health) = (Arc::clone(&entry.lb), entry.health);
        if was_held {
            let doubt = self.doubt.as_mut()?;
            let over = if turned {
                doubt.answers(now);
                true
            } else if passed == Some(false) && doubt.is_over_for(check, now) {
                doubt.believe(&mut entry.health);
                true
            } else {
                false
            };
            self.end_doubt();
            if over {
                self.concerned.insert(Arc::clone(&lb));
            }
            return (over && !turned).then_some((lb, false));
        }
        if turned && !health.is_healthy() && self.doubts(key, health) {
            return None;
        }
        turned.then(|| (lb, health.is_healthy()))
    }

    /// Doubts the failures of the target `key` if the target fell silent at a moment at which most
    /// VMs fell silent. Then returns `true`, and the target counts as healthy until the doubt ends.
    ///
    /// If the moment was not known before, the other unhealthy targets that fell silent at this
    /// moment are doubted too. Failures that were doubted before are not doubted again.
    ///
    /// Precondition: the failures have just reached the failure threshold of the target's check.
    fn doubts(&mut self, key: TargetKey, health: BackendHealth) -> bool {
        if let Some(doubt) = self.doubt.as_mut().filter(|doubt| doubt.explains(health)) {
            let Some(entry) = self.entries.get_mut(&key) else { return false };
            doubt.hold(&mut entry.health);
            self.concerned.insert(Arc::clone(&entry.lb));
            return true;
        }
        let Some(silence) = health.silence() else { return false };
        let histories = self.entries.values().filter_map(|e| e.health.history(&e.lb, e.address));
        let Some(moment) = moment(histories, silence) else { return false };
        let doubt = self.doubt.get_or_insert_default();
        doubt.grow(moment);
        for entry in self.entries.values_mut() {
            if !entry.health.is_healthy() && doubt.explains(entry.health) {
                doubt.hold(&mut entry.health);
                self.concerned.insert(Arc::clone(&entry.lb));
            }
        }
        true
    }

    /// Accepts all doubted failures as real. The doubted targets become unhealthy.
    pub(super) fn believe(&mut self) {
        let Some(mut doubt) = self.doubt.take() else { return };
        for entry in self.entries.values_mut().filter(|entry| entry.health.is_held()) {
            doubt.believe(&mut entry.health);
            self.concerned.insert(Arc::clone(&entry.lb));
        }
    }

    /// Targets that count as healthy only because their failures are doubted.
    pub(super) fn held(&self) -> impl Iterator<Item = AskedTarget> {
        let held = self.entries.values().filter(|entry| entry.health.is_held());
        held.map(|entry| AskedTarget { lb: entry.lb.to_string(), address: entry.address })
    }

    /// LoadBalancer and address of a target. `None`: the target was removed or replaced.
    pub(super) fn target(&self, key: TargetKey) -> Option<AskedTarget> {
        let entry = self.entries.get(&key)?;
        Some(AskedTarget { lb: entry.lb.to_string(), address: entry.address })
    }

    /// Number of targets whose failures are doubted.
    pub(super) fn count_held(&self) -> usize {
        self.doubt.as_ref().map_or(0, Doubt::held)
    }

    /// Whether the LoadBalancer `lb` has a target whose failures are doubted.
    pub(super) fn holds(&self, lb: &str) -> bool {
        let members = self.lbs.get(lb).into_iter().flat_map(|group| group.members.values());
        let mut entries = members.filter_map(|key| self.entries.get(key));
        self.doubt.is_some() && entries.any(|entry| entry.health.is_held())
    }

    /// Takes the LoadBalancers with a target whose doubt began or ended since the last call of this
    /// function.
    pub(super) fn take_concerned(&mut self) -> BTreeSet<Arc<str>> {
        std::mem::take(&mut self.concerned)
    }

    fn end_doubt(&mut self) {
        self.doubt.take_if(|doubt| doubt.held() == 0);
    }

    pub(super) fn verdicts(&self, lb: &str) -> HashMap<String, bool> {
        let members = self.lbs.get(lb).map(|group| group.members.iter());
        members
            .into_iter()
            .flatten()
            .filter_map(|(id, key)| Some((id.clone(), self.entries.get(key)?.health.is_healthy())))
            .collect()
    }

    /// Number of all targets, including those that are never probed.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    fn add(
        &mut self,
        lb: &Arc<str>,
        target: &ProbeTarget,
        verdict: Option<bool>,
        check: &CheckSettings,
        now: Duration,
    ) -> TargetKey {
        let phase = ProbePhase::of(&[lb, &target.id, &target.address.to_string()]);
        let wanted = may_be_backend(target.address);
        let healthy = wanted && verdict.unwrap_or(target.assume_healthy);
        // The first probe of a target that is assumed healthy can wait for the next time on the
        // target's grid. Any other target is probed at once, because the LoadBalancer waits for the
        // verdict on this target.
        let when = if healthy { next } else { first };
        let due = wanted.then(|| when(now, phase, check.period));
        let key = self.next_key;
        self.next_key += 1;
        self.due.extend(due.map(|due| (due, key)));
        let (lb, address, health) =
            (Arc::clone(lb), target.address, BackendHealth::assumed(healthy));
        self.entries.insert(key, ScheduledTarget { lb, address, phase, health, due });
        key
    }

    fn drop_entry(&mut self, key: TargetKey) -> Option<ScheduledTarget> {
        let entry = self.entries.remove(&key)?;
        if let Some(due) = entry.due {
            self.due.remove(&(due, key));
        }
        if let Some(doubt) = self.doubt.as_mut().filter(|_| entry.health.is_held()) {
            doubt.gone();
            self.end_doubt();
        }
        Some(entry)
    }

    /// Applies the check's new period to the time of a target's next probe (see [`next`]). Changes
    /// nothing if the target is refused. Changes nothing if its probe is under way, because the end
    /// of that probe sets the next time.
    fn reschedule(&mut self, key: TargetKey, check: &CheckSettings, now: Duration) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        if let Some(due) = entry.due.as_mut() {
            self.due.remove(&(*due, key));
            *due = next(now, entry.phase, check.period);
            self.due.insert((*due, key));
        }
    }
}

#[cfg(test)]
mod tests;
