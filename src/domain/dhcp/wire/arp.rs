//! Part of ARP that a probe (RFC 5227) needs: the question which station has an address, and the
//! answer to this question.

use std::net::Ipv4Addr;

use super::super::Mac;
use super::header::{ETHERTYPE_ARP, ethernet_header, octets};

/// First octets of each ARP packet: the types Ethernet and IPv4, and the lengths of their
/// addresses.
const KIND: [u8; 6] = [0, 1, 0x08, 0, 6, 4];
/// Length of an ARP packet, in octets.
const LENGTH: usize = 28;
const REQUEST: [u8; 2] = [0, 1];
const REPLY: [u8; 2] = [0, 2];

/// Content of an ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArpPacket {
    /// Whether the packet is a request. `false`: it is a reply.
    pub request: bool,
    /// Hardware address of the sender, as the packet states it.
    pub sender: Mac,
    /// IP address of the sender. `0.0.0.0`: the packet is a probe.
    pub sender_ip: Ipv4Addr,
    /// IP address of the target. A request asks which station has this address.
    pub target_ip: Ipv4Addr,
}

impl ArpPacket {
    /// Reads an ARP packet from the payload of a frame. `None`: the payload is not a whole ARP
    /// request or reply for IPv4 on Ethernet.
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

    /// Whether the packet shows that another station has `address` or probes it: RFC 5227, 2.1.1.
    /// `ours`: the client's own hardware address.
    pub fn disputes(&self, address: Ipv4Addr, ours: Mac) -> bool {
        let has = self.sender_ip == address;
        let probes = self.request && self.sender_ip.is_unspecified() && self.target_ip == address;
        self.sender != ours && (has || probes)
    }
}

/// Frame of an ARP probe. The probe asks which station has `address`. The sender's hardware address
/// is `ours`. The sender's IP address is `0.0.0.0`.
pub fn probe(ours: Mac, address: Ipv4Addr) -> Vec<u8> {
    let mut frame = ethernet_header(ours, Mac::BROADCAST, ETHERTYPE_ARP, LENGTH);
    frame.extend(KIND);
    frame.extend(REQUEST);
    frame.extend(ours.0);
    frame.extend(Ipv4Addr::UNSPECIFIED.octets());
    frame.extend(Mac::UNKNOWN.0);
    frame.extend(address.octets());
    frame
}
