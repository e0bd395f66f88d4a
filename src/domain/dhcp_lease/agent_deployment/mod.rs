//! Deployment of a network's agent. The operator creates, updates and deletes the Deployment. This
//! module sets the fields that depend on the network, the operator's label and the owner reference.
//! The other fields come from the chart's template. Invariants:
//!
//! * A Deployment without the operator's own label is never changed or deleted.
//! * A network's name cannot add an argument or a field. The name is a whole argument or a whole
//!   annotation. In the JSON for Multus, each of its two parts is a whole string.

use serde_json::{Value, json};

use super::agent_name::agent_name;
use super::networks::DhcpDeclaration;
use crate::object_fields::digest::sha256_hex;
use api::{MANAGED_BY, MANAGER};

/// Label on an agent's Deployment and on its pod. The value is the agent's name.
const LABEL_AGENT: &str = "loadbalancer.harvesterhci.io/agent";
/// Annotation on an agent's Deployment. The value is the `namespace/name` of the agent's network.
const ANNOTATION_AGENT_NETWORK: &str = "loadbalancer.harvesterhci.io/network";
/// Annotation on an agent's Deployment. The value is a digest of the Deployment that the operator
/// wrote: the first octets of its SHA-256, in hexadecimal.
const ANNOTATION_WANTED: &str = "loadbalancer.harvesterhci.io/wanted";
/// Length of the digest in [`ANNOTATION_WANTED`], in characters.
const DIGITS: usize = 16;
/// Annotation on a pod. The value lists the networks to which Multus attaches the pod.
const ANNOTATION_NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
/// Name that the interface on the agent's network has in the pod.
const INTERFACE: &str = "net1";
/// Prefix of a label on the nodes that have a cluster network. The rest of the label's key is the
/// name of the cluster network, and the label's value is "true". Source:
/// network-controller-harvester, pkg/controller/manager/nad/controller.go.
pub const LABEL_CLUSTER_NETWORKS: &str = "network.harvesterhci.io/";
/// Name of the cluster network that each node has.
const MANAGEMENT: &str = "mgmt";

/// Deployment of an agent, as the API server has stored it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoredDeployment {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub version: String,
    /// Whether the Deployment has the operator's label, which means that the operator created it.
    pub ours: bool,
    /// Whether the Deployment is being deleted.
    pub leaving: bool,
    /// Digest of the Deployment that the operator wrote last. Empty: the annotation with the digest
    /// is missing.
    pub wanted: String,
    /// Stored `spec`.
    pub spec: Value,
    /// Reason why the Deployment's pod cannot be created. `None`: the Deployment controller reports
    /// no such reason.
    pub failure: Option<String>,
}

impl StoredDeployment {
    /// Command-line options of the agent in the stored Deployment, without the arguments that name
    /// the network and the interface. `None`: the operator did not create the Deployment, or its
    /// arguments do not begin with those of an agent for `network`.
    pub fn options(&self, network: &str) -> Option<Vec<String>> {
        let args = self.spec["template"]["spec"]["containers"][0]["args"].as_array()?;
        let args: Vec<&str> = args.iter().map(Value::as_str).collect::<Option<_>>()?;
        let options = args.strip_prefix(&arguments(network)).filter(|_| self.ours)?;
        Some(options.iter().map(|option| (*option).to_owned()).collect())
    }

