//! `LoadBalancer`: a request by a guest or a VM owner for an address, and the address that was
//! granted.
//!
//! There is no status subresource, because the guest cloud provider writes `status.address` with a
//! plain update and has no right to `/status`. Without the subresource, every write of the status
//! raises the generation. So `observedGeneration` is not written.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Condition;

/// Request for one address that leads to VMs or into a guest cluster.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[kube(
    group = "loadbalancer.harvesterhci.io",
    version = "v1beta1",
    kind = "LoadBalancer",
    doc = "Address at which clients reach VMs, or a Service of a guest cluster. \
        The status has the address, and a condition that says whether it can be used.",
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
        description = "Address at which the LoadBalancer is reached"
    ),
    printcolumn(
        name = "Allocated",
        type_ = "string",
        json_path = ".status.allocatedAddress.ip",
        description = "Address claimed in the pool's ledger"
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
        "spec.requestedAddresses is not supported by this version: remove it; to pin an address, name a pool of that one address in spec.ipPool"),
    validation = ("!has(self.ipv6Pool) || self.ipv6Pool == ''",
        "spec.ipv6Pool is not supported by this version: remove it; name an IPv6 pool in spec.ipPool"),
    validation = ("!has(self.ipFamilyPolicy) || self.ipFamilyPolicy == 'SingleStack'",
        "spec.ipFamilyPolicy: only SingleStack is supported by this version"),
    validation = ("!has(self.listeners) || self.listeners.all(l, !has(l.protocol) || l.protocol in ['TCP', 'UDP'])",
        "spec.listeners[].protocol: must be TCP or UDP"),
    validation = ("!has(self.listeners) || self.listeners.all(l, self.listeners.filter(m, (has(m.name) ? m.name : '') == (has(l.name) ? l.name : '')).size() == 1)",
        "spec.listeners[].name: each name may be used once, and with several listeners each needs a name"),
    validation = ("!has(self.listeners) || self.listeners.all(l, self.listeners.filter(m, m.port == l.port && (has(m.protocol) ? m.protocol : 'TCP') == (has(l.protocol) ? l.protocol : 'TCP')).size() == 1)",
        "spec.listeners[].port: each pair of port and protocol may be used once"),
    validation = ("!has(self.listeners) || self.listeners.all(l, !has(l.name) || l.name == '' || l.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'))",
        "spec.listeners[].name: must be lower-case letters, digits and dashes, and begin and end with a letter or digit"),
    validation = ("(has(self.workloadType) && self.workloadType == 'cluster') || !has(self.healthCheck) || !has(self.healthCheck.port) || self.healthCheck.port == 0 || (has(self.listeners) && self.listeners.exists(l, (!has(l.protocol) || l.protocol == 'TCP') && (has(l.backendPort) ? l.backendPort : l.port) == self.healthCheck.port))",
        "spec.healthCheck.port: must be the backendPort of a TCP listener in spec.listeners"),
    validation = ("!has(self.backendServerSelector) || self.backendServerSelector.all(label, size(label) <= 317)",
        "spec.backendServerSelector: a label is at most 317 characters long, its prefix included"),
    validation = ("!has(self.backendServerSelector) || self.backendServerSelector.map(label, size(self.backendServerSelector[label])).sum() <= 64",
        "spec.backendServerSelector: more than 64 values in all: give the VMs a label of their own and select that"),
    validation = ("(has(self.workloadType) && self.workloadType == 'cluster') || (has(self.listeners) && size(self.listeners) > 0)",
        "spec.listeners: a load balancer of type vm needs at least one"),
)]
#[serde(rename_all = "camelCase")]
pub struct LoadBalancerSpec {
    /// Free text that describes the LoadBalancer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub description: Option<String>,
    /// Type of workload behind the address: VMs of this namespace (`vm`), or a guest cluster
    /// (`cluster`). Unset means vm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload_type: Option<WorkloadType>,
    /// Source of the address: an IPPool (`pool`) or the network's DHCP server (`dhcp`). Unset means
    /// pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipam: Option<Ipam>,
    /// IPPool that allocates the address. Unset: the pool that best matches the LoadBalancer by
    /// network, scope and priority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub ip_pool: Option<String>,
    /// Ports of a vm load balancer, at least one. A load balancer for a guest cluster needs none:
    /// the Services in the guest cluster define the ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub listeners: Vec<Listener>,
    /// Labels that select the VMs behind the address. A VM is selected if its running instance has
    /// each of these labels with one of the listed values. Unset or empty: no VM is selected.
    /// Maximum: 16 labels, and 64 values in all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 16, "additionalProperties" = {
        "type": "array", "maxItems": 64, "items": {"type": "string", "maxLength": 63}
    }))]
    pub backend_server_selector: Option<BTreeMap<String, Vec<String>>>,
    /// Health check of the VMs behind the address, which are the backends. Unset: VMs are not
    /// probed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_check: Option<HealthCheck>,
    /// Addresses to request, one per family. Reserved: not supported by this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2), inner(length(max = 45)))]
    pub requested_addresses: Option<Vec<String>>,
    /// IPPool that allocates the IPv6 address. Reserved: not supported by this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub ipv6_pool: Option<String>,
    /// IP family policy: SingleStack, PreferDualStack or RequireDualStack. Only SingleStack is
    /// supported by this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub ip_family_policy: Option<String>,
}

