//! Distribution of a Service's endpoints over EndpointSlices, and the writes that lead to it.
//!
//! Invariants:
//!
//! * An endpoint stays in the slice that has it. So most changes of one VM write one slice only.
//! * A slice has at most [`MOST`] endpoints.
//! * At least one endpoint of the Service takes traffic at every moment, also between two writes.
//!   If no VM can take traffic, the sink takes it (see [`sink_endpoint`]).
//!
//! A slice with the sink has [`SINK_PORT`] in place of the VMs' ports. The sink and the ports
//! change in the same write.

mod body;

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use super::endpoints::{AddressFamily, VmEndpoint};
use super::ports::EndpointPort;
pub use body::{SliceBody, create, patch};

/// Largest number of endpoints in a slice, as in Kubernetes' own controller.
pub const MOST: usize = 100;

/// UID of the sink (see [`sink_endpoint`]). Harvester's Go controller recognizes its own sink by
/// this UID. So after a return to the Go controller, it removes the operator's sink like its own.
pub const SINK_UID: &str = "dummy347-546a-4642-9da6-5608endpoint";

/// Port of the sink (see [`sink_endpoint`]): discard (RFC 863). No program on a node listens on
/// this port, and even a discard server would send no answer.
pub const SINK_PORT: u16 = 9;

/// Node that announces the address of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnouncingNode {
    /// Name of the node.
    pub name: Arc<str>,
    /// Addresses of the node itself (type `InternalIP`).
    pub addresses: Vec<IpAddr>,
}

/// Stored EndpointSlice of a LoadBalancer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredSlice {
    /// Name of the slice.
    pub name: String,
    /// `metadata.resourceVersion`.
    pub version: String,
    /// UID of the LoadBalancer that owns the slice.
    pub owner: String,
    /// `addressType`; `None` for a type that this operator does not write.
    pub family: Option<AddressFamily>,
    /// Ports of the slice, sorted. If the stored slice has too many ports, only the ports at the
    /// start of its list are read.
    pub ports: Vec<EndpointPort>,
    /// Endpoints of the slice. Invalid endpoints are left out. If the slice has too many endpoints,
    /// or too long texts, the last endpoints are left out.
    pub endpoints: Vec<VmEndpoint>,
    /// Whether the slice has the form that this operator writes: it has the operator's labels, its
    /// endpoints have only fields and values that the operator writes, and no port or endpoint was
    /// left out.
    pub sound: bool,
    /// Whether an annotation of the slice stores the settings of a deleted Service. If so, the
    /// slice must stay until the Service is created again with these settings.
    pub holds_settings: bool,
}

impl StoredSlice {
    /// Returns the slice as the API server stores it after a write of the slice's annotations: with
    /// the new resourceVersion `version`, and with the given `holds_settings`.
    #[must_use]
    pub fn annotated(&self, version: String, holds_settings: bool) -> Self {
        Self { version, holds_settings, ..self.clone() }
    }
}

/// Planned write of one EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SliceWrite {
    /// Create the slice, because no slice has this name.
    Create {
        /// Name of the slice.
        name: String,
        /// Endpoints of the slice.
        endpoints: Vec<VmEndpoint>,
    },
    /// Replace the slice's endpoints and ports, and set the operator's labels. This makes the slice
    /// [`StoredSlice::sound`].
    Update {
        /// Name of the slice.
        name: String,
        /// `resourceVersion` that the stored slice must have; otherwise, the write fails.
        version: String,
        /// Endpoints of the slice.
        endpoints: Vec<VmEndpoint>,
    },
    /// Delete the slice, for one of these reasons: no endpoint is left for it, it has the wrong
    /// address family, or the LoadBalancer has no Service of its own.
    Delete {
        /// Name of the slice.
        name: String,
        /// `resourceVersion` that the stored slice must have; otherwise, the write fails.
        version: String,
    },
}

impl SliceWrite {
    /// Name of the slice.
    pub fn name(&self) -> &str {
        match self {
            Self::Create { name, .. } | Self::Update { name, .. } | Self::Delete { name, .. } => {
                name
            }
        }
    }

