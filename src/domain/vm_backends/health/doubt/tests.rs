//! Tests of failures that one moment explains: fixed cases, and random mixtures of VMs that fail
//! and VMs that pass.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::{BackendHealth, BackendProbe, CheckSettings, Doubt, ProbeHistory, moment};

const fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn vm(number: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, number).into()
}

/// Target of VM `number` behind LoadBalancer `lb`. Its probe passed at 98 s, and failed first at
/// 101 s.
fn silent(lb: &str, number: u8) -> ProbeHistory<'_> {
    ProbeHistory { lb, address: vm(number), passed: s(98), failing: Some(s(101)) }
}

/// Target of VM `number` behind LoadBalancer `lb`. Its probe passed at 102 s.
fn well(lb: &str, number: u8) -> ProbeHistory<'_> {
    ProbeHistory { lb, address: vm(number), passed: s(102), failing: None }
}

const LBS: [&str; 5] = ["a", "b", "c", "d", "e"];

/// One target for each VM of `numbers`, made by `make`. The targets are spread over `lbs`
/// LoadBalancers.
fn fleet(
    make: fn(&'static str, u8) -> ProbeHistory<'static>,
    numbers: std::ops::Range<u8>,
    lbs: usize,
) -> Vec<ProbeHistory<'static>> {
    numbers.map(|number| make(LBS[usize::from(number) % lbs], number)).collect()
}

/// Test case. The fields are the name of the case, its targets, and whether the failures of these
/// targets are doubted.
type Case = (&'static str, Vec<ProbeHistory<'static>>, bool);

fn cases() -> Vec<Case> {
    let behind_all = |number| LBS.map(|lb| silent(lb, number)).to_vec();
    let rolling = |number: u8| ProbeHistory {
        passed: s(98 + 10 * u64::from(number)),
        failing: Some(s(101 + 10 * u64::from(number))),
        ..silent(LBS[usize::from(number) % 3], number)
    };
    let long_dead =
        |number: u8| ProbeHistory { passed: s(1), failing: Some(s(5)), ..silent("a", number) };
    let unseen =
        |number: u8| ProbeHistory { passed: s(0), ..silent(LBS[usize::from(number) % 3], number) };
    // One port of the VM fails, and another port of the same VM passes.
    let port = |number: u8| [silent("a", number), well("b", number)];
    vec![
        ("all VMs of three load balancers", fleet(silent, 0..3, 3), true),
        ("all VMs of one load balancer", fleet(silent, 0..10, 1), false),
        ("all VMs of two load balancers", fleet(silent, 0..10, 2), false),
        ("two VMs of five load balancers", [behind_all(1), behind_all(2)].concat(), false),
        ("three VMs of five load balancers", [1, 2, 3].map(behind_all).concat(), true),
        ("half", [fleet(silent, 0..5, 5), fleet(well, 5..10, 5)].concat(), false),
        ("more than half", [fleet(silent, 0..6, 5), fleet(well, 6..10, 5)].concat(), true),
        ("a node of three", [fleet(silent, 0..10, 5), fleet(well, 10..30, 5)].concat(), false),
        ("one VM of all", [behind_all(1), fleet(well, 2..5, 3)].concat(), false),
        ("one after the other", (0..10).map(rolling).collect(), false),
        ("a port", (0..10).flat_map(port).collect(), false),
        (
            "the last that lived",
            [fleet(silent, 0..3, 3), (3..30).map(long_dead).collect()].concat(),
            true,
        ),
        ("what the last leader left", (0..9).map(unseen).collect(), true),
        ("no target", vec![], false),
    ]
}

#[test]
fn most_vms_of_many_load_balancers_at_one_moment_are_doubted_and_nothing_less() {
    for (what, histories, doubted) in cases() {
        for news in histories.iter().filter(|history| history.failing.is_some()) {
            let news = (news.passed, news.failing.unwrap());
            // Failures that began in the first five seconds are old, so the test does not search
            // between their times.
            if news.1 > s(5) {
                let found = moment(histories.iter().copied(), news);
                assert_eq!(found.is_some(), doubted, "{what}");
            }
        }
        if histories.is_empty() {
            assert_eq!(moment(histories.into_iter(), (s(0), s(9))), None);
        }
    }
}

