//! Makes DHCP agents for the networks that request one by the annotation
//! [`crate::api::ANNOTATION_DHCP`]. Each such network gets a Deployment in the operator's
//! namespace, unless a fault prevents it. The annotation [`ANNOTATION_DHCP_STATUS`] of the network
//! contains the state of the agent. [`crate::domain::dhcp_lease`] decides the content of Deployment
//! and annotation.
//!
//! All networks are checked each second, in memory. A Deployment or an annotation is written only
//! if it differs from the desired one.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use chrono::Utc;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::{Api, ResourceExt};
use kube_runtime::watcher::Config;
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior};

use super::Context;
use super::failed_reconciles::FailedReconciles;
use crate::api::ANNOTATION_DHCP_STATUS;
use crate::domain::dhcp_lease::WantedAgent;
use crate::domain::dhcp_lease::agent_deployment::{self, DeploymentChange, StoredDeployment};
use crate::domain::dhcp_lease::network_status::{self, AgentFacts};
use crate::domain::dhcp_lease::{AGENT_PREFIX, agent_name};
use crate::k8s::CallError;
use crate::k8s::calls::ApiCalls as _;
use crate::k8s::informer::{self, ObjectEvent, split_key};
use crate::k8s::views::AgentNetwork;
use crate::locks::lock;

/// Interval between two checks of all networks.
const EVERY: Duration = Duration::from_secs(1);
/// Delay before a write that has failed once is tried again. The same delay follows each failed
/// read of the ClusterRole that owns the Deployments.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// Settings for the Deployments of the DHCP agents.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// Namespace of the Deployments: the operator's own.
    pub namespace: String,
    /// Deployment from which the Deployment of each agent is made.
    pub template: Value,
    /// Name of the ClusterRole that owns the Deployments. `None`: they have no owner.
    pub owner: Option<String>,
}

/// Makes, corrects and removes the Deployments of the DHCP agents, until the future is dropped.
/// Does nothing if the operator has no [`AgentOptions`].
pub(super) async fn run(ctx: Context) {
    let Some(agents) = ctx.agents.clone() else { return std::future::pending().await };
    let reconciler = DeploymentReconciler { ctx, agents: &agents, seen: Mutex::default() };
    tokio::select! {
        () = reconciler.watch() => {}
        () = reconciler.reconcile() => {}
    }
}

struct DeploymentReconciler<'a> {
    ctx: Context,
    agents: &'a AgentOptions,
    seen: Mutex<ObservedDeployments>,
}

/// Deployments whose names begin with [`AGENT_PREFIX`], by name. They come from the watch, and from
/// the answers to the operator's own writes.
#[derive(Default)]
struct ObservedDeployments {
    listed: bool,
    deployments: HashMap<String, StoredDeployment>,
}

/// Failed writes, and the time of the next attempt of each. The key is the name of the written
/// Deployment or network.
struct FailedWrites {
    failures: FailedReconciles<String>,
    again: HashMap<String, Instant>,
}

impl FailedWrites {
    fn may_try(&self, name: &str) -> bool {
        self.again.get(name).is_none_or(|again| *again <= Instant::now())
    }

    /// Records the result of a write. `name`: key of the write, which is the name of the Deployment
    /// or network. `object`: kind and name of the object, for the log.
    fn record(&mut self, name: &str, object: &str, written: Result<(), CallError>) {
        match written {
            Ok(()) => {
                self.again.remove(name);
                self.failures.forget(&name.to_owned());
            }
            // No delay is recorded: the next check, a second later, decides from the objects that
            // the watch has shown by then.
            Err(CallError::Conflict(_) | CallError::NotFound(_) | CallError::NotLeader) => {}
            Err(error) => {
                let (failures, delay) = self.failures.count_name(name.to_owned(), error.kind());
                tracing::warn!(object, %error, failures, "cannot reconcile the DHCP agent, trying again");
                self.again.insert(name.to_owned(), Instant::now() + delay);
            }
        }
    }
}

