//! Tests of the times of replacements.

use proptest::prelude::*;

use super::*;

/// Monday, 2026-01-05, 00:00 UTC.
const MONDAY: Seconds = 1_767_571_200;
const HOUR: Seconds = 3_600;

fn plain() -> ReplacementSchedule {
    ReplacementSchedule {
        left_percent: 33,
        minimum_left: 0,
        jitter_percent: 0,
        window: None,
        paused: false,
    }
}

fn window(start: Seconds, minutes: Seconds, on: &[usize]) -> MaintenanceWindow {
    let mut days = [on.is_empty(); 7];
    for day in on {
        days[*day] = true;
    }
    MaintenanceWindow { start, minutes, days }
}

#[test]
fn a_share_of_life_is_left_and_no_less_than_the_minimum() {
    let at =
        |schedule: &ReplacementSchedule, life| due(schedule, MONDAY, MONDAY + life, "").at - MONDAY;
    assert_eq!(at(&plain(), 1_000), 670);
    let week = ReplacementSchedule { minimum_left: 7 * DAY, ..plain() };
    assert_eq!(at(&week, 30 * DAY), 30 * DAY * 67 / 100, "a third is more");
    assert_eq!(at(&week, 15 * DAY), 8 * DAY, "seven days are more");
    assert_eq!(at(&week, 600), 300, "half of it at most");
    let eager = ReplacementSchedule { left_percent: 99, jitter_percent: 50, ..plain() };
    assert!(at(&eager, 600) >= 6, "not at once, or it would never end");
}

#[test]
fn many_are_spread_and_each_stays_where_it_is() {
    let spread = ReplacementSchedule { jitter_percent: 10, ..plain() };
    let at = |name: usize| due(&spread, MONDAY, MONDAY + 10_000, &format!("a/{name}")).at;
    let all: Vec<Seconds> = (0..2_000).map(|name| at(name) - MONDAY).collect();
    assert!(all.iter().all(|at| (5_700..=6_700).contains(at)));
    for slot in 0..10 {
        let (from, to) = (5_700 + slot * 100, 5_800 + slot * 100);
        let count = all.iter().filter(|at| (from..to).contains(*at)).count();
        assert!((120..280).contains(&count), "{count} in one of ten parts");
    }
    assert_eq!(at(7), at(7));
}

#[test]
fn a_window_is_waited_for_unless_it_comes_too_late() {
    let at = |window: MaintenanceWindow, issued: Seconds, life: Seconds| {
        let schedule = ReplacementSchedule { window: Some(window), ..plain() };
        due(&schedule, issued, issued + life, "").at
    };
    // The replacement is due on Wednesday at 19:00, and 16.5 hours later at the latest.
    let nightly = at(window(120, 60, &[]), MONDAY, 100 * HOUR);
    assert_eq!(nightly, MONDAY + 2 * DAY + 26 * HOUR, "the next night at two");
    let open = at(window(0, 24 * 60, &[]), MONDAY, 100 * HOUR);
    assert_eq!(open, MONDAY + 67 * HOUR, "always open");
    let wednesday = at(window(18 * 60, 120, &[2]), MONDAY, 100 * HOUR);
    assert_eq!(wednesday, MONDAY + 67 * HOUR, "open already: it is 19:00 on Wednesday");
    let over_midnight = at(window(23 * 60, 24 * 60, &[1]), MONDAY, 100 * HOUR);
    assert_eq!(over_midnight, MONDAY + 67 * HOUR, "it began on Tuesday and is still open");
    let too_late = at(window(0, 60, &[6]), MONDAY, 100 * HOUR);
    let latest = due(&plain(), MONDAY, MONDAY + 100 * HOUR, "").latest;
    assert_eq!(too_late, latest, "Sunday is after its end");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn it_is_always_in_time(
        issued in 0_i64..4_000_000_000,
        life in 10_i64..40_000_000,
        left_percent in 1_i64..100,
        minimum_left in 0_i64..31_536_000,
        jitter_percent in 0_i64..51,
        start in 0_i64..1_440,
        minutes in 5_i64..1_441,
        days in any::<[bool; 7]>(),
        with_window: bool,
        seed in "[a-z]{3}",
    ) {
        let window = with_window.then_some(MaintenanceWindow { start, minutes, days });
        let schedule =
            ReplacementSchedule { left_percent, minimum_left, jitter_percent, window, paused: false };
        let due = due(&schedule, issued, issued + life, &seed);
        prop_assert!(due.at > issued);
        prop_assert!(due.at <= due.latest);
        prop_assert!(due.latest <= issued + life);
    }
}
