//! DHCP client (RFC 2131) for addresses that another program announces: kube-vip, or a guest.
//!
//! The client of a lease does not answer ARP for the leased address, because a guest or kube-vip
//! announces the address. If a server sent its answer to this address, the client would not receive
//! the answer. To renew a lease, the client therefore sends the request of a client that has
//! restarted (INIT-REBOOT), and asks for a broadcast. The server then broadcasts its answer.
//!
//! Invariants:
//!
//! * No received frame causes a panic.
//! * A DHCP message changes a lease only after the client has checked the message's xid, hardware
//!   address and client identifier.
//! * An address may be used only after it was written into the client's DHCPLease.

mod client;
mod disputes;
mod granted_lease;
mod identity;
mod mac;
pub mod wire;

pub use client::jitter::{RELEASES, phase, start_within};
pub use client::output::{ClientAction, ClientEvent, ClientTrouble, IgnoreReason, LeaseRecord};
pub use client::{AnnouncedAddress, ClientOptions, DhcpClient, ProbeTiming, RecordedLease};
pub use disputes::AddressDisputes;
pub use granted_lease::GrantedLease;
pub use identity::{ClientId, ClientIdForm, ClientIdentity};
pub use mac::Mac;
pub use wire::bpf::{BpfInstruction, FrameFilter, filter};
pub use wire::ethernet::owner_of;
