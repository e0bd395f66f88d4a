//! Disputes of granted addresses. A station disputes an address if it answers the client's ARP
//! probe for the address: a host that has the address, or a router that answers for all addresses.
//!
//! A router with proxy ARP (`proxy_arp_pvlan`, `ip local-proxy-arp`, private VLANs) disputes every
//! address that its DHCP server grants. If the client declined each of these addresses, the server
//! would not grant them again for a day or for a lease time. Soon, no address would be left.
//! Therefore, the client observes the station that sends the grants: the DHCP server, or the router
//! to the server. If this station has disputed two addresses, the client sends no DECLINE when the
//! station disputes another address. The client does not use the disputed address either.

use std::net::Ipv4Addr;

use super::Mac;

/// Disputes of granted addresses on one network. They show whether a station answers ARP for all
/// addresses (proxy ARP).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressDisputes {
    /// Station that sends the grants, and the address that this station disputed last. `None`: this
    /// station has disputed no address.
    last: Option<(Mac, Ipv4Addr)>,
    proxy: Option<Mac>,
}

impl AddressDisputes {
    /// Adds a dispute of the granted address `address` by the station `by`, but only if `by` is
    /// also `server`, the station that sent the grant.
    pub fn add(&mut self, address: Ipv4Addr, by: Mac, server: Mac) {
        if by != server {
            return;
        }
        let before = self.last.replace((by, address));
        if before.is_some_and(|(mac, other)| mac == by && other != address) {
            self.proxy = Some(by);
        }
    }

    /// Forgets all disputes. Called when a granted address was not disputed: then no station
    /// answers ARP for all addresses.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Station that answers ARP for all addresses. `None`: no such station is known.
    pub fn proxy(&self) -> Option<Mac> {
        self.proxy
    }
}

#[cfg(test)]
mod tests;
