//! A ServiceAccount of this cluster behind a cloud credential: its token is published there in place of
//! a Rancher's, and renewed and revoked here.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::api::TokenRotation;
use harvester_guest_operator::domain::credentials::rancher_secret::checksum;
use k8s_openapi::ByteString;
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testbed::rancher::Version;
use testbed::{Proxy, Start, eventually};

use super::super::fixture::{NAME, start};
use super::secret::{refused, run};
use super::trouble::cut_after;
use super::{MINTER, OVERLAP, Site};
use crate::crash;
use crate::support::{Cluster, LATER, SOON};

/// Rights of Rancher's node driver in another namespace than the account's.
const DRIVER: &str = include_str!("driver.yaml");
const KINDS: [&str; 3] = ["tokenrotations", "secrets", "serviceaccounts"];

impl Site {
    /// Site with a ServiceAccount that has the node driver's rights.
    async fn with_account(version: Version) -> Result<Self> {
        let site = Self::new(version).await?;
        site.cluster.bed.apply_yaml(DRIVER).await?;
        Ok(site)
    }

    /// Spec for a token of ten minutes, the shortest that an API server grants.
    fn account_spec(&self, server: &str, parts: &[(&str, Value)]) -> Value {
        let mut spec = self.spec(&[
            ("source", json!({"serviceAccountToken": {"serviceAccountName": NAME, "lifetimeSeconds": 600}})),
            ("target", json!({"cloudCredential": {"name": self.cc, "server": server}})),
        ]);
        for (field, value) in parts {
            spec[*field] = value.clone();
        }
        spec
    }

    async fn account(&self, parts: &[(&str, Value)]) -> Result<()> {
        let spec = self.account_spec(self.cluster.bed.url(), parts);
        self.cluster.rotation(spec).await.map(drop)
    }

    fn config(&self) -> Result<Value> {
        Ok(serde_saphyr::from_str(&self.there.content(&self.cc))?)
    }

