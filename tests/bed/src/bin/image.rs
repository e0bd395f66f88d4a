//! Writes the operator's image.
#![allow(clippy::print_stdout, reason = "what it prints is what it is for")]

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::Parser;
use testbed::write_image;

/// Largest size in bytes. Registries and nodes keep many images.
const LARGEST: u64 = 25 * 1024 * 1024;

/// Writes an OCI archive, without a container engine.
#[derive(Parser)]
struct Cli {
    /// Path of a program to include; may be given several times
    #[arg(long = "program", required = true)]
    programs: Vec<PathBuf>,
    /// Path of the archive to write
    #[arg(long)]
    out: PathBuf,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let programs: Vec<&Path> = cli.programs.iter().map(PathBuf::as_path).collect();
    let written = write_image(&programs, env!("CARGO_PKG_VERSION"), &cli.out)?;
    for (path, size) in &written.root {
        println!("{size:>12}  /{path}");
    }
    println!("{:>12}  {}", written.bytes, cli.out.display());
    println!("{}", written.digest);
    ensure!(written.bytes <= LARGEST, "larger than {LARGEST} bytes");
    Ok(())
}
