//! Leasing addresses by DHCP.

mod names;

pub use names::agent_name;
