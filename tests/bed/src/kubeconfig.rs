//! Owns kubeconfigs: their text, and the clients made from them.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::ByteString;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;

/// Renders a kubeconfig with one cluster and one user.
pub(crate) fn render(url: &str, ca_pem: &str, token: &str) -> Result<String> {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "bed", "cluster": {
            "server": url,
            "certificate-authority-data": ByteString(ca_pem.as_bytes().to_vec()),
        }}],
        "users": [{"name": "bed", "user": {"token": token}}],
        "contexts": [{"name": "bed", "context": {"cluster": "bed", "user": "bed"}}],
        "current-context": "bed",
    });
    serde_saphyr::to_string(&config).context("write a kubeconfig")
}

/// Makes a client from a kubeconfig's text. It is set up so that a test that hangs fails soon and
/// by its own cause: a call is sent once (kube's own retry would repeat even a POST), and a silence
/// of 60 s ends a call, an idle watch too.
pub async fn client_from(kubeconfig: &str) -> Result<Client> {
    let parsed = Kubeconfig::from_yaml(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default()).await?;
    config.connect_timeout = Some(Duration::from_secs(30));
    config.read_timeout = Some(Duration::from_mins(1));
    config.reset_reader_on_write = true;
    config.write_timeout = Some(Duration::from_mins(1));
    config.default_retry = false;
    Client::try_from(config).context("make a client")
}
