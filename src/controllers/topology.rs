//! Tells VMs where they run. What is told is decided in [`crate::domain::vm_backends::topology`].
//!
//! Slow on purpose: a change of a node's labels concerns every VM on it, and none is in a hurry.

use std::time::Duration;

use tokio::sync::mpsc;

use super::Context;
use crate::domain::vm_backends::topology;
use crate::k8s::CallError;

/// From one write to the next.
const PACE: Duration = Duration::from_millis(10);
/// Before a write that failed for a reason that may pass is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Tells each VM that it is told of, until dropped.
pub(super) async fn run(ctx: Context, mut moved: mpsc::UnboundedReceiver<Box<str>>) {
    while let Some(key) = moved.recv().await {
        while tell(&ctx, &key).await.is_err() {
            tokio::time::sleep(RETRY).await;
        }
    }
}

async fn tell(ctx: &Context, key: &str) -> Result<(), CallError> {
    let Some((vm, here)) = ctx.views.whereabouts(key) else { return Ok(()) };
    let Some(patch) = topology::patch(&vm, &here) else { return Ok(()) };
    let Some((namespace, name)) = key.split_once('/') else { return Ok(()) };
    let told = ctx.writer.patch_vm(namespace, name, &patch).await;
    tokio::time::sleep(PACE).await;
    match told {
        Ok(()) => {
            tracing::info!(vm = key, region = here.region, zone = here.zone, "told where it runs");
            Ok(())
        }
        // It has changed, and comes again with that change; or it is gone.
        Err(CallError::Conflict | CallError::NotFound | CallError::NotLeader) => Ok(()),
        Err(error) if error.refusal().is_some() => {
            tracing::warn!(vm = key, %error, "cannot be told where it runs");
            Ok(())
        }
        Err(error) => {
            tracing::warn!(vm = key, %error, "not told where it runs, trying again");
            Err(error)
        }
    }
}
