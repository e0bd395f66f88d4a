//! Networks of the host cluster: the bridge and VLAN of a VM network, the segments on which its
//! addresses are visible, and the addresses that the cluster itself uses.

pub mod host_links;
pub mod infrastructure;

/// Bridge of the nodes' own network.
const MANAGEMENT_BRIDGE: &str = "mgmt-br";

/// Bridge and VLAN by which nodes reach a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkAttachment {
    /// Bridge of the cluster network, the same on every node.
    pub bridge: String,
    /// VLAN ID; 0 for untagged.
    pub vlan: u16,
}

/// Network segment on which addresses are announced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Segment {
    /// The nodes' own network.
    #[default]
    Management,
    /// A VLAN on a bridge: name of the bridge, and VLAN ID; 0 for untagged.
    Vlan(String, u16),
    /// A network with this name, whose bridge and VLAN are unknown.
    Named(String),
    /// Unknown segment, which counts as every segment. Examples: the networks are not listed yet,
    /// or the network of a LoadBalancer or of a deleted pool is not known.
    Unlisted,
}

impl Segment {
    /// Segment of the network with the name `network`. An empty name means the nodes' own network.
    /// `attachment`: bridge and VLAN of the network; `None`: not known. `listed`: whether all
    /// networks have been listed.
    pub fn of(network: &str, attachment: Option<&NetworkAttachment>, listed: bool) -> Self {
        match attachment {
            _ if network.is_empty() => Self::Management,
            Some(NetworkAttachment { bridge, vlan: 0 }) if bridge == MANAGEMENT_BRIDGE => {
                Self::Management
            }
            Some(NetworkAttachment { bridge, vlan }) => Self::Vlan(bridge.clone(), *vlan),
            None if listed => Self::Named(network.to_owned()),
            None => Self::Unlisted,
        }
    }

    /// Segment on which announcers without a VLAN link announce an address of this segment:
    ///
    /// * Nodes' own network, or untagged network: the same segment. The announcer uses the bridge,
    ///   which each node has.
    /// * Tagged VLAN, or network with an unknown VLAN: the nodes' own network. The announcer uses
    ///   its default interface.
    /// * Unknown segment: also unknown.
    #[must_use]
    pub fn of_announcer(&self) -> Self {
        match self {
            Self::Management | Self::Unlisted | Self::Vlan(_, 0) => self.clone(),
            Self::Vlan(..) | Self::Named(_) => Self::Management,
        }
    }

    /// Whether the segment is a tagged VLAN. The cluster's pod networks and service networks are
    /// not on such a segment.
    pub fn is_tagged(&self) -> bool {
        matches!(self, Self::Vlan(_, vlan) if *vlan != 0)
    }

    /// Whether hosts on `other` may hear the announcement of an address on this segment: the two
    /// segments are equal, or one of them is [`Segment::Unlisted`].
    pub fn meets(&self, other: &Self) -> bool {
        self == other || [self, other].contains(&&Self::Unlisted)
    }
}
