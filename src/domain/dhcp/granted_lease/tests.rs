//! Tests of T1, T2 and the end of a lease, and of the times of renewals.

use proptest::prelude::*;

use super::super::phase;
use super::super::wire::message::ReplyKind;
use super::*;

const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn reply(seconds: u32, t1: Option<u32>, t2: Option<u32>) -> ServerReply {
    ServerReply {
        kind: ReplyKind::Ack,
        xid: 0,
        address: Ipv4Addr::new(10, 0, 0, 20),
        server: Ipv4Addr::new(10, 0, 0, 1),
        seconds: Some(seconds),
        t1,
        t2,
        prefix: Some(24),
        gateway: None,
        name_servers: Vec::new(),
    }
}

#[test]
pub fn t1_and_t2_are_taken_only_together_and_in_order() {
    let default = (secs(500), Some(secs(875)));
    let cases = [
        (None, None, default),
        (Some(300), Some(600), (secs(300), Some(secs(600)))),
        (Some(300), None, (secs(300), Some(secs(875)))),
        (None, Some(600), (secs(500), Some(secs(600)))),
        // If T1 and T2 are in the wrong order, or if one of them is too early or too late, neither
        // of them is used.
        (Some(600), Some(600), default),
        (Some(700), Some(600), default),
        (Some(900), None, default),
        (Some(300), Some(1000), default),
        (Some(300), Some(u32::MAX), default),
        (None, Some(400), default),
        (Some(0), Some(600), default),
        (Some(29), Some(600), default),
        (Some(30), Some(31), (secs(30), Some(secs(31)))),
    ];
    for (t1, t2, expected) in cases {
        let times = LeaseTimes::of(1000, t1, t2);
        assert_eq!((times.t1, times.t2), expected, "{t1:?} {t2:?}");
        assert_eq!(times.end, Some(secs(1000)));
    }
    // A lease that never expires has no T2, whatever the server sends.
    let times = LeaseTimes::of(u32::MAX, Some(1), Some(2));
    assert_eq!((times.t1, times.t2, times.end), (DAILY, None, None));
}

fn no_answer_spins(seconds: u32, t1: Option<u32>, t2: Option<u32>, granted: u64, phase: u32) {
    let granted = Duration::from_millis(granted);
    let lease = GrantedLease::from_reply(&reply(seconds, t1, t2), MAC, granted, phase);
    assert!(lease.renew >= granted + secs(1), "{lease:?}");
    let (Some(rebind), Some(expires)) = (lease.rebind, lease.expires) else {
        assert_eq!(seconds, u32::MAX);
        return;
    };
    assert!(lease.renew < rebind && rebind < expires, "{lease:?}");
    assert_eq!(expires, granted + secs(seconds.into()));
    let mut now = lease.renew;
    let mut tries = 0;
    while now < expires {
        let next = lease.ask_again(now);
        assert!(next >= now + secs(1) || next == rebind || next == expires, "{lease:?} {now:?}");
        assert!(next > now && next <= expires);
        (now, tries) = (next, tries + 1);
    }
    assert!(tries <= 70, "{tries} questions: {lease:?}");
}

#[test]
pub fn no_answer_makes_a_client_spin() {
    for seconds in [10, 11, 12, 20, 40, 119, 1200, 86_400, u32::MAX - 1, u32::MAX] {
        for t1 in [None, Some(0), Some(1), Some(5), Some(30), Some(60), Some(u32::MAX)] {
            for t2 in [None, Some(0), Some(2), Some(31), Some(61), Some(u32::MAX)] {
                no_answer_spins(seconds, t1, t2, 12_345, phase(3));
            }
        }
    }
}

proptest! {
    #[test]
    fn no_answer_of_any_kind_makes_a_client_spin(
        seconds in prop_oneof![10_u32..5000, 10_u32..=u32::MAX],
        t1 in prop::option::of(any::<u32>()),
        t2 in prop::option::of(any::<u32>()),
        near1 in prop::option::of(0_u32..5000),
        near2 in prop::option::of(0_u32..5000),
        granted in 0_u64..u64::MAX / 1000,
        phase in any::<u32>(),
    ) {
        no_answer_spins(seconds, near1.or(t1), near2.or(t2), granted, phase);
    }

    #[test]
    fn renewals_fall_on_their_grid(
        latest in 0_u64..1_000_000_000_000_000_000,
        width in 1_u64..1_000_000_000_000,
        phase in any::<u32>(),
    ) {
        let (latest, width) = (Duration::from_nanos(latest), Duration::from_nanos(width));
        prop_assume!(latest > width);
        let at = on_grid(latest, width, phase);
        prop_assert!(at <= latest && at + width > latest);
        let offset = (width.as_nanos() * u128::from(phase)) >> 32;
        prop_assert_eq!(at.as_nanos() % width.as_nanos(), offset);
    }
}

/// Five hundred leases are acquired within five seconds, and renewed for hours. In each second, at
/// most 5 % of them are renewed.
#[test]
pub fn five_hundred_renewals_stay_spread() {
    for (seconds, fuzz) in [(120, 0), (120, 6), (3600, 0), (3600, 200)] {
        let mut renewals = vec![0_u32; 20_000];
        for n in 0..500_u32 {
            let mut granted = secs(100) + Duration::from_millis(u64::from(n) * 10);
            let mut round = n;
            while granted < secs(15_000) {
                // Some servers send another T1 with each grant.
                round = round.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let t1 = seconds / 2 - if fuzz == 0 { 0 } else { (round >> 16) % fuzz };
                let answer = reply(seconds, Some(t1), None);
                let lease = GrantedLease::from_reply(&answer, MAC, granted, phase(n));
                renewals[usize::try_from(lease.renew.as_secs()).unwrap()] += 1;
                granted = lease.renew;
            }
        }
        let most = renewals.iter().max().unwrap();
        assert!(*most <= 25, "{most} in one second, {seconds} s, {fuzz}");
    }
}

#[test]
fn a_server_is_near_if_the_subnet_says_so() {
    let near = |prefix, server: [u8; 4]| {
        let lease = GrantedLease::from_reply(
            &ServerReply { prefix, server: server.into(), ..reply(120, None, None) },
            MAC,
            secs(0),
            0,
        );
        lease.is_server_near()
    };
    assert!(near(Some(24), [10, 0, 0, 1]) && near(Some(8), [10, 200, 0, 1]));
    assert!(!near(Some(24), [10, 0, 1, 1]) && !near(Some(32), [10, 0, 0, 1]));
    assert!(!near(None, [10, 0, 0, 1]) && near(Some(0), [99, 0, 0, 1]));
}
