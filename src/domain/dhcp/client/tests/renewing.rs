//! Renewal and rebinding of a held address.

use super::server::{Answer, DISCOVER, NAK, REQUEST};
use super::*;

/// Client whose clock is one millisecond before T2.
fn rebinding(seconds: u32) -> Bed {
    let mut bed = Bed::bound(seconds);
    let rebind = bed.lease().rebind.unwrap();
    bed.until(rebind.checked_sub(ms(1)).unwrap());
    bed
}

#[test]
pub fn t1_asks_its_server_alone_in_the_form_of_a_restart() {
    let mut bed = Bed::bound(120);
    let renewal = bed.speaks();
    assert!((secs(36)..=secs(60)).contains(&bed.now), "{:?}", bed.now);
    assert_eq!(bed.client.state(), LeaseState::Renewing);
    assert!(renewal.confirms());
    assert_eq!((renewal.kind(), renewal.wish(), renewal.server()), (REQUEST, Some(ADDRESS), None));
    assert_eq!(
        (renewal.ciaddr, renewal.from, renewal.to),
        (Ipv4Addr::UNSPECIFIED, ADDRESS, SERVER)
    );
    assert_eq!(renewal.destination, SERVER_MAC);
    let asked = bed.now;
    bed.now += ms(700);
    bed.hears(&answer(&renewal, ACK, ADDRESS, SERVER, 120));
    assert_eq!(bed.client.state(), LeaseState::Bound);
    let lease = bed.lease();
    // The lease time counts from the REQUEST, not from the answer.
    assert_eq!((lease.granted, lease.expires), (asked, Some(asked + secs(120))));
    assert_eq!(lease.obtained, ms(0));
    assert!(bed.saw(&ClientEvent::Renewed { server: SERVER, took: ms(700) }));
    assert_eq!(bed.record().lease.as_ref(), Some(&lease));
    assert_ne!(bed.speaks().xid, renewal.xid);
}

#[test]
pub fn a_server_behind_a_router_is_asked_by_all_hearing() {
    let mut bed = Bed::with(ClientOptions { probe: ProbeTiming::OFF, ..ClientOptions::default() });
    let far = Ipv4Addr::new(192, 168, 7, 1);
    let discover = bed.speaks();
    let request = bed.hears(&answer(&discover, OFFER, ADDRESS, far, 120)).remove(0);
    bed.hears(&answer(&request, ACK, ADDRESS, far, 120));
    let renewal = bed.speaks();
    assert!(renewal.confirms() && renewal.is_broadcast() && renewal.from.is_unspecified());
    assert!((secs(36)..=secs(60)).contains(&bed.now));
}

#[test]
pub fn a_silent_server_is_asked_twice_alone_then_all_are() {
    let mut bed = Bed::bound(3600);
    let (renew, rebind) = (bed.lease().renew, bed.lease().rebind.unwrap());
    let mut at = Vec::new();
    while bed.client.deadline().unwrap() < rebind {
        let renewal = bed.speaks();
        assert!(renewal.confirms());
        assert_eq!(renewal.is_broadcast(), at.len() >= 2);
        at.push(bed.now);
    }
    assert_eq!((at[0], bed.client.state()), (renew, LeaseState::Renewing));
    // Each pause is half of the time until T2, and at least a minute.
    for pair in at.windows(2) {
        let half = rebind.checked_sub(pair[0]).unwrap() / 2;
        assert_eq!(pair[1].checked_sub(pair[0]).unwrap(), half.max(secs(60)), "{at:?}");
    }
    assert!(rebind.checked_sub(*at.last().unwrap()).unwrap() <= secs(60));
}

#[test]
pub fn short_leases_are_asked_for_more_often() {
    let mut bed = Bed::bound(40);
    let mut at = Vec::new();
    while bed.address().is_some() {
        if bed.passes().iter().any(Seen::confirms) {
            at.push(bed.now);
        }
    }
    assert!(at.len() >= 5, "{at:?}");
    let far =
        |pair: &[Duration]| pair[1].checked_sub(pair[0]).unwrap() >= secs(2) || pair[1] == secs(35);
    assert!(at.windows(2).all(far), "{at:?}");
}

