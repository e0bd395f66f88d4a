//! ARP questions about an address: which stations announce it, and whether they still announce it
//! after it was lost.
//!
//! A guest or kube-vip announces the address, not this client. After the record of an address was
//! written, and after each renewal of the lease, the client asks by ARP which station has the
//! address. The stations that have answered are the known announcers of the address. If the address
//! is granted again or kept, the client does not take these stations for other hosts. If a known
//! announcer still announces a lost address, the client reports this.
//!
//! If ARP probes are off ([`ProbeTiming::OFF`](super::ProbeTiming::OFF)), the client sends none of
//! these questions.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::super::wire::arp::ArpPacket;
use super::super::{ClientEvent, Mac};
use super::DhcpClient;
use super::output::{AnnouncedAddress, MOST_STATIONS};

/// Pause before the first ARP question about the announcer of a new address. The pause begins when
/// the record with this address is written. A random time of at most one second is added.
pub(super) const FIRST_INQUIRY: Duration = Duration::from_secs(30);
/// Time for which the client waits for answers to an ARP question about its address. The ARP probe
/// of a new address has other times.
const ANSWER: Duration = Duration::from_secs(1);
/// Pause between the end of one ARP question about a lost or kept address and the next question.
/// The first question about a lost address follows one such pause after the loss.
const INQUIRY_INTERVAL: Duration = Duration::from_secs(30);
/// Number of unanswered ARP questions in a row, after which a lost address counts as no longer
/// announced. A question is unanswered if no known announcer answers it.
const MOST_SILENT: u32 = 3;

/// Subject of the ARP questions about an address.
#[derive(Clone, Debug)]
pub enum InquirySubject {
    /// The address is leased. The question is which station announces it.
    Leased,
    /// The address is kept after its lease has expired. The question is whether another host also
    /// has it. The value lists the stations that have answered the current question.
    Kept(Vec<Mac>),
    /// The address is lost. The question is whether a station still announces it.
    Lost,
}

/// ARP questions about an address.
#[derive(Clone, Debug)]
pub struct AddressInquiry {
    pub about: AnnouncedAddress,
    subject: InquirySubject,
    /// Whether a question was sent, and the time for its answers is not over.
    pub waits: bool,
    /// Number of consecutive questions with this result:
    ///
    /// * Lost address: no known announcer has answered.
    /// * Kept address: two or more stations have answered, and at least one of them is not a known
    ///   announcer. A station that answers ARP for all addresses does not count.
    pub tally: u32,
    pub next: Duration,
}

impl AddressInquiry {
    pub(super) fn new(about: AnnouncedAddress, subject: InquirySubject, next: Duration) -> Self {
        Self { about, subject, waits: false, tally: 0, next }
    }

    pub(super) fn is_announcer(&self, station: Mac) -> bool {
        self.about.by.contains(&station)
    }
}

impl DhcpClient {
    /// Whether a station still announces the address that this client has lost. `false` also if the
    /// client has lost no address.
    pub const fn is_still_announced(&self) -> bool {
        self.still.is_some()
    }

    pub(super) fn asks_by_arp(&self) -> bool {
        self.options.probe.count > 0
    }

    /// Plans an ARP question about the announcer of the leased address. The question follows after
    /// `pause` and a random time of at most one second. No question is planned if ARP probes are
    /// off, or while the client still asks about a lost address.
    pub(super) fn ask_for_announcer_after(&mut self, pause: Duration) {
        let Some(about) = self.announced.clone().filter(|_| self.asks_by_arp()) else { return };
        if self.inquiry.as_ref().is_none_or(|open| !matches!(open.subject, InquirySubject::Lost)) {
            let next = self.now + pause + self.rng.below(ANSWER);
            self.inquiry = Some(AddressInquiry::new(about, InquirySubject::Leased, next));
        }
    }

    /// Plans ARP questions about a lost address, if its announcers are known. The questions end
    /// when no known announcer has answered `MOST_SILENT` of them in a row.
    pub(super) fn ask_after_loss(&mut self) {
        self.still = None;
        let announced = self.announced.clone().filter(|announced| !announced.by.is_empty());
        let next = self.now + INQUIRY_INTERVAL;
        self.inquiry = announced
            .filter(|_| self.asks_by_arp())
            .map(|about| AddressInquiry::new(about, InquirySubject::Lost, next));
    }

    pub(super) fn inquiry_due(&mut self) {
        let Some(mut inquiry) = self.inquiry.take() else { return };
        if !inquiry.waits {
            self.ask_who_has(inquiry.about.address);
            (inquiry.waits, inquiry.next) = (true, self.now + ANSWER);
            self.inquiry = Some(inquiry);
            return;
        }
        match &mut inquiry.subject {
            InquirySubject::Leased => return,
            InquirySubject::Kept(stations) => {
                let stations = std::mem::take(stations);
                return self.kept_answered(inquiry, &stations);
            }
            InquirySubject::Lost => {
                inquiry.tally += 1;
                if inquiry.tally >= MOST_SILENT {
                    // No known announcer announces the address any more.
                    if self.still.take().is_some() {
                        self.record(self.trouble);
                    }
                    return;
                }
            }
        }
        self.repeat_inquiry(inquiry);
    }

    pub(super) fn repeat_inquiry(&mut self, mut inquiry: AddressInquiry) {
        (inquiry.waits, inquiry.next) = (false, self.now + INQUIRY_INTERVAL);
        self.inquiry = Some(inquiry);
    }

    /// Handles an ARP frame, if it answers the client's last ARP question. Returns whether it does.
    pub(super) fn receive_inquiry_answer(&mut self, arp: ArpPacket) -> bool {
        let ours = self.identity.mac;
        let answers = |inquiry: &&mut AddressInquiry| {
            inquiry.waits && arp.sender_ip == inquiry.about.address && arp.sender != ours
        };
        let Some(inquiry) = self.inquiry.as_mut().filter(answers) else { return false };
        let (address, by) = (inquiry.about.address, arp.sender);
        let is_announcer = inquiry.is_announcer(by);
        match &mut inquiry.subject {
            InquirySubject::Leased => {
                self.inquiry = None;
                if self.announced.as_mut().is_some_and(|announced| announced.add_station(by)) {
                    self.record(self.trouble);
                }
            }
            InquirySubject::Kept(_) if self.options.proxy == Some(by) => {}
            InquirySubject::Kept(stations) => {
                if stations.len() < MOST_STATIONS && !stations.contains(&by) {
                    stations.push(by);
                }
            }
            InquirySubject::Lost if is_announcer => {
                (inquiry.waits, inquiry.tally, inquiry.next) =
                    (false, 0, self.now + INQUIRY_INTERVAL);
                if self.still.replace((address, by)) != Some((address, by)) {
                    self.event(ClientEvent::StillAnnounced { address, by });
                    self.record(self.trouble);
                }
            }
            InquirySubject::Lost => {}
        }
        true
    }

    /// Whether the station is a known announcer of the address: it answered ARP for the address
    /// while this client held it.
    pub(super) fn announces_for_us(&self, address: Ipv4Addr, station: Mac) -> bool {
        let announced = self.announced.as_ref().filter(|announced| announced.address == address);
        announced.is_some_and(|announced| announced.by.contains(&station))
    }
}
