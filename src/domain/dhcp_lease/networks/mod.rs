//! Networks that an admin has declared: on them, the host leases addresses. For each network, this
//! module also decides whether the operator creates its agent, or another party does (the chart).
//!
//! A network stays declared while its agent is not active. It also stays declared while one of its
//! annotations other than [`ANNOTATION_DHCP`] is not valid. Then existing leases go on, and new
//! leases wait until the annotation is corrected.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::Ipv4Net;

use super::requested_identity::flag;
use crate::dhcp::ClientIdForm;
use crate::load_balancer::facts::{self, LbSurroundings};
use api::{
    ANNOTATION_DHCP, ANNOTATION_DHCP_BROADCAST, ANNOTATION_DHCP_CLIENT_ID,
    ANNOTATION_DHCP_ON_LEASE_LOSS, ANNOTATION_DHCP_SUBNETS, LoadBalancer,
};

/// Value of the annotation [`ANNOTATION_DHCP`] by which a network becomes a declared one: the host
/// leases addresses on it.
const HOST: &str = "host";

/// Options of the operator about the networks on which the host leases addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DhcpNetworks {
    /// Networks that are declared even if their NetworkAttachmentDefinition does not declare them.
    /// Key: `namespace/name`. Value: form of client identifiers on the network. The operator does
    /// not create the agents of these networks.
    pub listed: BTreeMap<String, ClientIdForm>,
    /// Namespaces in which a NetworkAttachmentDefinition may declare its network. A declaration
    /// starts an agent, which has Linux capabilities. So this set must contain no namespace in
    /// which a tenant may write NetworkAttachmentDefinitions.
    pub namespaces: BTreeSet<String>,
    /// Default network, as `namespace/name`: the network of VM load balancers that name none. The
    /// host leases addresses on it only if it is also a declared network. Empty: there is no
    /// default network.
    pub default: String,
}

/// Form of a network. An agent can be attached only to a network of the form
/// [`NetworkForm::Bridge`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NetworkForm {
    /// A bridge with untagged frames, or with frames of one VLAN.
    Bridge,
    /// A bridge with frames of many VLANs.
    Trunk,
    /// Any other network, or a network whose configuration cannot be read.
    #[default]
    Other,
}

/// Annotations about DHCP on a NetworkAttachmentDefinition, and facts about its network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DhcpDeclaration {
    /// Value of the annotation [`ANNOTATION_DHCP`], which may declare the network. Empty: the
    /// annotation is missing.
    pub annotation: String,
    /// Form of the network.
    pub form: NetworkForm,
    /// Value of the annotation [`ANNOTATION_DHCP_SUBNETS`]: the subnets from which addresses may be
    /// leased. Empty: any address may be leased.
    pub subnets: String,
    /// Value of the annotation [`ANNOTATION_DHCP_ON_LEASE_LOSS`]: whether an address is kept if its
    /// lease expires without an answer of a server. Empty: `Withdraw`.
    pub on_lease_loss: String,
    /// Value of the annotation [`ANNOTATION_DHCP_CLIENT_ID`]: the form of client identifiers.
    /// Empty: the default form.
    pub client_id: String,
    /// Value of the annotation [`ANNOTATION_DHCP_BROADCAST`]: whether servers are asked to
    /// broadcast their answers. Empty: no.
    pub broadcast: String,
    /// Name of the Harvester cluster network to which the network belongs. Only nodes with the
    /// label of this cluster network have the network. Empty, or `mgmt`: each node has the network.
    pub cluster_network: String,
}

/// Agent that a network is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WantedAgent {
    /// The network must have no agent: the host leases no addresses on it.
    None,
    /// The network has an agent that the operator does not create. The chart creates it, for
    /// example.
    Others,
    /// The network must have an agent that the operator creates.
    Ours,
    /// An annotation other than [`ANNOTATION_DHCP`] is not valid. The text names the annotation and
    /// its fault. The operator creates no new agent, and does not change the options of an existing
    /// agent.
    Faulty(String),
    /// The annotation [`ANNOTATION_DHCP`] has a value, but the operator creates no agent. The text
    /// is the reason.
    Refused(String),
}

impl WantedAgent {
    /// Reason why the operator does not create or update an agent that an annotation requests.
    /// `None`: there is no such reason.
    pub fn fault(&self) -> Option<&str> {
        match self {
            Self::None | Self::Others | Self::Ours => None,
            Self::Faulty(fault) | Self::Refused(fault) => Some(fault),
        }
    }
}

impl DhcpDeclaration {
    /// Subnets from which addresses may be leased. Empty: any address may be leased.
    ///
    /// # Errors
    /// The annotation's first entry that is not an IPv4 subnet.
    pub fn subnets(&self) -> Result<Vec<Ipv4Net>, &str> {
        let parts = self.subnets.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts.map(|part| part.parse().map_err(|_| part)).collect()
    }

    /// Whether an address is kept if its lease expires without an answer of a server.
    ///
    /// # Errors
    /// The annotation has a value, but neither `Withdraw` nor `Keep`.
    pub fn keeps(&self) -> Result<bool, String> {
        match self.on_lease_loss.as_str() {
            "" | "Withdraw" => Ok(false),
            "Keep" => Ok(true),
            other => Err(format!("{other:?} must be Withdraw or Keep")),
        }
    }

    /// Form of client identifiers that the annotation requests. An empty annotation requests the
    /// default form.
    ///
    /// # Errors
    /// The annotation has a value, but neither `duid`, `mac` nor `none`.
    pub fn client_id_form(&self) -> Result<ClientIdForm, String> {
        let text = self.client_id.as_str();
        if text.is_empty() { Ok(ClientIdForm::default()) } else { text.parse() }
    }

