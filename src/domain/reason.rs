//! The stable words of conditions and Events. Scripts match on them: a word, once released,
//! keeps its meaning.

use api::ANNOTATION_DHCP;

/// Why a LoadBalancer has no address, or keeps another one than it asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait {
    /// No pool matches network and scope.
    NoMatch {
        /// The requirement, in words.
        requirement: String,
    },
    /// Every matching pool is full.
    Full {
        /// The pools tried, in order.
        pools: Vec<String>,
    },
    /// A matching pool's ledger has reached the size of an object.
    LedgerFull {
        /// The pool.
        pool: String,
    },
    /// `spec.ipPool` names no pool.
    NotFound {
        /// The name.
        pool: String,
    },
    /// `spec.ipPool` names a pool whose scope does not admit the LoadBalancer.
    Forbidden {
        /// The pool.
        pool: String,
        /// The requirement, in words.
        requirement: String,
    },
    /// The LoadBalancer names another network than its pool.
    NetworkMismatch {
        /// The pool.
        pool: String,
        /// Its network; blank for the nodes' own.
        pool_network: String,
        /// The network that the LoadBalancer names.
        network: String,
    },
    /// The published address's pool no longer exists.
    PoolGone {
        /// The name.
        pool: String,
    },
    /// A pool that fits gives out nothing now.
    NotReady {
        /// The pool.
        pool: String,
        /// Why.
        why: String,
    },
    /// Its guest cluster is being removed.
    ClusterRemoved {
        /// The guest cluster.
        cluster: String,
        /// The VM that shows it, `namespace/name`.
        vm: String,
    },
}

impl Wait {
    /// The condition's reason.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoMatch { .. } => "NoMatchedIPPool",
            Self::Full { .. } => "NoAvailableIP",
            Self::LedgerFull { .. } => "IPPoolLedgerFull",
            Self::NotFound { .. } | Self::PoolGone { .. } => "IPPoolNotFound",
            Self::Forbidden { .. } => "IPPoolForbidden",
            Self::NetworkMismatch { .. } => "NetworkMismatch",
            Self::NotReady { .. } => "IPPoolNotReady",
            Self::ClusterRemoved { .. } => "GuestClusterRemoved",
        }
    }

    /// Whether the reason lies in the pool of this name.
    pub fn names(&self, name: &str) -> bool {
        match self {
            Self::NoMatch { .. } | Self::ClusterRemoved { .. } => false,
            Self::Full { pools } => pools.iter().any(|pool| pool == name),
            Self::LedgerFull { pool }
            | Self::NotFound { pool }
            | Self::Forbidden { pool, .. }
            | Self::NetworkMismatch { pool, .. }
            | Self::PoolGone { pool }
            | Self::NotReady { pool, .. } => pool == name,
        }
    }

    /// The condition's message. "no matched IPPool" and "no available IP" are matched by UIs.
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
            Self::LedgerFull { pool } => format!(
                "no available IP in IPPool {pool}: its ledger has reached the size that the API server stores; add another pool"
            ),
            Self::NotFound { pool } => {
                format!("no matched IPPool: spec.ipPool names {pool:?}, which does not exist")
            }
            Self::PoolGone { pool } => format!(
                "no matched IPPool: {pool:?} no longer exists; create it again, or name another in spec.ipPool"
            ),
            Self::Forbidden { pool, requirement } => format!(
                "no matched IPPool: spec.ipPool names {pool:?}, whose scope does not admit {requirement}"
            ),
            Self::NetworkMismatch { pool, pool_network, network } => {
                let of_pool = match pool_network.as_str() {
                    "" => "has no network, and so is on the nodes' own".to_owned(),
                    of_pool => format!("is on network {of_pool:?}"),
                };
                format!(
                    "no matched IPPool: annotation network is {network:?}, but IPPool {pool:?} {of_pool}: remove the annotation, or name a pool of that network"
                )
            }
            Self::NotReady { pool, why } => {
                format!("no available IP: IPPool {pool} gives out no addresses: {why}")
            }
            Self::ClusterRemoved { cluster, vm } => format!(
                "the vm {vm} shows guest cluster {cluster} is being removed: it gets no address before its VMs are gone"
            ),
        }
    }
}

