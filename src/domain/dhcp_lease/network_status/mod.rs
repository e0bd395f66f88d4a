//! Status of the host's leases on a network. The status is stored as JSON in an annotation on the
//! network's NetworkAttachmentDefinition, because this kind has no field for a status. The operator
//! writes the status only when it changes. The status says:
//!
//! * The pod that serves the network, and since when. If no pod serves it: the reason.
//! * The fault in an annotation that sets an option of the agent, if there is such a fault. Until
//!   the fault is corrected, the agent keeps its former options ([`WantedAgent::Faulty`]).

use chrono::{DateTime, FixedOffset};
use serde::{Deserialize, Serialize};

use super::agent_deployment::{StoredDeployment, node_label};
use super::agent_name::agent_name;
use super::networks::WantedAgent;
use crate::limits::text::{LONGEST_WORD, cut};
use crate::object_fields::rfc3339;

/// Facts about a network's agent.
#[derive(Clone, Debug)]
pub struct AgentFacts<'a> {
    /// NetworkAttachmentDefinition of the network, as `namespace/name`.
    pub network: &'a str,
    /// Namespace of the network's agent.
    pub namespace: &'a str,
    /// Agent that the network is to have.
    pub agent: &'a WantedAgent,
    /// Active pod, which holds the Lease of the network's agent, and the time since which the pod
    /// holds it. `None`: no pod is active. `None` in the second field: the time is not known.
    pub served_by: Option<(String, Option<DateTime<FixedOffset>>)>,
    /// Name of the cluster network that the network belongs to. Empty, or `mgmt`: each node has the
    /// network.
    pub cluster_network: &'a str,
    /// Whether at least one node belongs to this cluster network.
    pub has_node: bool,
    /// Deployment of the agent. `None`: not known, or there is none.
    pub deployment: Option<&'a StoredDeployment>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct NetworkStatus {
    /// Name of the pod that serves the network: this pod holds the Lease of the network's agent.
    /// Empty: no pod serves the network.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    agent: String,
    /// Time at which the pod acquired the Lease of the network's agent. If this time is not known,
    /// or no pod holds the Lease: time at which `agent` or `reason` last changed.
    since: String,
    /// Reason why no agent serves the network, or why the agent does not follow the network's
    /// annotations. Empty: there is no such problem.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    message: String,
}

/// New value of the annotation that holds the network's status. Outer `None`: the annotation needs
/// no write. Inner `None`: the annotation must be removed. `stored`: the annotation's present
/// value, or empty if the annotation is missing.
pub fn change(
    facts: &AgentFacts<'_>,
    stored: &str,
    now: DateTime<FixedOffset>,
) -> Option<Option<String>> {
    let before: Option<NetworkStatus> = serde_json::from_str(stored).ok();
    let Some(mut status) = status(facts) else {
        return (!stored.is_empty()).then_some(None);
    };
    if status.since.is_empty() {
        let same = |before: &&NetworkStatus| {
            before.agent == status.agent && before.reason == status.reason
        };
        let before = before.as_ref().filter(same).map(|before| before.since.clone());
        status.since = before.unwrap_or_else(|| rfc3339::to_second(now));
    }
    if before.as_ref() == Some(&status) {
        return None;
    }
    serde_json::to_string(&status).ok().map(Some)
}

/// Status that the network must have. `None`: the network must have no status. If `since` is empty
/// in the result, [`change`] sets it.
fn status(facts: &AgentFacts<'_>) -> Option<NetworkStatus> {
    let AgentFacts { network, namespace, agent, cluster_network, .. } = facts;
    let why = |reason: &str, message: String| {
        let message = cut(message, LONGEST_WORD);
        Some(NetworkStatus { reason: reason.to_owned(), message, ..NetworkStatus::default() })
    };
    match agent {
        WantedAgent::None => return None,
        WantedAgent::Refused(message) => return why("Refused", message.clone()),
        WantedAgent::Others | WantedAgent::Ours | WantedAgent::Faulty(_) => {}
    }
    if let Some((by, since)) = &facts.served_by {
        let since = since.map(rfc3339::to_second).unwrap_or_default();
        let fault = match agent {
            WantedAgent::Faulty(fault) => why("FormerOptions", fault.clone()),
            _ => None,
        };
        return Some(NetworkStatus { agent: by.clone(), since, ..fault.unwrap_or_default() });
    }
    if let WantedAgent::Faulty(fault) = agent {
        return why("Refused", fault.clone());
    }
    let name = agent_name(network);
    let ours = || **agent == WantedAgent::Ours;
    if let Some(label) = node_label(cluster_network).filter(|_| ours() && !facts.has_node) {
        return why(
            "NoNode",
            format!("no node has the label {label} of the cluster network {cluster_network}"),
        );
    }
    if let Some(failure) = facts.deployment.and_then(|stored| stored.failure.as_ref()) {
        return why("NoPod", format!("Deployment {namespace}/{name}: {failure}"));
    }
    why(
        "AgentAway",
        format!(
            "no agent is active: to see the reason, run kubectl -n {namespace} describe pods -l loadbalancer.harvesterhci.io/agent={name}"
        ),
    )
}

#[cfg(test)]
mod tests;
