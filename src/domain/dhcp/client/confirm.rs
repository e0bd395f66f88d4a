//! Extending the lease of a held address: renewal, rebinding, and confirmation after a restart. In
//! all three cases, the REQUEST has the form that RFC 2131 defines for a restart (INIT-REBOOT).
//! Receivers of the messages:
//!
//! * Before T2, the first REQUESTs (`ALONE`) go only to the lease's server, if no router is between
//!   the client and this server. Reason: another authoritative server would refuse at once.
//! * All other REQUESTs are broadcast to all servers.
//! * After T2, the client also sends a DISCOVER beside each broadcast REQUEST, because a server
//!   without data about the lease answers only a DISCOVER. Exception: no DISCOVER is sent beside
//!   the first broadcast REQUEST of a renewal or confirmation.
//!
//! Invariants:
//!
//! * The client loses the lease before its expiry only if a server refuses the address (NAK), or
//!   grants another address.
//! * A refusal by the lease's own server counts at once. A refusal by another server counts only
//!   after several REQUESTs to all servers. If the lease has an expiry, T2 must also have passed.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::super::wire::ethernet::FrameAddresses;
use super::super::wire::message::{MessageKind, ReplyKind, ServerReply};
use super::super::{ClientEvent, ClientTrouble, GrantedLease, IgnoreReason, Mac};
use super::{ClientPhase, DhcpClient};

/// Maximum number of REQUESTs that are sent only to the server that granted the lease. Later
/// REQUESTs go to all servers.
const ALONE: u32 = 2;
/// Number of broadcast REQUESTs that must be sent before the client accepts a grant of a server
/// that did not grant the lease. After T2, the client accepts such a grant without this condition.
const BEFORE_OTHERS_GRANT: u32 = 2;
/// Number of broadcast REQUESTs that must be sent before the client accepts a refusal (NAK) of a
/// server that did not grant the lease. If the lease has an expiry, T2 must also have passed.
const BEFORE_OTHERS_REFUSE: u32 = 3;
/// Maximum number of REQUESTs after a restart or a change of the link. The client waits about a
/// minute in all for answers to them. If no server answers, the client goes on with the T1, T2 and
/// expiry that the lease had.
const AFTER_RESTART: u32 = 4;
/// Number of recent REQUESTs whose answers are accepted. An answer may arrive after the next
/// REQUEST was sent.
const REMEMBERED: usize = 4;

/// REQUEST that the client has sent. An answer to this REQUEST has the same `xid`.
#[derive(Clone, Copy, Debug)]
struct ConfirmAttempt {
    xid: u32,
    at: Duration,
    /// Server whose offer the REQUEST takes. `None`: the REQUEST takes no offer, and any server may
    /// answer.
    server: Option<Ipv4Addr>,
}

/// State of a client that asks servers to confirm or extend its lease.
#[derive(Clone, Debug, Default)]
pub struct Confirming {
    /// Whether the cause is a restart of the agent or a change of the link. `false`: the cause is
    /// that T1 has passed.
    pub restart: bool,
    began: Duration,
    tries: u32,
    /// Number of REQUESTs that were sent to all servers, not to one server alone.
    broadcasts: u32,
    asked: Vec<ConfirmAttempt>,
    /// The `xid` of the DISCOVER that was sent beside the last REQUEST. `None`: no DISCOVER was
    /// sent, or the client has taken an offer that answers it.
    search: Option<u32>,
    pub next: Duration,
}

impl Confirming {
    pub fn of_restart(start: Duration) -> Self {
        Self { restart: true, ..Self::of_renewal(start) }
    }

    pub fn of_renewal(start: Duration) -> Self {
        Self { began: start, next: start, ..Self::default() }
    }

    pub fn has_asked(&self) -> bool {
        self.tries > 0
    }

    pub fn has_asked_by(&self, xid: u32) -> bool {
        self.search == Some(xid) || self.asked.iter().any(|asked| asked.xid == xid)
    }

    fn remember(&mut self, asked: ConfirmAttempt) {
        if self.asked.len() == REMEMBERED {
            self.asked.remove(0);
        }
        self.asked.push(asked);
    }
}