/// Why a LoadBalancer that the host leases for has no address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoLease {
    /// The agent asks for one.
    Pending {
        /// Network.
        network: String,
        /// What the agent says of it.
        said: Option<String>,
    },
    /// It had one and has it no more.
    Lost {
        /// Network.
        network: String,
        /// What the agent says of it.
        said: Option<String>,
        /// Whether the agent is there.
        agent: bool,
    },
    /// No agent is there to ask.
    NoAgent {
        /// Where; empty for no network.
        network: String,
        /// Whether the host leases there: then the agent is away.
        declared: bool,
    },
    /// An annotation of the network cannot be followed.
    NetworkFault {
        /// Network.
        network: String,
        /// Which one, what is wrong and what would be right.
        fault: String,
    },
    /// There is one that must not be published, as the text says.
    Unusable(String),
    /// The former record is on its way out.
    Returning,
    /// The former record is of another network, and must go first.
    OtherNetwork {
        /// Of which.
        network: String,
    },
    /// The former record is of another client, and must go first.
    OtherIdentity,
    /// The host takes over what kube-vip leased, which gives it back first.
    TakingOver {
        /// Network.
        network: String,
    },
    /// Another LoadBalancer leases as the same client, as the text says.
    IdentityTaken(String),
    /// An annotation of DHCP cannot be followed, as the text tells.
    Annotation(String),
    /// The API server refuses the record, as the text says.
    Refused(String),
}

impl NoLease {
    /// The condition's reason.
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

    /// The condition's message.
    pub fn message(&self) -> String {
        let more = |said: &Option<String>| {
            said.as_ref().map(|said| format!(": {said}")).unwrap_or_default()
        };
        match self {
            Self::Pending { network, said } => {
                format!("no address from the DHCP server of network {network} yet{}", more(said))
            }
            Self::Lost { network, agent: false, .. } => format!(
                "the address leased on network {network} ended, and its DHCP agent is not there: see the agent's pod"
            ),
            Self::Lost { network, said, .. } => format!(
                "the address leased on network {network} is lost, another is asked for{}",
                more(said)
            ),
            Self::NoAgent { network, .. } if network.is_empty() => {
                "no network is named, and so no DHCP agent leases on it: name one".to_owned()
            }
            Self::NoAgent { network, declared: true } => format!(
                "the DHCP agent of network {network} is away: it waits for it; see the agent's pod"
            ),
            Self::NoAgent { network, declared: false } => format!(
                "the host does not lease on network {network}: it waits until it does; annotate the NetworkAttachmentDefinition with {ANNOTATION_DHCP}=host"
            ),
            Self::NetworkFault { network, fault } => format!(
                "nothing is leased anew on network {network} until its NetworkAttachmentDefinition is put right: {fault}"
            ),
            Self::Unusable(why) => format!("the leased address is not used: {why}"),
            Self::Returning => "the former address is being given back".to_owned(),
            Self::OtherNetwork { network } => {
                format!("the former address, on network {network}, is to be given back first")
            }
            Self::OtherIdentity => {
                "the former address was leased as another client, and is to be given back first"
                    .to_owned()
            }
            Self::TakingOver { network } => format!(
                "the host takes over the lease on network {network}: the Service is made anew with the address"
            ),
            Self::IdentityTaken(why) | Self::Annotation(why) => why.clone(),
            Self::Refused(why) => format!("no DHCPLease can be made: {why}"),
        }
    }
}

