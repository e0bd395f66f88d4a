//! `IPPool`: ranges of addresses, the LoadBalancers that the pool serves, and the ledger of claims.
//!
//! `status.allocated` is the ledger. This CRD has a status subresource, and the CRD of Harvester's
//! own chart has none. The operator works with both.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Condition;

/// Pool of addresses for LoadBalancers.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[kube(
    group = "loadbalancer.harvesterhci.io",
    version = "v1beta1",
    kind = "IPPool",
    doc = "Ranges of addresses, and a selector of the LoadBalancers that may have them. \
        The status has the ledger: which address belongs to which LoadBalancer.",
    plural = "ippools",
    singular = "ippool",
    shortname = "pool",
    shortname = "pools",
    status = "IPPoolStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn(name = "Ranges", type_ = "string", json_path = ".spec.ranges"),
    printcolumn(name = "Total", type_ = "integer", json_path = ".status.total"),
    printcolumn(name = "Available", type_ = "integer", json_path = ".status.available"),
    printcolumn(
        name = "Used%",
        type_ = "integer",
        json_path = ".status.usedPercent",
        description = "Percentage of the addresses that is in use, rounded up"
    ),
    printcolumn(name = "Priority", type_ = "integer", json_path = ".spec.selector.priority"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        priority = 1,
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
    validation = ("!has(self.state) || self.state == 'Active'",
        "spec.state: only Active is supported by this version"),
    validation = ("!has(self.quota) || self.quota == 0",
        "spec.quota is not supported by this version: remove it"),
    validation = ("!has(self.releaseCooldownSeconds) || self.releaseCooldownSeconds == 0",
        "spec.releaseCooldownSeconds is not supported by this version: remove it"),
    validation = ("!has(self.conflictProbe) || !self.conflictProbe",
        "spec.conflictProbe is not supported by this version: remove it"),
)]
#[serde(rename_all = "camelCase")]
pub struct IPPoolSpec {
    /// Free text that describes the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub description: Option<String>,
    /// Address ranges of the pool. They must not overlap.
    #[schemars(length(min = 1, max = 256))]
    pub ranges: Vec<Range>,
    /// Selector of the LoadBalancers that may have an address of the pool. Unset, or without a
    /// scope: only LoadBalancers that name the pool in spec.ipPool may have an address. If there is
    /// a scope, even a LoadBalancer that names the pool must match the scope.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<Selector>,
    /// State of the pool: Active, Draining or Disabled. Only Active is supported by this version.
    /// Unset means Active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<PoolState>,
    /// Number of addresses that one namespace may hold. Reserved: not supported by this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub quota: Option<i32>,
    /// Seconds before a freed address is allocated again. Reserved: not supported by this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub release_cooldown_seconds: Option<i32>,
    /// Whether an address is probed before use. Reserved: not supported by this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conflict_probe: Option<bool>,
}

/// State of the pool: Active, Draining or Disabled. Only Active is supported by this version. Unset
/// means Active.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum PoolState {
    /// The pool allocates addresses.
    #[default]
    Active,
    /// The pool allocates no new addresses; existing claims stay. Reserved: not supported by this
    /// version.
    Draining,
    /// The pool allocates no new addresses. Reserved: not supported by this version.
    Disabled,
}