impl DhcpClient {
    pub(super) fn confirming_due(&mut self, mut confirming: Confirming) {
        let Some(lease) = self.held.clone() else { return };
        if confirming.restart && confirming.tries >= AFTER_RESTART {
            confirming.restart = false;
            if self.now < lease.renew {
                self.phase = ClientPhase::Bound;
                return;
            }
        }
        let rebinding = lease.may_rebind(self.now);
        let secs = self.secs_since(confirming.began);
        let xid = self.rng.word();
        let alone = confirming.tries < ALONE && !rebinding && lease.is_server_near();
        let all = FrameAddresses::to_all(self.identity.mac);
        let way = if alone { self.way_to_server(&lease) } else { all };
        self.send(MessageKind::Confirm(lease.address), xid, secs, way);
        confirming.remember(ConfirmAttempt { xid, at: self.now, server: None });
        if confirming.tries > 0 {
            self.event(ClientEvent::Retry);
        }
        if !alone && rebinding && confirming.broadcasts > 0 {
            // A server that has no data about the lease does not answer the REQUEST. But it may
            // answer a DISCOVER with an offer of the same address.
            let search = self.rng.word();
            self.send(MessageKind::Discover(Some(lease.address)), search, secs, all);
            confirming.search = Some(search);
        }
        confirming.tries += 1;
        confirming.broadcasts += u32::from(!alone);
        confirming.next = if confirming.restart {
            self.now + self.patience(confirming.tries)
        } else {
            lease.ask_again(self.now)
        };
        let restart = confirming.restart;
        self.phase = ClientPhase::Confirming(confirming);
        if rebinding && !restart {
            self.record_trouble(if self.kept {
                ClientTrouble::Kept
            } else {
                ClientTrouble::ServerSilent
            });
        }
    }

    pub(super) fn receive_while_confirming(
        &mut self,
        confirming: Confirming,
        reply: &ServerReply,
        from: Mac,
    ) {
        let Some(lease) = self.held.clone() else { return };
        if reply.kind == ReplyKind::Offer {
            return self.offered_besides(reply, confirming, &lease);
        }
        let Some(asked) = confirming.asked.iter().find(|asked| asked.xid == reply.xid) else {
            return self.ignore(IgnoreReason::Unasked);
        };
        let own = reply.server == lease.server;
        let rebinding = lease.may_rebind(self.now);
        if reply.kind == ReplyKind::Nak {
            let late = rebinding || lease.expires.is_none();
            let heeded = own || (late && confirming.broadcasts >= BEFORE_OTHERS_REFUSE);
            self.event(ClientEvent::Nak { server: reply.server, heeded });
            if heeded {
                let pause = self.pause_after_refusal();
                self.lose(ClientTrouble::Refused, pause);
            }
            return;
        }
        let others = rebinding || confirming.broadcasts >= BEFORE_OTHERS_GRANT;
        let may = match asked.server {
            Some(chosen) => chosen == reply.server,
            None => own || others,
        };
        if !may {
            return self.ignore(IgnoreReason::OtherServer);
        }
        if self.check_offer(reply).is_err() {
            return;
        }
        let mut granted = GrantedLease::from_reply(reply, from, asked.at, self.options.phase);
        if granted.is_over(self.now) {
            return self.ignore(IgnoreReason::Unasked);
        }
        if granted.address != lease.address {
            self.lose(ClientTrouble::Changed, Duration::ZERO);
            return self.granted(granted);
        }
        granted.obtained = lease.obtained;
        self.hold(granted, false);
        let took = self.now.saturating_sub(confirming.began);
        self.event(ClientEvent::Renewed { server: reply.server, took });
        if !own {
            self.event(ClientEvent::ServerChanged { from: lease.server, to: reply.server });
        }
    }

    /// Handles an offer that came while the client asks servers to confirm its lease. The client
    /// ignores an offer that does not answer its last DISCOVER. For the other offers:
    ///
    /// * The client takes an offer of the held address, if the offer can be used.
    /// * The client ignores an offer of another address. Exception: if the held address is kept,
    ///   and the offer is from the lease's own server, the client loses the address, because this
    ///   server may grant the address to another client.
    fn offered_besides(
        &mut self,
        reply: &ServerReply,
        mut confirming: Confirming,
        lease: &GrantedLease,
    ) {
        if confirming.search != Some(reply.xid) {
            return self.ignore(IgnoreReason::Unasked);
        }
        if self.kept && reply.server == lease.server && reply.address != lease.address {
            return self.lose(ClientTrouble::Changed, Duration::ZERO);
        }
        if reply.address != lease.address || self.check_offer(reply).is_err() {
            return self.ignore(IgnoreReason::Unasked);
        }
        self.event(ClientEvent::Offered { server: reply.server, address: reply.address });
        let secs = self.secs_since(confirming.began);
        let all = FrameAddresses::to_all(self.identity.mac);
        let kind = MessageKind::Select(reply.address, reply.server);
        self.send(kind, reply.xid, secs, all);
        confirming.remember(ConfirmAttempt {
            xid: reply.xid,
            at: self.now,
            server: Some(reply.server),
        });
        confirming.search = None;
        self.phase = ClientPhase::Confirming(confirming);
    }
}
