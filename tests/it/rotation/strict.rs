//! Servers that may not receive a token of a ServiceAccount, answers that are not accepted, and how
//! long a server may not answer.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use harvester_guest_operator::api::{TokenRotation, TokenRotationStatus};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::{Value, json};
use testbed::{Operator, Proxy, Verdict, eventually};

use super::fixture::{KEY, NAME, Versions, cluster, limit, spec, start};
use crate::support::{Cluster, SOON};

#[tokio::test(flavor = "multi_thread")]
async fn a_token_goes_to_no_server_that_may_not_have_it() -> Result<()> {
    let cluster = cluster().await?;
    limit(&cluster, &json!({"serviceAccounts": [NAME]})).await?;
    let operator = cluster.standby(start()).await?;
    operator.leads().await?;
    let versions = Versions::of(&cluster);
    let proxy = Proxy::start(&cluster.bed).await?;
    let way = kubeconfig(&cluster, &proxy)?;

    let mut unverified: Value = serde_json::from_str(&way)?;
    unverified["clusters"][0]["cluster"]["insecure-skip-tls-verify"] = json!(true);
    cluster.put(&way.replace("https://", "http://")).await?;
    cluster.rotation(spec(&[])).await?;
    said(&cluster, "TargetUnfit", "must begin with https://").await?;
    cluster.put(&unverified.to_string()).await?;
    said(&cluster, "TargetUnfit", "insecure-skip-tls-verify").await?;
    ensure!(cluster.bound_secrets().await?.is_empty(), "a token was issued in vain");
    ensure!(proxy.calls().is_empty(), "a request was sent there");

    echoes(&cluster, &proxy, &operator, &way).await?;
    another_account(&cluster).await?;
    silence(&cluster, &proxy, &way, &versions).await
}

/// Kubeconfig with the proxy as its server.
fn kubeconfig(cluster: &Cluster, proxy: &Proxy) -> Result<String> {
    let mut config: Value = serde_json::from_str(&cluster.kubeconfig())?;
    let there = &mut config["clusters"][0]["cluster"];
    there["server"] = json!(proxy.url());
    let authority = k8s_openapi::ByteString(proxy.ca_pem().as_bytes().to_vec());
    there["certificate-authority-data"] = json!(authority);
    Ok(config.to_string())
}

async fn said(cluster: &Cluster, reason: &str, words: &str) -> Result<()> {
    eventually(SOON, &format!("{reason}: {words}"), async || {
        let said = cluster.reason("Ready", reason).await.map_err(|error| error.to_string())?;
        if said.contains(words) { Ok(true) } else { Err(said) }
    })
    .await
}

/// Checks against a server that repeats the request, in an error and as the user's name.
async fn echoes(cluster: &Cluster, proxy: &Proxy, operator: &Operator, way: &str) -> Result<()> {
    let review = |user: &str| {
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview",
            "metadata": {}, "status": {"userInfo": {"username": user}}})
        .to_string()
    };
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 400,
        "message": "no good: $AUTHORIZATION"});
    let answers = [
        (400, status.to_string(), "no good"),
        (201, review("$AUTHORIZATION"), "says that the token belongs to"),
        (201, review("stranger"), "the token belongs to \"stranger\", not to system:"),
    ];
    cluster.put(way).await?;
    for (code, body, words) in answers {
        proxy.set_rule(move |_| Verdict::Answer { code, body: body.clone() });
        cluster.annotate("rotate", words).await?;
        said(cluster, "VerifyFailed", words).await?;
        ensure!(cluster.value().await? == way, "it was published all the same");
    }
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), "default");
    let noted = async || {
        let events = serde_json::to_string(&events.list(&ListParams::default()).await?.items)?;
        anyhow::Ok(events.contains("VerifyFailed").then_some(events))
    };
    let events = eventually(SOON, "an Event", noted).await?;
    let rotation = serde_json::to_string(&cluster.rotations().get(NAME).await?)?;
    for (place, text) in [("Events", events), ("status", rotation), ("log", operator.process.log())]
    {
        ensure!(!text.contains("eyJhbGci"), "a token is in the {place}");
    }
    Ok(())
}

