//! Every decision of the operator, as plain functions of what is known.
//!
//! Invariant: nothing here waits, reads a clock, draws a random number or talks to anything:
//! time and outside facts are arguments. `tests/it/architecture.rs` holds this room to it.

pub mod admission;
pub mod backend_address;
pub mod backoff;
pub mod book;
pub mod bounds;
pub mod certificates;
pub mod cloud_config;
pub mod cloud_credential;
mod condition;
pub mod conflict;
pub mod convert;
pub mod crowd;
pub mod dhcp;
pub mod endpoints;
pub mod facts;
pub mod fair_queue;
pub mod free_set;
pub mod health;
pub mod host_links;
pub mod infrastructure;
pub mod json_size;
pub mod kube_vip;
pub mod label_index;
pub mod leadership;
pub mod leasing;
pub mod ledger;
pub mod manual_release;
pub mod network;
pub mod pacing;
pub mod plan;
pub mod pool_choice;
pub mod pool_status;
pub mod ranges;
pub mod reason;
pub mod registration;
pub mod rotation;
pub mod service;
pub mod slices;
pub mod support;
pub mod topology;
pub mod vm;
pub mod vm_lb;

use std::net::IpAddr;

/// A LoadBalancer as decisions see it. Cheap to clone into a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LbFacts {
    /// Which object.
    pub owner: Owner,
    /// Creation, in seconds since the epoch: who waits longest is served first.
    pub created: i64,
    /// What the address must fit.
    pub requirement: pool_choice::Requirement,
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
