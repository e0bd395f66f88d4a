//! TokenRotations that are due within moments, beside a bare client that makes, publishes and
//! revokes as many tokens and records nothing.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use harvester_guest_operator::api::{LABEL_ROTATION, TokenRotation};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use testbed::{Bed, Operator, Start, eventually, install_credentials};

const ACCOUNT: &str = "guest";
const KEY: &str = "token";
/// Default number of rotations.
pub(crate) const ROTATIONS: usize = 2_000;
/// Concurrency of the floor: that of the operator.
const AT_ONCE: usize = 4;
/// Concurrency of the preparation.
const PREPARE: usize = 24;
const PATIENCE: Duration = Duration::from_mins(45);

/// Times, calls and memory of rotations.
pub(crate) struct Rotations {
    pub(crate) count: usize,
    /// Time of a bare client's four calls for each rotation.
    pub(crate) floor: Duration,
    /// Time from the moment at which the first is due to the last replacement.
    pub(crate) took: Duration,
    /// Publications in each second.
    pub(crate) published: Vec<f64>,
    /// Calls of the API server in each second.
    pub(crate) calls: Vec<f64>,
    pub(crate) failed: f64,
    pub(crate) cpu: Duration,
    pub(crate) peak_rss_mib: f64,
    /// Valid tokens afterwards.
    pub(crate) alive: usize,
}

pub(crate) async fn measure(bed: &Bed, binary: &Path, count: usize) -> Result<Rotations> {
    let client = bed.admin();
    install_credentials(bed).await?;
    println!("{count} tokens, by a bare client");
    each(count, PREPARE, async |n| renew(&client, n, 1).await).await?;
    let began = Instant::now();
    each(count, AT_ONCE, async |n| renew(&client, n, 2).await).await?;
    let floor = began.elapsed();

    // Existing tokens are adopted before the first is due.
    let rotations: Api<TokenRotation> = Api::namespaced(client.clone(), "default");
    each(count, PREPARE, async |n| {
        let rotation = TokenRotation::new(&name(n), serde_json::from_value(spec(n))?);
        rotations.create(&PostParams::default(), &rotation).await?;
        Ok(())
    })
    .await?;
    let options = ["--credential-namespaces", "default"].map(str::to_owned).to_vec();
    let mut operator = Operator::start(bed, binary, Start { options, ..Start::default() }).await?;
    operator.leads().await?;
    eventually(PATIENCE, "adoption of all", async || {
        let adopted = operator.metric("hgo_credential_rotations", &["Current"]).await?;
        anyhow::Ok(adopted >= count as f64)
    })
    .await?;
    let left = DUE_AFTER.checked_sub(began.elapsed());
    tokio::time::sleep(left.context("some were due before all were adopted")?).await;

    println!("{count} that are due within {floor:.0?}");
    let cpu = operator.process.cpu_time().unwrap_or_default();
    let began = Instant::now();
    let (published, calls) = seconds(&operator, count).await?;
    let took = began.elapsed();
    // The last ones are revoked after their overlap of one second.
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "default");
    let made = ListParams::default().labels(LABEL_ROTATION);
    let measured = Rotations {
        count,
        floor,
        took,
        published,
        calls,
        failed: operator.metric("hgo_credential_failures_total", &[]).await?,
        cpu: operator.process.cpu_time().unwrap_or_default().saturating_sub(cpu),
        peak_rss_mib: operator.process.peak_rss_kib().unwrap_or(0) as f64 / 1024.0,
        alive: eventually(PATIENCE, "end of all that were replaced", async || {
            let alive = secrets.list_metadata(&made).await?.items.len();
            anyhow::Ok((alive <= count).then_some(alive))
        })
        .await?,
    };
    each(count, PREPARE, async |n| {
        rotations.delete(&name(n), &DeleteParams::default()).await?;
        Ok(())
    })
    .await?;
    eventually(PATIENCE, "end of all TokenRotations", async || {
        rotations.list_metadata(&ListParams::default()).await.map(|list| list.items.is_empty())
    })
    .await?;
    operator.process.terminate(Duration::from_secs(30)).await?;
    for secret in secrets.list_metadata(&ListParams::default()).await? {
        secrets.delete(&secret.name_any(), &DeleteParams::default()).await?;
    }
    Ok(measured)
}

/// Lifetime of the bare client's tokens in seconds. They are due when a hundredth of it has passed.
const LIFE: i64 = 6 * 3_600;
const DUE_AFTER: Duration = Duration::from_secs(216);

fn name(n: usize) -> String {
    format!("due-{n}")
}

/// Spec of a rotation whose next token is not due for hours.
fn spec(n: usize) -> Value {
    json!({
        "source": {"serviceAccountToken":
            {"serviceAccountName": ACCOUNT, "lifetimeSeconds": 30 * 86_400}},
        "target": {"secret": {"name": name(n), "key": KEY}},
        "schedule": {"renewWhenLeftPercent": 99, "jitterPercent": 0, "minimumLeftSeconds": 0},
        "overlapSeconds": 0,
    })
}

/// Makes the fewest calls that a replacement takes: the object that the token is bound to, the
/// token, its publication, and the revocation of the previous token.
async fn renew(client: &Client, n: usize, round: usize) -> Result<()> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "default");
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    let bound_secret = |round: usize| format!("bound-{n}-{round}");
    let object = serde_json::from_value(json!({"metadata": {"name": bound_secret(round)}}))?;
    let made = secrets.create(&PostParams::default(), &object).await?;
    let request: TokenRequest = serde_json::from_value(json!({"spec": {
        "audiences": [], "expirationSeconds": LIFE,
        "boundObjectRef": {"apiVersion": "v1", "kind": "Secret", "name": bound_secret(round), "uid": made.uid()},
    }}))?;
    let answer = accounts.create_token_request(ACCOUNT, &PostParams::default(), &request).await?;
    let token = answer.status.and_then(|status| json!(status)["token"].as_str().map(str::to_owned));
    let content =
        json!({"metadata": {"name": name(n)}, "stringData": {KEY: token.context("no token")?}});
    if round == 1 {
        secrets.create(&PostParams::default(), &serde_json::from_value(content)?).await?;
        return Ok(());
    }
    secrets.patch(&name(n), &PatchParams::default(), &Patch::Merge(content)).await?;
    secrets.delete(&bound_secret(round - 1), &DeleteParams::default()).await?;
    Ok(())
}

async fn each(count: usize, at_once: usize, act: impl AsyncFn(usize) -> Result<()>) -> Result<()> {
    futures::stream::iter(0..count).map(Ok).try_for_each_concurrent(at_once, |n| act(n)).await
}

/// Publications and calls in each second until all are replaced.
async fn seconds(operator: &Operator, count: usize) -> Result<(Vec<f64>, Vec<f64>)> {
    let published = async || operator.metric("hgo_credential_publications_total", &[]).await;
    let called = async || operator.metric("hgo_api_requests_total", &[]).await;
    let mut clock = tokio::time::interval(Duration::from_secs(1));
    let (mut last, mut each) = ((published().await?, called().await?), (Vec::new(), Vec::new()));
    let began = Instant::now();
    while last.0 < count as f64 {
        ensure!(began.elapsed() < PATIENCE, "{} of {count} after {PATIENCE:?}", last.0);
        clock.tick().await;
        let now = (published().await?, called().await?);
        each.0.push(now.0 - last.0);
        each.1.push(now.1 - last.1);
        last = now;
    }
    Ok(each)
}
