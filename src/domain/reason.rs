//! Stable reasons of conditions and Events. Scripts match on reasons, so a reason that a release
//! contains never changes its meaning.

use std::net::IpAddr;

use api::{ANNOTATION_DHCP, ANNOTATION_NETWORK};

/// Reason why a LoadBalancer has no address, or why it keeps an address that does not meet its
/// request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoAddressReason {
    /// No pool matches the LoadBalancer. A global pool matches every LoadBalancer. Another pool
    /// matches if it has the LoadBalancer's network and its scope admits the LoadBalancer.
    NoMatch {
        /// Network, project, namespace and guest cluster of the LoadBalancer, as one text.
        requirement: String,
    },
    /// Every pool that matches the LoadBalancer, or the pool that `spec.ipPool` names, is full.
    Full {
        /// Names of the full pools, in the order in which they were tried.
        pools: Vec<String>,
    },
    /// The pool that `spec.ipPool` names has only one address left for the LoadBalancer: the one
    /// that the LoadBalancer's Service already has, from another pool. The Service cannot move to
    /// its own address, so the LoadBalancer waits for another address of the named pool.
    OwnAddress {
        /// Name of the pool.
        pool: String,
        /// Address of the Service.
        ip: IpAddr,
    },
    /// The ledger of a matching pool, or of the pool that `spec.ipPool` names, has no room for
    /// another claim. The pool's object would become larger than the API server stores.
    LedgerFull {
        /// Name of the pool.
        pool: String,
    },
    /// `spec.ipPool` names a pool that does not exist.
    NotFound {
        /// Name in the spec.
        pool: String,
    },
    /// `spec.ipPool` names a pool whose scope does not admit the LoadBalancer.
    Forbidden {
        /// Name of the pool.
        pool: String,
        /// Network, project, namespace and guest cluster of the LoadBalancer, as one text.
        requirement: String,
    },
    /// The LoadBalancer's network and the network of a pool are on different segments. The pool is
    /// the one that `spec.ipPool` names, or the one that the LoadBalancer's address comes from.
    NetworkMismatch {
        /// Name of the pool.
        pool: String,
        /// Network of the pool; empty for the nodes' own network.
        pool_network: String,
        /// Network that the LoadBalancer's annotations name, or else the one of its guest's VMs.
        network: String,
    },
    /// The pool of the published address no longer exists.
    PoolGone {
        /// Name of the pool.
        pool: String,
    },
    /// A matching pool, or the pool that `spec.ipPool` names, gives out no addresses now.
    NotReady {
        /// Name of the pool.
        pool: String,
        /// Text with the reason why the pool gives out no addresses.
        why: String,
    },
    /// The LoadBalancer's guest cluster is being removed.
    ClusterRemoved {
        /// Name of the guest cluster.
        cluster: String,
        /// VM (`namespace/name`) with the annotation that the guest cluster is being removed.
        vm: String,
    },
    /// The VMs of the guest cluster determine the LoadBalancer's network, and VMs cannot be listed.
    NetworkUnknown,
}

