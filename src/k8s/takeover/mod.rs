//! Reads and writes of the `takeover` command: Deployments, the ManagedChart, CRDs, the Lease, the
//! webhook configuration, and finalizers of VMs.
//!
//! Invariants:
//! * Each change is one write. The write carries the resourceVersion of the object from which its
//!   content was computed. Exception: the annotation that keeps a CRD.
//! * A write that a later step can undo also records the former state.
//! * A conflict counts as success, because the caller reads the state again and decides again.
//! * A write may be repeated, because its answer may have been lost. The repetition has no further
//!   effect.

mod crds;
pub mod finalizers;

use std::time::Duration;

use anyhow::{Context as _, bail};
use chrono::Utc;
use futures::future::try_join_all;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Api, Client, Resource as _, ResourceExt as _};
use serde_json::json;

use super::CallError;
use super::calls::{ApiCalls as _, ApiWrites as _};
use super::informer::key;
use super::leadership::seen;
use crate::api::MANAGER;
use crate::domain::admission::webhook_configuration::{CONFIGURATION, REGISTERED_BY};
use crate::domain::takeover::steps::{
    ANNOTATION_REPLICAS, ANNOTATION_VALUES, Deployment as Replicas, Leader, ManagedChart,
    SUB_CHART, TakeoverProgram, TakeoverState, TakeoverStep, WebhookContent,
};

/// Label selector of the operator's Deployment. The chart and config/manager set these labels.
const OPERATOR: &str =
    "app.kubernetes.io/name=harvester-guest-operator,app.kubernetes.io/component=controller";
/// Deadline of one call. The value is large, because a list may arrive slowly. If a connection
/// brings no data, its call fails earlier, after [`super::SILENCE`].
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// Seconds for which a Lease counts as held after its expiry, because the clock of this machine may
/// differ from the holder's.
const LEEWAY: i64 = 5;

/// Namespace and name of an object.
pub type NamespaceAndName = (String, String);

/// Client for the reads and writes of a take-over.
pub struct TakeoverClient {
    /// Connection with the rights of the person who runs the command.
    pub client: Client,
    /// The Go controller's Deployment. The name of its webhook's Deployment is this name with the
    /// suffix `-webhook`.
    pub controller: NamespaceAndName,
    /// Harvester's ManagedChart.
    pub chart: NamespaceAndName,
    /// The Lease that the Go controller and the operator compete for.
    pub lease: NamespaceAndName,
}

impl TakeoverClient {
    /// Facts from which the next step of the take-over is decided. The field `finalizers` is 0
    /// here: only [`Self::finalizers`] counts them.
    ///
    /// All reads run at the same time, because the next step may be urgent. After the step that
    /// stops the operator, the operator's webhook may not answer. The API server then refuses
    /// writes of guests until the step [`TakeoverStep::OpenAdmission`].
    pub async fn state(&self) -> anyhow::Result<TakeoverState> {
        let deployments = try_join_all(TakeoverProgram::ALL.map(|program| self.replicas(program)));
        let chart = async { anyhow::Ok(self.managed_chart().await?.map(|chart| managed(&chart))) };
        let leader = leader(&self.client, &self.lease.0, &self.lease.1);
        let (deployments, chart, crds, leader, admission) =
            tokio::try_join!(deployments, chart, self.crds(), leader, admission(&self.client))?;
        let deployments = deployments.into_iter().flatten().collect();
        Ok(TakeoverState { deployments, chart, crds, leader, admission, finalizers: 0 })
    }

    /// Deployment of `program`. `None`: there is no such Deployment.
    async fn deployment(&self, program: TakeoverProgram) -> anyhow::Result<Option<Deployment>> {
        let (namespace, name) = &self.controller;
        let name = match program {
            TakeoverProgram::GoController => name.clone(),
            TakeoverProgram::GoWebhook => format!("{name}-webhook"),
            TakeoverProgram::Operator => return self.operator().await,
        };
        let api = Api::<Deployment>::namespaced(self.client.clone(), namespace);
        Ok(api.within(PATIENCE).call_get_opt(&name).await?)
    }

    async fn operator(&self) -> anyhow::Result<Option<Deployment>> {
        let api = Api::<Deployment>::all(self.client.clone());
        let params = ListParams::default().labels(OPERATOR);
        let mut found = api.within(PATIENCE).call_list(&params).await?.items;
        if found.len() > 1 {
            let names: Vec<String> = found.iter().map(|d| key(d.meta())).collect();
            bail!(
                "the operator is installed more than once, as Deployments {}: keep only one",
                names.join(", ")
            );
        }
        Ok(found.pop())
    }

