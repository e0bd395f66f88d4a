//! DHCP messages that a client sends or reads.
//!
//! Invariant: a message that [`read`] accepts has the DHCP cookie, a type and a valid server
//! address. The message is for the client's hardware address. If the client sends a client
//! identifier, the message has the same one or none. The caller checks everything else.

use std::net::Ipv4Addr;

use super::super::identity::ClientIdentity;
use super::super::{IgnoreReason, Mac};
use super::header::octets;
use super::options::{self, OptionReader, put};

/// Minimum length of a message that a client sends, in octets. BOOTP relays and some servers expect
/// this length.
pub const SHORTEST: usize = 300;
/// Offset of the options in a message, in octets. The cookie is before them.
const OPTIONS: usize = 240;
const COOKIE: [u8; 4] = [99, 130, 83, 99];
const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const ETHERNET: [u8; 2] = [1, 6];
const BROADCAST_FLAG: u16 = 0x8000;
/// Maximum length of a server's message in octets, with its IP and UDP headers: the payload of one
/// Ethernet frame. The client states this length in option 57.
const LARGEST: u16 = 1500;
/// Maximum number of name servers that are read from a server's message. A resolver uses no more.
const MOST_NAME_SERVERS: usize = 3;
/// Vendor class that the client sends in option 60.
const VENDOR: &[u8] = b"harvester-guest-operator";
/// Codes of the options that the client requests from servers by option 55.
const PARAMETERS: [u8; 7] = [
    options::SUBNET_MASK,
    options::ROUTER,
    options::NAME_SERVER,
    options::LEASE_TIME,
    options::SERVER_ID,
    options::T1,
    options::T2,
];

/// Kind of a client's message, with the addresses in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// DISCOVER: asks all servers for an address. The value is the address that the client prefers.
    /// `None`: the client prefers no address.
    Discover(Option<Ipv4Addr>),
    /// REQUEST: takes an offer. The first value is the offered address, the second one is the
    /// server.
    Select(Ipv4Addr, Ipv4Addr),
    /// REQUEST as a restarted client sends it (INIT-REBOOT). The value is the address that servers
    /// are asked to confirm.
    Confirm(Ipv4Addr),
    /// DECLINE: another host has the granted address. The first value is this address, the second
    /// one is the server that granted it.
    Decline(Ipv4Addr, Ipv4Addr),
    /// RELEASE: the client gives an address back. The first value is this address, the second one
    /// is the server that granted it.
    Release(Ipv4Addr, Ipv4Addr),
}

impl MessageKind {
    /// Type of the message, and the addresses in it: (type, option 50, option 54, field `ciaddr`).
    /// `None`: the message does not have this option.
    const fn fields(self) -> (u8, Option<Ipv4Addr>, Option<Ipv4Addr>, Ipv4Addr) {
        let none = Ipv4Addr::UNSPECIFIED;
        match self {
            Self::Discover(wish) => (1, wish, None, none),
            Self::Select(address, server) => (3, Some(address), Some(server), none),
            Self::Confirm(address) => (3, Some(address), None, none),
            Self::Decline(address, server) => (4, Some(address), Some(server), none),
            Self::Release(address, server) => (7, None, Some(server), address),
        }
    }
}

/// Octets of a client's message, at least [`SHORTEST`] of them. `xid`: transaction ID, which a
/// server's answer repeats. `secs`: seconds since the client began to search for an address, or to
/// extend its lease. `broadcast`: whether servers are asked to broadcast their answers. DECLINE and
/// RELEASE contain neither `secs` nor `broadcast`.
pub fn write(
    kind: MessageKind,
    identity: &ClientIdentity,
    xid: u32,
    secs: u16,
    broadcast: bool,
) -> Vec<u8> {
    let asks = !matches!(kind, MessageKind::Decline(..) | MessageKind::Release(..));
    let (message_type, wish, server, ciaddr) = kind.fields();
    let mut message = vec![0; OPTIONS];
    message[0] = REQUEST;
    message[1..3].copy_from_slice(&ETHERNET);
    message[4..8].copy_from_slice(&xid.to_be_bytes());
    if asks {
        let flags = if broadcast { BROADCAST_FLAG } else { 0 };
        message[8..10].copy_from_slice(&secs.to_be_bytes());
        message[10..12].copy_from_slice(&flags.to_be_bytes());
    }
    message[12..16].copy_from_slice(&ciaddr.octets());
    message[28..34].copy_from_slice(&identity.mac.0);
    message[OPTIONS - 4..].copy_from_slice(&COOKIE);

    put(&mut message, options::MESSAGE_TYPE, &[message_type]);
    if let Some(id) = &identity.client_id {
        put(&mut message, options::CLIENT_ID, id.octets());
    }
    if let Some(wish) = wish {
        put(&mut message, options::REQUESTED_ADDRESS, &wish.octets());
    }
    if let Some(server) = server {
        put(&mut message, options::SERVER_ID, &server.octets());
    }
    if asks {
        put(&mut message, options::LARGEST_MESSAGE, &LARGEST.to_be_bytes());
        put(&mut message, options::VENDOR_CLASS, VENDOR);
        if !identity.hostname.is_empty() {
            put(&mut message, options::HOST_NAME, identity.hostname.as_bytes());
        }
        put(&mut message, options::PARAMETERS, &PARAMETERS);
    }
    message.push(options::END);
    message.resize(message.len().max(SHORTEST), 0);
    message
}

/// Kind of a server's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyKind {
    /// OFFER: the server offers an address.
    Offer,
    /// ACK: the server grants the address.
    Ack,
    /// NAK: the server refuses the address.
    Nak,
}

