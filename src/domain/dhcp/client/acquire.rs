//! Acquiring an address: DISCOVER, the choice among offers, REQUEST.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::super::wire::message::{MessageKind, ReplyKind, ServerReply};
use super::super::{ClientEvent, ClientTrouble, GrantedLease, IgnoreReason, Mac, OfferFault};
use super::offer_check;
use super::probe::Probing;
use super::send::MessageExchange;
use super::{ClientPhase, DhcpClient};

/// Time for which the client waits for the preferred offer after another offer has come.
const OFFER_WAIT: Duration = Duration::from_millis(250);
/// Largest number of offers that are compared.
const MOST_OFFERS: usize = 8;
/// Count of DISCOVERs at which [`ClientTrouble::NoOffer`] is recorded. When the third DISCOVER is
/// sent, the first two have brought no offer.
const SILENT_TRIES: u32 = 3;
/// Largest number of REQUESTs for one offer. The client waits about a minute for answers to them.
const MOST_REQUESTS: u32 = 4;
/// Number of refusals after which the client stops asking for a preferred address: its former
/// address, or the address `wish` from its options.
const MOST_WISHES: u32 = 2;
/// Pause after the first refusal. The pause is short, because the refusal may be normal. For
/// example, a server that offered the same address to two clients refuses one of them.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Longest pause after a refusal.
const LONGEST_PAUSE: Duration = Duration::from_secs(64);

/// State of a client that has sent a DISCOVER and waits for offers.
#[derive(Clone, Debug)]
pub struct Selecting {
    pub exchange: MessageExchange,
    offers: Vec<Offer>,
    /// Time at which the best offer is taken. `None`: no usable offer has come yet.
    choose: Option<Duration>,
    /// Whether an unusable offer has come since the last DISCOVER.
    useless: bool,
}

impl Selecting {
    pub fn deadline(&self) -> Duration {
        self.choose.map_or(self.exchange.next, |choose| choose.min(self.exchange.next))
    }
}

/// An offer that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    address: Ipv4Addr,
    server: Ipv4Addr,
}

/// State of a client that has sent a REQUEST for an offer and waits for the answer.
#[derive(Clone, Debug)]
pub struct Requesting {
    pub exchange: MessageExchange,
    offer: Offer,
}

impl DhcpClient {
    /// Preferred offer: the former address, from the server that granted it. If the client has no
    /// former address: the address `wish` from the options. `None`: the client prefers no address.
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

    pub(super) fn selecting_due(&mut self) {
        let ClientPhase::Selecting(selecting) = &self.phase else { return };
        let mut selecting = selecting.clone();
        if selecting.choose.is_some_and(|choose| choose <= self.now) {
            return self.take_best(&selecting);
        }
        self.again(&mut selecting.exchange);
        selecting.exchange.secs = self.secs();
        let wish = self.wish().map(|wish| wish.address);
        self.send_to_all(MessageKind::Discover(wish), &selecting.exchange);
        let useless = std::mem::take(&mut selecting.useless);
        let silent = selecting.exchange.tries >= SILENT_TRIES && !useless;
        self.phase = ClientPhase::Selecting(selecting);
        if silent {
            self.record_trouble(ClientTrouble::NoOffer);
        }
    }

