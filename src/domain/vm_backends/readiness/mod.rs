//! Readiness of a LoadBalancer of type vm: the state of its VMs and its Service, and the condition
//! `Ready` that follows from them.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::backend_address::AddressFault;
use super::endpoints::{VmBackend, VmEndpoint};
use super::service::SettingMisfit;
use crate::reason;
use api::ConditionStatus;

/// Running VMs that a LoadBalancer selects, counted or listed by state. A VM may be in several of
/// the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendCounts {
    /// VMs that are endpoints. The list includes VMs that fail their health check, with `serving`
    /// false.
    pub endpoints: Vec<VmEndpoint>,
    /// Number of running VMs without a suitable address. The VMs in `refused` are included.
    pub without_address: usize,
    /// Running VMs in the state [`VmBackend::Refused`]: the name of each VM, the first address that
    /// was refused, and the reason. The list is sorted by name.
    pub refused: Vec<(Arc<str>, IpAddr, AddressFault)>,
    /// Number of VMs that fail their health check, and would otherwise be ready.
    pub unhealthy: usize,
    /// Names of the VMs whose endpoint has the last known address, because their guest agents
    /// report no suitable address now. The list is sorted.
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ServiceState {
    /// The Service is as it must be. In a preview: it is so, or a write would make it so. While VMs
    /// cannot be listed, this state says nothing, because the Service is not checked.
    #[default]
    Ours,
    /// The Service is not written, because the spec or the name of the LoadBalancer has a fault.
    /// The text describes the fault.
    Faulty(String),
    /// The LoadBalancer does not own the Service, or an EndpointSlice that the operator must write.
    /// The text is the condition's message: it names the object, its owner (if any) and the remedy.
    Foreign(String),
    /// The API server refused a write of the Service or of an EndpointSlice, for the reason in the
    /// text.
    Refused(String),
    /// The deletion of the Service has begun, and is not complete. A new Service of this name can
    /// be created only when the deletion is complete. The text is the finalizer that delays the
    /// deletion. `None`: no finalizer is known.
    Waiting(Option<String>),
    /// kube-vip must ignore the new Service for this length of time. The operator assumes that
    /// every kube-proxy has then written its rules for the Service.
    Held(Duration),
}

/// Facts for the status of a LoadBalancer of type vm.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServingStatus {
    /// State of the Service.
    pub service: ServiceState,
    /// Addresses at which the LoadBalancer's own Service is announced, from the Service's
    /// `status.loadBalancer.ingress`. Empty if the LoadBalancer has no Service of its own, or the
    /// Service is not announced.
    pub ingress: Vec<String>,
    /// VMs behind the LoadBalancer. `None`: VMs cannot be listed now, or the LoadBalancer has no
    /// address. In both cases, no VM is reported and no endpoint is changed.
    pub backends: Option<BackendCounts>,
    /// Text from [`super::listeners::selector_hint`]. `None`: no hint.
    pub selector_hint: Option<String>,
    /// Text with the fault of the health check. The fault prevents probes of the VMs. `None`: no
    /// fault.
    pub health_fault: Option<String>,
    /// Text about the second opinion on doubted failures: what another replica has answered, or
    /// that an answer is missing. `None`: no failure of the LoadBalancer's VMs is doubted.
    pub doubted: Option<String>,
    /// Text from [`super::service::WantedService::misplacement`]: the interface on which the
    /// address is announced, and the reason why this interface is not a working link of the
    /// address's network. `None`: there is no such reason.
    pub misplacement: Option<String>,
    /// Setting of the Service that does not have its documented effect. `None`: there is no such
    /// setting.
    pub misfit: Option<SettingMisfit>,
    /// Published address of a LoadBalancer that has got a new address, while its Service is not
    /// announced at any address. `None` in all other cases.
    pub moving_from: Option<IpAddr>,
}

impl ServingStatus {
    /// Status with only the state of a Service and its announced addresses. All other fields are
    /// `None`.
    pub fn new(service: ServiceState, ingress: Vec<String>) -> Self {
        Self { service, ingress, ..Self::default() }
    }

    /// First of the addresses at which the Service is announced. `None`: it is not announced.
    pub fn announced(&self) -> Option<&str> {
        self.ingress.first().map(String::as_str)
    }
}

/// Text that says why the failures of health checks are doubted.
pub const DOUBTED: &str =
    "most VMs of many load balancers stopped answering together, so the fault may be the prober's";

/// Status, reason and message of the condition `Ready` of a VM load balancer. Precondition: the
/// load balancer has an address, or its announcer leases one. `report`: facts about its VMs and its
/// Service. `asked`: address for which the Service asks.
pub fn ready(report: &ServingStatus, asked: &str) -> (ConditionStatus, &'static str, String) {
    let not = |reason, message: &str| (ConditionStatus::False, reason, message.to_owned());
    match &report.service {
        ServiceState::Faulty(fault) => return not(reason::INVALID_SPEC, fault),
        ServiceState::Foreign(whose) => return not(reason::SERVICE_CONFLICT, whose),
        ServiceState::Refused(why) => return not(reason::SERVICE_REFUSED, why),
        ServiceState::Waiting(finalizer) => {
            return not(reason::SERVICE_DELETING, &waiting(finalizer.as_deref()));
        }
        ServiceState::Ours | ServiceState::Held(_) => {}
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
    let message = match &report.misplacement {
        Some(place) => format!("announced at {announced}, on {place}"),
        None => format!("announced at {announced}"),
    };
    (ConditionStatus::True, reason::ANNOUNCED, message)
}

/// Text about a Service that is being deleted. `finalizer`: see [`ServiceState::Waiting`].
fn waiting(finalizer: Option<&str>) -> String {
    let message = "the Service is being deleted, so that it can be created again";
    match finalizer {
        Some(finalizer) => format!(
            "{message}, and its finalizer {finalizer} delays that: the program that set the finalizer must remove it, or remove it by hand"
        ),
        None => message.to_owned(),
    }
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