/// Type of workload behind the address: VMs of this namespace (`vm`), or a guest cluster
/// (`cluster`). Unset means vm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WorkloadType {
    /// Virtual machines of the LoadBalancer's namespace.
    #[default]
    Vm,
    /// Guest Kubernetes cluster, which announces the address itself.
    Cluster,
}

/// Source of the address: an IPPool (`pool`) or the network's DHCP server (`dhcp`). Unset means
/// pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Ipam {
    /// Allocated from an IPPool.
    #[default]
    Pool,
    /// Leased from the DHCP server of the network.
    Dhcp,
}

/// Pair of ports: one of the address, and one of the VMs behind it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Listener {
    /// Name of the listener, unique within the LoadBalancer: lower-case letters, digits and dashes.
    /// The name may be empty if the LoadBalancer has only one listener.
    #[serde(default)]
    #[schemars(length(max = 63))]
    pub name: String,
    /// Port on the address, 1 to 65535.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// Protocol of the port: `TCP` or `UDP`.
    #[serde(default = "tcp")]
    #[schemars(length(max = 8))]
    pub protocol: String,
    /// Port of the VMs. Unset means the same as `port`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub backend_port: Option<i32>,
}

pub(super) fn tcp() -> String {
    "TCP".to_owned()
}

/// Probe of each backend of a vm load balancer. Without a port, backends are not probed.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("!has(self.protocol) || self.protocol in ['tcp', 'http', 'https']",
        "spec.healthCheck.protocol: must be tcp, http or https (unset means tcp)"),
    validation = ("(has(self.protocol) && self.protocol in ['http', 'https']) || (!has(self.path) && !has(self.serverName) && (!has(self.expectedStatuses) || size(self.expectedStatuses) == 0))",
        "spec.healthCheck: path, expectedStatuses and serverName belong to http and https: set spec.healthCheck.protocol, or remove them"),
    validation = ("!has(self.caBundle) || self.caBundle == '' || (has(self.protocol) && self.protocol == 'https')",
        "spec.healthCheck.caBundle belongs to https: set spec.healthCheck.protocol to https, or remove it"),
    validation = ("!has(self.path) || self.path.matches('^/[!-~]*$')",
        "spec.healthCheck.path: must begin with / and hold no spaces, control or non-ASCII characters: percent-encode them"),
    validation = ("!has(self.serverName) || self.serverName == '' || self.serverName.matches('^[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?([.][A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?)*$')",
        "spec.healthCheck.serverName: must be a DNS name, such as www.example.com"),
    validation = ("!has(self.protocol) || (has(self.port) && self.port > 0)",
        "spec.healthCheck.port: must be set to a backend port when spec.healthCheck.protocol is set"),
)]
pub struct HealthCheck {
    /// Backend port to probe: the backend port of a TCP listener. Zero or unset: backends are not
    /// probed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 65535))]
    pub port: Option<i32>,
    /// Number of consecutive successful probes that make a backend healthy. Zero or unset means 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub success_threshold: Option<i32>,
    /// Number of consecutive failed probes that make a backend unhealthy. Zero or unset means 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub failure_threshold: Option<i32>,
    /// Seconds between two probes of a backend. Zero or unset means 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub period_seconds: Option<i32>,
    /// Seconds without an answer after which a probe counts as failed. Zero or unset means 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub timeout_seconds: Option<i32>,
    /// Protocol of the probe. `tcp`: the backend must accept a connection. `http` or `https`: the
    /// backend must answer a GET with an expected status. Unset means tcp.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8))]
    pub protocol: Option<String>,
    /// Path and query of the GET that an http or https probe sends. Unset means `/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub path: Option<String>,
    /// HTTP statuses of the answer that count as success. Unset or empty means 200 to 399.
    /// Redirects are not followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), inner(range(min = 100, max = 599)))]
    pub expected_statuses: Option<Vec<i32>>,
    /// Host name that an http or https probe uses in the Host header and in TLS. Unset: the
    /// backend's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub server_name: Option<String>,
    /// CA certificates in PEM for an https probe. One of them must have signed the backend's
    /// certificate. Unset: the backend's certificate is not verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8192))]
    pub ca_bundle: Option<String>,
}

