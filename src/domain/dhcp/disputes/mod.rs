//! Disputes of granted addresses. A station disputes an address if it sends one of these ARP frames
//! during the client's ARP probe of the address:
//!
//! * a frame with the address as the sender's IP address: a host that has the address sends it, or
//!   a router that answers for all addresses
//! * a probe of the same address
//!
//! A router with proxy ARP (`proxy_arp_pvlan`, `ip local-proxy-arp`, private VLANs) disputes every
//! address that its DHCP server grants. If the client declined each of these addresses, the server
//! would not grant them again for a day or for a lease time, and would soon have none left.
//!
//! So a station counts as one that answers for all addresses if it sends the grants (as the DHCP
//! server, or the router to it) and has disputed two different addresses in a row. An address that
//! such a station disputes is not used, but no DECLINE is sent for it.

use std::net::Ipv4Addr;

use super::Mac;

/// Disputes of granted addresses on one network. They show whether a station answers ARP for all
/// addresses (proxy ARP).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressDisputes {
    /// Last dispute by a station that also sent the grant: this station, and the disputed address.
    /// `None`: there was no such dispute.
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

    /// Forgets all disputes, and the station that answers ARP for all addresses. Must be called
    /// when the probe of a granted address has ended without a dispute, because this shows that
    /// there is no such station any more.
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
