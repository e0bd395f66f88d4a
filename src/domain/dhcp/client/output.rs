//! Output of a client to the code that runs it.

use std::fmt;
use std::net::Ipv4Addr;
use std::time::Duration;

use super::super::{GrantedLease, Mac, OfferFault};
use api::LeaseState;

/// Largest number of stations that are stored for an address. There may be several stations,
/// because an announcer moves between nodes.
pub(super) const MOST_STATIONS: usize = 4;

/// Action that the caller carries out. The caller must keep the order of the actions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientAction {
    /// Send this whole Ethernet frame. Before that, open the sockets that
    /// [`super::super::DhcpClient::listening`] returns after the call that returned this action.
    Send(Vec<u8>),
    /// Write this record, then call [`super::super::DhcpClient::recorded`]. A later record replaces
    /// all earlier records that have not been written yet.
    Record(LeaseRecord),
    /// Report this event in metrics, logs and Events.
    Event(ClientEvent),
    /// Remove the client and its link: the client has finished.
    Done,
}

/// Content of a client's durable record. The caller writes it to the DHCPLease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRecord {
    /// Serial number. A later record has a greater number.
    pub serial: u64,
    /// State of the client.
    pub state: LeaseState,
    /// Held lease. Its address may be used once this record is written.
    pub lease: Option<GrantedLease>,
    /// Trouble of the client, if any.
    pub trouble: Option<ClientTrouble>,
    /// Whether the client keeps the address after its lease has expired without an answer.
    pub keeps: bool,
    /// Address that the client has or had last, and the stations that answered ARP for it.
    pub announced: Option<AnnouncedAddress>,
    /// Lost address that is still announced, and the station that announces it.
    pub still_announced: Option<(Ipv4Addr, Mac)>,
}

/// An address, and the stations that answered for it while it was held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnouncedAddress {
    /// IP address that the stations announce.
    pub address: Ipv4Addr,
    /// Announcing stations. The station that was stored last comes first.
    pub by: Vec<Mac>,
}

impl AnnouncedAddress {
    pub(super) fn new(address: Ipv4Addr) -> Self {
        Self { address, by: Vec::new() }
    }

    /// Stores a station. Returns `true` if the station was not stored before.
    pub(super) fn add_station(&mut self, station: Mac) -> bool {
        if self.by.contains(&station) {
            return false;
        }
        self.by.insert(0, station);
        self.by.truncate(MOST_STATIONS);
        true
    }
}

/// Reason why a client has no address, or may soon lose its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClientTrouble {
    /// No server has sent an offer in answer to several DISCOVERs.
    NoOffer,
    /// A server refused the offered or leased address.
    Refused,
    /// The granted address belongs to another host: this station.
    AddressInUse(Mac),
    /// Too many consecutive granted addresses belonged to other hosts. The last of these addresses
    /// belongs to this station.
    TooManyInUse(Mac),
    /// The offer or grant cannot be used.
    Unusable {
        /// Offered or granted address.
        address: Ipv4Addr,
        /// Server that sent the offer or grant.
        server: Ipv4Addr,
        /// Reason why the offer or grant cannot be used.
        why: OfferFault,
    },
    /// A station answers ARP for every address, so the client cannot check whether an address is
    /// free.
    AnswersForAll(Mac),
    /// The server that granted the lease has not answered from T1 to T2.
    ServerSilent,
    /// The lease expired, because no server answered.
    Expired,
    /// The lease expired, because no server answered, and the address is kept.
    Kept,
    /// The kept address also belongs to another host: this station.
    Taken(Mac),
    /// A server granted or offered an address other than the client's.
    Changed,
}

