//! DHCP client of one lease. The caller reports inputs, such as a received frame, and gets actions
//! to carry out ([`ClientAction`]). Invariants:
//!
//! * The client sends only while its link is up.
//! * The client sends a message only at a planned time, in a call of [`DhcpClient::release`], or
//!   once in answer to a frame that the client waits for. So a flood of received frames causes no
//!   flood of sent frames.
//! * If the lease has expired, the client loses or keeps its address before it handles an input.
//! * A new address may be used only after its record was written ([`DhcpClient::record_written`]).
//!
//! Times are offsets on one clock (`CLOCK_BOOTTIME`). This clock cannot be set, and it runs on
//! while the host sleeps. If the clock seems to run backwards, it counts as stopped.

mod acquire;
mod address_inquiry;
mod confirm;
pub(crate) mod jitter;
mod kept_address;
mod offer_check;
mod options;
pub(crate) mod output;
mod probe;
mod recorded_lease;
mod releasing;
mod send;

use std::net::Ipv4Addr;
use std::time::Duration;

use super::wire::ethernet::{self, FrameContent};
use super::wire::message;
use super::{
    ClientAction, ClientEvent, ClientIdentity, ClientTrouble, FrameFilter, GrantedLease,
    IgnoreReason, LeaseRecord, Mac,
};
use acquire::{Requesting, Selecting};
use address_inquiry::{AddressInquiry, FIRST_INQUIRY};
use api::LeaseState;
use confirm::Confirming;
use jitter::{JitterRng, part};
pub use options::{ClientOptions, ProbeTiming};
pub use output::AnnouncedAddress;
use probe::Probing;
use recorded_lease::FormerAddress;
pub use recorded_lease::RecordedLease;

/// Time for which a guest or kube-vip may still announce an address after its loss. If the address
/// is granted again within this time, the client does not probe it: the announcer would answer, and
/// could count as another host.
const STILL_OURS: Duration = Duration::from_mins(5);

/// Phase of a client in the DHCP protocol. The held lease is stored in [`DhcpClient::held`].
#[derive(Clone, Debug)]
enum ClientPhase {
    /// The client sends no DHCP message until this time. Then it sends a DISCOVER.
    Waiting(Duration),
    Selecting(Selecting),
    Requesting(Requesting),
    Probing(Probing),
    /// The client sends no DHCP message until T1.
    Bound,
    Confirming(Confirming),
    /// ARP questions before a RELEASE. The RELEASE follows only if no station has the address.
    Parting(Probing),
    /// The client ends. `Some`: time of the second RELEASE, and the lease whose address the client
    /// gives back. `None`: the client sends nothing more.
    Released(Option<(Duration, GrantedLease)>),
}

/// DHCP client of one lease.
#[derive(Clone, Debug)]
pub struct DhcpClient {
    identity: ClientIdentity,
    options: ClientOptions,
    rng: JitterRng,
    now: Duration,
    up: bool,
    phase: ClientPhase,
    held: Option<GrantedLease>,
    /// Serial of the record that must be written before the address is used. `None`: no record.
    awaits: Option<u64>,
    serial: u64,
    former: Option<FormerAddress>,
    /// Address that the client holds or held last, and the stations that answered ARP for it.
    announced: Option<AnnouncedAddress>,
    inquiry: Option<AddressInquiry>,
    /// Whether the client keeps the address although the held lease has expired.
    kept: bool,
    /// Lost address that a station still announces, and this station. `None`: no such address.
    still: Option<(Ipv4Addr, Mac)>,
    /// Start of the search for an address. After a loss: time of the loss. After the client's
    /// creation, or a link change while no lease is held: planned time of the next DISCOVER.
    began: Duration,
    /// Number of refusals since the client last got or renewed a lease: accepted NAKs, and, while
    /// no lease was held, grants that cannot be used.
    naks: u32,
    /// Number of addresses that the client declined since it last got or renewed a lease.
    conflicts: u32,
    trouble: Option<ClientTrouble>,
    /// The `xid` of the last message that the client sent.
    spoken: u32,
    out: Vec<ClientAction>,
}

impl DhcpClient {
    /// Creates a client without an address. It begins its search within `options.start_within`.
    pub fn new(identity: ClientIdentity, options: ClientOptions, seed: u64, now: Duration) -> Self {
        let start = now + part(options.phase, options.start_within);
        Self {
            identity,
            options,
            rng: JitterRng::new(seed),
            now,
            up: true,
            phase: ClientPhase::Waiting(start),
            held: None,
            awaits: None,
            serial: 0,
            former: None,
            announced: None,
            inquiry: None,
            kept: false,
            still: None,
            began: start,
            naks: 0,
            conflicts: 0,
            trouble: None,
            spoken: 0,
            out: Vec::new(),
        }
    }

