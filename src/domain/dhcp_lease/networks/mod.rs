//! On which networks the host leases, and who makes the agent there: what an admin has declared.
//!
//! A declaration is durable. Whether an agent is there at the moment decides nothing here, nor does a fault in
//! another annotation: that one delays what is leased anew.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::Ipv4Net;

use super::requested_identity::flag;
use crate::dhcp::{ClientIdForm, NoForm};
use crate::load_balancer::facts::{self, Surroundings};
use api::{
    ANNOTATION_DHCP, ANNOTATION_DHCP_BROADCAST, ANNOTATION_DHCP_CLIENT_ID,
    ANNOTATION_DHCP_ON_LEASE_LOSS, ANNOTATION_DHCP_SUBNETS, LoadBalancer,
};

/// The value of the annotation of a NetworkAttachmentDefinition by which the host leases there.
const HOST: &str = "host";

/// Options of DHCP networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks {
    /// Networks that are declared whatever their NetworkAttachmentDefinition says, `namespace/name`, and
    /// their form of client identifiers. Their agents are made by others.
    pub listed: BTreeMap<String, ClientIdForm>,
    /// Namespaces whose NetworkAttachmentDefinitions may declare themselves. A tenant may be able to
    /// write one in a namespace of its own, and an agent has capabilities.
    pub namespaces: BTreeSet<String>,
    /// Network on which the host leases for LoadBalancers of VMs that name no network: `namespace/name`, empty for
    /// nowhere. It must be declared as well.
    pub default: String,
}

/// Form of a network, as far as an agent can be attached there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// A bridge, untagged or to one VLAN.
    Bridge,
    /// A bridge to many VLANs.
    Trunk,
    /// Something else, or it cannot be read.
    #[default]
    Other,
}

/// Declaration of DHCP in a NetworkAttachmentDefinition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Declaration {
    /// The annotation; empty for none.
    pub annotation: String,
    /// Form of the network.
    pub form: Form,
    /// Annotation of the subnets whose addresses may be leased; empty for any.
    pub subnets: String,
    /// Annotation of the fate of an address whose lease ends; empty for `Withdraw`.
    pub on_lease_loss: String,
    /// Annotation of the form of client identifiers; empty for the usual one.
    pub client_id: String,
    /// Annotation of whether servers broadcast their answers; empty for no.
    pub broadcast: String,
    /// Cluster network: nodes that have it are labelled with it. Empty for each node.
    pub cluster_network: String,
}

/// The agent of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Agent {
    /// None: the host does not lease there.
    None,
    /// Others make it, as the chart does.
    Others,
    /// The operator makes it.
    Ours,
    /// The operator makes none anew, and leaves one that it made with the options that it has: another
    /// annotation cannot be followed, as the text says.
    Faulty(String),
    /// The annotation asks for one that the operator does not make, as the text says.
    Refused(String),
}

impl Agent {
    /// Why none is made, if one is asked for.
    pub fn fault(&self) -> Option<&str> {
        match self {
            Self::None | Self::Others | Self::Ours => None,
            Self::Faulty(fault) | Self::Refused(fault) => Some(fault),
        }
    }
}

impl Declaration {
    /// The subnets whose addresses may be leased; none: any.
    ///
    /// # Errors
    /// The first part of the annotation that is no IPv4 subnet.
    pub fn subnets(&self) -> Result<Vec<Ipv4Net>, &str> {
        let parts = self.subnets.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts.map(|part| part.parse().map_err(|_| part)).collect()
    }

    /// Whether an address whose lease ends without an answer is kept.
    ///
    /// # Errors
    /// The annotation is neither word, as the text says.
    pub fn keeps(&self) -> Result<bool, String> {
        match self.on_lease_loss.as_str() {
            "" | "Withdraw" => Ok(false),
            "Keep" => Ok(true),
            other => Err(format!("{other:?} must be Withdraw or Keep")),
        }
    }

    /// The form of client identifiers.
    ///
    /// # Errors
    /// The annotation is no form.
    pub fn client_id_form(&self) -> Result<ClientIdForm, NoForm> {
        let text = self.client_id.as_str();
        if text.is_empty() { Ok(ClientIdForm::default()) } else { text.parse() }
    }

