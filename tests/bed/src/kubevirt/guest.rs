//! Owns a VM's life: the objects that virt-controller and the kubelet write when a VM starts,
//! pauses, migrates, fails and ends.
//!
//! A [`Guest`] is the only writer of its VMI and pods. It writes the pods first, as the VMI's
//! status follows from theirs. Finalizers that others add to the VMI stay.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;

use super::instances;
use super::vm::{FINALIZER, Launcher, Phase, Ready, Vm};
use crate::eventually;

const PATIENCE: Duration = Duration::from_mins(2);
const MIGRATION_TARGET: &str = "kubevirt.io/migrationTargetNodeName";
const NODE: &str = "kubevirt.io/nodeName";

/// Next number for pods and migrations of this process.
static NEXT: AtomicU32 = AtomicU32::new(1);

/// Result of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The VM runs on the target now.
    Succeeded,
    /// The VM stayed where it was.
    Failed,
    /// The migration was cancelled, and the VM stayed where it was.
    Aborted,
}

/// A VM in the cluster: its VMI and its pods. They stay when this is dropped.
#[derive(Clone)]
pub struct Guest {
    client: Client,
    vm: Vm,
    uid: String,
    launchers: Vec<Launcher>,
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Guest");
        shown.field("vm", &self.vm).field("uid", &self.uid).field("launchers", &self.launchers);
        shown.finish_non_exhaustive()
    }
}

impl Guest {
    /// Creates the VMI of the VM, without a pod.
    pub async fn create(client: &Client, vm: Vm) -> Result<Self> {
        let created = instances(client, &vm.namespace)
            .create(&PostParams::default(), &serde_json::from_value(vm.instance())?)
            .await
            .with_context(|| format!("create the VMI {}", vm.name))?;
        let uid = created.uid().context("a VMI without UID")?;
        Ok(Self { client: client.clone(), vm, uid, launchers: Vec::new() })
    }

    /// Creates a VM and takes it through all states until it runs with its agent connected.
    pub async fn run(client: &Client, vm: Vm, node: &str) -> Result<Self> {
        let mut guest = Self::create(client, vm).await?;
        guest.schedule(node).await?;
        guest.boot().await?;
        guest.agent(true).await?;
        Ok(guest)
    }

    /// The VM as last written.
    pub fn vm(&self) -> &Vm {
        &self.vm
    }

    /// The VMI's UID.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Existing virt-launcher pods, the oldest first.
    pub fn launchers(&self) -> &[Launcher] {
        &self.launchers
    }

    /// Reads the VMI from the API server.
    pub async fn instance(&self) -> Result<DynamicObject> {
        Ok(self.instances().get(&self.vm.name).await?)
    }

    /// Changes the VM and writes the VMI; writes its pods before that if their addresses changed.
    pub async fn change(&mut self, change: impl FnOnce(&mut Vm)) -> Result<()> {
        let before = self.vm.pod_addresses();
        change(&mut self.vm);
        let now = self.vm.pod_addresses();
        for at in (0..self.launchers.len()).filter(|_| now != before) {
            self.launchers[at].addresses.clone_from(&now);
            self.write_pod(at).await?;
        }
        self.write().await
    }

    /// Changes only the VMI, as root in the guest can: the VMI reports a state that is not true.
    pub async fn report(&mut self, change: impl FnOnce(&mut Vm)) -> Result<()> {
        change(&mut self.vm);
        self.write().await
    }

    /// Schedules the VM: the VMI gets its first pod, which does not run yet.
    pub async fn schedule(&mut self, node: &str) -> Result<()> {
        self.launch(node, None).await?;
        let node = node.to_owned();
        self.change(|vm| {
            vm.phase = Phase::Scheduled;
            vm.ready = Some(Ready::no("GuestNotRunning"));
            vm.labels.insert(NODE.to_owned(), node.clone());
            vm.node = Some(node);
        })
        .await
    }

    /// Makes the VM run and be ready.
    pub async fn boot(&mut self) -> Result<()> {
        self.vm.phase = Phase::Running;
        self.ready(Ready::yes()).await
    }

    /// Connects or disconnects the guest agent; without it, the addresses that only it reports
    /// disappear.
    pub async fn agent(&mut self, connected: bool) -> Result<()> {
        self.change(|vm| vm.agent = connected).await
    }

    /// Writes the result of the readiness probe, to the pod first and then to the VMI.
    pub async fn ready(&mut self, ready: Ready) -> Result<()> {
        if let Some(at) = self.current() {
            self.launchers[at].phase = "Running";
            self.launchers[at].ready = ready.clone();
            self.write_pod(at).await?;
        }
        self.change(|vm| vm.ready = Some(ready)).await
    }

