//! Allocation of a LoadBalancer's address: by the ledger, by the host's DHCP client or by the guest.
//!
//! Invariant: what takes an address away, or hands one over, is decided on the object as the API
//! server has it now, never on a view.

use super::{Context, Error, Observed, leasing, observe_again};
use crate::api::LoadBalancer;
use crate::controllers::ip_pool::LedgerError;
use crate::domain::LbFacts;
use crate::domain::load_balancer::facts::{self, Project, is_leaving, wants_pool};
use crate::domain::load_balancer::status::Finding;
use crate::domain::pools::allocator::Verdict;
use crate::domain::reason::Wait;

/// Address of a LoadBalancer or why it has none, after the object that this is about: the current one,
/// where an old view must not decide.
type Allocated = (Observed, Finding);

/// Has the LoadBalancer's address recorded, in an IPPool or a DHCPLease. `None`: the LoadBalancer is gone
/// or going, or what must be known for it was not seen yet; seeing it leads here again.
pub(super) async fn allocate(
    observed: Observed,
    ctx: &Context,
) -> Result<Option<Allocated>, Error> {
    match ctx.shared.views.removal_of(&observed.lb) {
        Some(removal) => refuse(observed, removal, ctx).await,
        None => ask(observed, false, ctx).await,
    }
}

/// Refuses an address to a LoadBalancer without one, and releases what it may have claimed before. A
/// view may be older than the address: one that has an address keeps it.
async fn refuse(observed: Observed, why: Wait, ctx: &Context) -> Result<Option<Allocated>, Error> {
    let Some(now) = observe_again(&observed.lb, ctx).await?.filter(|now| !is_leaving(&now.lb))
    else {
        return Ok(None);
    };
    if facts::has_address(&now.lb) {
        return ask(now, true, ctx).await;
    }
    ctx.ledger.release(facts::owner(&now.lb)).await?;
    Ok(Some((now, Finding::Pool(Verdict::Waiting(why)))))
}

/// Asks the ledger, or leases. `fresh`: the object was read for this very question.
async fn ask(observed: Observed, fresh: bool, ctx: &Context) -> Result<Option<Allocated>, Error> {
    let lb = &observed.lb;
    if !wants_pool(lb) {
        let found = Box::pin(leasing::allocate(lb, ctx)).await?;
        return Ok(found.map(|found| (observed, found)));
    }
    let Some(facts) = facts_of(lb, fresh, ctx) else { return Ok(None) };
    match ctx.ledger.claim(facts).await {
        Ok(verdict) => {
            // The event of its end may have come before it asked: then nothing else takes it off the
            // list of those that wait.
            if matches!(verdict, Verdict::Waiting(_)) && !ctx.shared.views.has(lb) {
                ctx.ledger.forget(facts::owner(lb));
            }
            Ok(Some((observed, Finding::Pool(verdict))))
        }
        Err(LedgerError::Stale) if !fresh => {
            let now = observe_again(lb, ctx).await?.filter(|now| !is_leaving(&now.lb));
            let Some(now) = now else { return Ok(None) };
            let Some(facts) = facts_of(&now.lb, true, ctx) else { return Ok(None) };
            let verdict = ctx.ledger.claim(facts).await?;
            Ok(Some((now, Finding::Pool(verdict))))
        }
        Err(error) => Err(error.into()),
    }
}

/// `None`: its namespace was not seen yet, so its project is not known.
fn facts_of(lb: &LoadBalancer, fresh: bool, ctx: &Context) -> Option<LbFacts> {
    let around = ctx.shared.views.around(lb);
    let segment = |network: &str| ctx.shared.views.segment(network);
    (around.project != Project::Unknown).then(|| facts::facts(lb, &around, segment, fresh))
}
