//! Packets as they are on the wire.

pub(crate) mod arp;
pub(crate) mod bpf;
pub(crate) mod ethernet;
pub(crate) mod message;
pub(crate) mod options;
