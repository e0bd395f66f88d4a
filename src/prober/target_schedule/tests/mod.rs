//! Tests of changes of targets. The result of any order of changes is compared with a plain list of
//! wanted targets.

mod doubts;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::{DialSettings, TargetChange, TargetKey, TargetSchedule};
use crate::domain::vm_backends::health::{BackendProbe, CheckSettings, ProbeRequest, ProbeTarget};

const PERIOD: Duration = Duration::from_secs(5);

const fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn check() -> CheckSettings {
    CheckSettings {
        probe: BackendProbe::Tcp,
        port: 80,
        success_threshold: 1,
        failure_threshold: 2,
        period: PERIOD,
        timeout: s(3),
    }
}

fn target(id: &str, last: u8, assume_healthy: bool) -> ProbeTarget {
    ProbeTarget { id: id.into(), address: Ipv4Addr::new(10, 0, 0, last).into(), assume_healthy }
}

fn set(
    schedule: &mut TargetSchedule,
    lb: &str,
    check: &CheckSettings,
    targets: &[ProbeTarget],
    now: Duration,
) -> TargetChange {
    let dial = Arc::new(DialSettings { port: check.port, get: None });
    schedule.set(lb, check, &dial, targets, now)
}

impl TargetSchedule {
    /// Verdict on the target `id` of the LoadBalancer `lb`. `None`: there is no such target.
    fn is_healthy(&self, lb: &str, id: &str) -> Option<bool> {
        self.verdicts(lb).get(id).copied()
    }
}

/// Starts the next probe at the time at which it is due. Returns this time and the target's key.
fn run_next(schedule: &mut TargetSchedule) -> (Duration, TargetKey) {
    let due = schedule.next_due().unwrap();
    let start = schedule.begin(due).unwrap();
    assert_eq!(start.late, Duration::ZERO);
    (due, start.key)
}

#[test]
fn an_unchanged_target_keeps_results_and_place_when_thresholds_change() {
    let mut schedule = TargetSchedule::default();
    set(&mut schedule, "lb", &check(), &[target("a", 1, true)], s(0));
    let (due, key) = run_next(&mut schedule);
    assert_eq!(schedule.end(key, Some(false), due), None);
    let changed = CheckSettings { failure_threshold: 3, timeout: s(1), ..check() };
    // `assume_healthy` has an effect on new targets only.
    let change = set(&mut schedule, "lb", &changed, &[target("a", 1, false)], due);
    assert!(change.dropped.is_empty());
    assert_eq!(schedule.next_due(), Some(due + PERIOD));
    let (due, key) = run_next(&mut schedule);
    assert_eq!(schedule.end(key, Some(false), due), None);
    let (due, key) = run_next(&mut schedule);
    let flip = schedule.end(key, Some(false), due);
    assert_eq!(flip.map(|(lb, healthy)| (lb.to_string(), healthy)), Some(("lb".into(), false)));
    assert_eq!(schedule.is_healthy("lb", "a"), Some(false));
}

#[test]
fn another_question_starts_anew_from_the_verdict_and_another_address_from_nothing() {
    let mut schedule = TargetSchedule::default();
    set(&mut schedule, "lb", &check(), &[target("a", 1, false)], s(0));
    let (due, key) = run_next(&mut schedule);
    schedule.end(key, Some(true), due);
    assert_eq!(schedule.is_healthy("lb", "a"), Some(true));
    // The target fails once. The verdict flips after two failures.
    let (due, key) = run_next(&mut schedule);
    schedule.end(key, Some(false), due);

    let request = ProbeRequest { path: "/".into(), expected: vec![], server_name: None };
    let http = CheckSettings { probe: BackendProbe::Http(request), ..check() };
    let change = set(&mut schedule, "lb", &http, &[target("a", 1, false)], due);
    assert_eq!(change.dropped, [key]);
    assert_eq!(schedule.is_healthy("lb", "a"), Some(true));
    let (due, key) = run_next(&mut schedule);
    assert_eq!(schedule.end(key, Some(false), due), None, "the former failure does not count");

    let change = set(&mut schedule, "lb", &http, &[target("a", 2, false)], due);
    assert_eq!(change.dropped, [key]);
    assert_eq!(schedule.is_healthy("lb", "a"), Some(false));
}

