//! How endpoints are spread over EndpointSlices, and which writes make the stored slices so.
//!
//! Invariants: an endpoint stays in the slice that has it, so that a change of one VM writes one
//! slice; a slice holds at most [`MOST`] endpoints; there is always an endpoint that takes
//! traffic, the [`sink`] if no VM can; while writes are under way too. A slice with the sink leads
//! to [`SINK_PORT`] and to no listener's port: the two change in one write.

mod body;

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use super::endpoints::{Endpoint, Family};
pub use body::{Body, create, patch};

/// Endpoints in a slice, as many as Kubernetes' own controller puts into one.
pub const MOST: usize = 100;

/// The sink's UID: the one by which the Go controller knows its own, so that it takes the sink
/// away again if it is put back in charge.
pub const SINK_UID: &str = "dummy347-546a-4642-9da6-5608endpoint";

/// Port of the sink: discard (RFC 863). Nothing listens there on a node, and what did would not
/// answer.
pub const SINK_PORT: u16 = 9;

/// The node that announces a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnouncingNode {
    /// Its name.
    pub name: Arc<str>,
    /// Its own addresses.
    pub addresses: Vec<IpAddr>,
}

/// A port of every endpoint in a slice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    /// The listener's name.
    pub name: String,
    /// TCP or UDP.
    pub protocol: String,
    /// The VMs' port.
    pub port: u16,
}

/// An EndpointSlice of a LoadBalancer, as stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// Its name.
    pub name: String,
    /// `metadata.resourceVersion`.
    pub version: String,
    /// `addressType`; `None` for one that this operator does not write.
    pub family: Option<Family>,
    /// Its ports, sorted.
    pub ports: Vec<Port>,
    /// Its endpoints.
    pub endpoints: Vec<Endpoint>,
    /// Labels, owner and fields are as this operator writes them, and nothing else is in it.
    pub sound: bool,
    /// Whether it carries the settings of a Service that is to be made again, and so stays until then.
    pub holds_settings: bool,
}

impl Slice {
    /// The same slice in a later version, with or without the settings of a Service.
    #[must_use]
    pub fn annotated(&self, version: String, holds_settings: bool) -> Self {
        Self { version, holds_settings, ..self.clone() }
    }
}

/// A write of one slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// There is none of the name.
    Create {
        /// Its name.
        name: String,
        /// Its endpoints.
        endpoints: Vec<Endpoint>,
    },
    /// Replaces endpoints and ports, and whatever is not sound.
    Update {
        /// Its name.
        name: String,
        /// The version that this rests on.
        version: String,
        /// Its endpoints.
        endpoints: Vec<Endpoint>,
    },
    /// It is empty or not of this Service's family.
    Delete {
        /// Its name.
        name: String,
        /// The version that this rests on.
        version: String,
    },
}

impl Write {
    /// The slice's name.
    pub fn name(&self) -> &str {
        match self {
            Self::Create { name, .. } | Self::Update { name, .. } | Self::Delete { name, .. } => {
                name
            }
        }
    }

    /// The endpoints that it leaves in the slice.
    pub fn endpoints(&self) -> &[Endpoint] {
        match self {
            Self::Create { endpoints, .. } | Self::Update { endpoints, .. } => endpoints,
            Self::Delete { .. } => &[],
        }
    }
}

/// An endpoint that takes traffic and never answers: a closed port of the node that announces, which
/// refuses at once, or, where that is not known, an address that is reserved for nothing (RFC 5737,
/// RFC 6666).
///
/// A Service without one is not served by kube-proxy, and its address is a node's own: what
/// listens on the node would answer instead. kube-proxy refuses such traffic in one of its filter
/// chains, but kube-vip admits the Service's ports in an earlier one. Traffic for the sink is
/// led away before either. It is said to terminate, since kube-proxy sends traffic there all the
/// same, and nothing else takes it for a ready one.
pub fn sink(name: &str, family: Family, at: Option<&AnnouncingNode>) -> Endpoint {
    let of_node = at.and_then(|node| {
        let address = node.addresses.iter().find(|address| Family::of(**address) == family)?;
        Some((*address, node.name.clone()))
    });
    let (address, node) = of_node.unwrap_or_else(|| match family {
        Family::V4 => (IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), Arc::default()),
        Family::V6 => (IpAddr::V6(Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 1)), Arc::default()),
    });
    Endpoint {
        address,
        name: name.into(),
        uid: SINK_UID.into(),
        node,
        serving: true,
        terminating: true,
    }
}

/// The ports of a slice that holds these endpoints. `ports` are those of the VMs.
pub fn ports_of(endpoints: &[impl Borrow<Endpoint>], ports: &[Port]) -> Vec<Port> {
    if endpoints.iter().any(|endpoint| endpoint.borrow().is_sink()) {
        ports.iter().map(|port| Port { port: SINK_PORT, ..port.clone() }).collect()
    } else {
        ports.to_vec()
    }
}

impl Endpoint {
    /// Whether it is no VM.
    pub fn is_sink(&self) -> bool {
        *self.uid == *SINK_UID
    }

    /// Whether kube-proxy sends traffic there if it has no better: endpoints that are ready,
    /// else those that still serve while they terminate (KEP-1669).
    fn takes_traffic(&self) -> bool {
        self.serving
    }
}