    /// Whether servers are asked to broadcast their answers.
    ///
    /// # Errors
    /// The annotation is neither, as the text says.
    pub fn broadcasts(&self) -> Result<bool, String> {
        let text = self.broadcast.as_str();
        if text.is_empty() { Ok(false) } else { flag(text) }
    }

    /// Fault of the annotations beside the one that declares: which one, and why.
    fn fault(&self) -> Option<(&str, String)> {
        let subnets = self
            .subnets()
            .map_err(|part| format!("{part:?} must be an IPv4 subnet, such as 10.7.0.0/24"));
        let client_id = self.client_id_form().map_err(|error| error.to_string());
        let faults = [
            (ANNOTATION_DHCP_SUBNETS, subnets.err()),
            (ANNOTATION_DHCP_ON_LEASE_LOSS, self.keeps().err()),
            (ANNOTATION_DHCP_CLIENT_ID, client_id.err()),
            (ANNOTATION_DHCP_BROADCAST, self.broadcasts().err()),
        ];
        faults.into_iter().find_map(|(key, fault)| Some((key, fault?)))
    }
}

impl Networks {
    /// The network on which the address of a LoadBalancer is to be leased; empty for none. A guest cluster
    /// is where its VMs are, so the default is not for it.
    pub fn of(&self, lb: &LoadBalancer, around: &Surroundings) -> String {
        let network = facts::requirement(lb, around).network;
        if network.is_empty() && !facts::is_guest(lb) { self.default.clone() } else { network }
    }

    /// Whether the host leases on a network, given what its NetworkAttachmentDefinition says.
    pub fn declare(&self, network: &str, declaration: Option<&Declaration>) -> bool {
        let asks = |said| matches!(self.agent(network, said), Agent::Ours | Agent::Faulty(_));
        self.listed.contains_key(network) || declaration.is_some_and(asks)
    }

    /// Why nothing is leased anew on a network that is declared, if an annotation cannot be followed.
    pub fn fault(&self, network: &str, declaration: Option<&Declaration>) -> Option<String> {
        match self.agent(network, declaration?) {
            Agent::Faulty(fault) => Some(fault),
            Agent::None | Agent::Others | Agent::Ours | Agent::Refused(_) => None,
        }
    }

    /// Returns the maker of a network's agent.
    pub fn agent(&self, network: &str, declaration: &Declaration) -> Agent {
        let Declaration { annotation, form, .. } = declaration;
        let listed = self.listed.contains_key(network);
        let fault = match annotation.as_str() {
            "" if listed => return Agent::Others,
            "" => return Agent::None,
            _ if !self.may_declare(network) => {
                "it counts only in the namespaces that leaseAgent.namespaces of the chart names"
                    .to_owned()
            }
            HOST if listed => {
                "leaseAgent.networks of the chart names the network as well, and has an agent there: take one of the two away"
                    .to_owned()
            }
            HOST if !is_name(network) => "the network's name is no name of Kubernetes".to_owned(),
            HOST => match form {
                Form::Bridge => {
                    return match declaration.fault() {
                        None => Agent::Ours,
                        Some((key, fault)) => {
                            Agent::Faulty(format!("metadata.annotations[{key}]: {fault}"))
                        }
                    };
                }
                Form::Trunk => "the network is a trunk: name one of one VLAN, or without VLAN".to_owned(),
                Form::Other => {
                    "spec.config is not of the CNI plugin bridge, to which an agent can be attached"
                        .to_owned()
                }
            },
            other => format!("{other:?} must be {HOST}"),
        };
        Agent::Refused(format!("metadata.annotations[{ANNOTATION_DHCP}]: {fault}"))
    }

    /// The form of client identifiers of a network on which the host leases.
    pub fn client_id_form(&self, network: &str, declaration: Option<&Declaration>) -> ClientIdForm {
        let said = || declaration.and_then(|said| said.client_id_form().ok());
        self.listed.get(network).copied().or_else(said).unwrap_or_default()
    }

    /// Whether a network is of a namespace in which the annotation counts.
    pub fn may_declare(&self, network: &str) -> bool {
        let namespace = network.split_once('/').map(|(namespace, _)| namespace);
        namespace.is_some_and(|namespace| self.namespaces.contains(namespace))
    }
}

/// Whether it is `namespace/name` as the API server takes both. A network that is not comes from
/// nowhere that this operator knows.
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
