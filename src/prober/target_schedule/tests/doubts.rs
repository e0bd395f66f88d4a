//! Tests of verdicts when many targets fail at once, in a simulation with its own clock.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::{TargetSchedule, check, s, set};
use crate::domain::vm_backends::health::{CheckSettings, ProbeTarget};

/// LoadBalancers by name, each with its health check and the numbers of the VMs behind it.
type Fleet = BTreeMap<String, (CheckSettings, Vec<u8>)>;

fn vm(number: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, number).into()
}

/// Creates `lbs` LoadBalancers with three VMs each. No two LoadBalancers share a VM.
fn fleet(lbs: u8, check: &CheckSettings) -> Fleet {
    (0..lbs).map(|lb| (lb.to_string(), (check.clone(), (3 * lb..3 * lb + 3).collect()))).collect()
}

struct World {
    fleet: Fleet,
    schedule: TargetSchedule,
    now: Duration,
    /// Numbers of the VMs that do not answer.
    silent: BTreeSet<u8>,
    /// Times at which a verdict flipped to unhealthy.
    out: Vec<Duration>,
}

impl World {
    /// Creates a simulation in which all VMs are assumed healthy, as a new leader assumes.
    fn new(fleet: Fleet) -> Self {
        let mut schedule = TargetSchedule::default();
        for (lb, (check, vms)) in &fleet {
            let targets: Vec<ProbeTarget> = vms.iter().map(|n| target(*n)).collect();
            set(&mut schedule, lb, check, &targets, s(0));
        }
        Self { fleet, schedule, now: s(0), silent: BTreeSet::new(), out: Vec::new() }
    }

    /// Runs all probes of the next `seconds`. Each probe takes no time.
    fn pass(&mut self, seconds: u64) {
        let until = self.now + s(seconds);
        while let Some(due) = self.schedule.next_due().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            let start = self.schedule.begin(self.now).unwrap();
            let passed = !self.silent.iter().any(|number| vm(*number) == start.address);
            let flip = self.schedule.end(start.key, Some(passed), self.now);
            self.out.extend(flip.filter(|(_, healthy)| !healthy).map(|_| self.now));
        }
        assert_eq!(self.schedule.count_held(), self.schedule.held().count());
        self.now = until;
    }

    /// Pairs of a LoadBalancer and a VM, for each verdict that is unhealthy.
    fn unhealthy(&self) -> Vec<(String, u8)> {
        let all = self.fleet.iter().flat_map(|(lb, (_, vms))| vms.iter().map(move |vm| (lb, *vm)));
        all.filter(|(lb, vm)| self.schedule.is_healthy(lb, &vm.to_string()) == Some(false))
            .map(|(lb, vm)| (lb.clone(), vm))
            .collect()
    }

    fn held(&self) -> usize {
        self.schedule.count_held()
    }
}

fn target(number: u8) -> ProbeTarget {
    ProbeTarget { id: number.to_string(), address: vm(number), assume_healthy: true }
}

/// Health check with the default thresholds, period and timeout.
fn usual() -> CheckSettings {
    CheckSettings { failure_threshold: 3, ..check() }
}

#[test]
fn with_the_default_check_nothing_is_taken_out_and_nothing_is_left_of_it_afterwards() {
    let mut world = World::new(fleet(5, &usual()));
    world.pass(20);
    world.silent = (0..15).collect();
    world.pass(60);
    assert_eq!((world.held(), world.unhealthy(), &world.out[..]), (15, vec![], &[][..]));
    let concerned: Vec<String> =
        world.schedule.take_concerned().iter().map(ToString::to_string).collect();
    assert_eq!(concerned, ["0", "1", "2", "3", "4"]);
    assert!(world.schedule.holds("3") && !world.schedule.holds("x"));
    world.silent.clear();
    world.pass(5);
    assert_eq!((world.held(), world.unhealthy(), &world.out[..]), (0, vec![], &[][..]));
    assert_eq!(world.schedule.take_concerned().len(), 5);
    assert!(world.schedule.doubt.is_none());
}

