//! The server's side, for tests: reads a client's frame and writes answers. This module reads and
//! writes octets by the tables of RFC 2131, and shares no code with the code under test.

use std::net::Ipv4Addr;

use crate::dhcp::Mac;

pub const SERVER_MAC: Mac = Mac([0x02, 0, 0, 0, 0, 0xfe]);
pub const DISCOVER: u8 = 1;
pub const OFFER: u8 = 2;
pub const REQUEST: u8 = 3;
pub const DECLINE: u8 = 4;
pub const ACK: u8 = 5;
pub const NAK: u8 = 6;
pub const RELEASE: u8 = 7;

/// DHCP message that a client sent, with the fields of its frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub source: Mac,
    pub destination: Mac,
    pub from: Ipv4Addr,
    pub to: Ipv4Addr,
    pub ports: (u16, u16),
    /// Octets of the whole message.
    pub message: Vec<u8>,
    pub xid: u32,
    pub secs: u16,
    pub flags: u16,
    pub ciaddr: Ipv4Addr,
    pub chaddr: Mac,
    /// Options as (code, value), in the order of the message.
    pub options: Vec<(u8, Vec<u8>)>,
}

impl Seen {
    pub fn option(&self, code: u8) -> Option<&[u8]> {
        self.options.iter().find(|(found, _)| *found == code).map(|(_, value)| &value[..])
    }

    pub fn kind(&self) -> u8 {
        self.option(53).unwrap()[0]
    }

    pub fn address(&self, code: u8) -> Option<Ipv4Addr> {
        let value: [u8; 4] = self.option(code)?.try_into().unwrap();
        Some(Ipv4Addr::from(value))
    }

    pub fn wish(&self) -> Option<Ipv4Addr> {
        self.address(50)
    }

    pub fn server(&self) -> Option<Ipv4Addr> {
        self.address(54)
    }

    /// Whether this is a REQUEST in the form of a client that has restarted (INIT-REBOOT).
    pub fn confirms(&self) -> bool {
        self.kind() == REQUEST && self.wish().is_some() && self.server().is_none()
    }

    pub fn is_broadcast(&self) -> bool {
        self.destination == Mac::BROADCAST && self.to == Ipv4Addr::BROADCAST
    }
}

