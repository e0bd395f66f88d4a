//! Every version of a LoadBalancer's EndpointSlices, and when it was observed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::Result;
use futures::StreamExt as _;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt as _;
use kube_runtime::WatchStreamExt as _;
use kube_runtime::watcher::{Config, Event, watcher};
use testbed::eventually;
use tokio_util::task::AbortOnDropHandle;

use super::{Seen, seen};
use crate::support::{Cluster, SOON};

/// Watch timeout in seconds: shorter than the silence that ends a call of the bed's client.
const WATCH: u32 = 20;

/// A version of a slice.
#[derive(Clone, Debug)]
pub(super) struct Version {
    pub(super) at: Instant,
    pub(super) slice: String,
    /// Whether it was deleted.
    pub(super) gone: bool,
    pub(super) endpoints: BTreeMap<String, Seen>,
}

impl Version {
    /// State of a VM's endpoint; empty if this slice has none.
    pub(super) fn state(&self, vm: &str) -> &str {
        self.endpoints.get(vm).map_or("", |seen| &seen.state)
    }
}

/// A record of versions, from its start until it is dropped.
pub(super) struct Versions {
    seen: Arc<Mutex<Vec<Version>>>,
    _task: AbortOnDropHandle<()>,
}

impl Versions {
    /// Begins with the current versions.
    pub(super) async fn of(cluster: &Cluster, lb: &str) -> Result<Self> {
        let config =
            Config::default().labels(&format!("kubernetes.io/service-name={lb}")).timeout(WATCH);
        let events = watcher(cluster.slices(), config).default_backoff();
        let record = Arc::new(Mutex::new(Vec::new()));
        let listed = Arc::new(Mutex::new(false));
        let (to, done) = (record.clone(), listed.clone());
        let task = tokio::spawn(async move {
            let mut events = std::pin::pin!(events);
            while let Some(event) = events.next().await {
                let (slice, gone) = match event {
                    Ok(Event::Apply(slice) | Event::InitApply(slice)) => (slice, false),
                    Ok(Event::Delete(slice)) => (slice, true),
                    Ok(Event::InitDone) => {
                        *lock(&done) = true;
                        continue;
                    }
                    _ => continue,
                };
                lock(&to).push(read(&slice, gone));
            }
        });
        let versions = Self { seen: record, _task: AbortOnDropHandle::new(task) };
        eventually(SOON, "list of slices", async || *lock(&listed)).await?;
        Ok(versions)
    }

    /// All versions, in order.
    pub(super) fn all(&self) -> Vec<Version> {
        lock(&self.seen).clone()
    }

    /// Removes the versions so far.
    pub(super) fn clear(&self) {
        lock(&self.seen).clear();
    }

    /// Waits for a matching version, and returns the first one.
    pub(super) async fn first(&self, what: &str, is: impl Fn(&Version) -> bool) -> Result<Version> {
        eventually(SOON, what, async || {
            let found = self.all().into_iter().find(|version| is(version));
            found.map(Some).ok_or_else(|| format!("{:?}", self.all().last()))
        })
        .await
    }
}

fn read(slice: &EndpointSlice, gone: bool) -> Version {
    let endpoints = slice.endpoints.iter().flatten().map(seen).collect();
    Version { at: Instant::now(), slice: slice.name_any(), gone, endpoints }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
