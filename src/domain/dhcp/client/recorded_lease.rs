//! A lease that the agent reads from a DHCPLease after a restart, and the address of a lease that a
//! client has lost.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::super::granted_lease::LeaseTimes;
use super::super::{GrantedLease, Mac};

/// Lease that the client held in a former term, as read from the DHCPLease. Another agent may have
/// led in that term.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedLease {
    /// Leased IP address.
    pub address: Ipv4Addr,
    /// Length of the subnet's prefix. `None`: not known.
    pub prefix: Option<u8>,
    /// Router of the subnet. `None`: not known.
    pub gateway: Option<Ipv4Addr>,
    /// Name servers of the subnet.
    pub name_servers: Vec<Ipv4Addr>,
    /// Server that granted the lease.
    pub server: Ipv4Addr,
    /// Station that sent the server's answer. `None`: the record does not name it.
    pub server_mac: Option<Mac>,
    /// Stations that answered ARP for the address.
    pub announcers: Vec<Mac>,
    /// Lease time, in seconds. `None`: the lease never expires.
    pub seconds: Option<u32>,
    /// Time for which the address has been held, by the wall clock.
    pub age: Duration,
    /// Time until the lease expires, by the wall clock. Zero: the lease has expired. A time longer
    /// than `seconds` counts as `seconds`, because the wall clock may have been set back. If the
    /// lease never expires, this field is not used.
    pub left: Duration,
}

impl RecordedLease {
    /// Converts the recorded lease to a lease with times on the client's clock. `now`: present time
    /// on this clock. `left`: time until the lease expires. `None`: the lease never expires.
    pub(super) fn lease(self, now: Duration, left: Option<Duration>) -> GrantedLease {
        let times = LeaseTimes::of(self.seconds.unwrap_or(u32::MAX), None, None);
        let expires = left.map(|left| now + left);
        // A T1 or T2 that lies before the start of the client's clock becomes zero. So the request
        // at this time is due at once.
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
            // If the station of the server is not known, messages to the server are broadcast.
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

/// Address of a lease that the client has lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct FormerAddress {
    pub(super) address: Ipv4Addr,
    pub(super) server: Ipv4Addr,
    /// Time until which a guest or kube-vip may still announce the address for this client. If the
    /// address is granted before this time, the client does not probe the address.
    pub(super) ours_until: Duration,
    /// Whether the client requests this address again. `false`: servers have refused the client too
    /// often (`MOST_WISHES` in `acquire.rs`).
    pub(super) wanted: bool,
}
