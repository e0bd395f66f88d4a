//! LoadBalancer of type vm: the listeners and the selector of VMs in its spec, and the condition
//! `Ready` that follows from the state of its VMs and its Service.

mod fault;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::backend_address::AddressFault;
use super::endpoints::{VmBackend, VmEndpoint};
use super::ports::{EndpointPort, ListenerPort, MOST_LISTENERS};
use super::selector_index::VmSelector;
use super::service::SettingMisfit;
use crate::limits::text::cut;
use crate::reason;
use api::{ConditionStatus, LABEL_VM_NAME, LoadBalancer, LoadBalancerSpec, WorkloadType};
pub use fault::ListenerFault;

/// Maximum number of labels in `spec.backendServerSelector`.
pub const MOST_LABELS: usize = 16;
/// Maximum number of values in `spec.backendServerSelector`, counted over all labels together.
pub const MOST_VALUES: usize = 64;
/// Longest name of a label in `spec.backendServerSelector`, in characters, with its prefix and the
/// slash (Kubernetes' own limit).
pub const LONGEST_LABEL: usize = 317;
/// Longest value of a label in `spec.backendServerSelector`, in characters (Kubernetes' own limit).
pub const LONGEST_VALUE: usize = 63;

/// Whether the LoadBalancer is of type vm, which is also the default.
pub fn is_vm(lb: &LoadBalancer) -> bool {
    lb.spec.workload_type.unwrap_or_default() == WorkloadType::Vm
}

/// Selector of the LoadBalancer's VMs. `None`: the LoadBalancer is not of type vm, or its selector
/// is empty or has a fault.
pub fn selector(lb: &LoadBalancer) -> Option<&VmSelector> {
    let selector = lb.spec.backend_server_selector.as_ref().filter(|_| is_vm(lb))?;
    Some(selector).filter(|all| !all.is_empty() && selector_fault(&lb.spec).is_none())
}

/// Text with the field, the fault and the remedy, if `spec.backendServerSelector` has a fault.
/// `None`: no fault. A selector with a fault selects no VM.
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
/// no address. An address selects no VM. Some selectors contain addresses, because `backendServers`
/// of v1alpha1 could contain addresses.
pub fn address_for_name(spec: &LoadBalancerSpec) -> Option<&str> {
    let names = spec.backend_server_selector.as_ref()?.get(LABEL_VM_NAME)?;
    names.iter().map(String::as_str).find(|name| name.parse::<IpAddr>().is_ok())
}

/// Listeners of the spec, in its order. The error names the field, the fault and a valid value. The
/// operator's CRD refuses specs with the same faults; Harvester's own CRD accepts them.
pub fn listeners(spec: &LoadBalancerSpec) -> Result<Vec<ListenerPort>, ListenerFault> {
    if spec.listeners.is_empty() {
        return Err(ListenerFault::Missing);
    }
    if spec.listeners.len() > MOST_LISTENERS {
        return Err(ListenerFault::TooMany);
    }
    let mut listeners: Vec<ListenerPort> = Vec::new();
    let (mut names, mut ports) = (HashMap::new(), HashMap::new());
    for (index, given) in spec.listeners.iter().enumerate() {
        let port = |field: &'static str, value: i32| match u16::try_from(value) {
            Ok(port) if port > 0 => Ok(port),
            _ => Err(ListenerFault::NoPort { index, field, value }),
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
            return Err(ListenerFault::NoProtocol { index, protocol: protocol.clone() });
        }
        if !is_port_name(name, spec.listeners.len()) {
            return Err(ListenerFault::NoName { index, name: name.clone() });
        }
        if let Some(earlier) = names.insert(name.clone(), index) {
            return Err(ListenerFault::SameName { index, name: name.clone(), earlier });
        }
        if let Some(earlier) = ports.insert((*port, protocol.clone()), index) {
            let (protocol, port) = (protocol.clone(), *port);
            return Err(ListenerFault::SamePort { index, protocol, port, earlier });
        }
        listeners.push(listener);
    }
    Ok(listeners)
}

fn is_port_name(name: &str, listeners: usize) -> bool {
    let is_edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let fits = name.len() <= 63
        && name.chars().all(|c| is_edge(c) || c == '-')
        && name.starts_with(is_edge)
        && name.ends_with(is_edge);
    fits || (name.is_empty() && listeners == 1)
}

/// Text with the fault of the LoadBalancer's name. The Service has the same name, which must be an
/// RFC 1035 label. `None`: no fault.
pub fn name_fault(name: &str) -> Option<String> {
    let fits = is_port_name(name, 0) && name.starts_with(|c: char| c.is_ascii_lowercase());
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

/// Running VMs that a LoadBalancer selects, counted or listed by state. A VM may be in several of
/// the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendCounts {
    /// VMs that are endpoints. The list includes VMs that fail their health check, with `serving`
    /// false.
    pub endpoints: Vec<VmEndpoint>,
    /// Number of running VMs without a suitable address. The VMs in `refused` are included.
    pub without_address: usize,
    /// Running VMs that report only addresses that they may not have: the name of each VM, its
    /// first such address, and the reason. The list is sorted by name.
    pub refused: Vec<(Arc<str>, IpAddr, AddressFault)>,
    /// Number of VMs that fail their health check, and would otherwise be ready.
    pub unhealthy: usize,
    /// Names of the VMs whose endpoint has the last known address, because their guest agents
    /// report no address now. The list is sorted.
    pub last_known: Vec<Arc<str>>,
}

