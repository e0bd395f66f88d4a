//! Writes a LoadBalancer. Each write contains the version of the object that was read for the
//! decision. If the object has changed since, the API server refuses the write.

use std::sync::atomic::Ordering;

use chrono::Utc;
use kube::ResourceExt;
use kube::core::ObjectMeta;
use serde_json::Value;
use tokio::time::Instant;

use super::{LbContext, ObservedLb, ReconcileError, ServingOutcome};
use crate::api::LoadBalancer;
use crate::domain::load_balancer::{facts, status};
use crate::domain::object_fields::rfc3339;
use crate::k8s::CallError;

/// Writes the address, and the state of the Service of a vm load balancer, into the LoadBalancer's
/// status. Returns whether the write has changed the status. If only the counts of VMs are new, the
/// write is delayed, and the result is `false`. Exception: if a delayed write of the counts is
/// overdue, the new counts are written now.
///
/// With the schema of Harvester's CRD, the API server drops one of the counts, `status.endpoints`,
/// from each write. Once a write has changed nothing for this reason, no patch that only adds this
/// field is written in this term. Other patches still contain the field, because the schema of the
/// operator's CRD may be back.
pub(super) async fn publish(
    observed: &ObservedLb,
    served: &ServingOutcome,
    ctx: &LbContext,
) -> Result<bool, ReconcileError> {
    let (ObservedLb { lb, partial, large, .. }, ServingOutcome { outcome, report, .. }) =
        (observed, served);
    let name = facts::name(lb);
    let now = rfc3339::to_second(Utc::now());
    let has_effect = |patch: &Value| {
        !ctx.drops_counts.load(Ordering::Relaxed) || !status::adds_only_counts(lb, patch)
    };
    let Some(patch) = status::patch(lb, outcome, report.as_ref(), &now).filter(has_effect) else {
        ctx.counts.discard(&name);
        return Ok(false);
    };
    if status::changes_only_counts(&patch) {
        if ctx.counts.delay(&name, &patch, *large, Instant::now()) {
            return Ok(false);
        }
    } else {
        // A waiting patch is older than this one, and must not be written before it.
        ctx.counts.discard(&name);
        if *partial {
            return Err(ReconcileError::Outdated);
        }
    }
    let written = write(lb, &patch, ctx).await?;
    ctx.counts.discard(&name);
    Ok(has_changed(&patch, &written, ctx))
}

/// Writes a delayed patch of counts to the LoadBalancer. The caller holds a turn of
/// [`LbContext::writes`].
pub(super) async fn write_counts(
    namespace: &str,
    name: &str,
    patch: &Value,
    ctx: &LbContext,
) -> Result<(), CallError> {
    let write = ctx.shared.writer.patch::<LoadBalancer>(Some(namespace), name, patch);
    let written = Box::pin(write).await?;
    has_changed(patch, &written, ctx);
    Ok(())
}

/// Whether the write of `patch` has changed the object. If not, records that the API server drops
/// `status.endpoints`. `written`: the metadata after the write.
fn has_changed(patch: &Value, written: &ObjectMeta, ctx: &LbContext) -> bool {
    let before = patch["metadata"]["resourceVersion"].as_str();
    let has_changed = written.resource_version.as_deref() != before;
    if !has_changed {
        ctx.drops_counts.store(true, Ordering::Relaxed);
    }
    has_changed
}

/// Removes the finalizer of a deleted LoadBalancer. The ledger must have released the
/// LoadBalancer's claim before.
pub(super) async fn finalize(observed: &ObservedLb, ctx: &LbContext) -> Result<(), ReconcileError> {
    let Some(patch) = status::finalize(&observed.lb) else { return Ok(()) };
    if observed.partial {
        return Err(ReconcileError::Outdated);
    }
    write(&observed.lb, &patch, ctx).await.map(drop)
}

/// Writes `patch`, a patch of annotations, to the LoadBalancer.
pub(super) async fn annotate(
    lb: &LoadBalancer,
    patch: &Value,
    ctx: &LbContext,
) -> Result<(), ReconcileError> {
    write(lb, patch, ctx).await.map(drop)
}

/// Patches the LoadBalancer. Before that, waits for a turn, because the number of concurrent writes
/// is limited. Returns the new metadata. [`ReconcileError::Outdated`]: the object has changed or is
/// gone.
async fn write(
    lb: &LoadBalancer,
    patch: &Value,
    ctx: &LbContext,
) -> Result<ObjectMeta, ReconcileError> {
    let has_address = facts::published(lb).is_some() || facts::leased(lb).is_some();
    let is_awaited = !has_address || facts::is_leaving(lb);
    let namespace = lb.namespace().unwrap_or_default();
    let _turn = tokio::select! {
        turn = ctx.writes.take(namespace.clone()) => turn,
        turn = ctx.awaited_writes.take(namespace.clone()), if is_awaited => turn,
    };
    let (writer, name) = (&ctx.shared.writer, lb.name_any());
    let write = writer.patch::<LoadBalancer>(Some(&namespace), &name, patch);
    // Boxed, so that futures that wait for a turn are small.
    let written = Box::pin(write).await;
    written.map_err(|error| match error {
        CallError::Conflict(_) | CallError::NotFound(_) => ReconcileError::Outdated,
        error => error.into(),
    })
}
