//! A granted lease, the times of its renewal (T1) and of its rebinding (T2), and its expiry.
//!
//! Times are offsets on one clock. This clock cannot be set, and it runs on while the host sleeps.
//! The lease time is counted from the client's request, not from the server's answer. Invariants of
//! a lease that is made from a server's message:
//!
//! * granted < T1 < T2 < expiry
//! * T1 and T2 are at least a second after `granted`, so that they cause no busy loop.

use std::net::Ipv4Addr;
use std::time::Duration;

use ipnet::Ipv4Net;

use super::Mac;
use super::wire::message::ServerReply;

/// Lease time of a lease that never expires, in seconds.
const FOR_EVER: u32 = u32::MAX;
/// Interval at which the client asks the server to confirm a lease that never expires. The server
/// may have lost its data about the lease.
const DAILY: Duration = Duration::from_hours(24);
/// Maximum time over which the renewals of many leases are spread.
const WIDEST_SPREAD: Duration = Duration::from_mins(10);
/// Shortest T1 that is accepted from a server. For a lease shorter than two minutes, the limit is a
/// quarter of the lease time instead. If a server sends a shorter T1, the defaults for T1 and T2
/// are used.
const EARLIEST_T1: Duration = Duration::from_secs(30);

/// Lease that a server has granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantedLease {
    /// Leased IP address.
    pub address: Ipv4Addr,
    /// Length of the subnet's prefix. `None`: the server sent no valid mask.
    pub prefix: Option<u8>,
    /// Router of the subnet. `None`: the server sent no valid one.
    pub gateway: Option<Ipv4Addr>,
    /// Name servers of the subnet.
    pub name_servers: Vec<Ipv4Addr>,
    /// Server that granted the lease.
    pub server: Ipv4Addr,
    /// Station that sent the server's answer: the server itself, or the router on the way to it.
    /// Broadcast address: the station is not known.
    pub server_mac: Mac,
    /// Lease time, in seconds. `None`: the lease never expires.
    pub seconds: Option<u32>,
    /// Time of the REQUEST that first got this address. A renewal does not change this time.
    pub obtained: Duration,
    /// Time of the REQUEST that the last grant answers. If the client sent this REQUEST several
    /// times: time of the first one. The lease time starts at this time.
    pub granted: Duration,
    /// T1: time from which the client asks the lease's server to extend the lease.
    pub renew: Duration,
    /// T2: time from which the client asks any server to extend the lease. `None`: the lease never
    /// expires, and has no T2.
    pub rebind: Option<Duration>,
    /// Expiry of the lease. `None`: the lease never expires.
    pub expires: Option<Duration>,
}

impl GrantedLease {
    /// Lease that the message `reply` grants. `mac`: station that sent the message. `granted`:
    /// start of the lease time, which is the time of the client's REQUEST. `phase`: number that
    /// makes renewals of many leases come at different times.
    pub(super) fn from_reply(reply: &ServerReply, mac: Mac, granted: Duration, phase: u32) -> Self {
        let seconds = reply.seconds.unwrap_or(0);
        let times = LeaseTimes::of(seconds, reply.t1, reply.t2);
        let renew = on_grid(granted + times.t1, times.spread(), phase);
        Self {
            address: reply.address,
            prefix: reply.prefix,
            gateway: reply.gateway,
            name_servers: reply.name_servers.clone(),
            server: reply.server,
            server_mac: mac,
            seconds: (seconds != FOR_EVER).then_some(seconds),
            obtained: granted,
            granted,
            renew: renew.max(granted + Duration::from_secs(1)),
            rebind: times.t2.map(|t2| granted + t2),
            expires: times.end.map(|end| granted + end),
        }
    }

    /// Whether the lease has expired at `now`.
    pub fn is_over(&self, now: Duration) -> bool {
        self.expires.is_some_and(|end| now >= end)
    }

    /// Whether T2 has passed at `now`. After T2, any server may extend the lease. `false` for a
    /// lease that never expires.
    pub(super) fn may_rebind(&self, now: Duration) -> bool {
        self.rebind.is_some_and(|rebind| now >= rebind)
    }

