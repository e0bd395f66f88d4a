//! Tests of statuses, verdicts and addresses. Each verdict is compared with the verdict that
//! follows from the whole history.

use std::net::IpAddr;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::{BackendHealth, BackendProbe, CheckSettings, ProbeRequest, may_be_backend};

const NOW: Duration = Duration::from_secs(1);

fn check(success_threshold: u32, failure_threshold: u32) -> CheckSettings {
    CheckSettings {
        probe: BackendProbe::Tcp,
        port: 80,
        success_threshold,
        failure_threshold,
        period: Duration::from_secs(5),
        timeout: Duration::from_secs(3),
    }
}

/// Verdict after all results in `history`, oldest first. `assumed`: verdict before the first
/// result. If the newest results are equal, and are as many as `check` demands, they give the
/// verdict. Otherwise, the newest result does not change the verdict.
fn by_history(assumed: bool, history: &[bool], check: &CheckSettings) -> bool {
    let ends_with = |result: bool, count: u32| {
        let count = usize::try_from(count).unwrap();
        history.len() >= count && history.iter().rev().take(count).all(|r| *r == result)
    };
    if ends_with(true, check.success_threshold) {
        true
    } else if ends_with(false, check.failure_threshold) {
        false
    } else if let Some((_, before)) = history.split_last() {
        by_history(assumed, before, check)
    } else {
        assumed
    }
}

proptest! {
    #[test]
    fn verdicts_are_those_that_the_history_gives(
        assumed: bool,
        results in vec(any::<bool>(), 0..60),
        successes in 1_u32..5,
        failures in 1_u32..5,
    ) {
        let check = check(successes, failures);
        let mut health = BackendHealth::assumed(assumed);
        let mut before = assumed;
        for at in 0..results.len() {
            let flipped = health.observe(results[at], &check, NOW);
            let expected = by_history(assumed, &results[..=at], &check);
            prop_assert_eq!(health.is_healthy(), expected);
            prop_assert_eq!(flipped, before != expected);
            before = expected;
        }
    }

    #[test]
    fn a_flapping_backend_keeps_its_verdict(
        assumed: bool,
        runs in vec((1_u32..4, 1_u32..3), 1..30),
    ) {
        // There are never four consecutive successes or three consecutive failures, so no threshold
        // is reached.
        let check = check(4, 3);
        let mut health = BackendHealth::assumed(assumed);
        for (successes, failures) in runs {
            for _ in 0..successes {
                prop_assert!(!health.observe(true, &check, NOW));
            }
            for _ in 0..failures {
                prop_assert!(!health.observe(false, &check, NOW));
            }
        }
        prop_assert_eq!(health.is_healthy(), assumed);
    }
}

#[test]
fn a_threshold_that_is_lowered_counts_from_the_next_result() {
    let mut health = BackendHealth::assumed(true);
    for _ in 0..4 {
        assert!(!health.observe(false, &check(1, 10), NOW));
    }
    assert!(health.observe(false, &check(1, 3), NOW));
    assert!(!health.is_healthy());
}

#[test]
fn statuses_count_as_listed_and_by_default_from_200_to_399() {
    let mut request = ProbeRequest { path: "/".into(), expected: vec![], server_name: None };
    assert_eq!([199, 200, 399, 400].map(|s| request.expects(s)), [false, true, true, false]);
    request.expected = vec![404, 500];
    assert_eq!([200, 404, 500].map(|s| request.expects(s)), [false, true, true]);
}

#[test]
fn what_is_asked_is_the_probe_and_the_port() {
    let tcp = check(1, 3);
    assert!(tcp.asks_the_same(&CheckSettings { period: Duration::from_secs(9), ..check(7, 8) }));
    assert!(!tcp.asks_the_same(&CheckSettings { port: 81, ..tcp.clone() }));
    let request = ProbeRequest { path: "/".into(), expected: vec![], server_name: None };
    assert!(
        !tcp.asks_the_same(&CheckSettings { probe: BackendProbe::Http(request), ..tcp.clone() })
    );
}

#[test]
fn backends_are_neither_this_host_nor_everybody() {
    for bad in [
        "127.0.0.1",
        "127.9.9.9",
        "0.0.0.0",
        "0.1.2.3",
        "169.254.169.254",
        "224.0.0.1",
        "239.255.255.250",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.1.1",
        "::ffff:0.0.0.0",
    ] {
        assert!(!may_be_backend(bad.parse::<IpAddr>().unwrap()), "{bad}");
    }
    for good in ["10.0.0.1", "192.168.7.255", "100.64.0.9", "1.1.1.1", "fd00::1", "2001:db8::1"] {
        assert!(may_be_backend(good.parse::<IpAddr>().unwrap()), "{good}");
    }
}