    /// Reads a Deployment from its JSON.
    pub fn read(object: &Value) -> Self {
        let meta = &object["metadata"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let conditions = object["status"]["conditions"].as_array();
        let failure = conditions.into_iter().flatten().find(|condition| {
            condition["type"] == "ReplicaFailure" && condition["status"] == "True"
        });
        Self {
            uid: text(&meta["uid"]),
            version: text(&meta["resourceVersion"]),
            ours: meta["labels"][MANAGED_BY] == MANAGER,
            leaving: meta["deletionTimestamp"].is_string(),
            wanted: text(&meta["annotations"][ANNOTATION_WANTED]),
            spec: object["spec"].clone(),
            failure: failure.map(|condition| text(&condition["message"])),
        }
    }
}

/// Change that the Deployment of a network's agent needs.
#[derive(Clone, Debug, PartialEq)]
pub enum DeploymentChange {
    /// The Deployment needs no change now.
    Nothing,
    /// Creates this Deployment.
    Create(Value),
    /// Replaces the stored Deployment by this one.
    Replace(Value),
    /// Deletes the stored Deployment.
    Delete,
    /// The Deployment must not be changed: it has the agent's name, but the operator did not create
    /// it.
    Foreign,
}

/// Plans the change that the Deployment of a network's agent needs. `wanted`: the Deployment that
/// the network must have. `None`: the network must have none. `stored`: the Deployment that exists.
/// `None`: there is none.
pub fn plan(wanted: Option<Value>, stored: Option<&StoredDeployment>) -> DeploymentChange {
    match (wanted, stored) {
        (None, Some(stored)) if stored.ours && !stored.leaving => DeploymentChange::Delete,
        (None, _) => DeploymentChange::Nothing,
        (Some(wanted), None) => DeploymentChange::Create(wanted),
        (Some(_), Some(stored)) if !stored.ours => DeploymentChange::Foreign,
        // The wanted Deployment is created after the stored one is gone.
        (Some(_), Some(stored)) if stored.leaving => DeploymentChange::Nothing,
        (Some(mut wanted), Some(stored)) => {
            let same = wanted["metadata"]["annotations"][ANNOTATION_WANTED] == stored.wanted
                && covers(&stored.spec, &wanted["spec"]);
            if same {
                return DeploymentChange::Nothing;
            }
            wanted["metadata"]["resourceVersion"] = json!(stored.version);
            DeploymentChange::Replace(wanted)
        }
    }
}

/// Whether `stored` has each field of `wanted`, with the same value. Further fields in `stored` do
/// not count, because the API server adds fields. A null in `wanted` matches any value, and an
/// empty object or list in `wanted` also matches a missing field. `resources` are not compared,
/// because the API server normalizes quantities.
fn covers(stored: &Value, wanted: &Value) -> bool {
    match (stored, wanted) {
        (_, Value::Null) => true,
        (Value::Object(stored), Value::Object(wanted)) => wanted.iter().all(|(key, wanted)| {
            key == "resources" || covers(stored.get(key).unwrap_or(&Value::Null), wanted)
        }),
        (Value::Array(stored), Value::Array(wanted)) => {
            stored.len() == wanted.len()
                && stored.iter().zip(wanted).all(|(stored, wanted)| covers(stored, wanted))
        }
        (Value::Null, Value::Object(wanted)) => wanted.is_empty(),
        (Value::Null, Value::Array(wanted)) => wanted.is_empty(),
        (stored, wanted) => stored == wanted,
    }
}

/// Command-line options of a network's agent, made from the network's annotations. An annotation
/// that is not valid gives no option.
pub fn options(declaration: &DhcpDeclaration) -> Vec<String> {
    let mut options = Vec::new();
    let subnets = declaration.subnets().unwrap_or_default();
    let subnets = subnets.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    if !subnets.is_empty() {
        options.extend(["--subnets".to_owned(), subnets]);
    }
    if declaration.keeps() == Ok(true) {
        options.extend(["--on-lease-loss", "keep"].map(str::to_owned));
    }
    if declaration.broadcasts().unwrap_or_default() {
        options.push("--broadcast".to_owned());
    }
    options
}

/// Arguments of a network's agent that come before its options on the command line.
fn arguments(network: &str) -> [&str; 4] {
    ["--network", network, "--interface", INTERFACE]
}

/// Deployment of a network's agent, made from the chart's `template`. `cluster_network`: name of
/// the cluster network to which the network belongs. Empty: each node has the network. `options`:
/// command-line options of the agent. `owner`: owner reference of the Deployment. `None`: the
/// Deployment gets no owner reference.
pub fn deployment(
    template: &Value,
    network: &str,
    cluster_network: &str,
    options: &[String],
    owner: Option<&Value>,
) -> Value {
    let name = agent_name(network);
    let mut wanted = template.clone();
    wanted["apiVersion"] = json!("apps/v1");
    wanted["kind"] = json!("Deployment");
    wanted["metadata"]["name"] = json!(name);
    wanted["metadata"]["labels"][MANAGED_BY] = json!(MANAGER);
    wanted["metadata"]["labels"][LABEL_AGENT] = json!(name);
    wanted["metadata"]["annotations"][ANNOTATION_AGENT_NETWORK] = json!(network);
    if let Some(owner) = owner {
        wanted["metadata"]["ownerReferences"] = json!([owner]);
    }
    wanted["spec"]["selector"]["matchLabels"][LABEL_AGENT] = json!(name);
    let pod = &mut wanted["spec"]["template"];
    pod["metadata"]["labels"][LABEL_AGENT] = json!(name);
    let (namespace, of) = network.split_once('/').unwrap_or_default();
    let attached = json!([{"namespace": namespace, "name": of, "interface": INTERFACE}]);
    pod["metadata"]["annotations"][ANNOTATION_NETWORKS] = json!(attached.to_string());
    if let Some(label) = node_label(cluster_network) {
        let has_it = json!({"key": label, "operator": "In", "values": ["true"]});
        pod["spec"]["affinity"]["nodeAffinity"] = json!({
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [has_it]}],
            },
        });
    }
    if let Some(container) = pod["spec"]["containers"].get_mut(0) {
        let args = arguments(network).into_iter().chain(options.iter().map(String::as_str));
        container["args"] = json!(args.collect::<Vec<_>>());
    }
    let digest = sha256_hex(wanted.to_string().as_bytes());
    wanted["metadata"]["annotations"][ANNOTATION_WANTED] = json!(&digest[..DIGITS]);
    wanted
}

/// Key of the label on the nodes that have this cluster network. `None`: the name is empty or
/// `mgmt`, and each node counts as having the cluster network.
pub fn node_label(cluster_network: &str) -> Option<String> {
    let everywhere = cluster_network.is_empty() || cluster_network == MANAGEMENT;
    (!everywhere).then(|| format!("{LABEL_CLUSTER_NETWORKS}{cluster_network}"))
}

#[cfg(test)]
mod tests;