    /// Whether the lease's server is in the subnet of the leased address, so that no router is
    /// between the client and the server. `false` if the subnet is not known.
    pub(super) fn is_server_near(&self) -> bool {
        let subnet = self.prefix.and_then(|prefix| Ipv4Net::new(self.address, prefix).ok());
        subnet.is_some_and(|subnet| subnet.contains(&self.server))
    }

    /// Minimum time between two REQUESTs for an extension of this lease. It is a twentieth of the
    /// lease time, but at least a second and at most a minute.
    fn shortest_wait(&self) -> Duration {
        let seconds = self.seconds.unwrap_or(u32::MAX);
        Duration::from_secs(u64::from((seconds / 20).clamp(1, 60)))
    }

    /// Time of the next REQUEST, if no server answers the REQUEST that is sent at `now`. The time
    /// between the two REQUESTs is:
    ///
    /// * before T2: half of the time until T2
    /// * after T2: half of the time until the expiry
    /// * after the expiry, if the address is kept: [`Self::shortest_wait`]
    /// * for a lease that never expires: one hour
    ///
    /// In the first two cases, the time is at least [`Self::shortest_wait`], but it ends at T2, or
    /// at the expiry, at the latest.
    pub(super) fn ask_again(&self, now: Duration) -> Duration {
        let rebind = self.rebind.filter(|rebind| now < *rebind);
        match rebind.or(self.expires) {
            Some(end) if end <= now => now + self.shortest_wait(),
            Some(until) => {
                let left = until.saturating_sub(now);
                (now + self.shortest_wait().max(left / 2)).min(until)
            }
            None => now + Duration::from_hours(1),
        }
    }
}

/// T1, T2 and expiry of a lease, as durations from the start of the lease time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeaseTimes {
    pub t1: Duration,
    pub t2: Option<Duration>,
    pub end: Option<Duration>,
}

impl LeaseTimes {
    /// Times of a lease of `seconds`. `t1`, `t2`: the values that the server sent, in seconds. The
    /// default for a missing T1 is half of the lease time, and for a missing T2 seven eighths. Both
    /// defaults are used if T1 is earlier than [`EARLIEST_T1`] allows, or if T1 < T2 < lease time
    /// does not hold. A lease that never expires has a T1 of one day and no T2.
    pub fn of(seconds: u32, t1: Option<u32>, t2: Option<u32>) -> Self {
        if seconds == FOR_EVER {
            return Self { t1: DAILY, t2: None, end: None };
        }
        let time = |seconds: u32| Duration::from_secs(seconds.into());
        let end = time(seconds);
        let (half, late) = (end / 2, end * 7 / 8);
        let (said1, said2) = (t1.map_or(half, time), t2.map_or(late, time));
        let sane = said1 >= EARLIEST_T1.min(end / 4) && said1 < said2 && said2 < end;
        let (t1, t2) = if sane { (said1, said2) } else { (half, late) };
        Self { t1, t2: Some(t2), end: Some(end) }
    }

    /// Length of the time before T1 over which the renewals of many leases are spread: a fifth of
    /// the lease time, but at most half of T1, and at most [`WIDEST_SPREAD`]. [`on_grid`] needs the
    /// same spread for all leases of the same length. The spread may differ if a server sends a T1
    /// below two fifths of the lease time.
    fn spread(&self) -> Duration {
        let whole = self.end.unwrap_or(DAILY);
        (whole / 5).min(self.t1 / 2).min(WIDEST_SPREAD)
    }
}

/// Time of a lease's renewal: the last grid time that is not after `latest`. The grid times are
/// `width` apart. `phase`: phase of the lease's client ([`super::phase`]), which shifts the grid by
/// `width * phase / 2^32`. If two clients have different phases and the same `width`, their
/// renewals stay apart, however often the clients renew. If `width` is zero, the result is
/// `latest`.
fn on_grid(latest: Duration, width: Duration, phase: u32) -> Duration {
    let nanos = width.as_nanos();
    if nanos == 0 {
        return latest;
    }
    let offset = (nanos * u128::from(phase)) >> 32;
    let past = (latest.as_nanos() + nanos - offset) % nanos;
    latest.saturating_sub(Duration::from_nanos(u64::try_from(past).unwrap_or(0)))
}

#[cfg(test)]
pub(super) mod tests;
