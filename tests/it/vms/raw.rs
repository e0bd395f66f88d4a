//! Single writes of virt-controller and the kubelet, for states and orders that a
//! [`Guest`](testbed::kubevirt::Guest) does not have.

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use testbed::eventually;
use testbed::kubevirt::{Launcher, Ready, Vm, instances};

use crate::support::SOON;

/// Creates a namespace.
pub(crate) async fn namespace(client: &Client, name: &str) -> Result<()> {
    let namespace = json!({"metadata": {"name": name}});
    let all = Api::<Namespace>::all(client.clone());
    all.create(&PostParams::default(), &serde_json::from_value(namespace)?).await?;
    Ok(())
}

/// Creates the VMI of a VM, and returns its UID.
pub(super) async fn create(client: &Client, vm: &Vm) -> Result<String> {
    let vmi = serde_json::from_value(vm.instance())?;
    let created = instances(client, &vm.namespace).create(&PostParams::default(), &vmi).await;
    created.with_context(|| format!("create {}", vm.name))?.uid().context("no UID")
}

/// Writes the VMI of a VM.
pub(super) async fn write(client: &Client, vm: &Vm) -> Result<()> {
    let vmis = instances(client, &vm.namespace);
    let said = vm.instance();
    eventually(SOON, &format!("write of {}", vm.name), async || {
        let mut vmi = vmis.get(&vm.name).await?;
        vmi.metadata.labels = Some(vm.labels.clone());
        vmi.data = json!({"spec": said["spec"], "status": said["status"]});
        vmis.replace(&vm.name, &PostParams::default(), &vmi).await.map(|_| true)
    })
    .await
}

/// Marks a VMI as deleted; virt-controller's finalizer holds it.
pub(super) async fn delete(client: &Client, vm: &Vm) -> Result<()> {
    let vmis = instances(client, &vm.namespace);
    vmis.delete(&vm.name, &DeleteParams::default()).await?;
    Ok(())
}

/// Removes the finalizer of a deleted VMI.
pub(super) async fn let_go(client: &Client, vm: &Vm) -> Result<()> {
    let none: Value = json!({"metadata": {"finalizers": null}});
    let vmis = instances(client, &vm.namespace);
    vmis.patch(&vm.name, &PatchParams::default(), &Patch::Merge(none)).await?;
    Ok(())
}

/// A pod that runs a VM on a node, ready or not.
pub(super) fn launcher(vm: &Vm, number: usize, node: &str, ready: bool) -> Launcher {
    Launcher {
        name: format!("virt-launcher-{}-{number}", vm.name),
        uid: String::new(),
        node: node.to_owned(),
        addresses: vm.pod_addresses(),
        migration: None,
        phase: "Running",
        ready: if ready { Ready::yes() } else { Ready::no("ContainersNotReady") },
        unpaused: true,
    }
}

/// Creates the pod, without a status.
pub(super) async fn create_pod(
    client: &Client,
    vm: &Vm,
    uid: &str,
    launcher: &Launcher,
) -> Result<()> {
    let pods = Api::<Pod>::namespaced(client.clone(), &vm.namespace);
    let pod: Pod = serde_json::from_value(launcher.pod(vm, uid))?;
    // Refused in a new namespace until its service account exists.
    eventually(SOON, &format!("pod {}", launcher.name), async || {
        pods.create(&PostParams::default(), &pod).await.map(|_| true)
    })
    .await
}

/// Writes the pod's status.
pub(super) async fn write_pod(client: &Client, vm: &Vm, launcher: &Launcher) -> Result<()> {
    let pods = Api::<Pod>::namespaced(client.clone(), &vm.namespace);
    let status = json!({"status": launcher.status()});
    let params = PatchParams::default();
    unless_gone(pods.patch_status(&launcher.name, &params, &Patch::Merge(status)).await)
}

/// Deletes the pod, with a grace period or at once.
pub(super) async fn delete_pod(
    client: &Client,
    vm: &Vm,
    launcher: &Launcher,
    at_once: bool,
) -> Result<()> {
    let pods = Api::<Pod>::namespaced(client.clone(), &vm.namespace);
    let grace_period_seconds = at_once.then_some(0);
    let params = DeleteParams { grace_period_seconds, ..DeleteParams::default() };
    unless_gone(pods.delete(&launcher.name, &params).await)
}

/// Success also if the garbage collector was faster, once the VMI is gone.
fn unless_gone<T>(result: kube::Result<T>) -> Result<()> {
    match result {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        other => Ok(other.map(drop)?),
    }
}
