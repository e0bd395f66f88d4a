//! Check of offers and grants: whether the client can use them.
//!
//! Invariant: the client refuses an address that no LoadBalancer can have, such as a loopback
//! address, a multicast address or the subnet's gateway. Such an address could divert traffic of
//! the host that announces it. The controller checks whether a pool or another LoadBalancer has the
//! address.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use super::super::wire::message::ServerReply;

/// Shortest lease time that is accepted, in seconds. A client would have to renew a shorter lease
/// all the time.
const SHORTEST_LEASE: u32 = 10;
/// Reason to refuse a lease time that is shorter than [`SHORTEST_LEASE`].
const TOO_SHORT: &str = "its lease time is shorter than 10 s";

/// Checks whether an offer or a grant can be used. If `subnets` is not empty, the address must be
/// in one of these subnets. `Err`: the reason why the offer or grant cannot be used. If several
/// reasons apply, it is the first one in the order of the checks.
pub fn check(reply: &ServerReply, subnets: &[Ipv4Net]) -> Result<(), &'static str> {
    let ServerReply { address, server, gateway, prefix, seconds, .. } = *reply;
    let [first, ..] = address.octets();
    // No host may have the first or the last address of a subnet with a prefix of 30 or less.
    let subnet = prefix.filter(|prefix| *prefix <= 30);
    let subnet = subnet.and_then(|prefix| Ipv4Net::new(address, prefix).ok());
    let is_edge = |edge: fn(&Ipv4Net) -> Ipv4Addr| subnet.is_some_and(|net| edge(&net) == address);
    let is_allowed = subnets.is_empty() || subnets.iter().any(|subnet| subnet.contains(&address));
    let faults = [
        (first == 0, "it cannot be the address of a host"),
        (address.is_loopback(), "it is a loopback address"),
        (address.is_link_local(), "it is a link-local address"),
        (address.is_multicast(), "it is a multicast address"),
        (address.is_broadcast(), "it is a broadcast address"),
        (first >= 240, "it is in the reserved range 240.0.0.0/4"),
        (is_edge(Ipv4Net::network), "it is the address of its network"),
        (is_edge(Ipv4Net::broadcast), "it is a broadcast address"),
        (gateway == Some(address), "it is the gateway of its own subnet"),
        (server == address, "it is the server's own address"),
        (!is_allowed, "it is in none of the subnets that are allowed on this network"),
        // The server uses BOOTP or has a fault.
        (seconds.is_none(), "the server offers it without a lease time"),
        (seconds.is_some_and(|seconds| seconds < SHORTEST_LEASE), TOO_SHORT),
    ];
    faults.into_iter().find(|(found, _)| *found).map_or(Ok(()), |(_, why)| Err(why))
}
