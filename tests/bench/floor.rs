//! A bare client that makes the minimum of writes, without other clients.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use futures::{StreamExt as _, TryStreamExt as _};
use harvester_guest_operator::api::{IPPool, IPPoolStatus, LB_FINALIZER, LoadBalancer};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::sync::Mutex;

use crate::guests::{self, AT_ONCE, lb, lbs};

/// LoadBalancers recorded by one write of the pool.
const SHARE: usize = 500;

/// Times of one burst.
pub(crate) struct Floor {
    pub(crate) addressed: Duration,
    pub(crate) deleted: Duration,
}

pub(crate) async fn at_once(client: &Client, count: usize) -> Result<Floor> {
    guests::pool(client, "floor", "10.64.0.0/16").await?;
    let ledger = Ledger::read(client).await?;
    let began = Instant::now();
    futures::stream::iter(0..count)
        .map(Ok)
        .try_for_each_concurrent(AT_ONCE, |index| create_and_write(client, &ledger, index))
        .await?;
    ledger.write().await?;
    let addressed = began.elapsed();

    let began = Instant::now();
    futures::stream::iter(0..count)
        .map(Ok)
        .try_for_each_concurrent(AT_ONCE, |index| delete_and_finalize(client, &ledger, index))
        .await?;
    ledger.write().await?;
    let deleted = began.elapsed();
    guests::delete_pool(client, "floor").await?;
    Ok(Floor { addressed, deleted })
}

/// Makes the three writes of each LoadBalancer, one after the other, in a pool without former owners.
pub(crate) async fn one_by_one(client: &Client, count: usize) -> Result<Vec<Duration>> {
    guests::pool(client, "floor", "10.64.0.0/16").await?;
    let ledger = Ledger::read(client).await?;
    let mut times = Vec::new();
    for index in 0..count {
        let began = Instant::now();
        let created = lbs(client).create(&PostParams::default(), &lb(index)?).await?;
        let (name, uid) = (created.name_any(), created.uid().unwrap_or_default());
        ledger.note(&address(index), Some((&name, &uid))).await;
        ledger.write().await?;
        publish(client, created, index).await?;
        times.push(began.elapsed());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for index in 0..count {
        let name = lb(index)?.name_any();
        lbs(client).delete(&name, &kube::api::DeleteParams::default()).await?;
        finalize(client, &name).await?;
    }
    guests::delete_pool(client, "floor").await?;
    Ok(times)
}

async fn create_and_write(client: &Client, ledger: &Ledger, index: usize) -> Result<()> {
    let created = lbs(client).create(&PostParams::default(), &lb(index)?).await?;
    let (name, uid) = (created.name_any(), created.uid().unwrap_or_default());
    ledger.note(&address(index), Some((&name, &uid))).await;
    ledger.share().await?;
    publish(client, created, index).await
}

async fn delete_and_finalize(client: &Client, ledger: &Ledger, index: usize) -> Result<()> {
    let name = lb(index)?.name_any();
    lbs(client).delete(&name, &kube::api::DeleteParams::default()).await?;
    ledger.note(&address(index), None).await;
    ledger.share().await?;
    finalize(client, &name).await
}

async fn publish(client: &Client, mut lb: LoadBalancer, index: usize) -> Result<()> {
    let ip = address(index);
    lb.metadata.finalizers = Some(vec![LB_FINALIZER.to_owned()]);
    lb.status = Some(serde_json::from_value(json!({
        "address": ip,
        "allocatedAddress": {"ipPool": "floor", "ip": ip, "mask": "255.255.0.0", "gateway": "10.64.0.1"},
        "conditions": [{"type": "Ready", "status": "True", "reason": "Allocated",
            "lastUpdateTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    }))?);
    lbs(client).replace(&lb.name_any(), &PostParams::default(), &lb).await?;
    Ok(())
}

async fn finalize(client: &Client, name: &str) -> Result<()> {
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    lbs(client).patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

fn address(index: usize) -> String {
    format!("10.64.{}.{}", index / 250, index % 250 + 2)
}

/// The pool's status.
struct Ledger {
    api: Api<IPPool>,
    stored: Mutex<StoredLedger>,
    changes: AtomicUsize,
}

struct StoredLedger {
    status: IPPoolStatus,
    version: Option<String>,
}

impl Ledger {
    async fn read(client: &Client) -> Result<Self> {
        let api: Api<IPPool> = Api::all(client.clone());
        let version = api.get_metadata("floor").await?.resource_version();
        let stored = Mutex::new(StoredLedger { status: IPPoolStatus::default(), version });
        Ok(Self { api, stored, changes: AtomicUsize::new(0) })
    }

    async fn note(&self, ip: &str, owner: Option<(&str, &str)>) {
        let StoredLedger { status, .. } = &mut *self.stored.lock().await;
        if let Some((name, uid)) = owner {
            status.allocated.insert(ip.to_owned(), format!("default/{name}"));
            status.allocated_owners.insert(ip.to_owned(), uid.to_owned());
        } else {
            status.allocated.remove(ip);
            status.allocated_owners.remove(ip);
        }
    }

    /// Counts a change, and writes the pool once for every [`SHARE`] changes.
    async fn share(&self) -> Result<()> {
        if (self.changes.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(SHARE) {
            self.write().await?;
        }
        Ok(())
    }

    async fn write(&self) -> Result<()> {
        let StoredLedger { status, version } = &mut *self.stored.lock().await;
        let body = serde_json::from_value(json!({
            "apiVersion": "loadbalancer.harvesterhci.io/v1beta1",
            "kind": "IPPool",
            "metadata": {"name": "floor", "resourceVersion": version},
            "spec": {"ranges": [{"subnet": "10.64.0.0/16"}]},
            "status": status,
        }))?;
        let written = self.api.replace_status("floor", &PostParams::default(), &body).await?;
        *version = written.resource_version();
        Ok(())
    }
}
