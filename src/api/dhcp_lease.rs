//! `DHCPLease`: durable record of one address that the host leases for a LoadBalancer.
//!
//! The record has the same namespace and name as its LoadBalancer. So a LoadBalancer that is
//! deleted and created again finds the record. The controller writes metadata and spec. The agent
//! of the network writes the status, and removes the finalizer after the release of the address. An
//! admin may create a record before its LoadBalancer.
//!
//! Invariants:
//!
//! * The identity that the DHCP server sees (`macAddress`, `clientID`) is in the record before the
//!   first packet is sent, and never changes.
//! * `status.address` is set only while the address may be used.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Condition;

/// Address that is leased by DHCP for the LoadBalancer of the same name.
#[derive(
    CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize,
)]
#[kube(
    group = "loadbalancer.harvesterhci.io",
    version = "v1alpha1",
    kind = "DHCPLease",
    doc = "Address that the host leases by DHCP for the LoadBalancer of the same name. \
        The lease agent of the network leases and renews it, and writes the status.",
    plural = "dhcpleases",
    singular = "dhcplease",
    shortname = "dhcpl",
    namespaced,
    status = "DHCPLeaseStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn(
        name = "LB",
        type_ = "string",
        json_path = ".metadata.name",
        description = "Name of the LoadBalancer, and of this object"
    ),
    printcolumn(name = "Address", type_ = "string", json_path = ".status.address"),
    printcolumn(
        name = "Server",
        type_ = "string",
        json_path = ".status.server",
        description = "Address of the DHCP server that granted the lease"
    ),
    printcolumn(
        name = "Expires",
        type_ = "string",
        json_path = ".status.expiresAt",
        description = "Time when the lease expires unless it is renewed; empty: never"
    ),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Network", type_ = "string", priority = 1, json_path = ".spec.network"),
    printcolumn(name = "MAC", type_ = "string", priority = 1, json_path = ".spec.macAddress"),
    printcolumn(name = "Agent", type_ = "string", priority = 1, json_path = ".status.agent"),
    printcolumn(
        name = "Message",
        type_ = "string",
        priority = 1,
        json_path = ".status.conditions[?(@.type=='Ready')].message"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(
    validation = ("self.network == oldSelf.network",
        "spec.network is immutable: an address belongs to the network that it was leased on"),
    validation = ("self.macAddress == oldSelf.macAddress",
        "spec.macAddress is immutable: the DHCP server knows the address's holder by it"),
    validation = ("self.clientID == oldSelf.clientID",
        "spec.clientID is immutable: the DHCP server knows the address's holder by it"),
    validation = ("self.hostname == oldSelf.hostname",
        "spec.hostname is immutable: it was sent to the DHCP server"),
    validation = ("self.network.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-.a-z0-9]*[a-z0-9])?$')",
        "spec.network: must be namespace/name of a NetworkAttachmentDefinition"),
    validation = ("self.macAddress.matches('^[0-9a-f][02468ace](:[0-9a-f]{2}){5}$') && self.macAddress != '00:00:00:00:00:00'",
        "spec.macAddress: must be a unicast hardware address in lower case, such as 02:00:5e:10:00:01"),
    validation = ("self.clientID == '' || self.clientID.matches('^([0-9a-f]{2}){2,}$')",
        "spec.clientID: must be two octets or more in lower-case hexadecimal, the type octet included; empty for none"),
    validation = ("self.hostname.matches('^[A-Za-z0-9]([-.A-Za-z0-9]*[A-Za-z0-9])?$')",
        "spec.hostname: must be a DNS name: letters, digits, dashes and dots"),
)]
#[serde(rename_all = "camelCase")]
pub struct DHCPLeaseSpec {
    /// Network of the lease: `namespace/name` of the NetworkAttachmentDefinition whose agent leases
    /// the address.
    #[schemars(length(min = 3, max = 317))]
    pub network: String,
    /// Hardware address of the DHCP client. The LoadBalancer may request one by its annotation
    /// kube-vip.io/hwaddr. Otherwise the operator derives one from the cluster, the network, and
    /// the LoadBalancer's namespace and name. Immutable.
    #[schemars(length(min = 17, max = 17))]
    pub mac_address: String,
    /// Client identifier (option 61) in hexadecimal, with its type octet. Empty: no client
    /// identifier is sent. Immutable.
    #[serde(rename = "clientID")]
    #[schemars(length(max = 510))]
    pub client_id: String,
    /// Host name (option 12) that is sent to the DHCP server. Immutable.
    #[schemars(length(min = 1, max = 253))]
    pub hostname: String,
    /// IPv4 address that the client requests until an address has been leased. The server may grant
    /// another address. After two refusals, the client requests any address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 15))]
    pub requested_address: Option<String>,
    /// Whether the client always asks the server to broadcast its answers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub broadcast: bool,
    /// Time when the address is released, unless the LoadBalancer exists again by then. Unset while
    /// the LoadBalancer exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub release_after: Option<String>,
}

