//! Confirmation of an address after a restart.

use super::server::{DISCOVER, NAK, REQUEST};
use super::*;

#[test]
pub fn a_lease_is_used_at_once_and_asked_after() {
    let mut bed = Bed::resumed(90);
    assert_eq!((bed.client.state(), bed.address()), (LeaseState::Rebooting, Some(ADDRESS)));
    assert_eq!(bed.client.listening(), FrameFilter::Nothing);
    assert_eq!(bed.lease().expires, Some(secs(90)));
    let confirm = bed.speaks();
    assert_eq!((confirm.kind(), confirm.confirms(), confirm.to), (REQUEST, true, SERVER));
    assert_eq!(bed.client.listening(), FrameFilter::Dhcp);
    bed.hears(&answer(&confirm, ACK, ADDRESS, SERVER, 120));
    assert_eq!((bed.client.state(), bed.lease().expires), (LeaseState::Bound, Some(secs(120))));
    assert!(bed.probes.is_empty(), "who has it would be its user");
}

#[test]
pub fn restarted_clients_do_not_ask_together() {
    let start = |n, left| {
        let options = ClientOptions { phase: crate::dhcp::phase(n), ..ClientOptions::default() };
        DhcpClient::resume(identity(), options, held(left), 7, ms(0)).deadline().unwrap()
    };
    for (left, within) in [(120, secs(30)), (40, secs(10))] {
        let starts: Vec<Duration> = (0..500).map(|n| start(n, left)).collect();
        assert!(starts.iter().all(|start| *start < within));
        for second in 0..within.as_secs() {
            let asks = starts.iter().filter(|start| start.as_secs() == second).count();
            let even = 500 / usize::try_from(within.as_secs()).unwrap();
            assert!((even - 2..=even + 3).contains(&asks), "{asks} in second {second}");
        }
    }
}

#[test]
pub fn silence_lets_the_lease_run_on_then_the_address_is_looked_for() {
    let mut bed = Bed::resumed(100);
    let sent: Vec<Seen> = bed.until(ms(99_999));
    let alone = sent.iter().take_while(|seen| !seen.is_broadcast()).count();
    assert_eq!(alone, 2);
    assert!(sent[2..].iter().all(Seen::is_broadcast));
    assert!(sent[..4].iter().all(Seen::confirms));
    assert_eq!(sent.iter().filter(|seen| seen.kind() == DISCOVER).count(), 3, "from T2 on");
    assert_eq!((bed.address(), bed.client.state()), (Some(ADDRESS), LeaseState::Rebinding));
    assert_eq!((bed.speaks().wish(), bed.address()), (Some(ADDRESS), None));

    // If no server answers before T1, the client does nothing more until T1.
    let mut held = held(80_000);
    held.seconds = Some(86_400);
    let options = ClientOptions { resume_within: ms(0), ..ClientOptions::default() };
    let mut bed = Bed::of(DhcpClient::resume(identity(), options, held, 7, ms(0)));
    assert_eq!(bed.until(secs(120)).len(), 4);
    assert_eq!((bed.client.state(), bed.address()), (LeaseState::Bound, Some(ADDRESS)));
    assert_eq!(bed.client.deadline(), Some(secs(80_000 - 43_200)));
}

#[test]
pub fn the_server_may_take_it_back_and_another_one_may_not() {
    let mut bed = Bed::resumed(119);
    for _ in 0..4 {
        let confirm = bed.speaks();
        bed.hears(&answer(&confirm, NAK, ADDRESS, OTHER, 0));
        assert_eq!(bed.address(), Some(ADDRESS));
    }
    let mut bed = Bed::resumed(119);
    let confirm = bed.speaks();
    bed.hears(&answer(&confirm, NAK, ADDRESS, SERVER, 0));
    assert_eq!((bed.address(), bed.client.state()), (None, LeaseState::Lost));
    assert_eq!(bed.speaks().kind(), DISCOVER);
}

/// The record says when the lease expires by the wall clock. This clock may have been set while no
/// process ran.
#[test]
pub fn a_recorded_end_is_only_a_hint() {
    // The clock was set back by a year. The lease does not become longer than the server granted
    // it.
    let bed = Bed::resumed(365 * 86_400);
    assert_eq!(bed.lease().expires, Some(secs(120)));
    // The clock was set forward, or the lease has really expired. The address is not used, and the
    // client requests it again.
    let mut bed = Bed::resumed(0);
    let discover = bed.speaks();
    assert_eq!((bed.address(), bed.record().lease.is_none()), (None, true));
    assert_eq!(bed.record().trouble, Some(ClientTrouble::Expired));
    assert_eq!((discover.kind(), discover.wish(), bed.now), (DISCOVER, Some(ADDRESS), ms(0)));
}

#[test]
pub fn a_record_without_the_server_s_station_reaches_it_all_the_same() {
    let options = ClientOptions { resume_within: ms(0), ..ClientOptions::default() };
    let unknown = RecordedLease { server_mac: None, ..held(90) };
    let mut bed = Bed::of(DhcpClient::resume(identity(), options, unknown, 7, ms(0)));
    let confirm = bed.speaks();
    assert_eq!((confirm.destination, confirm.to, confirm.from), (Mac::BROADCAST, SERVER, ADDRESS));
}

/// All messages about a lease have the same identity, because servers recognise the client by its
/// identity.
#[test]
pub fn who_the_client_is_stays_the_same_in_every_message() {
    let mut all = Vec::new();
    let mut bed = Bed::bound(120);
    bed.until(secs(200));
    all.append(&mut bed.messages);
    let mut bed = Bed::resumed(90);
    let confirm = bed.speaks();
    bed.hears(&answer(&confirm, ACK, ADDRESS, SERVER, 120));
    bed.release();
    all.append(&mut bed.messages);
    assert!(all.len() > 8);
    for (n, seen) in all.into_iter().enumerate() {
        assert_eq!((seen.source, seen.chaddr), (identity().mac, identity().mac));
        assert_eq!(
            seen.option(61),
            identity().client_id.as_ref().map(crate::dhcp::ClientId::octets)
        );
        // The address may be in use from its grant on. So servers are asked to broadcast their
        // answers.
        let may_be_live = n >= 2 && [DISCOVER, REQUEST].contains(&seen.kind());
        assert_eq!(seen.flags, if may_be_live { 0x8000 } else { 0 }, "message {n}");
        assert_eq!(seen.ports, (68, 67));
        if [DISCOVER, REQUEST].contains(&seen.kind()) {
            assert_eq!(seen.option(55), Some(&[1, 3, 6, 51, 54, 58, 59][..]));
            assert_eq!(seen.option(12), Some(&b"web"[..]));
            assert_eq!(seen.option(60), Some(&b"harvester-guest-operator"[..]));
            let largest = seen.option(57).unwrap();
            assert!(u16::from_be_bytes(largest.try_into().unwrap()) >= 576);
        }
    }
    let options = ClientOptions { broadcast: true, ..ClientOptions::default() };
    assert_eq!(Bed::with(options).speaks().flags, 0x8000);
}
