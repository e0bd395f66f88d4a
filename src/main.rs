//! The operator.

use clap::Parser;
use harvester_guest_operator::cli;

/// A third of the work is JSON, in many small pieces between a few large ones. The system's
/// allocator searched for room for longer than the pieces were used.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

// One thread: the work is waiting for an API server, and 1,000 addresses cost a third of a second
// of it. More threads would cost memory on every node, not time.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    cli::run(cli::Cli::parse()).await
}