impl BackendCounts {
    /// Groups `backends` by their states. VMs that do not run are left out. `healthy` returns
    /// whether an endpoint passes its health check.
    pub fn new(
        backends: impl IntoIterator<Item = VmBackend>,
        healthy: impl Fn(&VmEndpoint) -> bool,
    ) -> Self {
        let mut found = Self::default();
        for backend in backends {
            match backend {
                VmBackend::NotRunning => {}
                VmBackend::NoAddress => found.without_address += 1,
                VmBackend::Refused { name, address, fault } => {
                    found.without_address += 1;
                    found.refused.push((name, address, fault));
                }
                VmBackend::Endpoint { mut endpoint, last_known } => {
                    if last_known {
                        found.last_known.push(endpoint.name.clone());
                    }
                    if endpoint.serving && !healthy(&endpoint) {
                        endpoint.serving = false;
                        found.unhealthy += usize::from(!endpoint.terminating);
                    }
                    found.endpoints.push(endpoint);
                }
            }
        }
        found.endpoints.sort_by(|a, b| (&a.name, &a.uid).cmp(&(&b.name, &b.uid)));
        found.last_known.sort();
        found.refused.sort_by(|a, b| a.0.cmp(&b.0));
        found
    }

    /// Number of endpoints that serve and are not terminating.
    pub fn ready(&self) -> usize {
        self.endpoints.iter().filter(|endpoint| endpoint.ready()).count()
    }

    /// Number of endpoints that are not terminating, plus the number of VMs without a suitable
    /// address.
    pub fn total(&self) -> usize {
        self.endpoints.iter().filter(|endpoint| !endpoint.terminating).count()
            + self.without_address
    }

    /// Text with the first five VMs in `refused`, each with its address and the reason, and the
    /// number of the others. `None`: no VM is refused.
    fn refusal(&self) -> Option<String> {
        let describe = |(name, address, fault): &(Arc<str>, IpAddr, AddressFault)| -> Arc<str> {
            format!("{name} reports {address}, which is {fault}").into()
        };
        let texts: Vec<Arc<str>> = self.refused.iter().map(describe).collect();
        (!texts.is_empty()).then(|| some_of(&texts))
    }

    /// Addresses of the endpoints that are not terminating, whether these endpoints serve or not.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let staying = self.endpoints.iter().filter(|endpoint| !endpoint.terminating);
        staying.map(|endpoint| endpoint.address)
    }
}

/// State of a LoadBalancer's Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceState {
    /// The Service is as it must be.
    Ours,
    /// The Service cannot be created, because of a fault in the spec or the name. The text
    /// describes the fault.
    Faulty(String),
    /// A Service with this name belongs to another owner, as the text describes.
    Foreign(String),
    /// The API server refused the Service, for the reason in the text.
    Refused(String),
    /// The Service cannot be created yet, because an earlier Service of the same name must be
    /// deleted first.
    Waiting,
    /// kube-vip must ignore the new Service for this length of time, until kube-proxy has rules for
    /// it.
    Held(Duration),
}

/// Facts for the status of a LoadBalancer of type vm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServingStatus {
    /// State of the Service.
    pub service: ServiceState,
    /// Addresses at which the LoadBalancer's Service is announced, from its
    /// `status.loadBalancer.ingress`. They do not depend on `service`. Empty if there is no
    /// Service.
    pub ingress: Vec<String>,
    /// VMs behind the LoadBalancer. `None`: VMs cannot be listed now, so no VM is reported and no
    /// endpoint is changed.
    pub backends: Option<BackendCounts>,
    /// Text from [`selector_hint`]. `None`: no hint.
    pub selector_hint: Option<String>,
    /// Text with the fault of the health check. The fault prevents probes of the VMs. `None`: no
    /// fault.
    pub health_fault: Option<String>,
    /// Text about VMs that fail their health check and still are endpoints. Their failures are
    /// doubted, because most VMs failed at once. `None`: no failure is doubted.
    pub doubted: Option<String>,
    /// Reason why the address is announced on the announcer's default interface. `None`: the
    /// address is announced on the LoadBalancer's network, the LoadBalancer names no network, or a
    /// user set the interface.
    pub default_interface: Option<String>,
    /// Setting of the Service that does not have its documented effect. `None`: there is no such
    /// setting.
    pub misfit: Option<SettingMisfit>,
    /// Address at which the LoadBalancer was last announced, while the Service asks for another
    /// address that is not announced yet. `None` in all other cases.
    pub moving_from: Option<IpAddr>,
}