impl NoAddressReason {
    /// Reason of the LoadBalancer's condition `Ready`.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoMatch { .. } => "NoMatchedIPPool",
            Self::Full { .. } | Self::OwnAddress { .. } => "NoAvailableIP",
            Self::LedgerFull { .. } => "IPPoolLedgerFull",
            Self::NotFound { .. } | Self::PoolGone { .. } => "IPPoolNotFound",
            Self::Forbidden { .. } => "IPPoolForbidden",
            Self::NetworkMismatch { .. } => "NetworkMismatch",
            Self::NotReady { .. } => "IPPoolNotReady",
            Self::ClusterRemoved { .. } => "GuestClusterRemoved",
            Self::NetworkUnknown => "NetworkUnknown",
        }
    }

    /// Whether this reason names the pool `name`.
    pub fn names(&self, name: &str) -> bool {
        match self {
            Self::NoMatch { .. } | Self::ClusterRemoved { .. } | Self::NetworkUnknown => false,
            Self::Full { pools } => pools.iter().any(|pool| pool == name),
            Self::OwnAddress { pool, .. }
            | Self::LedgerFull { pool }
            | Self::NotFound { pool }
            | Self::Forbidden { pool, .. }
            | Self::NetworkMismatch { pool, .. }
            | Self::PoolGone { pool }
            | Self::NotReady { pool, .. } => pool == name,
        }
    }

    /// Message of the LoadBalancer's condition `Ready`. UIs search the message for "no matched
    /// IPPool" and "no available IP".
    pub fn message(&self) -> String {
        match self {
            Self::NoMatch { requirement } => format!(
                "no matched IPPool with requirement {requirement}: add an IPPool whose selector admits it, or name one in spec.ipPool"
            ),
            Self::Full { pools } => {
                format!(
                    "no available IP in IPPool {}: free an address or add a range",
                    pools.join(", ")
                )
            }
            Self::OwnAddress { pool, ip } => format!(
                "no available IP in IPPool {pool}, except {ip}, which the LoadBalancer has already and cannot move to: free another address or add a range"
            ),
            Self::LedgerFull { pool } => format!(
                "no available IP in IPPool {pool}: its ledger has reached the largest size that the API server stores; add another pool"
            ),
            Self::NotFound { pool } => {
                format!(
                    "no matched IPPool: spec.ipPool names {pool:?}, which does not exist; create it, or name another"
                )
            }
            Self::PoolGone { pool } => format!(
                "no matched IPPool: {pool:?} no longer exists; create it again, or name another in spec.ipPool"
            ),
            Self::Forbidden { pool, requirement } => format!(
                "no matched IPPool: spec.ipPool names {pool:?}, whose scope does not admit {requirement}; name another, or extend its scope"
            ),
            Self::NetworkMismatch { pool, pool_network, network } => {
                let of_pool = match pool_network.as_str() {
                    "" => "has no network, so it is on the nodes' own network".to_owned(),
                    of_pool => format!("is on network {of_pool:?}"),
                };
                format!(
                    "no matched IPPool: the load balancer's network is {network:?}, but IPPool {pool:?} {of_pool}: name a pool of network {network:?}, or change annotation {ANNOTATION_NETWORK}"
                )
            }
            Self::NotReady { pool, why } => {
                format!("no available IP: IPPool {pool} allocates no addresses: {why}")
            }
            Self::ClusterRemoved { cluster, vm } => format!(
                "the vm {vm} shows guest cluster {cluster} is being removed: its LoadBalancers get no new address until its VMs are gone"
            ),
            Self::NetworkUnknown => "virtual machines cannot be listed, and those of the guest cluster determine the load balancer's network: check that KubeVirt works, or name the network or spec.ipPool".to_owned(),
        }
    }
}

/// Reason why a LoadBalancer has no address, although the host must lease one by DHCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoLease {
    /// The network's DHCP agent requests an address from the DHCP server.
    Pending {
        /// Network of the LoadBalancer, `namespace/name`.
        network: String,
        /// Message of the agent in the status of the DHCPLease. `None`: there is no message.
        said: Option<String>,
    },
    /// The LoadBalancer has lost its leased address, for example because the lease has expired. The
    /// agent requests another address as soon as it runs.
    Lost {
        /// Network of the LoadBalancer, `namespace/name`.
        network: String,
        /// Message of the agent in the status of the DHCPLease. `None`: there is no message.
        said: Option<String>,
        /// Whether the network's DHCP agent is running.
        agent: bool,
    },
    /// No DHCP agent can lease an address. The network's agent is not running, the network is not
    /// declared, or the LoadBalancer names no network.
    NoAgent {
        /// Name of the network; empty if the LoadBalancer names no network.
        network: String,
        /// Whether an annotation of the NetworkAttachmentDefinition lets the host lease addresses
        /// on the network. If so, an agent should be running.
        declared: bool,
    },
    /// An annotation of the NetworkAttachmentDefinition is not valid.
    NetworkFault {
        /// Network of the LoadBalancer, `namespace/name`.
        network: String,
        /// Text that names the annotation, its fault and the remedy.
        fault: String,
    },
    /// The leased address must not be published. The text is the reason.
    Unusable(String),
    /// The LoadBalancer's former DHCPLease is being deleted. After its deletion, the operator
    /// creates a new DHCPLease.
    Returning,
    /// The LoadBalancer's former DHCPLease is for another network, and must be deleted before a new
    /// one is created.
    OtherNetwork {
        /// Network of the former DHCPLease.
        network: String,
    },
    /// The LoadBalancer's former DHCPLease has another client identity, and must be deleted before
    /// a new one is created.
    OtherIdentity,
    /// The host takes over the lease of kube-vip. The operator deletes the Service, so kube-vip
    /// releases the address. Then the host leases the same address.
    TakingOver {
        /// Network of the LoadBalancer, `namespace/name`.
        network: String,
    },
    /// Another LoadBalancer already has the requested DHCP client identity. The text names that
    /// other LoadBalancer, if it is in the same namespace.
    IdentityTaken(String),
    /// A DHCP annotation of the LoadBalancer is not valid. The text names the annotation and the
    /// fault.
    Annotation(String),
    /// The API server refuses the DHCPLease. The text is its error message.
    Refused(String),
}