/// What is known of each VM's endpoint from the slices.
pub fn remembered<S: Borrow<Slice>>(slices: &[S]) -> HashMap<&str, &Endpoint> {
    let endpoints = slices.iter().flat_map(|slice| &slice.borrow().endpoints);
    endpoints.map(|endpoint| (&*endpoint.uid, endpoint)).collect()
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// In the order in which they must be done.
    pub writes: Vec<Write>,
    /// Whether nothing is left when they are done. Otherwise what is stored then is planned anew.
    pub complete: bool,
}

/// The writes that are next. `service` is the Service's name; the first slice has the same.
/// `announcing` is the node that announces it, if known.
pub fn plan<S: Borrow<Slice>>(
    service: &str,
    family: Family,
    ports: &[Port],
    stored: &[S],
    desired: &[Endpoint],
    announcing: Option<&AnnouncingNode>,
) -> Plan {
    let is_served = desired.iter().any(Endpoint::takes_traffic);
    let sink = (!is_served).then(|| sink(service, family, announcing));
    let (ours, odd): (Vec<&Slice>, Vec<&Slice>) =
        stored.iter().map(Borrow::borrow).partition(|slice| slice.family == Some(family));
    let packed = pack(service, family, &ours, &odd, desired.iter().chain(&sink));
    let mut unchanged = None;
    let mut writes = Vec::new();
    let may_go = |slice: &&Slice| !slice.holds_settings;
    let mut deletes: Vec<Write> = odd.into_iter().filter(may_go).map(delete).collect();
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
                writes.push(Write::Update { name, version, endpoints: owned(endpoints) });
            }
            None => writes.push(Write::Create { name, endpoints: owned(endpoints) }),
        }
    }
    in_order(&ours, deletes, writes, unchanged.copied())
}

fn owned(endpoints: Vec<&Endpoint>) -> Vec<Endpoint> {
    endpoints.into_iter().cloned().collect()
}

/// Writes that add an endpoint that takes traffic come first, those that take the sink away last:
/// at no moment is there none. In between the deletions come, and never last: kube-vip up to 1.2.3
/// takes the last event about any slice for all of them.
fn in_order(
    stored: &[&Slice],
    deletes: Vec<Write>,
    mut writes: Vec<Write>,
    unchanged: Option<&Slice>,
) -> Plan {
    let takes = |endpoints: &[Endpoint]| endpoints.iter().filter(|e| e.takes_traffic()).count();
    let before = |name: &str| stored.iter().find(|slice| slice.name == *name);
    let rank = |write: &Write| {
        let (Write::Create { name, endpoints } | Write::Update { name, endpoints, .. }) = write
        else {
            return 0_i8;
        };
        let before = before(name);
        let loses_sink = before.is_some_and(|slice| slice.endpoints.iter().any(Endpoint::is_sink))
            && !endpoints.iter().any(Endpoint::is_sink);
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
        if let Some(Slice { name, version, endpoints, .. }) = unchanged.cloned() {
            rest.push(Write::Update { name, version, endpoints });
        } else {
            let took =
                |write: &Write| before(write.name()).is_some_and(|s| takes(&s.endpoints) > 0);
            if writes.len() < 2 && !writes.last().is_some_and(took) {
                // All traffic is for what is to be deleted. That is next.
                return Plan { writes, complete: false };
            }
            rest.extend(writes.pop());
        }
    }
    Plan { writes: writes.into_iter().chain(deletes).chain(rest).collect(), complete: true }
}

fn delete(slice: &Slice) -> Write {
    Write::Delete { name: slice.name.clone(), version: slice.version.clone() }
}

/// Each endpoint where it is already, new ones where there is room, first slice first. `odd` slices
/// are not used, and neither are their names.
fn pack<'a>(
    service: &str,
    family: Family,
    stored: &[&Slice],
    odd: &[&Slice],
    desired: impl Iterator<Item = &'a Endpoint>,
) -> BTreeMap<String, Vec<&'a Endpoint>> {
    let mut wanted: HashMap<&str, &Endpoint> =
        desired.map(|endpoint| (&*endpoint.uid, endpoint)).collect();
    let mut packed: BTreeMap<String, Vec<&Endpoint>> = BTreeMap::new();
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
    let mut order: BTreeSet<(usize, String)> =
        packed.keys().map(|name| (number(service, family, name), name.clone())).collect();
    let mut fresh = (1..)
        .map(|n| (n, slice_name(service, family, n)))
        .filter(|(_, name)| odd.iter().all(|slice| slice.name != *name));
    let mut rest: Vec<&Endpoint> = wanted.into_values().collect();
    // By name, so that the same VMs end in the same slices whatever the order of events.
    rest.sort_by(|a, b| (&a.name, &a.uid).cmp(&(&b.name, &b.uid)));
    let mut rest = rest.into_iter().peekable();
    while rest.peek().is_some() {
        let Some((_, name)) = order.pop_first() else {
            let Some(new) = fresh.find(|(_, name)| !packed.contains_key(name)) else { break };
            packed.insert(new.1.clone(), Vec::new());
            order.insert(new);
            continue;
        };
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

/// The first IPv4 slice is named as the Service, as it always was. The others hold a dot, which
/// no Service's name can, so they are never another's first slice.
fn slice_name(service: &str, family: Family, number: usize) -> String {
    match (family, number) {
        (Family::V4, 1) => service.to_owned(),
        (family, n) => format!("{service}.{}-{n}", family.name().to_lowercase()),
    }
}

fn number(service: &str, family: Family, name: &str) -> usize {
    if name == slice_name(service, family, 1) {
        return 1;
    }
    let prefix = format!("{service}.{}-", family.name().to_lowercase());
    name.strip_prefix(&prefix).and_then(|n| n.parse().ok()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
