//! The view of IPPools: which exist, their versions, and their specs.
//!
//! Pools are watched by metadata only, so that a ledger of thousands of entries is not sent again
//! for every claim. A pool's spec is read when the generation changes, and stored without the
//! ledger. Where IPPool is served without a status subresource, each claim changes the generation:
//! a pool whose spec turned out to be the same is read at most once in [`LATER`].

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube::api::ApiResource;
use kube::core::{NotUsed, Object, PartialObjectMeta};
use kube::{Api, ResourceExt};
use kube_runtime::watcher::Config;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{ChangeEvent, InformerContext, ViewPart, Views, lock};
use crate::api::{IPPool, IPPoolSpec};
use crate::domain::pools::allocator::PoolSeen;
use crate::domain::pools::conflict::PoolFacts;
use crate::k8s::guard::Guard;
use crate::k8s::informer::{self, ObjectEvent};
use crate::k8s::{CallError, call};

/// Pause between two reads of one pool.
const SOON: Duration = Duration::from_millis(200);
/// Pause between two reads of one pool, if the last read brought nothing new.
const LATER: Duration = Duration::from_secs(5);

/// A pool without its ledger.
type Wishes = Object<IPPoolSpec, NotUsed>;
/// Metadata of a pool.
pub type Seen = PartialObjectMeta<IPPool>;

/// An event of the watch.
enum PoolChange {
    /// A pool, new or changed.
    There(Box<Seen>),
    /// A pool that was deleted, by name.
    Gone(String),
    /// The first list is complete.
    Listed,
}

pub(super) async fn watch(at: InformerContext) {
    let InformerContext { client, views, metrics, .. } = at.clone();
    // Pools that cannot be read are in no view.
    let names: Mutex<HashSet<String>> = Mutex::default();
    let (teller, changes) = mpsc::unbounded_channel();
    let api = Api::<Seen>::all(client.clone());
    let on_event = |event: ObjectEvent<Seen>| match event {
        ObjectEvent::Listed(pool) | ObjectEvent::Changed(pool) => {
            let (name, version) = (pool.name_any(), pool.resource_version().unwrap_or_default());
            lock(&names).insert(name.clone());
            views.tell(ChangeEvent::Pool(name, version));
            let _ = teller.send(PoolChange::There(Box::new(pool)));
        }
        ObjectEvent::Gone(name, _) => {
            lock(&names).remove(&name);
            let _ = teller.send(PoolChange::Gone(name.clone()));
            views.tell(ChangeEvent::PoolGone(name));
        }
        ObjectEvent::Complete => {
            at.done(ViewPart::Pools);
            let _ = teller.send(PoolChange::Listed);
        }
        ObjectEvent::Unreadable(_) | ObjectEvent::Refused(_) => {}
    };
    let known = || lock(&names).clone();
    tokio::join!(
        informer::watch(api, Config::default(), &metrics, known, on_event),
        read(&at, changes)
    );
}

/// Facts of a pool, and the generation that they are from.
pub(super) struct KnownPool {
    facts: Arc<PoolFacts>,
    generation: PoolGeneration,
}

/// Detects whether a pool's facts may have changed: UID, generation, and whether it is being
/// deleted.
#[derive(PartialEq, Eq)]
struct PoolGeneration(Option<String>, Option<i64>, bool);

impl PoolGeneration {
    fn of(pool: &impl ResourceExt) -> Self {
        let meta = pool.meta();
        Self(meta.uid.clone(), meta.generation, meta.deletion_timestamp.is_some())
    }
}

/// State of the reads of a pool.
#[derive(Default)]
struct PoolReads {
    uid: Option<String>,
    generation: Option<i64>,
    deleting: bool,
    /// Earliest time of the next read. `None`: at once.
    next: Option<Instant>,
    due: bool,
}

