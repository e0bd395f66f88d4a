//! ARP questions about an address: which stations announce it, and whether they still announce it
//! after it was lost.
//!
//! A guest or kube-vip announces the address. Neither of them asks the DHCP server, and a guest's
//! cloud provider does not even watch for a change of the address. Therefore, while the address is
//! published, the client asks by ARP which stations have it, and stores the stations that answer.
//! These stations count as the client's own announcers:
//!
//! * The client does not decline an address that is granted again if its own announcer answers the
//!   probe.
//! * The client reports a lost address that its own announcer still announces.
//!
//! If ARP probes are off ([`ProbeTiming::OFF`](super::ProbeTiming::OFF)), the client sends none of
//! these questions.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::super::wire::arp::ArpPacket;
use super::super::{ClientEvent, Mac};
use super::DhcpClient;
use super::output::{AnnouncedAddress, MOST_STATIONS};

/// Time from the publication of an address to the first question about its announcer.
const FIRST_INQUIRY: Duration = Duration::from_secs(30);
/// Time to wait for the answers to an ARP question.
const ANSWER: Duration = Duration::from_secs(1);
/// Interval of the ARP questions about a lost or kept address. The first question about a lost
/// address is asked one interval after the loss.
const INQUIRY_INTERVAL: Duration = Duration::from_secs(30);
/// Number of consecutive ARP questions about a lost address after which the address counts as not
/// announced, if no known announcer answers them.
const MOST_SILENT: u32 = 3;

/// Subject of the questions about an address.
#[derive(Clone, Debug)]
pub enum InquirySubject {
    /// A leased address. The question is which station announces it.
    Leased,
    /// An address that is kept after its lease has expired. The question is whether another host
    /// also has the address. The value contains the stations that have answered the current
    /// question.
    Kept(Vec<Mac>),
    /// A lost address. The question is whether a station still announces it.
    Lost,
}

/// ARP questions about one address.
#[derive(Clone, Debug)]
pub struct AddressInquiry {
    about: AnnouncedAddress,
    subject: InquirySubject,
    /// Whether the last question was sent, and the client still waits for its answers.
    pub waits: bool,
    /// Number of consecutive questions that count for the decision about the address. Lost address:
    /// questions that no known announcer answered. Kept address: questions that several hosts
    /// answered, including a host that is not a known announcer.
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

    pub(super) fn is_about(&self, address: Ipv4Addr) -> bool {
        self.about.address == address
    }
}

impl DhcpClient {
    /// Whether a station still announces an address that was lost.
    pub const fn is_still_announced(&self) -> bool {
        self.still.is_some()
    }

    pub(super) fn asks_by_arp(&self) -> bool {
        self.options.probe.count > 0
    }

    /// Schedules the ARP question about the announcer of the address. The question is sent after
    /// `pause` and a random time of at most one second. Questions about a lost address have
    /// precedence.
    pub(super) fn ask_for_announcer_after(&mut self, pause: Duration) {
        let Some(about) = self.announced.clone().filter(|_| self.asks_by_arp()) else { return };
        if self.inquiry.as_ref().is_none_or(|open| !matches!(open.subject, InquirySubject::Lost)) {
            let next = self.now + pause + self.rng.below(ANSWER);
            self.inquiry = Some(AddressInquiry::new(about, InquirySubject::Leased, next));
        }
    }

    /// Handles the publication of the address: schedules the question about its announcer.
    pub(super) fn published(&mut self) {
        self.ask_for_announcer_after(FIRST_INQUIRY);
    }

    /// Schedules ARP questions about a lost address, if its announcers are known. The questions end
    /// when the announcers have left `MOST_SILENT` consecutive questions unanswered.
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
                    return self.no_longer_announced();
                }
            }
        }
        self.repeat_inquiry(inquiry);
    }

    pub(super) fn repeat_inquiry(&mut self, mut inquiry: AddressInquiry) {
        (inquiry.waits, inquiry.next) = (false, self.now + INQUIRY_INTERVAL);
        self.inquiry = Some(inquiry);
    }

    fn no_longer_announced(&mut self) {
        if self.still.take().is_some() {
            self.record(self.trouble);
        }
    }

    /// Handles an ARP frame. Returns whether the frame answers the question that the client has
    /// sent.
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

    /// Whether the station announces the address for this client: the station announced the address
    /// while the client held it.
    pub(super) fn announces_for_us(&self, address: Ipv4Addr, station: Mac) -> bool {
        let announced = self.announced.as_ref().filter(|announced| announced.address == address);
        announced.is_some_and(|announced| announced.by.contains(&station))
    }
}
