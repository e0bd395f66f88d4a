//! Credentials of a Rancher: the operator's own process replaces the stand-in's cloud credential.

mod account;
mod all;
mod authority;
mod client;
mod clock;
mod leaving;
mod life;
mod secret;
mod trouble;
mod watch;
mod year;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::api::{ANNOTATION_RANCHER_URL, TokenRotation};
use harvester_guest_operator::domain::credentials::secret_text::SecretText;
use harvester_guest_operator::rancher::ServerClient;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testbed::eventually;
use testbed::rancher::Version;

use super::fixture::{NAME, cluster};
use crate::support::{Cluster, LATER};

/// Seconds that both tokens work: longer than a machine stalls.
const OVERLAP: u64 = 8;
/// Name of the API key's Secret, and the key in it.
const MINTER: &str = "rancher";
const KEY: &str = "token";

/// Cluster, a stand-in for Rancher beside it, and a cloud credential as Rancher's UI creates one.
struct Site {
    cluster: Cluster,
    there: testbed::Rancher,
    user: String,
    cc: String,
}

/// Creates a TokenRotation that only watches a Rancher's credentials, by an API key that expires.
pub(super) async fn watched(cluster: &Cluster) -> Result<testbed::Rancher> {
    let there = testbed::Rancher::start(Version::V2_14).await?;
    let user = there.user(false);
    write(cluster, &there, &there.api_key(&user, 0, "the operator's")).await?;
    let spec = json!({"target": {"allCloudCredentials": {}}, "rancher": server(&there)});
    let rotation = TokenRotation::new("all", serde_json::from_value(spec)?);
    cluster.rotations().create(&PostParams::default(), &rotation).await?;
    Ok(there)
}

/// Writes the API key as a person does.
async fn write(cluster: &Cluster, there: &testbed::Rancher, key: &str) -> Result<()> {
    let annotations = json!({ANNOTATION_RANCHER_URL: there.url()});
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": MINTER, "namespace": "default", "annotations": annotations},
        "stringData": {KEY: key},
    });
    let params = PatchParams::apply("person").force();
    cluster.guest_secrets().patch(MINTER, &params, &Patch::Apply(&secret)).await?;
    Ok(())
}

/// Value of `spec.rancher`.
fn server(there: &testbed::Rancher) -> Value {
    json!({
        "url": there.url(), "certificateAuthority": there.ca_pem(),
        "minter": {"secretName": MINTER, "key": KEY},
    })
}

impl Site {
    async fn new(version: Version) -> Result<Self> {
        let cluster = cluster().await?;
        let there = testbed::Rancher::start(version).await?;
        let user = there.user(false);
        there.cluster("c-m-prod", "prod", &[&user]);
        let content = there.kubeconfig(&user, "c-m-prod");
        let cc = there.credential(&user, "prod", "c-m-prod", &content)?;
        let site = Self { cluster, there, user, cc };
        site.give(&site.there.api_key(&site.user, 0, "the operator's")).await?;
        Ok(site)
    }

    async fn give(&self, key: &str) -> Result<()> {
        write(&self.cluster, &self.there, key).await
    }

    /// Triggers a reconcile, as happens without it every few minutes.
    async fn poke(&self, value: &str) -> Result<()> {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {"poke": value}}}));
        let params = PatchParams::default();
        self.cluster.guest_secrets().patch(MINTER, &params, &patch).await?;
        Ok(())
    }

    fn spec(&self, parts: &[(&str, Value)]) -> Value {
        let mut spec = json!({
            "source": {"rancherToken": {"lifetimeSeconds": 3600}},
            "target": {"cloudCredential": {"name": self.cc}},
            "rancher": server(&self.there),
            "schedule": {"jitterPercent": 0, "minimumLeftSeconds": 0},
            "overlapSeconds": OVERLAP,
        });
        for (field, value) in parts {
            spec[*field] = value.clone();
        }
        spec
    }

    /// Token that Rancher's driver would use.
    fn published(&self) -> Result<String> {
        let config: Value = serde_saphyr::from_str(&self.there.content(&self.cc))?;
        Ok(config["users"][0]["user"]["token"].as_str().context("no token")?.to_owned())
    }

    /// Uses a token as Rancher's driver does.
    async fn uses(&self, token: &str) -> Result<()> {
        let trust = Some(self.there.ca_pem());
        let client =
            ServerClient::new(self.there.url(), trust, None).map_err(anyhow::Error::msg)?;
        let url = format!("{}/k8s/clusters/c-m-prod", self.there.url());
        let cluster = client.cluster(&url, trust, None).map_err(anyhow::Error::msg)?;
        cluster.bearer(&SecretText::new(token.to_owned())).await?;
        Ok(())
    }

    /// Reads the credential and uses it during half of the overlap, again and again. Ends with the
    /// first refusal during the overlap.
    async fn consume(&self, uses: &mut u32) -> Result<()> {
        let overlap = Duration::from_secs(OVERLAP);
        loop {
            let read = Instant::now();
            let token = self.published()?;
            while read.elapsed() < overlap / 2 {
                // Ask the stand-in itself: an injected fault or a stopped server is not the token's
                // fault.
                let accepted = self.there.accepts(&token);
                let held = read.elapsed();
                ensure!(accepted || held >= overlap, "refused after {held:?}");
                *uses += 1;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// Waits until the request was carried out.
    async fn rotated(&self, request: &str) -> Result<()> {
        let done = |status: &harvester_guest_operator::api::TokenRotationStatus| {
            status.rotate_request.as_deref() == Some(request)
        };
        self.cluster.says(&format!("request {request} carried out"), done).await.map(drop)
    }

    /// Waits until the rotation has one token only: the published one, alone in its credential.
    /// A failed revocation is retried after two minutes at most.
    async fn one_is_left(&self) -> Result<()> {
        eventually(LATER, "a single token", async || {
            let status = self.cluster.status().await?;
            let is_at_rest = status.pending.is_none() && status.previous.is_empty();
            ensure!(is_at_rest, "not at rest: {status:?}");
            let current = status.current.context("none is current")?.name;
            let tokens = self.there.tokens();
            let ours = tokens.iter().filter(|t| t.description.starts_with(&format!("{NAME}-")));
            let ours: Vec<&str> = ours.map(|token| token.description.as_str()).collect();
            ensure!(ours == [current.as_str()], "{ours:?}, not {current}");
            let content = self.there.content(&self.cc);
            ensure!(content.matches("token:").count() == 1, "another token beside it");
            anyhow::Ok(true)
        })
        .await?;
        self.uses(&self.published()?).await.context("the published token")
    }
}
