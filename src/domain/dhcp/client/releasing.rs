//! Giving an address back to its server. Invariants:
//!
//! * No RELEASE is sent for a published address that a station still announces, because the server
//!   would grant the address to another host. For example, a guest announces the address until it
//!   has observed the deletion of its load balancer. So the client asks by ARP first. Exception: it
//!   does not ask if ARP probes are off, or if a station answers ARP for all addresses.
//! * No RELEASE is sent for a lease that has expired, because the server may have granted the
//!   address to another host since. A kept address may have such a lease.

use std::time::Duration;

use super::super::wire::arp::ArpPacket;
use super::super::{ClientAction, ClientEvent, GrantedLease};
use super::probe::Probing;
use super::{ClientPhase, DhcpClient};

/// Pause between the two RELEASEs of an address. A server does not answer a RELEASE, and may be too
/// busy to process the first one.
const RELEASE_AGAIN: Duration = Duration::from_secs(1);

impl DhcpClient {
    /// Gives the address back to its server by two RELEASEs, and ends the client. No RELEASE is
    /// sent if a station still answers ARP for the address, if the lease has expired, or if the
    /// link is down.
    pub fn release(&mut self, now: Duration) -> Vec<ClientAction> {
        self.enter(now);
        let (granted, held) = match (&self.phase, self.held.take()) {
            (ClientPhase::Released(_) | ClientPhase::Parting(_), _) => return self.leave(),
            (ClientPhase::Probing(probing), _) => (Some(probing.lease.clone()), None),
            (_, held) => (None, held),
        };
        (self.awaits, self.inquiry) = (None, None);
        match (granted.filter(|_| self.up), held.filter(|_| self.up)) {
            (Some(lease), _) => self.give_back(lease),
            (_, Some(lease)) => self.part_with(lease),
            _ => self.end(),
        }
        self.leave()
    }

    /// Puts off the next message of a release to the time `until`, because the caller must not send
    /// now. Does nothing if no release has begun. At `until`, the client starts again with the ARP
    /// questions, unless it asks none before a RELEASE. Reason: former questions may be lost, and a
    /// station may have taken the address since.
    pub fn put_off_release(&mut self, until: Duration) {
        let asks = self.asks_before_release();
        match &mut self.phase {
            ClientPhase::Parting(parting) => (parting.sent, parting.next) = (0, until),
            ClientPhase::Released(Some((_, lease))) if asks => {
                let lease = lease.clone();
                self.phase = ClientPhase::Parting(Probing { lease, sent: 0, next: until });
            }
            ClientPhase::Released(Some((again, _))) => *again = until,
            _ => {}
        }
    }

    /// Sends the first RELEASE, and plans the second one. If the lease has expired, the client ends
    /// without a RELEASE.
    pub(super) fn give_back(&mut self, lease: GrantedLease) {
        if lease.is_over(self.now) {
            return self.end();
        }
        self.send_release(&lease);
        self.phase = ClientPhase::Released(Some((self.now + RELEASE_AGAIN, lease)));
    }

    pub(super) fn release_again(&mut self) {
        if let ClientPhase::Released(Some((_, lease))) = &self.phase {
            let lease = lease.clone();
            // The lease may have expired while the release was put off.
            if self.up && !lease.is_over(self.now) {
                self.send_release(&lease);
            }
            self.event(ClientEvent::Released { address: lease.address });
        }
        self.end();
    }

    pub(super) fn end(&mut self) {
        self.phase = ClientPhase::Released(None);
        self.record(None);
        self.out.push(ClientAction::Done);
    }

    /// Whether the client asks by ARP before a RELEASE. It does not ask if ARP probes are off, or
    /// if a station answers ARP for all addresses.
    fn asks_before_release(&self) -> bool {
        self.asks_by_arp() && self.options.proxy.is_none()
    }

    /// Gives back the address of a held lease. If the client asks by ARP before a RELEASE, it first
    /// asks whether a station still has the address. If a station answers, the client sends no
    /// RELEASE.
    pub(super) fn part_with(&mut self, lease: GrantedLease) {
        if self.asks_before_release() {
            self.parting_due(Probing { lease, sent: 0, next: self.now });
        } else {
            self.give_back(lease);
        }
    }

    pub(super) fn parting_due(&mut self, mut parting: Probing) {
        let times = self.options.probe;
        if !self.up || parting.lease.is_over(self.now) {
            return self.end();
        }
        if parting.sent >= times.count {
            return self.give_back(parting.lease);
        }
        self.ask_who_has(parting.lease.address);
        parting.sent += 1;
        let last = parting.sent >= times.count;
        parting.next = self.now + if last { times.wait } else { times.shortest_gap };
        self.phase = ClientPhase::Parting(parting);
    }

    /// Checks an ARP frame that is received before the RELEASE. If the frame shows that a station
    /// has the address, the client ends without this RELEASE.
    pub(super) fn receive_while_parting(&mut self, arp: ArpPacket) {
        let ClientPhase::Parting(parting) = &self.phase else { return };
        let address = parting.lease.address;
        if arp.sender_ip == address && arp.sender != self.identity.mac {
            self.event(ClientEvent::NotReleased { address, by: arp.sender });
            self.end();
        }
    }
}
