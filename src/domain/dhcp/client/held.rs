//! A lease as its durable record has it.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::super::lease::Times;
use super::super::{Lease, Mac};

/// What the durable record says of a lease that an earlier process held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The address.
    pub address: Ipv4Addr,
    /// Length of its subnet's prefix.
    pub prefix: Option<u8>,
    /// The subnet's router.
    pub gateway: Option<Ipv4Addr>,
    /// The subnet's name servers.
    pub name_servers: Vec<Ipv4Addr>,
    /// The server that granted it.
    pub server: Ipv4Addr,
    /// The station that its answer came from.
    pub server_mac: Option<Mac>,
    /// Stations that answered for it.
    pub announcers: Vec<Mac>,
    /// For how long it was granted. `None`: for ever.
    pub seconds: Option<u32>,
    /// How long it has been held, by the wall clock.
    pub age: Duration,
    /// What is left of it, by the wall clock; zero when it is over. It counts for no more than
    /// `seconds`: a wall clock that was set back makes no lease longer.
    pub left: Duration,
}

impl Held {
    /// The lease, on the clock that began at zero.
    pub(super) fn lease(self, now: Duration, left: Option<Duration>) -> Lease {
        let times = Times::of(self.seconds.unwrap_or(u32::MAX), None, None);
        let expires = left.map(|left| now + left);
        // Before the clock began, if need be: then it is due already.
        let since = |time: Duration| match (expires, times.end) {
            (Some(expires), Some(end)) => (expires + time).saturating_sub(end),
            _ => now + time,
        };
        Lease {
            address: self.address,
            prefix: self.prefix,
            gateway: self.gateway,
            name_servers: self.name_servers,
            server: self.server,
            // Without it, all stations hear what is for one.
            server_mac: self.server_mac.unwrap_or(Mac::BROADCAST),
            seconds: self.seconds,
            obtained: now.saturating_sub(self.age),
            granted: since(Duration::ZERO),
            renew: since(times.t1),
            rebind: times.t2.map(since),
            expires,
        }
    }
}
