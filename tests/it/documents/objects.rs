//! Every object that a page shows is one that a real API server takes, with the operator's admission. What
//! is no object is values of the chart.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;
use testbed::{Chart, Start, eventually};

use super::blocks::of_pages;
use crate::support::{Cluster, SOON};

/// Kinds of files that programs read, and no API server serves.
const FILES: [&str; 1] = ["AdmissionConfiguration"];

#[tokio::test(flavor = "multi_thread")]
async fn every_object_that_is_shown_is_accepted() -> Result<()> {
    let cluster = Cluster::start().await?;
    for name in ["guests", "rancher-credentials", "cattle-global-data"] {
        let namespace = format!("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {name}\n");
        cluster.bed.apply_yaml(&namespace).await?;
    }
    let admission = Some("https://127.0.0.1:0".to_owned());
    let operator = cluster.standby(Start { admission, ..Start::default() }).await?;
    operator.leads().await?;
    // From when on a pool of nonsense is refused by what only the operator knows.
    let wrong = "apiVersion: loadbalancer.harvesterhci.io/v1beta1\nkind: IPPool\nmetadata:\n  name: wrong\n\
                 spec:\n  ranges: [{subnet: 127.0.0.0/8}]\n";
    eventually(SOON, "admission", async || anyhow::Ok(cluster.bed.dry_run(wrong).await.is_err()))
        .await?;
    let mut count = 0;
    for block in of_pages().iter().filter(|block| block.language == "yaml") {
        for document in block.text.split("---\n") {
            let value: Value = serde_saphyr::from_str(document).context(block.place.clone())?;
            let Some(kind) = value["kind"].as_str() else { continue };
            if !FILES.contains(&kind) {
                cluster.bed.dry_run(document).await.with_context(|| block.place.clone())?;
                count += 1;
            }
        }
    }
    ensure!(count >= 15, "{count} objects");
    Ok(())
}

#[tokio::test]
async fn the_chart_takes_every_value_that_is_shown() -> Result<()> {
    let chart = Chart::locate().await?;
    let dir = TempDir::new()?;
    let file = dir.path().join("values.yaml");
    let path = file.to_str().context("the path is not UTF-8")?;
    let mut count = 0;
    for block in of_pages().iter().filter(|block| block.language == "yaml") {
        if block.text.contains("kind: ") {
            continue;
        }
        fs::write(&file, &block.text)?;
        chart.render(&["--values", path]).await.with_context(|| block.place.clone())?;
        count += 1;
    }
    ensure!(count >= 4, "{count} blocks");
    Ok(())
}
