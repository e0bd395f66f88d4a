//! ARP as far as a probe (RFC 5227) needs it: asking who has an address, and hearing it.

use std::net::Ipv4Addr;

use super::super::Mac;
use super::ethernet::{ETHERTYPE_ARP, ethernet, octets};

/// Ethernet, IPv4, and the lengths of their addresses.
const KIND: [u8; 6] = [0, 1, 0x08, 0, 6, 4];
const REQUEST: [u8; 2] = [0, 1];
const REPLY: [u8; 2] = [0, 2];

/// What an ARP packet says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// Whether it asks.
    pub request: bool,
    /// Who sends it, by its own word.
    pub sender: Mac,
    /// The address that the sender has; unspecified in a probe.
    pub sender_ip: Ipv4Addr,
    /// The address that is asked for.
    pub target_ip: Ipv4Addr,
}

impl Arp {
    /// Reads the payload of a frame. What is not about IPv4 on Ethernet is nothing.
    pub fn read(payload: &[u8]) -> Option<Self> {
        if payload.get(..6)? != KIND {
            return None;
        }
        let request = match octets(payload, 6)? {
            REQUEST => true,
            REPLY => false,
            _ => return None,
        };
        Some(Self {
            request,
            sender: Mac(octets(payload, 8)?),
            sender_ip: Ipv4Addr::from(octets::<4>(payload, 14)?),
            target_ip: Ipv4Addr::from(octets::<4>(payload, 24)?),
        })
    }

    /// Whether this shows that somebody else has the address, or is about to take it: RFC 5227,
    /// 2.1.1.
    pub fn disputes(&self, address: Ipv4Addr, ours: Mac) -> bool {
        let has = self.sender_ip == address;
        let probes = self.request && self.sender_ip.is_unspecified() && self.target_ip == address;
        self.sender != ours && (has || probes)
    }
}

/// The frame that asks who has the address, without claiming one.
pub fn probe(ours: Mac, address: Ipv4Addr) -> Vec<u8> {
    let mut frame = ethernet(ours, Mac::BROADCAST, ETHERTYPE_ARP);
    frame.extend(KIND);
    frame.extend(REQUEST);
    frame.extend(ours.0);
    frame.extend(Ipv4Addr::UNSPECIFIED.octets());
    frame.extend(Mac::UNKNOWN.0);
    frame.extend(address.octets());
    frame
}
