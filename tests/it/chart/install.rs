//! The chart in a real control plane: installed, upgraded, rolled back, removed and installed again
//! by both versions of Helm, with the real scheduler and one node. Pods run as processes according
//! to their objects; see [`Kubelet`] for the differences.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::api::{IPPool, LoadBalancer};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tempfile::TempDir;
use testbed::kubevirt::install_kubevirt;
use testbed::net::{Netns, isolated};
use testbed::{Bed, Chart, Helm, Kubelet, Options, Shared, Version, eventually, repository};

use crate::support::{LATER, SOON, address, lb, pool};

const CHART: &str = "charts/harvester-guest-operator";
const RELEASE: &str = "harvester-guest-operator";
const NAMESPACE: &str = "harvester-system";
const CONFIGURATION: &str = "harvester-load-balancer-webhook";
const CRD: &str = "loadbalancers.loadbalancer.harvesterhci.io";
const NAMES: [&str; 3] = ["one", "two", "three"];

#[test]
fn addresses_outlive_whatever_helm_3_does() -> Result<()> {
    life(Version::Three)
}

#[test]
fn addresses_outlive_whatever_helm_4_does() -> Result<()> {
    life(Version::Four)
}

fn life(version: Version) -> Result<()> {
    tools()?;
    isolated(async move |host: Netns| {
        let site = Site::start(version).await?;
        let mut kubelet = Kubelet::new(&site.bed, &host, binary()).await?;
        kubelet.node("only").await?;
        tokio::select! {
            ended = kubelet.run() => ended.context("the kubelet"),
            lived = site.live() => lived,
        }
    })
}

/// Builds the tools before the namespace exists: building needs a network.
fn tools() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(testbed::tools()).map(drop)
}

fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_harvester-guest-operator"))
}

/// A control plane whose API server finds Services by their endpoints, without a kube-proxy.
struct Site {
    bed: Bed,
    helm: Helm,
    client: Client,
    dir: TempDir,
    chart: PathBuf,
}

impl Site {
    async fn start(version: Version) -> Result<Self> {
        let api_server_args = vec!["--enable-aggregator-routing=true".to_owned()];
        // In the network of the test: the API server calls the operator's pods.
        let bed = Bed::start(Options { api_server_args, record: true }).await?;
        install_kubevirt(&bed).await?;
        let helm = Helm::on(&bed, version).await?;
        let chart = Chart::locate().await?.dir().clone();
        Ok(Self { client: bed.admin(), bed, helm, dir: TempDir::new()?, chart })
    }

