//! The agent of a network: a program of its own, so that what has privileges has little code and fits
//! into little memory.

use clap::Parser;
use harvester_guest_operator::cli::{LeaseAgent, run_agent};

// Its leases come and go in hundreds; what they took is given back.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

// One thread, so that privileges can be dropped before there is a second one.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    run_agent(LeaseAgent::parse()).await
}