#[test]
fn a_late_result_counts_for_no_target() {
    let mut schedule = TargetSchedule::default();
    set(&mut schedule, "lb", &check(), &[target("a", 1, false)], s(0));
    let (due, key) = run_next(&mut schedule);
    set(&mut schedule, "lb", &check(), &[target("a", 2, false)], due);
    assert_eq!(schedule.end(key, Some(true), due), None);
    assert_eq!(schedule.is_healthy("lb", "a"), Some(false));
    let (due, key) = run_next(&mut schedule);
    assert_eq!(schedule.remove("lb"), [key]);
    assert_eq!(schedule.end(key, Some(true), due), None);
    assert_eq!((schedule.len(), schedule.next_due()), (0, None));
    assert_eq!(schedule.is_healthy("lb", "a"), None);
}

#[test]
fn who_cannot_be_a_backend_is_listed_unhealthy_and_never_due() {
    let mut schedule = TargetSchedule::default();
    let here =
        ProbeTarget { id: "a".into(), address: Ipv4Addr::LOCALHOST.into(), assume_healthy: true };
    let change = set(&mut schedule, "lb", &check(), std::slice::from_ref(&here), s(0));
    assert_eq!(change.refused, std::slice::from_ref(&here));
    assert_eq!((schedule.next_due(), schedule.is_healthy("lb", "a")), (None, Some(false)));
    let again = set(&mut schedule, "lb", &CheckSettings { period: s(1), ..check() }, &[here], s(1));
    assert!(again.refused.is_empty(), "reported once");
    assert_eq!(schedule.next_due(), None);
}

#[test]
fn another_period_moves_a_target_to_its_grid() {
    let mut schedule = TargetSchedule::default();
    let hourly = CheckSettings { period: s(3_600), ..check() };
    set(&mut schedule, "lb", &hourly, &[target("a", 1, true)], s(0));
    set(&mut schedule, "lb", &check(), &[target("a", 1, true)], s(0));
    assert!(schedule.next_due().unwrap() <= PERIOD);
}

#[test]
fn a_probe_that_outlasts_its_period_skips_what_was_due() {
    let mut schedule = TargetSchedule::default();
    set(&mut schedule, "lb", &check(), &[target("a", 1, true)], s(0));
    let (due, key) = run_next(&mut schedule);
    assert!(schedule.begin(due + 2 * PERIOD).is_none());
    schedule.end(key, Some(false), due + 2 * PERIOD + s(1));
    assert_eq!(schedule.next_due(), Some(due + 3 * PERIOD));
}

#[test]
fn of_the_same_id_the_first_counts() {
    let mut schedule = TargetSchedule::default();
    set(&mut schedule, "lb", &check(), &[target("a", 1, true), target("a", 2, false)], s(0));
    assert_eq!((schedule.len(), schedule.is_healthy("lb", "a")), (1, Some(true)));
}

#[derive(Clone, Debug)]
enum Step {
    /// Sets a LoadBalancer's targets: its number, port, period in seconds, and targets as (id, last
    /// octet of the address).
    Set(u8, u16, u64, Vec<(u8, u8)>),
    Remove(u8),
    /// Advances the clock by this number of milliseconds, and starts the probes that become due.
    Wait(u64),
    /// Ends one of the probes under way. The second field is whether the target passed.
    End(prop::sample::Index, bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..3_u8, 80..82_u16, 1..4_u64, vec((0..5_u8, 1..4_u8), 0..5))
            .prop_map(|(lb, port, period, targets)| Step::Set(lb, port, period, targets)),
        1 => (0..3_u8).prop_map(Step::Remove),
        4 => (0..3_000_u64).prop_map(Step::Wait),
        6 => (any::<prop::sample::Index>(), any::<bool>()).prop_map(|(i, b)| Step::End(i, b)),
    ]
}

