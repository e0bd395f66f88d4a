//! Owns the calls of Helm, in both versions in use: Rancher and Harvester have Helm 3.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;
use tokio::process::Command;
use tokio::time::timeout;

use crate::wait::waited;
use crate::{Bed, tools};

const DEADLINE: Duration = Duration::from_mins(8);

/// Version of Helm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Helm 3, which merges three ways.
    Three,
    /// Helm 4, which applies on the server.
    Four,
}

/// A Helm with its own settings and caches.
#[derive(Debug)]
pub struct Helm {
    program: PathBuf,
    home: TempDir,
    kubeconfig: Option<PathBuf>,
}

impl Helm {
    /// Gets a Helm without a cluster: it can render.
    pub async fn new(version: Version) -> Result<Self> {
        let name = match version {
            Version::Three => "helm3",
            Version::Four => "helm4",
        };
        let program = tools().await?.path(name).to_owned();
        Ok(Self { program, home: TempDir::new()?, kubeconfig: None })
    }

    /// Gets a Helm for the bed's cluster.
    pub async fn on(bed: &Bed, version: Version) -> Result<Self> {
        let kubeconfig = Some(bed.kubeconfig().to_owned());
        Ok(Self { kubeconfig, ..Self::new(version).await? })
    }

    /// Runs it and returns its output; a failure is an error with its standard error.
    pub async fn run(&self, args: &[&str]) -> Result<String> {
        let called = format!("helm {}", args.join(" "));
        let mut command = Command::new(&self.program);
        command
            .args(args)
            .env("HELM_CACHE_HOME", self.home.path())
            .env("HELM_CONFIG_HOME", self.home.path())
            .env("HELM_DATA_HOME", self.home.path())
            .env_remove("KUBECONFIG")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        if let Some(kubeconfig) = &self.kubeconfig {
            command.env("KUBECONFIG", kubeconfig);
        }
        let begin = Instant::now();
        let output = timeout(DEADLINE, command.output())
            .await
            .with_context(|| format!("{called}: no end after {} s", DEADLINE.as_secs()))?
            .context("start helm")?;
        waited("helm", begin.elapsed());
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{called}: {}: {}", output.status, said.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}