#[test]
pub fn from_t2_on_any_server_may_answer() {
    let mut bed = rebinding(3600);
    let first = bed.speaks_all();
    assert_eq!((bed.now, bed.client.state()), (secs(3150), LeaseState::Rebinding));
    assert!(first[0].confirms() && first[0].is_broadcast() && first[0].ciaddr.is_unspecified());
    assert_eq!(bed.record().trouble, Some(ClientTrouble::ServerSilent));
    assert_eq!((bed.record().state, bed.address()), (LeaseState::Rebinding, Some(ADDRESS)));
    bed.hears(&answer(&first[0], ACK, ADDRESS, OTHER, 7200));
    assert_eq!((bed.client.state(), bed.lease().server), (LeaseState::Bound, OTHER));
    assert!(bed.saw(&ClientEvent::ServerChanged { from: SERVER, to: OTHER }));
    assert_eq!(bed.record().trouble, None);
}

/// A server that has no data about the lease may ignore the REQUEST. But it may offer the same
/// address in answer to a DISCOVER.
#[test]
pub fn from_t2_on_the_same_address_is_also_looked_for() {
    let mut bed = rebinding(3600);
    let both = bed.speaks_all();
    let discover = both.iter().find(|seen| seen.kind() == DISCOVER).expect("a DISCOVER");
    assert_eq!((discover.wish(), discover.server()), (Some(ADDRESS), None));
    // An offer of another address is of no use while the client holds an address.
    assert_eq!(bed.hears(&answer(discover, OFFER, SECOND, OTHER, 3600)), []);
    let request = bed.hears(&answer(discover, OFFER, ADDRESS, OTHER, 3600)).remove(0);
    assert_eq!((request.xid, request.server()), (discover.xid, Some(OTHER)));
    // Only the server whose offer the client took may grant the address.
    bed.hears(&answer(&request, ACK, ADDRESS, Ipv4Addr::new(10, 0, 0, 3), 3600));
    assert_eq!(bed.client.state(), LeaseState::Rebinding);
    bed.hears(&answer(&request, ACK, ADDRESS, OTHER, 3600));
    assert_eq!((bed.client.state(), bed.lease().server), (LeaseState::Bound, OTHER));
    assert!(!bed.events.iter().any(|event| matches!(event, ClientEvent::Lost { .. })));
}

#[test]
pub fn every_answer_sets_all_times_anew() {
    let mut bed = Bed::bound(40);
    for seconds in [35, 40, 30, 3600, 20] {
        let renewal = bed.speaks();
        bed.hears(&answer(&renewal, ACK, ADDRESS, SERVER, seconds));
        let (lease, granted) = (bed.lease(), bed.now);
        let whole = secs(seconds.into());
        assert_eq!(lease.expires, Some(granted + whole));
        assert_eq!(lease.rebind, Some(granted + whole * 7 / 8));
        assert!(lease.renew <= granted + whole / 2 && lease.renew >= granted + whole / 2 * 3 / 5);
    }
}

#[test]
pub fn a_changed_subnet_or_gateway_is_recorded() {
    let mut bed = Bed::bound(120);
    let renewal = bed.speaks();
    let ack = Answer::new(&renewal, ACK, ADDRESS, SERVER, 120).without(1).without(3);
    bed.hears(&ack.with(1, &[255, 255, 0, 0]).with(3, &[10, 0, 9, 9]).frame());
    let lease = bed.record().lease.clone().unwrap();
    assert_eq!((lease.prefix, lease.gateway), (Some(16), Some(Ipv4Addr::new(10, 0, 9, 9))));
}

#[test]
pub fn another_address_is_a_loss_then_a_fresh_one() {
    let mut bed = Bed::bound(120);
    bed.client.options.probe = ProbeTiming::QUICK;
    let renewal = bed.speaks();
    bed.hears(&answer(&renewal, ACK, SECOND, SERVER, 120));
    assert_eq!((bed.client.state(), bed.address()), (LeaseState::Probing, None));
    assert!(bed.saw(&ClientEvent::Lost { address: ADDRESS, why: ClientTrouble::Changed }));
    assert_eq!(
        (bed.record().lease.is_none(), bed.record().trouble),
        (true, Some(ClientTrouble::Changed))
    );
    while bed.client.state() == LeaseState::Probing {
        bed.passes();
    }
    assert_eq!((bed.address(), bed.probes.len()), (Some(SECOND), 3));
    assert_eq!(bed.lease().obtained, bed.lease().granted);
}

#[test]
pub fn the_lease_s_own_server_may_take_it_back() {
    let mut bed = Bed::bound(120);
    let renewal = bed.speaks();
    bed.hears(&answer(&renewal, NAK, ADDRESS, SERVER, 0));
    assert_eq!((bed.client.state(), bed.address()), (LeaseState::Lost, None));
    assert_eq!(
        (bed.record().lease.is_none(), bed.record().trouble),
        (true, Some(ClientTrouble::Refused))
    );
    let before = bed.now;
    let discover = bed.speaks();
    assert!((ms(125)..=ms(250)).contains(&bed.now.checked_sub(before).unwrap()));
    assert_eq!((discover.kind(), discover.wish()), (DISCOVER, Some(ADDRESS)));
}

