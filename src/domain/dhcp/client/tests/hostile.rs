//! Hostile and broken frames.

use super::server::{Answer, DISCOVER, framed};
use super::*;
use crate::dhcp::ClientIdForm;

/// One client in each state in which a client reads answers, as (client, its last message, kind of
/// the answer that it waits for).
fn listening() -> [(Bed, Seen, u8); 4] {
    let mut selecting = Bed::new();
    let discover = selecting.speaks();
    let mut requesting = Bed::new();
    let first = requesting.speaks();
    let request = requesting.offer(&first, ADDRESS, 120);
    let mut renewing = Bed::bound(120);
    let renewal = renewing.speaks();
    let mut rebooting = Bed::resumed(90);
    let confirm = rebooting.speaks();
    [
        (selecting, discover, OFFER),
        (requesting, request, ACK),
        (renewing, renewal, ACK),
        (rebooting, confirm, ACK),
    ]
}

/// Parts of a client's state that must not change when a frame is ignored.
fn outline(bed: &Bed) -> (LeaseState, Option<GrantedLease>, Option<Duration>, usize) {
    let client = &bed.client;
    (client.state(), client.lease().cloned(), client.deadline(), bed.records.len())
}

/// Checks in each state that a spoilt answer changes nothing, and that the same answer, not spoilt,
/// changes something.
fn changes_nothing(what: &str, spoil: impl Fn(Answer) -> Vec<u8>) {
    for (mut bed, asked, kind) in listening() {
        let before = outline(&bed);
        let sound = Answer::new(&asked, kind, ADDRESS, SERVER, 120);
        assert_eq!(bed.hears(&spoil(sound.clone())), [], "{what}");
        assert_eq!(outline(&bed), before, "{what}");
        let ignored = |event: &ClientEvent| matches!(event, ClientEvent::Ignored(_));
        assert!(ignored(bed.events.last().unwrap()), "{what}: {:?}", bed.events);
        bed.hears(&sound.frame());
        assert_ne!(outline(&bed), before, "{what}: the sound one");
    }
}

/// Returns a function that sets one octet in the message of an answer. `at`: offset of this octet.
fn with_octet(at: usize, value: u8) -> impl Fn(Answer) -> Vec<u8> {
    move |answer| {
        let mut message = answer.message();
        message[at] = value;
        framed(&message, answer.from, answer.server, answer.yiaddr, answer.chaddr)
    }
}

#[test]
pub fn only_what_answers_us_is_heard() {
    changes_nothing("a request", with_octet(0, 1));
    changes_nothing("no such operation", with_octet(0, 3));
    changes_nothing("hardware other than Ethernet", with_octet(1, 6));
    for length in [0, 5, 7, 16, 17, 255] {
        changes_nothing("another length of the hardware address", with_octet(2, length));
    }
    for at in 236..240 {
        changes_nothing("a spoilt cookie", with_octet(at, 1));
    }
    changes_nothing("another hardware address", with_octet(33, 0xee));
    for at in 4..8 {
        changes_nothing("another xid", move |answer| {
            let flipped = answer.message()[at] ^ 0x80;
            with_octet(at, flipped)(answer)
        });
    }
}

#[test]
pub fn an_answer_to_another_client_identifier_is_not_ours() {
    changes_nothing("another client", |answer| answer.with(61, &[1, 2, 3]).frame());
    changes_nothing("an empty one", |answer| answer.with(61, &[]).frame());
    // The client accepts answers that repeat its client identifier, and answers without one.
    let mut bed = Bed::new();
    let discover = bed.speaks();
    let echo = identity();
    let offer = Answer::new(&discover, OFFER, ADDRESS, SERVER, 120);
    assert_eq!(bed.hears(&offer.with(61, echo.client_id.unwrap().octets()).frame()).len(), 1);
    // A client without a client identifier is recognised by its hardware address, whatever
    // identifier the answer has.
    let identity = identity().with_form(ClientIdForm::None);
    let mut bed = Bed::of(DhcpClient::new(identity, ClientOptions::default(), 1, ms(0)));
    let discover = bed.speaks();
    assert_eq!(discover.option(61), None);
    let offer = Answer::new(&discover, OFFER, ADDRESS, SERVER, 120);
    assert_eq!(bed.hears(&offer.with(61, &[1, 2, 3]).frame()).len(), 1);
}

