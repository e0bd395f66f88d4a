//! Stations that answer ARP for addresses of a network: one host with an address, or a router that
//! answers for all of them.
//!
//! A router with proxy ARP (`proxy_arp_pvlan`, `ip local-proxy-arp`, private VLANs) disputes every
//! address that its DHCP server grants. Each DECLINE takes one address from the server for a day or
//! for a lease, until none is left. So once the station of the DHCP server, or of the router to it,
//! has disputed two addresses, its disputes lead to no DECLINE any more, and no address that it
//! disputes is used.

use std::net::Ipv4Addr;

use super::Mac;

/// Disputes of addresses by the stations of a network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressDisputes {
    /// Station of the server and the address that it disputed last.
    last: Option<(Mac, Ipv4Addr)>,
    proxy: Option<Mac>,
}

impl AddressDisputes {
    /// Notes that station `by` disputed a granted address. `server` is the station that the grant
    /// came from.
    pub fn note(&mut self, address: Ipv4Addr, by: Mac, server: Mac) {
        if by != server {
            return;
        }
        let before = self.last.replace((by, address));
        if before.is_some_and(|(mac, other)| mac == by && other != address) {
            self.proxy = Some(by);
        }
    }

    /// Notes that no station disputed an address: no station answers for all.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Station that answers for every address, if there is one.
    pub fn proxy(&self) -> Option<Mac> {
        self.proxy
    }
}

#[cfg(test)]
mod tests;