/// Targets that the schedule must have. Key: LoadBalancer. Value: its port, its period in seconds,
/// and a map from a target's id to the last octet of its address.
type Wanted = BTreeMap<u8, (u16, u64, BTreeMap<u8, u8>)>;

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]
    #[test]
    fn exactly_what_is_listed_is_probed_in_time_and_one_at_a_time(steps in vec(step(), 1..80)) {
        let mut schedule = TargetSchedule::default();
        let mut now = s(100);
        let mut wanted = Wanted::new();
        // Probes under way whose results count: a map from the probe's key to (LoadBalancer, id).
        let mut live: BTreeMap<TargetKey, (u8, u8)> = BTreeMap::new();
        let mut stale: Vec<TargetKey> = Vec::new();
        let mut lasts: BTreeMap<(u8, u8), Duration> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Set(lb, port, period, list) => {
                    let check = CheckSettings { port, period: s(period), ..check() };
                    let targets: Vec<ProbeTarget> =
                        list.iter().map(|(id, last)| target(&id.to_string(), *last, false)).collect();
                    let mut members = BTreeMap::new();
                    for (id, last) in list {
                        members.entry(id).or_insert(last);
                    }
                    let before = wanted.insert(lb, (port, period, members.clone()));
                    let (old_port, _, old) = before.unwrap_or_default();
                    let change = set(&mut schedule, &lb.to_string(), &check, &targets, now);
                    live.retain(|key, (its, id)| {
                        let same = *its != lb || (old_port == port && old.get(id) == members.get(id));
                        assert_eq!(same, !change.dropped.contains(key));
                        if !same { stale.push(*key); }
                        same
                    });
                    lasts.retain(|(its, _), _| *its != lb);
                }
                Step::Remove(lb) => {
                    wanted.remove(&lb);
                    let dropped = schedule.remove(&lb.to_string());
                    live.retain(|key, (its, _)| {
                        if *its == lb { assert!(dropped.contains(key)); stale.push(*key); }
                        *its != lb
                    });
                    lasts.retain(|(its, _), _| *its != lb);
                }
                Step::Wait(millis) => {
                    let until = now + Duration::from_millis(millis);
                    while let Some(due) = schedule.next_due().filter(|due| *due <= until) {
                        now = now.max(due);
                        let start = schedule.begin(now).unwrap();
                        let (&lb, &id) = wanted.iter().find_map(|(lb, (_, _, members))| {
                            members.iter().find_map(|(id, last)| {
                                let key = schedule.lbs.get(lb.to_string().as_str())?.members[&id.to_string()];
                                let address: IpAddr = Ipv4Addr::new(10, 0, 0, *last).into();
                                (key == start.key && address == start.address).then_some((lb, id))
                            })
                        }).expect("a probe of what is listed");
                        assert_eq!(start.check.port, wanted[&lb].0);
                        prop_assert!(live.insert(start.key, (lb, id)).is_none());
                        prop_assert!(live.values().filter(|who| **who == (lb, id)).count() == 1);
                        if let Some(last) = lasts.insert((lb, id), now) {
                            let period = s(wanted[&lb].1).as_nanos();
                            prop_assert_eq!(now.saturating_sub(last).as_nanos() % period, 0);
                        }
                    }
                    now = until;
                }
                Step::End(index, passed) => {
                    if !live.is_empty() {
                        let key = *index.get(&live.keys().copied().collect::<Vec<_>>());
                        live.remove(&key);
                        // Only probes at the target's regular times are compared. The first probe,
                        // for example, is not at such a time.
                        if let Some((lb, id)) = schedule.entries.get(&key).map(|e| e.lb.clone()).zip(
                            schedule.lbs.values().find_map(|g| g.members.iter().find(|(_, k)| **k == key))
                                .map(|(id, _)| id.clone())) {
                            let who = (lb.parse().unwrap(), id.parse().unwrap());
                            let on_grid = lasts.get(&who).is_some_and(|at| {
                                let e = &schedule.entries[&key];
                                let period = schedule.lbs[&e.lb].check.period;
                                crate::domain::vm_backends::health::next(*at, e.phase, period) == *at + period
                            });
                            if !on_grid { lasts.remove(&who); }
                        }
                        schedule.end(key, Some(passed), now);
                        prop_assert!(schedule.next_due().is_some());
                    }
                    for key in stale.drain(..) {
                        prop_assert_eq!(schedule.end(key, Some(passed), now), None);
                    }
                }
            }
            let listed: usize = wanted.values().map(|(_, _, members)| members.len()).sum();
            prop_assert_eq!(schedule.len(), listed);
            // Each target is either due or has a probe under way.
            prop_assert_eq!(schedule.due.len() + live.len(), listed);
            for (due, key) in &schedule.due {
                prop_assert_eq!(schedule.entries[key].due, Some(*due));
            }
        }
    }
}
