//! ARP probes of a fresh address.

use super::server::{DECLINE, DISCOVER, arp};
use super::*;

const NEIGHBOUR: Mac = Mac([2, 0, 0, 0, 0, 0x77]);
const NONE: Ipv4Addr = Ipv4Addr::UNSPECIFIED;

/// Client that will probe an address that was just granted.
fn granted(probe: ProbeTiming) -> Bed {
    let mut bed = Bed::with(ClientOptions { probe, ..ClientOptions::default() });
    let discover = bed.speaks();
    let request = bed.offer(&discover, ADDRESS, 3600);
    bed.hears(&answer(&request, ACK, ADDRESS, SERVER, 3600));
    assert_eq!(bed.client.state(), LeaseState::Probing);
    bed
}

#[test]
pub fn three_questions_are_asked_without_claiming_the_address() {
    for (probe, first, gap, whole) in [
        (ProbeTiming::RFC_5227, secs(1), secs(1)..=secs(2), secs(4)..=secs(7)),
        (ProbeTiming::QUICK, ms(20), ms(140)..=ms(160), ms(430)..=ms(490)),
    ] {
        let mut bed = granted(probe);
        while bed.client.state() == LeaseState::Probing {
            bed.passes();
        }
        let at: Vec<Duration> = bed.probes.iter().map(|(at, _)| *at).collect();
        assert_eq!(at.len(), 3);
        assert!(
            at[0] <= first
                && gap.contains(&at[1].checked_sub(at[0]).unwrap())
                && gap.contains(&at[2].checked_sub(at[1]).unwrap())
        );
        assert!(whole.contains(&bed.now), "{:?}", bed.now);
        assert_eq!(bed.now.checked_sub(at[2]).unwrap(), probe.wait);
        let mac = identity().mac;
        let mut expected = arp(true, mac, NONE, ADDRESS);
        assert_eq!(bed.probes[0].1, expected);
        expected[28..32].copy_from_slice(&ADDRESS.octets());
        // The client never announces the address, because a guest or kube-vip does.
        assert!(bed.probes.iter().all(|(_, frame)| *frame != expected));
    }
}

#[test]
pub fn an_address_that_a_host_has_or_probes_is_declined() {
    for frame in [
        arp(false, NEIGHBOUR, ADDRESS, NONE),
        arp(true, NEIGHBOUR, ADDRESS, SECOND),
        arp(true, NEIGHBOUR, NONE, ADDRESS),
    ] {
        let mut bed = granted(ProbeTiming::QUICK);
        bed.passes();
        let declines = bed.hears(&frame);
        let decline = &declines[0];
        assert_eq!((declines.len(), decline.kind()), (1, DECLINE));
        assert!(decline.is_broadcast());
        assert_eq!((decline.wish(), decline.server()), (Some(ADDRESS), Some(SERVER)));
        assert_eq!((decline.ciaddr, decline.from), (NONE, NONE));
        for code in [51, 55, 12, 57, 60] {
            assert_eq!(decline.option(code), None, "option {code}");
        }
        assert!(bed.saw(&ClientEvent::Declined {
            address: ADDRESS,
            by: NEIGHBOUR,
            server: SERVER_MAC
        }));
        assert_eq!(bed.record().trouble, Some(ClientTrouble::AddressInUse(NEIGHBOUR)));
        assert!(bed.records.iter().all(|record| record.lease.is_none()));
        assert_eq!(bed.address(), None);
    }
}

#[test]
pub fn what_does_not_dispute_the_address_does_not_matter() {
    let mut bed = granted(ProbeTiming::QUICK);
    bed.passes();
    for frame in [
        arp(true, NEIGHBOUR, SECOND, ADDRESS),
        arp(false, NEIGHBOUR, SECOND, ADDRESS),
        arp(true, NEIGHBOUR, NONE, SECOND),
        arp(true, identity().mac, NONE, ADDRESS),
        arp(false, identity().mac, ADDRESS, ADDRESS),
    ] {
        assert_eq!(bed.hears(&frame), []);
        assert_eq!(bed.client.state(), LeaseState::Probing);
    }
}

