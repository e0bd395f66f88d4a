//! Tests of the end of a lease, and of links that go down and up.

use super::server::{DISCOVER, RELEASE, REQUEST};
use super::*;

#[test]
pub fn a_release_names_the_lease_and_nothing_else() {
    let mut bed = Bed::bound(120);
    let mut sent = bed.release();
    assert!(!bed.done && bed.address().is_none());
    sent.extend(bed.speaks_all());
    assert_eq!((sent.len(), bed.now), (2, secs(1)));
    for release in &sent {
        assert_eq!((release.kind(), release.ciaddr, release.from), (RELEASE, ADDRESS, ADDRESS));
        assert_eq!((release.destination, release.to), (SERVER_MAC, SERVER));
        assert_eq!((release.server(), release.secs, release.flags), (Some(SERVER), 0, 0));
        assert_eq!(
            release.option(61),
            identity().client_id.as_ref().map(crate::dhcp::ClientId::octets)
        );
        for code in [50, 51, 55, 57, 12] {
            assert_eq!(release.option(code), None, "option {code}");
        }
    }
    assert!(bed.done && bed.saw(&ClientEvent::Released { address: ADDRESS }));
    assert_eq!((bed.record().state, bed.record().lease.is_none()), (LeaseState::Released, true));
    assert_eq!(bed.client.deadline(), None);
    assert_eq!(bed.hears(&answer(&sent[0], OFFER, ADDRESS, SERVER, 120)), []);
}

#[test]
pub fn who_has_nothing_or_cannot_speak_is_done_at_once() {
    let mut bed = Bed::new();
    bed.speaks();
    assert_eq!((bed.release(), bed.done), (vec![], true));
    let mut bed = Bed::bound(120);
    bed.set_link(false);
    assert_eq!((bed.release(), bed.done), (vec![], true));
    // An address that is being probed is already granted, so it is given back.
    let mut bed = Bed::new();
    bed.acquire_to_probe();
    assert_eq!(bed.release()[0].kind(), RELEASE);
    // The host was suspended during the probe, until the lease had expired.
    let mut bed = Bed::new();
    bed.acquire_to_probe();
    bed.now = secs(120);
    assert_eq!((bed.release(), bed.done), (vec![], true));
}

impl Bed {
    fn acquire_to_probe(&mut self) {
        let discover = self.speaks();
        let request = self.offer(&discover, ADDRESS, 120);
        self.hears(&answer(&request, ACK, ADDRESS, SERVER, 120));
        assert_eq!(self.client.state(), LeaseState::Probing);
    }
}

/// ARP probes are off, so the second RELEASE is put off without questions. An address whose lease
/// has expired by then may be another client's.
#[test]
pub fn a_release_that_is_put_off_for_longer_than_the_lease_is_not_sent() {
    for (until, sent) in [(secs(119), vec![RELEASE]), (secs(120), vec![])] {
        let mut bed = Bed::bound(120);
        bed.release();
        for until in [secs(60), until] {
            bed.client.put_off_release(until);
            assert_eq!(bed.client.deadline(), Some(until));
        }
        let kinds: Vec<u8> = bed.passes().iter().map(Seen::kind).collect();
        assert_eq!((kinds, bed.now, bed.done), (sent, until, true));
    }
}

/// Only `release` gives the address back. No RELEASE is sent when the process exits, or while the
/// client's link is down.
#[test]
pub fn nothing_but_release_releases() {
    let mut bed = Bed::bound(120);
    bed.set_link(false);
    bed.until(secs(600));
    bed.set_link(true);
    bed.until(secs(1200));
    assert!(bed.messages.iter().all(|seen| seen.kind() != RELEASE));
}

