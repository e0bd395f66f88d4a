//! Steps of the Makefile that take minutes.
#![allow(clippy::print_stdout, reason = "what it prints is what it is for")]

use std::env;
use std::process::ExitCode;

use anyhow::{Result, bail};
use xtask::{Board, build_workspace, control_plane, run_suite, show_slowest};

const USAGE: &str = "usage: xtask demo | test | slowest [N]
  demo     build what the demo runs
  test     format, lints and every test
  slowest  the slowest N tests (30) of the last run, and what they waited for";

fn main() -> ExitCode {
    match run(&env::args().skip(1).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<()> {
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["demo"] => build_for_demo(),
        ["test"] => run_suite(),
        ["slowest"] => show_slowest(30),
        ["slowest", most] => show_slowest(most.parse()?),
        _ => bail!(USAGE),
    }
}

/// Builds the operator, its agent, the demo and the control plane side by side.
fn build_for_demo() -> Result<()> {
    let mut plane = control_plane()?;
    let programs = ["harvester-guest-operator", "lease-agent", "demo"].map(|name| ["--bin", name]);
    let mut board = Board::default().with("operator, agent and demo", |task| {
        build_workspace(task, &["build"], programs.as_flattened())
    });
    if !plane.is_none() {
        board = board.with("control plane", |task| plane.build(task));
    }
    board.run()
}