/// Status of the lease. Only the agent that leases the address writes the status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DHCPLeaseStatus {
    /// State of the DHCP client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<LeaseState>,
    /// Leased address. Set only while the address may be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 15))]
    pub address: Option<String>,
    /// Prefix length of the subnet, from the mask (option 1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 32))]
    pub prefix_length: Option<i32>,
    /// Router of the subnet (option 3).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 15))]
    pub gateway: Option<String>,
    /// First three name servers of the subnet (option 6). The operator does not query them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 3), inner(length(max = 15)))]
    pub name_servers: Vec<String>,
    /// Address of the server that granted the lease (option 54).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 15))]
    pub server: Option<String>,
    /// Hardware address from which the server, or its relay, answered.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "serverMAC")]
    #[schemars(length(max = 17))]
    pub server_mac: Option<String>,
    /// Duration of the lease in seconds. Unset: unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 4_294_967_295_i64))]
    pub lease_seconds: Option<i64>,
    /// Time when the client asks the server that granted the lease to extend it (T1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub renew_at: Option<String>,
    /// Time when the client asks any server to extend the lease (T2), if the lease is not renewed
    /// before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub rebind_at: Option<String>,
    /// Time when the lease expires unless it is renewed. Unset: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub expires_at: Option<String>,
    /// Whether the address may be used after its lease has expired because no DHCP server answered.
    /// Unset: no. `Keep`: yes, until a server refuses the address, any server grants another
    /// address, the server that granted the lease offers another address, or another host uses the
    /// address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_lease_loss: Option<OnLeaseLoss>,
    /// Time since which this address has been leased without interruption.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub obtained_at: Option<String>,
    /// Hardware addresses of the hosts that answered ARP for the address while it was leased, the
    /// latest first. Such a host is a node or a guest that announces the address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4), inner(length(max = 17)))]
    pub announcers: Vec<String>,
    /// Address that was leased last. Set only while no address is leased. The client requests this
    /// address when it asks for its next lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 15))]
    pub former_address: Option<String>,
    /// Identity of the agent that wrote the status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub agent: Option<String>,
    /// Conditions of the lease. `Ready` shows whether the address may be used, and if not, why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub conditions: Vec<Condition>,
}

/// Whether the address may be used after its lease has expired because no DHCP server answered.
/// Unset: no. `Keep`: yes, until a server refuses the address, any server grants another address,
/// the server that granted the lease offers another address, or another host uses the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum OnLeaseLoss {
    /// The address may be used until one of these events:
    ///
    /// * A server refuses the address.
    /// * Any server grants another address.
    /// * The server that granted the lease offers another address.
    /// * Another host uses the address.
    Keep,
}

/// State of the DHCP client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
pub enum LeaseState {
    /// The client asks whether a server offers an address.
    Selecting,
    /// The client requests the offered address.
    Requesting,
    /// The client asks by ARP whether another host uses the granted address. If no other host uses
    /// the address, the agent writes it into the status.
    Probing,
    /// The client holds the address.
    Bound,
    /// The client asks the server that granted the lease to extend it.
    Renewing,
    /// The client asks any server to extend the lease, because the server that granted the lease
    /// does not answer.
    Rebinding,
    /// The client asks whether it may still use an address that it held before.
    Rebooting,
    /// The client has lost its address.
    Lost,
    /// The client has released the address.
    Released,
}
