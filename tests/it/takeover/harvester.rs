//! A Harvester with the Go controller, as far as a take-over touches it: Deployments that start and end
//! programs, Fleet's ManagedChart, the Go controller and its webhook.
//!
//! Played, with the source of each row:
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

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use testbed::{Operator, Proxy, eventually, kubevirt};
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use crate::other_controller::Go;
use crate::support::{Cluster, SOON};

pub(super) const NAMESPACE: &str = "harvester-system";
pub(super) const CONTROLLER: &str = "harvester-load-balancer";
pub(super) const WEBHOOK: &str = "harvester-load-balancer-webhook";
pub(super) const OPERATOR: &str = "harvester-guest-operator";
const CONFIGURATION: &str = WEBHOOK;
/// Beginning of the Go controller's identity.
const GO: &str = "harvester-load-balancer-";
const TICK: Duration = Duration::from_millis(100);
/// Finalizers of the Go controller on VirtualMachines and on their instances.
pub(super) const FINALIZERS: [&str; 2] = [
    "wrangler.cattle.io/harvester-lb-vm-controller",
    "wrangler.cattle.io/harvester-lb-vmi-controller",
];

/// A person who may do all.
const ADMIN: &str = r"
apiVersion: v1
kind: ServiceAccount
metadata: {name: admin, namespace: harvester-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: takeover-admin}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: ServiceAccount, name: admin, namespace: harvester-system}]
";

const MANAGED_CHART: &str = r"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: managedcharts.management.cattle.io}
spec:
  group: management.cattle.io
  scope: Namespaced
  names: {kind: ManagedChart, listKind: ManagedChartList, plural: managedcharts, singular: managedchart}
  versions:
    - name: v3
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: v1
kind: Namespace
metadata: {name: fleet-local}
";

/// Programs that run.
#[derive(Default)]
struct Running {
    go: Option<JoinHandle<Result<()>>>,
    operator: Option<Operator>,
}

/// A Harvester that runs until dropped.
pub(super) struct Harvester {
    pub(super) cluster: Arc<Cluster>,
    running: Arc<Mutex<Running>>,
    ended: Arc<AtomicBool>,
    fleet: JoinHandle<()>,
}

impl Drop for Harvester {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        self.fleet.abort();
        if let Ok(mut running) = self.running.try_lock()
            && let Some(go) = running.go.take()
        {
            go.abort();
        }
    }
}

impl Harvester {
    /// A Harvester whose Go controller leads, with CRDs as Harvester ships them.
    pub(super) async fn start() -> Result<Self> {
        let cluster = Arc::new(Cluster::start().await?);
        crate::forms::serve_as_harvester_does(&cluster).await?;
        cluster.bed.apply_yaml(MANAGED_CHART).await?;
        let crds: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
        eventually(SOON, "ManagedCharts", async || {
            let crd = crds.get("managedcharts.management.cattle.io").await?;
            let conditions = crd.status.and_then(|status| status.conditions).unwrap_or_default();
            anyhow::Ok(conditions.iter().any(|c| c.type_ == "Established" && c.status == "True"))
        })
        .await?;
        let values = json!({"enabled": true});
        let chart = json!({
            "apiVersion": "management.cattle.io/v3", "kind": "ManagedChart",
            "metadata": {"name": "harvester", "namespace": "fleet-local"},
            "spec": {"chart": "harvester", "values": {"harvester-load-balancer": values}},
        });
        let chart: DynamicObject = serde_json::from_value(chart)?;
        eventually(SOON, "ManagedChart", async || {
            match charts(&cluster.client).create(&PostParams::default(), &chart).await {
                Err(kube::Error::Api(status)) if status.is_not_found() => Ok(false),
                made => made.map(|_| true),
            }
        })
        .await?;
        let go = Go::new(&cluster).await?;
        let running = Arc::new(Mutex::new(Running::default()));
        for name in [CONTROLLER, WEBHOOK] {
            make(&cluster.client, name, 1).await?;
        }
        let ended = Arc::new(AtomicBool::new(false));
        // Its future is not `Send`, so that it has a thread of its own.
        tokio::task::spawn_blocking({
            let (cluster, running, ended) = (cluster.clone(), running.clone(), ended.clone());
            move || {
                Handle::current().block_on(async move {
                    while !ended.load(Ordering::Relaxed) {
                        // A conflict with the command is tried again, as by every controller.
                        drop(carry_out(&cluster, &running, &go).await);
                        tokio::time::sleep(TICK).await;
                    }
                });
            }
        });
        let fleet = tokio::spawn(fleet(cluster.client.clone()));
        let harvester = Self { cluster, running, ended, fleet };
        harvester.leads("go").await?;
        Ok(harvester)
    }

