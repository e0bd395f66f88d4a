//! Tests of the announcers of an address, and of announcers that still announce an address after
//! its loss.

use super::server::{DECLINE, DISCOVER, RELEASE, arp};
use super::*;

const GUEST: Mac = Mac([2, 0, 0, 0, 0, 0x55]);
const NODE: Mac = Mac([2, 0, 0, 0, 0, 0x56]);
const NONE: Ipv4Addr = Ipv4Addr::UNSPECIFIED;

/// Client that has leased an address for one hour. The address is published.
fn published() -> Bed {
    let mut bed = Bed::new();
    bed.acquire(ADDRESS, 3600);
    bed.probes.clear();
    bed
}

/// The client of `published`, after a guest has announced the address.
fn announced() -> Bed {
    let mut bed = published();
    bed.asks();
    bed.hears(&arp(false, GUEST, ADDRESS, NONE));
    assert_eq!(bed.record().announced.as_ref().unwrap().by, [GUEST]);
    bed
}

impl Bed {
    /// Advances the clock until the client sends its next ARP question.
    fn asks(&mut self) {
        let before = self.probes.len();
        for _ in 0..1000 {
            if self.probes.len() > before {
                return;
            }
            self.passes();
        }
        panic!("the client asks nothing");
    }
}

#[test]
pub fn who_announces_a_published_address_is_asked_and_recorded() {
    let mut bed = published();
    assert_eq!(bed.until(secs(29)), []);
    assert_eq!((bed.probes.len(), bed.client.listening()), (0, FrameFilter::Nothing));
    bed.asks();
    assert!(bed.now <= secs(32) && bed.client.listening() == FrameFilter::DhcpAndArp);
    let before = bed.records.len();
    // A frame of the client itself, and an answer about another address, are ignored.
    bed.hears(&arp(false, identity().mac, ADDRESS, NONE));
    bed.hears(&arp(false, GUEST, SECOND, NONE));
    assert_eq!(bed.records.len(), before);
    bed.hears(&arp(false, GUEST, ADDRESS, NONE));
    assert_eq!(
        bed.record().announced,
        Some(AnnouncedAddress { address: ADDRESS, by: vec![GUEST] })
    );
    assert_eq!(
        (bed.client.state(), bed.client.listening()),
        (LeaseState::Bound, FrameFilter::Nothing)
    );
    // The client asks about the announcer again after each renewal. The announcer has moved to
    // another node meanwhile.
    let renewal = bed.speaks();
    bed.hears(&answer(&renewal, ACK, ADDRESS, SERVER, 3600));
    let before = bed.now;
    bed.asks();
    assert!(bed.now.checked_sub(before).unwrap() <= secs(1));
    bed.hears(&arp(false, NODE, ADDRESS, NONE));
    assert_eq!(bed.record().announced.as_ref().unwrap().by, [NODE, GUEST]);
}

/// No record is written if no station answers the ARP question. The next question follows only
/// after a renewal.
#[test]
pub fn silence_about_a_published_address_ends_the_question() {
    let mut bed = published();
    bed.until(secs(60));
    assert_eq!((bed.probes.len(), bed.client.listening()), (1, FrameFilter::Nothing));
    assert_eq!(bed.client.deadline(), Some(bed.lease().renew));
}

#[test]
pub fn an_address_that_its_own_announcer_has_is_taken_again() {
    for (station, declined) in [(GUEST, false), (NODE, true)] {
        let mut bed = announced();
        // No server answers until long after the lease has expired.
        bed.until(secs(3600 + 1000));
        assert_eq!(bed.address(), None);
        let discover = bed.speaks();
        let request = bed.offer(&discover, ADDRESS, 3600);
        bed.hears(&answer(&request, ACK, ADDRESS, SERVER, 3600));
        assert_eq!(bed.client.state(), LeaseState::Probing);
        bed.passes();
        let said = bed.hears(&arp(false, station, ADDRESS, NONE));
        assert_eq!(said.first().map(Seen::kind), declined.then_some(DECLINE));
        assert_eq!(bed.address(), (!declined).then_some(ADDRESS), "{station}");
    }
}

#[test]
pub fn a_lost_address_that_is_still_announced_is_reported() {
    let mut bed = announced();
    bed.until(secs(3600));
    assert_eq!(bed.record().trouble, Some(ClientTrouble::Expired));
    let asked = bed.probes.len();
    bed.asks();
    // A station that did not announce the address before may be a host that has got the address
    // since. Such a station is not reported.
    bed.hears(&arp(false, NODE, ADDRESS, NONE));
    assert_eq!(bed.record().still_announced, None);
    bed.hears(&arp(false, GUEST, ADDRESS, NONE));
    assert_eq!(bed.record().still_announced, Some((ADDRESS, GUEST)));
    assert!(bed.saw(&ClientEvent::StillAnnounced { address: ADDRESS, by: GUEST }));
    // The announcer is reported once, even if it answers several times. The report ends after three
    // questions without an answer.
    let records = bed.records.len();
    bed.asks();
    bed.hears(&arp(false, GUEST, ADDRESS, NONE));
    let still = |record: &LeaseRecord| record.still_announced.is_some();
    assert!(bed.records[records..].iter().all(still));
    let events = bed.events.iter().filter(|e| matches!(e, ClientEvent::StillAnnounced { .. }));
    assert_eq!(events.count(), 1);
    bed.until(bed.now + secs(200));
    assert_eq!(bed.probes.len(), asked + 2 + 3);
    assert_eq!(bed.record().still_announced, None);
}