    /// Creates a client that resumes the recorded lease `held`, and begins to confirm it within
    /// `options.resume_within`. The address may be used at once, unless the lease has expired and
    /// `options.keep` is `false`. In this case, the client loses the address and requests it again.
    pub fn resume(
        identity: ClientIdentity,
        options: ClientOptions,
        held: RecordedLease,
        seed: u64,
        now: Duration,
    ) -> Self {
        let mut client = Self::new(identity, options, seed, now);
        client.announced =
            Some(AnnouncedAddress { address: held.address, by: held.announcers.clone() });
        let whole = held.seconds.map(|seconds| Duration::from_secs(seconds.into()));
        let left = whole.map(|whole| held.left.min(whole));
        client.held = Some(held.lease(now, left));
        let ClientOptions { resume_within, phase, .. } = client.options;
        let spread = left.map_or(resume_within, |left| resume_within.min(left / 4));
        let start = now + part(phase, spread);
        client.phase = ClientPhase::Confirming(Confirming::of_restart(start));
        client
    }

    /// Makes the client request the lost address `announced` first. If ARP probes are on, the
    /// client also asks by ARP whether the address's announcers still announce it. Precondition:
    /// the client has no lease, and the address was lost before this client was created.
    #[must_use]
    pub fn remembering(mut self, announced: AnnouncedAddress) -> Self {
        self.former = Some(FormerAddress {
            address: announced.address,
            server: Ipv4Addr::UNSPECIFIED,
            ours_until: self.now,
            wanted: true,
        });
        self.announced = Some(announced);
        self.ask_after_loss();
        self
    }

    /// Time at which [`DhcpClient::poll`] must be called. `None`: no call is due.
    pub fn deadline(&self) -> Option<Duration> {
        let inquiry = self.inquiry.as_ref().map(|inquiry| inquiry.next).filter(|_| self.up);
        let end = self.held.as_ref().filter(|_| !self.kept).and_then(|lease| lease.expires);
        self.next().into_iter().chain(inquiry).chain(end).min()
    }

    /// Time of the next step of the phase. `None`: no step is planned.
    fn next(&self) -> Option<Duration> {
        let under_way = match &self.phase {
            ClientPhase::Released(again) => return again.as_ref().map(|(at, _)| *at),
            ClientPhase::Parting(parting) => return Some(parting.next),
            ClientPhase::Waiting(until) => Some(*until),
            ClientPhase::Selecting(selecting) => Some(selecting.deadline()),
            ClientPhase::Requesting(requesting) => Some(requesting.exchange.next),
            ClientPhase::Probing(probing) => Some(probing.next),
            ClientPhase::Bound => self.held.as_ref().map(|lease| lease.renew),
            ClientPhase::Confirming(confirming) => Some(confirming.next),
        };
        under_way.filter(|_| self.up)
    }

    /// Filter for the frames that the client needs. The caller must set it before it sends a frame.
    pub fn listening(&self) -> FrameFilter {
        match &self.phase {
            _ if !self.up => FrameFilter::Nothing,
            ClientPhase::Probing(_) | ClientPhase::Parting(_) => FrameFilter::DhcpAndArp,
            _ if self.inquiry.as_ref().is_some_and(|open| open.waits) => FrameFilter::DhcpAndArp,
            ClientPhase::Waiting(_) | ClientPhase::Bound | ClientPhase::Released(_) => {
                FrameFilter::Nothing
            }
            ClientPhase::Confirming(confirming) if !confirming.has_asked() => FrameFilter::Nothing,
            ClientPhase::Selecting(_) | ClientPhase::Requesting(_) | ClientPhase::Confirming(_) => {
                FrameFilter::Dhcp
            }
        }
    }

    /// State of the client. `Probing` lasts from the grant of a new address until its record is
    /// written. The state is also `Probing` during the ARP questions before a RELEASE.
    pub fn state(&self) -> LeaseState {
        match &self.phase {
            ClientPhase::Waiting(_) if self.former.is_some() => LeaseState::Lost,
            ClientPhase::Waiting(_) | ClientPhase::Selecting(_) => LeaseState::Selecting,
            ClientPhase::Requesting(_) => LeaseState::Requesting,
            ClientPhase::Probing(_) | ClientPhase::Parting(_) => LeaseState::Probing,
            ClientPhase::Released(_) => LeaseState::Released,
            _ if self.awaits.is_some() => LeaseState::Probing,
            ClientPhase::Bound => LeaseState::Bound,
            ClientPhase::Confirming(confirming) if confirming.restart => LeaseState::Rebooting,
            ClientPhase::Confirming(_) if self.may_rebind() => LeaseState::Rebinding,
            ClientPhase::Confirming(_) => LeaseState::Renewing,
        }
    }

