//! On which networks the host leases: what an admin has declared.
//!
//! A declaration is durable. Whether an agent is there at the moment decides nothing here.

use std::collections::BTreeSet;

/// The value of the annotation of a NetworkAttachmentDefinition by which the host leases there.
const HOST: &str = "host";

/// What the options say of DHCP networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks {
    /// Networks that are declared whatever their NetworkAttachmentDefinition says: `namespace/name`.
    pub listed: BTreeSet<String>,
    /// Namespaces whose NetworkAttachmentDefinitions may declare themselves. A tenant may be able to
    /// write one in a namespace of its own, and an agent has capabilities.
    pub namespaces: BTreeSet<String>,
}

impl Networks {
    /// Whether the host leases on a network, given its NetworkAttachmentDefinition's annotation; empty
    /// for none.
    pub fn declare(&self, network: &str, annotation: &str) -> bool {
        self.listed.contains(network) || (annotation == HOST && self.may_declare(network))
    }

    /// Whether a network is of a namespace in which the annotation counts.
    pub fn may_declare(&self, network: &str) -> bool {
        let namespace = network.split_once('/').map(|(namespace, _)| namespace);
        namespace.is_some_and(|namespace| self.namespaces.contains(namespace))
    }
}
