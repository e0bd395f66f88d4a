//! Output of a client to the code that runs it.

use std::fmt;
use std::net::Ipv4Addr;
use std::time::Duration;

use super::super::{GrantedLease, Mac};
use api::LeaseState;

/// Maximum number of announcing stations that are stored for an address. There may be several,
/// because the announcer of an address moves between nodes.
pub(super) const MOST_STATIONS: usize = 4;

/// Action that the caller of a client must carry out. The actions of a list must be carried out in
/// its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientAction {
    /// Send this complete Ethernet frame. Before that, begin to accept the frames that
    /// [`super::super::DhcpClient::listening`] returns.
    Send(Vec<u8>),
    /// Write this content into the client's DHCPLease, then call
    /// [`super::super::DhcpClient::record_written`]. If a later `Record` comes before the write,
    /// write only the later one.
    Record(LeaseRecord),
    /// Report this event in metrics, logs and Events.
    Event(ClientEvent),
    /// Remove the client and its link: the client has finished.
    Done,
}

/// Content that the caller writes into the status of the client's DHCPLease. The client calls this
/// content a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRecord {
    /// Serial number of the record. A later record of the client has a greater number.
    pub serial: u64,
    /// State of the client.
    pub state: LeaseState,
    /// Held lease. Its address may be used after this record is written. `None`: the client holds
    /// no lease.
    pub lease: Option<GrantedLease>,
    /// Trouble of the client. `None`: the client has no trouble.
    pub trouble: Option<ClientTrouble>,
    /// Whether the client keeps its address if the lease expires without an answer of a server.
    pub keeps: bool,
    /// Address that the client holds or held last, and the stations that answered ARP for it.
    /// `None`: the client has never held an address.
    pub announced: Option<AnnouncedAddress>,
    /// Lost address that a station still announces, and this station. `None`: there is no such
    /// address.
    pub still_announced: Option<(Ipv4Addr, Mac)>,
}

/// Address, and the stations that answered ARP for it while the client held it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnouncedAddress {
    /// Address that the stations announce.
    pub address: Ipv4Addr,
    /// Stations that announce the address. The one that was stored last comes first.
    pub by: Vec<Mac>,
}

impl AnnouncedAddress {
    pub(super) fn new(address: Ipv4Addr) -> Self {
        Self { address, by: Vec::new() }
    }

    /// Stores a station that announces the address. Returns `false` if the station is stored
    /// already. If more than [`MOST_STATIONS`] stations would be stored, the oldest entry is
    /// dropped.
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
    /// A server refused the address that was offered or leased.
    Refused,
    /// Another host has the granted address. The value is the station of the other host.
    AddressInUse(Mac),
    /// Ten or more addresses in a row were granted, and each was in use by another host. The value
    /// is the station that has the last of these addresses.
    TooManyInUse(Mac),
    /// The offer or the grant cannot be used.
    Unusable {
        /// Offered or granted address.
        address: Ipv4Addr,
        /// Server that sent the offer or grant.
        server: Ipv4Addr,
        /// Reason why the offer or grant cannot be used.
        why: &'static str,
    },
    /// A station answers ARP for all addresses, so the client cannot find out whether an address is
    /// free. The value is this station.
    AnswersForAll(Mac),
    /// The server that granted the lease has not answered between T1 and T2.
    ServerSilent,
    /// The lease has expired without an answer of a server. The address is lost.
    Expired,
    /// The lease has expired without an answer of a server. The address is kept.
    Kept,
    /// The address was kept after the lease had expired. It is lost now, because another host also
    /// has it. The value is the station of the other host.
    Taken(Mac),
    /// A server granted another address than the client held. Or the client kept an address whose
    /// lease had expired, and the server of this lease offered another address.
    Changed,
}

