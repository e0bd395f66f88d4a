//! Leasing addresses by DHCP (RFC 2131) for hosts other than this one.
//!
//! Whoever holds the lease is not who answers for the address: a guest or kube-vip announces it.
//! So a server's unicast answer to the address would go astray, and the client asks for more time
//! in the form of a client that has restarted (INIT-REBOOT), whose answer goes to the hardware
//! address that asked.
//!
//! Invariants: no frame makes anything here panic; only what was checked for xid, hardware address
//! and client identifier changes a lease; an address may be used only after its record was written.

mod arp;
mod client;
mod disputes;
mod filter;
mod frame;
mod identity;
mod lease;
mod mac;
mod message;
mod names;
mod options;
mod outcome;
mod report;
mod spread;
mod unusable;

pub use client::{Announced, Client, Held, Listening, Options, Probe};
pub use disputes::Disputes;
pub use filter::{Op, filter, nothing};
pub use frame::owner_of;
pub use identity::{ClientId, ClientIdForm, Identity, NoForm};
pub use lease::Lease;
pub use mac::Mac;
pub use names::{AGENT_PREFIX, agent_name};
pub use outcome::{Event, Ignored, Lost, Out, Record, State, Trouble};
pub use report::{Moment, former, held, link_failed, reason, report, state, status_patch};
pub use spread::{Bucket, phase, start_within};
pub use unusable::Unusable;
