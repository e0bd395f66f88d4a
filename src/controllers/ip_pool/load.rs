//! Reads pools into the allocator: all of them at the start of a term, later each pool that
//! changed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures::future::join_all;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Api, Resource, ResourceExt};
use kube_runtime::reflector::ObjectRef;

use super::mailbox::LedgerHandle;
use super::stored::StoredPool;
use super::{Context, LedgerTask};
use crate::api::{IPPool, LoadBalancer};
use crate::domain::LbFacts;
use crate::domain::load_balancer::facts::{self, Project};
use crate::domain::pools::allocator::{LoadBalancerIndex, PoolAllocator, PoolSeen};
use crate::domain::pools::write_pacing::WritePace;
use crate::k8s::CallError;
use crate::k8s::calls::ApiCalls as _;
use crate::k8s::guard::Guard;
use crate::k8s::read::ApiReader;
use crate::k8s::trimmed::TrimmedLb;

/// Time limit of each wait at the start of a term. The first wait is for the list of networks, the
/// second for the lists of objects that reserve addresses.
const NETWORKS_WAIT: Duration = Duration::from_secs(2);

impl LedgerTask {
    /// Makes the ledger task of a term, and its handle. The task has no ledgers yet, and requests
    /// wait until [`Self::run`].
    pub fn new(ctx: Context) -> (Self, LedgerHandle) {
        let (handle, mailbox) = LedgerHandle::new();
        let task = Self {
            ctx,
            mailbox,
            allocator: PoolAllocator::default(),
            stored: BTreeMap::new(),
            trouble: BTreeMap::new(),
            rereads: BTreeMap::new(),
            handle: handle.clone(),
            pace: WritePace::default(),
            bytes_written: 0,
            started: Instant::now(),
            crd_is_replaced: None,
            sweeper: None,
            kept: BTreeMap::new(),
            unreported: BTreeMap::new(),
            refused: BTreeMap::new(),
        };
        (task, handle)
    }

    /// Reads the ledgers from consistent lists. Restores the claims of existing LoadBalancers, then
    /// allocates for LoadBalancers without an address, oldest first.
    pub async fn load(&mut self) -> anyhow::Result<()> {
        self.started = Instant::now();
        // Networks come first: while the segment of a network is unknown, its pools may be on the
        // segment of any other pool. Objects that reserve addresses come next. Pools are listed
        // before LoadBalancers. So the list of LoadBalancers contains the owner of each claim, if
        // that owner exists.
        let views = self.ctx.views.clone();
        views.networks_listed(NETWORKS_WAIT).await;
        let _ = tokio::time::timeout(NETWORKS_WAIT, views.wait_for_infrastructure()).await;
        self.allocator.set_infrastructure(views.held_back());
        let pools = list::<IPPool>(&Api::all(self.ctx.client.clone())).await?;
        let lbs = list::<TrimmedLb>(&Api::all(self.ctx.client.clone())).await?;
        let lbs: Vec<LoadBalancer> = lbs.into_iter().map(|trimmed| trimmed.lb).collect();
        let index = LoadBalancerIndex::new(lbs.iter().filter_map(facts::lb_entry));
        for pool in &pools {
            self.merge(pool, &index);
        }
        // `adopt` records every published or requested address, before the first new address is
        // allocated below.
        self.each_facts(lbs.iter(), PoolAllocator::adopt);
        self.allocator.take_moved();
        let mut waiting: Vec<_> = lbs
            .iter()
            .filter(|lb| facts::wants_pool(lb) && !facts::is_leaving(lb))
            // Three kinds of LoadBalancers get no address here: their guest cluster is being
            // removed, their namespace was not observed yet, or they wait for the list of VMs.
            // Their own reconcile decides later.
            .filter(|lb| self.ctx.views.removal_of(lb).is_none())
            .filter(|lb| !self.ctx.views.awaits_vms(lb))
            .map(|lb| (lb, self.ctx.views.around(lb)))
            .filter(|(_, around)| around.project != Project::Unknown)
            .map(|(lb, around)| {
                facts::facts(lb, &around, |network| self.ctx.views.segment(network), true)
            })
            .collect();
        waiting.sort_by(|a, b| (a.created, &a.owner).cmp(&(b.created, &b.owner)));
        let count = waiting.len();
        for facts in &waiting {
            self.allocator.claim(facts);
        }
        let names: Vec<String> = self.stored.keys().cloned().collect();
        for name in &names {
            self.consider_manual_release(name).await;
        }
        let mut failed = BTreeSet::new();
        while self.commit(&mut failed).await? {
            for facts in &waiting {
                self.allocator.claim(facts);
            }
        }
        self.report();
        tracing::info!(
            pools = pools.len(),
            load_balancers = count,
            waiting = self.allocator.waiting().count(),
            took_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            "ledgers loaded"
        );
        Ok(())
    }