impl NoLease {
    /// Reason of the LoadBalancer's condition `Ready`.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Pending { .. } => "DHCPPending",
            Self::Lost { .. } => LEASE_LOST,
            Self::NoAgent { .. } => "NoDHCPAgent",
            Self::NetworkFault { .. } => "DHCPNetworkInvalid",
            Self::Unusable(_) => "DHCPAddressUnusable",
            Self::Returning | Self::OtherNetwork { .. } | Self::OtherIdentity => "DHCPReturning",
            Self::TakingOver { .. } => TAKEOVER,
            Self::IdentityTaken(_) => "DHCPIdentityTaken",
            Self::Annotation(_) => "InvalidAnnotation",
            Self::Refused(_) => "DHCPLeaseRefused",
        }
    }

    /// Message of the LoadBalancer's condition `Ready`.
    pub fn message(&self) -> String {
        let more = |said: &Option<String>| {
            said.as_ref().map(|said| format!(": {said}")).unwrap_or_default()
        };
        match self {
            Self::Pending { network, said } => {
                format!("no address from the DHCP server of network {network} yet{}", more(said))
            }
            Self::Lost { network, agent: false, .. } => format!(
                "the lease on network {network} expired, and the network's DHCP agent is not running: see the agent's pod"
            ),
            Self::Lost { network, said, .. } => format!(
                "the address leased on network {network} is lost, and another one is requested{}",
                more(said)
            ),
            Self::NoAgent { network, .. } if network.is_empty() => format!(
                "the LoadBalancer names no network, so no DHCP agent can lease an address: name one in the annotation {ANNOTATION_NETWORK}"
            ),
            Self::NoAgent { network, declared: true } => format!(
                "the DHCP agent of network {network} is not running, and the LoadBalancer waits for it: see the agent's pod"
            ),
            Self::NoAgent { network, declared: false } => format!(
                "the host leases no addresses on network {network}: to change that, annotate the NetworkAttachmentDefinition with {ANNOTATION_DHCP}=host"
            ),
            Self::NetworkFault { network, fault } => format!(
                "no new address is leased on network {network} until its NetworkAttachmentDefinition is corrected: {fault}"
            ),
            Self::Unusable(why) => format!("the leased address is not used: {why}"),
            Self::Returning => "the former address is being released".to_owned(),
            Self::OtherNetwork { network } => {
                format!("the former address, on network {network}, must be released first")
            }
            Self::OtherIdentity => {
                "the former address was leased with another client identity, and must be released first"
                    .to_owned()
            }
            Self::TakingOver { network } => format!(
                "the host takes over the lease on network {network}: the Service is created again with the address"
            ),
            Self::IdentityTaken(why) | Self::Annotation(why) => why.clone(),
            Self::Refused(why) => format!("the DHCPLease cannot be created: {why}"),
        }
    }
}

