//! `LoadBalancer` in version v1alpha1. It is still served for old clients, and is never stored.
//!
//! All fields are as Harvester serves them. An annotation carries the fields that only v1beta1 has
//! (see `conversion` in the crate `domain`). The API server validates a request only by the rules
//! of the request's version. So v1alpha1 repeats those rules of v1beta1 that the fields of v1alpha1
//! can express.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Condition, Ipam};

/// Request for one address that leads to VMs or into a guest cluster.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[kube(
    group = "loadbalancer.harvesterhci.io",
    version = "v1alpha1",
    kind = "LoadBalancer",
    doc = "Address at which clients reach VMs, or a Service of a guest cluster. \
        Version v1alpha1 is deprecated: use v1beta1, which has more fields.",
    namespaced,
    shortname = "lb",
    shortname = "lbs",
    status = "LoadBalancerStatus",
    derive = "PartialEq",
    derive = "Default",
    deprecated = "loadbalancer.harvesterhci.io/v1alpha1 LoadBalancer is deprecated; use loadbalancer.harvesterhci.io/v1beta1",
    printcolumn(name = "Description", type_ = "string", json_path = ".spec.description"),
    printcolumn(name = "IPAM", type_ = "string", json_path = ".spec.ipam"),
    printcolumn(name = "Address", type_ = "string", json_path = ".status.address"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(
    validation = ("self.ipam == oldSelf.ipam",
        "spec.ipam is immutable: create a new LoadBalancer to change it"),
    validation = ("!has(self.listeners) || self.listeners.all(l, !has(l.protocol) || l.protocol in ['TCP', 'UDP'])",
        "spec.listeners[].protocol: must be TCP or UDP"),
    validation = ("!has(self.listeners) || self.listeners.all(l, self.listeners.filter(m, m.name == l.name).size() == 1)",
        "spec.listeners[].name: each name may be used once, and with several listeners each needs a name"),
    validation = ("!has(self.listeners) || self.listeners.all(l, self.listeners.filter(m, m.port == l.port && (has(m.protocol) ? m.protocol : 'TCP') == (has(l.protocol) ? l.protocol : 'TCP')).size() == 1)",
        "spec.listeners[].port: each pair of port and protocol may be used once"),
    validation = ("!has(self.listeners) || self.listeners.all(l, l.name == '' || l.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'))",
        "spec.listeners[].name: must be lower-case letters, digits and dashes, and begin and end with a letter or digit"),
)]
#[serde(rename_all = "camelCase")]
pub struct LoadBalancerSpec {
    /// Free text that describes the LoadBalancer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub description: Option<String>,
    /// Source of the address: an IPPool or a DHCP server.
    pub ipam: Ipam,
    /// Ports of the load balancer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub listeners: Vec<Listener>,
    /// Names of the VMs behind the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), inner(length(max = 63)))]
    pub backend_servers: Option<Vec<String>>,
    /// Health check of the VMs behind the address. Unset: VMs are not probed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_check: Option<HealthCheck>,
}

/// Pair of ports: one of the address, and one of the VMs behind it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Listener {
    /// Name of the listener, unique within the LoadBalancer: lower-case letters, digits and dashes.
    /// The name may be empty only if the LoadBalancer has no other listener.
    #[schemars(length(max = 63))]
    pub name: String,
    /// Port on the address, 1 to 65535.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// Protocol of the port: `TCP` or `UDP`.
    #[serde(default = "super::load_balancer::tcp")]
    #[schemars(length(max = 8))]
    pub protocol: String,
    /// Port of the VMs. Unset means the same as `port`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub backend_port: Option<i32>,
}

/// TCP probe of each backend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HealthCheck {
    /// Backend port to probe. Zero: backends are not probed.
    #[schemars(range(min = 0, max = 65535))]
    pub port: i32,
    /// Number of consecutive successful probes that make a backend healthy. Zero means 1.
    #[schemars(range(min = 0))]
    pub success_threshold: i32,
    /// Number of consecutive failed probes that make a backend unhealthy. Zero means 3.
    #[schemars(range(min = 0))]
    pub failure_threshold: i32,
    /// Seconds between two probes of a backend. Zero means 5. The field's name begins with a
    /// capital letter, as in Harvester's CRD.
    #[serde(rename = "PeriodSeconds")]
    #[schemars(range(min = 0))]
    pub period_seconds: i32,
    /// Seconds without an answer after which a probe counts as failed. Zero means 3.
    #[schemars(range(min = 0))]
    pub timeout_seconds: i32,
}

/// Address of the LoadBalancer, and its state.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LoadBalancerStatus {
    /// Address at which clients reach the LoadBalancer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Conditions of the LoadBalancer. `Ready` shows whether the address can be used, and if not,
    /// why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub conditions: Vec<Condition>,
}
