//! Tests of the distribution of probes over the period, and of the grid that never drifts.

use std::time::Duration;

use proptest::prelude::*;

use super::{FIRST_WITHIN, ProbePhase, first, next};

const PERIOD: Duration = Duration::from_secs(5);

/// Number of identities in each of 50 slots, by their phases. The slots divide a period of five
/// seconds into tenths of a second.
fn histogram(identities: impl Iterator<Item = String>) -> Vec<u32> {
    let mut slots = vec![0; 50];
    for id in identities {
        let phase = ProbePhase::of(&["lb", &id]).within(PERIOD);
        assert!(phase < PERIOD);
        slots[usize::try_from(phase.as_millis() / 100).unwrap()] += 1;
    }
    slots
}

#[test]
fn targets_spread_evenly_even_if_their_names_are_counted_up() {
    for prefix in ["", "vm-", "3f0c52de-8a11-4b7e-9d7b-00000000"] {
        let slots = histogram((0..10_000).map(|n| format!("{prefix}{n}")));
        // On average, a slot has 200 identities. The bounds are five standard deviations from that.
        assert!(slots.iter().all(|n| (130..=270).contains(n)), "{prefix}: {slots:?}");
    }
}

#[test]
fn the_phase_of_an_identity_is_the_same_for_ever() {
    // If the computation of phases changes, every target's probes move to other times at the next
    // upgrade of the operator. That is harmless, but this test must show the change.
    assert_eq!(ProbePhase::of(&["a", "b"]), ProbePhase(9_832_196_343_340_254_499));
    assert_ne!(ProbePhase::of(&["ab", "c"]), ProbePhase::of(&["a", "bc"]));
    assert_ne!(ProbePhase::of(&["a"]), ProbePhase::of(&["a", ""]));
}

#[test]
fn unknown_targets_are_probed_at_once_but_not_all_together() {
    let now = Duration::from_secs(1_000);
    let waits: Vec<Duration> = (0..1_000)
        .map(|n| first(now, ProbePhase::of(&[&n.to_string()]), PERIOD).saturating_sub(now))
        .collect();
    assert!(waits.iter().all(|wait| *wait < FIRST_WITHIN));
    let early = waits.iter().filter(|wait| **wait < FIRST_WITHIN / 2).count();
    assert!((400..600).contains(&early), "{early}");
    let short = Duration::from_millis(10);
    assert!(first(now, ProbePhase(u64::MAX), short) < now + short);
}

proptest! {
    #[test]
    fn probes_fall_on_a_grid_and_never_drift(
        seed: u64,
        millis in 1_u64..3_600_000,
        start in 0_u64..10_000_000_000,
        delays in proptest::collection::vec(0_u64..20_000, 1..50),
    ) {
        let (phase, period) = (ProbePhase(seed), Duration::from_millis(millis));
        let mut now = Duration::from_micros(start);
        for delay in delays {
            let due = next(now, phase, period);
            prop_assert!(due > now && due <= now + period);
            let into = due.checked_sub(phase.within(period)).map(|t| t.as_nanos() % period.as_nanos());
            prop_assert_eq!(into, Some(0));
            // The probe ends `delay` milliseconds after it was due. The grid must not depend on
            // this delay.
            now = due + Duration::from_millis(delay);
        }
    }

    #[test]
    fn a_probe_that_ends_in_time_is_followed_one_period_later(seed: u64, late in 0_u64..4_999) {
        let phase = ProbePhase(seed);
        let due = next(Duration::from_secs(77), phase, PERIOD);
        prop_assert_eq!(next(due + Duration::from_millis(late), phase, PERIOD), due + PERIOD);
    }
}
