//! Programs of a Harvester, as far as they are played here. The source of each row is named:
//! * the real kube-controller-manager makes the pods of a Deployment and writes its status; here the
//!   programs start and end with its replicas, their pods are reported ready, and a pod that is deleted
//!   stays until its program has ended (a finalizer does what a kubelet's grace period does);
//! * the Go controller competes for the Lease, gives it back at its end, and adds a finalizer to each VM
//!   and VMI that it sees for as long as it runs (wrangler, `pkg/generic/remove.go`, `OnRemove`);
//! * the Go webhook writes its configurations when it starts (harvester/webhook,
//!   `pkg/server/server.go`). Here it is not there to answer, so its calls pass: `failurePolicy` is
//!   `Ignore`, which the real one has for mutation only;
//! * Fleet installs the replicas that the ManagedChart says when that changes
//!   (charts, `charts/harvester-load-balancer/templates/deployment.yaml`).

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use testbed::Operator;
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{CONTROLLER, FINALIZERS, NAMESPACE, OPERATOR, TICK, WEBHOOK};
use super::{charts, has_finalizer, machines};
use crate::other_controller::Go;
use crate::support::{Cluster, SOON, rest};

const CONFIGURATION: &str = WEBHOOK;

/// Programs that run.
#[derive(Default)]
pub(super) struct Running {
    go: Option<JoinHandle<Result<()>>>,
    pub(super) operator: Option<Operator>,
    /// Whether pods stay when their programs have ended, as with a kubelet that is slow to say so.
    pub(super) pods_stay: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(go) = self.go.take() {
            go.abort();
        }
    }
}

/// Starts and ends programs until `ended` is cancelled.
pub(super) fn play(
    cluster: Arc<Cluster>,
    running: Arc<Mutex<Running>>,
    go: Go,
    ended: CancellationToken,
) -> JoinHandle<()> {
    // Its future is not `Send`, so that it has a thread of its own.
    tokio::task::spawn_blocking(move || {
        let rounds = async {
            loop {
                let began = Instant::now();
                // A conflict with the command is tried again, as by every controller.
                drop(carry_out(&cluster, &running, &go).await);
                rest(TICK, began).await;
            }
        };
        // The end of the test waits for this thread, and then no call gets an answer any more. So a
        // call that is under way is dropped.
        Handle::current().block_on(ended.run_until_cancelled(rounds));
    })
}

/// Starts and ends what the Deployments say.
async fn carry_out(cluster: &Arc<Cluster>, running: &Mutex<Running>, go: &Go) -> Result<()> {
    let api: Api<Deployment> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    for deployment in api.list(&ListParams::default()).await? {
        let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
        let name = deployment.name_any();
        match name.as_str() {
            CONTROLLER => controller(cluster, &mut *running.lock().await, go, wanted > 0).await?,
            OPERATOR => operator(cluster, &mut *running.lock().await, wanted > 0).await?,
            WEBHOOK => {
                let was = deployment.status.as_ref().and_then(|status| status.ready_replicas);
                if wanted > 0 && was.unwrap_or(0) == 0 {
                    register(&cluster.client).await?;
                }
            }
            _ => continue,
        }
        let stay = running.lock().await.pods_stay;
        pods(&cluster.client, &name, wanted > 0 || stay).await?;
    }
    Ok(())
}

/// Reports the pods of a Deployment ready, and removes those that are deleted unless they stay.
async fn pods(client: &Client, deployment: &str, stay: bool) -> Result<()> {
    let api: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let of = ListParams::default().labels(&format!("app.kubernetes.io/name={deployment}"));
    let params = PatchParams::default();
    for pod in api.list(&of).await? {
        let name = pod.name_any();
        if pod.metadata.deletion_timestamp.is_some() {
            if !stay {
                let ended = json!({"metadata": {"finalizers": null}});
                api.patch(&name, &params, &Patch::Merge(ended)).await?;
            }
            continue;
        }
        let conditions = pod.status.clone().and_then(|status| status.conditions);
        if conditions.unwrap_or_default().iter().any(|c| c.type_ == "Ready" && c.status == "True") {
            continue;
        }
        let held = json!({"metadata": {"finalizers": ["testbed.local/kubelet"]}});
        api.patch(&name, &params, &Patch::Merge(held)).await?;
        let status = json!({"status": {
            "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
        }});
        api.patch_status(&name, &params, &Patch::Merge(status)).await?;
    }
    Ok(())
}

