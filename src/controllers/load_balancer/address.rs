//! Allocation of a LoadBalancer's address: by the ledger, by the host's DHCP client or by the
//! announcer.
//!
//! Invariant: a decision to release a claim uses the LoadBalancer as the API server has it now. The
//! view may be old, so it is not enough. The invariants of leased addresses are in [`leasing`].

use super::{Allocation, LbContext, ObservedLb, ReconcileError, leasing, serve};
use crate::controllers::ip_pool::LedgerError;
use crate::domain::load_balancer::facts::{self, Project, wants_pool};
use crate::domain::load_balancer::status::{self, AddressOutcome};
use crate::domain::pools::allocator::ClaimResult;
use crate::domain::reason::NoAddressReason;

/// Allocates the LoadBalancer's address: by a claim in an IPPool's ledger, or by a DHCPLease. A
/// LoadBalancer without an address gets none while its guest cluster is being removed. The same is
/// true while the VMs that determine its network are not listed.
pub(super) async fn allocate(
    observed: &ObservedLb,
    ctx: &LbContext,
) -> Result<Allocation, ReconcileError> {
    let ObservedLb { lb, fresh, .. } = observed;
    let views = &ctx.shared.views;
    if let Some(removal) = views.removal_of(lb) {
        return refuse(observed, removal, ctx).await;
    }
    if !wants_pool(lb) {
        let allocation = Box::pin(leasing::allocate(lb, ctx)).await?;
        let is_decided = matches!(allocation, Allocation::Done(_));
        let is_in_ledger = facts::is_in_ledger(lb) || ctx.ledger.is_stray(&facts::owner(lb));
        if is_decided && is_in_ledger && !leave_pool(observed, ctx).await? {
            // If no claim is published, the next sweep causes another attempt at the release.
            let kept = status::keep_while_served(lb).map(Allocation::Done);
            return Ok(kept.unwrap_or(allocation));
        }
        return Ok(allocation);
    }
    // The order matters: if VMs are listed by now, `around` below includes all VMs.
    if views.awaits_vms(lb) {
        if !ctx.vms_overdue() {
            return Ok(Allocation::Unobserved);
        }
        return refuse(observed, NoAddressReason::NetworkUnknown, ctx).await;
    }
    let around = views.around(lb);
    if around.project == Project::Unknown {
        return Ok(Allocation::Unobserved);
    }
    let facts = facts::facts(lb, &around, |network| views.segment(network), *fresh);
    let result = match ctx.ledger.claim(facts, || views.has(lb)).await {
        Err(LedgerError::Stale) => return Err(ReconcileError::Outdated),
        answer => answer?,
    };
    Ok(Allocation::Done(AddressOutcome::Pool(result)))
}

/// Releases the claim or the waiting request of a LoadBalancer with `ipam: dhcp`. Its `spec.ipam`
/// was `pool` before, and Harvester's CRD does not refuse a change of this field. Deletes the
/// Service first, because the Service asks for the claimed address. Returns `false`, and releases
/// nothing, if a finalizer delays the deletion of the Service. Fails with
/// [`ReconcileError::Outdated`] if the object is from a view.
async fn leave_pool(observed: &ObservedLb, ctx: &LbContext) -> Result<bool, ReconcileError> {
    let lb = &observed.lb;
    if !observed.fresh {
        return Err(ReconcileError::Outdated);
    }
    // Harvester's CRD does not refuse a change of the type either.
    if serve::may_be_served(lb, ctx) && !Box::pin(serve::suspend(lb, ctx)).await? {
        return Ok(false);
    }
    ctx.ledger.release(facts::owner(lb)).await?;
    Ok(true)
}

/// Refuses an address to a LoadBalancer that has none. Releases the LoadBalancer's claim or waiting
/// request in the ledger. Fails with [`ReconcileError::Outdated`] if the object is from a view: the
/// LoadBalancer may have an address by now, and this address must stay. `why`: the reported reason.
async fn refuse(
    observed: &ObservedLb,
    why: NoAddressReason,
    ctx: &LbContext,
) -> Result<Allocation, ReconcileError> {
    if !observed.fresh {
        return Err(ReconcileError::Outdated);
    }
    ctx.ledger.release(facts::owner(&observed.lb)).await?;
    Ok(Allocation::Done(AddressOutcome::Pool(ClaimResult::Waiting(why))))
}