    /// Endpoints in the slice after the write. Empty after a deletion.
    pub fn endpoints(&self) -> &[VmEndpoint] {
        match self {
            Self::Create { endpoints, .. } | Self::Update { endpoints, .. } => endpoints,
            Self::Delete { .. } => &[],
        }
    }
}

/// Returns the sink: the endpoint that takes the traffic of a Service while no VM does. `name`:
/// name of the Service. `at`: node that announces the Service, if known. The sink has one of these
/// addresses:
///
/// * An address of the node `at`, if the node has one of the given family. The node refuses
///   connections at once, because its port [`SINK_PORT`] is closed.
/// * Otherwise, a reserved address that no host uses (RFC 5737, RFC 6666). Connections to it get no
///   answer.
///
/// Without the sink, programs on the announcing node would answer, because the node has the
/// Service's address. kube-proxy does not redirect the traffic of a Service without endpoints. Its
/// filter rules would not refuse the traffic either, because kube-vip admits the Service's ports in
/// an earlier chain.
///
/// The sink is serving and terminating. kube-proxy sends traffic to such an endpoint if no endpoint
/// is ready (KEP-1669). Other programs do not count it as ready.
pub fn sink_endpoint(name: &str, family: AddressFamily, at: Option<&AnnouncingNode>) -> VmEndpoint {
    let of_node = at.and_then(|node| {
        let address =
            node.addresses.iter().find(|address| AddressFamily::of(**address) == family)?;
        Some((*address, node.name.clone()))
    });
    let (address, node) = of_node.unwrap_or_else(|| match family {
        AddressFamily::V4 => (IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), Arc::default()),
        AddressFamily::V6 => {
            (IpAddr::V6(Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 1)), Arc::default())
        }
    });
    VmEndpoint {
        address,
        name: name.into(),
        uid: SINK_UID.into(),
        node,
        serving: true,
        terminating: true,
    }
}

/// Ports of a slice with these endpoints. `ports` are the ports of the VMs. If the sink is among
/// the endpoints, each port gets the number [`SINK_PORT`].
pub fn ports_of(
    endpoints: &[impl Borrow<VmEndpoint>],
    ports: &[EndpointPort],
) -> Vec<EndpointPort> {
    if endpoints.iter().any(|endpoint| endpoint.borrow().is_sink()) {
        ports.iter().map(|port| EndpointPort { port: SINK_PORT, ..port.clone() }).collect()
    } else {
        ports.to_vec()
    }
}

impl VmEndpoint {
    /// Whether the endpoint is the sink, not a VM.
    pub fn is_sink(&self) -> bool {
        *self.uid == *SINK_UID
    }

    /// Whether kube-proxy may send traffic to the endpoint. kube-proxy uses the ready endpoints. If
    /// no endpoint is ready, kube-proxy uses the terminating endpoints that still serve (KEP-1669).
    fn takes_traffic(&self) -> bool {
        self.serving
    }
}

/// Map from the UID of each endpoint in the slices (a VM's UID, or [`SINK_UID`]) to the endpoint.
pub fn remembered<S: Borrow<StoredSlice>>(slices: &[S]) -> HashMap<&str, &VmEndpoint> {
    let endpoints = slices.iter().flat_map(|slice| &slice.borrow().endpoints);
    endpoints.map(|endpoint| (&*endpoint.uid, endpoint)).collect()
}

/// Writes of EndpointSlices that lead to the desired endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePlan {
    /// Writes, in the order in which they must be done.
    pub writes: Vec<SliceWrite>,
    /// Whether the slices have all desired endpoints, and no others, after these writes. `false`:
    /// after the writes, the caller must plan again from the stored slices.
    pub complete: bool,
}

