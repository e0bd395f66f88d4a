//! DHCP client (RFC 2131) for addresses that another program announces: kube-vip, or a guest.
//!
//! A server answers an ordinary renewal by unicast to the leased address (`ciaddr`). The client
//! would not receive this answer, because it does not answer ARP for the address. To renew a lease,
//! the client therefore sends the REQUEST of a restarted client (INIT-REBOOT), and asks the server
//! to broadcast its answer.
//!
//! Invariants:
//!
//! * No received frame causes a panic.
//! * A DHCP message changes a lease only after the client has checked the message's xid, hardware
//!   address and client identifier.
//! * The operator publishes a leased address only after the agent has written it into the client's
//!   DHCPLease.

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
