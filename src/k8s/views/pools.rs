//! The view of IPPools: their names, generations and specs.
//!
//! Only the metadata of pools is watched, so that a ledger of thousands of entries is not sent
//! again for every claim. A pool's spec is read when its [`PoolGeneration`] changes, and is stored
//! without the ledger.
//!
//! Where IPPool is served without a status subresource, each claim changes the generation and so
//! causes a read. To limit these reads, the next read of a pool waits for [`LATER`] after a read
//! that showed no changed facts.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kube::api::ApiResource;
use kube::core::{NotUsed, Object, PartialObjectMeta};
use kube::{Api, ResourceExt};
use kube_runtime::watcher::Config;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{ChangeEvent, InformerContext, ViewPart, Views, lock};
use crate::api::{IPPool, IPPoolSpec};
use crate::domain::pools::allocator::PoolSeen;
use crate::domain::pools::conflict::PoolFacts;
use crate::k8s::calls::ApiCalls as _;
use crate::k8s::guard::Guard;
use crate::k8s::informer::{self, ObjectEvent};

/// Shortest time from a read that showed changed facts of a pool to the next read of this pool.
const SOON: Duration = Duration::from_millis(200);
/// Shortest time from a read that failed, or showed no changed facts of a pool, to the next read of
/// this pool.
const LATER: Duration = Duration::from_secs(5);

/// A pool without its ledger.
type PoolWithoutStatus = Object<IPPoolSpec, NotUsed>;
/// Metadata of a pool.
pub type PoolMetadata = PartialObjectMeta<IPPool>;

/// Pools by name, each with the state of its reads.
#[derive(Default)]
pub(super) struct PoolIndex(HashMap<String, PoolEntry>);

/// A pool in the view, with the state of the reads of its spec.
#[derive(Default)]
struct PoolEntry {
    /// [`PoolGeneration`] of the pool in the last event of the watch.
    shown: PoolGeneration,
    /// Facts of the pool. `None`: the pool was not read yet, or cannot be parsed.
    known: Option<KnownPool>,
    /// Whether the spec of the pool must be read, because the pool has changed or its last read has
    /// failed.
    due: bool,
    /// Earliest time of the next read of the spec. `None`: the spec may be read at once.
    next: Option<Instant>,
}

/// Facts of a pool, and the [`PoolGeneration`] of the pool when the facts were read.
struct KnownPool {
    facts: Arc<PoolFacts>,
    generation: PoolGeneration,
}

/// UID, generation and deletion of a pool. Field 0: `metadata.uid`. Field 1: `metadata.generation`.
/// Field 2: whether the pool is being deleted. The facts of the pool change only if one of the
/// fields changes.
#[derive(Default, PartialEq, Eq)]
struct PoolGeneration(Option<String>, Option<i64>, bool);

impl PoolGeneration {
    fn of(pool: &impl ResourceExt) -> Self {
        let meta = pool.meta();
        Self(meta.uid.clone(), meta.generation, meta.deletion_timestamp.is_some())
    }
}

impl PoolIndex {
    /// Stores the [`PoolGeneration`] from a pool's metadata. If a field of the `PoolGeneration` has
    /// changed, sets `due`, so that the pool's spec is read. Returns whether a field has changed.
    fn apply(&mut self, pool: &PoolMetadata) -> bool {
        let entry = self.0.entry(pool.name_any()).or_default();
        let shown = PoolGeneration::of(pool);
        let is_new = entry.shown != shown;
        entry.due |= is_new;
        if entry.shown.0 != shown.0 {
            entry.next = None;
        }
        entry.shown = shown;
        is_new
    }

    /// Removes the pool `name`. Returns whether the pool was `due`.
    fn remove(&mut self, name: &str) -> bool {
        self.0.remove(name).is_some_and(|entry| entry.due)
    }

    /// Next pool whose spec must be read. Field 0: earliest time of the read. The time is `now` or
    /// earlier if the pool may be read at once. Field 1: name of the pool. `None`: no spec must be
    /// read.
    fn next(&self, now: Instant) -> Option<(Instant, String)> {
        let due = self.0.iter().filter(|(_, entry)| entry.due);
        due.map(|(name, entry)| (entry.next.unwrap_or(now), name.clone())).min()
    }

    /// Clears `due` of the pool `name`, because the read of its spec begins. A change of the pool
    /// during the read sets `due` again, and so causes another read.
    fn begin(&mut self, name: &str) {
        if let Some(entry) = self.0.get_mut(name) {
            entry.due = false;
        }
    }

