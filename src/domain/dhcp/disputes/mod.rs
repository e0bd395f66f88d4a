//! Stations that answer ARP for addresses of a network: a host that has an address, or a router
//! that answers for all addresses.
//!
//! A router with proxy ARP (`proxy_arp_pvlan`, `ip local-proxy-arp`, private VLANs) disputes every
//! address that its DHCP server grants. Each DECLINE takes one address from the server for a day or
//! for a lease time, until no address is left. Therefore, the client observes the station that
//! sends the grants: the DHCP server, or the router to the server. If this station has disputed two
//! addresses, the client sends no DECLINE when the station disputes another address. The client
//! does not use the disputed address either.

use std::net::Ipv4Addr;

use super::Mac;

/// Disputes of addresses by the stations of a network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressDisputes {
    /// Station of the server, and the address that this station disputed last.
    last: Option<(Mac, Ipv4Addr)>,
    proxy: Option<Mac>,
}

impl AddressDisputes {
    /// Notes that station `by` disputed a granted address. `server` is the station that sent the
    /// grant.
    pub fn note(&mut self, address: Ipv4Addr, by: Mac, server: Mac) {
        if by != server {
            return;
        }
        let before = self.last.replace((by, address));
        if before.is_some_and(|(mac, other)| mac == by && other != address) {
            self.proxy = Some(by);
        }
    }

    /// Notes that no station disputed a granted address. So no station answers for every address.
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