/// Contiguous addresses within one subnet.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("isCIDR(self.subnet)",
        "subnet must be a network in CIDR form, such as 192.168.1.0/24"),
    validation = ("!has(self.rangeStart) || self.rangeStart == '' || isIP(self.rangeStart)",
        "rangeStart must be an IP address, such as 192.168.1.10"),
    validation = ("!has(self.rangeEnd) || self.rangeEnd == '' || isIP(self.rangeEnd)",
        "rangeEnd must be an IP address, such as 192.168.1.20"),
    validation = ("!has(self.gateway) || self.gateway == '' || isIP(self.gateway)",
        "gateway must be an IP address, such as 192.168.1.1"),
    validation = ("!isCIDR(self.subnet) || !has(self.rangeStart) || !isIP(self.rangeStart) || cidr(self.subnet).containsIP(self.rangeStart)",
        "rangeStart must lie within subnet"),
    validation = ("!isCIDR(self.subnet) || !has(self.rangeEnd) || !isIP(self.rangeEnd) || cidr(self.subnet).containsIP(self.rangeEnd)",
        "rangeEnd must lie within subnet"),
)]
pub struct Range {
    /// Subnet of the addresses, in CIDR form.
    #[schemars(length(min = 1, max = 49))]
    pub subnet: String,
    /// First address of the range, inclusive. Unset: the first host address of the subnet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 45))]
    pub range_start: Option<String>,
    /// Last address of the range, inclusive. Unset: the last host address of the subnet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 45))]
    pub range_end: Option<String>,
    /// Router of the subnet. Its address is never allocated. Unset: the second address of the
    /// subnet, such as 192.168.1.1 in 192.168.1.0/24. A subnet of a single address has no router.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 45))]
    pub gateway: Option<String>,
    /// Addresses, networks (CIDR) or ranges (`first-last`) that are never allocated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), inner(length(max = 91)))]
    pub exclude: Option<Vec<String>>,
}

/// Selector of the LoadBalancers that a pool serves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Selector {
    /// Priority among the pools that match a LoadBalancer equally well. The pool with the highest
    /// number is tried first. Unset means 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 4_294_967_295_i64))]
    pub priority: Option<i64>,
    /// Network of the pool's addresses, as `namespace/name` of a NetworkAttachmentDefinition. A
    /// LoadBalancer matches if it has the same network, for example by its annotation
    /// loadbalancer.harvesterhci.io/network. Unset or empty: a LoadBalancer matches only if it has
    /// no network. In the global pool, this field has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 317))]
    pub network: Option<String>,
    /// Projects, namespaces and guest clusters that the pool serves. Unset or empty: the pool
    /// serves only LoadBalancers that name it. A single entry with `*` in all fields makes the pool
    /// the global pool. It serves LoadBalancers to which no other pool gives an address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub scope: Option<Vec<Scope>>,
}

/// Entry of a pool's scope. A LoadBalancer matches if all three fields match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Scope {
    /// Rancher project of the LoadBalancer's namespace, as `cluster/project`. `*` matches any.
    /// Unset or empty: also matches any, but loosely if the namespace has a project. A pool with
    /// only a loose match is tried after all other matching pools, but before the global pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub project: Option<String>,
    /// Namespace of the LoadBalancer. `*` matches any namespace. Unset or empty: the entry matches
    /// no LoadBalancer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub namespace: Option<String>,
    /// Name of the LoadBalancer's guest cluster. `*` matches any. Unset or empty: also matches any,
    /// but loosely if the LoadBalancer has a guest cluster. A pool with only a loose match is tried
    /// after all other matching pools, but before the global pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub guest_cluster: Option<String>,
}

/// Ledger of the pool and the values derived from it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IPPoolStatus {
    /// Number of addresses in the ranges, without gateways and exclusions. Capped at 2^63-1.
    #[serde(default)]
    pub total: i64,
    /// Number of free addresses. While `Ready` is False, the pool allocates none of them.
    #[serde(default)]
    pub available: i64,
    /// Percentage of the addresses that are in use, rounded up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_percent: Option<i64>,
    /// Address that the last search for a free address found. The next search starts after this
    /// address. Empty: the next search starts at the pool's first address.
    #[serde(default)]
    pub last_allocated: String,
    /// Claims of the ledger: a map from each address to `namespace/name` of its LoadBalancer.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub allocated: BTreeMap<String, String>,
    /// UIDs of the ledger: a map from each address to the UID of its LoadBalancer. A LoadBalancer
    /// whose UID is not known is left out. Because of the UID, a release never frees the claim of a
    /// later LoadBalancer with the same name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub allocated_owners: BTreeMap<String, String>,
    /// Previous holders of addresses that have no claim now: a map from the address to
    /// `namespace/name` of the LoadBalancer that held it last.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub allocated_history: BTreeMap<String, String>,
    /// Generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions of the pool. `Ready` shows whether the pool allocates addresses, and if not, why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub conditions: Vec<Condition>,
}
