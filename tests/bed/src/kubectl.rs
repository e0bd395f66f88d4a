//! Owns the calls of kubectl.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::discovery::{Scope, pinned_kind};
use kube::{Api, ResourceExt as _};
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::timeout;

use crate::bed::Bed;
use crate::wait::waited;

const DEADLINE: Duration = Duration::from_mins(4);
/// Folder in the bed's directory for kubectl's cache.
pub(crate) const KUBECTL_CACHE: &str = "kubectl.cache";
/// Arguments of a server-side apply, which avoids the size limit of an annotation for large kinds.
const APPLY: [&str; 4] = ["apply", "--server-side", "--force-conflicts", "-f"];

impl Bed {
    /// Runs kubectl as administrator and returns its output; a failure is an error with its
    /// standard error.
    pub async fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.kubectl_with_input(args, "").await
    }

    /// Applies a manifest file, or all manifests in a folder.
    pub async fn apply_file(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref().to_str().context("the path is not UTF-8")?;
        self.kubectl(&[&APPLY[..], &[path]].concat()).await?;
        Ok(())
    }

    /// Applies manifests given as text, as `kubectl apply --server-side --force-conflicts` does,
    /// but without a process.
    pub async fn apply_yaml(&self, yaml: &str) -> Result<()> {
        let params = PatchParams::apply("kubectl").force().validation_strict();
        for object in serde_saphyr::from_multiple::<Value>(yaml)? {
            let object: DynamicObject = serde_json::from_value(object)?;
            let types = object.types.clone().context("an object without a kind")?;
            let (kind, capabilities) =
                pinned_kind(&self.admin(), &GroupVersionKind::try_from(&types)?).await?;
            let namespace = object.namespace().unwrap_or_else(|| "default".to_owned());
            let api: Api<DynamicObject> = match capabilities.scope {
                Scope::Cluster => Api::all_with(self.admin(), &kind),
                Scope::Namespaced => Api::namespaced_with(self.admin(), &namespace, &kind),
            };
            api.patch(&object.name_any(), &params, &Patch::Apply(&object)).await?;
        }
        Ok(())
    }

    /// Checks that manifests would be accepted to the last field, without storing them.
    pub async fn dry_run(&self, yaml: &str) -> Result<()> {
        let check = ["-", "--dry-run=server", "--validate=strict"];
        self.kubectl_with_input(&[&APPLY[..], &check].concat(), yaml).await?;
        Ok(())
    }

    /// Waits until the API server serves every custom resource definition.
    pub async fn crds_established(&self) -> Result<()> {
        self.kubectl(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=120s"])
            .await?;
        Ok(())
    }

    /// Runs kubectl as [`Bed::kubectl`] does, with text for its standard input.
    pub async fn kubectl_with_input(&self, args: &[&str], input: &str) -> Result<String> {
        let called = format!("kubectl {}", args.join(" "));
        let begin = Instant::now();
        let mut child = Command::new(self.programs().path("kubectl"))
            .args(args)
            .env("KUBECONFIG", self.kubeconfig())
            // Neither the user's preferences nor their cache belong in a test.
            .env("KUBECTL_KUBERC", "false")
            .env("KUBECACHEDIR", self.dir().join(KUBECTL_CACHE))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("start kubectl")?;
        let mut stdin = child.stdin.take().context("kubectl has no standard input")?;
        let feed = async move {
            // kubectl may end without reading all; its exit status then reports the cause.
            let _ = stdin.write_all(input.as_bytes()).await;
            drop(stdin);
        };
        let both = async { tokio::join!(feed, child.wait_with_output()).1 };
        let output = timeout(DEADLINE, both)
            .await
            .with_context(|| format!("{called}: no end after {} s", DEADLINE.as_secs()))??;
        waited("kubectl", begin.elapsed());
        ensure!(
            output.status.success(),
            "{called}: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}
