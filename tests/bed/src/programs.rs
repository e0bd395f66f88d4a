//! Programs that the testbed runs. `xtask` finds or builds them.

use anyhow::Result;
use tokio::task::spawn_blocking;
use xtask::Programs;

/// etcd, kube-apiserver, kube-controller-manager and kubectl, built first if they are missing.
pub async fn control_plane() -> Result<Programs> {
    spawn_blocking(control_plane_blocking).await?
}

pub(crate) fn control_plane_blocking() -> Result<Programs> {
    xtask::control_plane()?.get("control plane")
}

/// Programs for tests only, built first if they are missing: kube-proxy, kube-scheduler, `helm3`,
/// `helm4`, kubeconform, prometheus and promtool.
pub async fn tools() -> Result<Programs> {
    spawn_blocking(|| xtask::tools()?.get("test tools")).await?
}
