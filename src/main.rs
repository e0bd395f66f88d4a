//! Entry point of the operator.

use clap::Parser;
use harvester_guest_operator::cli;

/// Memory allocator of the process. A third of the operator's work is JSON, which makes many small
/// allocations between a few large ones. The system's allocator is slow for this pattern.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

// One thread is enough: the process mostly waits for an API server, and 1,000 addresses take a
// third of a second of CPU time. More threads would cost memory on every node and save no time.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    cli::run(cli::Cli::parse()).await
}