/// Addresses of the LoadBalancer, and its state.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LoadBalancerStatus {
    /// Address at which clients reach the LoadBalancer. For a vm load balancer: the address that
    /// kube-vip announces. For a guest cluster: the address in `allocatedAddress.ip`, until the
    /// guest's cloud provider writes another address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Addresses of the LoadBalancer, one per family. Reserved: not supported by this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2))]
    pub addresses: Option<Vec<String>>,
    /// Address for the LoadBalancer, allocated from an IPPool or leased by DHCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated_address: Option<AllocatedAddress>,
    /// Addresses of the VMs behind a vm load balancer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend_servers: Option<Vec<String>>,
    /// Number of VMs behind a vm load balancer: in total, and ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoints: Option<EndpointCounts>,
    /// Generation of the spec that the status describes. Reserved: not written, because each write
    /// of the status raises the generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions of the LoadBalancer. `Ready` shows whether the address can be used, and if not,
    /// why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub conditions: Vec<Condition>,
}

/// Address of a LoadBalancer, its subnet, and the pool that allocated the address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AllocatedAddress {
    /// IPPool that allocated the address. Unset for `ipam: dhcp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip_pool: Option<String>,
    /// Allocated or leased address. `0.0.0.0`: kube-vip itself leases an address by DHCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<String>,
    /// Mask of the address's subnet, such as `255.255.255.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask: Option<String>,
    /// Gateway of the address's subnet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    /// IPPool of the IPv6 address. Reserved: not supported by this version.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "ipv6Pool")]
    pub ipv6_pool: Option<String>,
    /// IPv6 address. Reserved: not supported by this version.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "ipv6IP")]
    pub ipv6_ip: Option<String>,
    /// Mask of the IPv6 subnet. Reserved: not supported by this version.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "ipv6Mask")]
    pub ipv6_mask: Option<String>,
    /// Gateway of the IPv6 subnet. Reserved: not supported by this version.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "ipv6Gateway")]
    pub ipv6_gateway: Option<String>,
}

/// Number of VMs behind an address, in total and ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct EndpointCounts {
    /// Number of selected VMs that run and are not being deleted.
    pub total: i32,
    /// Number of selected VMs that are ready for connections. Such a VM runs, is neither paused nor
    /// being deleted, and has an address. The VM and its pod have the condition Ready. The VM also
    /// passes the health check, if there is one.
    pub ready: i32,
}
