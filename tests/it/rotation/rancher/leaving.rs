//! TokenRotations that are deleted while another object is gone: each deletion ends, and each token
//! that could not be revoked is named.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use chrono::{DateTime, TimeDelta};
use harvester_guest_operator::api::{ANNOTATION_RANCHER_URL, TokenRotation};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};
use testbed::rancher::Version;
use testbed::{CREDENTIAL_RIGHTS, GUEST_ACCOUNT, Stalls, Start, eventually};

use super::super::fixture::{NAME, start};
use super::{KEY, MINTER, Site, server};
use crate::support::{Cluster, LATER, SOON, beside_bare_writes};

const PASSING: &str = "passing";

impl Site {
    /// Creates a TokenRotation that has published one token. Returns the token's name.
    async fn one(&self, parts: &[(&str, Value)]) -> Result<String> {
        self.cluster.rotation(self.spec(parts)).await?;
        self.cluster.annotate("rotate", "1").await?;
        self.rotated("1").await?;
        Ok(self.cluster.status().await?.current.context("none is current")?.name)
    }

    /// Whether Rancher has a token by this name.
    fn has(&self, name: &str) -> bool {
        self.there.tokens().iter().any(|token| token.description == name)
    }
}

/// Notes of the Events with this reason.
async fn notes(cluster: &Cluster, reason: &str) -> Result<Vec<String>> {
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), "default");
    let all = events.list(&ListParams::default()).await?.items;
    let of = all.into_iter().filter(|event| event.reason.as_deref() == Some(reason));
    Ok(of.filter_map(|event| event.note).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_does_not_wait_for_what_is_gone() -> Result<()> {
    let site = Site::new(Version::V2_12).await?;
    let cluster = &site.cluster;
    let operator = cluster.standby(start()).await?;
    operator.leads().await?;
    let long = ("overlapSeconds", json!(86_400));
    let revoke = ("onDelete", json!("Revoke"));

    // Within the first overlap: the UI's former token, which has no end in Rancher, is revoked too.
    let ui = site.published()?;
    let name = ui.split(':').next().unwrap_or_default();
    ensure!(site.there.token(name).is_some_and(|token| token.ttl == 0), "it expires");
    site.one(&[]).await?;
    ensure!(
        site.there.content(&site.cc).matches("token:").count() == 2,
        "the former token was removed"
    );
    cluster.gone().await?;
    ensure!(site.there.content(&site.cc).matches("token:").count() == 1, "it is still there");
    eventually(SOON, "end of the UI's token", async || anyhow::Ok(!site.there.accepts(&ui)))
        .await?;
    site.uses(&site.published()?).await?;

    // Rancher does not answer: the condition reports that, and until when the operator waits.
    let token = site.one(&[long.clone(), revoke.clone()]).await?;
    site.there.stop();
    cluster.rotations().delete(NAME, &DeleteParams::default()).await?;
    let said = eventually(SOON, "cause of the delay", async || {
        let said = cluster.reason("Ready", "Deleting").await?;
        anyhow::Ok(said.contains("no answer").then_some(said))
    })
    .await?;
    let until = said.split_once("continues without the revocation at ").context("no end")?.1;
    let asked = cluster.rotations().get(NAME).await?.metadata.deletion_timestamp;
    let asked = serde_json::to_value(asked)?;
    let times = [until, asked.as_str().unwrap_or_default()].map(DateTime::parse_from_rfc3339);
    let [until, asked] = times;
    ensure!(until? - asked? == TimeDelta::minutes(15), "{said}, asked at {asked:?}");
    site.there.restart();
    site.poke("again").await?;
    let none = async || Ok::<_, kube::Error>(cluster.rotations().get_opt(NAME).await?.is_none());
    eventually(SOON, "end of the rotation", none).await?;
    ensure!(!site.has(&token), "it was not revoked");

    // The cloud credential goes first: its user may not read it any more, and the tokens are
    // revoked.
    let content = site.there.kubeconfig(&site.user, "c-m-prod");
    site.there.put_content(&site.cc, &content)?;
    let token = site.one(&[long.clone(), revoke.clone()]).await?;
    let kept = site.there.secret(&site.cc).unwrap_or_default();
    site.there.delete_credential(&site.cc);
    cluster.gone().await?;
    ensure!(!site.has(&token), "it was not revoked");
    ensure!(notes(cluster, "CredentialsNotRevoked").await?.is_empty(), "a token was left behind");

    // The API key goes first: no token can be revoked, and each is named.
    site.there.edit_secret(&site.cc, |secret| *secret = kept);
    site.there.put_content(&site.cc, &site.there.kubeconfig(&site.user, "c-m-prod"))?;
    let token = site.one(&[long, revoke]).await?;
    cluster.guest_secrets().delete(MINTER, &DeleteParams::default()).await?;
    cluster.gone().await?;
    eventually(SOON, "Event that names the token", async || {
        let notes = notes(cluster, "CredentialsNotRevoked").await?;
        anyhow::Ok(notes.iter().any(|note| note.contains(&token) && note.contains("no Secret")))
    })
    .await
}

/// Rights, API key, targets and rotations are deleted in any order.
#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_goes_within_a_minute_with_what_is_rotated_in_it() -> Result<()> {
    let site = Site::new(Version::V2_15).await?;
    let cluster = &site.cluster;
    // A request in between is refused as soon as the Role is gone.
    cluster.robbed();
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let namespace = serde_json::from_value(json!({"metadata": {"name": PASSING}}))?;
    namespaces.create(&PostParams::default(), &namespace).await?;
    let there = |yaml: &str| yaml.replace("namespace: default", &format!("namespace: {PASSING}"));
    cluster.bed.apply_yaml(&there(CREDENTIAL_RIGHTS)).await?;
    cluster.bed.apply_yaml(&there(GUEST_ACCOUNT)).await?;
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), PASSING);
    let key = site.there.api_key(&site.user, 0, "the operator's");
    for (name, field, value) in [(NAME, "kubeconfig", cluster.kubeconfig()), (MINTER, KEY, key)] {
        let annotations = json!({ANNOTATION_RANCHER_URL: site.there.url()});
        let metadata = json!({"name": name, "annotations": annotations});
        let secret = json!({"metadata": metadata, "stringData": {field: value}});
        secrets.create(&PostParams::default(), &serde_json::from_value(secret)?).await?;
    }
    let options = ["--credential-namespaces", PASSING].map(str::to_owned).to_vec();
    let operator = cluster.standby(Start { options, ..Start::default() }).await?;
    operator.leads().await?;

    let rotations: Api<TokenRotation> = Api::namespaced(cluster.client.clone(), PASSING);
    let account = json!({
        "source": {"serviceAccountToken": {"serviceAccountName": NAME}},
        "target": {"secret": {"name": NAME, "key": "kubeconfig", "kubeconfigUser": NAME}},
        "onDelete": "Revoke",
    });
    let all = json!({"target": {"allCloudCredentials": {}}, "rancher": server(&site.there)});
    let rancher = site.spec(&[("onDelete", json!("Revoke")), ("overlapSeconds", json!(86_400))]);
    for (name, spec) in [("account", account), ("all", all), ("rancher", rancher)] {
        let rotation = TokenRotation::new(name, serde_json::from_value(spec)?);
        rotations.create(&PostParams::default(), &rotation).await?;
        eventually(SOON, &format!("{name} is ready"), async || {
            let status = rotations.get(name).await?.status.unwrap_or_default();
            let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready");
            anyhow::Ok(ready.is_some_and(|ready| {
                serde_json::to_value(ready.status).is_ok_and(|status| status == "True")
            }))
        })
        .await?;
    }
    let stalls = Stalls::watch()?;
    namespaces.delete(PASSING, &DeleteParams::default()).await?;
    let since = Instant::now();
    let gone = eventually(LATER, "end of the namespace", async || {
        Ok::<_, kube::Error>(namespaces.get_opt(PASSING).await?.is_none())
    });
    let most = Duration::from_mins(1);
    let ((), most) = beside_bare_writes(cluster, &stalls, most, gone).await?;
    let took = stalls.elapsed(since);
    println!("the namespace was gone after {took:?}, limit {most:?}");
    ensure!(took < most, "{took:?}, limit {most:?}");
    Ok(())
}
