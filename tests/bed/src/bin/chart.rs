//! `chart config` writes the plain manifests in config/ from the chart.
#![allow(clippy::print_stdout, reason = "what it prints is what it is for")]

use std::fs;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use testbed::{Chart, repository};

/// The Helm chart.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write what the chart renders by default into config/
    Config,
}

#[tokio::main]
async fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Config => config().await,
    }
}

async fn config() -> Result<()> {
    let config = repository().join("config");
    for (path, text) in Chart::locate().await?.plain().await? {
        let file = config.join(&path);
        fs::create_dir_all(file.parent().context("a file without a folder")?)?;
        fs::write(&file, text)?;
        println!("config/{path}");
    }
    Ok(())
}
