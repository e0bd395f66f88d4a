//! ARP probe (RFC 5227): the client asks whether another host has a newly granted address. If so,
//! the client sends a DECLINE. It sends no DECLINE if the station that answers is a known announcer
//! of the address, or is known to answer ARP for all addresses.
//!
//! Invariant: an address is probed only after its grant and before its publication. After the
//! publication, the LoadBalancer's own announcer would answer the probe.

use std::time::Duration;

use super::super::wire::arp::ArpPacket;
use super::super::wire::message::MessageKind;
use super::super::{ClientEvent, ClientTrouble, GrantedLease, IgnoreReason};
use super::{ClientPhase, DhcpClient};

/// Pause between a DECLINE and the next DISCOVER: the minimum of RFC 2131, 3.1. It limits the
/// traffic of a client that declines address after address.
const PAUSE: Duration = Duration::from_secs(10);
/// Smallest number of declined addresses in a row at which the pause is [`CONFLICTS_PAUSE`]. It is
/// `MAX_CONFLICTS` of RFC 5227.
const MOST_CONFLICTS: u32 = 10;
/// Pause after `MOST_CONFLICTS` declined addresses. RFC 5227 allows one new address each minute.
/// But a server does not grant a declined address again for a day or for a lease time. At one
/// address each minute, the client would use up all addresses of the server.
const CONFLICTS_PAUSE: Duration = Duration::from_hours(1);
/// Pause before the next DISCOVER, if a station answers ARP for all addresses. In this case, the
/// client sends no DECLINE, so the server offers the same address again.
const PROXY_PAUSE: Duration = Duration::from_mins(1);

/// State of a client that asks by ARP about the address of a lease, before it uses the address or
/// gives it back.
#[derive(Clone, Debug)]
pub struct Probing {
    pub lease: GrantedLease,
    /// Number of ARP questions that were sent.
    pub sent: u32,
    pub next: Duration,
}

impl DhcpClient {
    pub(super) fn probing_due(&mut self, mut probing: Probing) {
        let times = self.options.probe;
        if probing.lease.is_over(self.now) {
            return self.discover();
        }
        if probing.sent >= times.count {
            self.event(ClientEvent::Undisputed);
            return self.acquired(probing.lease);
        }
        self.ask_who_has(probing.lease.address);
        probing.sent += 1;
        let gap = times.longest_gap.saturating_sub(times.shortest_gap);
        let gap = times.shortest_gap + self.rng.below(gap);
        let wait = if probing.sent < times.count { gap } else { times.wait };
        probing.next = self.now + wait;
        self.phase = ClientPhase::Probing(probing);
    }

    pub(super) fn receive_arp(&mut self, arp: ArpPacket) {
        if matches!(self.phase, ClientPhase::Parting(_)) {
            return self.receive_while_parting(arp);
        }
        if self.receive_inquiry_answer(arp) {
            return;
        }
        let ClientPhase::Probing(probing) = &self.phase else {
            return self.ignore(IgnoreReason::Unasked);
        };
        let GrantedLease { address, server, server_mac, .. } = probing.lease;
        if !arp.disputes(address, self.identity.mac) {
            return self.ignore(IgnoreReason::NotOurs);
        }
        if self.announces_for_us(address, arp.sender) {
            let lease = probing.lease.clone();
            return self.acquired(lease);
        }
        if self.options.proxy == Some(arp.sender) {
            // No DECLINE is sent. So the server keeps the address for this client, and offers it
            // again.
            self.phase = ClientPhase::Waiting(self.now + PROXY_PAUSE);
            return self.record_trouble(ClientTrouble::AnswersForAll(arp.sender));
        }
        let exchange = self.exchange();
        self.send_to_all(MessageKind::Decline(address, server), &exchange);
        self.event(ClientEvent::Declined { address, by: arp.sender, server: server_mac });
        self.conflicts = self.conflicts.saturating_add(1);
        let (pause, trouble) = if self.conflicts < MOST_CONFLICTS {
            (PAUSE, ClientTrouble::AddressInUse(arp.sender))
        } else {
            (CONFLICTS_PAUSE, ClientTrouble::TooManyInUse(arp.sender))
        };
        self.former = self.former.filter(|former| former.address != address);
        self.phase = ClientPhase::Waiting(self.now + pause);
        self.record_trouble(trouble);
    }
}