#[test]
pub fn another_server_s_refusal_does_not_count_while_its_own_may_answer() {
    let mut bed = Bed::bound(3600);
    let rebind = bed.lease().rebind.unwrap();
    while bed.client.deadline().unwrap() < rebind {
        let renewal = bed.speaks();
        bed.hears(&answer(&renewal, NAK, ADDRESS, OTHER, 0));
        assert_eq!(bed.address(), Some(ADDRESS), "at {:?}", bed.now);
    }
    assert!(bed.saw(&ClientEvent::Nak { server: OTHER, heeded: false }));
    // T2 has passed, and the server of the lease has not answered since T1.
    let confirm = bed.speaks_all().remove(0);
    bed.hears(&answer(&confirm, NAK, ADDRESS, OTHER, 0));
    assert_eq!(bed.address(), None);
    assert!(bed.saw(&ClientEvent::Nak { server: OTHER, heeded: true }));
}

/// Another server's grant counts before T2 only after the server of the lease was asked and did not
/// answer.
#[test]
pub fn another_server_s_grant_counts_after_its_own_was_silent() {
    let mut bed = Bed::bound(3600);
    for n in 1..=4 {
        let renewal = bed.speaks();
        bed.hears(&answer(&renewal, ACK, ADDRESS, OTHER, 3600));
        let taken = bed.client.state() == LeaseState::Bound;
        assert_eq!(taken, n == 4, "question {n}");
    }
}

#[test]
pub fn an_answer_may_be_slower_than_the_next_question() {
    let mut bed = Bed::bound(120);
    let first = bed.speaks();
    let asked = bed.now;
    bed.speaks();
    bed.hears(&answer(&first, ACK, ADDRESS, SERVER, 120));
    assert_eq!((bed.client.state(), bed.lease().granted), (LeaseState::Bound, asked));
}

#[test]
pub fn a_lease_without_end_is_asked_after_daily_and_kept() {
    let mut bed = Bed::bound(u32::MAX);
    let lease = bed.lease();
    assert_eq!((lease.seconds, lease.rebind, lease.expires), (None, None, None));
    let first = bed.speaks();
    assert!((secs(23 * 3600)..=secs(24 * 3600)).contains(&bed.now), "{:?}", bed.now);
    assert!(first.confirms());
    let sent = bed.until(secs(366 * 86_400));
    assert!(sent.len() < 24 * 366 && sent.iter().all(Seen::confirms));
    assert_eq!(bed.address(), Some(ADDRESS));
    let confirm = bed.speaks();
    bed.hears(&answer(&confirm, ACK, ADDRESS, SERVER, 120));
    assert_eq!(bed.lease().expires, Some(bed.now + secs(120)));
}

#[test]
pub fn an_answer_that_cannot_be_used_changes_nothing() {
    let mut bed = Bed::bound(120);
    let (renewal, before) = (bed.speaks(), bed.lease());
    for seconds in [0, 1, 9] {
        bed.hears(&answer(&renewal, ACK, ADDRESS, SERVER, seconds));
    }
    bed.hears(&answer(&renewal, ACK, Ipv4Addr::LOCALHOST, SERVER, 120));
    assert_eq!((bed.lease(), bed.client.state()), (before, LeaseState::Renewing));
    let unusable = |event: &&ClientEvent| matches!(event, ClientEvent::Unusable { .. });
    assert_eq!(bed.events.iter().filter(unusable).count(), 4);
}

/// Another agent may act for the same client while the leader is unknown. Then the agent sends only
/// messages that extend a lease, because other messages could do harm.
#[test]
fn a_client_renews_while_it_may_use_its_address_and_asks_for_time() {
    let mut bed = Bed::with(ClientOptions::default());
    assert!(!bed.client.renews(), "it waits");
    bed.speaks();
    assert!(!bed.client.renews(), "a DISCOVER");
    let mut bed = Bed::bound(120);
    assert!(!bed.client.renews(), "it says nothing");
    bed.speaks();
    assert!(bed.client.renews());
    let end = bed.lease().expires.unwrap();
    bed.until(end);
    assert!(!bed.client.renews(), "it is over");
    let mut bed = Bed::bound(120);
    bed.client.release(bed.now);
    assert!(!bed.client.renews(), "a RELEASE");
}
