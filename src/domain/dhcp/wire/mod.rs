//! Encoding and decoding of packets.

pub(crate) mod arp;
pub(crate) mod bpf;
pub(crate) mod ethernet;
mod header;
pub(crate) mod message;
pub(crate) mod options;