impl ServingStatus {
    /// Status with only the state of a Service and its announced addresses. All other fields are
    /// `None`.
    pub const fn new(service: ServiceState, ingress: Vec<String>) -> Self {
        Self {
            service,
            ingress,
            backends: None,
            selector_hint: None,
            health_fault: None,
            doubted: None,
            default_interface: None,
            misfit: None,
            moving_from: None,
        }
    }

    /// First of the addresses at which the Service is announced. `None`: it is not announced.
    pub fn announced(&self) -> Option<&str> {
        self.ingress.first().map(String::as_str)
    }
}

/// Text that says why the failures of health checks are doubted.
pub const DOUBTED: &str =
    "most VMs of many load balancers stopped answering together, so the fault may be the prober's";

/// Status, reason and message of the `Ready` condition of a VM load balancer that has an address.
/// `report`: facts about its VMs and its Service. `asked`: address for which the Service asks.
pub fn ready(report: &ServingStatus, asked: &str) -> (ConditionStatus, &'static str, String) {
    let not = |reason, message: &str| (ConditionStatus::False, reason, message.to_owned());
    match &report.service {
        ServiceState::Faulty(fault) => return not(reason::INVALID_SPEC, fault),
        ServiceState::Foreign(whose) => return not(reason::SERVICE_CONFLICT, whose),
        ServiceState::Refused(why) => return not(reason::SERVICE_REFUSED, why),
        ServiceState::Ours | ServiceState::Waiting | ServiceState::Held(_) => {}
    }
    let Some(backends) = &report.backends else {
        return not(
            reason::VMS_UNKNOWN,
            "virtual machines cannot be listed, so endpoints stay as they are: check that KubeVirt is installed, and that the operator may list its objects",
        );
    };
    if backends.ready() == 0 {
        // UIs match the beginnings of three of these texts: the texts about no running VM, no
        // address, and no healthy VM.
        return if backends.total() == 0 {
            let hint = report.selector_hint.as_ref().map(|hint| format!(": {hint}"));
            let hint = hint.unwrap_or_default();
            not(reason::NO_BACKENDS, &format!("no running backend servers{hint}"))
        } else if let Some(refused) = backends.refusal()
            && backends.total() == backends.without_address
        {
            let message =
                format!("running backend servers have no IP that the operator accepts: {refused}");
            not(reason::BACKEND_ADDRESS_REFUSED, &message)
        } else if backends.total() == backends.without_address {
            not(
                reason::NO_BACKEND_ADDRESS,
                "running backend servers have no IP: their guest agents must report one, on the load balancer's network if the load balancer names one",
            )
        } else if backends.unhealthy > 0 {
            not(
                reason::BACKENDS_UNHEALTHY,
                "running backend servers are not probed as healthy: see spec.healthCheck",
            )
        } else {
            not(
                reason::BACKENDS_NOT_READY,
                "running backend servers are not ready: see the Ready condition of the VirtualMachineInstances and their pods",
            )
        };
    }
    if let Some(SettingMisfit::NoLocalBackend(why)) = &report.misfit {
        return not(reason::NO_LOCAL_BACKEND, why);
    }
    let Some(announced) = report.announced() else {
        let asks = match report.moving_from {
            Some(old) => format!("the Service asks for another address than {old}"),
            None => format!("the Service asks for {asked}"),
        };
        let message = format!("{asks}; nothing announces it yet: check that kube-vip is running");
        return not(reason::NOT_ANNOUNCED, &message);
    };
    if let Some(fault) = &report.health_fault {
        let message = format!("health is not checked: {fault}");
        return (ConditionStatus::True, reason::INVALID_HEALTH_CHECK, message);
    }
    if let Some(why) = &report.doubted {
        let message = format!("VMs that fail their health check stay endpoints: {DOUBTED}: {why}");
        return (ConditionStatus::True, reason::PROBER_DOUBTED, message);
    }
    if let Some(refused) = backends.refusal() {
        let message =
            format!("VMs whose address the operator does not accept get no traffic: {refused}");
        return (ConditionStatus::True, reason::BACKEND_ADDRESS_REFUSED, message);
    }
    if !backends.last_known.is_empty() {
        let names = some_of(&backends.last_known);
        let message =
            format!("guest agents report no address, so the last known one is used: {names}");
        return (ConditionStatus::True, reason::LAST_KNOWN_ADDRESS, message);
    }
    if let Some(SettingMisfit::SourceRanges(why)) = &report.misfit {
        return (ConditionStatus::True, reason::SOURCE_RANGES_BYPASSED, why.clone());
    }
    let message = match &report.default_interface {
        Some(why) => {
            format!("announced at {announced}, on the announcer's default interface: {why}")
        }
        None => format!("announced at {announced}"),
    };
    (ConditionStatus::True, reason::ANNOUNCED, message)
}

/// Text with the first five of `names`, and the number of the others.
fn some_of(names: &[Arc<str>]) -> String {
    const SHOWN: usize = 5;
    let shown = names.iter().take(SHOWN).map(|name| &**name).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests;