fn two(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn ip(bytes: &[u8], at: usize) -> Ipv4Addr {
    let octets: [u8; 4] = bytes[at..at + 4].try_into().unwrap();
    Ipv4Addr::from(octets)
}

fn mac(bytes: &[u8], at: usize) -> Mac {
    Mac(bytes[at..at + 6].try_into().unwrap())
}

/// Sum of 16-bit words, with carries added. If a correct checksum is among the words, the sum is
/// 0xffff.
fn sum(parts: &[&[u8]]) -> u16 {
    let mut bytes = parts.concat();
    if bytes.len() % 2 == 1 {
        bytes.push(0);
    }
    let mut sum: u64 = (0..bytes.len()).step_by(2).map(|at| u64::from(two(&bytes, at))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap()
}

/// Reads a frame of a client, and checks its two checksums and its lengths. `None`: the frame is
/// ARP.
pub fn seen(frame: &[u8]) -> Option<Seen> {
    if two(frame, 12) == 0x0806 {
        return None;
    }
    assert_eq!((two(frame, 12), frame[14], frame[23]), (0x0800, 0x45, 17));
    assert_eq!(usize::from(two(frame, 16)), frame.len() - 14, "length of IPv4");
    assert_eq!(sum(&[&frame[14..34]]), 0xffff, "checksum of IPv4");
    assert_eq!(usize::from(two(frame, 38)), frame.len() - 34, "length of UDP");
    let pseudo = [&frame[26..34], &[0, 17], &frame[38..40], &frame[34..]];
    assert_eq!(sum(&pseudo), 0xffff, "checksum of UDP");
    let message = frame[42..].to_vec();
    assert!(message.len() >= 300, "BOOTP is {} octets", message.len());
    assert_eq!(message[..3], [1, 1, 6]);
    assert_eq!(message[236..240], [99, 130, 83, 99]);
    let mut options = Vec::new();
    let mut rest = &message[240..];
    while rest[0] != 255 {
        let length = usize::from(rest[1]);
        options.push((rest[0], rest[2..2 + length].to_vec()));
        rest = &rest[2 + length..];
    }
    Some(Seen {
        source: mac(frame, 6),
        destination: mac(frame, 0),
        from: ip(frame, 26),
        to: ip(frame, 30),
        ports: (two(frame, 34), two(frame, 36)),
        xid: u32::from_be_bytes(message[4..8].try_into().unwrap()),
        secs: two(&message, 8),
        flags: two(&message, 10),
        ciaddr: ip(&message, 12),
        chaddr: mac(&message, 28),
        options,
        message,
    })
}

/// Answer of a server. A test may change the answer before the answer becomes a frame.
#[derive(Clone, Debug)]
pub struct Answer {
    pub kind: u8,
    pub xid: u32,
    pub yiaddr: Ipv4Addr,
    pub chaddr: Mac,
    pub server: Ipv4Addr,
    pub from: Mac,
    /// Options except option 53, as (code, value), in the order of the message.
    pub options: Vec<(u8, Vec<u8>)>,
    pub file: Vec<u8>,
    pub sname: Vec<u8>,
}

impl Answer {
    /// Valid answer for a subnet /24. `to`: message that the server answers. The gateway is .254,
    /// and the first name server is .53.
    pub fn new(to: &Seen, kind: u8, yiaddr: Ipv4Addr, server: Ipv4Addr, seconds: u32) -> Self {
        let mut answer = Self {
            kind,
            xid: to.xid,
            yiaddr: if kind == NAK { Ipv4Addr::UNSPECIFIED } else { yiaddr },
            chaddr: to.chaddr,
            server,
            from: SERVER_MAC,
            options: vec![(54, server.octets().to_vec())],
            file: Vec::new(),
            sname: Vec::new(),
        };
        if kind != NAK {
            answer = answer.with(51, &seconds.to_be_bytes()).with(1, &[255, 255, 255, 0]);
            let [a, b, c, _] = yiaddr.octets();
            answer = answer.with(3, &[a, b, c, 254]);
            let servers = [[a, b, c, 53], [0; 4], [a, b, c, 54], [a, b, c, 55], [a, b, c, 56]];
            answer = answer.with(6, &[servers.as_flattened(), &[a, b]].concat());
        }
        answer
    }

    pub fn with(mut self, code: u8, value: &[u8]) -> Self {
        self.options.push((code, value.to_vec()));
        self
    }

    pub fn without(mut self, code: u8) -> Self {
        self.options.retain(|(found, _)| *found != code);
        self
    }

    pub fn message(&self) -> Vec<u8> {
        let mut message = vec![0; 240];
        message[..3].copy_from_slice(&[2, 1, 6]);
        message[4..8].copy_from_slice(&self.xid.to_be_bytes());
        message[16..20].copy_from_slice(&self.yiaddr.octets());
        message[28..34].copy_from_slice(&self.chaddr.0);
        message[44..44 + self.sname.len()].copy_from_slice(&self.sname);
        message[108..108 + self.file.len()].copy_from_slice(&self.file);
        message[236..240].copy_from_slice(&[99, 130, 83, 99]);
        message.extend([53, 1, self.kind]);
        for (code, value) in &self.options {
            message.extend([*code, u8::try_from(value.len()).unwrap()]);
            message.extend(value);
        }
        message.push(255);
        message
    }

    pub fn frame(&self) -> Vec<u8> {
        framed(&self.message(), self.from, self.server, self.yiaddr, self.chaddr)
    }
}

/// Frame with a message of a server. It has no UDP checksum. The frame of a server on the same host
/// has no valid one either.
pub fn framed(message: &[u8], from: Mac, server: Ipv4Addr, to: Ipv4Addr, chaddr: Mac) -> Vec<u8> {
    let length = u16::try_from(message.len()).unwrap();
    let mut header = vec![0x45, 0];
    header.extend((length + 28).to_be_bytes());
    header.extend([0, 0, 0, 0, 64, 17, 0, 0]);
    header.extend(server.octets());
    header.extend(to.octets());
    let check = !sum(&[&header]);
    header[10..12].copy_from_slice(&check.to_be_bytes());
    let mut frame = [chaddr.0, from.0].concat();
    frame.extend([0x08, 0x00]);
    frame.extend(header);
    frame.extend([0, 67, 0, 68]);
    frame.extend((length + 8).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(message);
    frame
}

/// Frame with a valid answer. `to`: message that the server answers.
pub fn answer(to: &Seen, kind: u8, yiaddr: Ipv4Addr, server: Ipv4Addr, seconds: u32) -> Vec<u8> {
    Answer::new(to, kind, yiaddr, server, seconds).frame()
}

/// ARP frame of another host. `request`: whether the frame is a question. `false`: the frame is an
/// answer.
pub fn arp(request: bool, sender: Mac, sender_ip: Ipv4Addr, target_ip: Ipv4Addr) -> Vec<u8> {
    let mut frame = [Mac::BROADCAST.0, sender.0].concat();
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, if request { 1 } else { 2 }]);
    frame.extend(sender.0);
    frame.extend(sender_ip.octets());
    frame.extend([0; 6]);
    frame.extend(target_ip.octets());
    frame
}
