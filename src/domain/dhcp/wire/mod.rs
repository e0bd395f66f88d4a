//! Encoding and decoding of packets.
//!
//! The privileged agent reads frames of any station. These modules therefore read only the fields
//! that a lease needs, check each length, and allocate no more than a message's length. Two crates
//! are not used, for these reasons:
//!
//! * `dhcproto` stops at a faulty option without an error, lets a repeated option replace the
//!   first, reads no options in `file` and `sname`, and brings 28 more crates, among them a library
//!   for DNS.
//! * `etherparse` would replace only three fixed headers, and does not verify the checksum of IPv4.

pub(crate) mod arp;
pub(crate) mod bpf;
pub(crate) mod ethernet;
mod header;
pub(crate) mod message;
pub(crate) mod options;
