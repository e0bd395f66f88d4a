//! Encoding and decoding of packets.
//!
//! The privileged agent reads frames of any station, so these modules read only the fields that a
//! lease needs, check each length, and allocate no more than a message's length. `dhcproto` ends at
//! a faulty option without an error, lets a repeated option replace the first, reads no options in
//! `file` and `sname`, and brings 28 more crates, among them a library for DNS. `etherparse` would
//! replace three fixed headers, and does not verify IPv4's checksum.

pub(crate) mod arp;
pub(crate) mod bpf;
pub(crate) mod ethernet;
mod header;
pub(crate) mod message;
pub(crate) mod options;
