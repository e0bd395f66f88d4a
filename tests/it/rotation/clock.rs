//! An operator on a machine whose clock is five minutes ahead or behind. The issuer's clock
//! decides, so the error does no harm: no credential expires unreplaced, none is created early, and
//! both work during the whole overlap.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use harvester_guest_operator::api::TokenRotationStatus;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use testbed::{Operator, Start};

use super::fixture::{Consumer, KEY, NAME, cluster, spec, start};
use crate::support::Cluster;

/// libfaketime shifts the clock. `make test` installs it; without it the tests are skipped.
const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";
const MINUTES: i64 = 5;
const OVERLAP: u64 = 8;
const ROTATIONS: u32 = 4;
/// Seconds after which a token of ten minutes is due: less than the error of the clock.
pub(super) const DUE: u64 = 240;

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_five_minutes_ahead_does_no_harm() -> Result<()> {
    off(MINUTES).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_five_minutes_behind_does_no_harm() -> Result<()> {
    off(-MINUTES).await
}

async fn off(minutes: i64) -> Result<()> {
    let cluster = cluster().await?;
    let Some(operator) = operator(&cluster, minutes).await? else { return Ok(()) };
    operator.leads().await?;
    let began = Instant::now();
    // There is no Secret yet from which the server's time could be read.
    let target = json!({"secret": {"name": NAME, "key": KEY}});
    let parts =
        [("target", target), ("schedule", schedule(60)), ("overlapSeconds", json!(OVERLAP))];
    cluster.rotation(spec(&parts)).await?;
    cluster.published(1).await?;
    let consumer = Consumer::default();
    let rotate = async {
        for number in 1..=ROTATIONS {
            let request = number.to_string();
            cluster.annotate("rotate", &request).await?;
            let done = |s: &TokenRotationStatus| s.rotate_request.as_ref() == Some(&request);
            let status = cluster.says("a rotation", done).await?;
            is_timed(&status, began.elapsed())?;
            is_no_loop(&operator, 1 + number, began.elapsed()).await?;
        }
        // And by the schedule alone, six seconds after the token was issued.
        let serial = cluster.status().await?.serial;
        reschedule(&cluster, 99).await?;
        let status = cluster.published(serial + 2).await?;
        is_timed(&status, began.elapsed())?;
        reschedule(&cluster, 60).await
    };
    tokio::select! {
        end = consumer.run(&cluster, Duration::from_secs(OVERLAP)) => end?,
        end = rotate => end?,
    }
    println!("{minutes} minutes: {} calls, none refused", consumer.calls.get());
    cluster.one_is_left().await
}

/// Operator on a machine whose clock is off by `minutes`. None where libfaketime is missing.
pub(super) async fn operator(cluster: &Cluster, minutes: i64) -> Result<Option<Operator>> {
    if !Path::new(LIBRARY).exists() {
        println!("skipped: there is no {LIBRARY}");
        return Ok(None);
    }
    let skew = format!("{minutes:+}m");
    let variables = [
        ("LD_PRELOAD", LIBRARY),
        ("FAKETIME", skew.as_str()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec();
    let before = Utc::now();
    let operator = cluster.standby(Start { variables, ..start() }).await?;
    let log = operator.process.log();
    let first = log.split_whitespace().next().context("an empty log")?;
    let said = DateTime::parse_from_rfc3339(first).context("the log does not begin with a time")?;
    let (skew, second) = (TimeDelta::minutes(minutes), TimeDelta::seconds(1));
    let (from, to) = (before + skew - second, Utc::now() + skew + second);
    ensure!(from <= said && said <= to, "{said} is not off by {minutes} minutes");
    Ok(Some(operator))
}

/// Schedule that is due when this percentage of the lifetime is left.
pub(super) fn schedule(left: u32) -> Value {
    json!({"renewWhenLeftPercent": left, "minimumLeftSeconds": 0, "jitterPercent": 0})
}

async fn reschedule(cluster: &Cluster, left: u32) -> Result<()> {
    let patch = Patch::Merge(json!({"spec": {"schedule": schedule(left)}}));
    cluster.rotations().patch(NAME, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Checks that `lastRotation` is a time of the clock that signed the credential.
pub(super) fn is_timed(status: &TokenRotationStatus, elapsed: Duration) -> Result<()> {
    let seconds = |text: &str| DateTime::parse_from_rfc3339(text).map(|at| at.timestamp());
    let issued = &status.current.as_ref().context("none is current")?.issued_at;
    let published = status.last_rotation.as_ref().context("none was published")?;
    let between = seconds(published)? - seconds(issued)?;
    // Whole seconds are cut off.
    let most = i64::try_from(elapsed.as_secs())? + 2;
    ensure!((-2..=most).contains(&between), "issued at {issued}, published at {published}");
    Ok(())
}

/// Checks that only requested and due credentials were published.
pub(super) async fn is_no_loop(operator: &Operator, asked: u32, elapsed: Duration) -> Result<()> {
    let published = operator.metric("hgo_credential_publications_total", &[]).await?;
    let due = u32::try_from(elapsed.as_secs() / DUE)?;
    ensure!(published <= f64::from(asked + due), "{published} publications for {asked} requests");
    Ok(())
}
