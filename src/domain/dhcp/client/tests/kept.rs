//! Addresses that are kept after their lease has ended.

use super::server::arp;
use super::*;

const GUEST: Mac = Mac([2, 0, 0, 0, 0, 0x55]);
const OTHER_HOST: Mac = Mac([2, 0, 0, 0, 0, 0x57]);
const NONE: Ipv4Addr = Ipv4Addr::UNSPECIFIED;
/// Lease time in these tests: one hour, in seconds.
const HOUR: u32 = 3600;

fn keeping() -> ClientOptions {
    ClientOptions { keep: true, resume_within: ms(0), ..ClientOptions::default() }
}

/// Client whose lease of one hour has expired without an answer of a server. A guest announces the
/// address.
fn ended() -> Bed {
    let mut bed = Bed::with(keeping());
    bed.acquire(ADDRESS, HOUR);
    while bed.client.listening() != FrameFilter::DhcpAndArp {
        bed.passes();
    }
    bed.hears(&arp(false, GUEST, ADDRESS, NONE));
    let end = bed.lease().expires.unwrap();
    bed.until(end);
    bed
}

/// Advances the clock until the next ARP question is over. The stations `by` answer it.
fn answered(bed: &mut Bed, by: &[Mac]) {
    let asked = bed.probes.len();
    while bed.probes.len() == asked {
        bed.passes();
    }
    for station in by {
        bed.hears(&arp(false, *station, ADDRESS, NONE));
    }
    bed.until(bed.now + secs(1));
}

#[test]
pub fn the_end_of_a_lease_without_an_answer_leaves_the_address() {
    let mut bed = ended();
    let record = bed.record().clone();
    assert_eq!((record.trouble, record.keeps), (Some(ClientTrouble::Kept), true));
    assert_eq!((bed.address(), bed.client.state()), (Some(ADDRESS), LeaseState::Rebinding));
    // The client has asked servers once a minute for a day, and not more often.
    let (before, from) = (bed.records.len(), bed.now);
    let day = secs(24 * 3600);
    let asked = bed.until(from + day);
    assert!((1440..=2 * 1440 + 2).contains(&asked.len()), "{} messages", asked.len());
    assert_eq!((bed.records.len(), bed.address()), (before, Some(ADDRESS)));
    // The server answers again.
    let question = bed.speaks_all().remove(0);
    bed.hears(&answer(&question, ACK, ADDRESS, SERVER, HOUR));
    assert_eq!((bed.record().trouble, bed.client.state()), (None, LeaseState::Bound));
    assert_eq!(bed.lease().expires, Some(bed.now + secs(HOUR.into())));
    let lost = |event: &&ClientEvent| matches!(event, ClientEvent::Lost { .. });
    assert_eq!(bed.events.iter().find(lost), None);
}

/// A server renews the lease of a kept address. The renewed lease expires without an answer too. So
/// the client keeps the address for the second time.
#[test]
pub fn an_address_that_was_renewed_after_its_end_ends_again() {
    let mut bed = ended();
    let question = bed.speaks_all().remove(0);
    bed.hears(&answer(&question, ACK, ADDRESS, SERVER, HOUR));
    let end = bed.lease().expires.unwrap();
    bed.until(end);
    assert_eq!((bed.record().trouble, bed.address()), (Some(ClientTrouble::Kept), Some(ADDRESS)));
}

#[test]
pub fn a_server_that_says_no_ends_a_kept_address() {
    // The kept address is lost if the server of its lease refuses this address, or offers another
    // one. If any other server offers another address, the kept address stays.
    let mut bed = ended();
    let question = bed.speaks_all().remove(0);
    bed.hears(&answer(&question, NAK, NONE, SERVER, 0));
    assert_eq!((bed.address(), bed.record().trouble), (None, Some(ClientTrouble::Refused)));
    for (server, kept) in [(SERVER, None), (OTHER, Some(ADDRESS))] {
        let mut bed = ended();
        let discover = bed.speaks_all().remove(1);
        bed.hears(&answer(&discover, OFFER, SECOND, server, HOUR));
        assert_eq!(bed.address(), kept, "an offer of {server}");
    }
}

#[test]
pub fn another_host_at_a_kept_address_ends_it() {
    let mut bed = ended();
    answered(&mut bed, &[GUEST]);
    answered(&mut bed, &[GUEST, OTHER_HOST]);
    // Two nodes answer while the announcer moves. After that, only the new node answers.
    answered(&mut bed, &[OTHER_HOST]);
    answered(&mut bed, &[GUEST, OTHER_HOST]);
    answered(&mut bed, &[]);
    assert_eq!((bed.address(), bed.record().trouble), (Some(ADDRESS), Some(ClientTrouble::Kept)));
    answered(&mut bed, &[GUEST, OTHER_HOST]);
    answered(&mut bed, &[OTHER_HOST, GUEST]);
    let why = ClientTrouble::Taken(OTHER_HOST);
    assert_eq!((bed.address(), bed.record().trouble), (None, Some(why)));
    assert!(bed.saw(&ClientEvent::Lost { address: ADDRESS, why }));
    // The client reports that the guest still announces the lost address.
    answered(&mut bed, &[GUEST]);
    assert!(bed.saw(&ClientEvent::StillAnnounced { address: ADDRESS, by: GUEST }));
}

/// A router that answers ARP for all addresses does not count as another host with the address.
#[test]
pub fn proxy_arp_ends_no_kept_address() {
    let mut bed = ended();
    bed.client.set_proxy(Some(OTHER_HOST));
    for _ in 0..3 {
        answered(&mut bed, &[GUEST, OTHER_HOST]);
    }
    assert_eq!(bed.address(), Some(ADDRESS));
}

/// An agent that starts after the lease has expired keeps the address if `keep` is set. If `keep`
/// is not set, the address is lost.
#[test]
pub fn a_restart_after_the_end_goes_by_the_option() {
    for (keep, kept) in [(true, Some(ADDRESS)), (false, None)] {
        let options = ClientOptions { keep, ..keeping() };
        let mut bed = Bed::of(DhcpClient::resume(identity(), options, held(0), 7, ms(0)));
        bed.until(secs(600));
        assert_eq!((bed.address(), bed.record().keeps), (kept, keep));
    }
}

/// An address whose record was not written is not published, and so is not kept.
#[test]
pub fn an_address_that_was_never_recorded_is_not_kept() {
    let mut bed = Bed::with(keeping());
    bed.slow = true;
    bed.acquire(ADDRESS, HOUR);
    bed.until(secs(HOUR.into()) + secs(1));
    assert_eq!(bed.record().trouble, Some(ClientTrouble::Expired));
}

/// No RELEASE is sent for a kept address. The server may have granted the address to another
/// client. The same holds if the client does not ask by ARP before a RELEASE, because ARP probes
/// are off, or because a station answers ARP for all addresses.
#[test]
pub fn a_kept_address_is_not_released() {
    let mut behind_proxy = ended();
    behind_proxy.client.set_proxy(Some(OTHER_HOST));
    let mut without_arp = Bed::with(ClientOptions { probe: ProbeTiming::OFF, ..keeping() });
    without_arp.acquire(ADDRESS, HOUR);
    let end = without_arp.lease().expires.unwrap();
    without_arp.until(end);
    for mut bed in [ended(), behind_proxy, without_arp] {
        assert_eq!(bed.record().trouble, Some(ClientTrouble::Kept));
        assert_eq!(bed.release(), []);
        assert!(bed.done && bed.record().lease.is_none());
    }
}