/// Reads the specs of changed pools, one after the other, each at most as often as [`SOON`] or
/// [`LATER`] allows.
async fn read(at: &InformerContext, mut changes: mpsc::UnboundedReceiver<PoolChange>) {
    let views = &at.views;
    let resource = ApiResource::erase::<IPPool>(&());
    let api: Api<Guard<Wishes>> = Api::all_with(at.client.clone(), &resource);
    let mut readings: HashMap<String, PoolReads> = HashMap::new();
    let mut is_listed = false;
    loop {
        if is_listed && !readings.values().any(|reading| reading.due) {
            at.done(ViewPart::PoolSpecs);
        }
        let now = Instant::now();
        let due = readings.iter().filter(|(_, reading)| reading.due);
        let next = due.map(|(name, reading)| (reading.next.unwrap_or(now), name.clone())).min();
        tokio::select! {
            biased;
            change = changes.recv() => {
                let pool = match change {
                    Some(PoolChange::There(pool)) => pool,
                    Some(PoolChange::Gone(name)) => {
                        readings.remove(&name);
                        lock(&views.pools).remove(&name);
                        continue;
                    }
                    Some(PoolChange::Listed) => {
                        is_listed = true;
                        continue;
                    }
                    None => return,
                };
                let reading = readings.entry(pool.name_any()).or_default();
                let deleting = pool.metadata.deletion_timestamp.is_some();
                reading.due |= reading.uid != pool.uid()
                    || reading.generation != pool.metadata.generation
                    || reading.deleting != deleting;
                if reading.uid != pool.uid() {
                    reading.next = None;
                }
                if let Some(generation) = pool.metadata.generation {
                    reading.generation = Some(generation);
                }
                (reading.uid, reading.deleting) = (pool.uid(), deleting);
            }
            () = until(next.as_ref().map(|(at, _)| *at)) => {
                let Some((_, name)) = next else { continue };
                let new = take(&api, views, &name).await;
                match new {
                    Ok(Some(new)) => {
                        if let Some(reading) = readings.get_mut(&name) {
                            reading.due = false;
                            reading.next = Some(Instant::now() + if new { SOON } else { LATER });
                        }
                    }
                    Ok(None) => drop(readings.remove(&name)),
                    Err(error) => {
                        tracing::debug!(pool = name, %error, "IPPool not read, trying again");
                        if let Some(reading) = readings.get_mut(&name) {
                            reading.next = Some(Instant::now() + LATER);
                        }
                    }
                }
            }
        }
    }
}

/// Reads a pool. `None`: it does not exist; otherwise whether its facts have changed.
async fn take(
    api: &Api<Guard<Wishes>>,
    views: &Views,
    name: &str,
) -> Result<Option<bool>, CallError> {
    let known = match call(api.get(name)).await {
        Ok(Guard(Ok(pool))) => {
            let created = pool.metadata.creation_timestamp.as_ref();
            let created = created.map_or(0, |time| time.0.as_second());
            let mut facts = PoolFacts::new(name, created, &pool.spec);
            facts.deleting = pool.metadata.deletion_timestamp.is_some();
            Some(KnownPool { facts: Arc::new(facts), generation: PoolGeneration::of(&pool) })
        }
        // The leader reports this fault, and the pool gives out nothing.
        Ok(Guard(Err(_))) => None,
        Err(CallError::NotFound) => {
            lock(&views.pools).remove(name);
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let mut pools = lock(&views.pools);
    let new = known.as_ref().map(|known| known.facts.clone());
    let old = match known {
        Some(known) => pools.insert(name.to_owned(), known),
        None => pools.remove(name),
    };
    Ok(Some(old.map(|old| old.facts) != new))
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

impl Views {
    /// Facts of all pools in the view. A pool that was created a moment ago may be missing.
    pub fn pools(&self) -> Vec<Arc<PoolFacts>> {
        lock(&self.pools).values().map(|known| known.facts.clone()).collect()
    }

    /// Facts of a pool, if they were read after the last change of its spec. `pool` is its metadata
    /// as the API server has it now.
    pub fn pool_as_of(&self, pool: &Seen) -> Option<Arc<PoolFacts>> {
        let pools = lock(&self.pools);
        let known = pools.get(&pool.name_any())?;
        (known.generation == PoolGeneration::of(pool)).then(|| known.facts.clone())
    }

    /// A stored pool, with the segment of its selector's network.
    pub fn seen(&self, pool: &IPPool) -> PoolSeen {
        let network = pool.spec.selector.as_ref().and_then(|selector| selector.network.as_deref());
        PoolSeen::new(pool, self.segment(network.unwrap_or_default()))
    }
}
