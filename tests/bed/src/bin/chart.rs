//! `chart config` writes the plain manifests in config/ from the chart, `chart package` its archive.
#![allow(clippy::print_stdout, reason = "what it prints is what it is for")]

use std::fs;
use std::path::{Path, PathBuf};

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
    /// Write the chart's archive, harvester-guest-operator-VERSION.tgz, into a folder
    Package {
        /// Folder to write to
        #[arg(long)]
        out: PathBuf,
    },
}

#[tokio::main]
async fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Config => config().await,
        Command::Package { out } => package(&out).await,
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

async fn package(out: &Path) -> Result<()> {
    let out = out.to_str().context("the path is not UTF-8")?;
    let said = Chart::locate().await?.helm("package", &["--destination", out]).await?;
    print!("{said}");
    Ok(())
}
