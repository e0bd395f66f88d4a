//! Writes the operator's image, and the bill of materials of each architecture.
#![allow(clippy::print_stdout, reason = "what it prints is what it is for")]

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use testbed::write_image;

/// Largest size in bytes of one architecture's image. Registries and nodes keep many images.
const LARGEST: u64 = 25 * 1024 * 1024;

/// Writes an OCI archive, without a container engine.
#[derive(Parser)]
struct Cli {
    /// Path of a program to include; may be given several times. Programs for several architectures
    /// make an image for each of them
    #[arg(long = "program", required = true)]
    programs: Vec<PathBuf>,
    /// Path of the archive to write
    #[arg(long)]
    out: PathBuf,
    /// Folder to write the bills of materials to, one for each architecture: sbom-amd64.cdx.json
    #[arg(long)]
    bills: PathBuf,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let programs: Vec<&Path> = cli.programs.iter().map(PathBuf::as_path).collect();
    let written = write_image(&programs, env!("CARGO_PKG_VERSION"), &cli.out)?;
    for image in &written.images {
        let architecture = image.architecture.name();
        println!("{architecture}:");
        for (path, size) in &image.root {
            println!("{size:>12}  /{path}");
        }
        let bill = cli.bills.join(format!("sbom-{architecture}.cdx.json"));
        fs::write(&bill, &image.bill).with_context(|| bill.display().to_string())?;
        println!("{:>12}  {}", image.bill.len(), bill.display());
    }
    println!("{:>12}  {}", written.bytes, cli.out.display());
    println!("{}", written.digest);
    let largest = LARGEST * u64::try_from(written.images.len())?;
    ensure!(written.bytes <= largest, "larger than {largest} bytes");
    Ok(())
}
