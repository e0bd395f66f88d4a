//! Sweep: the search for claims that no LoadBalancer should have any more.
//!
//! A claim is suspect if one of these holds:
//!
//! * The view does not contain the owner of the claim.
//! * The ledger has only the name of the owner, without a UID. The LoadBalancer with this name has
//!   a claim of another address in the pool.
//!
//! A suspect claim is freed if reads from the API server confirm the suspicion. Exceptions: a claim
//! whose LoadBalancer is gone stays as long as the LoadBalancer's Service exists, and pools that
//! keep claims without a LoadBalancer are skipped. The ledger may change during the reads, so a
//! claim is freed only if it still belongs to the owner that was looked up.
//!
//! Each sweep also enqueues these LoadBalancers, so that their reconciles release the superfluous
//! claims:
//!
//! * LoadBalancers with several claims. A change to another pool may have been interrupted.
//! * LoadBalancers with `ipam: dhcp` for which the allocator has a claim, a reservation, an
//!   expected address or a waiting request. Their status may not show a claim, because `spec.ipam`
//!   may have changed before the claimed address was written to the status.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use futures::StreamExt as _;
use futures::stream;
use k8s_openapi::api::core::v1::Service;
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt};
use tokio_util::task::AbortOnDropHandle;

use super::LedgerTask;
use super::mailbox::{LedgerHandle, OrphanClaim};
use super::stored::StoredPool;
use crate::domain::load_balancer::facts;
use crate::domain::vm_backends::listeners;
use crate::domain::{Claim, Owner};
use crate::k8s::calls::ApiCalls as _;
use crate::k8s::read::ApiReader;

/// Maximum number of concurrent lookups of LoadBalancers that may be gone. More lookups would delay
/// the requests of LoadBalancers that wait for an address.
const LOOKUPS: usize = 8;
/// Maximum number of Events for freed claims of one pool, one Event for each claim. If more claims
/// are freed together, the pool gets a single Event. This Event names one claim and counts the
/// others.
const MOST_EVENTS: usize = 5;

impl LedgerTask {
    /// Enqueues the LoadBalancers that must release a claim or a waiting request. Starts the
    /// lookups of the suspect claims, unless the lookups of an earlier sweep are still under way.
    pub(super) fn sweep(&mut self) {
        let (mut again, mut strays) = (Vec::new(), HashSet::new());
        for lb in self.ctx.views.load_balancers.state() {
            let Owner { name, uid } = facts::owner(&lb);
            if !facts::wants_pool(&lb) && self.allocator.knows(&uid) {
                again.push(name);
                strays.insert(uid);
            } else if self.allocator.claims_of(&uid).len() > 1 {
                again.push(name);
            }
        }
        self.handle.set_strays(strays);
        self.ctx.views.enqueue_lbs(again);
        if self.sweeper.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let suspects = self.allocator.orphans(&self.lb_index());
        let keeps = |pool: &str| self.stored.get(pool).is_some_and(StoredPool::keeps_orphans);
        let (kept, suspects) =
            suspects.into_iter().partition::<Vec<_>, _>(|(claim, _)| keeps(&claim.pool));
        self.report_kept(kept);
        let look = look_up(self.ctx.client.clone(), self.handle.clone(), suspects);
        self.sweeper = Some(AbortOnDropHandle::new(tokio::spawn(look)));
    }

    /// Frees a claim in the allocator, if the claim still is an orphan. Returns whether the claim
    /// was freed. The caller writes the pool.
    pub(super) fn free(&mut self, orphan: &OrphanClaim) -> bool {
        let OrphanClaim { claim, owner, namesake } = orphan;
        let is_orphan =
            namesake.is_none() || self.allocator.is_second(claim, owner, namesake.as_deref());
        is_orphan && self.allocator.release_claim(claim, owner)
    }

