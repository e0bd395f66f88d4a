//! Owns a running lease agent, and what the operator makes agents from.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::net::Netns;
use crate::operator::{START, clear_options, logged};
use crate::{Managed, eventually, http_get, repository};

/// Time in which an agent gives its Lease back and removes its links.
const END: Duration = Duration::from_mins(1);
/// `CAP_NET_ADMIN` and `CAP_NET_RAW`, as the kernel writes a set of capabilities.
const CAPABILITIES: &str = "0000000000003000";

/// The operator's options for the chart's agent template.
pub fn agent_template() -> Result<[String; 2]> {
    let text = fs::read_to_string(repository().join("config/manager/deployment.yaml"))?;
    let deployment: Value = serde_saphyr::from_str(&text)?;
    let env = deployment["spec"]["template"]["spec"]["containers"][0]["env"].as_array();
    let given = env.into_iter().flatten().find(|variable| variable["name"] == "HGO_DHCP_AGENT");
    let given = given.and_then(|variable| variable["value"].as_str()).context("no template")?;
    Ok(["--dhcp-agent".to_owned(), given.to_owned()])
}

/// A process of the agent. Dropping it kills it and removes its log.
#[derive(Debug)]
pub struct LeaseAgent {
    /// The process, to kill, stop or measure.
    pub process: Managed,
    /// Address of its metrics and probes, on the loopback of its network.
    pub http: SocketAddr,
}

impl LeaseAgent {
    /// Starts it and waits until it listens; in the network of the caller, or in a namespace.
    pub async fn start(
        program: &Path,
        kubeconfig: &Path,
        args: &[&str],
        within: Option<&Netns>,
    ) -> Result<Self> {
        let log = tempfile::Builder::new().prefix("hgo-agent-").suffix(".log").tempfile()?;
        let (_, log) = log.keep()?;
        let mut command = Command::new(program);
        clear_options(&mut command);
        command
            .args(["--log", "info,harvester_guest_operator=debug"])
            .args(["--http-addr", "127.0.0.1:0", "--kubeconfig"])
            .arg(kubeconfig)
            .args(args);
        let process = match within {
            Some(network) => network.run(move || Managed::spawn(&mut command, log)).await?,
            None => Managed::spawn(&mut command, log)?,
        };
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut agent = Self { process, http: nowhere };
        agent.http = eventually(START, "listening agent", async || {
            match logged(&agent.process.log(), " address=") {
                Some(address) => Some(Some(address)),
                None if !agent.process.is_running() => Some(None),
                None => None,
            }
        })
        .await?
        .with_context(|| format!("the agent ended at once:\n{}", agent.process.log()))?;
        let status = fs::read_to_string(format!("/proc/{}/status", agent.process.pid()))?;
        for set in ["CapPrm:\t", "CapEff:\t"] {
            let held = status.lines().find_map(|line| line.strip_prefix(set));
            ensure!(held == Some(CAPABILITIES), "{set}{held:?}");
        }
        Ok(agent)
    }

    /// Waits until it is active for the network.
    pub async fn speaks(&self) -> Result<()> {
        eventually(START, "active agent", async || {
            self.process.log().contains("the list of DHCPLeases is complete")
        })
        .await
    }

    /// Value of a metric, or the sum of its series; with labels, that series.
    pub async fn metric(&self, name: &str) -> Result<f64> {
        let (_, text) = http_get(self.http, "/metrics").await?;
        let lines = text.lines().filter(|line| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
        });
        Ok(lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
    }

    /// Resident memory of its own, and resident pages of its program.
    pub fn memory(&self) -> Result<String> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.pid()))?;
        let lines = status.lines().filter(|line| line.starts_with("Rss"));
        Ok(lines.map(|line| line.replace('\t', " ")).collect::<Vec<_>>().join(", "))
    }

    /// Ends it as a kubelet does.
    pub async fn stop(&mut self) -> Result<()> {
        let status = self.process.terminate(END).await?;
        ensure!(status.success(), "{status}:\n{}", self.process.log());
        Ok(())
    }
}

impl Drop for LeaseAgent {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("---- the agent ----\n{}", self.process.log());
        }
        let _ = fs::remove_file(self.process.log_path());
    }
}