impl fmt::Display for ClientTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoOffer => f.write_str("no DHCP server answers"),
            Self::Refused => f.write_str("the DHCP server refused the address"),
            Self::AddressInUse(mac) => write!(f, "{mac} has the address that the DHCP server granted"),
            Self::TooManyInUse(mac) => write!(
                f,
                "{mac} has the address that the DHCP server granted, and other hosts have the ones before it: the agent asks again in one hour, or after its restart"
            ),
            Self::Unusable { address, server, why } => {
                write!(f, "DHCP server {server} offers {address}, which cannot be used: {why}")
            }
            Self::AnswersForAll(mac) => write!(
                f,
                "{mac}, the station of the DHCP server or of the router to it, answers ARP for every address that is granted, so the agent cannot check that one is free: turn proxy ARP off there, or the ARP probe off for this network"
            ),
            Self::ServerSilent => f.write_str("the DHCP server has not answered since T1"),
            Self::Expired => f.write_str("the lease ended, and no DHCP server answered"),
            Self::Kept => f.write_str(
                "the lease ended, and no DHCP server answered: the address is kept, because onLeaseLoss is Keep",
            ),
            Self::Taken(mac) => {
                write!(f, "the lease ended, and {mac} has the address as well")
            }
            Self::Changed => f.write_str("the DHCP server gave another address"),
        }
    }
}

/// Cause of the loss of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LossCause {
    /// The lease expired.
    Expired,
    /// A server refused the address.
    Nak,
    /// The address was kept after the expiry of its lease, and another host has it.
    Taken,
    /// A server granted or offered an address other than the client's.
    Changed,
}

/// Event of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// A server made an offer that can be used.
    Offered {
        /// Server that sent the offer.
        server: Ipv4Addr,
        /// Offered address.
        address: Ipv4Addr,
    },
    /// A server's offer or grant cannot be used.
    Unusable {
        /// Server that sent the offer or grant.
        server: Ipv4Addr,
        /// Offered or granted address.
        address: Ipv4Addr,
        /// Reason why the offer or grant cannot be used.
        why: OfferFault,
    },
    /// An address was granted, and its probe, if there was one, found no other host.
    Acquired {
        /// Granted address.
        address: Ipv4Addr,
        /// Server that granted the address.
        server: Ipv4Addr,
        /// Time since the client began to ask for an address.
        took: Duration,
    },
    /// The lease was renewed.
    Renewed {
        /// Server that granted the renewal.
        server: Ipv4Addr,
        /// Time since the client began to ask for the renewal.
        took: Duration,
    },
    /// The lease was renewed by a server other than the one that granted it.
    ServerChanged {
        /// Server that granted the lease before.
        from: Ipv4Addr,
        /// Server that renewed the lease.
        to: Ipv4Addr,
    },
    /// The client lost its address.
    Lost {
        /// Lost address.
        address: Ipv4Addr,
        /// Cause of the loss.
        how: LossCause,
    },
    /// A server refused the leased or requested address.
    Nak {
        /// Server that sent the NAK.
        server: Ipv4Addr,
        /// Whether the client accepted the refusal. A refusal by a server that did not grant the
        /// lease is accepted only after several REQUESTs without an answer.
        heeded: bool,
    },
    /// The client declined the granted address, because another station has it.
    Declined {
        /// Declined address.
        address: Ipv4Addr,
        /// Station that has the address.
        by: Mac,
        /// Station that sent the grant.
        server: Mac,
    },
    /// The ARP probe of a granted address has ended, and no station disputed the address.
    Undisputed,
    /// A lost address is still announced by a station that announced it before the loss.
    StillAnnounced {
        /// Lost address that is still announced.
        address: Ipv4Addr,
        /// Station that announces the address.
        by: Mac,
    },
    /// No RELEASE was sent for the address, because a station still answers ARP for it.
    NotReleased {
        /// Address that was not given back.
        address: Ipv4Addr,
        /// Station that has the address.
        by: Mac,
    },
    /// A message was sent again, because no server answered it.
    Retry,
    /// The address was given back.
    Released {
        /// Address that was given back.
        address: Ipv4Addr,
    },
    /// A message of another client with this client's hardware address was received.
    Duplicate {
        /// Station that the message came from.
        from: Mac,
    },
    /// A frame was ignored.
    Ignored(IgnoreReason),
}

/// Reason why a frame was ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IgnoreReason {
    /// The frame is no valid frame of DHCP or ARP.
    Malformed,
    /// The frame is for another client.
    NotOurs,
    /// The frame is not the answer that the client waits for, or the answer is of no use.
    Unasked,
    /// The frame is from a server that the client did not ask, or whose answer does not count yet.
    OtherServer,
}