/// Message of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerReply {
    /// Kind of the message.
    pub kind: ReplyKind,
    /// Transaction ID of the client's message that the server answers.
    pub xid: u32,
    /// Address that the server offers or grants, `yiaddr`. In a NAK, this field has no meaning.
    pub address: Ipv4Addr,
    /// Address of the server, option 54.
    pub server: Ipv4Addr,
    /// Lease time in seconds, option 51. `u32::MAX`: the lease never expires. `None`: the option is
    /// missing.
    pub seconds: Option<u32>,
    /// T1 in seconds, option 58. `None`: the option is missing.
    pub t1: Option<u32>,
    /// T2 in seconds, option 59. `None`: the option is missing.
    pub t2: Option<u32>,
    /// Length of the subnet's prefix, from option 1. `None`: the option is missing, or is not a
    /// valid mask.
    pub prefix: Option<u8>,
    /// First router in option 3. `None`: the option is missing or contains no address, or no host
    /// can have the address.
    pub gateway: Option<Ipv4Addr>,
    /// First name servers in option 6, at most three. Addresses that no host can have are left out.
    /// Empty: the option is missing, or no address remains.
    pub name_servers: Vec<Ipv4Addr>,
}

/// Hardware address of the client that sends or receives a message, `chaddr`. `None`: the octets
/// are not a DHCP message for Ethernet.
pub fn holder(message: &[u8]) -> Option<Mac> {
    let ethernet = octets(message, 1)? == ETHERNET;
    let cookie = octets(message, OPTIONS - 4)? == COOKIE;
    let mac = Mac(octets(message, 28)?);
    (ethernet && cookie).then_some(mac)
}

/// Transaction ID of a client's message. `None`: the first octet does not mark the message as a
/// client's, or the message is too short.
pub fn client_xid(message: &[u8]) -> Option<u32> {
    let xid = octets(message, 4)?;
    (message.first() == Some(&REQUEST)).then(|| u32::from_be_bytes(xid))
}

/// Reads a server's message to the client with this identity. `Err`: the message violates the
/// protocol, or is for another hardware address or client identifier.
pub fn read(message: &[u8], identity: &ClientIdentity) -> Result<ServerReply, IgnoreReason> {
    if message.first() != Some(&REPLY) {
        return Err(IgnoreReason::Malformed);
    }
    match holder(message) {
        None => return Err(IgnoreReason::Malformed),
        Some(mac) if mac != identity.mac => return Err(IgnoreReason::NotOurs),
        Some(_) => {}
    }
    let area = |from: usize, to: usize| message.get(from..to).unwrap_or_default();
    let field = message.get(OPTIONS..).unwrap_or_default();
    let options =
        OptionReader::new(field, area(108, 236), area(44, 108)).ok_or(IgnoreReason::Malformed)?;
    // A server may leave out the client identifier (RFC 6842). If the server sends one, this must
    // be the client's own identifier. If the client has sent none, the server may send an
    // identifier of its own.
    let meant = options.get(options::CLIENT_ID);
    let other = |id: &[u8]| identity.client_id.as_ref().is_some_and(|own| own.octets() != id);
    if meant.is_some_and(|id| other(&id)) {
        return Err(IgnoreReason::NotOurs);
    }
    reply(message, &options).ok_or(IgnoreReason::Malformed)
}

fn reply(message: &[u8], options: &OptionReader<'_>) -> Option<ServerReply> {
    let kind = match options.fixed(options::MESSAGE_TYPE)? {
        [2] => ReplyKind::Offer,
        [5] => ReplyKind::Ack,
        [6] => ReplyKind::Nak,
        _ => return None,
    };
    let server = Ipv4Addr::from(options.fixed::<4>(options::SERVER_ID)?);
    let seconds = |code| options.fixed(code).map(u32::from_be_bytes);
    let router = options.get(options::ROUTER).and_then(|list| octets::<4>(&list, 0));
    let reply = ServerReply {
        kind,
        xid: u32::from_be_bytes(octets(message, 4)?),
        address: Ipv4Addr::from(octets::<4>(message, 16)?),
        server,
        seconds: seconds(options::LEASE_TIME),
        t1: seconds(options::T1),
        t2: seconds(options::T2),
        prefix: options.fixed(options::SUBNET_MASK).and_then(prefix),
        gateway: router.map(Ipv4Addr::from).filter(|gateway| is_host(*gateway)),
        name_servers: hosts(&options.get(options::NAME_SERVER).unwrap_or_default()),
    };
    is_host(server).then_some(reply)
}

/// First [`MOST_NAME_SERVERS`] addresses of a list. Addresses that cannot belong to a host are
/// skipped. At the end of the list, octets that are not a whole address are ignored.
fn hosts(list: &[u8]) -> Vec<Ipv4Addr> {
    let (addresses, _) = list.as_chunks::<4>();
    let hosts = addresses.iter().copied().map(Ipv4Addr::from).filter(|host| is_host(*host));
    hosts.take(MOST_NAME_SERVERS).collect()
}

/// Length of the prefix that a mask states. `None`: the mask is zero, or a zero bit comes before a
/// one bit.
fn prefix(mask: [u8; 4]) -> Option<u8> {
    ipnet::ipv4_mask_to_prefix(Ipv4Addr::from(mask)).ok().filter(|length| *length > 0)
}

/// Whether an address can belong to a single host. `false`: the address is in 0.0.0.0/8 or
/// 127.0.0.0/8, or is 224.0.0.0 or higher.
fn is_host(address: Ipv4Addr) -> bool {
    let [first, ..] = address.octets();
    !(first == 0 || address.is_loopback() || first >= 224)
}
