//! LoadBalancer of type vm: the listeners and the selector of VMs in its spec.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use super::ports::{EndpointPort, ListenerPort, MOST_LISTENERS};
use crate::limits::text::cut;
use api::{LABEL_VM_NAME, LoadBalancer, LoadBalancerSpec, WorkloadType};

/// Maximum number of labels in `spec.backendServerSelector`.
pub const MOST_LABELS: usize = 16;
/// Maximum number of values in `spec.backendServerSelector`, counted over all labels together.
pub const MOST_VALUES: usize = 64;
/// Longest name of a label in `spec.backendServerSelector`, in bytes, with its prefix and the slash
/// (Kubernetes' own limit; labels are ASCII).
pub const LONGEST_LABEL: usize = 317;
/// Longest value of a label in `spec.backendServerSelector`, in bytes (Kubernetes' own limit).
pub const LONGEST_VALUE: usize = 63;

/// Selector of VMs: for each label of the map, the VM must have one of the label's values. An empty
/// selector selects nothing.
pub type VmSelector = BTreeMap<String, Vec<String>>;

/// Whether the LoadBalancer is of type vm, which is also the default.
pub fn is_vm(lb: &LoadBalancer) -> bool {
    lb.spec.workload_type.unwrap_or_default() == WorkloadType::Vm
}

/// Selector of the LoadBalancer's VMs. `None`: the LoadBalancer is not of type vm, or its selector
/// is missing, is empty or has a fault.
pub fn selector(lb: &LoadBalancer) -> Option<&VmSelector> {
    let selector = lb.spec.backend_server_selector.as_ref().filter(|_| is_vm(lb))?;
    Some(selector).filter(|all| !all.is_empty() && selector_fault(&lb.spec).is_none())
}

/// Text about the fault of `spec.backendServerSelector`: it names the field, the fault, and the
/// remedy or the effect. `None`: no fault. A selector with a fault selects no VM.
pub fn selector_fault(spec: &LoadBalancerSpec) -> Option<String> {
    const FIELD: &str = "spec.backendServerSelector";
    let selector = spec.backend_server_selector.as_ref()?;
    if selector.len() > MOST_LABELS {
        return Some(format!(
            "{FIELD}: more than {MOST_LABELS} labels: name {MOST_LABELS} at most"
        ));
    }
    if selector.values().map(Vec::len).sum::<usize>() > MOST_VALUES {
        return Some(format!(
            "{FIELD}: more than {MOST_VALUES} values in all: give the VMs a label of their own and select that"
        ));
    }
    let long_label = selector.keys().find(|label| label.len() > LONGEST_LABEL);
    let long_value = selector.values().flatten().find(|value| value.len() > LONGEST_VALUE);
    let (text, longest) = match (long_label, long_value) {
        (Some(label), _) => (label, LONGEST_LABEL),
        (None, Some(value)) => (value, LONGEST_VALUE),
        (None, None) => return None,
    };
    let shown = cut(text.clone(), 40);
    Some(format!("{FIELD}: {shown:?} is longer than {longest} characters: no VM can have it"))
}

/// Text with the reason why the selector selects fewer VMs than its author may expect: the selector
/// has a fault, or contains an address. `None`: there is no such reason.
pub fn selector_hint(spec: &LoadBalancerSpec) -> Option<String> {
    let address = || {
        let address = address_for_name(spec)?;
        Some(format!(
            "the selector names the address {address}, which selects no VM: use VM names or labels"
        ))
    };
    selector_fault(spec).or_else(address)
}

/// First address that the selector contains instead of a VM's name. `None`: the selector contains
/// no address. An address selects no VM. A selector can contain addresses if it was converted from
/// `backendServers` of v1alpha1, where addresses were valid.
pub fn address_for_name(spec: &LoadBalancerSpec) -> Option<&str> {
    let names = spec.backend_server_selector.as_ref()?.get(LABEL_VM_NAME)?;
    names.iter().map(String::as_str).find(|name| name.parse::<IpAddr>().is_ok())
}