/// The host has leased an address by DHCP, and the LoadBalancer's status contains the address.
pub const LEASED: &str = "Leased";
/// The host takes over the address that an announcer leased by DHCP.
pub const TAKEOVER: &str = "DHCPTakeover";
/// The LoadBalancer has lost its leased address, for example because the lease has expired. The
/// LoadBalancer's status no longer contains the address.
pub const LEASE_LOST: &str = "DHCPLeaseLost";
/// An address is claimed, and the LoadBalancer's status contains it.
pub const ALLOCATED: &str = "Allocated";
/// The announcer leases the address by DHCP.
pub const DHCP: &str = "DHCP";
/// The address is announced, and leads to VMs that can answer.
pub const ANNOUNCED: &str = "Announced";
/// The address is announced, but some VMs report no address now. Traffic for such a VM goes to the
/// last address that the VM reported.
pub const LAST_KNOWN_ADDRESS: &str = "LastKnownAddress";
/// The address is announced, but the health check is invalid and is not run.
pub const INVALID_HEALTH_CHECK: &str = "InvalidHealthCheck";
/// The address is announced, but VMs that fail their health check still get traffic. Most VMs
/// failed at once, so the prober may be at fault, and the failures do not count.
pub const PROBER_DOUBTED: &str = "ProberDoubted";
/// No announcer announces the LoadBalancer's address yet.
pub const NOT_ANNOUNCED: &str = "NotAnnounced";
/// The Service has `externalTrafficPolicy: Local`, and no VM on the node of kube-vip's leader can
/// serve. So kube-vip does not announce the address.
pub const NO_LOCAL_BACKEND: &str = "NoLocalBackend";
/// The address leads to VMs. But on the Service's ports, clients outside the Service's
/// `loadBalancerSourceRanges` reach processes of the node that announces the address.
pub const SOURCE_RANGES_BYPASSED: &str = "SourceRangesBypassed";
/// The LoadBalancer selects no VM that is running.
pub const NO_BACKENDS: &str = "NoRunningBackends";
/// The LoadBalancer selects running VMs, but these VMs report no address. If the LoadBalancer names
/// a network, only addresses on this network count.
pub const NO_BACKEND_ADDRESS: &str = "NoBackendAddress";
/// Some running VMs of the LoadBalancer report only addresses that they are not allowed to have.
/// These VMs get no traffic. The condition's status is still True if other VMs get traffic.
pub const BACKEND_ADDRESS_REFUSED: &str = "BackendAddressRefused";
/// No VM gets traffic: running VMs fail their health check, or have not passed it yet.
pub const BACKENDS_UNHEALTHY: &str = "BackendsUnhealthy";
/// No VM gets traffic: the running VMs, or their pods, are not ready.
pub const BACKENDS_NOT_READY: &str = "BackendsNotReady";
/// The LoadBalancer does not own the Service, or an EndpointSlice that the operator must write.
pub const SERVICE_CONFLICT: &str = "ServiceConflict";
/// The API server refuses the Service or an EndpointSlice.
pub const SERVICE_REFUSED: &str = "ServiceRefused";
/// The Service must be created again, and the deletion of the present one is not complete.
pub const SERVICE_DELETING: &str = "ServiceDeleting";
/// The LoadBalancer's name or listeners are not valid for a Service.
pub const INVALID_SPEC: &str = "InvalidSpec";
/// The operator cannot list virtual machines, so it does not change the LoadBalancer's endpoints.
pub const VMS_UNKNOWN: &str = "VMsUnknown";
/// A controller other than this operator holds the Lease of the leader.
pub const OTHER_CONTROLLER: &str = "OtherControllerLeads";
/// The pool gives out addresses.
pub const POOL_READY: &str = "Ready";
/// A range of the pool is invalid.
pub const INVALID_RANGE: &str = "InvalidRange";
/// Some of the pool's addresses are also in the ranges of an older pool. The two pools are on the
/// same segment, or one of them is global.
pub const RANGE_CONFLICT: &str = "RangeConflict";
/// The pool is global, and the cluster has an older global pool.
pub const SECOND_GLOBAL_POOL: &str = "SecondGlobalPool";
/// The pool and an older pool have scopes, the same network and the same priority (not 0).
pub const PRIORITY_CONFLICT: &str = "PriorityConflict";
/// The scope of the pool overlaps with the scope of an older pool of the same network, and both
/// pools have priority 0.
pub const SCOPE_CONFLICT: &str = "ScopeConflict";
/// The pool is being deleted, and waits for the release of its addresses.
pub const DELETING: &str = "Deleting";

