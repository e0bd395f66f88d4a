//! Changes that people make to a target, to the object a credential is bound to, and to the
//! TokenRotation.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use chrono::{DateTime, Utc};
use harvester_guest_operator::api::TokenRotationStatus;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testbed::{CREDENTIAL_RIGHTS, Chart, Verdict, eventually};

use super::fixture::{NAME, behind_proxy, cluster, spec, start};
use crate::support::{SOON, shows};

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_credential_in_the_target_is_kept() -> Result<()> {
    let cluster = cluster().await?;
    let operator = cluster.standby(start()).await?;
    operator.leads().await?;
    cluster.put(&cluster.kubeconfig()).await?;
    cluster.rotation(spec(&[])).await?;
    cluster.published(1).await?;
    let ours = cluster.token().await?;
    let config: Value = serde_saphyr::from_str(&cluster.value().await?)?;
    ensure!(config["users"][1]["user"]["token"] == "theirs", "another user was changed");
    ensure!(config["contexts"][0]["context"]["cluster"] == "there", "{:?}", config["contexts"]);
    // A token of one day that a person writes.
    let theirs = cluster.bed.service_account_token("default", NAME).await?;
    let value = cluster.value().await?;
    cluster.put(&value.replace(&ours, &theirs)).await?;
    cluster.says("adoption", |s| s.current.as_ref().is_some_and(|c| !c.ours)).await?;
    // Ours is revoked. The person's token stays, and works until it is due.
    eventually(SOON, "end of ours", async || cluster.bound_secrets().await.map(|b| b.is_empty()))
        .await?;
    ensure!(cluster.token().await? == theirs, "theirs was overwritten");
    cluster.works(&theirs).await?;
    cluster.refused(&ours).await?;
    // A request replaces it. It is not ours to revoke.
    cluster.annotate("rotate", "1").await?;
    cluster.published(2).await?;
    cluster.one_is_left().await?;
    cluster.works(&theirs).await
}