/// An address that the host leased is published.
pub const LEASED: &str = "Leased";
/// The host takes over what an announcer leases.
pub const TAKEOVER: &str = "DHCPTakeover";
/// The host had leased an address, and it is withdrawn.
pub const LEASE_LOST: &str = "DHCPLeaseLost";
/// An address is held and published.
pub const ALLOCATED: &str = "Allocated";
/// The announcer leases the address by DHCP.
pub const DHCP: &str = "DHCP";
/// An address leads to VMs that can answer.
pub const ANNOUNCED: &str = "Announced";
/// It does, to some VMs at the last address that was heard of.
pub const LAST_KNOWN_ADDRESS: &str = "LastKnownAddress";
/// It does, and the health check is not done.
pub const INVALID_HEALTH_CHECK: &str = "InvalidHealthCheck";
/// The same, and to VMs that fail their health check as well, because most VMs fail at once.
pub const PROBER_DOUBTED: &str = "ProberDoubted";
/// An address is held, and nothing announces it yet.
pub const NOT_ANNOUNCED: &str = "NotAnnounced";
/// The node that announces runs no VM, and the Service's traffic policy is Local.
pub const NO_LOCAL_BACKEND: &str = "NoLocalBackend";
/// An address leads to VMs, and clients that its Service's source ranges exclude reach the node.
pub const SOURCE_RANGES_BYPASSED: &str = "SourceRangesBypassed";
/// No selected VM runs.
pub const NO_BACKENDS: &str = "NoRunningBackends";
/// No running VM has an address that fits.
pub const NO_BACKEND_ADDRESS: &str = "NoBackendAddress";
/// Running VMs report only addresses that they may not have. True where other VMs serve.
pub const BACKEND_ADDRESS_REFUSED: &str = "BackendAddressRefused";
/// Running VMs fail their health check, or have not passed it yet.
pub const BACKENDS_UNHEALTHY: &str = "BackendsUnhealthy";
/// Running VMs, or their pods, are not ready.
pub const BACKENDS_NOT_READY: &str = "BackendsNotReady";
/// A Service or EndpointSlice by the name is somebody else's.
pub const SERVICE_CONFLICT: &str = "ServiceConflict";
/// The API server refuses the Service or an EndpointSlice.
pub const SERVICE_REFUSED: &str = "ServiceRefused";
/// The name or the listeners make no Service.
pub const INVALID_SPEC: &str = "InvalidSpec";
/// Virtual machines cannot be seen.
pub const VMS_UNKNOWN: &str = "VMsUnknown";
/// Another controller than this operator holds the Lease.
pub const OTHER_CONTROLLER: &str = "OtherControllerLeads";
/// The pool gives out addresses.
pub const POOL_READY: &str = "Ready";
/// A range of the pool makes no sense.
pub const INVALID_RANGE: &str = "InvalidRange";
/// Another pool of the network has some of the same addresses.
pub const RANGE_CONFLICT: &str = "RangeConflict";
/// Another pool is the global one.
pub const SECOND_GLOBAL_POOL: &str = "SecondGlobalPool";
/// Another pool of the network has the same priority.
pub const PRIORITY_CONFLICT: &str = "PriorityConflict";
/// Another pool of the network, without priority either, serves some of the same scope.
pub const SCOPE_CONFLICT: &str = "ScopeConflict";
/// The pool is being deleted and waits for its addresses.
pub const DELETING: &str = "Deleting";

/// Ends the text about a controller that writes the status of an IPPool by plain updates.
pub const STATUS_DROPPED: &str = ". IPPool is served with a status subresource here, which drops that controller's records without a word, so that it may give one address twice: put Harvester's CRD back, or stop that controller";

/// Text of the condition and the Event that name another controller that leads.
pub fn other_controller(holder: &str) -> String {
    format!(
        "{holder} holds the Lease by which one controller gives addresses, and is no replica of harvester-guest-operator: it answers, or nobody does; to have this operator answer, scale that controller's Deployment to 0"
    )
}

/// Whether a condition's reason is one of this operator's.
pub fn is_ours(reason: &str) -> bool {
    const WAITS: [&str; 8] = [
        "NoMatchedIPPool",
        "NoAvailableIP",
        "IPPoolLedgerFull",
        "IPPoolNotFound",
        "IPPoolForbidden",
        "NetworkMismatch",
        "IPPoolNotReady",
        "GuestClusterRemoved",
    ];
    const OF_LEASES: [&str; 11] = [
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
    ];
    const OF_VMS: [&str; 16] = [
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
        INVALID_SPEC,
        VMS_UNKNOWN,
    ];
    [ALLOCATED, DHCP, OTHER_CONTROLLER].contains(&reason)
        || OF_LEASES.contains(&reason)
        || OF_VMS.contains(&reason)
        || WAITS.contains(&reason)
}