    /// Held lease. `None`: the client holds no lease, or the lease's record is not written yet.
    pub fn lease(&self) -> Option<&GrantedLease> {
        self.held.as_ref().filter(|_| self.awaits.is_none())
    }

    /// Whether the client asks servers to confirm or extend a lease whose address may be used.
    pub fn renews(&self) -> bool {
        self.lease().is_some() && matches!(self.phase, ClientPhase::Confirming(_))
    }

    /// Evaluates a received, whole Ethernet frame. Returns the actions for the caller.
    pub fn receive(&mut self, frame: &[u8], now: Duration) -> Vec<ClientAction> {
        self.enter(now);
        match ethernet::read(frame) {
            _ if !self.up || matches!(self.phase, ClientPhase::Released(_)) => {}
            None => self.ignore(IgnoreReason::Malformed),
            Some(FrameContent::Arp(arp)) => self.receive_arp(arp),
            Some(FrameContent::Udp(datagram)) if datagram.port == ethernet::SERVER_PORT => {
                self.receive_client_message(datagram);
            }
            Some(FrameContent::Udp(datagram)) => {
                match message::read(datagram.payload, &self.identity) {
                    Ok(reply) => self.receive_reply(&reply, datagram.source),
                    Err(why) => self.ignore(why),
                }
            }
        }
        self.leave()
    }

    /// Takes the steps that are due at `now`. Returns the actions that the caller must carry out.
    pub fn poll(&mut self, now: Duration) -> Vec<ClientAction> {
        self.enter(now);
        let is_due = |at: Option<Duration>| at.is_some_and(|at| at <= self.now);
        let inquiry = self.inquiry.as_ref().map(|inquiry| inquiry.next).filter(|_| self.up);
        let (asks, goes_on) = (is_due(inquiry), is_due(self.next()));
        if asks {
            self.inquiry_due();
        }
        if goes_on {
            match self.phase.clone() {
                ClientPhase::Waiting(_) => self.discover(),
                ClientPhase::Selecting(selecting) => self.selecting_due(selecting),
                ClientPhase::Requesting(requesting) => self.requesting_due(requesting),
                ClientPhase::Probing(probing) => self.probing_due(probing),
                ClientPhase::Bound => self.confirming_due(Confirming::of_renewal(self.now)),
                ClientPhase::Confirming(confirming) => self.confirming_due(confirming),
                ClientPhase::Parting(parting) => self.parting_due(parting),
                ClientPhase::Released(_) => self.release_again(),
            }
        }
        self.leave()
    }

    /// Sets whether the link is up. While the link is down, the client sends nothing, and the lease
    /// time runs on. When the link is up again, the client asks servers to confirm its lease, or
    /// searches for an address. After a call of [`DhcpClient::release`], the client does neither. A
    /// new client assumes that its link is up.
    pub fn set_link(&mut self, up: bool, now: Duration) -> Vec<ClientAction> {
        self.enter(now);
        let changed = up != self.up;
        self.up = up;
        if changed && !matches!(self.phase, ClientPhase::Released(_) | ClientPhase::Parting(_)) {
            let start = self.now + part(self.options.phase, self.options.start_within);
            if self.held.is_some() {
                // The link may now lead to another network, without the server of the lease.
                self.phase = ClientPhase::Confirming(Confirming::of_restart(start));
            } else {
                self.began = start;
                self.phase = ClientPhase::Waiting(start);
            }
        }
        self.leave()
    }

    /// Notes that the record `serial` was written. From now on, the record's address may be used.
    pub fn record_written(&mut self, serial: u64, now: Duration) -> Vec<ClientAction> {
        self.enter(now);
        if self.awaits.is_some_and(|awaited| serial >= awaited) {
            self.awaits = None;
            self.ask_for_announcer_after(FIRST_INQUIRY);
        }
        self.leave()
    }

    /// Sets the station that answers ARP for all addresses. `None`: no such station is known.
    pub fn set_proxy(&mut self, proxy: Option<Mac>) {
        self.options.proxy = proxy;
    }

    /// Moves the client's clock forward to `now`. If the lease has expired, the client keeps the
    /// address or loses it. It keeps the address only if `options.keep` is set and the record with
    /// the address was written. Each method that gets the current time calls this method first.
    fn enter(&mut self, now: Duration) {
        self.now = self.now.max(now);
        if self.kept || !self.held.as_ref().is_some_and(|lease| lease.is_over(self.now)) {
            return;
        }
        if self.options.keep && self.awaits.is_none() {
            self.keep_address();
        } else {
            let pause = part(self.options.phase, self.options.start_within);
            self.lose(ClientTrouble::Expired, pause);
        }
    }

