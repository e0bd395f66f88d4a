//! Rights of agents: in the cluster those that the chart renders, on the machine two capabilities.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use testbed::Chart;
use testbed::net::dhcp::{Kind, Scope};

use super::fixture::{NETWORK, RIGHTS, Site, on_site};

/// Kind, rules and subjects of each document, without its labels.
fn rules(yaml: &str) -> Result<Vec<(String, Value, Value)>> {
    yaml.split("---\n")
        .map(|part| {
            let object: Value = serde_saphyr::from_str(part)?;
            let kind = object["kind"].as_str().context("no kind")?.to_owned();
            Ok((kind, object["rules"].clone(), object["subjects"].clone()))
        })
        .collect()
}

/// An agent without a capability names it and its purpose, instead of failing at the first lease.
#[test]
fn a_capability_that_is_missing_is_named() -> Result<()> {
    for (missing, others) in [("net_admin", "net_raw"), ("net_raw", "net_admin")] {
        let output = Command::new("setpriv")
            .arg(format!("--bounding-set=-{missing}"))
            .arg(env!("CARGO_BIN_EXE_lease-agent"))
            .args(["--network", NETWORK, "--interface", "lo"])
            .output()
            .context("start setpriv, which is in the Debian package util-linux")?;
        let said = String::from_utf8_lossy(&output.stderr).to_uppercase();
        ensure!(!output.status.success(), "it ran without {missing}");
        ensure!(said.contains(&format!("CAPABILITY {}", missing.to_uppercase())), "{said}");
        ensure!(!said.contains(&others.to_uppercase()), "{said}");
    }
    Ok(())
}

/// A crash writes the agent's memory nowhere: not even through a program that receives the kernel's
/// dumps, which still happens at a limit of 0.
#[test]
fn no_core_dump_is_made_of_an_agent() -> Result<()> {
    on_site(Kind::Dnsmasq, Scope::new([10, 77, 0, 1]), async |site: Site| {
        let agent = site.agent().await?;
        let limit = agent.process.core_limit().context("no limits")?;
        ensure!(limit == ("1".to_owned(), "1".to_owned()), "a core dump may have {limit:?}");
        Ok(())
    })
}

/// The fewest rights: with namespaces whose networks request an agent, Leases are not named.
#[tokio::test]
async fn agents_here_have_the_rights_that_the_chart_renders() -> Result<()> {
    let network = format!("leaseAgent.networks[0].network={NETWORK}");
    let options = ["--set", &network, "--set-json", "leaseAgent.namespaces=[]"];
    let chart = Chart::locate().await?.render(&options).await?;
    let rendered = chart.get("rbac/lease-agent.yaml").context("no rights in the chart")?;
    let (rendered, ours) = (rules(rendered)?, rules(RIGHTS)?);
    ensure!(rendered == ours, "{rendered:#?}, and here {ours:#?}");
    Ok(())
}