    /// Reports freed claims in the metrics, in the log, and in Events of their pools. `failed`:
    /// pools that could not be written. A claim of such a pool is reported after a later write of
    /// this pool. There is no report if a LoadBalancer with the former owner's name has the claim
    /// again by then, or if the term ends before that write.
    pub(super) fn report_freed<'a>(
        &mut self,
        freed: impl Iterator<Item = &'a OrphanClaim>,
        failed: &BTreeSet<String>,
    ) {
        self.unreported.extend(freed.map(|orphan| (orphan.claim.clone(), orphan.owner.clone())));
        let settled = self.unreported.extract_if(.., |claim, _| !failed.contains(&claim.pool));
        let mut pools: BTreeMap<String, Vec<(Claim, Owner)>> = BTreeMap::new();
        for (claim, owner) in settled {
            // The UID may differ: Harvester's CRD stores no UIDs.
            if self.allocator.owner_of(&claim).is_some_and(|now| now.name == owner.name) {
                continue;
            }
            self.ctx.metrics.repairs.with_label_values(&["orphan"]).inc();
            tracing::warn!(pool = claim.pool, ip = %claim.ip, owner = owner.name, "orphan freed");
            pools.entry(claim.pool.clone()).or_default().push((claim, owner));
        }
        for (pool, orphans) in pools {
            let listed = if orphans.len() > MOST_EVENTS { 1 } else { orphans.len() };
            let more = match orphans.len() - listed {
                0 => String::new(),
                more => format!("; {more} more addresses were freed"),
            };
            for (claim, owner) in orphans.into_iter().take(listed) {
                self.ctx.events.warning(
                    self.reference(&pool),
                    "OrphanFreed",
                    format!(
                        "{} was freed: it was held for {}, which no longer exists or has another address{more}",
                        claim.ip, owner.name
                    ),
                );
            }
        }
    }
}

/// Asks the API server which suspect claims are orphans, and sends each orphan to the ledger task.
/// The view is not enough, because it may be older than a claim. A claim waits for the next sweep
/// if a read for this claim fails.
async fn look_up(client: Client, ledger: LedgerHandle, suspects: Vec<(Claim, Owner)>) {
    let asked = stream::iter(suspects).map(|(claim, owner)| confirm(&client, claim, owner));
    let mut answers = asked.buffer_unordered(LOOKUPS);
    while let Some(answer) = answers.next().await {
        if let Some(orphan) = answer {
            ledger.orphaned(orphan);
        }
    }
}

/// Confirms by reads of the LoadBalancer and its Service that the claim is an orphan. `None`: it is
/// no orphan, or a read failed.
pub(super) async fn confirm(client: &Client, claim: Claim, owner: Owner) -> Option<OrphanClaim> {
    let orphan = |namesake| OrphanClaim { claim, owner: owner.clone(), namesake };
    let Some((namespace, name)) = owner.name.split_once('/') else { return Some(orphan(None)) };
    let reader = ApiReader::new(client.clone());
    if owner.uid.is_empty() {
        if let Some(lb) = reader.load_balancer(namespace, name).await.ok()? {
            if facts::wants_pool(&lb) || facts::is_in_ledger(&lb) {
                return Some(orphan(Some(lb.uid().unwrap_or_default())));
            }
            // Harvester's CRD stores no UIDs. So after a change of leaders, the claim of a
            // LoadBalancer that was changed to `ipam: dhcp` may have no UID. The release of the
            // LoadBalancer's claims does not find such a claim. The Service of a vm load balancer
            // asks for another address by now, so the claim is an orphan. If the type was changed
            // too, the former Service may still exist, which is checked below.
            if listeners::is_vm(&lb) {
                return Some(orphan(None));
            }
        }
    } else if reader.uid_of(namespace, name).await.ok()?.as_ref() == Some(&owner.uid) {
        return None;
    }
    let is_served = is_served(client, namespace, name, &owner).await?;
    (!is_served).then(|| orphan(None))
}

/// Whether the Service of the LoadBalancer `owner` exists. Such a Service still uses the address.
/// After the deletion of a LoadBalancer, its Service exists until it is garbage collected. `None`:
/// the Service could not be read.
async fn is_served(client: &Client, namespace: &str, name: &str, owner: &Owner) -> Option<bool> {
    let api: Api<PartialObjectMeta<Service>> = Api::namespaced(client.clone(), namespace);
    let service = api.call_get_opt(name).await.ok()?;
    Some(service.is_some_and(|service| {
        service.owner_references().iter().any(|reference| {
            reference.kind == "LoadBalancer"
                && reference.name == name
                && (owner.uid.is_empty() || reference.uid == owner.uid)
        })
    }))
}
