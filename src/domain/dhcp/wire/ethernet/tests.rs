//! Tests of frames whose headers are wrong.

use super::*;

const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

fn payload(frame: &[u8]) -> Option<Vec<u8>> {
    match read(frame)? {
        FrameContent::Udp(datagram) => Some(datagram.payload.to_vec()),
        FrameContent::Arp(_) => None,
    }
}

/// Returns the frame with the correct checksum in its IPv4 header.
fn sealed(mut frame: Vec<u8>) -> Vec<u8> {
    let header = usize::from(frame[14] & 0x0f) * 4;
    frame[24..26].fill(0);
    let sum = checksum(&[&frame[14..14 + header]]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

#[test]
fn what_is_written_is_read_and_padding_is_not_part_of_it() {
    for length in [0, 1, 2, 299, 300, 1400] {
        let said: Vec<u8> = (0..=255).cycle().take(length).collect();
        let mut frame = to_server(FrameAddresses::to_all(MAC), &said);
        assert_eq!(payload(&frame), Some(said.clone()));
        frame.extend([0xff; 30]);
        assert_eq!(payload(&frame), Some(said));
    }
}

#[test]
fn a_datagram_that_is_not_whole_and_sound_is_none() {
    let sound = to_server(FrameAddresses::to_all(MAC), b"something");
    let spoilt = |at: usize, value: u8| {
        let mut frame = sound.clone();
        frame[at] = value;
        payload(&sealed(frame))
    };
    assert!(spoilt(15, 0x10).is_some(), "the kind of service does not matter");
    assert_eq!(spoilt(14, 0x65), None, "IPv6");
    assert_eq!(spoilt(14, 0x44), None, "a header of 16 octets");
    assert_eq!(spoilt(17, 200), None, "longer than the frame");
    assert_eq!(spoilt(17, 20), None, "without UDP");
    assert_eq!(spoilt(20, 0x20), None, "more fragments");
    assert_eq!(spoilt(21, 1), None, "a later fragment");
    assert_eq!(spoilt(23, 6), None, "TCP");
    assert_eq!(spoilt(37, 53), None, "another port");
    assert_eq!(spoilt(39, 7), None, "UDP of seven octets");
    assert_eq!(spoilt(39, 18), None, "UDP longer than the packet");
    for length in 0..sound.len() {
        assert_eq!(payload(&sound[..length]), None);
    }
}

#[test]
fn options_of_ipv4_are_stepped_over() {
    let mut frame = to_server(FrameAddresses::to_all(MAC), b"something");
    frame.splice(34..34, [1; 8]);
    frame[14] = 0x47;
    frame[17] += 8;
    assert_eq!(payload(&sealed(frame)), Some(b"something".to_vec()));
}

/// A checksum of zero is sent as 0xffff (RFC 768), because zero means that there is no checksum.
#[test]
fn a_checksum_is_never_zero() {
    let frames =
        (0..=u16::MAX).map(|word| to_server(FrameAddresses::to_all(MAC), &word.to_be_bytes()));
    let sums: Vec<[u8; 2]> = frames.map(|frame| octets(&frame, 40).unwrap()).collect();
    assert!(sums.contains(&[0xff, 0xff]) && !sums.contains(&[0, 0]));
}

#[test]
fn arp_of_another_kind_is_none() {
    let probe = super::super::arp::probe(MAC, Ipv4Addr::new(10, 0, 0, 20));
    assert!(
        matches!(read(&probe), Some(FrameContent::Arp(arp)) if arp.request && arp.sender == MAC)
    );
    for at in [14, 16, 18, 19, 20] {
        let mut other = probe.clone();
        other[at] ^= 0x10;
        assert_eq!(read(&other), None, "octet {at}");
    }
    for length in 0..probe.len() - 4 {
        assert_eq!(read(&probe[..length]), None);
    }
}