#[test]
pub fn an_answer_without_a_server_or_a_type_is_none() {
    changes_nothing("no server", |answer| answer.without(54).frame());
    for server in [[0, 0, 0, 0], [127, 0, 0, 1], [224, 0, 0, 1], [255; 4]] {
        changes_nothing("a server that is none", |answer| {
            answer.without(54).with(54, &server).frame()
        });
    }
    changes_nothing("a server of five octets", |answer| {
        answer.without(54).with(54, &[10, 0, 0, 1, 9]).frame()
    });
    changes_nothing("two types", |answer| answer.with(53, &[5]).frame());
    for kind in [0, 1, 3, 4, 7, 8, 9, 255] {
        changes_nothing("a type that no server sends to us", |answer| {
            Answer { kind, ..answer }.frame()
        });
    }
}

#[test]
pub fn a_message_that_ends_too_early_is_none() {
    for (mut bed, asked, kind) in listening() {
        let before = outline(&bed);
        let answer = Answer::new(&asked, kind, ADDRESS, SERVER, 120);
        let whole = answer.frame();
        for length in 0..whole.len() {
            // The frame is cut, but its headers still state the full length.
            assert_eq!(bed.hears(&whole[..length]), []);
            assert_eq!(outline(&bed), before, "frame of {length}");
        }
        let message = answer.message();
        // A message that lacks only the end mark, its last octet, counts as whole.
        for length in 0..message.len() - 1 {
            let part = &message[..length];
            let frame = framed(part, answer.from, SERVER, ADDRESS, answer.chaddr);
            // A message that is cut between two options may be valid. So it is not checked here.
            let mut at = 240;
            while at < length {
                at += 2 + usize::from(message[at + 1]);
            }
            if at != length {
                assert_eq!(bed.hears(&frame), []);
                assert_eq!(outline(&bed), before, "message of {length}");
            }
        }
    }
}

#[test]
pub fn an_option_over_the_end_hides_nothing() {
    changes_nothing("a router of 200 octets", |answer| {
        let mut message = answer.message();
        message.pop();
        message.extend([6, 200, 1, 2, 3, 4]);
        framed(&message, answer.from, answer.server, answer.yiaddr, answer.chaddr)
    });
    changes_nothing("a code without a length", |answer| {
        let mut message = answer.message();
        *message.last_mut().unwrap() = 6;
        framed(&message, answer.from, answer.server, answer.yiaddr, answer.chaddr)
    });
    changes_nothing("one in a field that is overloaded", |answer| {
        let mut answer = answer.with(52, &[1]);
        answer.file = vec![7; 128];
        answer.frame()
    });
}

#[test]
pub fn large_messages_are_read_whole() {
    let mut bed = Bed::new();
    let discover = bed.speaks();
    let mut offer = Answer::new(&discover, OFFER, ADDRESS, SERVER, 120).without(54);
    for _ in 0..36 {
        offer = offer.with(43, &[0xaa; 250]);
    }
    let offer = offer.with(54, &SERVER.octets());
    assert!(offer.message().len() > 9000);
    let request = bed.hears(&offer.frame()).remove(0);
    assert_eq!(request.server(), Some(SERVER));
}