/// Suffix of [`other_controller`]'s text, if the operator could not remove the status subresource
/// from IPPool's CRD. The other controller writes the status by updates of the whole IPPool. With
/// the subresource, the API server drops the status from such updates.
pub const STATUS_DROPPED: &str = ". IPPool has a status subresource in this cluster, so the API server silently drops the ledgers of that controller, which may then allocate one address twice: restore Harvester's CRD, or stop that controller";

/// Suffix of [`other_controller`]'s text, if the operator has removed the status subresource of
/// IPPool.
pub const STATUS_KEPT: &str = ". IPPool had a status subresource in this cluster, with which the API server silently drops the ledgers of that controller: the operator has removed the subresource from the CRD, so that no address is allocated twice";

/// Text of the condition and the Event which report that another client has overwritten the
/// operator's spec of a CRD.
pub const FORM_REPLACED: &str = "another form has replaced the operator's CRD, most likely in an upgrade of Harvester: addresses still work and stay recorded, but at each write the API server drops the fields that the other form does not have; `harvester-guest-operator takeover --apply` restores the operator's form";

/// Text of the Event which reports that the operator has written its own spec of a CRD again.
pub const FORM_REPAIRED: &str =
    "another form had replaced the operator's CRD: the operator has restored its own form";

/// Text of the Event which reports that the operator has restored the status subresource that it
/// had removed from a CRD.
pub const STATUS_BACK: &str =
    "the operator has restored the status subresource, which it removed for another controller";

/// Text of the condition and the Event which report that a controller other than this operator
/// leads. `holder`: identity of that controller in the Lease.
pub fn other_controller(holder: &str) -> String {
    format!(
        "{holder} holds the Lease of the leader, and is not a replica of harvester-guest-operator: only that controller allocates addresses; to let this operator lead, scale that controller's Deployment to 0"
    )
}

/// Reasons of [`NoAddressReason`].
const WAITS: [&str; 9] = [
    "NoMatchedIPPool",
    "NoAvailableIP",
    "IPPoolLedgerFull",
    "IPPoolNotFound",
    "IPPoolForbidden",
    "NetworkMismatch",
    "IPPoolNotReady",
    "GuestClusterRemoved",
    "NetworkUnknown",
];

/// Whether `reason` belongs to a [`NoAddressReason`]. A LoadBalancer with such a reason has no
/// address of a pool, or keeps an address that does not meet its request.
pub fn is_wait(reason: &str) -> bool {
    WAITS.contains(&reason)
}

/// Whether `reason` is one of the reasons that this operator writes to LoadBalancers' conditions.
pub fn is_ours(reason: &str) -> bool {
    const OURS: &[&str] = &[
        ALLOCATED,
        DHCP,
        OTHER_CONTROLLER,
        // Of LoadBalancers whose address the host leases.
        LEASED,
        LEASE_LOST,
        TAKEOVER,
        "DHCPPending",
        "NoDHCPAgent",
        "DHCPNetworkInvalid",
        "DHCPIdentityTaken",
        "DHCPAddressUnusable",
        "DHCPReturning",
        "InvalidAnnotation",
        "DHCPLeaseRefused",
        // Of LoadBalancers of type vm.
        ANNOUNCED,
        LAST_KNOWN_ADDRESS,
        INVALID_HEALTH_CHECK,
        PROBER_DOUBTED,
        NOT_ANNOUNCED,
        NO_LOCAL_BACKEND,
        SOURCE_RANGES_BYPASSED,
        NO_BACKENDS,
        NO_BACKEND_ADDRESS,
        BACKEND_ADDRESS_REFUSED,
        BACKENDS_UNHEALTHY,
        BACKENDS_NOT_READY,
        SERVICE_CONFLICT,
        SERVICE_REFUSED,
        SERVICE_DELETING,
        INVALID_SPEC,
        VMS_UNKNOWN,
    ];
    OURS.contains(&reason) || is_wait(reason)
}