    /// The program, and the numbers of replicas of its Deployment. The field `running` counts the
    /// Deployment's pods that have not ended. A pod that is being deleted counts until it has
    /// ended. `None`: there is no such Deployment.
    async fn replicas(
        &self,
        program: TakeoverProgram,
    ) -> anyhow::Result<Option<(TakeoverProgram, Replicas)>> {
        let Some(deployment) = self.deployment(program).await? else { return Ok(None) };
        let selector =
            deployment.spec.as_ref().map(|spec| spec.selector.clone()).unwrap_or_default();
        let labels = selector.match_labels.unwrap_or_default();
        let labels: Vec<String> =
            labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let namespace = deployment.namespace().unwrap_or_default();
        let api = Api::<Pod>::namespaced(self.client.clone(), &namespace);
        let params = ListParams::default().labels(&labels.join(","));
        let pods = api.within(PATIENCE).call_list(&params).await?;
        let runs = |pod: &&Pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            !matches!(phase, Some("Succeeded" | "Failed"))
        };
        let running = pods.iter().filter(runs).count();
        let running = i32::try_from(running).unwrap_or(i32::MAX);
        Ok(Some((program, Replicas { running, ..replicas(&deployment) })))
    }

    fn charts(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("management.cattle.io", "v3", "ManagedChart");
        let kind = ApiResource::from_gvk_with_plural(&kind, "managedcharts");
        Api::namespaced_with(self.client.clone(), &self.chart.0, &kind)
    }

    /// Harvester's ManagedChart. `None`: the ManagedChart does not exist, or its kind is not
    /// served.
    async fn managed_chart(&self) -> Result<Option<DynamicObject>, CallError> {
        self.charts().within(PATIENCE).call_get_if_served(&self.chart.1).await
    }

    /// Carries out the write of `step`. Does nothing for a step without a write, and for
    /// [`TakeoverStep::RemoveFinalizers`]: [`Self::remove_finalizers`] carries that step out.
    /// Succeeds without a write if another client has changed the object meanwhile.
    pub async fn carry_out(&self, step: &TakeoverStep) -> anyhow::Result<()> {
        let result = match step {
            TakeoverStep::KeepCrd(name) => self.set_keep_policy(name).await,
            TakeoverStep::AdoptCrd(name) => self.adopt(name).await,
            TakeoverStep::RestoreCrd(name) => self.restore(name).await,
            TakeoverStep::StopChart => self.set_chart(true).await,
            TakeoverStep::RestoreChart => self.set_chart(false).await,
            TakeoverStep::OpenAdmission => self.open_admission().await,
            TakeoverStep::Stop(program) => self.scale(*program, None).await,
            TakeoverStep::Start(program, replicas) => self.scale(*program, Some(*replicas)).await,
            _ => Ok(()),
        };
        match result {
            Err(error) if matches!(error.downcast_ref(), Some(CallError::Conflict(_))) => Ok(()),
            result => result,
        }
    }

    async fn set_chart(&self, stop: bool) -> anyhow::Result<()> {
        let Some(stored) = self.managed_chart().await? else { return Ok(()) };
        let chart = managed(&stored);
        let (values, former) = if stop {
            let before = chart.before.unwrap_or(chart.values);
            (ManagedChart::stopped(), Some(before.to_string()))
        } else if chart.before.is_none() {
            // An earlier write without an answer may have restored the values. Without a record,
            // `restored` would remove all of them.
            return Ok(());
        } else {
            // A merge patch keeps each field that it does not set to null. So `restored` sets each
            // field that it removes to null.
            (chart.restored(), None)
        };
        let patch = json!({
            "metadata": {
                "resourceVersion": stored.resource_version(),
                "annotations": {ANNOTATION_VALUES: former},
            },
            "spec": {"values": {SUB_CHART: values}},
        });
        self.charts().within(PATIENCE).call_patch(&self.chart.1, &patch).await?;
        Ok(())
    }

    async fn open_admission(&self) -> anyhow::Result<()> {
        let api = Api::<ValidatingWebhookConfiguration>::all(self.client.clone());
        let Some(mut stored) = api.within(PATIENCE).call_get_opt(CONFIGURATION).await? else {
            return Ok(());
        };
        for webhook in stored.webhooks.iter_mut().flatten() {
            webhook.failure_policy = Some("Ignore".to_owned());
        }
        let patch = json!({
            "metadata": {"resourceVersion": stored.resource_version()},
            "webhooks": stored.webhooks,
        });
        api.within(PATIENCE).call_patch(CONFIGURATION, &patch).await?;
        Ok(())
    }

    /// Starts or stops `program` by the number of replicas of its Deployment. Does nothing if there
    /// is no Deployment.
    /// * `start: Some`: sets the number to the value of `start`, and removes the annotation
    ///   [`ANNOTATION_REPLICAS`].
    /// * `start: None`: sets the number to 0, and records the former number in the annotation. If
    ///   the annotation has a number already, that number stays.
    async fn scale(&self, program: TakeoverProgram, start: Option<i32>) -> anyhow::Result<()> {
        let Some(stored) = self.deployment(program).await? else { return Ok(()) };
        let seen = replicas(&stored);
        let former = match start {
            Some(_) => None,
            None => Some(seen.before.unwrap_or(seen.wanted).to_string()),
        };
        let patch = json!({
            "metadata": {
                "resourceVersion": stored.resource_version(),
                "annotations": {ANNOTATION_REPLICAS: former},
            },
            "spec": {"replicas": start.unwrap_or(0)},
        });
        let namespace = stored.namespace().unwrap_or_default();
        let api = Api::<Deployment>::namespaced(self.client.clone(), &namespace);
        let written = api.within(PATIENCE).call_patch(&stored.name_any(), &patch).await;
        written.map(drop).with_context(|| format!("cannot scale Deployment {}", seen.name))
    }
}