    fn lbs(&self) -> Api<LoadBalancer> {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn release(&self, command: &[&str], chart: &Path, options: &[&str]) -> Result<String> {
        let chart = chart.to_str().context("the path is not UTF-8")?;
        let to = [RELEASE, chart, "--namespace", NAMESPACE, "--wait", "--timeout", "7m"];
        self.helm.run(&[command, &to, options].concat()).await
    }

    /// Makes an older chart: the one before its last change, with another version and a CRD without
    /// a column of the current one. Without a git history it starts from a copy of the current
    /// chart.
    fn older(&self) -> Result<PathBuf> {
        let older = self.dir.path().join("older");
        let script = format!(
            "mkdir {older} && before=$(git log -1 --skip=1 --format=%H -- {CHART}) && \
             if [ -n \"$before\" ]; then git archive \"$before:{CHART}\" | tar -x -C {older}; \
             else echo 'no older chart is known, a copy is upgraded' >&2; cp -a {CHART}/. {older}; fi",
            older = older.display()
        );
        let made = Command::new("sh").arg("-euc").arg(script).current_dir(repository()).status()?;
        ensure!(made.success(), "the older chart: {made}");
        for (file, new, old) in [
            ("Chart.yaml", "version: 0.1.0", "version: 0.0.9"),
            ("files/crds/loadbalancers.yaml", "name: IPAM\n", "name: OLD\n"),
        ] {
            let path = older.join(file);
            let text = fs::read_to_string(&path)?;
            ensure!(text.contains(new), "{file} does not hold {new:?}");
            fs::write(&path, text.replace(new, old))?;
        }
        Ok(older)
    }

    async fn live(&self) -> Result<()> {
        let older = self.older()?;
        self.release(&["install"], &older, &["--create-namespace"]).await?;
        self.registered().await?;
        ensure!(self.columns().await?.contains("OLD"), "the older CRD");
        let range = json!({"subnet": "10.1.0.0/24", "gateway": "10.1.0.1"});
        let spec = json!({"ranges": [range], "selector": {"scope": [
            {"project": "*", "namespace": "*", "guestCluster": "*"}]}});
        let pools: Api<IPPool> = Api::all(self.client.clone());
        pools.create(&PostParams::default(), &pool("p", &spec)?).await?;
        for name in NAMES {
            self.create(name).await?;
        }
        let before = self.addresses().await?;
        let bundle = self.bundle().await?;
        ensure!(bundle.is_some(), "v1alpha1 is not converted");

        // The program is the current one: it may need rights that the older chart did not grant.
        let ungranted = self.bed.asked()?.forbidden;
        let pods = self.pods().await?;
        self.release(&["upgrade"], &self.chart, &["--set", "log.filter=debug"]).await?;
        ensure!(!self.columns().await?.contains("OLD"), "the CRD was not upgraded");
        // Helm does not wait for the last pod.
        eventually(LATER, "two new pods", async || {
            let now = self.pods().await?;
            anyhow::Ok(now.len() == 2 && now.iter().all(|pod| !pods.contains(pod)))
        })
        .await?;
        ensure!(self.bundle().await? == bundle, "the upgrade changed what the operator wrote");
        self.still(&before, "an upgrade").await?;
        self.create("four").await?;
        self.lbs().delete("four", &DeleteParams::default()).await?;

        let back = [&["rollback", RELEASE, "1", "--namespace", NAMESPACE, "--wait"][..]].concat();
        self.helm.run(&back).await?;
        ensure!(self.columns().await?.contains("OLD"), "the CRD was not rolled back");
        ensure!(self.bundle().await? == bundle, "the rollback changed what the operator wrote");
        self.still(&before, "a rollback").await?;

        // Later its rights are removed while it still runs.
        let mut forbidden = self.bed.asked()?.forbidden;
        // After a refused list comes no watch: the watch's refusal is not known before.
        let kind = |right: &str| right.rsplit_once(' ').map(|(kind, _)| kind.to_owned());
        forbidden.retain(|right, _| !ungranted.keys().any(|other| kind(other) == kind(right)));
        ensure!(forbidden.is_empty(), "the operator may not: {forbidden:#?}");
        self.remove().await?;
        self.still(&before, "the end").await?;
        // No webhook is called any more: pools can be changed.
        let note = Patch::Merge(json!({"spec": {"description": "while no operator runs"}}));
        pools.patch("p", &PatchParams::default(), &note).await?;
        self.lbs().delete("three", &DeleteParams::default()).await?;

        self.release(&["install"], &self.chart, &[]).await?;
        self.registered().await?;
        eventually(SOON, "end of three", async || {
            self.lbs().get_opt("three").await.map(|lb| lb.is_none())
        })
        .await?;
        self.still(&before[..2], "a reinstallation").await?;
        let again = self.create("three").await?;
        ensure!(again == before[2], "it has {again}, and had {}", before[2]);
        Ok(())
    }

    async fn create(&self, name: &str) -> Result<String> {
        let lb = lb(name, &json!({"workloadType": "cluster", "ipam": "pool"}))?;
        self.lbs().create(&PostParams::default(), &lb).await?;
        let what = format!("address of {name}");
        eventually(SOON, &what, async || self.lbs().get(name).await.map(|lb| address(&lb))).await
    }

    async fn addresses(&self) -> Result<Vec<String>> {
        let mut addresses = Vec::new();
        for name in NAMES {
            addresses.push(address(&self.lbs().get(name).await?).context("no address")?);
        }
        Ok(addresses)
    }

    /// Checks that each LoadBalancer has its earlier address.
    async fn still(&self, before: &[String], after: &str) -> Result<()> {
        for (name, before) in NAMES.iter().zip(before) {
            let now = address(&self.lbs().get(name).await?);
            ensure!(now.as_ref() == Some(before), "{name} after {after}: {before}, now {now:?}");
        }
        Ok(())
    }

    async fn pods(&self) -> Result<Vec<String>> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        Ok(pods.list(&ListParams::default()).await?.iter().filter_map(ResourceExt::uid).collect())
    }

    async fn columns(&self) -> Result<String> {
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        Ok(serde_json::to_string(&crds.get(CRD).await?.spec.versions)?)
    }

    async fn bundle(&self) -> Result<Option<String>> {
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let crd = serde_json::to_value(crds.get(CRD).await?)?;
        let bundle = crd.pointer("/spec/conversion/webhook/clientConfig/caBundle");
        Ok(bundle.and_then(|bundle| bundle.as_str()).map(str::to_owned))
    }

    /// Waits until the API server calls admission for each pool, through the Service.
    async fn registered(&self) -> Result<()> {
        let validating: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        let mutating: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        eventually(LATER, "registration", async || {
            let both = (
                validating.get(CONFIGURATION).await?.webhooks.is_some(),
                mutating.get(CONFIGURATION).await?.webhooks.is_some(),
            );
            anyhow::Ok(both == (true, true))
        })
        .await?;
        let stored = serde_json::to_value(validating.get(CONFIGURATION).await?)?;
        ensure!(stored["webhooks"][0]["clientConfig"]["service"]["namespace"] == NAMESPACE);
        ensure!(stored["metadata"]["ownerReferences"][0]["kind"] == "ClusterRole");
        // Without an answer of admission, this pool would be refused.
        let pools: Api<IPPool> = Api::all(self.client.clone());
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        let probe = pool("probe", &json!({"ranges": [{"subnet": "10.9.0.0/24"}]}))?;
        eventually(SOON, "an answer of admission", async || {
            pools.create(&dry, &probe).await.map(|_| true)
        })
        .await
    }

