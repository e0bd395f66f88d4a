//! Keeping an address whose lease has expired without an answer of a server. A client keeps its
//! address only if `onLeaseLoss` of the network is `Keep`.
//!
//! RFC 2131, 4.4.5 requires a client to stop using such an address. `Keep` deviates from this rule,
//! so that traffic is not interrupted. The risk is small, because an absent DHCP server is likelier
//! than an address that is granted twice. A withdrawal would hardly reduce the risk, because a
//! guest continues to announce the address in any case.
//!
//! The client continues to ask servers for the kept address. The address is lost if one of these
//! happens:
//!
//! * A server refuses the address, or grants another address.
//! * The lease's own server offers another address.
//! * Twice in a row, several stations answer an ARP question about the address, and at least one of
//!   them is not a known announcer.

use super::super::{ClientTrouble, Mac};
use super::address_inquiry::{AddressInquiry, InquirySubject};
use super::output::AnnouncedAddress;
use super::{DhcpClient, part};

/// Number of double answers in a row that end a kept address. An ARP question has a double answer
/// if several stations answer it, and at least one of them is not a known announcer. One double
/// answer is normal when an announcer moves to another node.
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

    /// Handles the answers to an ARP question about the kept address. `stations`: the stations that
    /// answered. After `MOST_DOUBLE` double answers in a row, the address is lost, because another
    /// host may have it. Otherwise, the next question is planned. The answer of one station alone
    /// is no reason for the loss: this station may be the announcer, which has moved to another
    /// node.
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
