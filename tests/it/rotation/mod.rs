//! Credentials that the operator's own process replaces on a real API server.

mod clock;
mod crash;
mod fixture;
mod input;
mod life;
mod people;
mod rancher;
mod rights;
mod strict;
mod watched;

use anyhow::Result;
use serde_json::json;

pub(crate) use fixture::start;

use crate::support::Cluster;

/// Creates two TokenRotations that only watch: a token, and the credentials of a Rancher.
pub(crate) async fn watched(cluster: &Cluster) -> Result<testbed::Rancher> {
    let token = cluster.bed.service_account_token("default", "default").await?;
    cluster.put(&token).await?;
    let target = json!({"secret": {"name": fixture::NAME, "key": fixture::KEY}});
    cluster.rotation(json!({"target": target})).await?;
    rancher::watched(cluster).await
}