#[test]
pub fn useless_offers_are_refused_by_name() {
    let cases: [([u8; 4], u32, &str); 15] = [
        ([0, 0, 0, 0], 120, "it cannot be the address of a host"),
        ([0, 1, 2, 3], 120, "it cannot be the address of a host"),
        ([127, 0, 0, 1], 120, "it is a loopback address"),
        ([169, 254, 1, 1], 120, "it is a link-local address"),
        ([224, 0, 0, 5], 120, "it is a multicast address"),
        ([239, 255, 255, 250], 120, "it is a multicast address"),
        ([240, 0, 0, 1], 120, "it is in the reserved range 240.0.0.0/4"),
        ([255, 255, 255, 255], 120, "it is a broadcast address"),
        ([10, 0, 0, 255], 120, "it is a broadcast address"),
        ([10, 0, 0, 0], 120, "it is the address of its network"),
        ([10, 0, 0, 254], 120, "it is the gateway of its own subnet"),
        ([10, 0, 0, 1], 120, "it is the server's own address"),
        ([10, 0, 0, 20], 0, "its lease time is shorter than 10 s"),
        ([10, 0, 0, 20], 9, "its lease time is shorter than 10 s"),
        ([10, 0, 0, 20], 10, "the server offers it without a lease time"),
    ];
    for (address, seconds, why) in cases {
        let address = Ipv4Addr::from(address);
        let mut bed = Bed::new();
        let discover = bed.speaks();
        let mut offer = Answer::new(&discover, OFFER, address, SERVER, seconds);
        if why == "the server offers it without a lease time" {
            offer = offer.without(51);
        }
        assert_eq!(bed.hears(&offer.frame()), [], "{address}");
        assert!(
            bed.saw(&ClientEvent::Unusable { server: SERVER, address, why }),
            "{:?}",
            bed.events
        );
        assert_eq!(
            bed.record().trouble,
            Some(ClientTrouble::Unusable { address, server: SERVER, why })
        );
        assert_eq!((bed.client.state(), bed.address()), (LeaseState::Selecting, None));
        // The client sends a DISCOVER again, because another server may send an offer that can be
        // used.
        let next = bed.speaks();
        assert_eq!(next.kind(), DISCOVER);
        bed.acquire_by(&next, ADDRESS, 120);
        assert_eq!(bed.address(), Some(ADDRESS));
    }
}

#[test]
pub fn an_address_outside_the_allowed_subnets_is_refused() {
    let subnets = ["192.168.0.0/16", "10.0.0.16/28"].map(|net| net.parse().unwrap());
    let mut bed =
        Bed::with(ClientOptions { subnets: Arc::new(subnets), ..ClientOptions::default() });
    for address in [[8, 8, 8, 8], [10, 53, 0, 10], [10, 0, 0, 32], [10, 0, 0, 15]] {
        let (discover, address) = (bed.speaks(), Ipv4Addr::from(address));
        assert_eq!(bed.hears(&answer(&discover, OFFER, address, SERVER, 120)), []);
        let why = "it is in none of the subnets that are allowed on this network";
        assert_eq!(
            bed.record().trouble,
            Some(ClientTrouble::Unusable { address, server: SERVER, why })
        );
    }
    let said = bed.record().trouble.unwrap().to_string();
    assert!(
        said.starts_with("DHCP server 10.0.0.1 offers 10.0.0.15, which cannot be used"),
        "{said}"
    );
    bed.acquire(ADDRESS, 120);
    // The client holds an allowed address. It ignores the grant of an address that is not allowed.
    let renewal = bed.speaks();
    let foreign = answer(&renewal, ACK, Ipv4Addr::new(8, 8, 8, 8), SERVER, 120);
    assert_eq!(bed.hears(&foreign), []);
    assert_eq!(bed.address(), Some(ADDRESS));
}

/// A held lease does not end because of a grant that cannot be used.
#[test]
pub fn useless_grants_take_nothing_away() {
    for address in [[0, 0, 0, 0], [127, 0, 0, 1], [10, 0, 0, 1], [10, 0, 0, 255]] {
        let mut bed = Bed::bound(120);
        let renewal = bed.speaks();
        let before = outline(&bed);
        assert_eq!(bed.hears(&answer(&renewal, ACK, address.into(), SERVER, 120)), []);
        assert_eq!(outline(&bed), before);
    }
}