    /// Pauses the VM, which makes its pod not ready, or resumes it.
    pub async fn pause(&mut self, paused: bool) -> Result<()> {
        self.vm.paused = paused;
        if let Some(at) = self.current() {
            self.launchers[at].unpaused = !paused;
        }
        let ready = if paused { Ready::no("ReadinessGatesNotReady") } else { Ready::yes() };
        self.ready(ready).await
    }

    /// Begins a migration: there is a second pod, and the VM still runs on its node.
    pub async fn begin_migration(&mut self, target: &str) -> Result<()> {
        let migration =
            format!("00000000-0000-0000-0000-{:012}", NEXT.fetch_add(1, Ordering::Relaxed));
        let source = self.current().context("a VM without pod cannot migrate")?;
        let source = self.launchers[source].clone();
        self.launch(target, Some(migration.clone())).await?;
        let at = self.launchers.len() - 1;
        self.launchers[at].phase = "Running";
        self.launchers[at].ready = Ready::yes();
        self.write_pod(at).await?;
        let name = self.launchers[at].name.clone();
        self.change(|vm| {
            vm.labels.insert(MIGRATION_TARGET.to_owned(), target.to_owned());
            vm.migration = Some(json!({
                "migrationUid": migration,
                "mode": "PreCopy",
                "sourceNode": source.node,
                "sourcePod": source.name,
                "targetNode": target,
                "targetPod": name,
                "startTimestamp": now(),
            }));
        })
        .await
    }

    /// Ends the migration. The pod that is no longer needed has ended, but still exists.
    pub async fn end_migration(&mut self, outcome: Outcome) -> Result<()> {
        let target = self.launchers.len().checked_sub(1).filter(|at| *at > 0);
        let target = target.context("no migration is under way")?;
        let source = self.current().context("the VM has no pod")?;
        ensure!(source != target, "the migration is over already");
        let node = self.launchers[target].node.clone();
        let done = outcome == Outcome::Succeeded;
        self.change(|vm| {
            vm.labels.remove(MIGRATION_TARGET);
            if let Some(state) = &mut vm.migration {
                state["endTimestamp"] = json!(now());
                state["completed"] = json!(true);
                if done {
                    state["targetNodeDomainReadyTimestamp"] = json!(now());
                } else {
                    state["failed"] = json!(true);
                }
                if outcome == Outcome::Aborted {
                    state["abortRequested"] = json!(true);
                    state["abortStatus"] = json!("Succeeded");
                }
            }
            if done {
                vm.labels.insert(NODE.to_owned(), node.clone());
                vm.node = Some(node);
            }
        })
        .await?;
        let (leftover, phase) = if done { (source, "Succeeded") } else { (target, "Failed") };
        self.finish(leftover, phase).await?;
        self.vm.active_pods.remove(&self.launchers[leftover].uid);
        self.write().await
    }

    /// Shuts the guest down from inside: the VMI and its pod stay, in the phase `Succeeded`.
    pub async fn shut_down(&mut self) -> Result<()> {
        self.end(Phase::Succeeded, "Succeeded").await
    }

    /// Makes the guest fail: its VMI and pod stay, in the phase `Failed`.
    pub async fn crash(&mut self) -> Result<()> {
        self.end(Phase::Failed, "Failed").await
    }

    /// Deletes the VMI and its pods: they terminate, but still exist.
    pub async fn terminate(&mut self) -> Result<()> {
        self.instances().delete(&self.vm.name, &DeleteParams::default()).await?;
        for launcher in &self.launchers {
            absent(self.pods().delete(&launcher.name, &DeleteParams::default()).await)?;
        }
        self.change(|vm| vm.ready = Some(Ready::no("PodTerminating"))).await
    }

    /// Removes the terminating objects: first the pods, then the VMI.
    pub async fn vanish(&mut self) -> Result<()> {
        for launcher in &self.launchers {
            let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
            absent(self.pods().delete(&launcher.name, &now).await)?;
        }
        self.launchers.clear();
        let (vmis, name) = (self.instances(), self.vm.name.clone());
        let uid = self.uid.clone();
        eventually(PATIENCE, &format!("end of {name}"), async || {
            let Some(mut vmi) = vmis.get_opt(&name).await? else { return Ok(true) };
            if vmi.uid().as_ref() != Some(&uid) {
                return Ok(true);
            }
            vmi.finalizers_mut().retain(|finalizer| finalizer != FINALIZER);
            vmis.replace(&name, &PostParams::default(), &vmi).await?;
            Ok::<_, kube::Error>(false)
        })
        .await
    }

