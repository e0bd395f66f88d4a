//! `bed up` runs a control plane until it gets a signal; `bed build` only gets its programs.
#![allow(clippy::print_stdout, reason = "what it prints is what it is for")]

use anyhow::Result;
use clap::{Parser, Subcommand};
use testbed::{Bed, Options, control_plane};
use tokio::signal::unix::{SignalKind, signal};

/// A real control plane on loopback.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start a control plane and keep it until Ctrl-C
    Up {
        /// A further flag for the API server; may be given several times
        #[arg(long = "api-server-arg", value_name = "FLAG", allow_hyphen_values = true)]
        api_server_args: Vec<String>,
    },
    /// Build the programs if the cache lacks them, and print their folder
    Build,
}

#[tokio::main]
async fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Up { api_server_args } => {
            up(Options { api_server_args, ..Options::default() }).await
        }
        Command::Build => {
            println!("{}", control_plane().await?.path("kubectl").display());
            Ok(())
        }
    }
}

async fn up(options: Options) -> Result<()> {
    // A signal during the build has its default effect: go would not react to a handler of this
    // process.
    control_plane().await?;
    // The handlers are set before the start, so that a Ctrl-C during it is a clean stop, too.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let asked_to_stop = async {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    tokio::pin!(asked_to_stop);

    let bed = tokio::select! {
        bed = Bed::start(options) => bed?,
        () = &mut asked_to_stop => return Ok(()),
    };
    println!("# {}", bed.url());
    println!("# {}", bed.programs().path("kubectl").display());
    println!("export KUBECONFIG={}", bed.kubeconfig().display());
    asked_to_stop.await;
    bed.stop().await
}
