//! The connection to the API server.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// Connects by the kubeconfig given, else `KUBECONFIG` and the default file, else as a pod.
///
/// The client's own retries are off: they repeat POSTs, and every caller here knows better
/// when a repetition is safe.
pub async fn connect(kubeconfig: Option<&Path>) -> anyhow::Result<Client> {
    let mut config = match kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path)
                .with_context(|| format!("--kubeconfig {}", path.display()))?;
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?
        }
        None => Config::infer().await.context(
            "no way to the API server: give --kubeconfig or KUBECONFIG, or run in a pod",
        )?,
    };
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(3));
    Ok(Client::try_from(config)?)
}
