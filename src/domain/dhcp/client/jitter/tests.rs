//! Tests of the times at which many clients send.

use super::*;

#[test]
pub fn any_run_of_clients_is_spread_evenly() {
    for (first, count) in [(0, 10), (0, 500), (1234, 500), (u32::MAX - 100, 1000)] {
        let mut places: Vec<u32> = (0..count).map(|n| phase(u32::wrapping_add(first, n))).collect();
        places.sort_unstable();
        let even = u32::MAX / count;
        for pair in places.windows(2) {
            let gap = pair[1] - pair[0];
            assert!(gap > even / 3 && gap < even * 3, "{gap} of {even}, {count} from {first}");
        }
    }
}

#[test]
fn the_window_grows_with_the_clients_up_to_a_bound() {
    assert_eq!(start_within(1), Duration::from_millis(8));
    assert_eq!(start_within(500), LONGEST);
    assert_eq!(start_within(usize::MAX), LONGEST);
}

#[test]
pub fn a_bucket_lets_a_few_through_at_once_and_the_rest_in_time() {
    let mut bucket = RELEASES;
    let mut now = Duration::from_secs(7);
    let mut passed = Vec::new();
    while passed.len() < 500 {
        match bucket.take(now) {
            Ok(()) => passed.push(now),
            Err(later) => {
                assert!(later > now);
                now = later;
            }
        }
    }
    assert_eq!(passed[9], Duration::from_secs(7));
    assert_eq!(passed[10], Duration::from_secs(7) + Duration::from_millis(20));
    // In any second, at most 60 tokens are taken: 10 at once, and 50 at one every 20 ms.
    for start in &passed {
        let window = *start..*start + Duration::from_secs(1);
        assert!(passed.iter().filter(|at| window.contains(*at)).count() <= 60);
    }
    assert_eq!(*passed.last().unwrap(), Duration::from_secs(7) + Duration::from_millis(9800));
    // After a second without a RELEASE, the bucket is full again.
    now += Duration::from_secs(1);
    assert_eq!((0..60).filter(|_| bucket.take(now).is_ok()).count(), 10);
}

#[test]
fn random_numbers_are_the_same_for_the_same_seed_and_stay_below() {
    let (mut one, mut two) = (JitterRng::new(5), JitterRng::new(5));
    let whole = Duration::from_secs(3);
    let throws: Vec<Duration> = (0..1000).map(|_| one.below(whole)).collect();
    assert!(throws.iter().all(|throw| *throw < whole));
    assert!(throws.iter().all(|throw| *throw == two.below(whole)));
    assert!(
        throws.iter().any(|throw| *throw < whole / 20)
            && throws.iter().any(|throw| *throw > whole * 19 / 20)
    );
    assert_ne!(JitterRng::new(5).word(), JitterRng::new(6).word());
}
