//! Owns the calls of kubectl.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::timeout;

use crate::bed::Bed;

const DEADLINE: Duration = Duration::from_mins(4);
/// Applied by the server, so that no size limit of an annotation gets in the way of large kinds.
const APPLY: [&str; 4] = ["apply", "--server-side", "--force-conflicts", "-f"];

impl Bed {
    /// Runs kubectl as administrator and returns what it printed; its failure, with what it said
    /// on standard error, is an error.
    pub async fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.kubectl_with_input(args, "").await
    }

    /// Applies a manifest file, or all that are in a folder.
    pub async fn apply_file(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref().to_str().context("the path is not UTF-8")?;
        self.kubectl(&[&APPLY[..], &[path]].concat()).await?;
        Ok(())
    }

    /// Applies manifests given as text.
    pub async fn apply_yaml(&self, yaml: &str) -> Result<()> {
        self.kubectl_with_input(&[&APPLY[..], &["-"]].concat(), yaml).await?;
        Ok(())
    }

    /// Asks whether manifests would be accepted to the last field, without storing anything.
    pub async fn dry_run(&self, yaml: &str) -> Result<()> {
        let check = ["-", "--dry-run=server", "--validate=strict"];
        self.kubectl_with_input(&[&APPLY[..], &check].concat(), yaml).await?;
        Ok(())
    }

    /// Waits until the API server serves every custom resource definition it knows.
    pub async fn crds_established(&self) -> Result<()> {
        self.kubectl(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=120s"])
            .await?;
        Ok(())
    }

    /// The same, with something to read on standard input.
    pub async fn kubectl_with_input(&self, args: &[&str], input: &str) -> Result<String> {
        let called = format!("kubectl {}", args.join(" "));
        let mut child = Command::new(self.binaries().program("kubectl"))
            .args(args)
            .env("KUBECONFIG", self.kubeconfig())
            // Neither the user's preferences nor their cache belong in a test.
            .env("KUBECTL_KUBERC", "false")
            .env("KUBECACHEDIR", self.dir().join("kubectl.cache"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("start kubectl")?;
        let mut stdin = child.stdin.take().context("kubectl has no standard input")?;
        let feed = async move {
            // kubectl may end without reading all; its exit status then tells the story.
            let _ = stdin.write_all(input.as_bytes()).await;
            drop(stdin);
        };
        let both = async { tokio::join!(feed, child.wait_with_output()).1 };
        let output = timeout(DEADLINE, both)
            .await
            .with_context(|| format!("{called}: no end after {} s", DEADLINE.as_secs()))??;
        ensure!(
            output.status.success(),
            "{called}: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}