/// Plans the next writes of a Service's slices. `service`: name of the Service, from which slices
/// get their names. `family`: address family of the Service. `ports`: ports of the VMs. `stored`:
/// slices that exist now. `desired`: VMs that must be in the slices. `announcing`: node that
/// announces the Service, if known.
pub fn plan<S: Borrow<StoredSlice>>(
    service: &str,
    family: AddressFamily,
    ports: &[EndpointPort],
    stored: &[S],
    desired: &[VmEndpoint],
    announcing: Option<&AnnouncingNode>,
) -> SlicePlan {
    let is_served = desired.iter().any(VmEndpoint::takes_traffic);
    let sink = (!is_served).then(|| sink_endpoint(service, family, announcing));
    let (ours, odd): (Vec<&StoredSlice>, Vec<&StoredSlice>) =
        stored.iter().map(Borrow::borrow).partition(|slice| slice.family == Some(family));
    let packed = pack(service, family, &ours, &odd, desired.iter().chain(&sink));
    let mut unchanged = None;
    let mut writes = Vec::new();
    let may_go = |slice: &&StoredSlice| !slice.holds_settings;
    let mut deletes: Vec<SliceWrite> = odd.into_iter().filter(may_go).map(delete).collect();
    for (name, endpoints) in packed {
        match ours.iter().find(|slice| slice.name == name) {
            Some(slice) if endpoints.is_empty() && may_go(slice) => deletes.push(delete(slice)),
            Some(slice)
                if slice.sound
                    && slice.endpoints.iter().eq(endpoints.iter().copied())
                    && slice.ports == ports_of(&endpoints, ports) =>
            {
                unchanged = Some(slice);
            }
            Some(slice) => {
                let version = slice.version.clone();
                writes.push(SliceWrite::Update { name, version, endpoints: owned(endpoints) });
            }
            None => writes.push(SliceWrite::Create { name, endpoints: owned(endpoints) }),
        }
    }
    in_order(&ours, deletes, writes, unchanged.copied())
}

fn owned(endpoints: Vec<&VmEndpoint>) -> Vec<VmEndpoint> {
    endpoints.into_iter().cloned().collect()
}

/// Orders the writes so that at least one endpoint takes traffic at every moment:
///
/// 1. Writes that give a slice more endpoints that take traffic, and do not remove the sink
/// 2. Deletions
/// 3. Other writes that do not remove the sink
/// 4. Writes that remove the sink
///
/// A deletion is never the last write, because kube-vip up to 1.2.3 treats the last event about any
/// slice as the state of all slices. So if the plan has deletions, but no write in groups 3 and 4,
/// the first case that applies decides which write follows the deletions:
///
/// * The slice `unchanged` is given: an update of this slice with its present content.
/// * Group 1 has several writes: the last of them.
/// * Group 1 has one write, to a slice that takes traffic already: this write.
/// * All other cases: none. The plan leaves out the deletions, and is not complete.
fn in_order(
    stored: &[&StoredSlice],
    deletes: Vec<SliceWrite>,
    mut writes: Vec<SliceWrite>,
    unchanged: Option<&StoredSlice>,
) -> SlicePlan {
    let takes = |endpoints: &[VmEndpoint]| endpoints.iter().filter(|e| e.takes_traffic()).count();
    let before = |name: &str| stored.iter().find(|slice| slice.name == *name);
    let rank = |write: &SliceWrite| {
        let (SliceWrite::Create { name, endpoints } | SliceWrite::Update { name, endpoints, .. }) =
            write
        else {
            return 0_i8;
        };
        let before = before(name);
        let loses_sink = before
            .is_some_and(|slice| slice.endpoints.iter().any(VmEndpoint::is_sink))
            && !endpoints.iter().any(VmEndpoint::is_sink);
        let gains = before.map_or(0, |slice| takes(&slice.endpoints)) < takes(endpoints);
        match (loses_sink, gains) {
            (false, true) => -1,
            (false, false) => 0,
            (true, _) => 1,
        }
    };
    writes.sort_by_key(rank);
    let gaining = writes.iter().take_while(|write| rank(write) < 0).count();
    let mut rest = writes.split_off(gaining);
    if rest.is_empty() && !deletes.is_empty() {
        if let Some(StoredSlice { name, version, endpoints, .. }) = unchanged.cloned() {
            rest.push(SliceWrite::Update { name, version, endpoints });
        } else {
            let took =
                |write: &SliceWrite| before(write.name()).is_some_and(|s| takes(&s.endpoints) > 0);
            if writes.len() < 2 && !writes.last().is_some_and(took) {
                // Only slices that must be deleted have endpoints that take traffic now. So this
                // plan deletes nothing, and the next plan deletes these slices.
                return SlicePlan { writes, complete: false };
            }
            rest.extend(writes.pop());
        }
    }
    SlicePlan { writes: writes.into_iter().chain(deletes).chain(rest).collect(), complete: true }
}

