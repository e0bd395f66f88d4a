//! Owns a running kube-proxy: the node that turns Services into packets' ways.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::json;

use crate::net::{Netns, program, search_path};
use crate::{Bed, Managed, eventually, tools};

/// It looks for its node and builds its first rules.
const START: Duration = Duration::from_mins(4);
/// Until it has ended. A machine on which many namespaces come and go holds its calls to the kernel up.
const STOP: Duration = Duration::from_mins(4);

/// How kube-proxy writes its rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// What RKE2, and so Harvester, has.
    Iptables,
    /// What Kubernetes recommends.
    Nftables,
}

impl Mode {
    /// As kube-proxy spells it, and as its configuration calls the part about it.
    fn name(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
        }
    }

    /// A program that prints the rules, its arguments, and a chain that is among them.
    fn rules(self) -> (&'static str, &'static [&'static str], &'static str) {
        match self {
            Self::Iptables => ("iptables-save", &["-t", "nat"], ":KUBE-SERVICES"),
            Self::Nftables => ("nft", &["list", "table", "ip", "kube-proxy"], "service-ips"),
        }
    }
}

/// kube-proxy in a namespace made for it. Dropping it kills it; its rules stay until the namespace
/// goes, or [`KubeProxy::stop`] takes them away.
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
            // These belong to the machine, not to the namespace.
            "conntrack": {
                "maxPerCore": 0, "min": 0,
                "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s",
            },
        });
        // As nodes have it: rules follow the first change at once, and later ones after a second.
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

    /// Ends it and takes its rules away.
    pub async fn stop(mut self) -> Result<()> {
        self.process.terminate(STOP).await?;
        let kube_proxy = tools().await?.path("kube-proxy").to_owned();
        let config = self.config.to_string_lossy().into_owned();
        let name = kube_proxy.to_string_lossy().into_owned();
        self.host.command(&name, &["--cleanup", "--config", &config]).await?;
        Ok(())
    }
}
