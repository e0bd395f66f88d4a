//! Carrying a decision out. Every write rests on the object it was decided from; when that
//! has moved on, the decision is made again from the current one.

use std::sync::Arc;

use chrono::{SecondsFormat, Utc};
use kube::ResourceExt;
use serde_json::Value;

use super::{Context, Error, gather, report};
use crate::api::LoadBalancer;
use crate::domain::load_balancer::facts;
use crate::domain::load_balancer::status::{self, Finding};
use crate::domain::pools::allocator::Verdict;
use crate::domain::vm_backends::listeners::Report;
use crate::k8s::CallError;

/// How often a decision is repeated for an object that keeps changing under it.
const REPETITIONS: usize = 5;

/// Publishes what was found, and what became of the Service of a vm load balancer. Counts of VMs
/// alone may follow later.
pub(super) async fn publish(
    mut lb: Arc<LoadBalancer>,
    mut finding: Finding,
    report: Option<&Report>,
    ctx: &Context,
) -> Result<(), Error> {
    let mut partial = ctx.shared.views.is_partial(&lb);
    for _ in 0..REPETITIONS {
        let now = Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true);
        let Some(patch) = status::patch(&lb, &finding, report, &now) else {
            ctx.counts.settle(&lb);
            return Ok(());
        };
        // What was just decided on all that is known need not be decided again. Without a report,
        // and when pools change, the next step waits for this one.
        let is_all = report.is_some() && is_published(&lb, &finding);
        if !partial
            && !status::is_urgent(&lb, &patch)
            && ctx.counts.defer(&lb, patch.clone(), is_all)
        {
            return Ok(());
        }
        // What the view lacks would be lost: then all of it is read first.
        if !std::mem::take(&mut partial) {
            let writing = ctx.shared.views.writing(facts::name(&lb));
            match write(&lb, &patch, ctx).await {
                Ok(version) => {
                    ctx.counts.settle(&lb);
                    report::published(&lb, &finding, report, ctx);
                    if is_all {
                        writing.is_all(version);
                    }
                    return Ok(());
                }
                Err(CallError::Conflict | CallError::NotFound) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let Some(current) = gather::current(&lb, ctx).await? else {
            // Deleted between claim and publication, and its end perhaps told before the
            // claim: nothing else gives it back.
            let owner = facts::owner(&lb);
            if ctx.shared.views.is_served(&owner) {
                // The end of its Service is an event, and gives it back.
                return Ok(());
            }
            ctx.ledger.release(owner).await?;
            return Ok(());
        };
        if facts::is_leaving(&current) {
            // Its deletion is the next event.
            return Ok(());
        }
        let Some(found) = gather::finding(current, true, ctx).await? else { return Ok(()) };
        if report.is_some() && found.1 != finding {
            // The Service rests on another address. The change that led here is an event.
            return Ok(());
        }
        (lb, finding) = found;
    }
    Err(CallError::Conflict.into())
}

/// Lets a deleted object go, once the ledger has let go of it.
pub(super) async fn finalize(lb: &LoadBalancer, ctx: &Context) -> Result<(), Error> {
    let Some(mut patch) = status::finalize(lb) else { return Ok(()) };
    let mut partial = ctx.shared.views.is_partial(lb);
    for _ in 0..REPETITIONS {
        if !std::mem::take(&mut partial) {
            match write(lb, &patch, ctx).await {
                Ok(_) => return Ok(()),
                Err(CallError::Conflict | CallError::NotFound) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let again = gather::current(lb, ctx).await?.as_deref().and_then(status::finalize);
        match again {
            Some(again) => patch = again,
            None => return Ok(()),
        }
    }
    Err(CallError::Conflict.into())
}

/// Whether the object said so before.
fn is_published(lb: &LoadBalancer, finding: &Finding) -> bool {
    match finding {
        Finding::Pool(Verdict::Held { claim, .. }) => facts::published(lb).as_ref() == Some(claim),
        Finding::Host(lease) => facts::leased(lb) == lease.as_ref().ok().map(|lease| lease.ip),
        _ => facts::published(lb).is_none(),
    }
}

/// Returns the version written.
pub(super) async fn write(
    lb: &LoadBalancer,
    patch: &Value,
    ctx: &Context,
) -> Result<String, CallError> {
    // The semaphore is never closed; a closed one would not be a reason to skip the write.
    let _permit = ctx.writes.acquire().await;
    // Boxed, so that those that wait for a permit are small.
    Box::pin(ctx.shared.writer.patch_lb(&lb.namespace().unwrap_or_default(), &lb.name_any(), patch))
        .await
}