#[test]
pub fn a_flood_makes_no_flood() {
    let mut bed = Bed::new();
    let discover = bed.speaks();
    let bad = [[0, 0, 0, 0], [127, 0, 0, 1], [224, 0, 0, 1], [10, 0, 0, 255]];
    for n in 0..10_000 {
        let offer = answer(&discover, OFFER, bad[n % 4].into(), SERVER, 120);
        assert_eq!(bed.hears(&offer), []);
    }
    assert_eq!(bed.records.len(), 1);
    // Thousands of offers cause one REQUEST, and thousands of refusals cause one pause.
    let request = bed.offer(&discover, ADDRESS, 120);
    for kind in [OFFER, NAK, NAK, ACK] {
        for _ in 0..1000 {
            assert_eq!(bed.hears(&answer(&request, kind, ADDRESS, SERVER, 120)), []);
        }
    }
    assert_eq!((bed.client.naks, bed.records.len()), (1, 1));
}

#[test]
pub fn an_infinite_lease_is_one_and_the_longest_finite_one_is_not() {
    for (seconds, expires) in [(u32::MAX, None), (u32::MAX - 1, Some(secs(4_294_967_294)))] {
        let bed = Bed::bound(seconds);
        assert_eq!(bed.lease().expires, expires);
    }
}

#[test]
pub fn another_host_with_our_hardware_address_is_noticed() {
    let mut other = Bed::of(DhcpClient::new(identity(), ClientOptions::default(), 99, ms(0)));
    let theirs = other.client.poll(ms(0));
    let mut bed = Bed::new();
    let ours = bed.client.poll(ms(0));
    let frame = |out: &[ClientAction]| match out {
        [ClientAction::Send(frame)] => frame.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(bed.hears(&frame(&ours)), [], "our own may come back");
    assert!(!bed.events.iter().any(|event| matches!(event, ClientEvent::Duplicate { .. })));
    bed.hears(&frame(&theirs));
    assert!(bed.saw(&ClientEvent::Duplicate { from: identity().mac }));
    // A client with another hardware address is not a duplicate.
    let third = ClientIdentity::derive("cluster", "default/net", "default", "third");
    let third = DhcpClient::new(third, ClientOptions::default(), 1, ms(0)).poll(ms(0));
    bed.events.clear();
    bed.hears(&frame(&third));
    assert_eq!(bed.events, [ClientEvent::Ignored(IgnoreReason::NotOurs)]);
}

/// A server on the same host sends no valid UDP checksum, because no network card computes the
/// checksum.
#[test]
pub fn a_wrong_checksum_of_udp_does_not_matter_and_one_of_ipv4_does() {
    let mut bed = Bed::new();
    let discover = bed.speaks();
    let mut offer = answer(&discover, OFFER, ADDRESS, SERVER, 120);
    offer[40..42].copy_from_slice(&[0x12, 0x34]);
    let mut spoilt = offer.clone();
    spoilt[24] ^= 1;
    assert_eq!(bed.hears(&spoilt), []);
    assert_eq!(bed.hears(&offer).len(), 1);
}

#[test]
pub fn options_in_other_fields_and_in_parts_are_read() {
    let mut bed = Bed::new();
    let discover = bed.speaks();
    // The fields `file` and `sname` contain the server, the lease time and the mask. The lease time
    // is split into two parts.
    let mut offer = Answer::new(&discover, OFFER, ADDRESS, SERVER, 120).without(54).without(51);
    offer = offer.without(1).with(51, &[0, 0]).with(52, &[3]);
    offer.file = [&[54, 4][..], &SERVER.octets(), &[51, 2, 0, 120, 255]].concat();
    offer.sname = vec![0, 1, 4, 255, 255, 255, 0, 255];
    let request = bed.hears(&offer.frame()).remove(0);
    assert_eq!((request.wish(), request.server()), (Some(ADDRESS), Some(SERVER)));
    let ack = Answer { kind: ACK, xid: request.xid, ..offer };
    bed.hears(&ack.frame());
    while bed.client.state() == LeaseState::Probing {
        bed.passes();
    }
    assert_eq!((bed.lease().seconds, bed.lease().prefix), (Some(120), Some(24)));
}
