//! Networks of the host cluster: what a network of VMs is attached to, and where its addresses are seen.

pub mod host_links;
pub mod infrastructure;

/// The bridge of the network that the nodes themselves are in.
const MANAGEMENT_BRIDGE: &str = "mgmt-br";

/// Bridge and VLAN by which kube-vip reaches the network that a LoadBalancer names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The bridge of the cluster network, on every node.
    pub bridge: String,
    /// The VLAN; 0 for untagged.
    pub vlan: u16,
}

/// Network segment on which addresses of a pool are announced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Segment {
    /// The nodes' own network.
    #[default]
    Management,
    /// A VLAN of a bridge; 0 for untagged.
    Vlan(String, u16),
    /// A network by this name, which leads nowhere that is known.
    Named(String),
    /// Networks have not been listed yet: it may be any.
    Unlisted,
}

impl Segment {
    /// Segment of a selector's network. `listed` is whether all networks are known.
    pub fn of(network: &str, attachment: Option<&Attachment>, listed: bool) -> Self {
        match attachment {
            _ if network.is_empty() => Self::Management,
            Some(Attachment { bridge, vlan: 0 }) if bridge == MANAGEMENT_BRIDGE => Self::Management,
            Some(Attachment { bridge, vlan }) => Self::Vlan(bridge.clone(), *vlan),
            None if listed => Self::Named(network.to_owned()),
            None => Self::Unlisted,
        }
    }

    /// Segment where an announcer on the nodes announces an address of this segment: nodes have a bridge for
    /// an untagged network. Others have no link, and their addresses are announced on the default
    /// interface, in the nodes' own network.
    #[must_use]
    pub fn of_announcer(&self) -> Self {
        match self {
            Self::Management | Self::Unlisted | Self::Vlan(_, 0) => self.clone(),
            Self::Vlan(..) | Self::Named(_) => Self::Management,
        }
    }

    /// Whether it is a VLAN of its own, in which the nodes, their pods and Services have no addresses.
    pub fn is_tagged(&self) -> bool {
        matches!(self, Self::Vlan(_, vlan) if *vlan != 0)
    }

    /// Whether an address here may be seen there.
    pub fn meets(&self, other: &Self) -> bool {
        self == other || [self, other].contains(&&Self::Unlisted)
    }
}
