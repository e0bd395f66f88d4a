//! A ServiceAccount of this cluster behind a cloud credential: its token is published there in place of
//! a Rancher's, and renewed and revoked here.

mod command;
mod ending;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::api::TokenRotation;
use k8s_openapi::ByteString;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testbed::eventually;
use testbed::rancher::Version;

use super::super::fixture::{NAME, start};
use super::{OVERLAP, Site};
use crate::support::{LATER, SOON};

/// Rights of Rancher's node driver in another namespace than the account's.
const DRIVER: &str = include_str!("driver.yaml");

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
            let bound_secrets = self.cluster.bound_secrets().await?;
            ensure!(
                bound_secrets == BTreeSet::from([current.clone()]),
                "{bound_secrets:?}, not {current}"
            );
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
    ensure!(cluster.bound_secrets().await?.is_empty(), "{:?}", cluster.bound_secrets().await?);

    // The rights are there by now.
    site.account(&[]).await?;
    cluster.published(1).await?;
    cluster.works(&site.published()?).await
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
