//! Entry point of a network's DHCP agent. The agent is a separate program, so that the code that
//! runs with privileges is small and needs little memory.

use clap::Parser;
use harvester_guest_operator::cli::{LeaseAgent, run_agent};

// Hundreds of leases may start and end at once. This allocator returns the memory of ended leases
// to the system.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

// One thread, because privileges must be dropped before a second thread starts.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    run_agent(LeaseAgent::parse()).await
}
