//! A lease that is read from its durable record.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::super::granted_lease::LeaseTimes;
use super::super::{GrantedLease, Mac};

/// Lease of an earlier process, from the durable record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedLease {
    /// Leased IP address.
    pub address: Ipv4Addr,
    /// Length of the prefix of the address's subnet.
    pub prefix: Option<u8>,
    /// Router of the subnet.
    pub gateway: Option<Ipv4Addr>,
    /// Name servers of the subnet.
    pub name_servers: Vec<Ipv4Addr>,
    /// Server that granted the lease.
    pub server: Ipv4Addr,
    /// Station that the server's answer came from. `None`: the record does not contain it.
    pub server_mac: Option<Mac>,
    /// Stations that answered ARP for the address.
    pub announcers: Vec<Mac>,
    /// Lease time, in seconds. `None`: the lease never expires.
    pub seconds: Option<u32>,
    /// Time for which the address has been held, by the wall clock.
    pub age: Duration,
    /// Rest of the lease time, by the wall clock; zero if the lease is over. A rest longer than
    /// `seconds` counts as `seconds`, because the wall clock may have been set back.
    pub left: Duration,
}

impl RecordedLease {
    /// Converts the recorded lease to a lease on the client's clock. `left` is the rest of the
    /// lease time; `None`: the lease never expires.
    pub(super) fn lease(self, now: Duration, left: Option<Duration>) -> GrantedLease {
        let times = LeaseTimes::of(self.seconds.unwrap_or(u32::MAX), None, None);
        let expires = left.map(|left| now + left);
        // If T1 or T2 was before the start of the client's clock, it becomes zero: it is already
        // due.
        let since = |time: Duration| match (expires, times.end) {
            (Some(expires), Some(end)) => (expires + time).saturating_sub(end),
            _ => now + time,
        };
        GrantedLease {
            address: self.address,
            prefix: self.prefix,
            gateway: self.gateway,
            name_servers: self.name_servers,
            server: self.server,
            // If the server's station is not known, messages to the server go to all stations.
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

/// Address that the client held before it lost the lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct FormerAddress {
    pub(super) address: Ipv4Addr,
    pub(super) server: Ipv4Addr,
    /// Time until which a guest or kube-vip may still announce the address for this client. Until
    /// then, the address is not probed.
    pub(super) ours_until: Duration,
    /// Whether the client asks for the address again.
    pub(super) wanted: bool,
}
