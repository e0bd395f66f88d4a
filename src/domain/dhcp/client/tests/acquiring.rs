//! Tests of acquiring an address.

use super::server::{Answer, DISCOVER, NAK, REQUEST};
use super::*;

#[test]
pub fn a_discover_comes_from_nowhere_and_goes_to_all() {
    let discover = Bed::new().speaks();
    let none = Ipv4Addr::UNSPECIFIED;
    assert_eq!(discover.kind(), DISCOVER);
    assert!(discover.is_broadcast());
    assert_eq!((discover.from, discover.ports, discover.ciaddr), (none, (68, 67), none));
    assert_eq!((discover.source, discover.chaddr), (identity().mac, identity().mac));
    assert_eq!((discover.server(), discover.wish(), discover.secs), (None, None, 0));
}

#[test]
pub fn clients_of_one_moment_do_not_begin_together() {
    let start = |n| {
        let options = ClientOptions {
            start_within: secs(4),
            phase: crate::dhcp::phase(n),
            ..ClientOptions::default()
        };
        Bed::with(options).client.deadline().unwrap()
    };
    let mut starts: Vec<Duration> = (0..500).map(start).collect();
    starts.sort();
    assert!(*starts.last().unwrap() < secs(4));
    // The phases are multiples of the golden ratio, so two neighbouring times are never much closer
    // than the average.
    for pair in starts.windows(2) {
        assert!((ms(3)..ms(20)).contains(&pair[1].checked_sub(pair[0]).unwrap()), "{pair:?}");
    }
}

#[test]
pub fn a_request_takes_up_the_offer_and_its_server() {
    let mut bed = Bed::new();
    let first = bed.speaks();
    let discover = bed.speaks();
    assert!(discover.secs >= 3 && discover.xid == first.xid);
    let request = bed.offer(&discover, ADDRESS, 120);
    assert_eq!((request.kind(), request.xid, request.secs), (REQUEST, discover.xid, discover.secs));
    assert_eq!((request.wish(), request.server()), (Some(ADDRESS), Some(SERVER)));
    assert_eq!((request.ciaddr, request.from), (Ipv4Addr::UNSPECIFIED, Ipv4Addr::UNSPECIFIED));
    assert!(request.is_broadcast());
}

/// A client that has held no address requests the address `wish`. The client prefers this address
/// to other offers, until servers have refused this address twice.
#[test]
fn an_address_is_asked_for_by_name() {
    let wished = Ipv4Addr::new(10, 0, 0, 77);
    let mut bed = Bed::with(ClientOptions { wish: Some(wished), ..ClientOptions::default() });
    let discover = bed.speaks();
    assert_eq!(discover.wish(), Some(wished));
    assert!(bed.hears(&answer(&discover, OFFER, ADDRESS, SERVER, 120)).is_empty());
    assert!(bed.hears(&answer(&discover, OFFER, wished, SERVER, 120)).is_empty());
    let mut asked = Vec::new();
    for _ in 0..3 {
        let request = bed.speaks();
        assert_eq!((request.kind(), request.wish()), (REQUEST, Some(wished)));
        bed.hears(&answer(&request, NAK, Ipv4Addr::UNSPECIFIED, SERVER, 0));
        let discover = bed.speaks();
        asked.push(discover.wish());
        bed.hears(&answer(&discover, OFFER, wished, SERVER, 120));
    }
    assert_eq!(asked, [Some(wished), None, None]);
}

#[test]
pub fn an_address_is_used_only_after_its_record_was_written() {
    let mut bed = Bed::new();
    bed.slow = true;
    let discover = bed.speaks();
    assert_eq!(bed.client.listening(), FrameFilter::Dhcp);
    let request = bed.offer(&discover, ADDRESS, 120);
    assert_eq!(bed.client.state(), LeaseState::Requesting);
    bed.hears(&answer(&request, ACK, ADDRESS, SERVER, 120));
    assert_eq!(bed.client.listening(), FrameFilter::DhcpAndArp);
    assert!(bed.records.is_empty(), "nothing is recorded before the probe");
    while bed.records.is_empty() {
        bed.passes();
    }
    let record = bed.record().clone();
    let lease = record.lease.clone().unwrap();
    assert_eq!((record.state, lease.address, lease.prefix), (LeaseState::Bound, ADDRESS, Some(24)));
    assert_eq!((lease.server, lease.server_mac), (SERVER, SERVER_MAC));
    assert_eq!(lease.gateway, Some(Ipv4Addr::new(10, 0, 0, 254)));
    // Of the name servers, the first three addresses that can belong to a host are stored. The list
    // ends with two octets that are no whole address, and are ignored.
    assert_eq!(lease.name_servers, [53, 54, 55].map(|host| Ipv4Addr::new(10, 0, 0, host)));
    assert_eq!((bed.client.state(), bed.address()), (LeaseState::Probing, None));
    bed.client.record_written(record.serial - 1, bed.now);
    assert_eq!(bed.address(), None);
    bed.client.record_written(record.serial, bed.now);
    assert_eq!((bed.client.state(), bed.address()), (LeaseState::Bound, Some(ADDRESS)));
    assert_eq!(bed.client.listening(), FrameFilter::Nothing);
}