    /// Uninstalls, and waits until no configuration refers to the operator any more.
    async fn remove(&self) -> Result<()> {
        self.helm.run(&["uninstall", RELEASE, "--namespace", NAMESPACE, "--wait"]).await?;
        let validating: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        let mutating: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        eventually(SOON, "end of the webhook configurations", async || {
            let left = validating.get_opt(CONFIGURATION).await?.is_some()
                || mutating.get_opt(CONFIGURATION).await?.is_some();
            anyhow::Ok(!left)
        })
        .await?;
        eventually(SOON, "end of the pods", async || self.pods().await.map(|pods| pods.is_empty()))
            .await?;
        // No replica that was still running has restored them.
        ensure!(validating.get_opt(CONFIGURATION).await?.is_none(), "it is back");
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        ensure!(crds.get_opt(CRD).await?.is_some(), "the CRD went with the release");
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_brought_stays_theirs() -> Result<()> {
    let bed = Shared::take_bare().await?;
    // As Harvester's chart does.
    bed.apply_file(testbed::repository().join("crds")).await?;
    bed.crds_established().await?;
    let theirs =
        ["meta.helm.sh/release-name=harvester", "meta.helm.sh/release-namespace=harvester"];
    bed.kubectl(&[&["annotate", "crd", "--all"][..], &theirs].concat()).await?;
    let generation = async || bed.kubectl(&["get", "crd", "-o", "jsonpath={..generation}"]).await;
    let before = generation().await?;
    let helm = Helm::on(&bed, Version::Three).await?;
    let chart = Chart::locate().await?.path()?.to_owned();
    let install = ["install", RELEASE, &chart, "--namespace", NAMESPACE, "--create-namespace"];
    helm.run(&install).await?;
    helm.run(&["uninstall", RELEASE, "--namespace", NAMESPACE]).await?;
    ensure!(generation().await? == before, "their CRDs were written");
    let claimed = helm.run(&[&install[..], &["--set", "crds.mode=always"]].concat()).await;
    ensure!(format!("{:#}", claimed.unwrap_err()).contains("cannot be imported"));
    Ok(())
}

/// A budget on one node would block a drain for ever: the second replica has no other node.
#[tokio::test(flavor = "multi_thread")]
async fn a_single_node_gets_no_disruption_budget() -> Result<()> {
    let bed = Shared::take_bare().await?;
    let helm = Helm::on(&bed, Version::Three).await?;
    let chart = Chart::locate().await?.path()?.to_owned();
    let upgrade = ["upgrade", "--install", RELEASE, &chart, "--namespace", NAMESPACE];
    let budgets = async || bed.kubectl(&["get", "pdb", "-A", "-o", "name"]).await;
    let node = async |name: &str| {
        testbed::kubevirt::create_node(&bed.admin(), name, &[], "10.0.0.1").await.map(drop)
    };
    node("one").await?;
    helm.run(&[&upgrade[..], &["--create-namespace"]].concat()).await?;
    ensure!(budgets().await?.is_empty(), "one node");
    node("two").await?;
    helm.run(&upgrade).await?;
    ensure!(!budgets().await?.is_empty(), "two nodes");
    bed.kubectl(&["patch", "node", "two", "-p", r#"{"spec":{"unschedulable":true}}"#]).await?;
    helm.run(&upgrade).await?;
    ensure!(budgets().await?.is_empty(), "one node that takes pods");
    helm.run(&[&upgrade[..], &["--set", "podDisruptionBudget.mode=always"]].concat()).await?;
    ensure!(!budgets().await?.is_empty(), "mode always");
    Ok(())
}

/// The caBundle of the conversion survives without an operator that repairs it.
#[tokio::test(flavor = "multi_thread")]
async fn whom_conversion_trusts_outlives_upgrade_and_rollback() -> Result<()> {
    for version in [Version::Three, Version::Four] {
        let bed = Shared::take_bare().await?;
        let helm = Helm::on(&bed, version).await?;
        let chart = Chart::locate().await?.path()?.to_owned();
        let upgrade = ["upgrade", "--install", RELEASE, &chart, "--namespace", NAMESPACE];
        helm.run(&[&upgrade[..], &["--create-namespace"]].concat()).await?;
        let authority = ByteString(testbed::Authority::new("operator")?.pem().into_bytes());
        let client = json!({"caBundle": authority});
        let patch = json!({"spec": {"conversion": {"webhook": {"clientConfig": client}}}});
        bed.kubectl(&["patch", "crd", CRD, "--type", "merge", "-p", &patch.to_string()]).await?;
        let at = "jsonpath={.spec.conversion}";
        let conversion = async || bed.kubectl(&["get", "crd", CRD, "-o", at]).await;
        let before = conversion().await?;
        ensure!(before.contains("caBundle"), "{before}");
        helm.run(&[&upgrade[..], &["--set", "commonLabels.a=b"]].concat()).await?;
        ensure!(conversion().await? == before, "upgrade by {version:?}");
        helm.run(&["rollback", RELEASE, "1", "--namespace", NAMESPACE]).await?;
        ensure!(conversion().await? == before, "rollback by {version:?}");
    }
    Ok(())
}