impl DeploymentReconciler<'_> {
    fn seen(&self) -> MutexGuard<'_, ObservedDeployments> {
        lock(&self.seen)
    }

    async fn watch(&self) {
        let namespace = &self.agents.namespace;
        let key = |name: &String| format!("{namespace}/{name}");
        let known = || self.seen().deployments.keys().map(key).collect();
        let on_event = |event| match event {
            ObjectEvent::Listed(deployment) | ObjectEvent::Changed(deployment) => {
                self.seen().deployments.extend(read(&deployment));
            }
            ObjectEvent::Gone(key, _) => {
                self.seen().deployments.remove(split_key(&key).1);
            }
            ObjectEvent::Complete => self.seen().listed = true,
            ObjectEvent::Unreadable(_) | ObjectEvent::Refused(_) => {}
        };
        let api = Api::<Deployment>::namespaced(self.ctx.client.clone(), namespace);
        informer::watch(api, Config::default(), &self.ctx.metrics, known, on_event).await;
    }

    async fn reconcile(&self) {
        let owner = self.owner().await;
        let failures = FailedReconciles::new("dhcp_agent", FIRST_RETRY, &self.ctx.metrics);
        let mut failed = FailedWrites { failures, again: HashMap::new() };
        let mut reported = HashMap::new();
        let mut tick = tokio::time::interval(EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            if !self.ctx.views.leasing_synced() || !self.seen().listed {
                continue;
            }
            let networks = self.networks();
            self.report_faults(&networks, &mut reported);
            let mut wanted: HashMap<String, Option<Value>> =
                self.seen().deployments.keys().map(|name| (name.clone(), None)).collect();
            for network in &networks {
                let name = agent_name(&network.name);
                let options = match network.agent {
                    WantedAgent::Ours => Some(agent_deployment::options(&network.declaration)),
                    WantedAgent::Faulty(_) => self.options(&network.name),
                    WantedAgent::None | WantedAgent::Others | WantedAgent::Refused(_) => continue,
                };
                // A Deployment that `wanted` lacks is left as it is. So the network's Deployment is
                // not changed while its options are unknown.
                wanted.remove(&name);
                if let Some(options) = options {
                    let (template, on) =
                        (&self.agents.template, &network.declaration.cluster_network);
                    let owner = owner.as_ref();
                    let object =
                        agent_deployment::deployment(template, &network.name, on, &options, owner);
                    wanted.insert(name, Some(object));
                }
            }
            for (name, wanted) in wanted {
                if failed.may_try(&name) {
                    let written = self.carry_out(&name, wanted).await;
                    let object = format!("Deployment {}/{name}", self.agents.namespace);
                    failed.record(&name, &object, written);
                }
            }
            for network in networks.iter().filter(|network| network.may_declare) {
                if failed.may_try(&network.name) {
                    let written = self.write_status(network).await;
                    let object = format!("NetworkAttachmentDefinition {}", network.name);
                    failed.record(&network.name, &object, written);
                }
            }
        }
    }

    /// Command-line options of the DHCP agent of `network`, from its stored Deployment. `None`: the
    /// operator has no Deployment for this agent, or the Deployment's arguments are not those of an
    /// agent for `network`.
    fn options(&self, network: &str) -> Option<Vec<String>> {
        self.seen().deployments.get(&agent_name(network))?.options(network)
    }

    /// All networks for which an annotation or an option of the operator requests an agent, and all
    /// networks with the annotation [`ANNOTATION_DHCP_STATUS`]. If another party owns the
    /// Deployment with the agent's name, the network's agent is [`WantedAgent::Refused`].
    fn networks(&self) -> Vec<AgentNetwork> {
        let mut networks = self.ctx.views.agent_networks();
        let seen = self.seen();
        for network in networks.iter_mut().filter(|network| network.agent == WantedAgent::Ours) {
            let name = agent_name(&network.name);
            if seen.deployments.get(&name).is_some_and(|stored| !stored.ours) {
                network.agent = WantedAgent::Refused(format!(
                    "Deployment {}/{name} has the name that the agent needs, but it is not the operator's: remove it",
                    self.agents.namespace
                ));
            }
        }
        networks
    }

    /// Logs each fault of a network once, and records an Event for it. Log and Event say what the
    /// fault causes: no agent is made, or the agent retains its current options. `reported`: map
    /// from a network to its fault at the last call. This call updates the map.
    fn report_faults(&self, networks: &[AgentNetwork], reported: &mut HashMap<String, String>) {
        // A map, because the search through a list would take long: a tenant can write thousands of
        // networks with a fault.
        let mut faults = HashMap::new();
        for network in networks {
            let Some(why) = network.agent.fault() else { continue };
            faults.insert(network.name.clone(), why.to_owned());
            if reported.get(&network.name).is_none_or(|before| before != why) {
                let what = match (&network.agent, self.options(&network.name)) {
                    (WantedAgent::Faulty(_), Some(_)) => {
                        "the DHCP agent retains its current options"
                    }
                    _ => "the operator creates no DHCP agent",
                };
                tracing::warn!(network = network.name, why, "{what}");
                let note = format!("{what}: {why}");
                self.ctx.events.warning(network.reference.clone(), "DHCPRefused", note);
            }
        }
        *reported = faults;
    }

    /// Writes the state of a network's agent into the network's annotation, if the annotation
    /// differs.
    async fn write_status(&self, network: &AgentNetwork) -> Result<(), CallError> {
        let views = &self.ctx.views;
        let label = agent_deployment::node_label(&network.declaration.cluster_network);
        let stored = self.seen().deployments.get(&agent_name(&network.name)).cloned();
        let facts = AgentFacts {
            network: &network.name,
            namespace: &self.agents.namespace,
            agent: &network.agent,
            served_by: views.agent_of(&network.name),
            cluster_network: &network.declaration.cluster_network,
            has_node: label.is_none_or(|label| views.has_node(&label)),
            deployment: stored.as_ref(),
        };
        let now = Utc::now().fixed_offset();
        let Some(status) = network_status::change(&facts, &network.status, now) else {
            return Ok(());
        };
        let (namespace, name) = split_key(&network.name);
        let patch = json!({"metadata": {
            "resourceVersion": network.reference.resource_version,
            "annotations": {ANNOTATION_DHCP_STATUS: status},
        }});
        self.ctx.writer.patch_network(namespace, name, &patch).await
    }

    async fn carry_out(&self, name: &str, wanted: Option<Value>) -> Result<(), CallError> {
        let stored = self.seen().deployments.get(name).cloned();
        let (writer, namespace) = (&self.ctx.writer, &self.agents.namespace);
        let written = match (agent_deployment::plan(wanted, stored.as_ref()), stored) {
            (DeploymentChange::Create(object), _) => {
                tracing::info!(namespace, name, "Deployment of a DHCP agent created");
                writer.create_deployment(namespace, &object).await?
            }
            (DeploymentChange::Replace(object), Some(_)) => {
                tracing::info!(namespace, name, "Deployment of a DHCP agent corrected");
                writer.replace_deployment(namespace, name, &object).await?
            }
            (DeploymentChange::Delete, Some(stored)) => {
                tracing::info!(namespace, name, "Deployment of a DHCP agent removed");
                return writer
                    .delete_deployment(namespace, name, &stored.uid, &stored.version)
                    .await;
            }
            _ => return Ok(()),
        };
        // The written Deployment is stored in memory at once, because the watch may show it only
        // after the next check.
        self.seen().deployments.extend(read(&written));
        Ok(())
    }

    /// Owner reference to the ClusterRole that [`AgentOptions::owner`] names. The deletion of the
    /// ClusterRole deletes the agents' Deployments. `None`: no ClusterRole is named, or it does not
    /// exist.
    async fn owner(&self) -> Option<Value> {
        let name = self.agents.owner.as_deref()?;
        let roles = Api::<ClusterRole>::all(self.ctx.client.clone());
        loop {
            match roles.call_get_opt(name).await {
                Ok(role) => {
                    let uid = role?.metadata.uid?;
                    return Some(json!({
                        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                        "name": name, "uid": uid,
                    }));
                }
                Err(error) => {
                    let why = "cannot read the owner of DHCP agents, trying again";
                    tracing::warn!(cluster_role = name, %error, "{why}");
                    tokio::time::sleep(FIRST_RETRY).await;
                }
            }
        }
    }
}

/// Name and content of a Deployment. `None`: the name does not begin with [`AGENT_PREFIX`].
fn read(deployment: &Deployment) -> Option<(String, StoredDeployment)> {
    let name = deployment.name_any();
    let object = serde_json::to_value(deployment).ok()?;
    name.starts_with(AGENT_PREFIX).then(|| (name, StoredDeployment::read(&object)))
}
