//! The DHCP messages that a client sends, and the ones that it can read.
//!
//! Invariant: a message that is read has a cookie, a type, a server that can be one, and the
//! lengths that the protocol fixes; everything else about it is still to be judged.

use std::net::Ipv4Addr;

use super::super::Mac;
use super::super::identity::Identity;
use super::ethernet::octets;
use super::options::{self, Reader, Writer};

/// Octets of a message at least: what BOOTP relays and servers expect.
pub const SHORTEST: usize = 300;
/// Where options begin, after the cookie.
const OPTIONS: usize = 240;
const COOKIE: [u8; 4] = [99, 130, 83, 99];
const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const ETHERNET: [u8; 2] = [1, 6];
const BROADCAST_FLAG: u16 = 0x8000;
/// The largest message that is accepted, with its headers: one frame.
const LARGEST: u16 = 1500;
/// Name servers that are kept: as many as a resolver asks.
const MOST_NAME_SERVERS: usize = 3;
/// Who made the client, in option 60.
const VENDOR: &[u8] = b"harvester-guest-operator";
/// What a client wants to know.
const PARAMETERS: [u8; 7] = [
    options::SUBNET_MASK,
    options::ROUTER,
    options::NAME_SERVER,
    options::LEASE_TIME,
    options::SERVER_ID,
    options::T1,
    options::T2,
];

/// What a client says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Say {
    /// Who has an address for me? With the one that it would like.
    Discover(Option<Ipv4Addr>),
    /// I take this offer of that server's.
    Select(Ipv4Addr, Ipv4Addr),
    /// I had this address: is it still mine, and for how long? To any server.
    Confirm(Ipv4Addr),
    /// Somebody else has the address that this server gave me.
    Decline(Ipv4Addr, Ipv4Addr),
    /// I need the address no more that this server gave me.
    Release(Ipv4Addr, Ipv4Addr),
}

impl Say {
    const fn message_type(self) -> u8 {
        match self {
            Self::Discover(_) => 1,
            Self::Select(..) | Self::Confirm(_) => 3,
            Self::Decline(..) => 4,
            Self::Release(..) => 7,
        }
    }

    /// Options 50 and 54, and the field `ciaddr`.
    const fn addresses(self) -> (Option<Ipv4Addr>, Option<Ipv4Addr>, Ipv4Addr) {
        let none = Ipv4Addr::UNSPECIFIED;
        match self {
            Self::Discover(wish) => (wish, None, none),
            Self::Confirm(address) => (Some(address), None, none),
            Self::Select(address, server) | Self::Decline(address, server) => {
                (Some(address), Some(server), none)
            }
            Self::Release(address, server) => (None, Some(server), address),
        }
    }
}

/// A message to write.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    /// What it says.
    pub say: Say,
    /// By whom.
    pub identity: &'a Identity,
    /// The number that answers carry.
    pub xid: u32,
    /// Since when the client has been trying, in seconds.
    pub secs: u16,
    /// Whether answers are to be broadcast.
    pub broadcast: bool,
}

impl Query<'_> {
    /// The message's octets.
    pub fn write(&self) -> Vec<u8> {
        let asks = !matches!(self.say, Say::Decline(..) | Say::Release(..));
        let (wish, server, ciaddr) = self.say.addresses();
        let mut message = vec![0; OPTIONS];
        message[0] = REQUEST;
        message[1..3].copy_from_slice(&ETHERNET);
        message[4..8].copy_from_slice(&self.xid.to_be_bytes());
        if asks {
            let flags = if self.broadcast { BROADCAST_FLAG } else { 0 };
            message[8..10].copy_from_slice(&self.secs.to_be_bytes());
            message[10..12].copy_from_slice(&flags.to_be_bytes());
        }
        message[12..16].copy_from_slice(&ciaddr.octets());
        message[28..34].copy_from_slice(&self.identity.mac.0);
        message[OPTIONS - 4..].copy_from_slice(&COOKIE);

        let mut written = Writer::default();
        written.put(options::MESSAGE_TYPE, &[self.say.message_type()]);
        if let Some(id) = &self.identity.client_id {
            written.put(options::CLIENT_ID, id.octets());
        }
        if let Some(wish) = wish {
            written.put(options::REQUESTED_ADDRESS, &wish.octets());
        }
        if let Some(server) = server {
            written.put(options::SERVER_ID, &server.octets());
        }
        if asks {
            written.put(options::LARGEST_MESSAGE, &LARGEST.to_be_bytes());
            written.put(options::VENDOR_CLASS, VENDOR);
            if !self.identity.hostname.is_empty() {
                written.put(options::HOST_NAME, self.identity.hostname.as_bytes());
            }
            written.put(options::PARAMETERS, &PARAMETERS);
        }
        message.extend(written.end());
        message.resize(message.len().max(SHORTEST), 0);
        message
    }
}

