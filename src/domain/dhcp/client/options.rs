//! Options of a client.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::Ipv4Net;

use super::super::Mac;

/// Options of a DHCP client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    /// Timing of the ARP probe of a newly granted address.
    pub probe: ProbeTiming,
    /// Time over which clients spread their first messages, if they begin to search for an address
    /// at the same time.
    pub start_within: Duration,
    /// Maximum time over which clients spread their first messages, if they resume their leases at
    /// the same time. For a lease that ends soon, the maximum is a quarter of its remaining time.
    pub resume_within: Duration,
    /// Position of this client's messages in a time range: see [`super::super::phase`]. Clients
    /// with different phases send their first messages and renewals at different times.
    pub phase: u32,
    /// Whether each message asks servers to broadcast their answers. `false`: a message asks for a
    /// broadcast only while the client's address may be in use. `true` is for dnsmasq on a router:
    /// when it grants an address by unicast, it writes an ARP entry for the address (SIOCSARP,
    /// src/dhcp.c). The router would then send the address's traffic to this client, which does not
    /// serve the address.
    pub broadcast: bool,
    /// Subnets from which addresses may be leased. Empty: any address may be leased.
    pub subnets: Arc<[Ipv4Net]>,
    /// Whether the client keeps its address if the lease expires without an answer of a server: see
    /// `kept_address.rs`.
    pub keep: bool,
    /// Address that the client requests while it has no former address. `None`: the client requests
    /// any address.
    pub wish: Option<Ipv4Addr>,
    /// Station that answers ARP for all addresses: see [`super::super::AddressDisputes`]. `None`:
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

/// Timing of the ARP probe of a newly granted address, in the terms of RFC 5227. The ARP questions
/// before a RELEASE use `count`, `shortest_gap` and `wait`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeTiming {
    /// Number of ARP questions in a probe. Zero: the client sends no ARP question at all.
    pub count: u32,
    /// Maximum of the random time before the first ARP question of a probe.
    pub first_within: Duration,
    /// Minimum time between two ARP questions of a probe.
    pub shortest_gap: Duration,
    /// Maximum time between two ARP questions of a probe.
    pub longest_gap: Duration,
    /// Time for which the client waits for an answer after it has sent the last ARP question of a
    /// probe.
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
    /// Timing with three questions within half a second. A host on the same segment answers within
    /// milliseconds.
    pub const QUICK: Self = Self {
        count: 3,
        first_within: Duration::from_millis(20),
        shortest_gap: Duration::from_millis(140),
        longest_gap: Duration::from_millis(160),
        wait: Duration::from_millis(150),
    };
    /// No probe: a newly granted address is used without questions.
    pub const OFF: Self = Self { count: 0, ..Self::QUICK };
}