/// Listeners in the order of the spec. The error names the field, the fault and a valid value. The
/// operator's CRD refuses v1beta1 specs with the same faults; Harvester's own CRD accepts them.
pub fn listeners(spec: &LoadBalancerSpec) -> Result<Vec<ListenerPort>, String> {
    if spec.listeners.is_empty() {
        return Err("spec.listeners: a load balancer of type vm needs at least one".to_owned());
    }
    if spec.listeners.len() > MOST_LISTENERS {
        return Err(format!(
            "spec.listeners: more than {MOST_LISTENERS}: use {MOST_LISTENERS} at most"
        ));
    }
    let mut listeners: Vec<ListenerPort> = Vec::new();
    let (mut names, mut ports) = (HashMap::new(), HashMap::new());
    for (index, given) in spec.listeners.iter().enumerate() {
        let at = format!("spec.listeners[{index}]");
        let port = |field: &str, value: i32| match u16::try_from(value) {
            Ok(port) if port > 0 => Ok(port),
            _ => Err(format!("{at}.{field}: {value} must be 1 to 65535")),
        };
        let listener = ListenerPort {
            name: given.name.clone(),
            protocol: given.protocol.clone(),
            port: port("port", given.port)?,
            // Go clients write 0 for a port that is not set.
            backend_port: port(
                "backendPort",
                given.backend_port.filter(|port| *port != 0).unwrap_or(given.port),
            )?,
        };
        let ListenerPort { name, protocol, port, .. } = &listener;
        if !matches!(protocol.as_str(), "TCP" | "UDP") {
            return Err(format!("{at}.protocol: {protocol:?} must be TCP or UDP"));
        }
        let may_be_unnamed = spec.listeners.len() == 1;
        if !is_label(name) && (!name.is_empty() || !may_be_unnamed) {
            return Err(format!(
                "{at}.name: {name:?} must be lower-case letters, digits and dashes, begin and end with a letter or digit, and be at most 63 long; only a single listener may have none"
            ));
        }
        if let Some(earlier) = names.insert(name.clone(), index) {
            return Err(format!(
                "{at}.name: {name:?} is the name of spec.listeners[{earlier}] as well: use another"
            ));
        }
        if let Some(earlier) = ports.insert((*port, protocol.clone()), index) {
            return Err(format!(
                "{at}.port: {protocol} {port} is the port of spec.listeners[{earlier}] as well: use another"
            ));
        }
        listeners.push(listener);
    }
    Ok(listeners)
}

/// Whether `text` is a label of a DNS name in lower case: at most 63 letters, digits and inner
/// dashes.
pub(super) fn is_label(text: &str) -> bool {
    let is_edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.len() <= 63
        && text.chars().all(|c| is_edge(c) || c == '-')
        && text.starts_with(is_edge)
        && text.ends_with(is_edge)
}

/// Text with the fault of the LoadBalancer's name. The Service has the same name, which must be an
/// RFC 1035 label. `None`: no fault.
pub fn name_fault(name: &str) -> Option<String> {
    let fits = is_label(name) && name.starts_with(|c: char| c.is_ascii_lowercase());
    (!fits).then(|| {
        format!(
            "metadata.name: no Service can be named {name:?}: create the LoadBalancer again under a name of at most 63 lower-case letters, digits and dashes that begins with a letter"
        )
    })
}

/// Ports of the endpoints behind these listeners, sorted.
pub fn ports(listeners: &[ListenerPort]) -> Vec<EndpointPort> {
    let mut ports: Vec<EndpointPort> = listeners
        .iter()
        .map(|listener| EndpointPort {
            name: listener.name.clone(),
            protocol: listener.protocol.clone(),
            port: listener.backend_port,
        })
        .collect();
    ports.sort();
    ports
}

#[cfg(test)]
mod tests;
