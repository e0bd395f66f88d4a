//! How a client behaves.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::Ipv4Net;

use super::super::Mac;

/// How a client behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How a fresh address is probed.
    pub probe: Probe,
    /// Over what time clients that begin together spread their first message.
    pub start_within: Duration,
    /// Over what time clients that were resumed together spread theirs; a quarter of what is left
    /// of the lease, if that is less.
    pub resume_within: Duration,
    /// This client's place in those times, and among renewals: see [`super::phase`].
    pub phase: u32,
    /// Whether servers are asked to broadcast their answers in any case. They always are where an
    /// address may be in use: a router that is dnsmasq writes its own ARP entry of an address that it
    /// grants by unicast (SIOCSARP, src/dhcp.c), and it would lead to this client, which answers for
    /// none.
    pub broadcast: bool,
    /// Subnets whose addresses may be leased. Empty: any.
    pub subnets: Arc<[Ipv4Net]>,
    /// Whether an address is kept after its lease has ended without an answer: see `kept.rs`.
    pub keep: bool,
    /// Address that is asked for before any was held.
    pub wish: Option<Ipv4Addr>,
    /// Station that answers ARP for every address: see [`super::Disputes`].
    pub proxy: Option<Mac>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            probe: Probe::QUICK,
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

/// How a fresh address is probed: RFC 5227.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// How often it is asked who has it. Zero: never.
    pub count: u32,
    /// The first question waits up to this long.
    pub first_within: Duration,
    /// From one question to the next, at least.
    pub shortest_gap: Duration,
    /// At most.
    pub longest_gap: Duration,
    /// How long the last one waits for an answer.
    pub wait: Duration,
}

impl Probe {
    /// The times of RFC 5227: four to nine seconds.
    pub const RFC_5227: Self = Self {
        count: 3,
        first_within: Duration::from_secs(1),
        shortest_gap: Duration::from_secs(1),
        longest_gap: Duration::from_secs(2),
        wait: Duration::from_secs(2),
    };
    /// Three questions within half a second: a host on the same segment answers in milliseconds.
    pub const QUICK: Self = Self {
        count: 3,
        first_within: Duration::from_millis(20),
        shortest_gap: Duration::from_millis(140),
        longest_gap: Duration::from_millis(160),
        wait: Duration::from_millis(150),
    };
    /// None.
    pub const OFF: Self = Self { count: 0, ..Self::QUICK };
}

/// Sockets that must be open before a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listening {
    /// Nothing: no socket is needed.
    Nothing,
    /// Answers of DHCP servers.
    Dhcp,
    /// Those, and ARP.
    DhcpAndArp,
}