    /// Stores the result of a read that ended at `now`. `known: None`: the pool does not fit its
    /// type. Such a pool gives out no address, and the leader reports the fault.
    fn read(&mut self, name: &str, known: Option<KnownPool>, now: Instant) {
        let Some(entry) = self.0.get_mut(name) else { return };
        let facts = |known: &Option<KnownPool>| known.as_ref().map(|known| known.facts.clone());
        let is_new = facts(&entry.known) != facts(&known);
        entry.known = known;
        entry.next = Some(now + if is_new { SOON } else { LATER });
    }

    /// Removes the pool `name`, because a read did not find it. If `due` was set during the read,
    /// the pool stays, because it may have been created again.
    fn missing(&mut self, name: &str) {
        if self.0.get(name).is_some_and(|entry| !entry.due) {
            self.0.remove(name);
        }
    }

    /// Sets `due` of the pool `name`, because the read that ended at `now` has failed. The next
    /// read is [`LATER`] after `now`.
    fn failed(&mut self, name: &str, now: Instant) {
        if let Some(entry) = self.0.get_mut(name) {
            (entry.due, entry.next) = (true, Some(now + LATER));
        }
    }
}

pub(super) async fn watch(at: InformerContext) {
    let changed = Notify::new();
    let known = || lock(&at.views.index.pools).0.keys().cloned().collect();
    let on_event = |event| {
        if apply(&at, event) {
            changed.notify_one();
        }
    };
    let api = Api::<PoolMetadata>::all(at.client.clone());
    tokio::join!(
        informer::watch(api, Config::default(), &at.metrics, known, on_event),
        read(&at, &changed)
    );
}

/// Applies an event of a pool to the view, and reports the change of the pool to the leader.
/// Returns whether [`read`] must look again for the next spec to read.
pub(super) fn apply(at: &InformerContext, event: ObjectEvent<PoolMetadata>) -> bool {
    let views = &at.views;
    match event {
        ObjectEvent::Listed(pool) | ObjectEvent::Changed(pool) => {
            let is_due = lock(&views.index.pools).apply(&pool);
            let version = pool.resource_version().unwrap_or_default();
            views.notify(ChangeEvent::Pool(pool.name_any(), version));
            is_due
        }
        ObjectEvent::Gone(name, _) => {
            let was_due = lock(&views.index.pools).remove(&name);
            views.notify(ChangeEvent::PoolGone(name));
            was_due
        }
        ObjectEvent::Complete => {
            at.done(ViewPart::Pools);
            true
        }
        ObjectEvent::Unreadable(_) | ObjectEvent::Refused(_) => false,
    }
}

/// Reads the specs of changed pools, one after the other. Between two reads of the same pool, waits
/// at least [`SOON`], or at least [`LATER`] if the first of the two failed or showed no changed
/// facts. Does not wait if the pool was deleted and created again between the two reads.
async fn read(at: &InformerContext, changed: &Notify) {
    let views = &at.views;
    let resource = ApiResource::erase::<IPPool>(&());
    let api: Api<Guard<PoolWithoutStatus>> = Api::all_with(at.client.clone(), &resource);
    loop {
        let is_listed = views.is_listed(ViewPart::Pools);
        let next = lock(&views.index.pools).next(Instant::now());
        if is_listed && next.is_none() {
            at.done(ViewPart::PoolSpecs);
        }
        tokio::select! {
            biased;
            () = changed.notified() => {}
            () = until(next.as_ref().map(|(at, _)| *at)) => {
                if let Some((_, name)) = next {
                    read_one(&api, views, &name).await;
                }
            }
        }
    }
}