    fn leave(&mut self) -> Vec<ClientAction> {
        std::mem::take(&mut self.out)
    }

    fn may_rebind(&self) -> bool {
        self.held.as_ref().is_some_and(|lease| lease.may_rebind(self.now))
    }

    /// Gives up the address, and records the loss. After `pause`, the client begins to ask for an
    /// address again.
    fn lose(&mut self, why: ClientTrouble, pause: Duration) {
        let Some(lease) = self.held.take() else { return };
        (self.awaits, self.kept) = (None, false);
        self.began = self.now;
        self.former = Some(FormerAddress {
            address: lease.address,
            server: lease.server,
            ours_until: self.now + STILL_OURS,
            wanted: true,
        });
        self.phase = ClientPhase::Waiting(self.now + pause);
        self.ask_after_loss();
        self.record(Some(why));
        self.event(ClientEvent::Lost { address: lease.address, why });
    }

    /// Makes `lease` the held lease. If `fresh` is `true`, the address is a new one, and its record
    /// must be written before the address is used. `false`: the held lease was renewed.
    fn hold(&mut self, lease: GrantedLease, fresh: bool) {
        let announced = self.announced.take().filter(|known| known.address == lease.address);
        self.announced = Some(announced.unwrap_or_else(|| AnnouncedAddress::new(lease.address)));
        if self.inquiry.as_ref().is_some_and(|inquiry| inquiry.about.address == lease.address) {
            (self.inquiry, self.still) = (None, None);
        }
        self.held = Some(lease);
        self.kept = false;
        self.phase = ClientPhase::Bound;
        self.former = None;
        (self.naks, self.conflicts) = (0, 0);
        if fresh {
            self.awaits = Some(self.serial + 1);
        } else {
            self.ask_for_announcer_after(Duration::ZERO);
        }
        self.record(None);
    }

    /// Adds a record of the present state, with this trouble, to the actions for the caller.
    fn record(&mut self, trouble: Option<ClientTrouble>) {
        self.serial += 1;
        self.trouble = trouble;
        let state = match &self.phase {
            // The record says `Bound`: after the record is written, the address may be used.
            ClientPhase::Bound => LeaseState::Bound,
            _ => self.state(),
        };
        let record = LeaseRecord {
            serial: self.serial,
            state,
            lease: self.held.clone(),
            trouble,
            keeps: self.options.keep,
            announced: self.announced.clone(),
            still_announced: self.still,
        };
        self.out.push(ClientAction::Record(record));
    }

    /// Adds a record with this trouble to the actions, unless the last record has the same trouble.
    fn record_trouble(&mut self, trouble: ClientTrouble) {
        if self.trouble != Some(trouble) {
            self.record(Some(trouble));
        }
    }

    fn event(&mut self, event: ClientEvent) {
        self.out.push(ClientAction::Event(event));
    }

    fn ignore(&mut self, why: IgnoreReason) {
        self.event(ClientEvent::Ignored(why));
    }

    /// Reports another client with this client's hardware address, if the message is from such a
    /// client. A message with an `xid` that this client has recently used is this client's own: a
    /// loop in the network has returned it.
    fn receive_client_message(&mut self, datagram: ethernet::UdpDatagram<'_>) {
        let xid = message::client_xid(datagram.payload);
        let ours = message::holder(datagram.payload) == Some(self.identity.mac);
        match xid {
            Some(xid) if ours && !self.has_asked(xid) => {
                self.event(ClientEvent::Duplicate { from: datagram.source });
            }
            _ => self.ignore(IgnoreReason::NotOurs),
        }
    }

    fn has_asked(&self, xid: u32) -> bool {
        match &self.phase {
            ClientPhase::Selecting(selecting) => selecting.exchange.xid == xid,
            ClientPhase::Requesting(requesting) => requesting.exchange.xid == xid,
            ClientPhase::Confirming(confirming) => confirming.has_asked_by(xid),
            _ => self.spoken == xid,
        }
    }

    fn receive_reply(&mut self, reply: &message::ServerReply, from: Mac) {
        match self.phase.clone() {
            ClientPhase::Selecting(state) => self.receive_while_selecting(state, reply),
            ClientPhase::Requesting(state) => self.receive_while_requesting(&state, reply, from),
            ClientPhase::Confirming(state) => self.receive_while_confirming(state, reply, from),
            _ => self.ignore(IgnoreReason::Unasked),
        }
    }
}

#[cfg(test)]
mod tests;