#[test]
pub fn a_moved_address_is_looked_for_while_the_new_one_is_held() {
    let mut bed = announced();
    let renewal = bed.speaks();
    bed.hears(&answer(&renewal, ACK, SECOND, SERVER, 3600));
    while bed.address() != Some(SECOND) {
        bed.passes();
    }
    bed.asks();
    bed.hears(&arp(false, GUEST, ADDRESS, NONE));
    let record = bed.record();
    assert_eq!(record.still_announced, Some((ADDRESS, GUEST)));
    assert_eq!(record.lease.as_ref().map(|lease| lease.address), Some(SECOND));
    assert_eq!(record.announced, Some(AnnouncedAddress { address: SECOND, by: vec![] }));
}

#[test]
pub fn a_client_that_was_stopped_after_a_loss_asks_for_the_same_address() {
    let former = AnnouncedAddress { address: ADDRESS, by: vec![GUEST] };
    let client = DhcpClient::new(identity(), ClientOptions::default(), 7, ms(0));
    let mut bed = Bed::of(client.remembering(former));
    assert_eq!(bed.client.state(), LeaseState::Lost);
    let discover = bed.speaks();
    assert_eq!(discover.wish(), Some(ADDRESS));
    // The client does not know which server granted the address before. So it does not take this
    // offer at once, and waits for other offers.
    assert_eq!(bed.hears(&answer(&discover, OFFER, ADDRESS, SERVER, 120)), []);
    let request = bed.speaks();
    bed.hears(&answer(&request, ACK, ADDRESS, SERVER, 120));
    bed.asks();
    assert_eq!(bed.hears(&arp(false, GUEST, ADDRESS, NONE)), []);
    assert_eq!(bed.address(), Some(ADDRESS));
}

#[test]
pub fn an_address_that_a_station_has_is_not_given_back() {
    // The result is the same, whether or not the station announced the address before.
    for station in [GUEST, NODE] {
        let mut bed = announced();
        assert_eq!(bed.release(), []);
        assert_eq!(bed.client.listening(), FrameFilter::DhcpAndArp);
        bed.passes();
        assert_eq!(bed.hears(&arp(false, station, ADDRESS, NONE)), []);
        assert!(bed.done && bed.saw(&ClientEvent::NotReleased { address: ADDRESS, by: station }));
        assert!(bed.messages.iter().all(|seen| seen.kind() != RELEASE));
        assert_eq!((bed.record().state, bed.client.deadline()), (LeaseState::Released, None));
    }
    // If no station has the address, the first RELEASE follows 430 ms after the call of `release`.
    let mut bed = announced();
    let before = bed.now;
    assert_eq!(bed.release(), []);
    assert_eq!(bed.speaks().kind(), RELEASE);
    assert_eq!((bed.now.checked_sub(before).unwrap(), bed.probes.len()), (ms(430), 1 + 3));
    // If the link goes down before the first RELEASE, the client ends without a RELEASE.
    let mut bed = announced();
    bed.release();
    bed.set_link(false);
    bed.passes();
    assert!(bed.done && bed.messages.last().unwrap().kind() != RELEASE);
}

/// The network failed, so that the caller may not send for a while. The former questions and the
/// first RELEASE may be lost.
#[test]
pub fn a_release_that_was_put_off_begins_again_with_its_questions() {
    for steps in 0..=3 {
        let put_off = || {
            let mut bed = announced();
            bed.release();
            for _ in 0..steps {
                bed.passes();
            }
            let (until, asked) = (bed.now + secs(60), bed.probes.len());
            bed.client.put_off_release(until);
            assert_eq!(bed.client.deadline(), Some(until));
            (bed, until, asked)
        };
        let (mut bed, until, asked) = put_off();
        for after in [ms(430), ms(1430)] {
            assert_eq!(bed.speaks().kind(), RELEASE);
            assert_eq!((bed.now, bed.probes.len()), (until + after, asked + 3));
        }
        assert!(bed.done && bed.saw(&ClientEvent::Released { address: ADDRESS }));
        // A guest answers the first of the new questions.
        let (mut bed, until, asked) = put_off();
        assert_eq!(bed.passes(), []);
        assert_eq!((bed.now, bed.probes.len()), (until, asked + 1));
        assert_eq!(bed.client.listening(), FrameFilter::DhcpAndArp);
        bed.hears(&arp(false, GUEST, ADDRESS, NONE));
        assert!(bed.done && bed.saw(&ClientEvent::NotReleased { address: ADDRESS, by: GUEST }));
    }
}

#[test]
pub fn without_probes_nothing_is_asked() {
    let mut bed = Bed::bound(3600);
    assert_eq!(bed.client.deadline(), Some(bed.lease().renew));
    assert_eq!(bed.release()[0].kind(), RELEASE);
    assert!(bed.probes.is_empty());
    let mut bed = Bed::bound(120);
    bed.until(secs(119));
    assert_eq!(bed.until(secs(121)).last().unwrap().kind(), DISCOVER);
    assert!(bed.probes.is_empty());
}