/// Holder of the Lease that the Go controller and the operator compete for. [`Leader::None`]: the
/// Lease is free, has expired more than `LEEWAY` seconds ago, or does not exist.
pub async fn leader(client: &Client, namespace: &str, name: &str) -> anyhow::Result<Leader> {
    let api = Api::<Lease>::namespaced(client.clone(), namespace);
    let lease = api.within(PATIENCE).call_get_opt(name).await?;
    Ok(lease.map_or(Leader::None, |lease| holder(&lease, Utc::now().timestamp())))
}

/// Content of the ValidatingWebhookConfiguration, as the API server has it now.
/// [`WebhookContent::Other`] if the configuration does not exist.
pub async fn admission(client: &Client) -> anyhow::Result<WebhookContent> {
    let api = Api::<ValidatingWebhookConfiguration>::all(client.clone());
    let found = api.within(PATIENCE).call_get_opt(CONFIGURATION).await?;
    Ok(found.map_or(WebhookContent::Other, |found| registered(&found)))
}

/// Whether `error` is a failed call that may succeed when it is repeated.
pub fn may_pass(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(|error: &CallError| {
        error.may_pass() || matches!(error, CallError::Conflict(_))
    })
}

/// Numbers of replicas that a Deployment shows: wanted now, ready, and wanted before the take-over
/// stopped the program. `running` is 0 here, because only the pods show how many run.
fn replicas(deployment: &Deployment) -> Replicas {
    let status = deployment.status.clone().unwrap_or_default();
    let before = deployment.annotations().get(ANNOTATION_REPLICAS);
    Replicas {
        name: key(&deployment.metadata),
        wanted: deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1),
        running: 0,
        ready: status.ready_replicas.unwrap_or(0),
        before: before.and_then(|text| text.parse().ok()),
    }
}

fn managed(chart: &DynamicObject) -> ManagedChart {
    let before = chart.annotations().get(ANNOTATION_VALUES);
    ManagedChart {
        name: key(&chart.metadata),
        values: chart.data["spec"]["values"][SUB_CHART].clone(),
        before: before.and_then(|text| serde_json::from_str(text).ok()),
    }
}

/// Holder of a Lease at the time `now`, in seconds since the epoch. A Lease has no holder if it
/// expired more than [`LEEWAY`] seconds before `now`.
fn holder(lease: &Lease, now: i64) -> Leader {
    let seen = seen(lease);
    let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref());
    let lasts = i64::try_from(seen.duration.as_secs()).unwrap_or(i64::MAX);
    let until = renewed.map_or(0, |time| time.0.as_second()).saturating_add(lasts) + LEEWAY;
    match seen.other_controller() {
        _ if seen.holder.is_empty() || until < now => Leader::None,
        Some(other) => Leader::Other(other.to_owned()),
        None => Leader::Operator(seen.holder),
    }
}

fn registered(configuration: &ValidatingWebhookConfiguration) -> WebhookContent {
    let by = configuration.labels().get(REGISTERED_BY);
    let webhooks = configuration.webhooks.as_deref().unwrap_or_default();
    let leads_to_go = webhooks.iter().any(|webhook| {
        webhook.client_config.service.as_ref().is_some_and(|to| to.name == CONFIGURATION)
    });
    if by.is_none_or(|by| by != MANAGER) || webhooks.is_empty() || leads_to_go {
        return WebhookContent::Other;
    }
    let is_closed = |policy: Option<&str>| policy.is_none_or(|policy| policy == "Fail");
    if webhooks.iter().all(|webhook| is_closed(webhook.failure_policy.as_deref())) {
        WebhookContent::Operator
    } else {
        WebhookContent::OperatorOpen
    }
}
