//! Claims whose LoadBalancer is gone: found by comparison, confirmed by asking, then freed.
//! Owners of several claims are looked at again: a change of pool may have been cut short.

use k8s_openapi::api::core::v1::Service;
use kube::core::PartialObjectMeta;
use kube::{Api, ResourceExt};
use kube_runtime::reflector::ObjectRef;

use super::LedgerTask;
use super::commit::Outcome;
use crate::api::LoadBalancer;
use crate::domain::{Claim, Owner};
use crate::k8s::{CallError, call};

impl LedgerTask {
    /// Frees every claim without an owner. Asks the server about each first: the view may be
    /// older than the claim.
    pub(super) async fn sweep(&mut self) -> anyhow::Result<()> {
        for lb in self.ctx.views.load_balancers.state() {
            if self.book.claims_of(lb.uid().as_deref().unwrap_or_default()).len() > 1 {
                let _ = self.wake.send(ObjectRef::from_obj(lb.as_ref()));
            }
        }
        let suspects = self.book.orphans(&self.world());
        if suspects.is_empty() {
            return Ok(());
        }
        let mut orphans: Vec<(Claim, Owner)> = Vec::new();
        for (claim, owner) in suspects {
            if self.is_gone(&claim, &owner).await {
                orphans.push((claim, owner));
            }
        }
        if orphans.is_empty() {
            return Ok(());
        }
        let mut changed = Vec::new();
        loop {
            for (claim, owner) in &orphans {
                self.book.release_claim(claim, owner);
            }
            changed.extend(self.book.serve_waiters());
            if self.commit().await? != Outcome::Replay {
                break;
            }
        }
        for (claim, owner) in &orphans {
            self.ctx.metrics.repairs.with_label_values(&["orphan"]).inc();
            tracing::warn!(pool = claim.pool, ip = %claim.ip, owner = owner.name, "orphaned claim freed");
            self.ctx.events.warning(
                self.reference(&claim.pool),
                "OrphanFreed",
                format!(
                    "{} was held for {}, which no longer exists or has another address",
                    claim.ip, owner.name
                ),
            );
        }
        for owner in changed {
            self.wake_lb(&owner.name);
        }
        self.report();
        Ok(())
    }

    async fn is_gone(&self, claim: &Claim, owner: &Owner) -> bool {
        let Some((namespace, name)) = owner.name.split_once('/') else { return true };
        let api: Api<PartialObjectMeta<LoadBalancer>> =
            Api::namespaced(self.ctx.client.clone(), namespace);
        match call(api.get(name)).await {
            Ok(lb) if owner.uid.is_empty() => {
                self.book.is_second(claim, owner, lb.uid().as_deref())
            }
            Ok(lb) => {
                lb.uid().as_deref() != Some(&owner.uid)
                    && self.is_served(namespace, name, owner).await == Some(false)
            }
            Err(CallError::NotFound) => self.is_served(namespace, name, owner).await == Some(false),
            // Not known: the next sweep asks again.
            Err(_) => false,
        }
    }

    /// Whether a Service still asks for the address, which outlives its owner until it is
    /// collected. `None`: not known.
    async fn is_served(&self, namespace: &str, name: &str, owner: &Owner) -> Option<bool> {
        let api: Api<PartialObjectMeta<Service>> =
            Api::namespaced(self.ctx.client.clone(), namespace);
        match call(api.get(name)).await {
            Ok(service) => Some(service.owner_references().iter().any(|reference| {
                reference.kind == "LoadBalancer"
                    && reference.name == name
                    && (owner.uid.is_empty() || reference.uid == owner.uid)
            })),
            Err(CallError::NotFound) => Some(false),
            Err(_) => None,
        }
    }
}
