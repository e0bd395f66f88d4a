//! Carrying a decision out. Every write rests on the object it was decided from; when that
//! has moved on, the decision is made again from the current one.

use std::sync::Arc;

use chrono::{SecondsFormat, Utc};
use kube::ResourceExt;
use serde_json::Value;

use super::{Context, Error, gather, report};
use crate::api::LoadBalancer;
use crate::domain::facts;
use crate::domain::plan::{self, Finding};
use crate::k8s::CallError;

/// How often a decision is repeated for an object that keeps changing under it.
const REPETITIONS: usize = 5;

/// Publishes what was found.
pub(super) async fn publish(
    mut lb: Arc<LoadBalancer>,
    mut finding: Finding,
    ctx: &Context,
) -> Result<(), Error> {
    for _ in 0..REPETITIONS {
        let now = Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true);
        let Some(patch) = plan::patch(&lb, &finding, &now) else { return Ok(()) };
        match write(&lb, &patch, ctx).await {
            Ok(()) => {
                report::published(&lb, &finding, ctx);
                return Ok(());
            }
            Err(CallError::Conflict | CallError::NotFound) => {}
            Err(error) => return Err(error.into()),
        }
        let Some(current) = gather::current(&lb, ctx).await? else {
            // Deleted between claim and publication, and its end perhaps told before the
            // claim: nothing else gives it back.
            return Ok(ctx.ledger.release(facts::owner(&lb)).await?);
        };
        if facts::is_leaving(&current) {
            // Its deletion is the next event.
            return Ok(());
        }
        let Some(found) = gather::finding(current, true, ctx).await? else { return Ok(()) };
        (lb, finding) = found;
    }
    Err(CallError::Conflict.into())
}

/// Lets a deleted object go, once the ledger has let go of it.
pub(super) async fn finalize(lb: &LoadBalancer, ctx: &Context) -> Result<(), Error> {
    let Some(mut patch) = plan::finalize(lb) else { return Ok(()) };
    for _ in 0..REPETITIONS {
        match write(lb, &patch, ctx).await {
            Ok(()) => return Ok(()),
            Err(CallError::Conflict | CallError::NotFound) => {}
            Err(error) => return Err(error.into()),
        }
        let again = gather::current(lb, ctx).await?.as_deref().and_then(plan::finalize);
        match again {
            Some(again) => patch = again,
            None => return Ok(()),
        }
    }
    Err(CallError::Conflict.into())
}

async fn write(lb: &LoadBalancer, patch: &Value, ctx: &Context) -> Result<(), CallError> {
    // The semaphore is never closed; a closed one would not be a reason to skip the write.
    let _permit = ctx.writes.acquire().await;
    // Boxed, so that those that wait for a permit are small.
    Box::pin(ctx.shared.writer.patch_lb(&lb.namespace().unwrap_or_default(), &lb.name_any(), patch))
        .await
}
