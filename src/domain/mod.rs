//! Every decision of the operator, as plain functions of what is known.
//!
//! Invariant: nothing here waits, reads a clock, draws a random number or talks to anything:
//! time and outside facts are arguments. `tests/it/architecture.rs` holds this room to it.

pub mod admission;
pub mod book;
pub mod certificates;
pub mod cloud_config;
pub mod cloud_credential;
pub mod conflict;
pub mod convert;
pub mod dhcp;
pub mod endpoints;
pub mod facts;
pub mod free_set;
pub mod health;
pub mod kube_vip;
pub mod label_index;
pub mod leadership;
pub mod leasing;
pub mod ledger;
pub mod manual_release;
pub mod pacing;
pub mod plan;
pub mod pool_choice;
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LbFacts {
    /// Which object.
    pub owner: Owner,
    /// Creation, in seconds since the epoch: who waits longest is served first.
    pub created: i64,
    /// What the address must fit.
    pub requirement: pool_choice::Requirement,
    /// The pool that `spec.ipPool` names.
    pub named_pool: Option<String>,
    /// The claim that `status.allocatedAddress` publishes.
    pub published: Option<Claim>,
    /// Read from the API server for this very decision, not from a view that may be old.
    pub fresh: bool,
}

/// A LoadBalancer's identity. The UID is what owns an address; the name is for people, for
/// stickiness and for ledgers that older software wrote.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
