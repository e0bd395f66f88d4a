//! Check of offers and grants. The client refuses an unusable offer or grant of any server.
//!
//! Invariant: the client refuses an address that could take over a host's own traffic, such as a
//! loopback or multicast address. The controller checks for other conflicts (ranges of pools, other
//! LoadBalancers).

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use super::super::wire::message::ServerReply;

/// Shortest lease time that is accepted, in seconds. A client would have to renew a shorter lease
/// all the time.
pub const SHORTEST_LEASE: u32 = 10;

/// Reason why an offer or a grant cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum OfferFault {
    /// The address is in 0.0.0.0/8.
    #[error("it cannot be the address of a host")]
    Unspecified,
    /// The address is in 127.0.0.0/8.
    #[error("it is a loopback address")]
    Loopback,
    /// The address is in 169.254.0.0/16.
    #[error("it is a link-local address")]
    LinkLocal,
    /// The address is in 224.0.0.0/4.
    #[error("it is a multicast address")]
    Multicast,
    /// The address is in 240.0.0.0/4.
    #[error("it is in the reserved range 240.0.0.0/4")]
    Reserved,
    /// The address is 255.255.255.255, or the last address of its subnet.
    #[error("it is a broadcast address")]
    Broadcast,
    /// The address is the first address of its subnet.
    #[error("it is the address of its network")]
    Network,
    /// The address is that of the subnet's router, which the same offer names.
    #[error("it is the gateway of its own subnet")]
    Gateway,
    /// The address is that of the server that offers it.
    #[error("it is the server's own address")]
    Server,
    /// The address is in none of the subnets from which addresses may be leased on the network.
    #[error("it is in none of the subnets that are allowed on this network")]
    NotAllowed,
    /// The lease time is missing. The server uses BOOTP or has a fault.
    #[error("the server offers it without a lease time")]
    NoLeaseTime,
    /// The lease time is less than ten seconds.
    #[error("its lease time is shorter than {SHORTEST_LEASE} s")]
    TooShort,
}

/// Checks whether an offer or a grant can be used. `subnets`: subnets from which addresses may be
/// leased. Empty: any address may be leased. `Err`: the first fault that was found.
pub fn check(reply: &ServerReply, subnets: &[Ipv4Net]) -> Result<(), OfferFault> {
    let address = reply.address;
    let [first, ..] = address.octets();
    let found = match first {
        0 => Some(OfferFault::Unspecified),
        127 => Some(OfferFault::Loopback),
        169 if address.is_link_local() => Some(OfferFault::LinkLocal),
        224..=239 => Some(OfferFault::Multicast),
        240.. if address.is_broadcast() => Some(OfferFault::Broadcast),
        240.. => Some(OfferFault::Reserved),
        _ => None,
    };
    let found = found.or_else(|| edge(address, reply.prefix?));
    let gateway = (reply.gateway == Some(address)).then_some(OfferFault::Gateway);
    let server = (reply.server == address).then_some(OfferFault::Server);
    let is_allowed = subnets.is_empty() || subnets.iter().any(|subnet| subnet.contains(&address));
    let foreign = (!is_allowed).then_some(OfferFault::NotAllowed);
    let time = match reply.seconds {
        None => Some(OfferFault::NoLeaseTime),
        Some(seconds) if seconds < SHORTEST_LEASE => Some(OfferFault::TooShort),
        Some(_) => None,
    };
    found.or(gateway).or(server).or(foreign).or(time).map_or(Ok(()), Err)
}

/// Fault of an address that is the first or the last one of its subnet. `prefix`: length of the
/// subnet's prefix. No host may have these two addresses if this length is 30 or less. `None`: the
/// address has no such fault.
fn edge(address: Ipv4Addr, prefix: u8) -> Option<OfferFault> {
    if prefix > 30 {
        return None;
    }
    let host = u32::MAX.checked_shr(u32::from(prefix)).unwrap_or(0);
    match address.to_bits() & host {
        0 => Some(OfferFault::Network),
        bits if bits == host => Some(OfferFault::Broadcast),
        _ => None,
    }
}
