//! `DHCPLease`: one address that the host leases for a LoadBalancer, and the durable record of it.
//!
//! It has the namespace and the name of its LoadBalancer, so that one that is deleted and made
//! again finds it. The controller writes metadata and spec, the network's agent writes the status.
//! An admin may write one ahead of its LoadBalancer. Invariants: who the DHCP server sees (`macAddress`,
//! `clientID`) is in the record before the first packet and never changes; `status.address` is there only while it may be used.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Condition;

/// An address that is leased by DHCP for the LoadBalancer of the same name.
#[derive(
    CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize,
)]
#[kube(
    group = "loadbalancer.harvesterhci.io",
    version = "v1alpha1",
    kind = "DHCPLease",
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
        description = "The LoadBalancer, which has the same name"
    ),
    printcolumn(name = "Address", type_ = "string", json_path = ".status.address"),
    printcolumn(
        name = "Server",
        type_ = "string",
        json_path = ".status.server",
        description = "The DHCP server that granted the address"
    ),
    printcolumn(
        name = "Expires",
        type_ = "string",
        json_path = ".status.expiresAt",
        description = "When the address ends unless it is renewed; empty for one that never does"
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
        "spec.hostname is immutable: the DHCP server was told it"),
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
    /// `namespace/name` of the NetworkAttachmentDefinition whose agent leases the address.
    #[schemars(length(min = 3, max = 317))]
    pub network: String,
    /// The hardware address that asks: derived from the cluster, the network and the LoadBalancer's
    /// name, unless the LoadBalancer asks for another. It never changes.
    #[schemars(length(min = 17, max = 17))]
    pub mac_address: String,
    /// The client identifier (option 61) in hexadecimal, its type octet included. Empty: none is sent. It
    /// never changes.
    #[serde(rename = "clientID")]
    #[schemars(length(max = 510))]
    pub client_id: String,
    /// The host name (option 12) that the DHCP server is told.
    #[schemars(length(min = 1, max = 253))]
    pub hostname: String,
    /// The IPv4 address that is asked for before any was held. The server decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 15))]
    pub requested_address: Option<String>,
    /// Whether the server is asked to broadcast its answers in any case.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub broadcast: bool,
    /// When the address is given back, unless the LoadBalancer is there again by then. Unset while
    /// it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub release_after: Option<String>,
}

/// What the agent knows of the address. An agent that does not lease it writes nothing here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DHCPLeaseStatus {
    /// Where the client stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<LeaseState>,
    /// The address, only while it may be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 15))]
    pub address: Option<String>,
    /// Length of the subnet's prefix, from the mask (option 1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 32))]
    pub prefix_length: Option<i32>,
    /// The subnet's router (option 3).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 15))]
    pub gateway: Option<String>,
    /// The subnet's name servers (option 6), the first three. Nothing here asks them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 3), inner(length(max = 15)))]
    pub name_servers: Vec<String>,
    /// The server that granted the address (option 54).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 15))]
    pub server: Option<String>,
    /// The hardware address that the server, or its relay, answered from.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "serverMAC")]
    #[schemars(length(max = 17))]
    pub server_mac: Option<String>,
    /// For how long the address was granted. Unset: for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 4_294_967_295_i64))]
    pub lease_seconds: Option<i64>,
    /// When the server is asked for more time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub renew_at: Option<String>,
    /// When any server is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub rebind_at: Option<String>,
    /// When the address ends unless it is renewed. Unset: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub expires_at: Option<String>,
    /// `Keep`: the address may be used after `expiresAt` as well, until a server refuses it or another
    /// host has it. Unset: it may not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_lease_loss: Option<OnLeaseLoss>,
    /// Since when this address has been leased without a break.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub obtained_at: Option<String>,
    /// Hardware addresses of the stations that answered ARP for the address while it was leased, the
    /// last one first: a node or a guest that announces it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4), inner(length(max = 17)))]
    pub announcers: Vec<String>,
    /// The address that was leased last, while there is none. It is asked for again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 15))]
    pub former_address: Option<String>,
    /// The agent that wrote this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub agent: Option<String>,
    /// `Ready` says whether the address may be used, and if not, why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub conditions: Vec<Condition>,
}

/// Fate of an address whose lease ends without an answer of a DHCP server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum OnLeaseLoss {
    /// The address stays in use while no server refuses it and no other host has it.
    Keep,
}

/// Where the DHCP client stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
pub enum LeaseState {
    /// It asks whether a server has an address.
    Selecting,
    /// It asks for the address that it was offered.
    Requesting,
    /// It asks whether somebody else has the address that it was granted.
    Probing,
    /// It has the address.
    Bound,
    /// It asks its server for more time.
    Renewing,
    /// It asks any server for more time.
    Rebinding,
    /// It asks whether an address that it had is still its own.
    Rebooting,
    /// It had an address, and has it no more.
    Lost,
    /// It gave the address back.
    Released,
}