    pub(super) fn receive_while_selecting(&mut self, reply: &ServerReply) {
        let ClientPhase::Selecting(selecting) = &mut self.phase else { return };
        if reply.kind != ReplyKind::Offer || reply.xid != selecting.exchange.xid {
            return self.ignore(IgnoreReason::Unasked);
        }
        if let Err(why) = self.check_offer(reply) {
            let ClientPhase::Selecting(selecting) = &mut self.phase else { return };
            // The trouble is recorded once for each DISCOVER, because a flood of offers must not
            // cause a flood of records.
            if !std::mem::replace(&mut selecting.useless, true) {
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
        let wish = self.wish();
        let choose = self.now + OFFER_WAIT;
        let ClientPhase::Selecting(selecting) = &mut self.phase else { return };
        if selecting.offers.len() < MOST_OFFERS && !selecting.offers.contains(&offer) {
            selecting.offers.push(offer);
        }
        selecting.choose.get_or_insert(choose);
        if wish.is_none_or(|wish| wish == offer) {
            let selecting = selecting.clone();
            self.take_best(&selecting);
        }
    }

    /// Takes the best offer: an offer of the preferred address, otherwise an offer from the former
    /// server, otherwise the first offer.
    fn take_best(&mut self, selecting: &Selecting) {
        let wish = self.wish();
        let dislike = |offer: &&Offer| match wish {
            Some(wish) => (offer.address != wish.address, offer.server != wish.server),
            None => (true, true),
        };
        let Some(offer) = selecting.offers.iter().min_by_key(dislike).copied() else { return };
        let next = self.now + self.patience(1);
        // The REQUEST has the xid and the `secs` of the DISCOVER that was answered.
        let exchange = MessageExchange { first: self.now, tries: 1, next, ..selecting.exchange };
        self.send_to_all(MessageKind::Select(offer.address, offer.server), &exchange);
        self.phase = ClientPhase::Requesting(Requesting { exchange, offer });
    }

    pub(super) fn requesting_due(&mut self) {
        let ClientPhase::Requesting(requesting) = &self.phase else { return };
        let mut requesting = requesting.clone();
        if requesting.exchange.tries >= MOST_REQUESTS {
            return self.discover();
        }
        self.again(&mut requesting.exchange);
        let Offer { address, server } = requesting.offer;
        self.send_to_all(MessageKind::Select(address, server), &requesting.exchange);
        self.phase = ClientPhase::Requesting(requesting);
    }

    pub(super) fn receive_while_requesting(&mut self, reply: &ServerReply, from: Mac) {
        let ClientPhase::Requesting(requesting) = &self.phase else { return };
        let requesting = requesting.clone();
        if reply.xid != requesting.exchange.xid || reply.kind == ReplyKind::Offer {
            return self.ignore(IgnoreReason::Unasked);
        }
        if reply.server != requesting.offer.server {
            return self.ignore(IgnoreReason::OtherServer);
        }
        if reply.kind == ReplyKind::Nak {
            self.event(ClientEvent::Nak { server: reply.server, heeded: true });
            return self.refused(ClientTrouble::Refused);
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

    /// Handles a grant to a client without an address. The client probes the granted address. The
    /// probe is omitted if it is disabled, or if a guest or kube-vip may still announce the address
    /// for this client.
    pub(super) fn granted(&mut self, lease: GrantedLease) {
        let may_be_ours = self
            .former
            .is_some_and(|former| former.address == lease.address && self.now < former.ours_until);
        if may_be_ours || self.options.probe.count == 0 {
            self.acquired(lease);
        } else {
            self.phase = ClientPhase::Probing(Probing::of(lease, self));
        }
    }

    /// Stores the granted lease as held, because its probe found no other host or was not
    /// necessary.
    pub(super) fn acquired(&mut self, lease: GrantedLease) {
        let (address, server) = (lease.address, lease.server);
        self.hold(lease, true);
        let took = self.now.saturating_sub(self.began);
        self.event(ClientEvent::Acquired { address, server, took });
    }

    /// Checks whether the offer or grant can be used. If not, an event reports the fault.
    pub(super) fn check_offer(&mut self, reply: &ServerReply) -> Result<(), OfferFault> {
        offer_check::check(reply, &self.options.subnets).inspect_err(|why| {
            let (server, address, why) = (reply.server, reply.address, *why);
            self.event(ClientEvent::Unusable { server, address, why });
        })
    }

    /// Handles a server's refusal of an address that this server had offered.
    fn refused(&mut self, trouble: ClientTrouble) {
        let pause = self.pause_after_refusal();
        if self.naks >= MOST_WISHES {
            self.options.wish = None;
            if let Some(former) = &mut self.former {
                former.wanted = false;
            }
        }
        self.phase = ClientPhase::Waiting(self.now + pause);
        // The first refusal is not recorded, because it is normal if two clients ask at the same
        // moment.
        if self.naks > 1 {
            self.record_trouble(trouble);
        }
    }

    /// Counts a refusal, and returns the pause after it. The upper limit of the pause doubles with
    /// each refusal, from `FIRST_PAUSE` to `LONGEST_PAUSE`. The pause is a random time between half
    /// of the limit and the limit, so that two clients with simultaneous requests ask at different
    /// times next.
    pub(super) fn pause_after_refusal(&mut self) -> Duration {
        self.naks = self.naks.saturating_add(1);
        let doubled = FIRST_PAUSE * 1_u32.checked_shl((self.naks - 1).min(8)).unwrap_or(1);
        let pause = doubled.min(LONGEST_PAUSE);
        pause / 2 + self.rng.below(pause / 2)
    }
}
