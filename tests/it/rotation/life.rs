//! Credentials that are replaced again and again, while a consumer uses them all the time.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::ListParams;
use serde_json::json;

use super::fixture::{Consumer, Versions, cluster, spec, start};
use crate::support::{Cluster, shows};

const ROTATIONS: i64 = 20;
const OVERLAP: Duration = Duration::from_secs(8);

/// No token appears in a log at trace level, a metric, an Event or a status.
#[tokio::test(flavor = "multi_thread")]
async fn no_call_fails_through_twenty_rotations() -> Result<()> {
    let cluster = cluster().await?;
    let mut start = start();
    start.log = Some("trace".into());
    let operator = cluster.standby(start).await?;
    operator.leads().await?;
    let versions = Versions::of(&cluster);
    cluster.put(&cluster.kubeconfig()).await?;
    cluster.rotation(spec(&[("overlapSeconds", json!(OVERLAP.as_secs()))])).await?;
    cluster.published(1).await?;
    let consumer = Consumer::default();
    let rotate = async {
        for number in 2..=ROTATIONS + 1 {
            cluster.annotate("rotate", &number.to_string()).await?;
            cluster.published(number).await?;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        end = consumer.run(&cluster, OVERLAP) => end?,
        end = rotate => end?,
    }
    let calls = consumer.calls.get();
    let mut tokens = consumer.tokens.take();
    println!("{calls} calls through {ROTATIONS} rotations, {} tokens, none refused", tokens.len());
    ensure!(calls > 20, "the consumer has hardly called");
    cluster.one_is_left().await?;
    let now = cluster.token().await?;
    for old in tokens.iter().filter(|token| **token != now) {
        cluster.refused(old).await?;
    }
    shows(&operator, "hgo_credential_publications_total", &[], |n| n >= f64::from(20)).await?;
    tokens.push(now);
    secret(&cluster, &operator, &versions.text().await?, &tokens).await
}

/// Checks that no token, and no part that makes one, is in Events, statuses, metrics or the log.
async fn secret(
    cluster: &Cluster,
    operator: &testbed::Operator,
    rotations: &str,
    tokens: &[String],
) -> Result<()> {
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), "default");
    let events = serde_json::to_string(&events.list(&ListParams::default()).await?.items)?;
    let (_, metrics) = operator.get("/metrics").await?;
    let log = operator.process.log();
    ensure!(log.contains("TRACE"), "the log is not at its most talkative");
    let limit = operator.process.core_limit().context("no limits")?;
    ensure!(limit == ("1".to_owned(), "1".to_owned()), "a core dump may have {limit:?}");
    for (place, text) in
        [("events", events.as_str()), ("statuses", rotations), ("metrics", &metrics), ("log", &log)]
    {
        ensure!(!text.is_empty(), "no {place}");
        for token in tokens {
            // Many tokens share header and payload. The signature makes a token work.
            for part in token.split('.').skip(1) {
                ensure!(!text.contains(part), "a token is in the {place}");
            }
        }
    }
    Ok(())
}

/// The schedule alone replaces credentials, as early as a schedule can be.
#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_replaces_them_by_itself() -> Result<()> {
    let cluster = cluster().await?;
    let operator = cluster.standby(start()).await?;
    operator.leads().await?;
    let early = json!({"renewWhenLeftPercent": 99, "jitterPercent": 0});
    let target = json!({"secret": {"name": "guest", "key": "kubeconfig"}});
    cluster.rotation(spec(&[("schedule", early), ("target", target)])).await?;
    // The Secret does not exist yet. A token alone may be written to a new one.
    let first = cluster.published(1).await?;
    cluster.published(3).await?;
    let status = cluster.status().await?;
    ensure!(status.last_rotation > first.last_rotation, "{status:?}");
    cluster.works(&cluster.token().await?).await
}

/// Token Secrets, one per generation. Such tokens do not expire.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_in_secrets_are_replaced_too() -> Result<()> {
    let cluster = cluster().await?;
    let operator = cluster.standby(start()).await?;
    operator.leads().await?;
    cluster.put(&cluster.kubeconfig()).await?;
    let source = json!({"serviceAccountTokenSecret": {"serviceAccountName": "guest"}});
    cluster.rotation(spec(&[("source", source)])).await?;
    let first = cluster.published(1).await?;
    ensure!(first.expires_at.is_none() && first.next_rotation.is_some(), "{first:?}");
    let old = cluster.token().await?;
    cluster.works(&old).await?;
    cluster.annotate("rotate", "1").await?;
    cluster.published(2).await?;
    cluster.one_is_left().await?;
    cluster.refused(&old).await
}