#[test]
fn what_is_taken_out_before_most_have_failed_is_put_back_within_a_period() {
    let mut world = World::new(fleet(5, &CheckSettings { failure_threshold: 1, ..check() }));
    world.pass(20);
    world.silent = (0..15).collect();
    world.pass(5);
    assert_eq!((world.held(), world.unhealthy()), (15, vec![]));
    assert!((1..=7).contains(&world.out.len()), "no more than half: {:?}", world.out);
}

#[test]
fn a_new_leader_that_reaches_nothing_doubts_itself_too() {
    let mut world = World::new(fleet(5, &usual()));
    world.silent = (0..15).collect();
    world.pass(30);
    assert_eq!((world.held(), world.unhealthy(), world.out.len()), (15, vec![], 0));
}

#[test]
fn what_is_believed_goes_out_and_is_judged_anew_when_it_answers() {
    let mut world = World::new(fleet(5, &usual()));
    world.pass(20);
    world.silent = (0..15).collect();
    world.pass(30);
    world.schedule.take_concerned();
    world.schedule.believe();
    assert_eq!((world.held(), world.unhealthy().len()), (0, 15));
    assert_eq!(world.schedule.take_concerned().len(), 5);
    // A failure that was accepted as real is not doubted again, and starts no new doubt.
    world.pass(60);
    assert_eq!((world.held(), world.unhealthy().len()), (0, 15));
    world.silent = (1..15).collect();
    world.pass(5);
    assert_eq!(world.unhealthy().len(), 14);
    world.silent.insert(0);
    world.pass(15);
    assert_eq!((world.held(), world.unhealthy().len()), (0, 15));
    world.silent.clear();
    world.pass(5);
    world.silent = (0..15).collect();
    world.pass(15);
    assert_eq!((world.held(), world.unhealthy()), (15, vec![]), "another time");
}

#[test]
fn what_is_believed_is_not_doubted_again_because_of_a_slower_check() {
    let mut fleet = fleet(5, &usual());
    let slow = CheckSettings { period: s(60), ..usual() };
    fleet.insert("slow".to_owned(), (slow, vec![20]));
    let mut world = World::new(fleet);
    world.pass(70);
    world.silent = (0..21).collect();
    world.pass(20);
    assert_eq!(world.held(), 15);
    world.schedule.believe();
    world.pass(200);
    assert_eq!((world.held(), world.unhealthy().len()), (0, 16));
}

#[test]
fn a_slower_check_that_fails_within_a_doubt_is_doubted_too() {
    let mut fleet = fleet(5, &usual());
    fleet.insert("slow".to_owned(), (CheckSettings { period: s(60), ..usual() }, vec![20]));
    let mut world = World::new(fleet);
    world.pass(70);
    world.silent = (0..21).collect();
    world.pass(200);
    assert_eq!((world.held(), world.unhealthy(), world.out.len()), (16, vec![], 0));
}

#[test]
fn a_single_failure_counts_as_ever_before_a_doubt_and_within_one() {
    let mut world = World::new(fleet(5, &usual()));
    world.pass(20);
    world.silent = [0].into();
    world.pass(15);
    assert_eq!(world.unhealthy(), [("0".to_owned(), 0)]);
    // Fourteen of the fifteen VMs still answer. Eight of these stop answering now.
    world.silent = (0..9).collect();
    world.pass(15);
    assert_eq!((world.held(), world.unhealthy().len()), (8, 1));
    world.silent.insert(14);
    world.pass(15);
    assert_eq!((world.held(), world.unhealthy().len()), (8, 2));
    // VM 5, whose failures are doubted, answers again, and then stops. This failure is not doubted.
    world.silent.remove(&5);
    world.pass(5);
    world.silent.insert(5);
    world.pass(15);
    assert_eq!((world.held(), world.unhealthy().len()), (7, 3));
}

#[test]
fn what_stays_silent_when_most_answer_again_goes_out_when_it_had_the_time_to() {
    let mut world = World::new(fleet(5, &usual()));
    world.pass(20);
    world.silent = (0..15).collect();
    world.pass(30);
    world.silent = [3, 4].into();
    let mended = world.now;
    world.pass(5);
    assert_eq!((world.held(), world.unhealthy().len()), (2, 0), "others had the same time");
    world.pass(15);
    assert_eq!((world.held(), world.unhealthy().len()), (0, 2));
    // Verdicts flip only after most VMs answer again, and a period and a timeout (5 s and 3 s) have
    // passed.
    assert!(world.out.iter().all(|at| *at > mended + s(8)), "{:?} {mended:?}", world.out);
}

