//! Shows the operator at work: on a control plane of its own, or, with `KUBECONFIG` set, what a
//! real install would be.
#![allow(clippy::print_stdout, reason = "what it prints is what it is for")]

mod burst;
mod cluster;
mod guest;
mod lan;
mod objects;
mod renewal;
mod scene;
mod steps;
mod table;
mod tour;
mod vms;
mod world;

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use testbed::{Bed, Options, control_plane, repository};
use tokio::signal::unix::{SignalKind, signal};

use crate::steps::{Stage, what_next_without_it};
use crate::tour::{Tour, seconds};

/// Longest wait for what takes moments, on a machine that may be busy.
const PATIENCE: Duration = Duration::from_mins(3);

/// The operator at work, on control planes of its own.
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
    match Box::pin(run(Cli::parse())).await {
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
    Box::pin(on_beds(&operator, once)).await
}

/// Runs the demo on two beds, a host and a guest. Everything that was started is gone when this
/// returns, also after an error.
async fn on_beds(operator: &Path, once: bool) -> Result<()> {
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

    let mut tour = Tour::begin();
    let title = "Two control planes on loopback: a Harvester's, and a guest cluster's";
    let (host, guest) = tokio::select! {
        beds = tour.step("control planes", title, start_beds()) => beds?,
        () = &mut asked_to_stop => bail!("stopped before it was done"),
    };
    let shown = Box::pin(async {
        let mut stage = tokio::select! {
            stage = Stage::show(&mut tour, &host, &guest, operator) => stage?,
            () = &mut asked_to_stop => bail!("stopped before it was done"),
        };
        if once {
            return Ok(true);
        }
        print!("\n{}{}", tour.summary(""), stage.what_next(&host, &guest)?);
        tokio::select! {
            ended = stage.stay() => ended.map(|()| false),
            () = &mut asked_to_stop => Ok(false),
        }
    })
    .await;
    println!("\nStopping and removing everything; a second.");
    let begun = Instant::now();
    host.stop().await?;
    guest.stop().await?;
    if shown? {
        let end = format!("; everything was removed in {}", seconds(begun.elapsed()));
        print!("\n{}{}", tour.summary(&end), what_next_without_it());
    }
    Ok(())
}

async fn start_beds() -> Result<((Bed, Bed), String)> {
    let start = || Bed::start(Options::default());
    let (host, guest) = tokio::try_join!(start(), start())?;
    for (what, bed) in [("host", &host), ("guest", &guest)] {
        println!("      {what}: {}; data in {}", bed.url(), bed.dir().display());
    }
    let seen = "one of a host and one of a guest, on loopback";
    Ok(((host, guest), seen.to_owned()))
}

/// Path of a folder of the repository, as text for a command line.
fn folder(name: &str) -> Result<String> {
    let path = repository().join(name).canonicalize().with_context(|| format!("find {name}"))?;
    path.into_os_string().into_string().ok().context("the repository's path is not UTF-8")
}
