//! Reads from stored Services and EndpointSlices the facts that decisions use.

use k8s_openapi::api::core::v1::{LoadBalancerIngress, Service, ServicePort};
use k8s_openapi::api::discovery::v1::{
    Endpoint as FullEndpoint, EndpointPort as FullPort, EndpointSlice,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::super::endpoint_slices::StoredSlice;
use super::super::endpoints::{AddressFamily, VmEndpoint};
use super::super::ports::{EndpointPort, MOST_LISTENERS};
use super::settings::SETTINGS;
use super::{
    ANNOUNCING_NODE, ASKED_ADDRESS, ASKED_INTERFACE, ASKED_VLAN, HELD_UNTIL, MADE_WITH_POLICY,
    MADE_WITH_PORTS, NOT_ANNOUNCED, OwnerRef, StoredPort, StoredService,
};
use crate::limits::text::{LONGEST_WORD, cut, within};
use api::{
    ANNOTATION_NETWORK, GROUP, KUBE_VIP_BROADCAST, KUBE_VIP_HOSTNAME, KUBE_VIP_HWADDR,
    KUBE_VIP_REQUESTED_IP, LABEL_SERVICE_LB, LABEL_SERVICE_NAME, LABEL_SLICE_MANAGER, MANAGER,
};

/// Names of the Service's annotations that decisions use. Other annotations are not read.
const ANNOTATIONS: [&str; 12] = [
    HELD_UNTIL,
    ANNOUNCING_NODE,
    ASKED_ADDRESS,
    ASKED_INTERFACE,
    ASKED_VLAN,
    ANNOTATION_NETWORK,
    MADE_WITH_POLICY,
    MADE_WITH_PORTS,
    KUBE_VIP_BROADCAST,
    KUBE_VIP_HOSTNAME,
    KUBE_VIP_HWADDR,
    KUBE_VIP_REQUESTED_IP,
];
/// Longest text of an annotation in `ANNOTATIONS`, in bytes. A longer text is cut. In
/// [`MADE_WITH_PORTS`], the ports of `MOST_LISTENERS` listeners always fit.
const LONGEST_ANNOTATION: usize = 4096;
/// Largest number of addresses that are read from a Service's status.
const MOST_INGRESS: usize = 16;
/// Largest number of owners of kind LoadBalancer that are read from an object.
const MOST_OWNERS: usize = 4;
/// Largest number of endpoints that are read from a slice. The API server stores no more. This
/// operator writes fewer. Harvester's Go controller writes all VMs of a LoadBalancer into one
/// slice, and the operator reads the last known address and health of each of these VMs.
const MOST_ENDPOINTS: usize = 1000;
/// Largest total size, in bytes, of the names, UIDs and nodes that are read from a slice's
/// endpoints. In a slice that this operator writes, the size is smaller.
const MOST_ENDPOINT_TEXT: usize = 128 * 1024;

/// Returns the `namespace/name` of the LoadBalancer that owns an object, and the object's reference
/// to this LoadBalancer. `None`: no LoadBalancer owns the object. No LoadBalancer has a name or UID
/// of more than [`LONGEST_WORD`] bytes, so a reference with such a name or UID does not count.
pub fn owner(meta: &ObjectMeta) -> Option<(String, &OwnerReference)> {
    let owned_by = meta.owner_references.as_deref().unwrap_or_default();
    let is_lb = |o: &OwnerReference| o.kind == "LoadBalancer" && o.api_version.starts_with(GROUP);
    let may_exist =
        |o: &OwnerReference| [&o.name, &o.uid].iter().all(|text| text.len() <= LONGEST_WORD);
    let owner = owned_by.iter().find(|o| is_lb(o) && may_exist(o))?;
    Some((qualified(meta, &owner.name), owner))
}

/// Text `namespace/name` for an object with this `name` in the namespace of `meta`.
pub fn qualified(meta: &ObjectMeta, name: &str) -> String {
    format!("{}/{name}", meta.namespace.as_deref().unwrap_or_default())
}

/// Owners that decisions and messages about an object use: at most `MOST_OWNERS` owners of kind
/// LoadBalancer, and then the first owner of another kind. Each text is cut at [`LONGEST_WORD`].
pub fn owners(meta: &ObjectMeta) -> Vec<OwnerRef> {
    let list = meta.owner_references.as_deref().unwrap_or_default();
    let word = |text: &str| cut(text.to_owned(), LONGEST_WORD);
    let read = |o: &OwnerReference| OwnerRef {
        kind: word(&o.kind),
        name: word(&o.name),
        uid: word(&o.uid),
    };
    // Decisions depend only on owners of kind LoadBalancer. Of the other owners, only the first is
    // kept, because messages name it.
    let lbs = list.iter().filter(|o| o.kind == "LoadBalancer").take(MOST_OWNERS);
    let others = list.iter().filter(|o| o.kind != "LoadBalancer").take(1);
    lbs.chain(others).map(read).collect()
}

/// Reads from a Service the facts that decisions use. If no LoadBalancer owns the Service, its
/// annotations, its ports and the addresses in its status are left out.
pub fn read_service(service: &Service) -> StoredService {
    let spec = service.spec.clone().unwrap_or_default();
    let owners = owners(&service.metadata);
    let ours = owner(&service.metadata).is_some();
    let is_kept = |key: &&String| ours && ANNOTATIONS.contains(&key.as_str());
    let port = |port: ServicePort| StoredPort {
        name: port.name.unwrap_or_default(),
        protocol: port.protocol.unwrap_or_else(|| "TCP".to_owned()),
        port: port.port,
        target: match port.target_port {
            Some(IntOrString::Int(target)) => port_number(target),
            Some(IntOrString::String(_)) => None,
            None => port_number(port.port),
        },
        node_port: port.node_port.unwrap_or(0),
    };
    let ingress = service.status.as_ref().and_then(|s| s.load_balancer.as_ref());
    let ingress = ingress.and_then(|l| l.ingress.as_deref()).filter(|_| ours).unwrap_or_default();
    let ports = spec.ports.filter(|_| ours).unwrap_or_default();
    StoredService {
        uid: service.metadata.uid.clone().unwrap_or_default(),
        version: service.metadata.resource_version.clone().unwrap_or_default(),
        owners,
        deleting: service.metadata.deletion_timestamp.is_some(),
        finalizer: service
            .metadata
            .finalizers
            .as_ref()
            .and_then(|all| all.first())
            .map(|finalizer| cut(finalizer.clone(), LONGEST_WORD)),
        labelled: label(&service.metadata, LABEL_SERVICE_LB, "true"),
        annotations: annotations(&service.metadata)
            .filter(|(key, _)| is_kept(key))
            .map(|(key, value)| (key.clone(), cut(value.clone(), LONGEST_ANNOTATION)))
            .collect(),
        type_: spec.type_.unwrap_or_default(),
        has_selector: spec.selector.is_some_and(|selector| !selector.is_empty()),
        load_balancer_ip: cut(spec.load_balancer_ip.unwrap_or_default(), LONGEST_WORD),
        policy: spec.external_traffic_policy.unwrap_or_default(),
        source_range: spec
            .load_balancer_source_ranges
            .and_then(|all| all.into_iter().next())
            .map(|range| cut(range, LONGEST_WORD)),
        family: spec.ip_families.and_then(|all| family(all.first()?)),
        ports: ports.into_iter().take(MOST_LISTENERS + 1).map(port).collect(),
        ingress: ingress
            .iter()
            .filter(|ingress| is_announced(ingress))
            .filter_map(|ingress| ingress.ip.clone())
            .take(MOST_INGRESS)
            .collect(),
    }
}

/// Address family with this name. `None`: no family has the name.
fn family(name: &str) -> Option<AddressFamily> {
    [AddressFamily::V4, AddressFamily::V6].into_iter().find(|family| family.name() == name)
}

/// Converts the number of a port. `None`: the number is not 1 to 65535.
fn port_number(number: i32) -> Option<u16> {
    u16::try_from(number).ok().filter(|number| *number != 0)
}

/// Whether an announcer wrote this entry of the status. `false`: this operator wrote it.
fn is_announced(ingress: &LoadBalancerIngress) -> bool {
    let mut ports = ingress.ports.iter().flatten();
    !ports.any(|port| port.error.as_deref() == Some(NOT_ANNOUNCED))
}

/// Reads an EndpointSlice. Returns `namespace/name` of the LoadBalancer that owns the slice, and
/// the slice's content. `None`: no LoadBalancer owns the slice. If ports or endpoints were left out
/// of the content, [`StoredSlice::sound`] is `false`.
pub fn read_slice(slice: &EndpointSlice) -> Option<(String, StoredSlice)> {
    let (lb, owner) = owner(&slice.metadata)?;
    let label = |key: &str, value: &str| label(&slice.metadata, key, value);
    let stored_ports = slice.ports.as_deref().unwrap_or_default();
    let mut ports: Vec<EndpointPort> =
        stored_ports.iter().take(MOST_LISTENERS + 1).map(port).collect();
    ports.sort();
    let stored = slice.endpoints.as_deref().unwrap_or_default();
    let endpoints = endpoints(stored);
    let whole = (stored_ports.len(), stored.len()) == (ports.len(), endpoints.len())
        && stored.iter().all(is_plain);
    let seen = StoredSlice {
        name: slice.metadata.name.clone().unwrap_or_default(),
        version: slice.metadata.resource_version.clone().unwrap_or_default(),
        owner: owner.uid.clone(),
        family: family(&slice.address_type),
        ports,
        endpoints,
        sound: whole
            && label(LABEL_SERVICE_NAME, &owner.name)
            && label(LABEL_SERVICE_LB, "true")
            && label(LABEL_SLICE_MANAGER, MANAGER),
        holds_settings: annotations(&slice.metadata).any(|(key, _)| key == SETTINGS),
    };
    Some((lb, seen))
}

fn port(port: &FullPort) -> EndpointPort {
    let word = |text: &Option<String>| cut(text.clone().unwrap_or_default(), LONGEST_WORD);
    EndpointPort {
        name: word(&port.name),
        protocol: word(&port.protocol),
        port: port.port.and_then(|port| u16::try_from(port).ok()).unwrap_or(0),
    }
}

/// First endpoints of a slice, without those that [`endpoint`] cannot read. At most
/// [`MOST_ENDPOINTS`] endpoints are read. The names, UIDs and nodes of the result have at most
/// [`MOST_ENDPOINT_TEXT`] bytes in all.
fn endpoints(stored: &[FullEndpoint]) -> Vec<VmEndpoint> {
    let mut room = MOST_ENDPOINT_TEXT;
    let has_room = |endpoint: &VmEndpoint| {
        let VmEndpoint { name, uid, node, .. } = endpoint;
        let left = room.checked_sub(name.len() + uid.len() + node.len());
        room = left.unwrap_or(0);
        left.is_some()
    };
    stored.iter().take(MOST_ENDPOINTS).filter_map(endpoint).take_while(has_room).collect()
}

/// Reads an endpoint. `None`: the address is missing or not valid, the VM's name or UID is missing,
/// or the name, the UID or the node is longer than [`LONGEST_WORD`] bytes.
fn endpoint(endpoint: &FullEndpoint) -> Option<VmEndpoint> {
    let target = endpoint.target_ref.as_ref()?;
    let conditions = endpoint.conditions.as_ref();
    let ready = conditions.and_then(|c| c.ready).unwrap_or(true);
    Some(VmEndpoint {
        address: endpoint.addresses.first()?.parse().ok()?,
        name: within(target.name.as_deref()?, LONGEST_WORD)?.into(),
        uid: within(target.uid.as_deref()?, LONGEST_WORD)?.into(),
        node: within(endpoint.node_name.as_deref().unwrap_or_default(), LONGEST_WORD)?.into(),
        // Harvester's Go controller writes only the condition `ready`, so `ready` stands for a
        // missing `serving`.
        serving: conditions.and_then(|c| c.serving).unwrap_or(ready),
        terminating: conditions.and_then(|c| c.terminating).unwrap_or(false),
    })
}

/// Whether an endpoint has only fields and values that this operator would write.
fn is_plain(endpoint: &FullEndpoint) -> bool {
    let consistent = endpoint.conditions.as_ref().is_some_and(|conditions| {
        match (conditions.ready, conditions.serving, conditions.terminating) {
            (Some(ready), Some(serving), Some(terminating)) => ready == (serving && !terminating),
            _ => false,
        }
    });
    consistent
        && endpoint.addresses.len() == 1
        && endpoint.hints.is_none()
        && endpoint.hostname.is_none()
        && endpoint.zone.is_none()
}

fn annotations(meta: &ObjectMeta) -> impl Iterator<Item = (&String, &String)> {
    meta.annotations.iter().flatten()
}

fn label(meta: &ObjectMeta, key: &str, value: &str) -> bool {
    meta.labels.as_ref().and_then(|labels| labels.get(key)).is_some_and(|stored| stored == value)
}
