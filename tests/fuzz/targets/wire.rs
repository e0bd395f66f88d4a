//! Messages of a DHCP server, for the targets that play one.
#![allow(dead_code)]

use std::net::Ipv4Addr;
use std::time::Duration;

use harvester_guest_operator::domain::dhcp::{
    ClientAction, ClientIdentity, ClientOptions, DhcpClient, Mac, ProbeTiming, owner_of,
};

pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const STATION: [u8; 6] = [2, 0, 0, 0, 0, 0xfe];

pub fn identity() -> ClientIdentity {
    ClientIdentity::derive("cluster", "default/net", "default", "web")
}

pub fn client() -> DhcpClient {
    let options = ClientOptions { probe: ProbeTiming::QUICK, ..ClientOptions::default() };
    DhcpClient::new(identity(), options, 7, Duration::ZERO)
}

/// Transaction id of the last message among these, if one is DHCP.
pub fn xid(out: &[ClientAction]) -> Option<u32> {
    let frames = out.iter().rev().filter_map(|out| match out {
        ClientAction::Send(frame) if owner_of(frame).is_some() => frame.get(46..50),
        _ => None,
    });
    frames.map(|xid| u32::from_be_bytes(xid.try_into().unwrap())).next()
}

/// A message up to its options: an answer with that transaction id, for that address.
pub fn head(xid: u32, address: Ipv4Addr) -> Vec<u8> {
    let mut message = vec![0; 240];
    message[..3].copy_from_slice(&[2, 1, 6]);
    message[4..8].copy_from_slice(&xid.to_be_bytes());
    message[16..20].copy_from_slice(&address.octets());
    let Mac(mac) = identity().mac;
    message[28..34].copy_from_slice(&mac);
    message[236..240].copy_from_slice(&[99, 130, 83, 99]);
    message
}

/// Options of a valid answer.
pub fn options(kind: u8, seconds: u32) -> Vec<u8> {
    let mut options = vec![53, 1, kind, 54, 4];
    options.extend(SERVER.octets());
    options.extend([51, 4]);
    options.extend(seconds.to_be_bytes());
    options.extend([1, 4, 255, 255, 255, 0, 3, 4, 10, 0, 0, 254]);
    options
}

/// A message in its Ethernet frame.
pub fn frame(message: &[u8]) -> Vec<u8> {
    let length = u16::try_from(message.len()).unwrap();
    let mut header = vec![0x45, 0];
    header.extend((length + 28).to_be_bytes());
    header.extend([0, 0, 0, 0, 64, 17, 0, 0]);
    header.extend(SERVER.octets());
    header.extend([255; 4]);
    let pairs = header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = pairs.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let check = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    header[10..12].copy_from_slice(&check.to_be_bytes());
    let Mac(mac) = identity().mac;
    let mut frame = [mac, STATION].concat();
    frame.extend([8, 0]);
    frame.extend(header);
    frame.extend([0, 67, 0, 68]);
    frame.extend((length + 8).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(message);
    frame
}

/// Checks the invariants of a usable lease.
pub fn is_sound(client: &DhcpClient) {
    let Some(lease) = client.lease() else { return };
    let [first, ..] = lease.address.octets();
    assert!(first != 0 && first != 127 && first < 224, "{lease:?}");
    assert!(lease.address != lease.server && Some(lease.address) != lease.gateway, "{lease:?}");
    assert!(lease.seconds.is_none_or(|seconds| seconds >= 10), "{lease:?}");
    assert!(lease.rebind.is_none_or(|rebind| lease.renew < rebind), "{lease:?}");
    if let (Some(rebind), Some(end)) = (lease.rebind, lease.expires) {
        assert!(rebind < end && client.deadline().is_some_and(|at| at <= end), "{lease:?}");
    }
}