    /// Installs the operator, which stands by.
    pub(super) async fn install(&self) -> Result<()> {
        make(&self.cluster.client, OPERATOR, 2).await?;
        self.ready(OPERATOR, true).await
    }

    /// Waits until a Deployment has a ready replica, or none.
    pub(super) async fn ready(&self, name: &str, is: bool) -> Result<()> {
        let api: Api<Deployment> = Api::namespaced(self.cluster.client.clone(), NAMESPACE);
        eventually(SOON, &format!("{name} ready: {is}"), async || {
            let status = api.get(name).await?.status.unwrap_or_default();
            anyhow::Ok((status.ready_replicas.unwrap_or(0) > 0) == is)
        })
        .await
    }

    /// Waits until the Go controller leads ("go"), or the operator ("operator").
    pub(super) async fn leads(&self, who: &str) -> Result<()> {
        eventually(SOON, &format!("{who} leads"), async || {
            let holder = self.holder().await?;
            let is_go = holder.starts_with(GO);
            anyhow::Ok(!holder.is_empty() && is_go == (who == "go"))
        })
        .await
    }

    /// Replicas of a Deployment.
    pub(super) async fn replicas(&self, name: &str) -> Result<i32> {
        let api: Api<Deployment> = Api::namespaced(self.cluster.client.clone(), NAMESPACE);
        api.get(name).await?.spec.and_then(|spec| spec.replicas).context("no replicas")
    }

    /// Ends Fleet, which may install long after a change of the ManagedChart.
    pub(super) fn without_fleet(&self) {
        self.fleet.abort();
    }

    /// Values of the sub-chart in the ManagedChart.
    pub(super) async fn values(&self) -> Result<Value> {
        let chart = charts(&self.cluster.client).get("harvester").await?;
        Ok(chart.data["spec"]["values"]["harvester-load-balancer"].clone())
    }

    /// VMs and instances with one of the Go controller's finalizers.
    pub(super) async fn held(&self) -> Result<usize> {
        let mut held = 0;
        for api in machines(&self.cluster.client) {
            let all = api.list(&ListParams::default()).await?;
            held += all.iter().filter(|vm| has_finalizer(vm)).count();
        }
        Ok(held)
    }

    /// Kubeconfig of a person who may do all, through a proxy.
    pub(super) async fn admin_through(&self, proxy: &Proxy) -> Result<PathBuf> {
        self.cluster.bed.apply_yaml(ADMIN).await?;
        proxy.kubeconfig_for_service_account(&self.cluster.bed, NAMESPACE, "admin").await
    }

    /// Ends the programs.
    pub(super) async fn end(self) {
        self.ended.store(true, Ordering::Relaxed);
        // Its round is over once it gives the programs away.
        drop(std::mem::take(&mut *self.running.lock().await));
    }

    /// Runs the command.
    pub(super) async fn takeover(&self, options: &[&str]) -> Result<(bool, String)> {
        self.takeover_within(options, None).await
    }

    /// Runs the command through another way to the API server, if one is given.
    pub(super) async fn takeover_within(
        &self,
        options: &[&str],
        via: Option<&Path>,
    ) -> Result<(bool, String)> {
        let kubeconfig = via.unwrap_or(self.cluster.bed.kubeconfig());
        let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_harvester-guest-operator"))
            .arg("takeover")
            .args(options)
            .env("HGO_KUBECONFIG", kubeconfig)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        println!("takeover {options:?}: {}\n{text}{errors}", output.status);
        Ok((output.status.success(), format!("{text}{errors}")))
    }
}

fn charts(client: &Client) -> Api<DynamicObject> {
    let kind = ApiResource {
        group: "management.cattle.io".to_owned(),
        version: "v3".to_owned(),
        api_version: "management.cattle.io/v3".to_owned(),
        kind: "ManagedChart".to_owned(),
        plural: "managedcharts".to_owned(),
    };
    Api::namespaced_with(client.clone(), "fleet-local", &kind)
}

fn machines(client: &Client) -> [Api<DynamicObject>; 2] {
    [kubevirt::machines(client, "default"), kubevirt::instances(client, "default")]
}

fn has_finalizer(vm: &DynamicObject) -> bool {
    vm.finalizers().iter().any(|finalizer| FINALIZERS.contains(&finalizer.as_str()))
}

