//! The same with a Rancher: its clock counts, and not the operator's, which is five minutes off.

use std::time::Instant;

use anyhow::Result;
use serde_json::json;
use testbed::rancher::Version;

use super::Site;
use crate::rotation::clock::{is_no_loop, operator, schedule};

const MINUTES: i64 = 5;
const ROTATIONS: u32 = 3;

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_five_minutes_ahead_of_ranchers_harms_nobody() -> Result<()> {
    off(MINUTES).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_five_minutes_behind_ranchers_harms_nobody() -> Result<()> {
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
            is_no_loop(&operator, number, began.elapsed()).await?;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        end = site.consume(&mut uses) => end?,
        end = rotate => end?,
    }
    println!("{minutes} minutes: {uses} uses, none refused");
    site.one_is_left().await
}