/// The write that is to replace it is already on its way.
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_credential_put_there_at_the_last_moment_is_kept() -> Result<()> {
    let cluster = cluster().await?;
    let (proxy, _operator) = behind_proxy(&cluster).await?;
    cluster.rotation(spec(&[])).await?;
    cluster.published(1).await?;
    let (value, ours) = (cluster.value().await?, cluster.token().await?);
    let theirs = cluster.bed.service_account_token("default", NAME).await?;
    let writes = Arc::new(AtomicU32::new(0));
    let seen = writes.clone();
    proxy.set_rule(move |call| {
        if call.method != "PATCH" || !call.path.ends_with("/secrets/guest") {
            return Verdict::Pass;
        }
        match seen.fetch_add(1, Ordering::Relaxed) {
            0 => Verdict::Delay(Duration::from_secs(2)),
            _ => Verdict::Hang,
        }
    });
    cluster.annotate("rotate", "1").await?;
    let on_its_way = async || writes.load(Ordering::Relaxed) > 0;
    eventually(SOON, "write of the target", on_its_way).await?;
    cluster.put(&value.replace(&ours, &theirs)).await?;
    cluster.says("adoption", |s| s.current.as_ref().is_some_and(|c| !c.ours)).await?;
    ensure!(cluster.token().await? == theirs, "theirs was overwritten");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_deleted_is_made_again() -> Result<()> {
    let cluster = cluster().await?;
    let operator = cluster.standby(start()).await?;
    operator.leads().await?;
    let target = json!({"secret": {"name": NAME, "key": "kubeconfig"}});
    cluster.rotation(spec(&[("target", target)])).await?;
    cluster.published(1).await?;
    cluster.guest_secrets().delete(NAME, &DeleteParams::default()).await?;
    cluster.published(2).await?;
    cluster.one_is_left().await?;
    // The Secret that the token is bound to. Without it the token is refused.
    let bound_secret = cluster.bound_secrets().await?.into_iter().next().context("no Secret")?;
    let kind = cluster.guest_secrets().get(&bound_secret).await?.type_.unwrap_or_default();
    ensure!(kind == "credentials.harvesterhci.io/bound-secret", "a Secret of type {kind}");
    cluster.guest_secrets().delete(&bound_secret, &DeleteParams::default()).await?;
    cluster.published(3).await?;
    cluster.one_is_left().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leaked_token_is_revoked_as_soon_as_there_is_another() -> Result<()> {
    let cluster = cluster().await?;
    let operator = cluster.standby(start()).await?;
    operator.leads().await?;
    cluster.put(&cluster.kubeconfig()).await?;
    cluster.rotation(spec(&[("overlapSeconds", json!(86_400))])).await?;
    cluster.published(1).await?;
    let first = cluster.token().await?;
    cluster.annotate("rotate", "1").await?;
    let status = cluster.published(2).await?;
    ensure!(status.previous.len() == 1, "{status:?}");
    cluster.works(&first).await?;
    let second = cluster.token().await?;
    cluster.annotate("leaked", "1").await?;
    cluster.published(3).await?;
    cluster.one_is_left().await?;
    cluster.refused(&first).await?;
    cluster.refused(&second).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_keeps_or_revokes_as_the_spec_says() -> Result<()> {
    let cluster = cluster().await?;
    let operator = cluster.standby(start()).await?;
    operator.leads().await?;
    cluster.put(&cluster.kubeconfig()).await?;
    cluster.rotation(spec(&[])).await?;
    cluster.published(1).await?;
    let kept = cluster.token().await?;
    cluster.gone().await?;
    ensure!(cluster.bound_secrets().await?.len() == 1, "{:?}", cluster.bound_secrets().await?);
    cluster.works(&kept).await?;
    cluster.rotation(spec(&[("onDelete", json!("Revoke"))])).await?;
    cluster.annotate("rotate", "1").await?;
    cluster.published(1).await?;
    let revoked = cluster.token().await?;
    ensure!(revoked != kept, "nothing was published");
    cluster.gone().await?;
    cluster.refused(&revoked).await?;
    // The other rotation's token is bound to a Secret of its own.
    cluster.works(&kept).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_written_without_harm_is_left_alone() -> Result<()> {
    let cluster = cluster().await?;
    let operator = cluster.standby(start()).await?;
    operator.leads().await?;
    let exec = json!({"users": [{"name": NAME, "user": {"exec": {"command": "rancher"}}}]});
    let exec = exec.to_string();
    cluster.put(&exec).await?;
    cluster.rotation(spec(&[])).await?;
    let said = cluster.reason("Ready", "TargetUnfit").await?;
    ensure!(said.contains("exec") && said.contains("\"guest\""), "{said}");
    ensure!(cluster.bound_secrets().await?.is_empty(), "a token was issued in vain");
    ensure!(cluster.value().await? == exec, "it was written");
    // The cluster does not exist: the token is tried before it is published, and given up.
    let elsewhere = cluster.kubeconfig().replace(cluster.bed.url(), "https://127.0.0.1:9");
    cluster.put(&elsewhere).await?;
    cluster.reason("Ready", "VerifyFailed").await?;
    ensure!(cluster.value().await? == elsewhere, "it was published untried");
    shows(&operator, "hgo_credential_failures_total", &["Verify"], |n| n >= 1.0).await?;
    cluster.put(&cluster.kubeconfig()).await?;
    cluster.annotate("rotate", "now").await?;
    let status = cluster.published(2).await?;
    cluster.one_is_left().await?;
    // Another owner's Secret by the next name: no token is bound to it, and it stays.
    let last = status.current.context("none is current")?.name;
    let (prefix, number) = last.rsplit_once('-').context("no number")?;
    let next = format!("{prefix}-{}", number.parse::<u64>()? + 1);
    let theirs = json!({"metadata": {"name": next}, "stringData": {"theirs": "x"}});
    let theirs = serde_json::from_value(theirs)?;
    let theirs = cluster.guest_secrets().create(&PostParams::default(), &theirs).await?;
    cluster.annotate("rotate", "again").await?;
    let said = cluster.reason("Ready", "MintFailed").await?;
    ensure!(
        said.contains(&next) && said.contains("credentials.harvesterhci.io/rotation="),
        "{said}"
    );
    let done = |s: &TokenRotationStatus| s.rotate_request.as_deref() == Some("again");
    cluster.says("another name", done).await?;
    cluster.one_is_left().await?;
    let kept = cluster.guest_secrets().get(&next).await?;
    ensure!(kept.metadata.uid == theirs.metadata.uid && kept.data == theirs.data, "it was written");
    Ok(())
}

/// A person writes the credential back between the decision to revoke it and the revocation.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_put_back_at_the_last_moment_is_not_revoked() -> Result<()> {
    let cluster = cluster().await?;
    let (proxy, _operator) = behind_proxy(&cluster).await?;
    cluster.rotation(spec(&[("overlapSeconds", json!(15))])).await?;
    cluster.published(1).await?;
    let (value, first) = (cluster.value().await?, cluster.token().await?);
    let bound_secret = cluster.bound_secrets().await?.into_iter().next();
    cluster.annotate("rotate", "1").await?;
    cluster.published(2).await?;
    let status = cluster.status().await?;
    let end = status.previous.first().and_then(|old| old.revoke_after.clone()).context("no end")?;
    let end = DateTime::parse_from_rfc3339(&end)?;
    // From then on, the reconcile that reads the target revokes the credential, after one more
    // read.
    let reads = Arc::new(AtomicU32::new(0));
    let seen = reads.clone();
    proxy.set_rule(move |call| {
        let counts = call.method == "GET" && call.path.ends_with("/secrets/guest");
        match (counts && Utc::now() >= end).then(|| seen.fetch_add(1, Ordering::Relaxed)) {
            // Shorter than the deadline of the call, 5 s.
            Some(1) => Verdict::Delay(Duration::from_secs(4)),
            _ => Verdict::Pass,
        }
    });
    let about_to = async || reads.load(Ordering::Relaxed) > 1;
    eventually(SOON, "read of the target before a revocation", about_to).await?;
    cluster.put(&value).await?;
    let holds_first = |s: &TokenRotationStatus| {
        s.current.as_ref().is_some_and(|c| Some(&c.name) == bound_secret.as_ref())
    };
    cluster.says("the first one again", holds_first).await?;
    // A server accepts a token for some seconds after its end, so check the Secret and not the
    // token.
    ensure!(cluster.bound_secrets().await?.into_iter().next() == bound_secret, "it was revoked");
    ensure!(cluster.token().await? == first, "another token was written");
    cluster.works(&first).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_watched_credential_is_reported() -> Result<()> {
    let cluster = cluster().await?;
    let operator = cluster.standby(start()).await?;
    operator.leads().await?;
    let theirs = cluster.bed.service_account_token("default", NAME).await?;
    let value = cluster.kubeconfig().replace("theirs", &theirs);
    cluster.put(&value).await?;
    cluster.rotation(json!({"target": {"secret": {"name": NAME, "key": "kubeconfig"}}})).await?;
    let said = cluster.reason("Expiring", "NotReplaced").await?;
    ensure!(
        said.contains("user \"other\"") && said.contains("not replaced automatically"),
        "{said}"
    );
    let status = cluster.status().await?;
    let watched: Vec<_> =
        status.watched.iter().map(|w| (w.user.as_str(), w.name.as_str())).collect();
    ensure!(watched == [("other", "guest")], "{watched:?}");
    let parts = ["rotation=\"guest\"", "rotated=\"false\""];
    shows(&operator, "hgo_credential_overdue", &parts, |n| n == 1.0).await?;
    shows(&operator, "hgo_credential_expiration_timestamp_seconds", &parts, |n| n > 0.0).await?;
    ensure!(cluster.value().await? == value, "it was written");
    cluster.gone().await?;
    let none = async || operator.metric("hgo_credential_overdue", &parts).await.map(|n| n == 0.0);
    eventually(SOON, "end of its series", none).await
}

#[tokio::test(flavor = "multi_thread")]
async fn while_it_is_paused_nothing_is_made_or_published() -> Result<()> {
    let cluster = cluster().await?;
    let operator = cluster.standby(start()).await?;
    operator.leads().await?;
    cluster.put(&cluster.kubeconfig()).await?;
    let paused = json!({"jitterPercent": 0, "paused": true});
    cluster.rotation(spec(&[("schedule", paused)])).await?;
    // Each change of the spec triggers a reconcile.
    let change = async |paused: bool, overlap: u32| -> Result<()> {
        let patch = json!({"spec": {"schedule": {"paused": paused}, "overlapSeconds": overlap}});
        let params = PatchParams::default();
        let changed = cluster.rotations().patch(NAME, &params, &Patch::Merge(patch)).await?;
        let wanted = changed.metadata.generation;
        cluster.says("a reconcile", |status| status.observed_generation == wanted).await.map(drop)
    };
    let said = cluster.reason("Ready", "Paused").await?;
    ensure!(said.contains("spec.schedule.paused"), "{said}");
    ensure!(cluster.bound_secrets().await?.is_empty(), "{:?}", cluster.bound_secrets().await?);
    ensure!(cluster.value().await? == cluster.kubeconfig(), "it was written");

    change(false, 0).await?;
    cluster.published(1).await?;
    cluster.one_is_left().await?;
    change(true, 0).await?;
    let before = cluster.value().await?;
    cluster.annotate("rotate", "1").await?;
    change(true, 1).await?;
    cluster.reason("Ready", "Paused").await?;
    let status = cluster.status().await?;
    ensure!(status.pending.is_none() && status.next_rotation.is_none(), "{status:#?}");
    ensure!(status.rotate_request.is_none(), "{status:#?}");
    ensure!(cluster.value().await? == before, "it was replaced");
    // The request was still pending.
    change(false, 0).await?;
    cluster.says("the rotation", |s| s.rotate_request.as_deref() == Some("1")).await?;
    cluster.one_is_left().await
}

#[tokio::test(flavor = "multi_thread")]
async fn workloads_are_restarted_once_for_each_credential() -> Result<()> {
    let cluster = cluster().await?;
    let operator = cluster.standby(start()).await?;
    operator.leads().await?;
    let args = ["create", "deployment", "ccm", "--image=none", "--replicas=0"];
    cluster.bed.kubectl(&args).await?;
    cluster.put(&cluster.kubeconfig()).await?;
    let restart =
        json!([{"kind": "Deployment", "name": "ccm"}, {"kind": "DaemonSet", "name": "no"}]);
    cluster.rotation(spec(&[("restartWorkloads", json!(restart))])).await?;
    let restarted = async |at_least: i64| {
        cluster
            .says("restart of the workloads", |s| {
                let current = s.current.as_ref().map(|current| current.name.clone());
                s.serial >= at_least
                    && s.pending.is_none()
                    && current.is_some()
                    && s.restarted_for == current
            })
            .await
    };
    restarted(1).await?;
    let api: Api<Deployment> = Api::namespaced(cluster.client.clone(), "default");
    let seen = async || {
        let deployment = api.get("ccm").await?;
        let template = deployment.spec.unwrap_or_default().template.metadata.unwrap_or_default();
        let generation = deployment.metadata.generation.unwrap_or_default();
        anyhow::Ok((generation, template.annotations.unwrap_or_default()))
    };
    let (first, annotations) = seen().await?;
    ensure!(annotations.len() == 1, "{annotations:?}");
    let hash = cluster.status().await?.current.context("none")?.hash;
    ensure!(annotations.values().next() == Some(&hash), "{annotations:?}");
    cluster.annotate("rotate", "1").await?;
    restarted(2).await?;
    let (second, annotations) = seen().await?;
    ensure!(second == first + 1 && annotations.len() == 1, "{first} to {second}, {annotations:?}");
    cluster.one_is_left().await
}

/// The operator reads no target there, and does not block deletion.
#[tokio::test(flavor = "multi_thread")]
async fn without_rights_in_a_namespace_nothing_is_tried() -> Result<()> {
    let cluster = cluster().await?;
    let operator = cluster.operator().await?;
    cluster.put(&cluster.kubeconfig()).await?;
    cluster.rotation(spec(&[])).await?;
    let said = cluster.reason("Ready", "NamespaceNotAllowed").await?;
    ensure!(said.contains("credentials.namespaces"), "{said}");
    cluster.gone().await?;
    ensure!(cluster.bound_secrets().await?.is_empty());
    drop(operator);
    Ok(())
}

#[tokio::test]
async fn the_rights_here_are_those_that_the_chart_renders() -> Result<()> {
    let rules = |yaml: &str| -> Result<Vec<Value>> {
        let parts = yaml.split("---\n").filter(|part| part.contains("kind:"));
        let objects = parts.map(|part| Ok(serde_saphyr::from_str::<Value>(part)?));
        let objects: Result<Vec<Value>> = objects.collect();
        Ok(objects?.iter().map(|o| json!([o["kind"], o["rules"], o["subjects"]])).collect())
    };
    let set = r#"credentials.namespaces=[{"name": "default", "serviceAccounts": ["*"]}]"#;
    let chart = Chart::locate().await?.render(&["--set-json", set]).await?;
    let rendered = chart.get("rbac/credentials.yaml").context("no rights in the chart")?;
    let (rendered, ours) = (rules(rendered)?, rules(CREDENTIAL_RIGHTS)?);
    ensure!(rendered == ours, "{rendered:#?}, and here {ours:#?}");
    ensure!(Path::new(env!("CARGO_MANIFEST_DIR")).join("crds/tokenrotations.yaml").exists());
    Ok(())
}
