//! Asking whether somebody has a fresh address, and handing it back if so: RFC 5227.
//!
//! Invariant: only an address that was just granted and never published is asked about. One that is
//! published is announced by somebody for us, who would answer.

use std::time::Duration;

use super::super::wire::arp::Arp;
use super::super::wire::message::Say;
use super::super::{Event, Ignored, Lease, Trouble};
use super::{Client, Phase};

/// RFC 2131, 3.1: the pause after a DECLINE, so that it may be processed.
const PAUSE: Duration = Duration::from_secs(10);
/// RFC 5227, `MAX_CONFLICTS`: so many addresses are declined one after the other.
const MOST_CONFLICTS: u32 = 10;
/// Then none is asked for in so long. A server holds back what was declined for a day or so: RFC 5227's
/// one address a minute would take all that it has.
const CONFLICTS_PAUSE: Duration = Duration::from_hours(1);
/// Pause where a station answers for every address: nothing is declined, the server offers the same again.
const PROXY_PAUSE: Duration = Duration::from_mins(1);

/// An address was granted.
#[derive(Clone, Debug)]
pub struct Probing {
    pub lease: Lease,
    sent: u32,
    pub next: Duration,
}

impl Probing {
    pub fn of(lease: Lease, client: &mut Client) -> Self {
        let first = client.dice.below(client.options.probe.first_within);
        Self { lease, sent: 0, next: client.now + first }
    }
}

impl Client {
    pub(super) fn probing_due(&mut self) {
        let Phase::Probing(probing) = &self.phase else { return };
        let mut probing = probing.clone();
        let times = self.options.probe;
        if probing.lease.is_over(self.now) {
            return self.discover();
        }
        if probing.sent >= times.count {
            self.event(Event::Undisputed);
            return self.acquired(probing.lease);
        }
        self.ask_who_has(probing.lease.address);
        probing.sent += 1;
        let gap = times.longest_gap.saturating_sub(times.shortest_gap);
        let gap = times.shortest_gap + self.dice.below(gap);
        let wait = if probing.sent < times.count { gap } else { times.wait };
        probing.next = self.now + wait;
        self.phase = Phase::Probing(probing);
    }

    pub(super) fn heard_arp(&mut self, arp: Arp) {
        if matches!(self.phase, Phase::Parting(_)) {
            return self.parting_heard(arp);
        }
        if self.look_heard(arp) {
            return;
        }
        let Phase::Probing(probing) = &self.phase else {
            return self.ignore(Ignored::Unasked);
        };
        let Lease { address, server, server_mac, .. } = probing.lease;
        if !arp.disputes(address, self.identity.mac) {
            return self.ignore(Ignored::NotOurs);
        }
        if self.announces_for_us(address, arp.sender) {
            let lease = probing.lease.clone();
            return self.acquired(lease);
        }
        if self.options.proxy == Some(arp.sender) {
            // Its server keeps the address for this client, and offers it again.
            self.phase = Phase::Waiting(self.now + PROXY_PAUSE);
            return self.tell(Trouble::AnswersForAll(arp.sender));
        }
        let exchange = self.exchange();
        self.say_to_all(Say::Decline(address, server), &exchange);
        self.event(Event::Declined { address, by: arp.sender, server: server_mac });
        self.conflicts = self.conflicts.saturating_add(1);
        let (pause, trouble) = if self.conflicts < MOST_CONFLICTS {
            (PAUSE, Trouble::AddressInUse(arp.sender))
        } else {
            (CONFLICTS_PAUSE, Trouble::TooManyInUse(arp.sender))
        };
        self.former = self.former.filter(|former| former.address != address);
        self.phase = Phase::Waiting(self.now + pause);
        self.tell(trouble);
    }
}
