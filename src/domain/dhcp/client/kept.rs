//! An address that is kept after its lease has ended without an answer, where the network's `onLeaseLoss`
//! is `Keep`.
//!
//! RFC 2131, 4.4.5 has a client stop using it. Behind a guest that goes on announcing it in any case, and
//! where a DHCP server that is away is likelier than an address that is granted twice, traffic that goes on
//! is worth more. Servers go on being asked; one that refuses the address ends it, and so does the lease's
//! own server by offering another. Invariant: once two hosts have the address, two questions later it is
//! lost.

use super::super::{Lost, Mac, Trouble};
use super::announcing::{Announced, Look, Subject};
use super::{Client, part};

/// Number of questions in a row, answered by two stations, that show that another host has the address. Once is
/// what an announcer does that moves to another node.
const MOST_DOUBLE: u32 = 2;

impl Client {
    /// The lease has ended, and its address is kept.
    pub(super) fn keep(&mut self) {
        let Some(lease) = &self.held else { return };
        self.kept = true;
        let about = self.announced.clone().unwrap_or_else(|| Announced::new(lease.address));
        let now = self.now;
        let ask = |about| Look::new(about, Subject::Kept(Vec::new()), now);
        self.look = self.asks_by_arp().then(|| ask(about));
        self.record(Some(Trouble::Kept));
    }

    /// Judges the stations that answered for the address that is kept. One alone may be its announcer, which has moved.
    pub(super) fn kept_answered(&mut self, mut look: Look, stations: &[Mac]) {
        let is_strange = |station: &&Mac| !look.is_announcer(**station);
        let stranger = stations.iter().find(is_strange).filter(|_| stations.len() > 1).copied();
        look.tally = stranger.map_or(0, |_| look.tally + 1);
        match stranger {
            Some(station) if look.tally >= MOST_DOUBLE => {
                let pause = part(self.options.phase, self.options.start_within);
                self.lose(Lost::Taken, Trouble::Taken(station), pause);
            }
            _ => self.look_again(look),
        }
    }
}