/// Reads the pool `name`, and stores its facts in the view.
async fn read_one(api: &Api<Guard<PoolWithoutStatus>>, views: &Views, name: &str) {
    lock(&views.index.pools).begin(name);
    let read = api.call_get_opt(name).await;
    let (mut pools, now) = (lock(&views.index.pools), Instant::now());
    match read {
        Ok(Some(Guard(Ok(pool)))) => {
            let facts = Arc::new(PoolFacts::of(&pool.metadata, &pool.spec));
            let generation = PoolGeneration::of(&pool);
            pools.read(name, Some(KnownPool { facts, generation }), now);
        }
        Ok(Some(Guard(Err(_)))) => pools.read(name, None, now),
        Ok(None) => pools.missing(name),
        Err(error) => {
            tracing::debug!(pool = name, %error, "cannot read the IPPool, trying again");
            pools.failed(name, now);
        }
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

impl Views {
    /// Facts of all pools in the view. A pool that does not fit its type is missing. A pool that
    /// was just created may be missing.
    pub fn pools(&self) -> Vec<Arc<PoolFacts>> {
        let pools = lock(&self.index.pools);
        pools.0.values().filter_map(|pool| Some(pool.known.as_ref()?.facts.clone())).collect()
    }

    /// Facts of a pool, from the view. `pool` is the pool's metadata as the API server has it now.
    /// `None`: the view has no facts of the pool, or the pool's UID, generation or deletion has
    /// changed since they were read.
    pub fn pool_as_of(&self, pool: &PoolMetadata) -> Option<Arc<PoolFacts>> {
        let pools = lock(&self.index.pools);
        let known = pools.0.get(&pool.name_any())?.known.as_ref()?;
        (known.generation == PoolGeneration::of(pool)).then(|| known.facts.clone())
    }

    /// Facts of the stored pool `pool`. The segment in the result is that of the network in the
    /// pool's selector.
    pub fn seen(&self, pool: &IPPool) -> PoolSeen {
        let network = pool.spec.selector.as_ref().and_then(|selector| selector.network.as_deref());
        PoolSeen::new(pool, self.segment(network.unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(uid: &str, generation: i64) -> PoolMetadata {
        let metadata = json!({"name": "p", "uid": uid, "generation": generation});
        let kind = json!({"apiVersion": "v1", "kind": "IPPool", "metadata": metadata});
        serde_json::from_value(kind).unwrap()
    }

    fn known(deleting: bool) -> KnownPool {
        let mut facts = PoolFacts::new("p", 0, &IPPoolSpec::default());
        facts.deleting = deleting;
        KnownPool { facts: Arc::new(facts), generation: PoolGeneration::default() }
    }

    fn at(time: Instant) -> (Instant, String) {
        (time, "p".to_owned())
    }

    #[test]
    fn a_pool_is_read_once_for_each_generation_and_less_often_without_news() {
        let (mut pools, now) = (PoolIndex::default(), Instant::now());
        pools.apply(&shown("u", 1));
        assert_eq!(pools.next(now), Some(at(now)));
        pools.begin("p");
        pools.read("p", Some(known(false)), now);
        pools.apply(&shown("u", 1));
        assert_eq!(pools.next(now), None, "a claim, for example");
        pools.apply(&shown("u", 2));
        assert_eq!(pools.next(now), Some(at(now + SOON)));
        pools.begin("p");
        pools.read("p", Some(known(false)), now);
        pools.apply(&shown("u", 3));
        assert_eq!(pools.next(now), Some(at(now + LATER)), "the last read brought nothing new");
        pools.apply(&shown("another", 1));
        assert_eq!(pools.next(now), Some(at(now)), "made again under its name");
    }

    #[test]
    fn what_changes_during_a_read_is_read_again() {
        let (mut pools, now) = (PoolIndex::default(), Instant::now());
        pools.apply(&shown("u", 1));
        pools.begin("p");
        pools.apply(&shown("u", 2));
        pools.read("p", Some(known(false)), now);
        assert_eq!(pools.next(now), Some(at(now + SOON)));
        pools.begin("p");
        pools.failed("p", now);
        assert_eq!(pools.next(now), Some(at(now + LATER)));
        pools.remove("p");
        pools.read("p", Some(known(false)), now);
        assert!(pools.0.is_empty(), "deleted during the read");
    }

    #[test]
    fn a_pool_that_a_read_did_not_find_is_removed_unless_it_was_made_again() {
        let (mut pools, now) = (PoolIndex::default(), Instant::now());
        pools.apply(&shown("u", 1));
        pools.begin("p");
        pools.remove("p");
        pools.apply(&shown("another", 1));
        pools.missing("p");
        assert_eq!(pools.next(now), Some(at(now)), "made again during the read");
        pools.begin("p");
        pools.missing("p");
        assert!(pools.0.is_empty());
    }

    #[test]
    fn a_changed_generation_and_the_end_of_a_due_pool_change_the_next_read() {
        let mut pools = PoolIndex::default();
        assert!(pools.apply(&shown("u", 1)));
        assert!(!pools.apply(&shown("u", 1)), "a claim, for example");
        assert!(pools.apply(&shown("u", 2)) && pools.apply(&shown("another", 2)));
        assert!(pools.remove("p") && !pools.remove("p"));
        pools.apply(&shown("u", 1));
        pools.begin("p");
        assert!(!pools.remove("p"), "its read has begun");
    }

    #[test]
    fn a_pool_that_cannot_be_read_any_more_has_no_facts() {
        let (mut pools, now) = (PoolIndex::default(), Instant::now());
        pools.apply(&shown("u", 1));
        pools.read("p", Some(known(false)), now);
        assert!(pools.0["p"].known.is_some());
        pools.read("p", None, now);
        assert!(pools.0["p"].known.is_none());
    }
}
