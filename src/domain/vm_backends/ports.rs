//! Ports of a LoadBalancer's address, and of the endpoints behind it.

/// Maximum number of listeners of one LoadBalancer.
pub const MOST_LISTENERS: usize = 256;

/// Listener of a LoadBalancer. It leads from a port of the LoadBalancer's address to a port of the
/// VMs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerPort {
    /// Name of the listener; may be empty if the LoadBalancer has no other listener.
    pub name: String,
    /// Protocol: TCP or UDP.
    pub protocol: String,
    /// Port of the LoadBalancer's address.
    pub port: u16,
    /// Port of the VMs.
    pub backend_port: u16,
}

/// Port of an EndpointSlice. All endpoints of the slice have this port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EndpointPort {
    /// Name of the listener whose traffic the port serves.
    pub name: String,
    /// Protocol, such as TCP.
    pub protocol: String,
    /// Port of the VMs, or of the sink. 0: the stored slice has no valid number.
    pub port: u16,
}
