//! Leases from real DHCP servers: the agent's own process, real macvlans, a real API server. All
//! tests but `whole` write the records that the operator would write.

mod crash;
mod faults;
pub(crate) mod fixture;
mod hostile;
mod identities;
mod many;
mod moves;
mod records;
mod rights;
mod router;
mod scopes;
mod servers;
mod two;
mod whole;