fn delete(slice: &StoredSlice) -> SliceWrite {
    SliceWrite::Delete { name: slice.name.clone(), version: slice.version.clone() }
}

/// Assigns endpoints to slices. Returns a map from the name of each slice to its endpoints. An
/// endpoint stays in its slice; a new endpoint goes into the first slice that has room. `odd`:
/// stored slices of another address family. The slices in `odd` get no endpoints, and no new slice
/// gets one of their names.
fn pack<'a>(
    service: &str,
    family: AddressFamily,
    stored: &[&StoredSlice],
    odd: &[&StoredSlice],
    desired: impl Iterator<Item = &'a VmEndpoint>,
) -> BTreeMap<String, Vec<&'a VmEndpoint>> {
    let mut wanted: HashMap<&str, &VmEndpoint> =
        desired.map(|endpoint| (&*endpoint.uid, endpoint)).collect();
    let mut packed: BTreeMap<String, Vec<&VmEndpoint>> = BTreeMap::new();
    for slice in stored {
        let kept = packed.entry(slice.name.clone()).or_default();
        for endpoint in &slice.endpoints {
            if kept.len() < MOST
                && let Some(endpoint) = wanted.remove(&*endpoint.uid)
            {
                kept.push(endpoint);
            }
        }
    }
    let mut names: Vec<String> = packed.keys().cloned().collect();
    names.sort_by_cached_key(|name| number(service, family, name));
    let is_new = |name: &String| stored.iter().chain(odd).all(|slice| slice.name != *name);
    let fresh = (1..).map(|n| slice_name(service, family, n)).filter(is_new);
    let mut rest: Vec<&VmEndpoint> = wanted.into_values().collect();
    // The endpoints are sorted by name, so that the order of events does not decide in which slice
    // a VM is.
    rest.sort_by(|a, b| (&a.name, &a.uid).cmp(&(&b.name, &b.uid)));
    let mut rest = rest.into_iter().peekable();
    for name in names.into_iter().chain(fresh) {
        if rest.peek().is_none() {
            break;
        }
        let slice = packed.entry(name).or_default();
        while slice.len() < MOST
            && let Some(endpoint) = rest.next()
        {
            slice.push(endpoint);
        }
    }
    for slice in packed.values_mut() {
        slice.sort_by(|a, b| (a.is_sink(), &a.name, &a.uid).cmp(&(b.is_sink(), &b.name, &b.uid)));
    }
    packed
}

/// Name of the Service's slice with this number. The slices of each address family are numbered
/// from 1. The first IPv4 slice has the Service's name. Every other name contains a dot, which the
/// name of a Service cannot contain. So a slice of another Service never has the same name.
fn slice_name(service: &str, family: AddressFamily, number: usize) -> String {
    match (family, number) {
        (AddressFamily::V4, 1) => service.to_owned(),
        (family, n) => format!("{service}.{}-{n}", family.name().to_lowercase()),
    }
}

fn number(service: &str, family: AddressFamily, name: &str) -> usize {
    if name == slice_name(service, family, 1) {
        return 1;
    }
    let prefix = format!("{service}.{}-", family.name().to_lowercase());
    name.strip_prefix(&prefix).and_then(|n| n.parse().ok()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
