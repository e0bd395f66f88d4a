//! Every decision of the operator, as plain functions of what is known.
//!
//! Invariant: nothing here waits, reads a clock, draws a random number or talks to anything: time and
//! outside facts are arguments. The crate depends on nothing that could, and `clippy.toml` beside this file
//! forbids what the standard library has.

pub mod admission;
mod condition;
pub mod conversion;
pub mod credentials;
pub mod dhcp;
pub mod dhcp_lease;
pub mod leader_election;
pub mod limits;
pub mod load_balancer;
pub mod network;
pub mod pools;
pub mod reason;
pub mod support_report;
pub mod takeover;
pub mod vm_backends;

use std::net::IpAddr;

/// A LoadBalancer as decisions see it. Cheap to clone into a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LbFacts {
    /// Which object.
    pub owner: Owner,
    /// Creation, in seconds since the epoch: who waits longest is served first.
    pub created: i64,
    /// What the address must fit.
    pub requirement: pools::selection::Requirement,
    /// Where the network is that the LoadBalancer, or its guest cluster's VMs, name.
    /// `None`: they name none.
    pub segment: Option<network::Segment>,
    /// Whether a guest cluster announces the address, not the nodes.
    pub guest: bool,
    /// The pool that `spec.ipPool` names.
    pub named_pool: Option<String>,
    /// The claim that `status.allocatedAddress` publishes.
    pub published: Option<Claim>,
    /// The claim that an annotation says it had: a LoadBalancer restored from a backup has that.
    pub former: Option<Claim>,
    /// Read from the API server for this very decision, not from a view that may be old.
    pub fresh: bool,
}

impl LbFacts {
    /// Segments on which an address of a pool on `pool` is announced for this LoadBalancer. The
    /// annotation of a vm LoadBalancer counts as well: an earlier Service may be announced there.
    pub fn announced_at(&self, pool: &network::Segment) -> Vec<network::Segment> {
        match (&self.segment, self.guest) {
            (Some(own), true) => vec![own.clone()],
            (None, true) => vec![pool.clone()],
            (own, false) => std::iter::once(pool.of_announcer()).chain(own.clone()).collect(),
        }
    }
}

/// A LoadBalancer's identity. The UID is what owns an address; the name is for people, for
/// stickiness and for ledgers that older software wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    /// `namespace/name`.
    pub name: String,
    /// `metadata.uid`. Empty in ledger entries that carry none.
    pub uid: String,
}

/// An address in a pool's ledger.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    /// The IPPool.
    pub pool: String,
    /// The address.
    pub ip: IpAddr,
}