async fn make(client: &Client, name: &str, replicas: i32) -> Result<()> {
    let component = if name == OPERATOR { "controller" } else { name };
    let labels = json!({"app.kubernetes.io/name": name, "app.kubernetes.io/component": component});
    // Helm's marks, for each release its own.
    let release = if name == OPERATOR { OPERATOR } else { "harvester" };
    let marks = json!({
        "meta.helm.sh/release-name": release, "meta.helm.sh/release-namespace": NAMESPACE,
    });
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels, "annotations": marks},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "a", "image": "a"}]}},
        },
    }))?;
    let api: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    api.create(&PostParams::default(), &deployment).await?;
    Ok(())
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
        pods(&cluster.client, &name, wanted > 0).await?;
    }
    Ok(())
}

/// Reports the pods of a Deployment ready, and removes those that are deleted once its programs have ended.
async fn pods(client: &Client, deployment: &str, runs: bool) -> Result<()> {
    let api: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let of = ListParams::default().labels(&format!("app.kubernetes.io/name={deployment}"));
    let params = PatchParams::default();
    for pod in api.list(&of).await? {
        let name = pod.name_any();
        if pod.metadata.deletion_timestamp.is_some() {
            if !runs {
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
        if go.holds().await? {
            go.release().await?;
        }
    }
    Ok(())
}

async fn adds_finalizers(client: Client) -> Result<()> {
    loop {
        for (api, finalizer) in machines(&client).into_iter().zip(FINALIZERS) {
            // A failed list is repeated, as by an informer.
            let machines = api.list(&ListParams::default()).await;
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
        tokio::time::sleep(TICK).await;
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
async fn fleet(client: Client) {
    let mut installed = (1, 1);
    loop {
        if let Ok(chart) = charts(&client).get("harvester").await {
            let values = &chart.data["spec"]["values"]["harvester-load-balancer"];
            let says = |value: &Value| value.as_i64().unwrap_or(1);
            let now = (says(&values["replicaCount"]), says(&values["webhook"]["replicasCount"]));
            if now != installed && install(&client, now).await.is_ok() {
                installed = now;
            }
        }
        tokio::time::sleep(TICK).await;
    }
}

/// Upgrades Harvester: the replicas are those of the chart's values.
async fn install(client: &Client, (controller, webhook): (i64, i64)) -> Result<()> {
    let api: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    for (name, replicas) in [(CONTROLLER, controller), (WEBHOOK, webhook)] {
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        api.patch(name, &PatchParams::default(), &patch).await?;
    }
    Ok(())
}

impl Harvester {
    /// An upgrade of Harvester installs its chart again.
    pub(super) async fn upgraded(&self) -> Result<()> {
        let values = self.values().await?;
        let says = |value: &Value| value.as_i64().unwrap_or(1);
        let replicas = (says(&values["replicaCount"]), says(&values["webhook"]["replicasCount"]));
        install(&self.cluster.client, replicas).await
    }

    /// Starts the Go controller and its webhook again, whatever the ManagedChart says.
    pub(super) async fn started_again(&self) -> Result<()> {
        install(&self.cluster.client, (1, 1)).await
    }

    /// Frees the Lease until the Go controller, which competes for it, is the first to take it.
    pub(super) async fn lease_to_go(&self) -> Result<()> {
        let freed = Patch::Merge(json!({"spec": {"holderIdentity": ""}}));
        eventually(SOON, "a Lease of the Go controller", async || {
            if self.holder().await?.starts_with(GO) {
                return anyhow::Ok(true);
            }
            self.leases().patch(CONTROLLER, &PatchParams::default(), &freed).await?;
            tokio::time::sleep(3 * TICK).await;
            Ok(false)
        })
        .await
    }

    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.cluster.client.clone(), "kube-system")
    }

    /// Holder of the Lease; empty if there is none.
    async fn holder(&self) -> Result<String> {
        let lease = self.leases().get_opt(CONTROLLER).await?;
        Ok(lease.and_then(|lease| lease.spec?.holder_identity).unwrap_or_default())
    }

    /// Value of a metric of the operator.
    pub(super) async fn metric(&self, name: &str, parts: &[&str]) -> Result<f64> {
        let running = self.running.lock().await;
        running.operator.as_ref().context("no operator runs")?.metric(name, parts).await
    }

    /// Whether each address is what it was, and only one LoadBalancer has it.
    pub(super) async fn addresses_are(
        &self,
        before: &std::collections::BTreeMap<String, String>,
    ) -> Result<()> {
        let now = self.cluster.addresses().await?;
        for (name, address) in before {
            ensure!(
                now.get(name) == Some(address),
                "{name}: {address} before, {:?} now",
                now.get(name)
            );
        }
        let unique: std::collections::BTreeSet<&String> = now.values().collect();
        ensure!(unique.len() == now.len(), "an address is given twice: {now:?}");
        Ok(())
    }
}
