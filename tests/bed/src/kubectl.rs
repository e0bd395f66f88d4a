//! Owns the calls of kubectl, and applies manifests as it does.

use std::collections::HashMap;
use std::env;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{GroupVersionKind, TypeMeta};
use kube::discovery::{Scope, pinned_kind};
use kube::{Api, ResourceExt};
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::timeout;

use crate::bed::Bed;
use crate::eventually;
use crate::wait::waited;

const DEADLINE: Duration = Duration::from_mins(4);
/// Folder in the bed's directory for kubectl's cache.
pub(crate) const KUBECTL_CACHE: &str = "kubectl.cache";
/// Deadline for all CRDs of a bed.
const ESTABLISHED: Duration = Duration::from_mins(2);

impl Bed {
    /// Runs kubectl as administrator and returns its output; a failure is an error with its
    /// standard error.
    pub async fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.kubectl_with_input(args, "").await
    }

    /// Applies a manifest file, or all manifests in a folder, as [`Bed::apply_yaml`] does.
    pub async fn apply_file(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let mut files = Vec::new();
        if path.is_dir() {
            for entry in fs::read_dir(path)? {
                files.push(entry?.path());
            }
            files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
            files.sort();
        } else {
            files.push(path.to_owned());
        }
        let mut manifests = Vec::new();
        for file in files {
            manifests.push(fs::read_to_string(&file).with_context(|| file.display().to_string())?);
        }
        self.apply_yaml(&manifests.join("\n---\n")).await
    }

    /// Applies manifests given as text, as `kubectl apply --server-side --force-conflicts` does,
    /// but without a process.
    pub async fn apply_yaml(&self, yaml: &str) -> Result<()> {
        self.apply(yaml, &PatchParams::apply("kubectl").force().validation_strict()).await
    }

    /// Checks that manifests would be accepted to the last field, without storing them.
    pub async fn dry_run(&self, yaml: &str) -> Result<()> {
        let params = PatchParams::apply("kubectl").force().validation_strict().dry_run();
        self.apply(yaml, &params).await
    }

    async fn apply(&self, yaml: &str, params: &PatchParams) -> Result<()> {
        let mut kinds = HashMap::new();
        for object in serde_saphyr::from_multiple::<Value>(yaml)? {
            if object.is_null() {
                continue;
            }
            let types: TypeMeta =
                serde_json::from_value(object.clone()).context("an object without a kind")?;
            let gvk = GroupVersionKind::try_from(&types)?;
            if !kinds.contains_key(&gvk) {
                // Discovery may be later than the condition Established of a CRD.
                let what = format!("{} {} in discovery", gvk.api_version(), gvk.kind);
                let found = eventually(ESTABLISHED, &what, async || {
                    pinned_kind(&self.admin(), &gvk).await.map(Some)
                })
                .await?;
                kinds.insert(gvk.clone(), found);
            }
            let (kind, capabilities) = &kinds[&gvk];
            let named = |field: &str| object["metadata"][field].as_str();
            let name = named("name").context("an object without a name")?;
            let api: Api<DynamicObject> = match capabilities.scope {
                Scope::Cluster => Api::all_with(self.admin(), kind),
                Scope::Namespaced => {
                    let namespace = named("namespace").unwrap_or("default");
                    Api::namespaced_with(self.admin(), namespace, kind)
                }
            };
            api.patch(name, params, &Patch::Apply(&object))
                .await
                .map_err(|error| anyhow!("{} {name}: {error}", kind.kind))?;
        }
        Ok(())
    }

    /// Waits until the API server serves every custom resource definition.
    pub async fn crds_established(&self) -> Result<()> {
        let crds: Api<CustomResourceDefinition> = Api::all(self.admin());
        eventually(ESTABLISHED, "established CRDs", async || {
            let all = crds.list(&ListParams::default()).await.map_err(|e| e.to_string())?;
            let is_established = |crd: &CustomResourceDefinition| {
                let conditions = crd.status.as_ref().and_then(|status| status.conditions.as_ref());
                let mut conditions = conditions.into_iter().flatten();
                conditions.any(|c| c.type_ == "Established" && c.status == "True")
            };
            let waiting: Vec<_> = all.iter().filter(|crd| !is_established(crd)).collect();
            let waiting: Vec<_> = waiting.into_iter().map(ResourceExt::name_any).collect();
            if waiting.is_empty() { Ok(true) } else { Err(format!("{waiting:?}")) }
        })
        .await
    }

    /// Runs kubectl as [`Bed::kubectl`] does, with text for its standard input.
    pub async fn kubectl_with_input(&self, args: &[&str], input: &str) -> Result<String> {
        let mut command = Command::new(self.programs().path("kubectl"));
        command.args(args);
        self.output_of(command, &format!("kubectl {}", args.join(" ")), input).await
    }

    /// Runs a script of bash as administrator, with kubectl on its PATH, and returns its output.
    /// The first command that fails ends it; a failure is an error with its standard error.
    pub async fn shell(&self, script: &str) -> Result<String> {
        let kubectl = self.programs().path("kubectl");
        let folder = kubectl.parent().context("kubectl is in no folder")?;
        let path = format!("{}:{}", folder.display(), env::var("PATH").unwrap_or_default());
        let mut command = Command::new("bash");
        command.args(["-e", "-u", "-o", "pipefail", "-c", script]).env("PATH", path);
        self.output_of(command, script, "").await
    }

    /// Runs a command that calls kubectl, and returns its output. `called`: its text for errors.
    async fn output_of(&self, mut command: Command, called: &str, input: &str) -> Result<String> {
        let begin = Instant::now();
        let mut child = command
            .env("KUBECONFIG", self.kubeconfig())
            // Neither the user's preferences nor their cache belong in a test.
            .env("KUBECTL_KUBERC", "false")
            .env("KUBECACHEDIR", self.dir().join(KUBECTL_CACHE))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {called}"))?;
        let mut stdin = child.stdin.take().context("no standard input")?;
        let feed = async move {
            // It may end without reading all; its exit status then reports the cause.
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
