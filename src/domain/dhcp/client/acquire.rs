//! Acquiring an address: DISCOVER, the choice among offers, REQUEST.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::super::wire::message::{MessageKind, ReplyKind, ServerReply};
use super::super::{ClientEvent, ClientTrouble, GrantedLease, IgnoreReason, Mac};
use super::offer_check;
use super::probe::Probing;
use super::send::MessageExchange;
use super::{ClientPhase, DhcpClient};

/// Time for which the client waits for its preferred offer, counted from the first usable offer.
const OFFER_WAIT: Duration = Duration::from_millis(250);
/// Maximum number of offers among which the client chooses.
const MOST_OFFERS: usize = 8;
/// Number of the first DISCOVER at which the client may record [`ClientTrouble::NoOffer`]. When the
/// client sends this DISCOVER or a later one, it records this trouble if no offer has come since
/// the previous DISCOVER.
const SILENT_TRIES: u32 = 3;
/// Maximum number of REQUESTs for one offer. The client waits about a minute in all for an answer
/// to them.
const MOST_REQUESTS: u32 = 4;
/// Number of refusals after which the client no longer prefers its former address or
/// `options.wish`. A refusal is a NAK, or a grant of an offered address that cannot be used.
/// Refusals are counted since the client last got or renewed a lease. A NAK that ends a lease is
/// the first refusal. The preference itself ends only at a NAK to a REQUEST for an offer.
const MOST_WISHES: u32 = 2;
/// Upper limit of the pause after the first refusal. The pause is short, because one refusal may be
/// normal. For example, a server offers the same address to two clients, and then refuses one of
/// them.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Longest pause after a refusal.
const LONGEST_PAUSE: Duration = Duration::from_secs(64);

/// State of a client that has sent a DISCOVER, and waits for offers.
#[derive(Clone, Debug)]
pub struct Selecting {
    pub exchange: MessageExchange,
    offers: Vec<Offer>,
    /// Time at which the client takes the best offer. `None`: no usable offer has come yet.
    choose: Option<Duration>,
    /// Whether an offer that cannot be used has come since the last DISCOVER.
    useless: bool,
}

impl Selecting {
    pub fn deadline(&self) -> Duration {
        self.choose.unwrap_or(self.exchange.next)
    }
}

/// Offer that the client can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    address: Ipv4Addr,
    server: Ipv4Addr,
}

/// State of a client that has sent a REQUEST for an offer, and waits for the answer.
#[derive(Clone, Debug)]
pub struct Requesting {
    pub exchange: MessageExchange,
    offer: Offer,
}

impl DhcpClient {
    /// Offer that the client prefers: its former address, from the server that granted this
    /// address. If the client has no former address, or no longer wants it, the client prefers the
    /// address `options.wish`, from any server. `None`: the client prefers no address.
    fn wish(&self) -> Option<Offer> {
        let former = self.former.filter(|former| former.wanted);
        let former = former.map(|of| Offer { address: of.address, server: of.server });
        let first = |address| Offer { address, server: Ipv4Addr::UNSPECIFIED };
        former.or_else(|| self.options.wish.map(first))
    }

    pub(super) fn discover(&mut self) {
        let exchange = self.exchange();
        let wish = self.wish().map(|wish| wish.address);
        self.send_to_all(MessageKind::Discover(wish), &exchange);
        let offers = Vec::new();
        self.phase =
            ClientPhase::Selecting(Selecting { exchange, offers, choose: None, useless: false });
    }

    pub(super) fn selecting_due(&mut self, mut selecting: Selecting) {
        if selecting.choose.is_some() {
            return self.take_best(&selecting);
        }
        self.again(&mut selecting.exchange);
        selecting.exchange.secs = self.secs_since(self.began);
        let wish = self.wish().map(|wish| wish.address);
        self.send_to_all(MessageKind::Discover(wish), &selecting.exchange);
        let useless = std::mem::take(&mut selecting.useless);
        let silent = selecting.exchange.tries >= SILENT_TRIES && !useless;
        self.phase = ClientPhase::Selecting(selecting);
        if silent {
            self.record_trouble(ClientTrouble::NoOffer);
        }
    }

    pub(super) fn receive_while_selecting(
        &mut self,
        mut selecting: Selecting,
        reply: &ServerReply,
    ) {
        if reply.kind != ReplyKind::Offer || reply.xid != selecting.exchange.xid {
            return self.ignore(IgnoreReason::Unasked);
        }
        if let Err(why) = self.check_offer(reply) {
            let is_first = !std::mem::replace(&mut selecting.useless, true);
            self.phase = ClientPhase::Selecting(selecting);
            // The trouble is recorded at most once after each DISCOVER, so that many bad offers do
            // not cause many records.
            if is_first {
                self.record_trouble(ClientTrouble::Unusable {
                    address: reply.address,
                    server: reply.server,
                    why,
                });
            }
            return;
        }
        let offer = Offer { address: reply.address, server: reply.server };
        self.event(ClientEvent::Offered { server: reply.server, address: reply.address });
        if selecting.offers.len() < MOST_OFFERS && !selecting.offers.contains(&offer) {
            selecting.offers.push(offer);
        }
        selecting.choose.get_or_insert(self.now + OFFER_WAIT);
        if self.wish().is_none_or(|wish| wish == offer) {
            self.take_best(&selecting);
        } else {
            self.phase = ClientPhase::Selecting(selecting);
        }
    }

