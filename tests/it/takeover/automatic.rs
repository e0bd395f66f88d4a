//! The take-over by the chart's Job: its command line, under its account, with its rights.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::Api;
use kube::api::ListParams;
use serde_json::Value;
use testbed::{Chart, client_from, eventually};

use super::harvester::{CONTROLLER, Harvester, NAMESPACE};
use crate::chart::rights::{said, single};
use crate::chart::{object, objects};
use crate::support::SOON;

const NAME: &str = "harvester-guest-operator-takeover";

/// Annotation of a hook.
fn hook<'a>(object: &'a Value, name: &str) -> &'a str {
    object["metadata"]["annotations"][format!("helm.sh/{name}")].as_str().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_charts_job_takes_over_with_its_own_rights() -> Result<()> {
    let rendered = Chart::locate().await?.render(&["--set", "takeover.automatic=true"]).await?;
    let all = objects(&rendered);
    let job = object(&all, "Job", NAME);
    ensure!(hook(job, "hook") == "post-install,post-upgrade", "{job}");
    let args = job["spec"]["template"]["spec"]["containers"][0]["args"].as_array();
    let args: Vec<&str> = args.context("no args")?.iter().filter_map(Value::as_str).collect();
    let [command, options @ ..] = args.as_slice() else { anyhow::bail!("{args:?}") };
    ensure!(*command == "takeover", "{args:?}");
    // What grants rights exists before the Job, and goes with its success.
    let rights = rendered.get("takeover/rights.yaml").context("no rights")?;
    let granted: Vec<Value> =
        rights.split("---\n").map(serde_saphyr::from_str).collect::<Result<_, _>>()?;
    for object in &granted {
        ensure!(hook(object, "hook-delete-policy").contains("hook-succeeded"), "{object}");
        let weights = [object, job].map(|hooked| hook(hooked, "hook-weight").parse::<i32>());
        ensure!(weights[0].as_ref().ok() < weights[1].as_ref().ok(), "{object}");
    }

    let harvester = Harvester::start().await?;
    let cluster = harvester.cluster.clone();
    let before = harvester.populated().await?;
    harvester.install().await?;
    // Otherwise it may stop the Go controller before the Job does.
    harvester.without_fleet();
    cluster.bed.apply_yaml(rights).await?;
    let file = cluster.bed.service_account_kubeconfig(NAMESPACE, NAME, None).await?;
    let client = client_from(&std::fs::read_to_string(&file)?).await?;
    // The last of the Roles is the one of the Deployments.
    eventually(SOON, "rights of the Job", async || {
        let all: Api<Deployment> = Api::all(client.clone());
        let go: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
        all.list(&ListParams::default()).await?;
        go.get(CONTROLLER).await.map(|_| true)
    })
    .await?;
    let (ok, text) = harvester.takeover_within(options, Some(&file)).await?;
    ensure!(ok && text.contains("3 of 3 addresses are as before"), "{text}");
    ensure!(!text.contains("Not known"), "{text}");
    harvester.leads("operator").await?;
    harvester.addresses_are(&before).await?;
    ensure!(harvester.held().await? == 0, "a VM that is deleted now would stay");
    ensure!(harvester.replicas(CONTROLLER).await? == 0, "the Go controller runs");

    // Each right is used.
    let asked = cluster.bed.asked()?;
    let account = format!("system:serviceaccount:{NAMESPACE}:{NAME}");
    let used = asked.by_user.get(&account).cloned().unwrap_or_default();
    let rules: Vec<PolicyRule> = granted
        .iter()
        .filter(|object| object["rules"].is_array())
        .map(|role| serde_json::from_value::<Vec<PolicyRule>>(role["rules"].clone()))
        .collect::<Result<Vec<_>, _>>()?
        .concat();
    let granted: BTreeSet<String> = single(&rules).iter().map(said).collect();
    let surplus: Vec<&String> = granted.difference(&used).collect();
    ensure!(surplus.is_empty(), "granted and not used: {surplus:?}");
    harvester.end().await;
    Ok(())
}
