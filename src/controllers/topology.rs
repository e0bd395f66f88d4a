//! Patches topology annotations onto VMs. [`crate::domain::vm_backends::topology`] decides their
//! values.
//!
//! Pauses after each write. Otherwise a change of a node's labels would cause a burst of writes,
//! one for each VM on the node. No VM needs the new annotations at once.

use std::time::Duration;

use tokio::sync::mpsc;

use super::Context;
use crate::api::kubevirt::VirtualMachineInstance;
use crate::domain::vm_backends::topology;
use crate::k8s::CallError;
use crate::k8s::informer::split_key;

/// Pause between the writes of two VMs.
const PACE: Duration = Duration::from_millis(10);
/// Pause before a failed write is tried again. A refused write is not tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Patches topology annotations onto each VM whose `namespace/name` arrives on `moved`. Returns
/// when all senders of `moved` are dropped.
pub(super) async fn run(ctx: Context, mut moved: mpsc::UnboundedReceiver<Box<str>>) {
    while let Some(key) = moved.recv().await {
        while annotate(&ctx, &key).await.is_err() {
            tokio::time::sleep(RETRY).await;
        }
    }
}

async fn annotate(ctx: &Context, key: &str) -> Result<(), CallError> {
    let Some((vm, here)) = ctx.views.whereabouts(key) else { return Ok(()) };
    let Some(patch) = topology::patch(&vm, &here) else { return Ok(()) };
    let (namespace, name) = split_key(key);
    let write = ctx.writer.patch::<VirtualMachineInstance>(Some(namespace), name, &patch);
    let written = write.await;
    tokio::time::sleep(PACE).await;
    match written {
        Ok(_) => {
            tracing::info!(
                vm = key,
                region = here.region,
                zone = here.zone,
                "topology annotations written"
            );
            Ok(())
        }
        // The write is not tried again: the VM is gone, its change enqueues it again, or the term
        // is over.
        Err(CallError::Conflict(_) | CallError::NotFound(_) | CallError::NotLeader) => Ok(()),
        Err(error) if error.refusal().is_some() => {
            tracing::warn!(vm = key, %error, "the API server refused the topology annotations");
            Ok(())
        }
        Err(error) => {
            tracing::warn!(vm = key, %error, "cannot write topology annotations, trying again");
            Err(error)
        }
    }
}