    /// Sends a REQUEST for the best offer: an offer of the preferred address, or else an offer of
    /// the server that granted the former address, or else the oldest offer.
    fn take_best(&mut self, selecting: &Selecting) {
        let wish = self.wish();
        let dislike = |offer: &&Offer| match wish {
            Some(wish) => (offer.address != wish.address, offer.server != wish.server),
            None => (true, true),
        };
        let Some(offer) = selecting.offers.iter().min_by_key(dislike).copied() else { return };
        let next = self.now + self.patience(1);
        // The REQUEST has the same `xid` and `secs` as the last DISCOVER.
        let exchange = MessageExchange { first: self.now, tries: 1, next, ..selecting.exchange };
        self.send_to_all(MessageKind::Select(offer.address, offer.server), &exchange);
        self.phase = ClientPhase::Requesting(Requesting { exchange, offer });
    }

    pub(super) fn requesting_due(&mut self, mut requesting: Requesting) {
        if requesting.exchange.tries >= MOST_REQUESTS {
            return self.discover();
        }
        self.again(&mut requesting.exchange);
        let Offer { address, server } = requesting.offer;
        self.send_to_all(MessageKind::Select(address, server), &requesting.exchange);
        self.phase = ClientPhase::Requesting(requesting);
    }

    pub(super) fn receive_while_requesting(
        &mut self,
        requesting: &Requesting,
        reply: &ServerReply,
        from: Mac,
    ) {
        if reply.xid != requesting.exchange.xid || reply.kind == ReplyKind::Offer {
            return self.ignore(IgnoreReason::Unasked);
        }
        if reply.server != requesting.offer.server {
            return self.ignore(IgnoreReason::OtherServer);
        }
        if reply.kind == ReplyKind::Nak {
            self.event(ClientEvent::Nak { server: reply.server, heeded: true });
            return self.refused();
        }
        if reply.address != requesting.offer.address {
            return self.ignore(IgnoreReason::Unasked);
        }
        if let Err(why) = self.check_offer(reply) {
            let pause = self.pause_after_refusal();
            self.phase = ClientPhase::Waiting(self.now + pause);
            let (address, server) = (reply.address, reply.server);
            return self.record_trouble(ClientTrouble::Unusable { address, server, why });
        }
        let lease =
            GrantedLease::from_reply(reply, from, requesting.exchange.first, self.options.phase);
        if lease.is_over(self.now) {
            return self.discover();
        }
        self.granted(lease);
    }

    /// Begins the ARP probe of a granted address. Precondition: the client has no address. The
    /// client takes the lease at once, without a probe, if one of these is true:
    ///
    /// * Probes are off.
    /// * A guest or kube-vip may still announce the address for this client.
    pub(super) fn granted(&mut self, lease: GrantedLease) {
        let may_be_ours = self
            .former
            .is_some_and(|former| former.address == lease.address && self.now < former.ours_until);
        if may_be_ours || self.options.probe.count == 0 {
            self.acquired(lease);
        } else {
            let next = self.now + self.rng.below(self.options.probe.first_within);
            self.phase = ClientPhase::Probing(Probing { lease, sent: 0, next });
        }
    }

    /// Makes the client hold the lease, and reports [`ClientEvent::Acquired`]. Precondition: one of
    /// these is true:
    ///
    /// * The address needs no ARP probe.
    /// * The probe is over, and no station has disputed the address.
    /// * A known announcer of the address has answered the probe.
    pub(super) fn acquired(&mut self, lease: GrantedLease) {
        let (address, server) = (lease.address, lease.server);
        self.hold(lease, true);
        let took = self.now.saturating_sub(self.began);
        self.event(ClientEvent::Acquired { address, server, took });
    }

    /// Checks whether an offer or a grant can be used. `Err`: the reason why it cannot be used,
    /// which the client also reports by an event.
    pub(super) fn check_offer(&mut self, reply: &ServerReply) -> Result<(), &'static str> {
        offer_check::check(reply, &self.options.subnets).inspect_err(|why| {
            let (server, address, why) = (reply.server, reply.address, *why);
            self.event(ClientEvent::Unusable { server, address, why });
        })
    }

    /// Handles a NAK to the REQUEST for an offer: the client pauses, and then sends a DISCOVER.
    /// After [`MOST_WISHES`] refusals, the client no longer prefers an address.
    fn refused(&mut self) {
        let pause = self.pause_after_refusal();
        if self.naks >= MOST_WISHES {
            self.options.wish = None;
            if let Some(former) = &mut self.former {
                former.wanted = false;
            }
        }
        self.phase = ClientPhase::Waiting(self.now + pause);
        // The first refusal is not recorded, because one refusal is normal when two clients request
        // an address at the same moment.
        if self.naks > 1 {
            self.record_trouble(ClientTrouble::Refused);
        }
    }

    /// Counts a refusal, and returns the pause after it. The upper limit of the pause doubles with
    /// each refusal, from `FIRST_PAUSE` to `LONGEST_PAUSE`. The pause is a random time between half
    /// of this limit and the limit. So two clients that were refused at the same moment are
    /// unlikely to send their next messages at the same moment.
    pub(super) fn pause_after_refusal(&mut self) -> Duration {
        self.naks = self.naks.saturating_add(1);
        let doubled = FIRST_PAUSE * 1_u32.checked_shl((self.naks - 1).min(8)).unwrap_or(1);
        let pause = doubled.min(LONGEST_PAUSE);
        pause / 2 + self.rng.below(pause / 2)
    }
}
