//! The install in a cluster of the user's: shown, and carried out only after a "y".

use std::env;
use std::io::{IsTerminal as _, Write as _, stdin, stdout};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use kube::config::Kubeconfig;
use testbed::control_plane;

use crate::folder;

const NAMESPACE: &str = "harvester-system";
const GO_CONTROLLER: &str = "harvester-load-balancer";
const DEPLOYMENT: &str = "deployment/harvester-guest-operator";
const CRD: &str = "ippools.loadbalancer.harvesterhci.io";
/// Image in the manifest until the user sets an image of their own.
const PLACEHOLDER: &str = "image: harvester-guest-operator:";

pub(crate) async fn run() -> Result<()> {
    let server = server()?;
    println!("KUBECONFIG is set, so no control plane is started here. Nothing has been asked of");
    println!("{server} and nothing has been changed there.");
    explain()?;
    if !stdin().is_terminal() || !stdout().is_terminal() {
        return Ok(());
    }
    if !agreed(&server)? {
        println!("Nothing was applied.");
        return Ok(());
    }
    apply(&Kubectl::find().await?)
}

/// Server that the user's kubectl connects to.
fn server() -> Result<String> {
    let config =
        Kubeconfig::from_env().context("read KUBECONFIG")?.context("KUBECONFIG is empty")?;
    let current = config.current_context.context("KUBECONFIG has no current context")?;
    let context = config
        .contexts
        .into_iter()
        .find(|context| context.name == current)
        .and_then(|named| named.context)
        .with_context(|| format!("KUBECONFIG has no context {current}"))?;
    let cluster = config.clusters.into_iter().find(|cluster| cluster.name == context.cluster);
    cluster
        .and_then(|named| named.cluster?.server)
        .with_context(|| format!("KUBECONFIG has no server of cluster {}", context.cluster))
}

fn explain() -> Result<()> {
    println!(
        "
The install, from the repository's root:

    kubectl apply -f crds -f config/rbac -f config/manager

Before that:

  * The namespace {NAMESPACE} must exist. Harvester has it; elsewhere:
        kubectl create namespace {NAMESPACE}
  * On a Harvester, keep its own CRDs: leave out `-f crds`.
  * On a Harvester, stop the Go controller first, and read what has to follow in README.md,
    section \"Taking over from the Go controller\" (VM finalizers):
        kubectl -n {NAMESPACE} scale deployment {GO_CONTROLLER} --replicas=0"
    );
    if placeholder()? {
        println!(
            "  * config/manager/deployment.yaml names no image that exists. Put the binary of \
             `make build`\n    into one of your own and name it there; until then no pod starts."
        );
    }
    println!(
        "\nTo see the operator on a control plane of its own instead: env -u KUBECONFIG make demo"
    );
    Ok(())
}

fn placeholder() -> Result<bool> {
    let manifest = PathBuf::from(folder("config/manager")?).join("deployment.yaml");
    Ok(std::fs::read_to_string(manifest)?.contains(PLACEHOLDER))
}

fn agreed(server: &str) -> Result<bool> {
    print!("\nApply to {server} now? [y/N] ");
    stdout().flush()?;
    let mut answer = String::new();
    stdin().read_line(&mut answer)?;
    Ok(answer.trim() == "y")
}

/// Applies the manifests, unless the cluster does not meet the requirements, and shows the rollout.
fn apply(kubectl: &Kubectl) -> Result<()> {
    let namespace =
        kubectl.ask(&["get", "namespace", NAMESPACE, "--ignore-not-found", "-o", "name"])?;
    ensure!(
        !namespace.is_empty(),
        "nothing was applied: there is no namespace {NAMESPACE}; \
         `kubectl create namespace {NAMESPACE}` makes it"
    );
    let replicas = "jsonpath={.spec.replicas}";
    let controller = ["-n", NAMESPACE, "get", "deployment", GO_CONTROLLER, "--ignore-not-found"];
    let replicas = kubectl.ask(&[&controller[..], &["-o", replicas]].concat())?;
    ensure!(
        matches!(replicas.as_str(), "" | "0"),
        "nothing was applied: the Go controller has {replicas} replicas; \
         `kubectl -n {NAMESPACE} scale deployment {GO_CONTROLLER} --replicas=0` stops it"
    );
    let versions = "jsonpath={.spec.versions[*].name}";
    let versions = kubectl.ask(&["get", "crd", CRD, "--ignore-not-found", "-o", versions])?;
    if versions.split(' ').any(|version| version == "v1alpha1") {
        println!("The CRDs here are Harvester's own; they stay.");
    } else {
        kubectl.show(&["apply", "-f", &folder("crds")?])?;
    }
    let (rbac, manager) = (folder("config/rbac")?, folder("config/manager")?);
    kubectl.show(&["apply", "-f", &rbac, "-f", &manager])?;
    println!("Waiting for the rollout, at most 2 minutes.");
    kubectl.show(&["-n", NAMESPACE, "rollout", "status", DEPLOYMENT, "--timeout=2m"])
}

/// The user's kubectl, or the one that was built for the demo.
struct Kubectl {
    program: PathBuf,
}

impl Kubectl {
    async fn find() -> Result<Self> {
        let path = env::var_os("PATH").unwrap_or_default();
        let mut candidates = env::split_paths(&path).map(|dir| dir.join("kubectl"));
        let program = match candidates.find(|candidate| candidate.is_file()) {
            Some(program) => program,
            None => control_plane().await?.path("kubectl").to_owned(),
        };
        Ok(Self { program })
    }

    /// Runs kubectl and returns its output.
    fn ask(&self, args: &[&str]) -> Result<String> {
        let output = Command::new(&self.program).args(args).output().context("start kubectl")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kubectl {}: {}", args.join(" "), said.trim());
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Runs kubectl with its output on the terminal.
    fn show(&self, args: &[&str]) -> Result<()> {
        println!("$ kubectl {}", args.join(" "));
        let status = Command::new(&self.program).args(args).status().context("start kubectl")?;
        ensure!(status.success(), "kubectl {}: {status}", args.join(" "));
        Ok(())
    }
}