/// The API server may be unavailable for longer than T1. The lease is renewed meanwhile, but its
/// record is written only later.
#[test]
pub fn a_lease_is_renewed_though_its_record_is_not_written() {
    let mut bed = Bed::with(ClientOptions { probe: ProbeTiming::OFF, ..ClientOptions::default() });
    bed.slow = true;
    bed.acquire_unrecorded();
    let renewal = bed.speaks();
    bed.hears(&answer(&renewal, ACK, ADDRESS, SERVER, 120));
    assert_eq!(bed.address(), None);
    let serial = bed.record().serial;
    bed.client.record_written(serial, bed.now);
    assert_eq!(bed.address(), Some(ADDRESS));
}

impl Bed {
    fn acquire_unrecorded(&mut self) {
        let discover = self.speaks();
        let request = self.offer(&discover, ADDRESS, 120);
        self.hears(&answer(&request, ACK, ADDRESS, SERVER, 120));
    }
}

#[test]
pub fn silence_is_met_by_ever_longer_waits_and_reported() {
    let mut bed = Bed::new();
    let mut last = bed.speaks();
    let mut at = bed.now;
    for wait in [4, 8, 16, 32, 64, 64, 64] {
        let next = bed.speaks();
        let waited = bed.now.checked_sub(at).unwrap();
        assert!((secs(wait - 1)..=secs(wait + 1)).contains(&waited), "{waited:?} for {wait}");
        assert_eq!((next.kind(), next.xid), (DISCOVER, last.xid));
        assert!(next.secs > last.secs, "secs grows: some servers wait for that");
        assert!((u64::from(next.secs)..=u64::from(next.secs) + 1).contains(&bed.now.as_secs()));
        (last, at) = (next, bed.now);
    }
    assert_eq!(bed.record().trouble, Some(ClientTrouble::NoOffer));
    assert_eq!(bed.records.len(), 1, "it is reported once");
    // An offer is accepted even if no offer has come for a long time.
    bed.acquire_by(&last, ADDRESS, 120);
    assert_eq!((bed.address(), bed.record().trouble), (Some(ADDRESS), None));
}

/// An offer that the client does not prefer comes just before the next DISCOVER is due.
#[test]
pub fn while_an_offer_waits_for_a_better_one_no_discover_is_sent() {
    let wished = Ipv4Addr::new(10, 0, 0, 77);
    let mut bed = Bed::with(ClientOptions { wish: Some(wished), ..ClientOptions::default() });
    bed.speaks();
    let discover = bed.speaks();
    let due = bed.client.deadline().expect("a deadline");
    assert_eq!(bed.until(due.checked_sub(ms(100)).unwrap()), []);
    assert!(bed.hears(&answer(&discover, OFFER, ADDRESS, SERVER, 120)).is_empty());
    let request = bed.speaks();
    assert_eq!((request.kind(), request.wish()), (REQUEST, Some(ADDRESS)));
    assert!(bed.records.iter().all(|record| record.trouble.is_none()), "{:?}", bed.records);
}

#[test]
pub fn jitter_differs_between_clients() {
    let second = |seed| {
        let mut bed = Bed::of(DhcpClient::new(identity(), ClientOptions::default(), seed, ms(0)));
        (bed.speaks().xid, bed.speaks(), bed.now)
    };
    assert_ne!(second(1).0, second(2).0);
    assert_ne!(second(1).2, second(2).2);
}

#[test]
pub fn a_request_is_given_up_after_a_minute() {
    let mut bed = Bed::new();
    let discover = bed.speaks();
    let request = bed.offer(&discover, ADDRESS, 120);
    let began = bed.now;
    let mut tries = 1;
    let next = loop {
        let next = bed.speaks();
        if next.kind() == DISCOVER {
            break next;
        }
        assert_eq!((next.kind(), next.xid, next.secs), (REQUEST, request.xid, request.secs));
        tries += 1;
    };
    assert_eq!(tries, 4);
    assert!((secs(56)..=secs(64)).contains(&bed.now.checked_sub(began).unwrap()));
    assert_ne!(next.xid, request.xid);
}

#[test]
pub fn an_offer_while_requesting_is_dropped() {
    let mut bed = Bed::new();
    let discover = bed.speaks();
    let request = bed.offer(&discover, ADDRESS, 120);
    let late = answer(&discover, OFFER, SECOND, SERVER, 120);
    assert_eq!(bed.hears(&late), []);
    assert!(bed.saw(&ClientEvent::Ignored(IgnoreReason::Unasked)));
    bed.hears(&answer(&request, ACK, ADDRESS, SERVER, 120));
    assert_eq!(bed.client.state(), LeaseState::Probing);
}

