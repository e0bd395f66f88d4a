//! Status on a network of the host's leasing there: who serves it and since when, or why no agent does, and which
//! annotation is not followed.
//!
//! It is an annotation, as JSON, because a NetworkAttachmentDefinition has no status. It changes with what it
//! says, and with nothing else.

use chrono::{DateTime, FixedOffset, SecondsFormat};
use serde::{Deserialize, Serialize};

use super::agent_deployment::{Stored, node_label};
use super::networks::Agent;
use crate::dhcp::agent_name;
use crate::load_balancer::bounds::{LONGEST_WORD, cut};

/// Knowledge of a network's agent.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// `namespace/name`.
    pub network: &'a str,
    /// The namespace of its agent.
    pub namespace: &'a str,
    /// Maker of its agent.
    pub agent: &'a Agent,
    /// The pod that holds the network's Lease, and since when, if one does.
    pub served_by: Option<(String, Option<DateTime<FixedOffset>>)>,
    /// The network's cluster network.
    pub cluster_network: &'a str,
    /// Whether a node has that.
    pub has_node: bool,
    /// The agent's Deployment, as far as it is known.
    pub deployment: Option<&'a Stored>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Status {
    /// The pod that serves it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    agent: String,
    /// Since when that is so.
    since: String,
    /// Why no agent does, or why it does not as the annotations say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    message: String,
}

/// The annotation as it is to be: `Some(None)` for none. `None`: it is so, as far as `stored` says.
pub fn change(
    facts: &Facts<'_>,
    stored: &str,
    now: DateTime<FixedOffset>,
) -> Option<Option<String>> {
    let before: Option<Status> = serde_json::from_str(stored).ok();
    let Some(mut status) = status(facts) else {
        return (!stored.is_empty()).then_some(None);
    };
    if status.since.is_empty() {
        let same =
            |before: &&Status| before.agent == status.agent && before.reason == status.reason;
        let before = before.as_ref().filter(same).map(|before| before.since.clone());
        status.since = before.unwrap_or_else(|| time(now));
    }
    if before.as_ref() == Some(&status) {
        return None;
    }
    serde_json::to_string(&status).ok().map(Some)
}

/// Text of the status. Without a time: since it was first said.
fn status(facts: &Facts<'_>) -> Option<Status> {
    let Facts { network, namespace, agent, cluster_network, .. } = facts;
    let why = |reason: &str, message: String| {
        let message = cut(message, LONGEST_WORD);
        Some(Status { reason: reason.to_owned(), message, ..Status::default() })
    };
    match agent {
        Agent::None => return None,
        Agent::Refused(message) => return why("Refused", message.clone()),
        Agent::Others | Agent::Ours | Agent::Faulty(_) => {}
    }
    if let Some((by, since)) = &facts.served_by {
        let since = since.map(time).unwrap_or_default();
        let told = match agent {
            Agent::Faulty(fault) => why("FormerOptions", fault.clone()),
            _ => None,
        };
        return Some(Status { agent: by.clone(), since, ..told.unwrap_or_default() });
    }
    if let Agent::Faulty(fault) = agent {
        return why("Refused", fault.clone());
    }
    let name = agent_name(network);
    let ours = || **agent == Agent::Ours;
    if let Some(label) = node_label(cluster_network).filter(|_| ours() && !facts.has_node) {
        return why(
            "NoNode",
            format!("no node has the cluster network {cluster_network}, by the label {label}"),
        );
    }
    if let Some(failure) = facts.deployment.and_then(|stored| stored.failure.as_ref()) {
        return why("NoPod", format!("Deployment {namespace}/{name}: {failure}"));
    }
    why(
        "AgentAway",
        format!(
            "kubectl -n {namespace} describe pods -l loadbalancer.harvesterhci.io/agent={name} says why"
        ),
    )
}

fn time(at: DateTime<FixedOffset>) -> String {
    at.to_utc().to_rfc3339_opts(SecondsFormat::Secs, true)
}

#[cfg(test)]
mod tests;
