//! Reads octets at an offset of a packet, and writes the Ethernet header.

use super::super::Mac;

/// Type of a frame with an ARP packet.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// Length of the Ethernet header, in octets.
pub const ETHERNET: usize = 14;

/// Returns `N` octets from the offset `at`. `None`: there are fewer than `N` octets.
pub fn octets<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// Returns the big-endian number in two octets from the offset `at`. `None`: there are fewer than
/// two octets.
pub fn word(bytes: &[u8], at: usize) -> Option<u16> {
    octets(bytes, at).map(u16::from_be_bytes)
}

/// Ethernet header of a frame. The returned buffer has room for `payload` more octets.
pub fn ethernet_header(source: Mac, destination: Mac, ethertype: u16, payload: usize) -> Vec<u8> {
    let mut frame = Vec::with_capacity(ETHERNET + payload);
    frame.extend(destination.0);
    frame.extend(source.0);
    frame.extend(ethertype.to_be_bytes());
    frame
}
