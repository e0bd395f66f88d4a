//! Options of a client.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::Ipv4Net;

use super::super::Mac;

/// Options of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    /// Timing of the ARP probe of a newly granted address.
    pub probe: ProbeTiming,
    /// Time over which clients that begin together spread their first message.
    pub start_within: Duration,
    /// Longest time over which clients that are resumed together spread their first messages. If a
    /// lease ends soon, the limit is a quarter of its remaining time.
    pub resume_within: Duration,
    /// Position of this client's messages in a time range: see [`super::super::phase`]. Different
    /// phases spread the first messages and the renewals of many clients.
    pub phase: u32,
    /// Whether every message asks servers to broadcast their answers. Otherwise, a message asks for
    /// this only while the client's address may be in use. The reason is dnsmasq on a router. If
    /// dnsmasq grants an address by unicast, it writes an ARP entry for the address (SIOCSARP,
    /// src/dhcp.c). The router would then send the traffic of the address to this client, which
    /// does not serve the address.
    pub broadcast: bool,
    /// Subnets whose addresses may be leased. Empty: any address.
    pub subnets: Arc<[Ipv4Net]>,
    /// Whether the client keeps an address after its lease has expired without an answer from a
    /// server: see `kept_address.rs`.
    pub keep: bool,
    /// Address that a client without a former address asks for. `None`: any address.
    pub wish: Option<Ipv4Addr>,
    /// Station that answers ARP for every address: see [`super::super::AddressDisputes`]. `None`:
    /// no such station is known.
    pub proxy: Option<Mac>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            probe: ProbeTiming::QUICK,
            start_within: Duration::ZERO,
            resume_within: Duration::from_secs(30),
            phase: 0,
            broadcast: false,
            subnets: Arc::default(),
            keep: false,
            wish: None,
            proxy: None,
        }
    }
}

/// Timing of the ARP probe of a newly granted address: RFC 5227.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeTiming {
    /// Number of ARP questions about the address. Zero: no probe.
    pub count: u32,
    /// Longest random wait before the first question.
    pub first_within: Duration,
    /// Shortest time from one question to the next.
    pub shortest_gap: Duration,
    /// Longest time from one question to the next.
    pub longest_gap: Duration,
    /// Time to wait for an answer to the last question.
    pub wait: Duration,
}

impl ProbeTiming {
    /// Timing of RFC 5227: the probe takes four to seven seconds.
    pub const RFC_5227: Self = Self {
        count: 3,
        first_within: Duration::from_secs(1),
        shortest_gap: Duration::from_secs(1),
        longest_gap: Duration::from_secs(2),
        wait: Duration::from_secs(2),
    };
    /// Three questions within half a second, because a host on the same segment answers in
    /// milliseconds.
    pub const QUICK: Self = Self {
        count: 3,
        first_within: Duration::from_millis(20),
        shortest_gap: Duration::from_millis(140),
        longest_gap: Duration::from_millis(160),
        wait: Duration::from_millis(150),
    };
    /// Disabled: a newly granted address is not probed.
    pub const OFF: Self = Self { count: 0, ..Self::QUICK };
}

/// Sockets that must be open before a client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenSockets {
    /// No socket is needed.
    Nothing,
    /// A socket for answers of DHCP servers.
    Dhcp,
    /// Sockets for answers of DHCP servers and for ARP.
    DhcpAndArp,
}
