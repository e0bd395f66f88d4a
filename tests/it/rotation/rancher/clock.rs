//! The operator's clock is five minutes off. Rancher's clock counts.
//!
//! A token is due four minutes after it was issued. By a clock that is ahead it would be due at
//! once, again and again; by a clock that is behind it would be due only after its end.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::api::TokenRotationStatus;
use harvester_guest_operator::domain::credentials::timestamp::parse_rfc3339;
use serde_json::json;
use testbed::rancher::Version;
use testbed::{Call, eventually};

use super::Site;
use crate::rotation::clock::{DUE, is_no_loop, is_timed, operator, schedule};
use crate::support::SOON;

const MINUTES: i64 = 5;
const ROTATIONS: u32 = 3;
/// Times that a token is due by Rancher's clock: longer in total than a token lives.
const TURNS: u32 = 3;

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_five_minutes_ahead_of_ranchers_does_no_harm() -> Result<()> {
    off(MINUTES).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_five_minutes_behind_ranchers_does_no_harm() -> Result<()> {
    off(-MINUTES).await
}

async fn off(minutes: i64) -> Result<()> {
    let site = Site::new(Version::Main).await?;
    let Some(operator) = operator(&site.cluster, minutes).await? else { return Ok(()) };
    operator.leads().await?;
    let began = Instant::now();
    let source = json!({"rancherToken": {"lifetimeSeconds": 600}});
    let parts = [("source", source), ("schedule", schedule(60))];
    site.cluster.rotation(site.spec(&parts)).await?;
    let mut uses = 0;
    let rotate = async {
        for number in 1..=ROTATIONS {
            let request = number.to_string();
            site.cluster.annotate("rotate", &request).await?;
            site.rotated(&request).await?;
            is_timed(&site.cluster.status().await?, began.elapsed())?;
            is_no_loop(&operator, number, began.elapsed()).await?;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        end = site.consume(&mut uses) => end?,
        end = rotate => end?,
    }
    println!("{minutes} minutes: {uses} uses, none refused");
    site.one_is_left().await?;
    is_calm(&site).await?;
    for turn in 1..=TURNS {
        let serial = site.cluster.status().await?.serial;
        site.there.advance(Duration::from_secs(DUE + 1));
        site.poke(&format!("turn {turn}")).await?;
        site.cluster.published(serial + 1).await?;
        site.uses(&site.published()?).await?;
    }
    site.one_is_left().await
}

/// Whether the call is the list of tokens, the first call of each observation of Rancher.
fn is_list(call: &Call) -> bool {
    call.method == "GET" && call.path == "/v3/tokens"
}

/// Checks that reconciles create no token while none is due.
async fn is_calm(site: &Site) -> Result<()> {
    let lists = || site.there.calls().iter().filter(|r| is_list(&r.call)).count();
    let (before, first) = (site.cluster.status().await?, lists());
    let mut number = 0;
    // The reconcile in progress may have begun before, and the last one has not ended.
    eventually(SOON, "another reconcile", async || {
        number += 1;
        site.poke(&format!("look {number}")).await?;
        anyhow::Ok(lists() >= first + 3)
    })
    .await?;
    let after = site.cluster.status().await?;
    let due = |status: &TokenRotationStatus| parse_rfc3339(status.next_rotation.as_deref()?);
    let is_due = due(&before).context("it is never due")? <= site.there.now() / 1000;
    ensure!(is_due || after.serial == before.serial, "issued again: {before:#?}, {after:#?}");
    Ok(())
}
