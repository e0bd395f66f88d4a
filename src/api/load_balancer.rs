//! `LoadBalancer`: what a guest or a VM owner asks for, and what it was given.
//!
//! There is no status subresource: the guest cloud provider writes `status.address` with a
//! plain update and has no right to `/status`. `observedGeneration` is therefore not written:
//! every status write raises the generation.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Condition;

/// A request for one address that leads to VMs or into a guest cluster.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[kube(
    group = "loadbalancer.harvesterhci.io",
    version = "v1beta1",
    kind = "LoadBalancer",
    namespaced,
    shortname = "lb",
    shortname = "lbs",
    status = "LoadBalancerStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn(
        name = "Address",
        type_ = "string",
        json_path = ".status.address",
        description = "Where the load balancer is reached"
    ),
    printcolumn(
        name = "Allocated",
        type_ = "string",
        json_path = ".status.allocatedAddress.ip",
        description = "The address held in the pool's ledger"
    ),
    printcolumn(name = "Pool", type_ = "string", json_path = ".status.allocatedAddress.ipPool"),
    printcolumn(name = "WorkloadType", type_ = "string", json_path = ".spec.workloadType"),
    printcolumn(name = "IPAM", type_ = "string", json_path = ".spec.ipam"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].reason"
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        priority = 1,
        json_path = ".status.conditions[?(@.type=='Ready')].message"
    ),
    printcolumn(
        name = "Description",
        type_ = "string",
        priority = 1,
        json_path = ".spec.description"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(
    validation = ("(has(self.ipam) ? self.ipam : 'pool') == (has(oldSelf.ipam) ? oldSelf.ipam : 'pool')",
        "spec.ipam is immutable (unset means pool): create a new LoadBalancer to change it"),
    validation = ("(has(self.workloadType) ? self.workloadType : 'vm') == (has(oldSelf.workloadType) ? oldSelf.workloadType : 'vm')",
        "spec.workloadType is immutable (unset means vm): create a new LoadBalancer to change it"),
    validation = ("!has(self.ipPool) || self.ipPool == '' || !has(self.ipam) || self.ipam != 'dhcp'",
        "spec.ipPool must be unset when spec.ipam is dhcp: the address comes from the DHCP server"),
    validation = ("!has(self.requestedAddresses) || size(self.requestedAddresses) == 0",
        "spec.requestedAddresses is not supported by this version: remove it; a pool of one address pins an address"),
    validation = ("!has(self.ipv6Pool) || self.ipv6Pool == ''",
        "spec.ipv6Pool is not supported by this version: remove it; name an IPv6 pool in spec.ipPool"),
    validation = ("!has(self.ipFamilyPolicy) || self.ipFamilyPolicy == 'SingleStack'",
        "spec.ipFamilyPolicy: only SingleStack is supported by this version"),
)]
#[serde(rename_all = "camelCase")]
pub struct LoadBalancerSpec {
    /// Free text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub description: Option<String>,
    /// What is behind the address: VMs of this namespace, or a guest cluster. Unset means vm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload_type: Option<WorkloadType>,
    /// Where the address comes from. Unset means pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipam: Option<Ipam>,
    /// The IPPool to take the address from. Unset: the best match by network, scope and
    /// priority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub ip_pool: Option<String>,
    /// Ports of a vm load balancer. Guest clusters keep theirs in their own Services.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub listeners: Vec<Listener>,
    /// The VMs behind the address, by label: each key must have one of its values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend_server_selector: Option<BTreeMap<String, Vec<String>>>,
    /// When a VM counts as able to answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_check: Option<HealthCheck>,
    /// Addresses to ask for, one per family. Reserved: not supported by this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2), inner(length(max = 45)))]
    pub requested_addresses: Option<Vec<String>>,
    /// The IPPool of the IPv6 address. Reserved: not supported by this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub ipv6_pool: Option<String>,
    /// SingleStack, PreferDualStack or RequireDualStack. Only SingleStack is supported by
    /// this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub ip_family_policy: Option<String>,
}

/// What is behind an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WorkloadType {
    /// Virtual machines of the LoadBalancer's namespace.
    #[default]
    Vm,
    /// A guest Kubernetes cluster, whose cloud provider announces the address itself.
    Cluster,
}

/// Where an address comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Ipam {
    /// An IPPool.
    #[default]
    Pool,
    /// The DHCP server of the network.
    Dhcp,
}

/// A port of the address and the port of the VMs behind it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Listener {
    /// Name, unique within the LoadBalancer.
    #[serde(default)]
    #[schemars(length(max = 63))]
    pub name: String,
    /// Port of the address.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// `TCP` or `UDP`.
    #[serde(default = "tcp")]
    #[schemars(length(max = 8))]
    pub protocol: String,
    /// Port of the VMs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub backend_port: Option<i32>,
}

fn tcp() -> String {
    "TCP".to_owned()
}

/// A probe of each backend. Zero or unset means the default.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("!has(self.protocol) || self.protocol == 'tcp'",
        "spec.healthCheck.protocol: only tcp is supported by this version"),
    validation = ("!has(self.path) && !has(self.serverName) && (!has(self.expectedStatuses) || size(self.expectedStatuses) == 0)",
        "spec.healthCheck: path, expectedStatuses and serverName belong to http and https probes, which this version does not support: remove them"),
)]
pub struct HealthCheck {
    /// Backend port to probe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 65535))]
    pub port: Option<i32>,
    /// Successes in a row that make a backend healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub success_threshold: Option<i32>,
    /// Failures in a row that make a backend unhealthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub failure_threshold: Option<i32>,
    /// Seconds between probes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub period_seconds: Option<i32>,
    /// Seconds until a probe counts as failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub timeout_seconds: Option<i32>,
    /// `tcp`. Reserved: http and https are not supported by this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8))]
    pub protocol: Option<String>,
    /// Reserved: not supported by this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub path: Option<String>,
    /// Reserved: not supported by this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub expected_statuses: Option<Vec<i32>>,
    /// Reserved: not supported by this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub server_name: Option<String>,
}

/// What the LoadBalancer was given.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LoadBalancerStatus {
    /// Where it is reached. For guest clusters: the claim, until the guest writes its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Every address, one per family. Reserved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2))]
    pub addresses: Option<Vec<String>>,
    /// The claim in the pool's ledger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated_address: Option<AllocatedAddress>,
    /// Addresses of the VMs behind a vm load balancer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend_servers: Option<Vec<String>>,
    /// Counts of the VMs behind a vm load balancer. Reserved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoints: Option<EndpointCounts>,
    /// Reserved: see the module's remark on generations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready` says whether the address serves, and if not, why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub conditions: Vec<Condition>,
}

/// An address and the pool whose ledger records it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AllocatedAddress {
    /// The IPPool. Unset for `ipam: dhcp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip_pool: Option<String>,
    /// The address, or `0.0.0.0` for "leased by the announcer".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<String>,
    /// The subnet's mask, as an address: `255.255.255.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask: Option<String>,
    /// The subnet's gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    /// Reserved.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "ipv6Pool")]
    pub ipv6_pool: Option<String>,
    /// Reserved.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "ipv6IP")]
    pub ipv6_ip: Option<String>,
    /// Reserved.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "ipv6Mask")]
    pub ipv6_mask: Option<String>,
    /// Reserved.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "ipv6Gateway")]
    pub ipv6_gateway: Option<String>,
}

/// How many VMs are behind an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct EndpointCounts {
    /// Selected VMs that run.
    pub total: i32,
    /// Those that can answer.
    pub ready: i32,
}