    /// Stops the VM as a user does: in the end neither VMI nor pod exists.
    pub async fn stop(&mut self) -> Result<()> {
        self.terminate().await?;
        self.vanish().await
    }

    /// Stops the VM and runs it again: a VMI of the same name with another UID.
    pub async fn restart(&mut self, node: &str) -> Result<()> {
        self.stop().await?;
        let mut vm = Vm {
            ready: Some(Ready::no("PodNotExists")),
            labels: std::mem::take(&mut self.vm.labels),
            annotations: std::mem::take(&mut self.vm.annotations),
            nics: std::mem::take(&mut self.vm.nics),
            inner: std::mem::take(&mut self.vm.inner),
            ..Vm::new(&self.vm.namespace, &self.vm.name)
        };
        vm.labels.remove(NODE);
        vm.labels.remove(MIGRATION_TARGET);
        *self = Self::run(&self.client, vm, node).await?;
        Ok(())
    }

    fn instances(&self) -> Api<DynamicObject> {
        instances(&self.client, &self.vm.namespace)
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.vm.namespace)
    }

    /// Index of the VM's current pod by KubeVirt's rule: the newest pod on the VMI's node, else the
    /// newest.
    fn current(&self) -> Option<usize> {
        let here = |launcher: &Launcher| Some(&launcher.node) == self.vm.node.as_ref();
        self.launchers.iter().rposition(here).or_else(|| self.launchers.len().checked_sub(1))
    }

    async fn launch(&mut self, node: &str, migration: Option<String>) -> Result<()> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut launcher = Launcher {
            name: format!("virt-launcher-{}-{number:05}", self.vm.name),
            uid: String::new(),
            node: node.to_owned(),
            addresses: self.vm.pod_addresses(),
            migration,
            phase: "Pending",
            ready: Ready::no("ContainersNotReady"),
            unpaused: true,
        };
        let pod: Pod = serde_json::from_value(launcher.pod(&self.vm, &self.uid))?;
        let pods = self.pods();
        // A new namespace refuses pods until its service account exists.
        let created = eventually(PATIENCE, &format!("pod {}", launcher.name), async || {
            pods.create(&PostParams::default(), &pod).await.map(Some)
        })
        .await?;
        launcher.uid = created.uid().context("a pod without UID")?;
        self.vm.active_pods.insert(launcher.uid.clone(), node.to_owned());
        self.launchers.push(launcher);
        self.write_pod(self.launchers.len() - 1).await
    }

    async fn finish(&mut self, at: usize, phase: &'static str) -> Result<()> {
        self.launchers[at].phase = phase;
        self.launchers[at].ready = Ready::no("PodCompleted");
        self.write_pod(at).await
    }

    async fn end(&mut self, phase: Phase, pod_phase: &'static str) -> Result<()> {
        if let Some(at) = self.current() {
            self.finish(at, pod_phase).await?;
        }
        self.change(|vm| {
            vm.phase = phase;
            vm.agent = false;
            vm.paused = false;
            vm.ready = Some(Ready::no("GuestNotRunning"));
            vm.active_pods.clear();
        })
        .await
    }

    async fn write_pod(&self, at: usize) -> Result<()> {
        let launcher = &self.launchers[at];
        let status = json!({"status": launcher.status()});
        self.pods()
            .patch_status(&launcher.name, &PatchParams::default(), &Patch::Merge(status))
            .await
            .with_context(|| format!("write the status of {}", launcher.name))?;
        Ok(())
    }

    /// Replaces the VMI, as virt-controller does: there is no status subresource.
    async fn write(&self) -> Result<()> {
        let (vmis, vm) = (self.instances(), &self.vm);
        eventually(PATIENCE, &format!("write of the VMI {}", vm.name), async || {
            let mut vmi = vmis.get(&vm.name).await.map_err(|e| e.to_string())?;
            if vmi.uid().as_ref() != Some(&self.uid) {
                return Err("another VMI has the name".to_owned());
            }
            vmi.metadata.labels = Some(vm.labels.clone());
            vmi.annotations_mut().extend(vm.annotations.clone());
            vmi.data = json!({"spec": vm.spec(), "status": vm.status()});
            let written = vmis.replace(&vm.name, &PostParams::default(), &vmi).await;
            written.map(|_| true).map_err(|e| e.to_string())
        })
        .await
    }
}

/// Success also if the object does not exist any more.
fn absent<T>(result: kube::Result<T>) -> Result<()> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => Ok(other.map(drop)?),
    }
}

fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