/// What a server's message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It has an address.
    Offer,
    /// It grants it.
    Ack,
    /// It refuses.
    Nak,
}

/// A server's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// What it is.
    pub kind: Kind,
    /// The number of the message that it answers.
    pub xid: u32,
    /// `yiaddr`.
    pub address: Ipv4Addr,
    /// Option 54.
    pub server: Ipv4Addr,
    /// Option 51; `u32::MAX` is for ever.
    pub seconds: Option<u32>,
    /// Option 58, in seconds.
    pub t1: Option<u32>,
    /// Option 59, in seconds.
    pub t2: Option<u32>,
    /// Length of the prefix that option 1 stands for, if that is a mask.
    pub prefix: Option<u8>,
    /// The first router of option 3.
    pub gateway: Option<Ipv4Addr>,
    /// The first of the name servers of option 6.
    pub name_servers: Vec<Ipv4Addr>,
}

/// Whose a message is, in either direction.
pub fn holder(message: &[u8]) -> Option<Mac> {
    let ethernet = octets(message, 1)? == ETHERNET;
    let cookie = octets(message, OPTIONS - 4)? == COOKIE;
    let mac = Mac(octets(message, 28)?);
    (ethernet && cookie).then_some(mac)
}

/// The number of a message that a client sent; `None`: it is a server's, or no message.
pub fn client_xid(message: &[u8]) -> Option<u32> {
    let xid = octets(message, 4)?;
    (message.first() == Some(&REQUEST)).then(|| u32::from_be_bytes(xid))
}

/// Why a message was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// It is not as the protocol has it.
    Malformed,
    /// It is for another hardware address or client identifier.
    NotOurs,
}

/// Reads a server's message to this client.
pub fn read(message: &[u8], identity: &Identity) -> Result<Reply, Unread> {
    if message.first() != Some(&REPLY) {
        return Err(Unread::Malformed);
    }
    match holder(message) {
        None => return Err(Unread::Malformed),
        Some(mac) if mac != identity.mac => return Err(Unread::NotOurs),
        Some(_) => {}
    }
    let area = |from: usize, to: usize| message.get(from..to).unwrap_or_default();
    let field = message.get(OPTIONS..).unwrap_or_default();
    let options = Reader::new(field, area(108, 236), area(44, 108)).ok_or(Unread::Malformed)?;
    // RFC 6842: a server may leave it out; if it does not, it says who is meant. A server that got none may
    // say what it knows the hardware address by.
    let meant = options.get(options::CLIENT_ID);
    let other = |id: &[u8]| identity.client_id.as_ref().is_some_and(|own| own.octets() != id);
    if meant.is_some_and(|id| other(&id)) {
        return Err(Unread::NotOurs);
    }
    reply(message, &options).ok_or(Unread::Malformed)
}

fn reply(message: &[u8], options: &Reader<'_>) -> Option<Reply> {
    let kind = match options.fixed(options::MESSAGE_TYPE)? {
        [2] => Kind::Offer,
        [5] => Kind::Ack,
        [6] => Kind::Nak,
        _ => return None,
    };
    let server = Ipv4Addr::from(options.fixed::<4>(options::SERVER_ID)?);
    let seconds = |code| options.fixed(code).map(u32::from_be_bytes);
    let router = options.get(options::ROUTER).and_then(|list| octets::<4>(&list, 0));
    let reply = Reply {
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

/// The first hosts of a list of addresses. What is left at its end is none.
fn hosts(list: &[u8]) -> Vec<Ipv4Addr> {
    let (addresses, _) = list.as_chunks::<4>();
    let hosts = addresses.iter().copied().map(Ipv4Addr::from).filter(|host| is_host(*host));
    hosts.take(MOST_NAME_SERVERS).collect()
}

/// The length that a mask stands for, if its ones are in a row.
fn prefix(mask: [u8; 4]) -> Option<u8> {
    let mask = u32::from_be_bytes(mask);
    let length = mask.leading_ones();
    let whole = mask.count_ones() == length;
    if whole && length > 0 { u8::try_from(length).ok() } else { None }
}

/// Whether one host can have the address.
fn is_host(address: Ipv4Addr) -> bool {
    let [first, ..] = address.octets();
    !(first == 0 || address.is_loopback() || first >= 224)
}
