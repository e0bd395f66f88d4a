//! Decisions of the operator, as plain functions of known facts.
//!
//! Invariant: nothing here waits, reads a clock, draws a random number or does I/O. Time and
//! outside facts are arguments. `Cargo.toml` and `clippy.toml` in this folder and the test
//! `tests/it/architecture` enforce the invariant.

pub mod admission;
pub mod conversion;
pub mod credentials;
pub mod dhcp;
pub mod dhcp_lease;
pub mod leader_election;
pub mod limits;
pub mod load_balancer;
pub mod network;
pub mod object_fields;
pub mod pools;
pub mod preview;
pub mod reason;
pub mod support_report;
pub mod takeover;
pub mod vm_backends;

use std::net::{IpAddr, Ipv4Addr};

/// Facts about a LoadBalancer from which its address is chosen. A request for an address contains
/// these facts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LbFacts {
    /// Identity of the LoadBalancer.
    pub owner: Owner,
    /// Creation time, in seconds since the epoch. Of the LoadBalancers that wait for an address,
    /// the oldest is served first.
    pub created: i64,
    /// Network, project, namespace and guest cluster of the LoadBalancer. The selector of a pool is
    /// compared with these values.
    pub requirement: pools::selection::PoolRequirement,
    /// Segment of the network that the LoadBalancer names. If the LoadBalancer names none, this is
    /// the segment of its guest cluster's VMs. `None`: no network is known.
    pub segment: Option<network::Segment>,
    /// Whether a guest cluster announces the address. `false`: the nodes of the host cluster
    /// announce it.
    pub guest: bool,
    /// Pool that `spec.ipPool` names. `None`: the field names no pool.
    pub named_pool: Option<String>,
    /// Claim that `status.allocatedAddress` publishes. `None`: the status has no address from a
    /// pool.
    pub published: Option<Claim>,
    /// Claim that an annotation of the LoadBalancer records: its present claim, or a former one. A
    /// LoadBalancer that was restored from a backup still has this annotation. `None`: the
    /// LoadBalancer has no such annotation, or an invalid one.
    pub former: Option<Claim>,
    /// Addresses of the LoadBalancer's own Service. A claim of one of these addresses is not
    /// released.
    pub service: AnnouncedAddresses,
    /// Whether the facts were read from the API server for this decision, not from a cache that may
    /// be old.
    pub fresh: bool,
}

impl LbFacts {
    /// Segments on which this LoadBalancer's address may be announced, if a pool on the segment
    /// `pool` gives the address:
    /// * type cluster: `self.segment`, or `pool` if `self.segment` is `None`;
    /// * type vm: the segment on which the nodes announce addresses of `pool`
    ///   ([`network::Segment::of_announcer`]), and `self.segment`.
    pub fn announced_at(&self, pool: &network::Segment) -> Vec<network::Segment> {
        match (&self.segment, self.guest) {
            (Some(own), true) => vec![own.clone()],
            (None, true) => vec![pool.clone()],
            (own, false) => std::iter::once(pool.of_announcer()).chain(own.clone()).collect(),
        }
    }

    /// Published address that the LoadBalancer gives up when it moves to the pool `pool`. The pool
    /// must not give the LoadBalancer this address again: a move ends only when the Service no
    /// longer asks for the published address, so this move would never end. `None`: the
    /// LoadBalancer publishes no address from another pool, or a guest announces the address.
    pub fn moves_off(&self, pool: &str) -> Option<IpAddr> {
        let published = self.published.as_ref().filter(|claim| !self.guest && claim.pool != pool);
        published.map(|claim| claim.ip)
    }

    /// Whether the LoadBalancer's Service may still be announced at the address of `claim`,
    /// although `current` has another address. `current`: the claim that the LoadBalancer has now.
    pub fn may_use(&self, claim: &Claim, current: &Claim) -> bool {
        claim.ip != current.ip && self.service.may_include(claim.ip)
    }
}

/// Addresses at which a LoadBalancer's own Service is announced, or may be announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnnouncedAddresses {
    /// Addresses that the Service asks for, and those at which it is announced. Empty: there is no
    /// Service, or it has no such address.
    Known(Vec<IpAddr>),
    /// The addresses are not known, because the operator has not listed the Services yet.
    Unknown,
}

impl AnnouncedAddresses {
    /// Whether the Service is announced at `ip`, or may be.
    pub fn may_include(&self, ip: IpAddr) -> bool {
        match self {
            Self::Known(addresses) => addresses.contains(&ip),
            Self::Unknown => true,
        }
    }
}

impl Default for AnnouncedAddresses {
    fn default() -> Self {
        Self::Known(Vec::new())
    }
}

/// Identity of a LoadBalancer. The UID decides who owns an address. The name is used in messages
/// and in the search for a former address. Ledger entries that Harvester's Go controller wrote have
/// only the name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    /// `namespace/name`.
    pub name: String,
    /// `metadata.uid`. Empty in ledger entries without a UID.
    pub uid: String,
}

/// Claim: an address that the ledger of a pool records for an owner.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    /// Name of the IPPool.
    pub pool: String,
    /// Claimed IP address.
    pub ip: IpAddr,
}

/// Address that a DHCP server leased to the host, with its subnet and network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasedAddress {
    /// IP address that the DHCP server leased.
    pub ip: Ipv4Addr,
    /// Mask of the subnet, if the DHCP server sent one.
    pub mask: Option<Ipv4Addr>,
    /// Router of the subnet, if the DHCP server sent one.
    pub gateway: Option<Ipv4Addr>,
    /// Network on which the address was leased, `namespace/name`.
    pub network: String,
}