#[test]
pub fn after_a_conflict_ten_seconds_pass_and_after_ten_an_hour() {
    let mut bed = granted(ProbeTiming::QUICK);
    let mut pauses = Vec::new();
    for n in 1..=12_u8 {
        bed.hears(&arp(false, NEIGHBOUR, Ipv4Addr::new(10, 0, 0, 19 + n), NONE));
        let before = bed.now;
        let discover = bed.speaks();
        pauses.push(bed.now.checked_sub(before).unwrap());
        let next = Ipv4Addr::new(10, 0, 0, 20 + n);
        let request = bed.offer(&discover, next, 3600);
        bed.hears(&answer(&request, ACK, next, SERVER, 3600));
    }
    assert_eq!(pauses[..9], [secs(10); 9]);
    assert_eq!(pauses[9..], [secs(3600); 3]);
    assert_eq!(bed.record().trouble, Some(ClientTrouble::TooManyInUse(NEIGHBOUR)));
}

#[test]
pub fn nothing_is_declined_on_the_word_of_a_station_that_answers_for_all() {
    let mut bed = granted(ProbeTiming::QUICK);
    bed.client.set_proxy(Some(NEIGHBOUR));
    bed.passes();
    assert_eq!(bed.hears(&arp(false, NEIGHBOUR, ADDRESS, NONE)), []);
    assert_eq!(bed.record().trouble, Some(ClientTrouble::AnswersForAll(NEIGHBOUR)));
    assert_eq!(bed.address(), None, "it may be another's");
    // The client sends a DISCOVER after a minute. Now a second station also has the address.
    let before = bed.now;
    let discover = bed.speaks();
    assert_eq!((discover.kind(), bed.now.checked_sub(before).unwrap()), (DISCOVER, secs(60)));
    let request = bed.offer(&discover, ADDRESS, 3600);
    bed.hears(&answer(&request, ACK, ADDRESS, SERVER, 3600));
    let other = Mac([2, 0, 0, 0, 0, 0x78]);
    assert_eq!(bed.hears(&arp(false, other, ADDRESS, NONE))[0].kind(), DECLINE);
    // When no station answers ARP for all addresses any more, the client uses the address that the
    // server grants.
    bed.client.set_proxy(None);
    bed.acquire(SECOND, 3600);
    assert_eq!(bed.address(), Some(SECOND));
    assert!(bed.saw(&ClientEvent::Undisputed));
}

#[test]
pub fn an_address_that_we_may_be_announcing_is_never_probed() {
    // The lease has expired, and the address is granted again. The client does not probe the
    // address, because the guest that had this address may answer.
    let mut bed = Bed::bound(120);
    bed.until(ms(119_999));
    bed.client.options.probe = ProbeTiming::QUICK;
    bed.acquire(ADDRESS, 120);
    assert_eq!((bed.address(), bed.probes.len()), (Some(ADDRESS), 0));

    // After a restart, the address is not probed either, no matter how long ago the lease expired
    // by the wall clock.
    let mut bed = Bed::resumed(0);
    bed.acquire(ADDRESS, 120);
    assert_eq!((bed.address(), bed.probes.len()), (Some(ADDRESS), 0));

    // Another address is new to the client, so it is probed.
    let mut bed = Bed::resumed(0);
    let discover = bed.speaks();
    assert_eq!(bed.hears(&answer(&discover, OFFER, SECOND, SERVER, 120)), []);
    let request = bed.speaks();
    bed.hears(&answer(&request, ACK, SECOND, SERVER, 120));
    assert_eq!(bed.client.state(), LeaseState::Probing);

    // The former address is granted more than five minutes after its loss. The client probes the
    // address, because no announcer of this client has the address any more.
    let mut bed = Bed::resumed(0);
    bed.until(secs(301));
    let discover = bed.speaks();
    assert_eq!(discover.wish(), Some(ADDRESS));
    let request = bed.offer(&discover, ADDRESS, 120);
    bed.hears(&answer(&request, ACK, ADDRESS, SERVER, 120));
    assert_eq!(bed.client.state(), LeaseState::Probing);
}

/// An ARP answer for a held address causes no DECLINE, because the address's announcer may have
/// sent it.
#[test]
pub fn a_held_address_is_never_declined() {
    let mut bed = Bed::bound(120);
    let before = bed.client.state();
    assert_eq!(bed.hears(&arp(false, NEIGHBOUR, ADDRESS, NONE)), []);
    assert_eq!((bed.client.state(), bed.address()), (before, Some(ADDRESS)));
}