#[test]
pub fn an_ack_while_selecting_is_dropped() {
    let mut bed = Bed::new();
    let discover = bed.speaks();
    for kind in [ACK, NAK] {
        assert_eq!(bed.hears(&answer(&discover, kind, ADDRESS, SERVER, 120)), []);
    }
    assert_eq!(bed.client.state(), LeaseState::Selecting);
    assert_eq!(bed.events, vec![ClientEvent::Ignored(IgnoreReason::Unasked); 2]);
}

#[test]
pub fn only_the_chosen_server_grants_or_refuses() {
    let mut bed = Bed::new();
    let discover = bed.speaks();
    let request = bed.offer(&discover, ADDRESS, 120);
    for kind in [ACK, NAK] {
        bed.hears(&answer(&request, kind, ADDRESS, OTHER, 120));
        assert_eq!(bed.client.state(), LeaseState::Requesting);
    }
    assert!(bed.saw(&ClientEvent::Ignored(IgnoreReason::OtherServer)));
    // A grant of another address than the requested one is ignored.
    bed.hears(&answer(&request, ACK, SECOND, SERVER, 120));
    assert_eq!(bed.client.state(), LeaseState::Requesting);
}

/// A server that does not reserve the addresses that it offers refuses one of two clients that send
/// a REQUEST at the same moment.
#[test]
pub fn a_refusal_is_met_by_a_short_pause_that_grows() {
    let mut bed = Bed::new();
    let mut pauses = Vec::new();
    for _ in 0..12 {
        let discover = bed.speaks();
        let request = bed.offer(&discover, ADDRESS, 120);
        bed.hears(&answer(&request, NAK, ADDRESS, SERVER, 120));
        pauses.push(bed.client.deadline().unwrap().checked_sub(bed.now).unwrap());
    }
    assert!((ms(125)..=ms(250)).contains(&pauses[0]), "{pauses:?}");
    assert!(pauses[11] >= secs(32) && pauses[11] <= secs(64), "{pauses:?}");
    assert_eq!(bed.record().trouble, Some(ClientTrouble::Refused));
    assert!(bed.saw(&ClientEvent::Nak { server: SERVER, heeded: true }));
}

#[test]
pub fn of_several_servers_the_former_one_and_its_address_are_preferred() {
    // A client that prefers no address takes the first offer at once.
    let mut bed = Bed::new();
    let discover = bed.speaks();
    assert_eq!(bed.hears(&answer(&discover, OFFER, SECOND, OTHER, 120)).len(), 1);

    let lost = || {
        let mut bed = Bed::bound(120);
        bed.until(ms(119_999));
        let discover = bed.speaks();
        assert_eq!((bed.now, bed.address()), (secs(120), None));
        assert_eq!(discover.wish(), Some(ADDRESS));
        (bed, discover)
    };
    // The second offer is for the former address. The client takes it at once.
    let (mut bed, discover) = lost();
    assert_eq!(bed.hears(&answer(&discover, OFFER, SECOND, OTHER, 120)), []);
    let request = bed.offer(&discover, ADDRESS, 120);
    assert_eq!((request.wish(), request.server()), (Some(ADDRESS), Some(SERVER)));
    // The client does not take these offers at once: the former address from another server, and
    // another address from the former server.
    for (address, server) in [(ADDRESS, OTHER), (SECOND, SERVER)] {
        let (mut bed, discover) = lost();
        assert_eq!(
            bed.hears(&answer(&discover, OFFER, Ipv4Addr::new(10, 0, 0, 99), OTHER, 120)),
            []
        );
        assert_eq!(bed.hears(&answer(&discover, OFFER, address, server, 120)), []);
        let before = bed.now;
        let request = bed.speaks();
        assert!(bed.now.checked_sub(before).unwrap() <= ms(250));
        assert_eq!((request.wish(), request.server()), (Some(address), Some(server)));
    }
}

#[test]
pub fn an_ack_that_is_not_what_was_offered_is_judged_again() {
    let mut bed = Bed::new();
    let discover = bed.speaks();
    let request = bed.offer(&discover, ADDRESS, 120);
    let ack = Answer::new(&request, ACK, ADDRESS, SERVER, 0);
    bed.hears(&ack.frame());
    assert_eq!(
        bed.record().trouble,
        Some(ClientTrouble::Unusable {
            address: ADDRESS,
            server: SERVER,
            why: "its lease time is shorter than 10 s"
        })
    );
    assert_eq!((bed.client.state(), bed.address()), (LeaseState::Selecting, None));
}

/// The client goes on to ask a server that has no free address, but after the first minute at most
/// once a minute.
#[test]
pub fn a_server_without_addresses_is_asked_for_ever() {
    let mut bed = Bed::new();
    let sent = bed.until(secs(24 * 3600));
    assert!(sent.iter().all(|seen| seen.kind() == DISCOVER));
    assert!((1300..1500).contains(&sent.len()), "{}", sent.len());
    assert_eq!(bed.records.len(), 1);
    assert_eq!(bed.client.state(), LeaseState::Selecting);
}
