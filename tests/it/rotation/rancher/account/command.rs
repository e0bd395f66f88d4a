//! `rancher-secret --cloud-credential`: one command prints the account with its rights, and the
//! TokenRotation.

use anyhow::{Result, ensure};
use harvester_guest_operator::domain::credentials::rancher_secret::checksum;
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};
use testbed::eventually;
use testbed::rancher::Version;

use super::super::super::fixture::{NAME, start};
use super::super::secret::{refused, run};
use super::super::{MINTER, Site};
use crate::support::{Cluster, LATER};

/// The command prints the account with its rights, and the TokenRotation.
#[tokio::test(flavor = "multi_thread")]
async fn one_command_puts_an_account_behind_a_cloud_credential() -> Result<()> {
    let site = Site::new(Version::V2_15).await?;
    let cluster = &site.cluster;
    cluster.guest_secrets().delete(MINTER, &DeleteParams::default()).await?;
    let key = site.there.api_key(&site.user, 0, "by hand");
    let (sum, here) = (checksum(site.there.ca_pem()), cluster.bed.url());
    let rancher = ["--url", site.there.url(), "--ca-checksum", &sum, "--namespace", "default"];
    let with = |more: &[&'static str]| [&rancher[..], more].concat();
    let named = [&rancher[..], &["--cloud-credential", &site.cc, "--server", here]].concat();
    let full = [&named[..], &["--vm-namespace", "kube-public"]].concat();

    site.there.reset();
    for (args, words) in [
        (with(&["--server", "https://10.0.0.1"]), ["--cloud-credential", "required"]),
        (with(&["--cloud-credential", "CC"]), ["--cloud-credential \"CC\": must be", "--server"]),
        (named.clone(), ["--vm-namespace: must be given", "--service-account must name"]),
        (
            [&full[..], &["--service-account", "robot"]].concat(),
            ["--vm-namespace", "leave one of the two out"],
        ),
        (
            [&named[..], &["--service-account", "A"]].concat(),
            ["--service-account \"A\"", "must be"],
        ),
        ([&named[..], &["--vm-namespace", "a.b"]].concat(), ["--vm-namespace \"a.b\"", "must be"]),
    ] {
        refused(&args, &key, &words).await?;
    }
    ensure!(site.there.calls().is_empty(), "{:#?}", site.there.calls());
    let other = [&rancher[..], &["--cloud-credential", "cc-other", "--server", here]].concat();
    let other = [&other[..], &["--vm-namespace", "kube-public"]].concat();
    refused(&other, &key, &["--cloud-credential \"cc-other\""]).await?;
    let dead = format!("{key}x");
    refused(&full, &dead, &["the API key is not accepted"]).await?;

    // What it prints is all that there is to do, but the chart's values.
    let before = site.published()?;
    let ran = run(&full, &key).await?;
    ensure!(ran.ok, "{}", ran.said);
    let account = format!("ServiceAccount default/{}", site.cc);
    let rotation = format!("TokenRotation default/{}", site.cc);
    let values = format!("{{name: default, serviceAccounts: [{}]}}", site.cc);
    for words in ["printed: Secret default/rancher", &account, &rotation, "next: ", &values] {
        ensure!(ran.said.contains(words), "{words:?} is not in {}", ran.said);
    }
    cluster.bed.dry_run(&ran.out).await?;
    ensure!(site.published()? == before, "a dry run has changed it");
    cluster.bed.apply_yaml(&ran.out).await?;
    let operator = cluster.standby(start()).await?;
    operator.leads().await?;
    let rotations = cluster.rotations();
    eventually(LATER, "the account's token", async || {
        let status = rotations.get(&site.cc).await?.status.unwrap_or_default();
        let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready");
        let is_ready = ready.is_some_and(|ready| ready.reason.as_deref() == Some("Current"));
        let is_ours = status.current.as_ref().is_some_and(|current| current.ours);
        if is_ready && is_ours { Ok(true) } else { Err(anyhow::anyhow!("{status:#?}")) }
    })
    .await?;
    let token = site.published()?;
    // The node driver's rights, in that namespace; to read what a configuration names, everywhere.
    for (verb, resource, namespace, wanted) in [
        ("create", "virtualmachines.kubevirt.io", "kube-public", true),
        ("create", "virtualmachines.kubevirt.io", "default", false),
        ("create", "secrets", "kube-public", true),
        ("get", "secrets", "kube-public", false),
        ("get", "virtualmachineimages.harvesterhci.io", "default", true),
        ("list", "virtualmachineimages.harvesterhci.io", "default", false),
        ("get", "settings.harvesterhci.io/server-version", "", true),
        ("get", "settings.harvesterhci.io/ssl-certificates", "", false),
    ] {
        let may = may(cluster, &token, (verb, resource, namespace)).await?;
        ensure!(may == wanted, "{verb} {resource} in {namespace:?}: {may}");
    }
    // The API key ends, so it is renewed.
    let renewed = rotations.get("rancher-api-key").await?.spec;
    ensure!(renewed.target.secret.is_some_and(|secret| secret.name == MINTER));
    // The same call changes nothing.
    cluster.bed.apply_yaml(&run(&full, &key).await?.out).await?;

    // An existing account, and a key of an account: no rights are printed, and no renewal.
    let args = [&named[..], &["--service-account", NAME]].concat();
    let ran = run(&args, &site.there.account_key(&site.cc)).await?;
    ensure!(ran.ok, "{}", ran.said);
    let kinds: Vec<Value> = serde_saphyr::from_multiple(&ran.out)?;
    let kinds: Vec<&str> = kinds.iter().filter_map(|one| one["kind"].as_str()).collect();
    ensure!(kinds == ["Secret", "TokenRotation"], "{kinds:?}");
    Ok(())
}

/// Whether the bearer of a token may do this. The resource is `RESOURCE[.GROUP][/NAME]`.
async fn may(
    cluster: &Cluster,
    token: &str,
    (verb, resource, namespace): (&str, &str, &str),
) -> Result<bool> {
    let (resource, name) = resource.split_once('/').unwrap_or((resource, ""));
    let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
    let review = json!({"metadata": {}, "spec": {"resourceAttributes": {
        "verb": verb, "group": group, "resource": resource, "name": name, "namespace": namespace,
    }}});
    let review: SelfSubjectAccessReview = serde_json::from_value(review)?;
    let reviews = Api::all(cluster.bed.client_for(token).await?);
    let answer: SelfSubjectAccessReview = reviews.create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}
