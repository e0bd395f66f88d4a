//! Owns a running kube-proxy, which turns Services into packet rules on a node.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::json;

use crate::net::{Netns, program, search_path};
use crate::{Bed, Managed, eventually, tools};

/// Longest time for kube-proxy to find its node and write its first rules.
const START: Duration = Duration::from_mins(4);
/// Longest time for kube-proxy to end. A machine on which many namespaces come and go delays its
/// calls to the kernel.
const STOP: Duration = Duration::from_mins(4);

/// Proxy mode of kube-proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Mode of RKE2, and so of Harvester.
    Iptables,
    /// Mode that Kubernetes recommends.
    Nftables,
}

impl Mode {
    /// Name of the mode for kube-proxy, and of its part of the configuration.
    fn name(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
        }
    }

    /// Program that prints the rules, its arguments, and a chain that the rules contain.
    fn rules(self) -> (&'static str, &'static [&'static str], &'static str) {
        match self {
            Self::Iptables => ("iptables-save", &["-t", "nat"], ":KUBE-SERVICES"),
            Self::Nftables => ("nft", &["list", "table", "ip", "kube-proxy"], "service-ips"),
        }
    }
}

/// kube-proxy in a network namespace of its own. Dropping it kills it; its rules stay until the
/// namespace goes, or until [`KubeProxy::stop`] removes them.
#[derive(Debug)]
pub struct KubeProxy {
    /// The process.
    pub process: Managed,
    host: Netns,
    config: PathBuf,
}

impl KubeProxy {
    /// Starts it for a node, which must exist and have an `InternalIP`, and waits for its first
    /// rules. The bed must be in the same namespace, see [`isolated`](crate::net::isolated).
    pub async fn start(bed: &Bed, host: &Netns, node: &str, mode: Mode) -> Result<Self> {
        let kube_proxy = tools().await?.path("kube-proxy").to_owned();
        for name in ["nft", "iptables"] {
            if let Err(e) = program(name).arg("--version").output() {
                bail!("kube-proxy needs the program `{name}`: `make nets` installs it: {e}");
            }
        }
        let mut config = json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": mode.name(),
            "hostnameOverride": node,
            "clientConnection": {"kubeconfig": bed.kubeconfig()},
            // These settings are global to the machine, not per namespace.
            "conntrack": {
                "maxPerCore": 0, "min": 0,
                "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s",
            },
        });
        // As on nodes: rules follow the first change at once, and later ones after a second.
        config[mode.name()] =
            json!({"masqueradeAll": true, "syncPeriod": "30s", "minSyncPeriod": "1s"});
        let path = bed.dir().join(format!("kube-proxy-{}.json", mode.name()));
        fs::write(&path, config.to_string())?;
        let log = bed.dir().join(format!("kube-proxy-{}.log", mode.name()));
        let config = path.clone();
        let process = host
            .run(move || {
                let mut command = program(&kube_proxy.to_string_lossy());
                command.arg("--config").arg(&path).env("PATH", search_path());
                Managed::spawn(&mut command, log)
            })
            .await?;
        let mut started = Self { process, host: host.clone(), config };
        let (program, args, chain) = mode.rules();
        let ended = eventually(START, "rules of kube-proxy", async || {
            if !started.process.is_running() {
                return Ok(Some(true));
            }
            // The table may not be there yet.
            let rules = host.command(program, args).await.unwrap_or_default();
            anyhow::Ok(rules.contains(chain).then_some(false))
        })
        .await
        .with_context(|| started.process.log())?;
        if ended {
            bail!("kube-proxy ended at once:\n{}", started.process.log());
        }
        Ok(started)
    }

    /// Ends it and removes its rules.
    pub async fn stop(mut self) -> Result<()> {
        self.process.terminate(STOP).await?;
        let kube_proxy = tools().await?.path("kube-proxy").to_owned();
        let config = self.config.to_string_lossy().into_owned();
        let name = kube_proxy.to_string_lossy().into_owned();
        self.host.command(&name, &["--cleanup", "--config", &config]).await?;
        Ok(())
    }
}
