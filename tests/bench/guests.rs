//! Steps of guests: create, wait, delete. The same client drives the operator and the floor.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use harvester_guest_operator::api::{IPPool, LoadBalancer};
use kube::api::{DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use testbed::eventually;

/// Guests that act at the same time.
pub(crate) const AT_ONCE: usize = 24;
const PATIENCE: Duration = Duration::from_mins(5);

/// LoadBalancers of the run.
pub(crate) fn lbs(client: &Client) -> Api<LoadBalancer> {
    Api::namespaced(client.clone(), "default")
}

pub(crate) fn lb(index: usize) -> Result<LoadBalancer> {
    Ok(serde_json::from_value(json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1",
        "kind": "LoadBalancer",
        "metadata": {"name": format!("kubernetes-default-web-{index:08}"), "namespace": "default"},
        "spec": {"workloadType": "cluster", "ipam": "pool"},
    }))?)
}

pub(crate) async fn pool(client: &Client, name: &str, subnet: &str) -> Result<()> {
    let pool: Value = json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1beta1",
        "kind": "IPPool",
        "metadata": {"name": name},
        "spec": {
            "ranges": [{"subnet": subnet}],
            "selector": {"scope": [{"project": "*", "namespace": "*", "guestCluster": "*"}]},
        },
    });
    let api: Api<IPPool> = Api::all(client.clone());
    api.create(&PostParams::default(), &serde_json::from_value(pool)?).await?;
    Ok(())
}

pub(crate) async fn delete_pool(client: &Client, name: &str) -> Result<()> {
    let api: Api<IPPool> = Api::all(client.clone());
    api.delete(name, &DeleteParams::default()).await?;
    eventually(PATIENCE, "deletion of the pool", async || {
        api.get_opt(name).await.map(|p| p.is_none())
    })
    .await
}

pub(crate) async fn create(client: &Client, count: usize) -> Result<()> {
    let api = lbs(client);
    futures::stream::iter(0..count)
        .map(Ok)
        .try_for_each_concurrent(AT_ONCE, |index| {
            let api = &api;
            async move {
                api.create(&PostParams::default(), &lb(index)?).await?;
                anyhow::Ok(())
            }
        })
        .await
}

pub(crate) async fn delete_all(client: &Client, count: usize) -> Result<()> {
    let api = lbs(client);
    futures::stream::iter(0..count)
        .map(Ok)
        .try_for_each_concurrent(AT_ONCE, |index| {
            let api = &api;
            async move {
                api.delete(&lb(index)?.name_any(), &DeleteParams::default()).await?;
                anyhow::Ok(())
            }
        })
        .await
}

pub(crate) async fn wait_until_gone(client: &Client) -> Result<()> {
    let api: Api<PartialObjectMeta<LoadBalancer>> = Api::namespaced(client.clone(), "default");
    let one = ListParams::default().limit(1);
    eventually(PATIENCE, "deletion of all", async || {
        api.list(&one).await.map(|l| l.items.is_empty())
    })
    .await
}

pub(crate) async fn all_distinct(client: &Client, count: usize) -> Result<()> {
    let list = lbs(client).list(&ListParams::default()).await?;
    let addresses: BTreeSet<String> =
        list.items.into_iter().filter_map(|lb| lb.status?.allocated_address?.ip).collect();
    ensure!(addresses.len() == count, "{} distinct addresses for {count}", addresses.len());
    Ok(())
}

/// Times from sending the creation to observing the address, one LoadBalancer at a time.
pub(crate) async fn create_and_watch(client: &Client, count: usize) -> Result<Vec<Duration>> {
    let api = lbs(client);
    let version =
        api.list(&ListParams::default()).await?.metadata.resource_version.unwrap_or_default();
    let mut events = api.watch(&WatchParams::default(), &version).await?.boxed();
    let mut times = Vec::new();
    for index in 0..count {
        let wanted = lb(index)?;
        let began = Instant::now();
        api.create(&PostParams::default(), &wanted).await?;
        loop {
            let event = events.try_next().await?.context("the watch ended")?;
            if let WatchEvent::Modified(lb) = event
                && lb.name_any() == wanted.name_any()
                && lb.status.is_some_and(|s| s.allocated_address.is_some())
            {
                break;
            }
        }
        times.push(began.elapsed());
        // A pause, so that the operator is idle before each creation.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(times)
}