#[test]
pub fn with_the_link_down_nothing_is_said_and_the_lease_runs_on() {
    // The link is down for half of the lease time. The client confirms the address when the link is
    // up again.
    let mut bed = Bed::bound(120);
    bed.now = secs(10);
    assert_eq!(bed.set_link(false), []);
    assert_eq!(bed.client.listening(), FrameFilter::Nothing);
    assert_eq!(bed.client.deadline(), Some(secs(120)));
    assert_eq!(bed.until(secs(70)), []);
    assert_eq!(bed.address(), Some(ADDRESS));
    assert_eq!(bed.set_link(true), []);
    let confirm = bed.speaks();
    assert_eq!(
        (bed.now, confirm.confirms(), bed.client.state()),
        (secs(70), true, LeaseState::Rebooting)
    );
    bed.hears(&answer(&confirm, ACK, ADDRESS, SERVER, 120));
    assert_eq!(bed.lease().expires, Some(secs(190)));

    // The link is down for longer than the lease time. The client gives up the address when the
    // lease expires, and requests it when the link is up again.
    bed.set_link(false);
    assert_eq!(bed.until(secs(400)), []);
    assert_eq!((bed.address(), bed.record().trouble), (None, Some(ClientTrouble::Expired)));
    bed.set_link(true);
    let discover = bed.speaks();
    assert_eq!((bed.now, discover.kind(), discover.wish()), (secs(400), DISCOVER, Some(ADDRESS)));
}

#[test]
pub fn what_was_under_way_begins_anew_when_the_link_is_back() {
    let mut bed = Bed::new();
    let discover = bed.speaks();
    bed.offer(&discover, ADDRESS, 120);
    bed.set_link(false);
    assert_eq!(bed.client.deadline(), None);
    assert_eq!(bed.hears(&answer(&discover, ACK, ADDRESS, SERVER, 120)), []);
    bed.now = secs(50);
    bed.set_link(true);
    let anew = bed.speaks();
    assert_eq!((anew.kind(), anew.secs, bed.now), (DISCOVER, 0, secs(50)));
    assert_ne!(anew.xid, discover.xid);
}

#[test]
pub fn an_address_is_given_up_when_its_time_is_over() {
    let mut bed = Bed::bound(120);
    bed.until(ms(119_999));
    assert_eq!(bed.address(), Some(ADDRESS));
    bed.until(secs(120));
    assert_eq!(bed.address(), None);
    assert!(bed.saw(&ClientEvent::Lost { address: ADDRESS, why: ClientTrouble::Expired }));
    let record = bed.record();
    assert_eq!((record.state, record.lease.is_none()), (LeaseState::Lost, true));
    let discover = bed.speaks();
    assert_eq!((discover.kind(), discover.wish()), (DISCOVER, Some(ADDRESS)));
}

/// The host was suspended until the lease had expired. The client notices the expiry before it
/// handles the answer.
#[test]
pub fn a_late_answer_does_not_revive_a_lease() {
    let mut bed = Bed::bound(120);
    let renewal = bed.speaks();
    bed.now = secs(121);
    bed.hears(&answer(&renewal, ACK, ADDRESS, SERVER, 120));
    assert_eq!((bed.client.state(), bed.address()), (LeaseState::Lost, None));
    let sent = bed.passes();
    assert_eq!((sent.len(), sent[0].kind()), (1, DISCOVER));
}

#[test]
pub fn a_clock_that_runs_backwards_is_taken_to_stand_still() {
    let mut bed = Bed::bound(120);
    assert_eq!(bed.client.poll(secs(20)), []);
    assert_eq!(bed.client.poll(secs(0)), []);
    assert_eq!(bed.client.set_link(false, secs(0)), []);
    bed.client.set_link(true, secs(0));
    assert_eq!(bed.client.deadline(), Some(secs(20)));
    let confirm = bed.speaks();
    assert_eq!(confirm.kind(), REQUEST);
    bed.hears(&answer(&confirm, ACK, ADDRESS, SERVER, 120));
    assert_eq!(bed.lease().expires, Some(secs(140)));
}