async fn controller(
    cluster: &Arc<Cluster>,
    running: &mut Running,
    go: &Go,
    wanted: bool,
) -> Result<()> {
    if wanted && running.go.as_ref().is_none_or(JoinHandle::is_finished) {
        let (go, client) = (go.clone(), cluster.client.clone());
        running.go = Some(tokio::spawn(async move {
            go.acquire_or_create().await?;
            tokio::select! {
                ended = go.lead() => ended,
                ended = adds_finalizers(client) => ended,
            }
        }));
    }
    if !wanted && let Some(task) = running.go.take() {
        task.abort();
        drop(task.await);
        go.release().await?;
    }
    Ok(())
}

async fn adds_finalizers(client: Client) -> Result<()> {
    loop {
        let began = Instant::now();
        for (api, finalizer) in machines(&client).into_iter().zip(FINALIZERS) {
            // A failed list is repeated, as by an informer.
            let machines = api.list_metadata(&ListParams::default()).await;
            for vm in machines.map(|list| list.items).unwrap_or_default() {
                if has_finalizer(&vm) || vm.metadata.deletion_timestamp.is_some() {
                    continue;
                }
                let mut finalizers = vm.finalizers().to_vec();
                finalizers.push(finalizer.to_owned());
                let patch = json!({"metadata": {
                    "finalizers": finalizers, "resourceVersion": vm.resource_version(),
                }});
                drop(
                    api.patch(&vm.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await,
                );
            }
        }
        // A test may have a thousand of them.
        rest(3 * TICK, began).await;
    }
}

async fn operator(cluster: &Arc<Cluster>, running: &mut Running, wanted: bool) -> Result<()> {
    if wanted && running.operator.is_none() {
        let started = cluster.standby(crate::admission::itself()).await?;
        started.ready().await?;
        running.operator = Some(started);
    }
    if !wanted && let Some(mut ending) = running.operator.take() {
        ending.process.terminate(SOON).await?;
    }
    Ok(())
}

/// Writes the configuration as the Go webhook does.
async fn register(client: &Client) -> Result<()> {
    let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let webhook = json!({
        "name": "validator.harvester-system.harvester-load-balancer-webhook",
        "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Ignore",
        "clientConfig": {"service": {"namespace": NAMESPACE, "name": WEBHOOK, "path": "/v1/webhook/validation"}},
        "rules": [{
            "apiGroups": ["loadbalancer.harvesterhci.io"], "apiVersions": ["v1beta1"],
            "resources": ["ippools", "loadbalancers"], "operations": ["CREATE", "UPDATE"], "scope": "*",
        }],
    });
    let patch = json!({"metadata": {"labels": null}, "webhooks": [webhook]});
    api.patch(CONFIGURATION, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

/// Fleet: what the ManagedChart says is installed once it says something else than before.
pub(super) async fn fleet(client: Client) {
    let mut installed = (1, 1);
    loop {
        let began = Instant::now();
        if let Ok(chart) = charts(&client).get("harvester").await {
            let values = &chart.data["spec"]["values"]["harvester-load-balancer"];
            let says = |value: &Value| value.as_i64().unwrap_or(1);
            let now = (says(&values["replicaCount"]), says(&values["webhook"]["replicasCount"]));
            if now != installed && install(&client, now).await.is_ok() {
                installed = now;
            }
        }
        rest(TICK, began).await;
    }
}

/// Upgrades Harvester: the replicas are those of the chart's values.
pub(super) async fn install(client: &Client, (controller, webhook): (i64, i64)) -> Result<()> {
    let api: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    for (name, replicas) in [(CONTROLLER, controller), (WEBHOOK, webhook)] {
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        api.patch(name, &PatchParams::default(), &patch).await?;
    }
    Ok(())
}
