//! Owns a running kube-proxy: the node that turns Services into packets' ways.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::json;

use crate::net::{Netns, program, search_path};
use crate::{Bed, Managed, eventually, tools};

/// It looks for its node and builds its first rules.
const START: Duration = Duration::from_mins(4);

/// kube-proxy in nftables mode in a namespace made for it. Dropping it kills it; its rules stay
/// until the namespace goes.
#[derive(Debug)]
pub struct KubeProxy {
    /// The process.
    pub process: Managed,
}

impl KubeProxy {
    /// Starts it for a node, which must exist and have an `InternalIP`, and waits for its first
    /// rules. The bed must be in the same namespace, see [`isolated`](crate::net::isolated).
    pub async fn start(bed: &Bed, host: &Netns, node: &str) -> Result<Self> {
        let kube_proxy = tools().await?.path("kube-proxy").to_owned();
        if let Err(e) = program("nft").arg("--version").output() {
            bail!("kube-proxy needs the program `nft`, Debian package nftables: {e}");
        }
        let config = json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "hostnameOverride": node,
            "clientConnection": {"kubeconfig": bed.kubeconfig()},
            "nftables": {"masqueradeAll": true, "syncPeriod": "30s", "minSyncPeriod": "100ms"},
            // These belong to the machine, not to the namespace.
            "conntrack": {
                "maxPerCore": 0, "min": 0,
                "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s",
            },
        });
        let path = bed.dir().join("kube-proxy.json");
        fs::write(&path, config.to_string())?;
        let log = bed.dir().join("kube-proxy.log");
        let process = host
            .run(move || {
                let mut command = program(&kube_proxy.to_string_lossy());
                command.arg("--config").arg(&path).env("PATH", search_path());
                Managed::spawn(&mut command, log)
            })
            .await?;
        let mut started = Self { process };
        let ended = eventually(START, "rules of kube-proxy", async || {
            if !started.process.is_running() {
                return Ok(Some(true));
            }
            let chains = host.command("nft", &["list", "table", "ip", "kube-proxy"]).await?;
            anyhow::Ok(chains.contains("service-ips").then_some(false))
        })
        .await
        .with_context(|| started.process.log())?;
        if ended {
            bail!("kube-proxy ended at once:\n{}", started.process.log());
        }
        Ok(started)
    }
}
