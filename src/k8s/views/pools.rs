//! The view of IPPools: which there are, in which version, and what they want.
//!
//! Pools are watched by metadata only: a ledger of thousands of entries is not sent again for
//! every claim. What a pool wants is read when its generation moves, and kept without the ledger.
//! Where IPPool is served without a status subresource each claim moves the generation: a pool
//! whose wishes turned out the same is read at most once in [`LATER`].

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kube::api::ApiResource;
use kube::core::{NotUsed, Object, PartialObjectMeta};
use kube::{Api, Client, ResourceExt};
use kube_runtime::watcher::{Config, Event};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{Informer, Part, Signal, Views, lock};
use crate::api::{IPPool, IPPoolSpec, LABEL_GLOBAL_POOL};
use crate::domain::conflict::PoolFacts;
use crate::k8s::guard::Guard;
use crate::k8s::{CallError, call, informer};

/// Between two readings of one pool.
const SOON: Duration = Duration::from_millis(200);
/// The same, when the last reading brought nothing new.
const LATER: Duration = Duration::from_secs(5);

/// A pool without its ledger.
type Wishes = Object<IPPoolSpec, NotUsed>;
type Seen = PartialObjectMeta<IPPool>;
/// A pool by its name; `None`: it is gone.
type Change = (String, Option<Seen>);

pub(super) async fn watch(at: Informer) {
    let Informer { client, views, metrics, .. } = at.clone();
    let mut known: HashSet<String> = HashSet::new();
    let mut listed: HashSet<String> = HashSet::new();
    let (teller, changes) = mpsc::unbounded_channel();
    let api = Api::<Seen>::all(client.clone());
    let tell = |pool: Seen| {
        views.tell(Signal::Pool(pool.name_any(), pool.resource_version().unwrap_or_default()));
        let _ = teller.send((pool.name_any(), Some(pool)));
    };
    let gone = |name: &String| {
        let _ = teller.send((name.clone(), None));
        views.tell(Signal::PoolGone(name.clone()));
    };
    let on_event = |event: Event<Seen>| match event {
        Event::Init => listed.clear(),
        Event::InitApply(pool) => {
            listed.insert(pool.name_any());
            tell(pool);
        }
        Event::InitDone => {
            known.difference(&listed).for_each(gone);
            known = std::mem::take(&mut listed);
            at.done(Part::Pools);
        }
        Event::Apply(pool) => {
            known.insert(pool.name_any());
            tell(pool);
        }
        Event::Delete(pool) => {
            known.remove(&pool.name_any());
            gone(&pool.name_any());
        }
    };
    tokio::join!(
        informer::run(api, Config::default(), "IPPool", &metrics, on_event),
        read(client, views.clone(), changes)
    );
}

/// What was last read of a pool, and what is to be read.
#[derive(Default)]
struct Reading {
    uid: Option<String>,
    generation: Option<i64>,
    global: bool,
    deleting: bool,
    /// Not before that.
    next: Option<Instant>,
    due: bool,
}

/// Reads what pools want, one after the other, each no more often than it is worth.
async fn read(client: Client, views: Views, mut changes: mpsc::UnboundedReceiver<Change>) {
    let api: Api<Guard<Wishes>> = Api::all_with(client, &ApiResource::erase::<IPPool>(&()));
    let mut readings: HashMap<String, Reading> = HashMap::new();
    loop {
        let now = Instant::now();
        let due = readings.iter().filter(|(_, reading)| reading.due);
        let next = due.map(|(name, reading)| (reading.next.unwrap_or(now), name.clone())).min();
        tokio::select! {
            biased;
            change = changes.recv() => {
                let Some((name, seen)) = change else { return };
                let Some(pool) = seen else {
                    readings.remove(&name);
                    lock(&views.pools).remove(&name);
                    continue;
                };
                let reading = readings.entry(name).or_default();
                let global = is_global(&pool);
                let deleting = pool.metadata.deletion_timestamp.is_some();
                reading.due |= reading.uid != pool.uid()
                    || reading.generation != pool.metadata.generation
                    || reading.global != global
                    || reading.deleting != deleting;
                if reading.uid != pool.uid() {
                    reading.next = None;
                }
                if let Some(generation) = pool.metadata.generation {
                    reading.generation = Some(generation);
                }
                (reading.uid, reading.global, reading.deleting) = (pool.uid(), global, deleting);
            }
            () = until(next.as_ref().map(|(at, _)| *at)) => {
                let Some((_, name)) = next else { continue };
                let new = take(&api, &views, &name).await;
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

/// Reads one. `None`: it is gone; otherwise whether it wants something else than before.
async fn take(
    api: &Api<Guard<Wishes>>,
    views: &Views,
    name: &str,
) -> Result<Option<bool>, CallError> {
    let facts = match call(api.get(name)).await {
        Ok(Guard(Ok(pool))) => {
            let created = pool.metadata.creation_timestamp.as_ref();
            let created = created.map_or(0, |time| time.0.as_second());
            let mut facts = PoolFacts::new(name, created, &pool.spec, is_global(&pool));
            facts.deleting = pool.metadata.deletion_timestamp.is_some();
            Some(Arc::new(facts))
        }
        // The leader tells of it, and it gives out nothing.
        Ok(Guard(Err(_))) => None,
        Err(CallError::NotFound) => {
            lock(&views.pools).remove(name);
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let mut pools = lock(&views.pools);
    let old = match facts.clone() {
        Some(facts) => pools.insert(name.to_owned(), facts),
        None => pools.remove(name),
    };
    Ok(Some(old != facts))
}

fn is_global(pool: &impl ResourceExt) -> bool {
    pool.labels().get(LABEL_GLOBAL_POOL).is_some_and(|value| value == "true")
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

impl Views {
    /// What all pools want, as far as is known here: one that was made a moment ago may be
    /// missing.
    pub fn pools(&self) -> Vec<Arc<PoolFacts>> {
        lock(&self.pools).values().cloned().collect()
    }
}
