//! A kubeconfig that is only watched: each way to authenticate, and its expiry where that can be
//! known.

use anyhow::{Result, ensure};
use k8s_openapi::ByteString;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use super::fixture::{KEY, NAME, cluster, start};
use crate::support::shows;

/// Client certificate that expires at the beginning of that year.
fn certificate(year: i32) -> Result<ByteString> {
    let mut params = rcgen::CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(rcgen::DnType::CommonName, "system:admin");
    params.not_before = rcgen::date_time_ymd(2001, 1, 1);
    params.not_after = rcgen::date_time_ymd(year, 1, 1);
    let pem = params.self_signed(&rcgen::KeyPair::generate()?)?.pem();
    Ok(ByteString(pem.into_bytes()))
}

fn kubeconfig(year: i32) -> Result<String> {
    let mut config: Value = json!({"apiVersion": "v1", "kind": "Config"});
    config["users"] = json!([
        {"name": "admin", "user": {"client-certificate-data": certificate(year)?}},
        {"name": "rancher", "user": {"exec": {"command": "rancher"}}},
    ]);
    Ok(config.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_client_certificate_is_reported_with_its_user() -> Result<()> {
    let cluster = cluster().await?;
    let operator = cluster.standby(start()).await?;
    operator.leads().await?;
    cluster.put(&kubeconfig(2002)?).await?;
    let target = json!({"secret": {"name": NAME, "key": KEY}});
    cluster.rotation(json!({"target": target})).await?;
    let message = cluster.reason("Expiring", "Expired").await?;
    ensure!(message.contains("\"admin\" expired at 2002-01-01T00:00:00Z"), "{message}");
    let message = cluster.reason("Ready", "WatchedInPart").await?;
    ensure!(message.contains("the expiry of 1 is unknown: see"), "{message}");
    let status = cluster.status().await?;
    ensure!(status.watched.len() == 2 && status.watched[0].name == "system:admin", "{status:#?}");
    let unknown = status.watched[1].unknown.clone().unwrap_or_default();
    ensure!(status.watched[1].user == "rancher" && unknown.contains("exec"), "{unknown}");
    let name = "hgo_credential_watched_overdue";
    shows(&operator, name, &["credential=\"admin\""], |value| value == 1.0).await?;

    cluster.put(&kubeconfig(2999)?).await?;
    cluster.reason("Expiring", "TimeLeft").await?;
    shows(&operator, name, &["credential=\"admin\""], |value| value == 0.0).await?;
    cluster.guest_secrets().delete(NAME, &DeleteParams::default()).await?;
    let message = cluster.reason("Ready", "TargetUnfit").await?;
    ensure!(message.contains("no Secret"), "{message}");
    Ok(())
}
