//! What must be known before a decision: the ledger's answer, and where it matters the object
//! as the API server has it now.

use std::sync::Arc;

use kube::{Api, ResourceExt};

use super::{Context, Error, leasing};
use crate::api::LoadBalancer;
use crate::controllers::ip_pool::LedgerError;
use crate::domain::LbFacts;
use crate::domain::load_balancer::facts::{self, Project, is_leaving, wants_pool};
use crate::domain::load_balancer::status::Finding;
use crate::domain::pools::allocator::Verdict;
use crate::domain::reason::Wait;
use crate::k8s::{CallError, call};

/// Asks the ledger, if the LoadBalancer takes its address from pools. `fresh` is whether the
/// object was just read. Returns the object that the answer is about: when the ledger must
/// not decide on an old view, that is the current one. `None`: it is gone or going, or its
/// namespace was not seen yet.
pub(super) async fn finding(
    lb: Arc<LoadBalancer>,
    fresh: bool,
    ctx: &Context,
) -> Result<Option<(Arc<LoadBalancer>, Finding)>, Error> {
    if let Some(removal) = ctx.shared.views.removal_of(&lb) {
        return refuse(lb, fresh, removal, ctx).await;
    }
    ask(lb, fresh, ctx).await
}

/// A view may be older than the address, and a claim older than the removal of the cluster.
async fn refuse(
    lb: Arc<LoadBalancer>,
    fresh: bool,
    why: Wait,
    ctx: &Context,
) -> Result<Option<(Arc<LoadBalancer>, Finding)>, Error> {
    let lb = if fresh { Some(lb) } else { current(&lb, ctx).await? };
    let Some(lb) = lb.filter(|lb| !is_leaving(lb)) else { return Ok(None) };
    if facts::has_address(&lb) {
        return ask(lb, true, ctx).await;
    }
    ctx.ledger.release(facts::owner(&lb)).await?;
    Ok(Some((lb, Finding::Pool(Verdict::Waiting(why)))))
}

async fn ask(
    lb: Arc<LoadBalancer>,
    fresh: bool,
    ctx: &Context,
) -> Result<Option<(Arc<LoadBalancer>, Finding)>, Error> {
    if !wants_pool(&lb) {
        let found = Box::pin(leasing::finding(&lb, ctx)).await?;
        return Ok(found.map(|found| (lb, found)));
    }
    let Some(facts) = facts_of(&lb, fresh, ctx) else { return Ok(None) };
    match ctx.ledger.claim(facts).await {
        Ok(verdict) => {
            // Its end may have been told before it asked: then nothing else takes it off the list of
            // those who wait.
            if matches!(verdict, Verdict::Waiting(_)) && !ctx.shared.views.has(&lb) {
                ctx.ledger.forget(facts::owner(&lb));
            }
            Ok(Some((lb, Finding::Pool(verdict))))
        }
        Err(LedgerError::Stale) if !fresh => {
            let Some(lb) = current(&lb, ctx).await?.filter(|lb| !is_leaving(lb)) else {
                return Ok(None);
            };
            let Some(facts) = facts_of(&lb, true, ctx) else { return Ok(None) };
            let verdict = ctx.ledger.claim(facts).await?;
            Ok(Some((lb, Finding::Pool(verdict))))
        }
        Err(error) => Err(error.into()),
    }
}

/// The object as the server has it; `None` if it is gone, or another one has its name.
pub(super) async fn current(
    lb: &LoadBalancer,
    ctx: &Context,
) -> Result<Option<Arc<LoadBalancer>>, CallError> {
    let api: Api<LoadBalancer> =
        Api::namespaced(ctx.shared.client.clone(), &lb.namespace().unwrap_or_default());
    match Box::pin(call(api.get(&lb.name_any()))).await {
        Ok(now) => Ok(Some(now).filter(|now| now.uid() == lb.uid()).map(Arc::new)),
        Err(CallError::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

/// `None`: its namespace was not seen yet, and nobody knows which project it is in. Seeing it leads
/// here again.
fn facts_of(lb: &LoadBalancer, fresh: bool, ctx: &Context) -> Option<LbFacts> {
    let around = ctx.shared.views.around(lb);
    let segment = |network: &str| ctx.shared.views.segment(network);
    (around.project != Project::Unknown).then(|| facts::facts(lb, &around, segment, fresh))
}
