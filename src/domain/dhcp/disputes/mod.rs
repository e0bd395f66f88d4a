//! Stations that answer ARP for addresses of a network: one host with an address, or a router that
//! answers for all of them.
//!
//! A router with proxy ARP (`proxy_arp_pvlan`, `ip local-proxy-arp`, private VLANs) disputes every
//! address that its DHCP server grants. Each DECLINE takes one address from the server for a day or
//! for a lease, until none is left. So: once the station of the DHCP server, or the router on the way
//! to it, has disputed two addresses, nothing is declined on its word any more, and no address that
//! it disputes is used.

use std::net::Ipv4Addr;

use super::Mac;

/// Knowledge of the stations of a network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disputes {
    /// The address that the servers' station disputed last.
    last: Option<(Mac, Ipv4Addr)>,
    proxy: Option<Mac>,
}

impl Disputes {
    /// Notes that the station disputed an address that was granted. `server` is the station that the
    /// grant came from.
    pub fn note(&mut self, address: Ipv4Addr, by: Mac, server: Mac) {
        if by != server {
            return;
        }
        let before = self.last.replace((by, address));
        if before.is_some_and(|(mac, other)| mac == by && other != address) {
            self.proxy = Some(by);
        }
    }

    /// Notes that no station disputed an address: none answers for all.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// The station that answers for every address, if there is one.
    pub fn proxy(&self) -> Option<Mac> {
        self.proxy
    }
}

#[cfg(test)]
mod tests;
