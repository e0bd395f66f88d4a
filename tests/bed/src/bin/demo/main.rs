//! Shows the operator at work: on a control plane of its own, or, with `KUBECONFIG` set, what a
//! real install would be.
#![allow(clippy::print_stdout, reason = "what it prints is what it is for")]

mod burst;
mod cluster;
mod objects;
mod scene;
mod steps;
mod table;
mod vms;
mod world;

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use testbed::{Bed, Options, control_plane, repository};
use tokio::signal::unix::{SignalKind, signal};

use crate::steps::Stage;

/// The operator at work, on a control plane of its own.
///
/// With DEMO_ONCE=1 it ends by itself. With KUBECONFIG set it starts nothing and shows how to
/// install the operator in that cluster.
#[derive(Parser)]
struct Cli {
    /// The operator's binary
    #[arg(long, value_name = "PATH", default_value = "target/debug/harvester-guest-operator")]
    operator: PathBuf,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Cli::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("demo: {e:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> Result<()> {
    if env::var_os("KUBECONFIG").is_some_and(|value| !value.is_empty()) {
        return cluster::run().await;
    }
    let operator = cli.operator.canonicalize().with_context(|| {
        format!("there is no operator at {}; `make build` builds it", cli.operator.display())
    })?;
    let once = env::var_os("DEMO_ONCE").is_some_and(|value| value == "1");
    on_a_bed(&operator, once).await
}

/// Runs the demo on a bed. Everything that was started is gone when this returns, also after an
/// error.
async fn on_a_bed(operator: &std::path::Path, once: bool) -> Result<()> {
    steps::announce(1, "a control plane of its own", "seconds");
    // A signal during the build has its default effect: go would not react to a handler of this
    // process.
    control_plane().await?;
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
        bed = Bed::start(Options::default()) => bed?,
        () = &mut asked_to_stop => bail!("stopped before it was done"),
    };
    println!("      {}; data in {}", bed.url(), bed.dir().display());
    let shown = async {
        let mut stage = tokio::select! {
            stage = Stage::show(&bed, operator) => stage?,
            () = &mut asked_to_stop => bail!("stopped before it was done"),
        };
        if once {
            println!("\nEvery step held. DEMO_ONCE is set, so this is the end.");
            return Ok(());
        }
        tokio::select! {
            ended = stage.stay() => ended,
            () = &mut asked_to_stop => Ok(()),
        }
    }
    .await;
    println!("\nStopping and removing everything; a second.");
    bed.stop().await?;
    shown
}

/// Path of a folder of the repository, as text for a command line.
fn folder(name: &str) -> Result<String> {
    let path = repository().join(name).canonicalize().with_context(|| format!("find {name}"))?;
    path.into_os_string().into_string().ok().context("the repository's path is not UTF-8")
}