    /// Whether DHCP servers are asked to broadcast their answers.
    ///
    /// # Errors
    /// The annotation has a value, but neither `true` nor `false`.
    pub fn broadcasts(&self) -> Result<bool, String> {
        let text = self.broadcast.as_str();
        if text.is_empty() { Ok(false) } else { flag(text) }
    }

    /// Key of the first annotation that is not valid, and the reason. The annotation
    /// [`ANNOTATION_DHCP`] is not checked here. `None`: all other annotations are valid.
    fn fault(&self) -> Option<(&str, String)> {
        let subnets = self
            .subnets()
            .map_err(|part| format!("{part:?} must be an IPv4 subnet, such as 10.7.0.0/24"));
        let faults = [
            (ANNOTATION_DHCP_SUBNETS, subnets.err()),
            (ANNOTATION_DHCP_ON_LEASE_LOSS, self.keeps().err()),
            (ANNOTATION_DHCP_CLIENT_ID, self.client_id_form().err()),
            (ANNOTATION_DHCP_BROADCAST, self.broadcasts().err()),
        ];
        faults.into_iter().find_map(|(key, fault)| Some((key, fault?)))
    }
}

impl DhcpNetworks {
    /// Network on which an address for the LoadBalancer would be leased: its own network, or the
    /// default network for a VM load balancer without one. A guest load balancer never gets the
    /// default network, because a guest cluster is on the network of its VMs. Empty: there is no
    /// such network.
    pub fn of(&self, lb: &LoadBalancer, around: &LbSurroundings) -> String {
        let network = facts::requirement(lb, around).network;
        if network.is_empty() && !facts::is_guest(lb) { self.default.clone() } else { network }
    }

    /// Whether a network is a declared one, by its NetworkAttachmentDefinition or by the operator's
    /// options. `declaration`: annotations of the NetworkAttachmentDefinition. `None`: there is no
    /// such object.
    pub fn declare(&self, network: &str, declaration: Option<&DhcpDeclaration>) -> bool {
        let asks =
            |said| matches!(self.agent(network, said), WantedAgent::Ours | WantedAgent::Faulty(_));
        self.listed.contains_key(network) || declaration.is_some_and(asks)
    }

    /// Reason why no new lease starts on a declared network: one of its annotations is not valid.
    /// `None`: no annotation prevents new leases.
    pub fn fault(&self, network: &str, declaration: Option<&DhcpDeclaration>) -> Option<String> {
        let WantedAgent::Faulty(fault) = self.agent(network, declaration?) else { return None };
        Some(fault)
    }

    /// Agent that a network must have, by its annotations and by the operator's options.
    pub fn agent(&self, network: &str, declaration: &DhcpDeclaration) -> WantedAgent {
        let DhcpDeclaration { annotation, form, .. } = declaration;
        let listed = self.listed.contains_key(network);
        let fault = match annotation.as_str() {
            "" if listed => return WantedAgent::Others,
            "" => return WantedAgent::None,
            _ if !self.may_declare(network) => {
                "the annotation has no effect in this namespace: the chart's leaseAgent.namespaces must list the namespace"
                    .to_owned()
            }
            HOST if listed => {
                "the chart's leaseAgent.networks also lists the network, so the chart makes an agent for it: remove the annotation, or remove the network from this list"
                    .to_owned()
            }
            HOST if !is_name(network) => "the network's name is not valid in Kubernetes".to_owned(),
            HOST => match form {
                NetworkForm::Bridge => {
                    return match declaration.fault() {
                        None => WantedAgent::Ours,
                        Some((key, fault)) => {
                            WantedAgent::Faulty(format!("metadata.annotations[{key}]: {fault}"))
                        }
                    };
                }
                NetworkForm::Trunk => "the network is a trunk: the network of an agent must have one VLAN or none".to_owned(),
                NetworkForm::Other => {
                    "spec.config must be for the CNI plugin bridge: an agent cannot use another plugin"
                        .to_owned()
                }
            },
            other => format!("{other:?} must be {HOST}"),
        };
        WantedAgent::Refused(format!("metadata.annotations[{ANNOTATION_DHCP}]: {fault}"))
    }

    /// Form of client identifiers on a declared network. The operator's options have precedence
    /// over the annotation. An annotation that is not valid has no effect.
    pub fn client_id_form(
        &self,
        network: &str,
        declaration: Option<&DhcpDeclaration>,
    ) -> ClientIdForm {
        let said = || declaration.and_then(|said| said.client_id_form().ok());
        self.listed.get(network).copied().or_else(said).unwrap_or_default()
    }

    /// Whether a network is in a namespace in which the annotation [`ANNOTATION_DHCP`] has an
    /// effect.
    pub fn may_declare(&self, network: &str) -> bool {
        let namespace = network.split_once('/').map(|(namespace, _)| namespace);
        namespace.is_some_and(|namespace| self.namespaces.contains(namespace))
    }
}

/// Whether the text is `namespace/name`, and both parts have characters and a length that
/// Kubernetes accepts in names. The operator makes a Deployment only for such a text.
fn is_name(network: &str) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let fits = |part: &str| {
        part.starts_with(edge)
            && part.ends_with(edge)
            && part.len() <= 253
            && part.chars().all(|c| edge(c) || matches!(c, '-' | '.'))
    };
    network.split_once('/').is_some_and(|(namespace, name)| fits(namespace) && fits(name))
}

#[cfg(test)]
mod tests;
