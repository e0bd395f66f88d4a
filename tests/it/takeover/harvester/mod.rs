//! A Harvester with the Go controller, as far as a take-over touches it: Deployments that start and
//! end programs, Fleet's ManagedChart, the Go controller and its webhook.

mod played;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use testbed::{Proxy, eventually, kubevirt};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use self::played::Running;
use crate::command;
use crate::other_controller::Go;
use crate::support::{Cluster, SOON};

pub(super) const NAMESPACE: &str = "harvester-system";
pub(super) const CONTROLLER: &str = "harvester-load-balancer";
pub(super) const WEBHOOK: &str = "harvester-load-balancer-webhook";
pub(super) const OPERATOR: &str = "harvester-guest-operator";
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

/// A Harvester that runs until dropped.
pub(super) struct Harvester {
    pub(super) cluster: Arc<Cluster>,
    running: Arc<Mutex<Running>>,
    ended: CancellationToken,
    playing: JoinHandle<()>,
    fleet: JoinHandle<()>,
}

impl Drop for Harvester {
    fn drop(&mut self) {
        self.ended.cancel();
        self.fleet.abort();
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
        let ended = CancellationToken::new();
        let playing = played::play(cluster.clone(), running.clone(), go, ended.clone());
        let fleet = tokio::spawn(played::fleet(cluster.client.clone()));
        let harvester = Self { cluster, running, ended, playing, fleet };
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

    /// Has pods stay when their programs have ended, or go again.
    pub(super) async fn pods_stay(&self, stay: bool) {
        self.running.lock().await.pods_stay = stay;
    }

    /// Waits until no program of the operator runs.
    pub(super) async fn operator_ended(&self) -> Result<()> {
        eventually(SOON, "end of the operator", async || {
            anyhow::Ok(self.running.lock().await.operator.is_none())
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
            let all = api.list_metadata(&ListParams::default()).await?;
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
    pub(super) async fn end(mut self) {
        self.ended.cancel();
        drop((&mut self.playing).await);
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
        let output = command::run(kubeconfig, &[&["takeover"], options].concat()).await?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        println!("takeover {options:?}: {}\n{text}{errors}", output.status);
        Ok((output.status.success(), format!("{text}{errors}")))
    }

    /// An upgrade of Harvester installs its chart again.
    pub(super) async fn upgraded(&self) -> Result<()> {
        let values = self.values().await?;
        let says = |value: &Value| value.as_i64().unwrap_or(1);
        let replicas = (says(&values["replicaCount"]), says(&values["webhook"]["replicasCount"]));
        played::install(&self.cluster.client, replicas).await
    }

    /// Starts the Go controller and its webhook again, whatever the ManagedChart says.
    pub(super) async fn started_again(&self) -> Result<()> {
        played::install(&self.cluster.client, (1, 1)).await
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
    pub(super) async fn addresses_are(&self, before: &BTreeMap<String, String>) -> Result<()> {
        let now = self.cluster.addresses().await?;
        for (name, address) in before {
            ensure!(
                now.get(name) == Some(address),
                "{name}: {address} before, {:?} now",
                now.get(name)
            );
        }
        let unique: BTreeSet<&String> = now.values().collect();
        ensure!(unique.len() == now.len(), "an address is given twice: {now:?}");
        Ok(())
    }
}

fn charts(client: &Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("management.cattle.io", "v3", "ManagedChart");
    let kind = ApiResource::from_gvk_with_plural(&kind, "managedcharts");
    Api::namespaced_with(client.clone(), "fleet-local", &kind)
}

fn machines(client: &Client) -> [Api<DynamicObject>; 2] {
    [kubevirt::machines(client, "default"), kubevirt::instances(client, "default")]
}

fn has_finalizer(vm: &PartialObjectMeta<DynamicObject>) -> bool {
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
