//! Ethernet, IPv4 and UDP around a DHCP message.
//!
//! The checksum of UDP is written, but not verified. A server on this same host leaves the checksum
//! to the network card. But the server's frames do not pass through a network card, so they arrive
//! without a valid checksum. Cookie, xid and hardware address are checked instead. The checksum of
//! the IPv4 header is verified.

use std::net::Ipv4Addr;

use super::super::Mac;
use super::arp::ArpPacket;
use super::header::{ETHERNET, ETHERTYPE_ARP, ethernet_header, octets, word};
use super::message;

/// UDP port to which clients send.
pub const SERVER_PORT: u16 = 67;
/// UDP port to which servers send.
pub const CLIENT_PORT: u16 = 68;
const ETHERTYPE_IPV4: u16 = 0x0800;
const IPV4: usize = 20;
const UDP: usize = 8;
const PROTOCOL_UDP: u8 = 17;
const TTL: u8 = 64;
/// Bits of the flag "more fragments" and of the fragment offset. A packet is a fragment if one of
/// them is set.
const FRAGMENT: u16 = 0x3fff;

/// Content of a frame that a DHCP client can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameContent<'a> {
    /// UDP datagram to the port of a DHCP server or of a DHCP client.
    Udp(UdpDatagram<'a>),
    /// ARP packet for IPv4.
    Arp(ArpPacket),
}

/// UDP datagram to a DHCP port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpDatagram<'a> {
    /// Hardware address of the sending station.
    pub source: Mac,
    /// Destination port.
    pub port: u16,
    /// Payload of the datagram.
    pub payload: &'a [u8],
}

/// Reads a frame, which must be whole. `None`: the frame has neither an ARP packet nor a valid
/// datagram to a DHCP port.
pub fn read(frame: &[u8]) -> Option<FrameContent<'_>> {
    let source = Mac(octets(frame, 6)?);
    let payload = frame.get(ETHERNET..)?;
    match word(frame, 12)? {
        ETHERTYPE_ARP => ArpPacket::read(payload).map(FrameContent::Arp),
        ETHERTYPE_IPV4 => datagram(source, payload).map(FrameContent::Udp),
        _ => None,
    }
}

fn datagram(source: Mac, packet: &[u8]) -> Option<UdpDatagram<'_>> {
    let first = *packet.first()?;
    let header = usize::from(first & 0x0f) * 4;
    // A short frame is padded. Octets after the length that the header states are not a part of the
    // packet.
    let packet = packet.get(..usize::from(word(packet, 2)?))?;
    if first >> 4 != 4 || header < IPV4 || checksum(&[packet.get(..header)?]) != 0 {
        return None;
    }
    if packet.get(9) != Some(&PROTOCOL_UDP) || word(packet, 6)? & FRAGMENT != 0 {
        return None;
    }
    let udp = packet.get(header..)?;
    let port = word(udp, 2)?;
    let payload = udp.get(UDP..usize::from(word(udp, 4)?))?;
    (port == CLIENT_PORT || port == SERVER_PORT).then_some(UdpDatagram { source, port, payload })
}

/// Hardware address of the client that sends or receives the DHCP message in a frame. `None`: the
/// frame has no DHCP message. An example is an ARP frame. The agent has one socket for all clients,
/// and finds by this address the client that gets the frame.
pub fn owner_of(frame: &[u8]) -> Option<Mac> {
    match read(frame)? {
        FrameContent::Udp(datagram) => message::holder(datagram.payload),
        FrameContent::Arp(_) => None,
    }
}

/// Addresses of the sender and of the receiver of a DHCP message, in its Ethernet and IP headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameAddresses {
    /// Hardware address of the sending station.
    pub source: Mac,
    /// Hardware address of the receiving station.
    pub destination: Mac,
    /// IP address of the sender. `0.0.0.0`: the message goes to all servers.
    pub from: Ipv4Addr,
    /// IP address of the receiver.
    pub to: Ipv4Addr,
}

impl FrameAddresses {
    /// Addresses of a client's message to all servers. `source`: hardware address of the client.
    pub const fn to_all(source: Mac) -> Self {
        Self {
            source,
            destination: Mac::BROADCAST,
            from: Ipv4Addr::UNSPECIFIED,
            to: Ipv4Addr::BROADCAST,
        }
    }
}

/// Frame with a client's message to one or to all servers. `way`: addresses in the frame.
/// `payload`: the DHCP message.
pub fn to_server(way: FrameAddresses, payload: &[u8]) -> Vec<u8> {
    let length = |parts: usize| u16::try_from(parts + payload.len()).unwrap_or(u16::MAX);
    let mut ip = [0; IPV4];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&length(IPV4 + UDP).to_be_bytes());
    ip[8] = TTL;
    ip[9] = PROTOCOL_UDP;
    ip[12..16].copy_from_slice(&way.from.octets());
    ip[16..20].copy_from_slice(&way.to.octets());
    let sum = checksum(&[&ip]);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());

    let mut udp = [0; UDP];
    udp[..2].copy_from_slice(&CLIENT_PORT.to_be_bytes());
    udp[2..4].copy_from_slice(&SERVER_PORT.to_be_bytes());
    udp[4..6].copy_from_slice(&length(UDP).to_be_bytes());
    let pseudo = [0, PROTOCOL_UDP];
    let sum = checksum(&[&ip[12..20], &pseudo, &udp[4..6], &udp, payload]);
    // A zero in the field would mean that there is no checksum.
    let sum = if sum == 0 { u16::MAX } else { sum };
    udp[6..8].copy_from_slice(&sum.to_be_bytes());

    let length = IPV4 + UDP + payload.len();
    let mut frame = ethernet_header(way.source, way.destination, ETHERTYPE_IPV4, length);
    frame.extend(ip);
    frame.extend(udp);
    frame.extend(payload);
    frame
}

/// Internet checksum of all parts together. Each part except the last one must have an even number
/// of octets.
fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0_u32;
    for pair in parts.iter().flat_map(|part| part.chunks(2)) {
        let low = pair.get(1).copied().unwrap_or(0);
        sum += u32::from(u16::from_be_bytes([pair[0], low]));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests;