impl fmt::Display for ClientTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoOffer => f.write_str("no DHCP server answers"),
            Self::Refused => f.write_str("the DHCP server refused the address"),
            Self::AddressInUse(mac) => {
                write!(f, "host {mac} has the address that the DHCP server granted")
            }
            Self::TooManyInUse(mac) => write!(
                f,
                "host {mac} has the address that the DHCP server granted, and other hosts have the addresses that it granted before: the agent asks again in one hour, or after its restart"
            ),
            Self::Unusable { address, server, why } => {
                write!(f, "DHCP server {server} offers {address}, which cannot be used: {why}")
            }
            Self::AnswersForAll(mac) => write!(
                f,
                "host {mac}, which is the DHCP server or the router to it, answers ARP for every granted address, so the agent cannot check that an address is free: turn off proxy ARP on this host, or turn off the ARP probe for this network"
            ),
            Self::ServerSilent => f.write_str("the DHCP server has not answered since T1"),
            Self::Expired => f.write_str("the lease expired, and no DHCP server answered"),
            Self::Kept => f.write_str(
                "the lease expired, and no DHCP server answered: the address is kept, because onLeaseLoss is Keep",
            ),
            Self::Taken(mac) => {
                write!(f, "the lease expired, and host {mac} also has the address")
            }
            Self::Changed => f.write_str("the DHCP server granted another address"),
        }
    }
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
    /// An offer or a grant of a server cannot be used.
    Unusable {
        /// Server that sent the offer or grant.
        server: Ipv4Addr,
        /// Offered or granted address.
        address: Ipv4Addr,
        /// Reason why the offer or grant cannot be used.
        why: &'static str,
    },
    /// The client holds a newly granted address. No other host answered the ARP probe of the
    /// address, or no probe was sent. A known announcer of the address does not count as another
    /// host.
    Acquired {
        /// Granted address.
        address: Ipv4Addr,
        /// Server that granted the address.
        server: Ipv4Addr,
        /// Time from the start of the search until the client holds the address. The time of a
        /// probe is included.
        took: Duration,
    },
    /// The lease was renewed.
    Renewed {
        /// Server that granted the renewal.
        server: Ipv4Addr,
        /// Time from the first REQUEST of the renewal to the grant.
        took: Duration,
    },
    /// The lease was renewed by another server than before.
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
        /// Cause of the loss: `Expired`, `Refused`, `Taken` or `Changed`.
        why: ClientTrouble,
    },
    /// A server refused the address that the client holds or requests.
    Nak {
        /// Server that sent the NAK.
        server: Ipv4Addr,
        /// Whether the client accepted the refusal. If the client holds a lease of another server,
        /// it accepts the refusal only after several REQUESTs to all servers. If this lease has an
        /// expiry, T2 must also have passed.
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
    /// The ARP probe of a granted address is over, and no station has disputed the address.
    Undisputed,
    /// A known announcer of a lost address still announces this address.
    StillAnnounced {
        /// Lost address that is still announced.
        address: Ipv4Addr,
        /// Station that announces the address.
        by: Mac,
    },
    /// A station answers ARP for the address, so the client ends without a RELEASE. A first RELEASE
    /// may have been sent all the same, if the agent lost its leadership or was restarted after it.
    /// Then the station may be a host to which the server has granted the address since.
    NotReleased {
        /// Address whose release ended.
        address: Ipv4Addr,
        /// Station that has the address.
        by: Mac,
    },
    /// A message was sent again, because no server answered it.
    Retry,
    /// The address was released.
    Released {
        /// Address that was released.
        address: Ipv4Addr,
    },
    /// Another client with this client's hardware address has sent a message.
    Duplicate {
        /// Station that sent the message.
        from: Mac,
    },
    /// A received frame was ignored.
    Ignored(IgnoreReason),
}

/// Reason why a frame was ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IgnoreReason {
    /// The frame is not a valid DHCP or ARP frame.
    Malformed,
    /// The frame does not concern this client. For example, the frame is for another client.
    NotOurs,
    /// The frame is an answer that the client does not wait for, or cannot use.
    Unasked,
    /// The answer is from a server that the client does not expect. A client that takes an offer
    /// expects the server of this offer. A client that holds a lease expects the lease's server. It
    /// accepts grants of other servers only after T2, or after several REQUESTs to all servers.
    OtherServer,
}
