//! Runs a command of the operator to its end.

use std::path::Path;
use std::process::{Output, Stdio};

use anyhow::Result;
use tokio::process::Command;

/// Runs the operator's binary with these arguments and this kubeconfig.
pub(crate) async fn run(kubeconfig: &Path, args: &[&str]) -> Result<Output> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_harvester-guest-operator"));
    command.args(args).env("HGO_KUBECONFIG", kubeconfig).env("RUST_BACKTRACE", "0");
    Ok(command.stdin(Stdio::null()).kill_on_drop(true).output().await?)
}