/// Checks an account that the chart's values do not name, in a Secret that a tenant may create.
async fn another_account(cluster: &Cluster) -> Result<()> {
    let source = json!({"serviceAccountTokenSecret": {"serviceAccountName": "default"}});
    let target = json!({"secret": {"name": "stolen", "key": "token"}});
    make(cluster, "stolen", spec(&[("source", source), ("target", target)])).await?;
    let says = async || {
        let ready = reason(&cluster.rotations().get("stolen").await?);
        let named = ["MintFailed", "serviceaccounts/token", "default/default"];
        if named.iter().all(|word| ready.contains(word)) { Ok(true) } else { anyhow::bail!(ready) }
    };
    eventually(SOON, "refusal of another account", says).await?;
    let bound_secrets = cluster.bound_secrets().await?;
    ensure!(!bound_secrets.iter().any(|name| name.starts_with("stolen")), "{bound_secrets:?}");
    Ok(())
}

/// Checks five rotations whose server hangs, as behind a half-dead tunnel, and one that is healthy.
async fn silence(cluster: &Cluster, proxy: &Proxy, way: &str, versions: &Versions) -> Result<()> {
    proxy.set_rule(|_| Verdict::Hang);
    let names = ["h1", "h2", "h3", "h4", "h5", "well"];
    for name in names {
        let value = if name == "well" { cluster.kubeconfig() } else { way.to_owned() };
        let secret: Secret = serde_json::from_value(json!({
            "metadata": {"name": name}, "stringData": {KEY: value},
        }))?;
        cluster.guest_secrets().create(&PostParams::default(), &secret).await?;
    }
    try_join_all(names.map(|name| {
        let target = json!({"secret": {"name": name, "key": KEY, "kubeconfigUser": NAME}});
        make(cluster, name, spec(&[("target", target)]))
    }))
    .await?;
    let since = Instant::now();
    let is_published = async || {
        let status = cluster.rotations().get("well").await?.status.unwrap_or_default();
        anyhow::Ok(status.current.is_some_and(|current| current.ours))
    };
    eventually(SOON, "publication of the healthy one", is_published).await?;
    let well = since.elapsed();
    // They have waited for their turns, and were not Ready meanwhile.
    let versions = versions.text().await?;
    ensure!(versions.contains("the target holds no credential"), "{versions}");
    let all_say = async || {
        for name in ["h1", "h2", "h3", "h4", "h5"] {
            let ready = reason(&cluster.rotations().get(name).await?);
            ensure!(
                ready.contains("VerifyFailed") && ready.contains("no answer"),
                "{name}: {ready}"
            );
        }
        Ok(true)
    };
    eventually(SOON, "report of the timeouts", all_say).await?;
    println!(
        "beside five that hang: published after {well:?}, all reported after {:?}",
        since.elapsed()
    );
    // They time out and start again, and do not delay the next rotation of the healthy one.
    let patch = json!({"metadata": {"annotations": {"credentials.harvesterhci.io/rotate": "1"}}});
    let params = kube::api::PatchParams::default();
    cluster.rotations().patch("well", &params, &kube::api::Patch::Merge(patch)).await?;
    let done = |status: TokenRotationStatus| status.rotate_request.as_deref() == Some("1");
    eventually(SOON, "its next rotation", async || {
        let rotation = cluster.rotations().get("well").await?;
        anyhow::Ok(rotation.status.is_some_and(done))
    })
    .await
}

async fn make(cluster: &Cluster, name: &str, spec: Value) -> Result<()> {
    let rotation = TokenRotation::new(name, serde_json::from_value(spec)?);
    cluster.rotations().create(&PostParams::default(), &rotation).await.context("create").map(drop)
}

/// Reason and message of `Ready`.
fn reason(rotation: &TokenRotation) -> String {
    let conditions = rotation.status.iter().flat_map(|status| &status.conditions);
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
    ready.map(|ready| format!("{ready:?}")).unwrap_or_default()
}
