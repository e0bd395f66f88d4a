//! VLAN links of nodes, from Harvester's HostNetworkConfigs. The links decide on which nodes an
//! announcer reaches a VLAN.
//!
//! Source: network-controller-harvester, pkg/controller/agent/hostnetworkconfig/controller.go. The
//! agent of this controller on a node does two steps for each HostNetworkConfig whose selector
//! matches the node: it creates the link `<bridge>.<vlan>`, and adds the bridge itself to the VLAN.
//! The status of a HostNetworkConfig lists exactly the matching nodes, and says for each of them
//! whether both steps succeeded.

use std::collections::{BTreeMap, BTreeSet};

use super::NetworkAttachment;

/// VLAN link that one HostNetworkConfig creates on each node that its selector matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostLink {
    /// Bridge of the cluster network.
    pub bridge: String,
    /// VLAN ID, 1 to 4094.
    pub vlan: u16,
    /// Names of the nodes on which the link works.
    pub nodes: BTreeSet<String>,
}

/// Whether announcers reach a network. A tagged network needs a VLAN link on the nodes of the
/// announcers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NetworkReach {
    /// The link works on each node where an announcer may run, or the network is untagged and needs
    /// no link.
    Ready,
    /// A HostNetworkConfig for the bridge and VLAN exists, but the link does not work on some nodes
    /// where an announcer may run. The value is the names of these nodes.
    Missing(Vec<String>),
    /// No link is configured, or its configuration is unknown, for one of these reasons:
    ///
    /// * No HostNetworkConfig for the bridge and VLAN exists.
    /// * The bridge and VLAN are not known.
    /// * The nodes where an announcer may run are not known.
    #[default]
    NotConfigured,
}

/// VLAN links of all nodes, and the nodes on which an announcer may run.
#[derive(Clone, Debug, Default)]
pub struct HostLinks {
    /// Map from the name of a HostNetworkConfig to the link that it creates.
    configs: BTreeMap<String, HostLink>,
    /// Nodes on which an announcer may run.
    announcing: BTreeSet<String>,
}

impl HostLinks {
    /// Stores the link of the HostNetworkConfig named `config`. `made`: the link, or `None` if the
    /// HostNetworkConfig was deleted or cannot be parsed. Returns whether the stored link changed.
    pub fn set(&mut self, config: &str, made: Option<HostLink>) -> bool {
        match made {
            Some(made) => {
                self.configs.insert(config.to_owned(), made.clone()).as_ref() != Some(&made)
            }
            None => self.configs.remove(config).is_some(),
        }
    }

    /// Names of the HostNetworkConfigs whose links are stored.
    pub fn configs(&self) -> impl Iterator<Item = &str> {
        self.configs.keys().map(String::as_str)
    }

    /// Stores `may`: whether an announcer may run on the node. Returns whether the stored value
    /// changed.
    pub fn set_announcing(&mut self, node: &str, may: bool) -> bool {
        if may { self.announcing.insert(node.to_owned()) } else { self.announcing.remove(node) }
    }

    /// Whether announcers reach a network with this bridge and VLAN. An untagged network is always
    /// [`NetworkReach::Ready`], because each node has the bridge.
    pub fn link(&self, attachment: &NetworkAttachment) -> NetworkReach {
        if attachment.vlan == 0 {
            return NetworkReach::Ready;
        }
        let is_it =
            |made: &&HostLink| made.bridge == attachment.bridge && made.vlan == attachment.vlan;
        let made: Vec<&HostLink> = self.configs.values().filter(is_it).collect();
        if made.is_empty() || self.announcing.is_empty() {
            return NetworkReach::NotConfigured;
        }
        let lacks = |node: &&String| !made.iter().any(|made| made.nodes.contains(*node));
        let missing: Vec<String> = self.announcing.iter().filter(lacks).cloned().collect();
        if missing.is_empty() { NetworkReach::Ready } else { NetworkReach::Missing(missing) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(bridge: &str, vlan: u16, nodes: &[&str]) -> HostLink {
        let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
        HostLink { bridge: bridge.into(), vlan, nodes }
    }

    fn at(bridge: &str, vlan: u16) -> NetworkAttachment {
        NetworkAttachment { bridge: bridge.into(), vlan }
    }

    #[test]
    fn a_vlan_is_reached_where_each_announcing_node_has_a_working_link() {
        let mut links = HostLinks::default();
        assert_eq!(links.link(&at("mgmt-br", 0)), NetworkReach::Ready, "the bridge itself");
        assert_eq!(links.link(&at("mgmt-br", 7)), NetworkReach::NotConfigured);
        assert!(links.set("seven", Some(made("mgmt-br", 7, &["n1"]))));
        assert!(!links.set("seven", Some(made("mgmt-br", 7, &["n1"]))), "no news");
        assert_eq!(links.link(&at("mgmt-br", 7)), NetworkReach::NotConfigured, "no node is known");
        assert!(links.set_announcing("n1", true) && links.set_announcing("n2", true));
        assert!(!links.set_announcing("n2", true) && !links.set_announcing("worker", false));
        assert_eq!(links.link(&at("mgmt-br", 7)), NetworkReach::Missing(vec!["n2".into()]));
        for other in [at("mgmt-br", 8), at("prod-br", 7)] {
            assert_eq!(links.link(&other), NetworkReach::NotConfigured, "{other:?}");
        }
        // Two HostNetworkConfigs may make links for one VLAN, each on some nodes.
        assert!(links.set("more", Some(made("mgmt-br", 7, &["n2"]))));
        assert_eq!(links.link(&at("mgmt-br", 7)), NetworkReach::Ready);
        assert!(links.set("more", None) && !links.set("more", None));
        assert!(links.set_announcing("n2", false));
        assert_eq!(links.link(&at("mgmt-br", 7)), NetworkReach::Ready);
        assert_eq!(links.configs().collect::<Vec<_>>(), ["seven"]);
        assert!(links.set("seven", None));
        assert_eq!(links.link(&at("mgmt-br", 7)), NetworkReach::NotConfigured);
    }
}
