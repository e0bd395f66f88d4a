//! The rights that agents have in these tests are the chart's.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use testbed::Chart;

use super::fixture::{NETWORK, RIGHTS};

/// Everything but who made it.
fn rules(yaml: &str) -> Result<Vec<(String, Value, Value)>> {
    yaml.split("---\n")
        .map(|part| {
            let object: Value = serde_saphyr::from_str(part)?;
            let kind = object["kind"].as_str().context("no kind")?.to_owned();
            Ok((kind, object["rules"].clone(), object["subjects"].clone()))
        })
        .collect()
}

#[tokio::test]
async fn agents_here_have_the_rights_that_the_chart_renders() -> Result<()> {
    let network = format!("leaseAgent.networks[0].network={NETWORK}");
    let chart = Chart::locate().await?.render(&["--set", &network]).await?;
    let rendered = chart.get("rbac/lease-agent.yaml").context("no rights in the chart")?;
    let (rendered, ours) = (rules(rendered)?, rules(RIGHTS)?);
    ensure!(rendered == ours, "{rendered:#?}, and here {ours:#?}");
    Ok(())
}