    /// Uses the published token for half of the overlap, again and again. Ends with the first
    /// refusal.
    async fn consume_here(&self, uses: &mut u32) -> Result<()> {
        let overlap = Duration::from_secs(OVERLAP);
        loop {
            let read = Instant::now();
            let token = self.published()?;
            while read.elapsed() < overlap / 2 {
                let answer = self.cluster.works(&token).await;
                if read.elapsed() < overlap {
                    answer.with_context(|| format!("held for {:?}", read.elapsed()))?;
                }
                *uses += 1;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }

    /// Waits until the published token works and is the only one, here and in the cloud credential.
    async fn one_account_token_is_left(&self) -> Result<()> {
        eventually(LATER, "a single token", async || {
            let status = self.cluster.status().await?;
            ensure!(
                status.pending.is_none() && status.previous.is_empty(),
                "not at rest: {status:?}"
            );
            let current = status.current.context("none is current")?.name;
            let bonds = self.cluster.bonds().await?;
            ensure!(bonds == BTreeSet::from([current.clone()]), "{bonds:?}, not {current}");
            let users = self.config()?["users"].as_array().map_or(0, Vec::len);
            ensure!(users == 1, "{users} users");
            anyhow::Ok(true)
        })
        .await?;
        self.cluster.works(&self.published()?).await
    }
}

/// Rancher's clock is an hour ahead: the token's own issuer decides about time.
#[tokio::test(flavor = "multi_thread")]
async fn its_token_takes_the_place_of_ranchers_and_is_renewed_without_a_gap() -> Result<()> {
    for version in [Version::V2_11, Version::V2_14, Version::Main] {
        let site = Site::with_account(version).await?;
        site.there.advance(Duration::from_hours(1));
        let operator = site.cluster.standby(start()).await?;
        operator.leads().await?;
        let ranchers = site.published()?;
        site.account(&[]).await?;
        site.cluster.published(1).await?;
        // Jobs that began with Rancher's token still work.
        ensure!(site.there.accepts(&ranchers), "{version:?}: Rancher's token has ended");
        let config = site.config()?;
        let cluster = &config["clusters"][0]["cluster"];
        let authority = ByteString(site.cluster.bed.ca_pem().as_bytes().to_vec());
        ensure!(cluster["server"] == site.cluster.bed.url(), "{cluster}");
        // The encoded text differs in line breaks at most.
        let found: ByteString =
            serde_json::from_value(cluster["certificate-authority-data"].clone())?;
        let lines = |text: &[u8]| String::from_utf8_lossy(text).replace('\n', "");
        ensure!(lines(&found.0).contains(&lines(&authority.0)[27..200]), "another authority");
        ensure!(config["clusters"].as_array().map(Vec::len) == Some(1), "{}", config["clusters"]);
        ensure!(config["contexts"].as_array().map(Vec::len) == Some(1), "{}", config["contexts"]);
        ensure!(
            config["users"][1]["user"]["token"] == ranchers,
            "Rancher's token is not beside it"
        );
        let first = site.published()?;
        site.cluster.works(&first).await?;

        let mut uses = 0;
        let rotate = async {
            for request in ["1", "2"] {
                site.cluster.annotate("rotate", request).await?;
                site.rotated(request).await?;
                let config = site.config()?;
                let kept = config["users"][1]["user"]["token"].as_str().context("none is kept")?;
                // Both work during the overlap.
                site.cluster.works(kept).await?;
            }
            site.one_account_token_is_left().await
        };
        tokio::select! {
            end = site.consume_here(&mut uses) => end?,
            end = rotate => end?,
        }
        ensure!(uses > 20, "{uses}");
        site.cluster.refused(&first).await?;
        // Rancher 2.12 to 2.14 end what the credential no longer names, and know no ext tokens.
        ensure!(site.there.accepts(&ranchers) == (version != Version::V2_14), "{version:?}");
        let made = site.there.tokens().into_iter().any(|token| token.description.starts_with(NAME));
        ensure!(!made, "a token of Rancher was made");
        let status = site.cluster.status().await?;
        let now = site.there.now() / 1000 - 3600;
        let ends = status.expires_at.clone().unwrap_or_default();
        let ends = chrono::DateTime::parse_from_rfc3339(&ends)?.timestamp();
        ensure!(ends < now + 660, "it ends {} s from now", ends - now);
        println!("{version:?}: {uses} uses, none refused");
    }
    Ok(())
}

/// A key that may get and patch the one Secret in Rancher's own cluster, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_account_of_ranchers_cluster_is_key_enough() -> Result<()> {
    let site = Site::with_account(Version::V2_14).await?;
    site.give(&site.there.account_key(&site.cc)).await?;
    let operator = site.cluster.standby(start()).await?;
    operator.leads().await?;
    // Without an end, replaced once a month.
    let source = json!({"serviceAccountTokenSecret": {"serviceAccountName": NAME}});
    site.account(&[("source", source), ("overlapSeconds", json!(0))]).await?;
    let status = site.cluster.published(1).await?;
    let key = status.api_key.context("the key is not shown")?;
    ensure!(key.name == "operator" && key.expires_at.is_none(), "{key:?}");
    site.one_account_token_is_left().await?;
    site.cluster.reason("Ready", "Current").await?;

    // A kubeconfig that a person puts there stays until its time.
    let theirs = site.there.kubeconfig(&site.user, "c-m-prod");
    site.there.put_content(&site.cc, &theirs)?;
    site.poke("put there").await?;
    let adopted = site.cluster.says("adoption", |s| s.current.as_ref().is_some_and(|c| !c.ours));
    let serial = adopted.await?.serial;
    site.poke("once more").await?;
    site.cluster.reason("Ready", "Current").await?;
    ensure!(site.there.content(&site.cc) == theirs.trim(), "it was overwritten");
    ensure!(site.cluster.status().await?.serial == serial);
    site.cluster.annotate("rotate", "back").await?;
    site.rotated("back").await?;
    site.one_account_token_is_left().await?;

    // Another Secret there is not for this key.
    let other = site.there.kubeconfig(&site.user, "c-m-prod");
    let other = site.there.credential(&site.user, "other", "c-m-prod", &other)?;
    site.give(&site.there.account_key(&other)).await?;
    site.cluster.reason("Ready", "TargetUnreadable").await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_would_not_work_for_the_driver_is_not_published() -> Result<()> {
    let site = Site::new(Version::V2_14).await?;
    let cluster = &site.cluster;
    let operator = cluster.standby(start()).await?;
    operator.leads().await?;
    let before = site.there.content(&site.cc);
    let said = async |reason: &'static str, parts: &[&str]| {
        eventually(SOON, &format!("{reason}: {parts:?}"), async || {
            let said = cluster.reason("Ready", reason).await.map_err(|e| format!("{e:#}"))?;
            if parts.iter().all(|part| said.contains(part)) { Ok(true) } else { Err(said) }
        })
        .await
    };

    // The account has no rights.
    site.account(&[]).await?;
    said(
        "VerifyFailed",
        &["ServiceAccount default/guest may not create virtualmachines.kubevirt.io"],
    )
    .await?;
    cluster.gone().await?;

    // A server without a certificate of this cluster's authority gets no token.
    cluster.bed.apply_yaml(DRIVER).await?;
    site.there.reset();
    let spec = site.account_spec(site.there.url(), &[]);
    cluster.rotation(spec).await?;
    said("VerifyFailed", &["certificate"]).await?;
    let reviewed = site.there.calls().into_iter().any(|one| one.call.path.contains("reviews"));
    ensure!(!reviewed, "the token was sent to another server");
    cluster.gone().await?;

    // The account is missing.
    let source = json!({"serviceAccountToken": {"serviceAccountName": "missing"}});
    site.account(&[("source", source)]).await?;
    said("MintFailed", &["there is no ServiceAccount default/missing"]).await?;
    cluster.gone().await?;
    ensure!(site.there.content(&site.cc) == before, "it was written");
    ensure!(cluster.bonds().await?.is_empty(), "{:?}", cluster.bonds().await?);

    // The rights are there by now.
    site.account(&[]).await?;
    cluster.published(1).await?;
    cluster.works(&site.published()?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_revokes_here_whatever_rancher_does() -> Result<()> {
    let site = Site::with_account(Version::V2_14).await?;
    let cluster = &site.cluster;
    let operator = cluster.standby(start()).await?;
    operator.leads().await?;
    let revoke = ("onDelete", json!("Revoke"));
    let long = ("overlapSeconds", json!(86_400));

    // Keep: the token stays, and the one before is taken out after the overlap.
    site.account(&[]).await?;
    cluster.published(1).await?;
    let kept = site.published()?;
    cluster.gone().await?;
    ensure!(site.published()? == kept, "another one is there");
    ensure!(site.config()?["users"].as_array().map(Vec::len) == Some(1), "{}", site.config()?);
    cluster.works(&kept).await?;

    // Another TokenRotation takes over at once. Rancher is gone, and so is its answer.
    site.account(&[revoke.clone(), long.clone()]).await?;
    cluster.published(1).await?;
    let token = site.published()?;
    ensure!(token != kept, "it was not replaced");
    site.there.stop();
    let began = Instant::now();
    cluster.gone().await?;
    ensure!(began.elapsed() < Duration::from_mins(1), "{:?}", began.elapsed());
    cluster.refused(&token).await?;
    site.there.restart();

    // The API key is gone.
    site.account(&[revoke.clone(), long.clone()]).await?;
    cluster.published(1).await?;
    let token = site.published()?;
    cluster.guest_secrets().delete(MINTER, &DeleteParams::default()).await?;
    cluster.reason("Ready", "TargetUnreadable").await?;
    cluster.gone().await?;
    cluster.refused(&token).await?;
    site.give(&site.there.api_key(&site.user, 0, "")).await?;

    // The cloud credential is gone.
    site.account(&[revoke, long]).await?;
    cluster.published(1).await?;
    let token = site.published()?;
    site.there.delete_credential(&site.cc);
    site.poke("gone").await?;
    cluster.reason("Ready", "TargetUnreadable").await?;
    cluster.works(&token).await?;
    cluster.gone().await?;
    cluster.refused(&token).await?;
    let bonds = cluster.bonds().await?;
    ensure!(bonds.len() == 1, "only the kept one is left, not {bonds:?}");
    Ok(())
}

/// All of its tokens end with it; a later one by its name gets new ones.
#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_account_is_named_and_a_new_one_is_used() -> Result<()> {
    let site = Site::with_account(Version::Main).await?;
    let cluster = &site.cluster;
    let operator = cluster.standby(start()).await?;
    operator.leads().await?;
    site.account(&[("overlapSeconds", json!(0))]).await?;
    cluster.published(1).await?;
    let token = site.published()?;
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client.clone(), "default");
    accounts.delete(NAME, &DeleteParams::default()).await?;
    cluster.refused(&token).await?;
    cluster.annotate("rotate", "1").await?;
    let said = cluster.reason("Ready", "MintFailed").await?;
    ensure!(said.contains("there is no ServiceAccount default/guest"), "{said}");
    let account = serde_json::from_value(json!({"metadata": {"name": NAME}}))?;
    accounts.create(&PostParams::default(), &account).await?;
    site.rotated("1").await?;
    site.one_account_token_is_left().await
}

/// The operator is killed after each write to the API server, and after each one to Rancher.
#[tokio::test(flavor = "multi_thread")]
async fn it_survives_a_crash_after_each_write() -> Result<()> {
    let site = Site::with_account(Version::Main).await?;
    let proxy = Proxy::start(&site.cluster.bed).await?;
    let via =
        || Start { via: Some((proxy.url().to_owned(), proxy.ca_pem().to_owned())), ..start() };
    let mut operator = site.cluster.standby(via()).await?;
    operator.leads().await?;
    // The operator knows the proxy's authority as the cluster's own.
    site.cluster.rotation(site.account_spec(proxy.url(), &[("overlapSeconds", json!(0))])).await?;
    site.cluster.published(1).await?;
    site.one_account_token_is_left().await?;
    let mut crashes = [0, 0];
    for there in [false, true] {
        for writes in 1.. {
            let request = format!("{there}-{writes}");
            let tried = if there {
                cut_after(&site, writes)
            } else {
                crash::cut_after(&proxy, &KINDS, crash::Last::Unanswered, writes)
            };
            site.cluster.annotate("rotate", &request).await?;
            let cut = eventually(SOON, "end or cut of the rotation", async || {
                if tried.load(Ordering::SeqCst) >= writes + usize::from(!there) {
                    return anyhow::Ok(Some(true));
                }
                let status = site.cluster.status().await?;
                let done =
                    status.rotate_request.as_ref() == Some(&request) && status.previous.is_empty();
                anyhow::Ok(done.then_some(false))
            })
            .await?;
            site.cluster.works(&site.published()?).await.with_context(|| request.clone())?;
            operator.process.kill9()?;
            proxy.clear_rule();
            site.there.clear_rule();
            let _ = site.cluster.free_lease().await;
            operator = site.cluster.standby(via()).await?;
            operator.leads().await?;
            site.rotated(&request).await?;
            site.one_account_token_is_left().await?;
            if !cut {
                break;
            }
            crashes[usize::from(there)] = writes;
        }
    }
    println!("crashed after each of {} writes here and {} in Rancher", crashes[0], crashes[1]);
    // Here: three of the status, the bond, the token, the record of both ends. There: publish, drop.
    ensure!(crashes[0] >= 7 && crashes[1] >= 2, "{crashes:?}: were all observed?");
    Ok(())
}

/// One command prints the account with its rights, and the TokenRotation.
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

/// Another TokenRotation of the same cloud credential, and another server.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_for_one_credential_the_older_goes_first() -> Result<()> {
    let site = Site::with_account(Version::V2_14).await?;
    let cluster = &site.cluster;
    let operator = cluster.standby(start()).await?;
    operator.leads().await?;
    site.account(&[]).await?;
    cluster.published(1).await?;
    let other = TokenRotation::new("other", serde_json::from_value(site.spec(&[]))?);
    cluster.rotations().create(&PostParams::default(), &other).await?;
    eventually(SOON, "the second one", async || {
        let status = cluster.rotations().get("other").await?.status.unwrap_or_default();
        let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready");
        anyhow::Ok(ready.is_some_and(|ready| ready.reason.as_deref() == Some("SecondRotation")))
    })
    .await?;
    let patch = Patch::Merge(
        json!({"spec": {"target": {"cloudCredential": {"server": "https://10.0.0.1"}}}}),
    );
    let error = cluster.rotations().patch(NAME, &PatchParams::default(), &patch).await;
    let error = error.err().context("the server was changed")?.to_string();
    ensure!(error.contains("spec.target is immutable"), "{error}");
    Ok(())
}
