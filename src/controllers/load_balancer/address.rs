//! Allocation of a LoadBalancer's address: by the ledger, by the host's DHCP client or by the
//! guest.
//!
//! Invariant: a decision that withdraws an address, or moves one, uses the object that the API
//! server has now, never a view.

use super::{LbContext, ObservedLb, ReconcileError, leasing, observe_again};
use crate::api::LoadBalancer;
use crate::controllers::ip_pool::LedgerError;
use crate::domain::LbFacts;
use crate::domain::load_balancer::facts::{self, Project, is_leaving, wants_pool};
use crate::domain::load_balancer::status::AddressOutcome;
use crate::domain::pools::allocator::ClaimResult;
use crate::domain::reason::NoAddressReason;

/// Observed LoadBalancer, and its address or the reason why it has none. The object was read from
/// the API server where an old view must not decide.
type Allocated = (ObservedLb, AddressOutcome);

/// Allocates the LoadBalancer's address, recorded in an IPPool or a DHCPLease. `None`: the
/// LoadBalancer is gone or being deleted, or a required object was not observed yet; its event
/// triggers the next reconcile.
pub(super) async fn allocate(
    observed: ObservedLb,
    ctx: &LbContext,
) -> Result<Option<Allocated>, ReconcileError> {
    match ctx.shared.views.removal_of(&observed.lb) {
        Some(removal) => refuse(observed, removal, ctx).await,
        None => ask(observed, false, ctx).await,
    }
}

/// Refuses an address to a LoadBalancer without one, and releases the claim that it may have. A
/// view may be older than the address, so the object is read first: an existing address stays.
async fn refuse(
    observed: ObservedLb,
    why: NoAddressReason,
    ctx: &LbContext,
) -> Result<Option<Allocated>, ReconcileError> {
    let Some(now) = observe_again(&observed.lb, ctx).await?.filter(|now| !is_leaving(&now.lb))
    else {
        return Ok(None);
    };
    if facts::has_address(&now.lb) {
        return ask(now, true, ctx).await;
    }
    ctx.ledger.release(facts::owner(&now.lb)).await?;
    Ok(Some((now, AddressOutcome::Pool(ClaimResult::Waiting(why)))))
}

/// Claims an address from the ledger, or leases one. `fresh`: the object was just read from the API
/// server.
async fn ask(
    observed: ObservedLb,
    fresh: bool,
    ctx: &LbContext,
) -> Result<Option<Allocated>, ReconcileError> {
    let lb = &observed.lb;
    if !wants_pool(lb) {
        let found = Box::pin(leasing::allocate(lb, ctx)).await?;
        return Ok(found.map(|found| (observed, found)));
    }
    let Some(facts) = facts_of(lb, fresh, ctx) else { return Ok(None) };
    match ctx.ledger.claim(facts).await {
        Ok(verdict) => {
            // The deletion event may have come before the claim: then nothing else removes the
            // LoadBalancer from the list of waiters.
            if matches!(verdict, ClaimResult::Waiting(_)) && !ctx.shared.views.has(lb) {
                ctx.ledger.forget(facts::owner(lb));
            }
            Ok(Some((observed, AddressOutcome::Pool(verdict))))
        }
        Err(LedgerError::Stale) if !fresh => {
            let now = observe_again(lb, ctx).await?.filter(|now| !is_leaving(&now.lb));
            let Some(now) = now else { return Ok(None) };
            let Some(facts) = facts_of(&now.lb, true, ctx) else { return Ok(None) };
            let verdict = ctx.ledger.claim(facts).await?;
            Ok(Some((now, AddressOutcome::Pool(verdict))))
        }
        Err(error) => Err(error.into()),
    }
}

/// Facts of a LoadBalancer for the ledger. `None`: its namespace was not observed yet, so its
/// project is unknown.
fn facts_of(lb: &LoadBalancer, fresh: bool, ctx: &LbContext) -> Option<LbFacts> {
    let around = ctx.shared.views.around(lb);
    let segment = |network: &str| ctx.shared.views.segment(network);
    (around.project != Project::Unknown).then(|| facts::facts(lb, &around, segment, fresh))
}
