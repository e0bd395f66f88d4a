//! Sending of a client's messages.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::super::wire::arp;
use super::super::wire::ethernet::{self, FrameAddresses};
use super::super::wire::message::{self, MessageKind};
use super::super::{ClientAction, ClientEvent, GrantedLease};
use super::DhcpClient;

/// Time for which the client waits for an answer to a message that it has sent once. This time
/// doubles with each repetition of the message.
const FIRST_WAIT: Duration = Duration::from_secs(4);
/// Longest wait for the answer to a message, before [`JITTER`] changes it.
const LONGEST_WAIT: Duration = Duration::from_secs(64);
/// Maximum random time by which the time for an answer is made longer or shorter.
const JITTER: Duration = Duration::from_secs(1);

/// State of a message that is sent again until a server answers.
#[derive(Clone, Copy, Debug)]
pub struct MessageExchange {
    pub xid: u32,
    /// Time at which the message was first sent.
    pub first: Duration,
    pub tries: u32,
    /// Time at which the message is sent again.
    pub next: Duration,
    /// Field `secs` of the message: seconds since the client began to search for an address.
    pub secs: u16,
}

impl DhcpClient {
    /// Time for which the client waits for an answer to a message that it has sent `tries` times:
    /// RFC 2131, 4.1.
    pub(super) fn patience(&mut self, tries: u32) -> Duration {
        let doubled = FIRST_WAIT * 1_u32.checked_shl(tries.saturating_sub(1).min(8)).unwrap_or(1);
        doubled.min(LONGEST_WAIT).saturating_sub(JITTER) + self.rng.below(JITTER * 2)
    }

    /// Field `secs` of a message: seconds since the time `began`, at most `u16::MAX`.
    pub(super) fn secs_since(&self, began: Duration) -> u16 {
        u16::try_from(self.now.saturating_sub(began).as_secs()).unwrap_or(u16::MAX)
    }

    /// Begins an exchange: chooses an `xid`, and plans the first repetition of the message. The
    /// caller must send the message now.
    pub(super) fn exchange(&mut self) -> MessageExchange {
        let next = self.now + self.patience(1);
        let secs = self.secs_since(self.began);
        MessageExchange { xid: self.rng.word(), first: self.now, tries: 1, next, secs }
    }

    /// Counts one more repetition of an exchange's message, and sets the time of the next one.
    pub(super) fn again(&mut self, exchange: &mut MessageExchange) {
        exchange.tries += 1;
        exchange.next = self.now + self.patience(exchange.tries);
        self.event(ClientEvent::Retry);
    }

    pub(super) fn send(&mut self, kind: MessageKind, xid: u32, secs: u16, way: FrameAddresses) {
        let may_be_live = self.held.is_some() || self.former.is_some();
        let broadcast = self.options.broadcast || may_be_live;
        self.spoken = xid;
        let query = message::write(kind, &self.identity, xid, secs, broadcast);
        self.out.push(ClientAction::Send(ethernet::to_server(way, &query)));
    }

    pub(super) fn send_to_all(&mut self, kind: MessageKind, exchange: &MessageExchange) {
        self.send(kind, exchange.xid, exchange.secs, FrameAddresses::to_all(self.identity.mac));
    }

    /// Addresses of a message to the server that granted the lease. The sender's IP address is the
    /// leased one. Two of the four tested servers use plain sockets, and answer only messages from
    /// the leased address.
    pub(super) fn way_to_server(&self, lease: &GrantedLease) -> FrameAddresses {
        FrameAddresses {
            source: self.identity.mac,
            destination: lease.server_mac,
            from: lease.address,
            to: lease.server,
        }
    }

    pub(super) fn send_release(&mut self, lease: &GrantedLease) {
        let (way, xid) = (self.way_to_server(lease), self.rng.word());
        self.send(MessageKind::Release(lease.address, lease.server), xid, 0, way);
    }

    pub(super) fn ask_who_has(&mut self, address: Ipv4Addr) {
        self.out.push(ClientAction::Send(arp::probe(self.identity.mac, address)));
    }
}