#[test]
fn a_doubt_goes_with_what_it_is_about() {
    let mut world = World::new(fleet(5, &usual()));
    world.pass(20);
    world.silent = (0..15).collect();
    world.pass(30);
    for lb in 0..4 {
        world.schedule.remove(&lb.to_string());
    }
    assert_eq!(world.held(), 3);
    // A changed request makes a new target. The verdict of the former target is kept.
    let other = CheckSettings { port: 81, ..usual() };
    set(&mut world.schedule, "4", &other, &[target(12), target(13)], world.now);
    assert_eq!(world.held(), 0);
    assert!(world.schedule.doubt.is_none());
    assert_eq!(world.schedule.is_healthy("4", "12"), Some(true));
}

/// LoadBalancers with any checks, which may share VMs.
fn fleets() -> impl Strategy<Value = Fleet> {
    let check =
        (1..12_u64, 1..4_u32, 1..4_u32).prop_map(|(period, failures, successes)| CheckSettings {
            period: s(period),
            failure_threshold: failures,
            success_threshold: successes,
            ..check()
        });
    let vms = prop::collection::btree_set(0..20_u8, 1..6);
    vec((check, vms), 3..10).prop_map(|lbs| {
        let named = lbs.into_iter().zip(0..);
        named
            .map(|((check, vms), lb): (_, u32)| {
                (lb.to_string(), (check, vms.into_iter().collect()))
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn most_stay_in_and_come_back_and_a_minority_goes_out_in_its_time(
        fleet in fleets(),
        chosen in vec(any::<bool>(), 20),
        after in 60_u64..70,
    ) {
        let mut world = World::new(fleet.clone());
        world.pass(after);
        prop_assert_eq!(world.unhealthy(), vec![]);
        let all: BTreeSet<u8> = fleet.values().flat_map(|(_, vms)| vms.clone()).collect();
        let silent: BTreeSet<u8> =
            all.iter().copied().filter(|number| chosen[usize::from(*number)]).collect();
        let lbs = fleet.values().filter(|(_, vms)| vms.iter().any(|n| silent.contains(n))).count();
        let doubted = silent.len() >= 3 && lbs >= 3 && 2 * silent.len() > all.len();
        world.silent = silent.clone();
        let failing: Vec<(String, u8)> = fleet
            .iter()
            .flat_map(|(lb, (_, vms))| vms.iter().map(move |number| (lb.clone(), *number)))
            .filter(|(_, number)| silent.contains(number))
            .collect();
        // These 48 s are enough for each check to fail or to recover.
        world.pass(48);
        if doubted {
            prop_assert_eq!(world.unhealthy(), vec![]);
            prop_assert_eq!(world.held(), failing.len());
            world.schedule.believe();
        } else {
            prop_assert_eq!(world.held(), 0);
            prop_assert_eq!(world.out.len(), failing.len());
        }
        prop_assert_eq!(world.unhealthy(), failing);
        world.silent.clear();
        world.pass(48);
        prop_assert_eq!(world.unhealthy(), vec![]);
        prop_assert!(world.schedule.doubt.is_none());
    }

    #[test]
    fn without_a_majority_nothing_differs_from_thresholds_alone(
        fleet in fleets(),
        lost in 0..20_u8,
    ) {
        let mut world = World::new(fleet.clone());
        world.pass(60);
        world.silent = [lost].into();
        let began = world.now;
        let mut expected: Vec<Duration> = Vec::new();
        for (lb, (check, vms)) in &fleet {
            if vms.contains(&lost) {
                let key = world.schedule.lbs[lb.as_str()].members[&lost.to_string()];
                let first = world.schedule.entries[&key].due.unwrap();
                expected.push(first + check.period * (check.failure_threshold - 1));
            }
        }
        expected.sort();
        world.pass(48);
        world.out.sort();
        prop_assert!(world.out.iter().all(|at| *at > began));
        prop_assert_eq!(world.out, expected);
    }
}
