//! Keeping an address whose lease has expired without an answer of a server. A client keeps its
//! address only if `onLeaseLoss` of the network is `Keep`.
//!
//! RFC 2131, 4.4.5 requires a client to stop using such an address. But a guest continues to
//! announce the address in any case, and an absent DHCP server is likelier than an address that is
//! granted twice. The client therefore keeps the address, so that traffic is not interrupted, and
//! continues to ask servers for it. The address is lost when a server refuses it or grants another
//! address, or when the lease's own server offers another address. Invariant: the address is lost
//! after two consecutive ARP questions that several hosts answer, if one of these hosts is not a
//! known announcer.

use super::super::{ClientTrouble, Mac};
use super::address_inquiry::{AddressInquiry, InquirySubject};
use super::output::AnnouncedAddress;
use super::{DhcpClient, part};

/// Limit of consecutive ARP questions about a kept address that several stations answer, at least
/// one of which is not a known announcer. At this number, the address is lost to another host. One
/// such question is normal when an announcer moves to another node.
const MOST_DOUBLE: u32 = 2;

impl DhcpClient {
    /// Keeps the address of a lease that has expired. Records that the address is kept, and begins
    /// to ask by ARP whether another host has it too.
    pub(super) fn keep_address(&mut self) {
        let Some(lease) = &self.held else { return };
        self.kept = true;
        let about = self.announced.clone().unwrap_or_else(|| AnnouncedAddress::new(lease.address));
        let now = self.now;
        let ask = |about| AddressInquiry::new(about, InquirySubject::Kept(Vec::new()), now);
        self.inquiry = self.asks_by_arp().then(|| ask(about));
        self.record(Some(ClientTrouble::Kept));
    }

    /// Decides whether another host also has the kept address. If so, the address is lost. If not,
    /// the next question is planned. `stations`: the stations that answered the last ARP question
    /// about this address. A station that answered alone does not count as another host: it may be
    /// the announcer on another node.
    pub(super) fn kept_answered(&mut self, mut inquiry: AddressInquiry, stations: &[Mac]) {
        let is_strange = |station: &&Mac| !inquiry.is_announcer(**station);
        let stranger = stations.iter().find(is_strange).filter(|_| stations.len() > 1).copied();
        inquiry.tally = stranger.map_or(0, |_| inquiry.tally + 1);
        match stranger {
            Some(station) if inquiry.tally >= MOST_DOUBLE => {
                let pause = part(self.options.phase, self.options.start_within);
                self.lose(ClientTrouble::Taken(station), pause);
            }
            _ => self.repeat_inquiry(inquiry),
        }
    }
}
