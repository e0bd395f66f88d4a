//! What a client has to say to whoever runs it.

use std::fmt;
use std::net::Ipv4Addr;
use std::time::Duration;

use super::super::{Announced, Lease, Mac, Unusable};

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Out {
    /// Send this whole Ethernet frame. What [`super::super::Client::listening`] names by now must hear
    /// before it goes out.
    Send(Vec<u8>),
    /// Write this; then say so by [`super::super::Client::recorded`]. A later record stands for all
    /// earlier ones that have not been written yet.
    Record(Record),
    /// For metrics, logs and Events.
    Event(Event),
    /// The client has nothing to do any more: it and its link may go.
    Done,
}

/// What the durable record is to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Which one: later ones have greater numbers.
    pub serial: u64,
    /// Where the client stands.
    pub state: State,
    /// The lease, while its address may be used.
    pub lease: Option<Lease>,
    /// What is wrong, if anything.
    pub trouble: Option<Trouble>,
    /// Whether the address is kept after its lease has ended without an answer.
    pub keeps: bool,
    /// The stations that answer for its address, or did for the one that it had last.
    pub announced: Option<Announced>,
    /// An address that was lost, and the station that still announces it.
    pub still_announced: Option<(Ipv4Addr, Mac)>,
}

/// Where a client stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// It looks for a server.
    Selecting,
    /// It takes an offer.
    Requesting,
    /// It asks whether somebody has the address that it was given; or that one is being recorded.
    Probing,
    /// It has an address.
    Bound,
    /// It has one, and asks for more time.
    Renewing,
    /// It has one, whose server is silent.
    Rebinding,
    /// It has one, and asks whether that is still so.
    Rebooting,
    /// It had one.
    Lost,
    /// It gave it back.
    Released,
}

/// Why a client has no address, or may soon have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trouble {
    /// No server has answered for a while.
    NoOffer,
    /// A server refused what it had offered or granted.
    Refused,
    /// Another host has the address that was granted.
    AddressInUse(Mac),
    /// As many as are asked for in a row were other hosts', the last one this station's.
    TooManyInUse(Mac),
    /// What is offered cannot be used.
    Unusable {
        /// The offer.
        address: Ipv4Addr,
        /// The server that made it.
        server: Ipv4Addr,
        /// Fault.
        why: Unusable,
    },
    /// A station answers ARP for every address, so none is known to be free.
    AnswersForAll(Mac),
    /// The server of the lease has been silent from T1 to T2.
    ServerSilent,
    /// The lease ended without an answer.
    Expired,
    /// The lease ended without an answer, and the address is kept.
    Kept,
    /// Of an address that was kept: this station has it besides the one that announces it.
    Taken(Mac),
    /// The server gave another address instead.
    Changed,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoOffer => f.write_str("no DHCP server answers"),
            Self::Refused => f.write_str("the DHCP server refused the address"),
            Self::AddressInUse(mac) => write!(f, "{mac} has the address that the server gave"),
            Self::TooManyInUse(mac) => write!(
                f,
                "{mac} has the address that the server gave, and other hosts have those before: the next is asked for in an hour, or when the agent starts anew"
            ),
            Self::Unusable { address, server, why } => {
                write!(f, "DHCP server {server} offers {address}, which is of no use: {why}")
            }
            Self::AnswersForAll(mac) => write!(
                f,
                "{mac}, the station of the DHCP server or of the router to it, answers ARP for every address that is granted, so none is known to be free: turn proxy ARP off there, or the ARP probe off for this network"
            ),
            Self::ServerSilent => f.write_str("the DHCP server has been silent since T1"),
            Self::Expired => f.write_str("the lease ended, and no DHCP server answered"),
            Self::Kept => f.write_str(
                "the lease ended, and no DHCP server answered: the address is kept, as onLeaseLoss has it",
            ),
            Self::Taken(mac) => {
                write!(f, "the lease ended, and {mac} has the address as well")
            }
            Self::Changed => f.write_str("the DHCP server gave another address"),
        }
    }
}

/// How an address got lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lost {
    /// Its time was over.
    Expired,
    /// A server took it back.
    Nak,
    /// Another host has it, and it was kept after its lease had ended.
    Taken,
    /// The server gave another one.
    Changed,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A server made an offer that can be used.
    Offered {
        /// The server.
        server: Ipv4Addr,
        /// Its offer.
        address: Ipv4Addr,
    },
    /// A server's offer or grant cannot be used.
    Unusable {
        /// The server.
        server: Ipv4Addr,
        /// Its offer.
        address: Ipv4Addr,
        /// Fault.
        why: Unusable,
    },
    /// An address was granted, and nobody else has it.
    Acquired {
        /// The address.
        address: Ipv4Addr,
        /// The server.
        server: Ipv4Addr,
        /// Since the client began to ask.
        took: Duration,
    },
    /// The lease was given more time.
    Renewed {
        /// Its server.
        server: Ipv4Addr,
        /// Since the client began to ask.
        took: Duration,
    },
    /// Another server gave the lease more time than the one that granted it.
    ServerChanged {
        /// The one that did.
        from: Ipv4Addr,
        /// The one that does.
        to: Ipv4Addr,
    },
    /// The address is not ours any more.
    Lost {
        /// The address.
        address: Ipv4Addr,
        /// How.
        how: Lost,
    },
    /// A server refused.
    Nak {
        /// The server.
        server: Ipv4Addr,
        /// Whether it was heeded: another server than the lease's is not, at first.
        heeded: bool,
    },
    /// The address was handed back, because somebody else has it.
    Declined {
        /// The address.
        address: Ipv4Addr,
        /// Who has it.
        by: Mac,
        /// The station that the grant came from.
        server: Mac,
    },
    /// No station disputed an address that was granted.
    Undisputed,
    /// A lost address is still announced by a station that did so before.
    StillAnnounced {
        /// The address.
        address: Ipv4Addr,
        /// The station.
        by: Mac,
    },
    /// The address was not given back to the server: a station has it.
    NotReleased {
        /// The address.
        address: Ipv4Addr,
        /// The station.
        by: Mac,
    },
    /// Something had to be sent again.
    Retry,
    /// The address was given back.
    Released {
        /// The address.
        address: Ipv4Addr,
    },
    /// Somebody else speaks with this client's hardware address.
    Duplicate {
        /// The station that the message came from.
        from: Mac,
    },
    /// A frame was not for this client, or not now.
    Ignored(Ignored),
}

/// Why a frame was ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ignored {
    /// It is no sound frame of DHCP or ARP.
    Malformed,
    /// It is for another client.
    NotOurs,
    /// It answers nothing that was asked.
    Unasked,
    /// It is from a server that was not asked.
    OtherServer,
}