    /// Reads the pools `names` from the API server, and merges them into the allocator. Removes
    /// from the allocator each pool that no longer exists or cannot be parsed.
    pub(super) async fn refresh(&mut self, names: BTreeSet<String>) {
        if names.is_empty() {
            return;
        }
        let api: Api<Guard<IPPool>> = Api::all(self.ctx.client.clone());
        let answers = join_all(names.iter().map(|name| api.call_get_opt(name))).await;
        let mut index = self.lb_index();
        for (name, answer) in names.into_iter().zip(answers) {
            match answer {
                Ok(Some(Guard(Ok(pool)))) => {
                    if let Err(error) =
                        self.reread_owners(&self.ctx.views.seen(&pool), &mut index).await
                    {
                        tracing::warn!(pool = name, %error, "cannot merge the IPPool, trying again");
                        self.reread_later(&name, Duration::from_secs(1));
                        continue;
                    }
                    self.merge(&pool, &index);
                    self.consider_manual_release(&name).await;
                }
                Ok(Some(Guard(Err(error)))) => {
                    self.ctx.metrics.unreadable.with_label_values(&["IPPool"]).inc();
                    tracing::warn!(pool = name, %error, "this IPPool cannot be read, so it allocates no address");
                    self.drop_pool(&name);
                }
                Ok(None) => self.drop_pool(&name),
                Err(error) => {
                    tracing::warn!(pool = name, %error, "cannot read the IPPool, trying again");
                    self.reread_later(&name, Duration::from_secs(1));
                }
            }
        }
    }

    /// Reads LoadBalancers from the API server, and updates their entries in `index`. An entry from
    /// the view may be older than the stored ledger in `seen`. A LoadBalancer is read in two cases:
    ///
    /// * It publishes an address of the pool, the stored ledger and the ledger in memory do not
    ///   agree on the owner of the address, and at least one of them records another owner than
    ///   this LoadBalancer.
    /// * It has the name of an owner in the stored ledger, and the UID that this ledger records for
    ///   the owner is not in `index`.
    async fn reread_owners(
        &self,
        seen: &PoolSeen,
        index: &mut LoadBalancerIndex,
    ) -> Result<(), CallError> {
        let reader = ApiReader::new(self.ctx.client.clone());
        for owner in self.allocator.owners_to_reread(seen, index) {
            let Some((namespace, name)) = owner.name.split_once('/') else { continue };
            let current = reader.load_balancer(namespace, name).await?;
            index.update(&owner, current.as_ref().and_then(facts::lb_entry));
        }
        Ok(())
    }

    /// Calls `show` with the allocator and the facts of each LoadBalancer that takes its address
    /// from pools.
    fn each_facts<'a>(
        &mut self,
        lbs: impl Iterator<Item = &'a LoadBalancer>,
        mut show: impl FnMut(&mut PoolAllocator, &LbFacts),
    ) {
        let views = self.ctx.views.clone();
        for lb in lbs.filter(|lb| facts::wants_pool(lb)) {
            let segment = |network: &str| views.segment(network);
            show(&mut self.allocator, &facts::facts(lb, &views.around(lb), segment, false));
        }
    }

    /// Updates the allocator with the published addresses of all LoadBalancers in the view, after
    /// pools were added or removed, or networks have changed.
    pub(super) fn observe_all(&mut self) {
        let all = self.ctx.views.load_balancers.state();
        self.each_facts(all.iter().map(AsRef::as_ref), PoolAllocator::observe);
    }

    /// Index of the LoadBalancers in the view of this process.
    pub(super) fn lb_index(&self) -> LoadBalancerIndex {
        LoadBalancerIndex::new(
            self.ctx.views.load_balancers.state().iter().filter_map(|lb| facts::lb_entry(lb)),
        )
    }

    fn merge(&mut self, pool: &IPPool, index: &LoadBalancerIndex) {
        let name = pool.name_any();
        let seen = self.ctx.views.seen(pool);
        let before = self.allocator.pools().get(&name).and_then(|p| p.fault.clone());
        let repairs = self.allocator.merge(&seen, index);
        self.report_repairs(pool, &repairs);
        let fault = self.allocator.pools().get(&name).and_then(|p| p.fault.clone());
        if let Some(fault) = fault.filter(|fault| before.as_ref() != Some(fault)) {
            self.ctx.events.warning(
                pool.object_ref(&()),
                crate::domain::reason::INVALID_RANGE,
                fault.to_string(),
            );
        }
        let old_notice = self.stored.remove(&name).filter(|old| old.manual().is_some());
        let mut stored = StoredPool::new(pool);
        stored.notice =
            old_notice.filter(|old| old.manual() == stored.manual()).and_then(|old| old.notice);
        self.stored.insert(name, stored);
    }

    fn drop_pool(&mut self, name: &str) {
        self.allocator.remove_pool(name);
        self.ctx.metrics.pools.forget(name);
        self.stored.remove(name);
        self.trouble.remove(name);
        self.rereads.remove(name);
    }

    /// Reference to a pool for Events.
    pub(super) fn reference(&self, name: &str) -> ObjectReference {
        let uid = self.stored.get(name).and_then(|pool| pool.meta.uid.clone());
        ObjectReference { uid, ..ObjectRef::<IPPool>::new(name).into() }
    }
}

/// Reads a consistent list, page by page. Objects that do not fit their type are omitted; the
/// informer reports them.
pub(super) async fn list<K>(api: &Api<Guard<K>>) -> Result<Vec<K>, CallError>
where
    K: Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let mut items = Vec::new();
    api.list_each(|item: Guard<K>| items.extend(item.0.ok())).await?;
    Ok(items)
}
