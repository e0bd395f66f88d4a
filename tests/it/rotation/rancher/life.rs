//! Replacement of a cloud credential, and of the API key by itself.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use chrono::DateTime;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use testbed::rancher::Version;
use testbed::{Start, eventually};

use super::super::fixture::{limit, start};
use super::{KEY, MINTER, Site};
use crate::support::SOON;
use harvester_guest_operator::api::TokenRotation;

#[tokio::test(flavor = "multi_thread")]
async fn both_tokens_are_in_it_until_the_overlap_is_over() -> Result<()> {
    for version in [Version::V2_11, Version::V2_14] {
        let site = Site::new(version).await?;
        // The spec names no authority: the operator trusts it already, or it is beside the API key.
        let folder = tempfile::tempdir()?;
        let mut variables = Vec::new();
        if version == Version::V2_11 {
            std::fs::write(folder.path().join("company.pem"), site.there.ca_pem())?;
            let folder = folder.path().to_string_lossy().into_owned();
            variables.push(("SSL_CERT_DIR".to_owned(), folder));
        } else {
            let patch = json!({"stringData": {"ca.crt": site.there.ca_pem()}});
            let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
            site.cluster.guest_secrets().patch(MINTER, &params, &patch).await?;
        }
        let start = || Start { variables: variables.clone(), ..start() };
        let operator = site.cluster.standby(start()).await?;
        operator.leads().await?;
        // Two leaders do no harm.
        let mut second = None;
        if version == Version::V2_14 {
            second = Some(site.cluster.second_leader(start()).await?);
        }
        let made_by_the_ui = site.published()?;
        let mut server = super::server(&site.there);
        server.as_object_mut().context("no object")?.remove("certificateAuthority");
        site.cluster.rotation(site.spec(&[("rancher", server)])).await?;
        site.cluster.says("adoption", |s| s.current.as_ref().is_some_and(|c| !c.ours)).await?;
        ensure!(site.published()? == made_by_the_ui, "replaced before its time");

        let mut uses = 0;
        let rotate = async {
            for request in ["1", "2"] {
                site.cluster.annotate("rotate", request).await?;
                site.rotated(request).await?;
            }
            site.one_is_left().await
        };
        tokio::select! {
            end = site.consume(&mut uses) => end?,
            end = rotate => end?,
        }
        ensure!(uses > 100, "{uses}");
        // Since 2.12 Rancher itself ends the UI's token. Before that the token lives until it
        // expires.
        ensure!(site.there.accepts(&made_by_the_ui) == (version < Version::V2_12));
        let status = site.cluster.status().await?;
        let current = status.current.context("none")?;
        ensure!(current.expires_at.is_some() && status.expires_at == current.expires_at);
        // Rancher's UI warns of the end in this annotation, which its controller removes since 2.12.
        let secret = site.there.secret(&site.cc).context("no Secret")?;
        let shown = secret["metadata"]["annotations"]["rancher.io/expiration-timestamp"].as_str();
        let shown = shown.map(|text| text.parse().map(DateTime::from_timestamp_millis));
        let ends = current.expires_at.as_deref().map(DateTime::parse_from_rfc3339);
        let ends = ends.transpose()?.map(|ends| ends.to_utc());
        ensure!(shown.transpose()?.flatten() == ends.filter(|_| version == Version::V2_11));
        println!("{version:?}: {uses} uses, two leaders: {}", second.is_some());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_replaced_by_ranchers_time() -> Result<()> {
    let site = Site::new(Version::Main).await?;
    // The API key's Secret is the only one that the operator may read here, and it may create none.
    limit(&site.cluster, &json!({"secrets": [MINTER]})).await?;
    let options = vec!["--credential-namespaces".to_owned(), format!("default/{MINTER}")];
    let operator = site.cluster.standby(Start { options, ..start() }).await?;
    operator.leads().await?;
    site.cluster.rotation(site.spec(&[])).await?;
    site.cluster.says("adoption", |s| s.current.is_some()).await?;
    another_secret(&site).await?;
    for round in 1..=3 {
        // The UI's token lives for thirty days, those that follow for an hour.
        let days = if round == 1 { 29 } else { 0 };
        site.there.advance(Duration::from_secs(days * 86_400 + 2_700));
        site.poke(&round.to_string()).await?;
        site.cluster.published(round).await?;
        // The overlap is measured by Rancher's clock, too.
        site.there.advance(Duration::from_mins(1));
        site.poke(&format!("{round} over")).await?;
        site.one_is_left().await?;
    }
    // Where /v3/tokens is gone, a replica refuses a new token until it knows it. The same token is
    // tested again, and no other one is made.
    site.there.retire_v3_tokens();
    site.there.second_replica(Duration::from_secs(2));
    let before = site.cluster.status().await?.serial;
    site.cluster.annotate("rotate", "late").await?;
    site.rotated("late").await?;
    let made = site.cluster.status().await?.serial - before;
    ensure!(made == 1, "{made} tokens made for one request");
    Ok(())
}

/// Checks a TokenRotation for a Secret that the chart's values do not name: it is neither read nor
/// written.
async fn another_secret(site: &Site) -> Result<()> {
    site.cluster.robbed();
    let target = json!({"secret": {"name": "another", "key": KEY}});
    let another = site.spec(&[("target", target)]);
    let another = TokenRotation::new("another", serde_json::from_value(another)?);
    let rotations = site.cluster.rotations();
    rotations.create(&PostParams::default(), &another).await?;
    eventually(SOON, "refusal of another Secret", async || {
        let status = rotations.get("another").await?.status.unwrap_or_default();
        let ready = status.conditions.into_iter().find(|condition| condition.type_ == "Ready");
        let said = ready.and_then(|ready| ready.message).unwrap_or_default();
        anyhow::Ok(said.contains("spec.target.secret") && said.contains("cannot get"))
    })
    .await?;
    rotations.delete("another", &DeleteParams::default()).await?;
    ensure!(site.cluster.guest_secrets().get_opt("another").await?.is_none(), "it was written");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_key_renews_itself() -> Result<()> {
    let site = Site::new(Version::Main).await?;
    let operator = site.cluster.standby(start()).await?;
    operator.leads().await?;
    site.cluster.rotation(site.spec(&[])).await?;
    let mut own = site.spec(&[]);
    own["target"] = json!({"secret": {"name": MINTER, "key": KEY}});
    own["overlapSeconds"] = json!(0);
    let own = TokenRotation::new("key", serde_json::from_value(own)?);
    let rotations: Api<TokenRotation> = site.cluster.rotations();
    rotations.create(&PostParams::default(), &own).await?;
    let key = async || -> Result<String> {
        let secret = site.cluster.guest_secrets().get(MINTER).await?;
        let value = secret.data.and_then(|mut data| data.remove(KEY)).context("no key")?;
        Ok(String::from_utf8(value.0)?)
    };
    let first = key().await?;
    // The first lives for ninety days.
    site.there.advance(Duration::from_hours(80 * 24));
    site.poke("1").await?;
    eventually(SOON, "another API key", async || anyhow::Ok(key().await? != first)).await?;
    let second = key().await?;
    ensure!(site.there.accepts(&second));
    // The operator did not create the first key, so it stays until it expires. The next one is
    // revoked.
    ensure!(site.there.accepts(&first));
    site.there.advance(Duration::from_mins(50));
    site.poke("2").await?;
    eventually(SOON, "a third", async || anyhow::Ok(key().await? != second)).await?;
    eventually(SOON, "end of the second", async || !site.there.accepts(&second)).await?;
    site.cluster.annotate("rotate", "with the new key").await?;
    site.rotated("with the new key").await?;
    site.one_is_left().await
}

/// Rancher 2.12 to 2.14 extend the token: the operator leaves it until Rancher stops to extend it.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_ui_renews_is_adopted_and_left_to_a_rancher_that_keeps_it_alive() -> Result<()> {
    let site = Site::new(Version::V2_12).await?;
    let operator = site.cluster.standby(start()).await?;
    operator.leads().await?;
    let rotation = site.spec(&[("schedule", json!({"jitterPercent": 0}))]);
    site.cluster.rotation(rotation).await?;
    let message = site.cluster.reason("Ready", "KeptByRancher").await?;
    ensure!(message.contains("does not replace it"), "{message}");
    site.cluster.annotate("rotate", "1").await?;
    site.rotated("1").await?;
    site.cluster.reason("Ready", "Current").await?;
    let ours = site.published()?;
    let theirs = site.there.kubeconfig(&site.user, "c-m-prod");
    site.there.put_content(&site.cc, &theirs)?;
    site.poke("1").await?;
    site.cluster.says("adoption", |s| s.current.as_ref().is_some_and(|c| !c.ours)).await?;
    eventually(SOON, "end of ours", async || !site.there.accepts(&ours)).await?;
    ensure!(site.there.content(&site.cc) == theirs.trim(), "it was overwritten");
    site.uses(&site.published()?).await?;

    // The operator may have observed it before Rancher's controller did.
    site.poke("2").await?;
    site.cluster.reason("Ready", "KeptByRancher").await?;
    site.there.advance(Duration::from_hours(85 * 24));
    site.poke("3").await?;
    // The operator has observed Rancher since.
    site.cluster.reason("MinterExpiring", "NotRenewed").await?;
    let status = site.cluster.status().await?;
    ensure!(status.serial == 1 && status.next_rotation.is_none(), "{status:#?}");
    ensure!(status.expires_at.is_none() && site.there.content(&site.cc) == theirs.trim());
    // An end that is near, as since 2.15.
    let name = status.current.context("none is current")?.name;
    let created = site.there.token(&name).context("it is gone")?.created;
    let left = site.there.now() / 1000 + 86_400 - created;
    site.there.set_ttl(&name, left * 1000);
    site.poke("4").await?;
    site.cluster.published(2).await?;
    site.one_is_left().await
}

/// Rancher's controller ignores a content that names a token unknown to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_token_is_not_kept_beside_the_new_one() -> Result<()> {
    let site = Site::new(Version::V2_12).await?;
    let operator = site.cluster.standby(start()).await?;
    operator.leads().await?;
    let dead = site.published()?;
    site.there.delete_token(dead.split(':').next().unwrap_or_default());
    site.cluster.rotation(site.spec(&[("overlapSeconds", json!(86_400))])).await?;
    site.cluster.published(1).await?;
    let content = site.there.content(&site.cc);
    ensure!(!content.contains(&dead), "Rancher would ignore it from now on");
    ensure!(content.matches("token:").count() == 1);
    site.uses(&site.published()?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_work_where_it_is_used_is_not_published() -> Result<()> {
    let site = Site::new(Version::V2_14).await?;
    let operator = site.cluster.standby(start()).await?;
    operator.leads().await?;
    site.cluster.rotation(site.spec(&[])).await?;
    site.cluster.says("adoption", |s| s.current.is_some()).await?;
    let before = site.there.content(&site.cc);
    site.there.agent("c-m-prod", false);
    site.cluster.annotate("rotate", "1").await?;
    let message = site.cluster.reason("Ready", "VerifyFailed").await?;
    ensure!(message.contains("where it will be used"), "{message}");
    ensure!(site.there.content(&site.cc) == before, "it was published");
    // A failure that a retry cannot repair is not retried again and again.
    let calls = site.there.calls();
    let count = |method: &str, end: &str| {
        let is = |call: &testbed::Call| call.method == method && call.path.ends_with(end);
        calls.iter().filter(|record| is(&record.call)).count()
    };
    let (mints, tries) = (count("POST", "/v3/tokens"), count("POST", "/selfsubjectreviews"));
    ensure!((1..=2 * mints).contains(&tries), "{tries} tries of {mints} tokens");
    site.there.agent("c-m-prod", true);
    site.rotated("1").await?;
    site.one_is_left().await
}

/// Harvester 1.3 is Kubernetes 1.27, which has SelfSubjectReview in beta and does not serve it.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_without_self_subject_reviews_is_served() -> Result<()> {
    let site = Site::new(Version::V2_8).await?;
    site.there.without_reviews("c-m-prod");
    let operator = site.cluster.standby(start()).await?;
    operator.leads().await?;
    site.cluster.rotation(site.spec(&[])).await?;
    site.cluster.annotate("rotate", "1").await?;
    site.rotated("1").await?;
    ensure!(site.there.accepts(&site.published()?), "it does not work");
    // A token that is not accepted still fails the check.
    site.there.agent("c-m-prod", false);
    site.cluster.annotate("rotate", "2").await?;
    site.cluster.reason("Ready", "VerifyFailed").await.map(drop)
}