#[test]
fn what_fell_silent_long_ago_is_not_doubted_because_of_one_that_does_now() {
    let news = ProbeHistory { lb: "d", address: vm(9), passed: s(500), failing: Some(s(505)) };
    let histories = fleet(silent, 0..9, 3).into_iter().chain([news]);
    assert_eq!(moment(histories, (news.passed, s(505))), None);
}

#[test]
fn a_doubt_ends_for_who_had_the_time_to_answer_once_most_did() {
    let check = CheckSettings {
        probe: BackendProbe::Tcp,
        port: 80,
        success_threshold: 2,
        failure_threshold: 1,
        period: s(5),
        timeout: s(3),
    };
    let mut fails = BackendHealth::assumed(true);
    fails.observe(true, &check, s(10));
    assert!(fails.observe(false, &check, s(15)));
    let mut doubt = Doubt::default();
    doubt.grow(s(12));
    assert!(doubt.explains(fails));
    let mut held = [fails; 4];
    for health in &mut held {
        doubt.hold(health);
    }
    assert!(held.iter().all(|health| health.is_healthy() && health.is_held()));
    doubt.answers(s(20));
    doubt.answers(s(21));
    assert!(!doubt.is_over_for(&check, s(1_000)), "half");
    let mut after_removal = doubt.clone();
    after_removal.gone();
    let over = [23, 35, 36].map(|now| after_removal.is_over_for(&check, s(now)));
    assert_eq!(over, [false, false, true], "a removed target makes the majority");
    doubt.answers(s(22));
    assert_eq!([34, 35].map(|now| doubt.is_over_for(&check, s(now))), [false, true]);
    // The fault spreads to more VMs, so a second moment is added, and the doubt does not end yet.
    doubt.grow(s(30));
    assert!(!doubt.is_over_for(&check, s(1_000)));
    doubt.believe(&mut held[0]);
    assert_eq!((held[0].is_healthy(), held[0].silence(), doubt.held()), (false, None, 0));
    assert!(!doubt.explains(held[0]), "what is settled is not doubted again");
}

proptest! {
    /// All failing VMs fall silent at 1,000 s. Each entry of `failing` is one failing VM. Its
    /// fields: seconds from the VM's last success to 1,000 s, and seconds from 1,000 s to the VM's
    /// first failure. `healthy`: number of VMs that pass.
    #[test]
    fn a_majority_is_found_whatever_the_periods_and_a_minority_never(
        failing in vec((1_u64..60, 0_u64..60), 1..20),
        healthy in 0_u8..20,
    ) {
        let count = u8::try_from(failing.len()).unwrap();
        let mut histories: Vec<ProbeHistory<'_>> = failing
            .iter()
            .zip(0..)
            .map(|((before, after), number)| ProbeHistory {
                passed: s(1_000 - before),
                failing: Some(s(1_000 + after)),
                ..silent(LBS[usize::from(number) % 5], number)
            })
            .collect();
        histories.extend((count..count + healthy).map(|number| ProbeHistory {
            passed: s(1_100),
            ..well(LBS[usize::from(number) % 5], number)
        }));
        let expected = count > healthy && count >= 3;
        for (before, after) in failing {
            let news = (s(1_000 - before), s(1_000 + after));
            let found = moment(histories.iter().copied(), news);
            prop_assert_eq!(found.is_some(), expected);
            // The moment that is found is between the last success and the first failure of each
            // failing VM.
            let fits = |at: Duration| histories.iter().all(|history| {
                history.failing.is_none_or(|since| (history.passed..=since).contains(&at))
            });
            prop_assert!(found.is_none_or(fits));
        }
    }
}
