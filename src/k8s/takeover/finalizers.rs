//! Removal of the Go controller's finalizers from VMs, at a bounded rate.

use std::time::Duration;

use anyhow::Context as _;
use futures::{StreamExt as _, stream};
use k8s_openapi::NamespaceResourceScope;
use kube::core::{ObjectMeta, PartialObjectMeta};
use kube::{Api, Client, Resource};
use tokio::time::{Instant, sleep_until};

use super::{PATIENCE, TakeoverClient, may_pass};
use crate::api::kubevirt::{VirtualMachine, VirtualMachineInstance};
use crate::domain::object_fields::finalizers::removal_patch;
use crate::domain::takeover::steps::VM_FINALIZERS;
use crate::k8s::CallError;
use crate::k8s::calls::{ApiCalls as _, ApiWrites as _};

/// Maximum number of objects whose finalizers are removed at the same time. Also the number of
/// failures that the removal tolerates. The next failure ends the removal.
const AT_A_TIME: usize = 16;

impl TakeoverClient {
    /// Number of VirtualMachines and VirtualMachineInstances that have one of [`VM_FINALIZERS`].
    pub async fn finalizers(&self) -> anyhow::Result<usize> {
        count(&self.client).await
    }

    /// Removes [`VM_FINALIZERS`] from every VirtualMachine and VirtualMachineInstance, at a rate of
    /// at most `per_second` objects a second. An object that another client has changed or deleted
    /// since the objects were listed is skipped. After each object without an error, calls `done`
    /// with the number of objects changed so far.
    ///
    /// `Err`: finalizers may be left. After an error for which [`may_pass`] is true, the removal
    /// goes on with the other objects, but tolerates at most `AT_A_TIME` such errors. The last
    /// tolerated error is returned at the end. Any other error ends the removal at once.
    pub async fn remove_finalizers(
        &self,
        per_second: u16,
        mut done: impl FnMut(usize),
    ) -> anyhow::Result<()> {
        let vms = held::<VirtualMachine>(&self.client).await?;
        let instances = held::<VirtualMachineInstance>(&self.client).await?;
        let began = Instant::now();
        let interval = Duration::from_secs(1) / u32::from(per_second.max(1));
        let vms = vms.into_iter().map(|meta| (false, meta));
        let all = vms.chain(instances.into_iter().map(|meta| (true, meta)));
        let turns = std::iter::successors(Some(began), |turn| Some(*turn + interval));
        let writes = stream::iter(all.zip(turns)).map(async |((is_instance, meta), turn)| {
            sleep_until(turn).await;
            if is_instance {
                self.release::<VirtualMachineInstance>(&meta).await
            } else {
                self.release::<VirtualMachine>(&meta).await
            }
        });
        let mut written = Box::pin(writes.buffer_unordered(AT_A_TIME));
        let (mut count, mut failed) = (0, Vec::new());
        while let Some(result) = written.next().await {
            match result {
                Err(error) if failed.len() < AT_A_TIME && may_pass(&error) => failed.push(error),
                result => {
                    count += usize::from(result?);
                    done(count);
                }
            }
        }
        failed.pop().map_or(Ok(()), Err)
    }

    /// Removes [`VM_FINALIZERS`] from one object. Returns whether the object was changed.
    async fn release<K>(&self, meta: &ObjectMeta) -> anyhow::Result<bool>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + std::fmt::Debug,
    {
        let (Some(namespace), Some(name)) = (&meta.namespace, &meta.name) else { return Ok(false) };
        let Some(patch) = removal_patch(meta, &VM_FINALIZERS) else { return Ok(false) };
        let api = Api::<PartialObjectMeta<K>>::namespaced(self.client.clone(), namespace);
        match api.within(PATIENCE).call_patch(name, &patch).await {
            Ok(_) => Ok(true),
            Err(CallError::Conflict(_) | CallError::NotFound(_)) => Ok(false),
            Err(error) => {
                let kind = K::kind(&());
                let object = format!("{kind} {namespace}/{name}");
                Err(error).with_context(|| format!("cannot remove the finalizers of {object}"))
            }
        }
    }
}

/// Number of VirtualMachines and VirtualMachineInstances that have one of [`VM_FINALIZERS`].
pub async fn count(client: &Client) -> anyhow::Result<usize> {
    let vms = held::<VirtualMachine>(client).await?.len();
    Ok(vms + held::<VirtualMachineInstance>(client).await?.len())
}

/// Metadata of each object of the kind `K` that has one of [`VM_FINALIZERS`]. The result is empty
/// if the kind is not served.
async fn held<K>(client: &Client) -> anyhow::Result<Vec<ObjectMeta>>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug,
{
    let api = Api::<PartialObjectMeta<K>>::all(client.clone());
    let mut held = Vec::new();
    let take = |object: PartialObjectMeta<K>| {
        if removal_patch(&object.metadata, &VM_FINALIZERS).is_some() {
            held.push(object.metadata);
        }
    };
    match api.within(PATIENCE).list_each(take).await {
        Ok(()) | Err(CallError::NotFound(_)) => Ok(held),
        Err(error) => Err(error.into()),
    }
}
