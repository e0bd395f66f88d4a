//! Creates, maintains and deletes the Service and the EndpointSlices of a vm load balancer.
//!
//! Invariants:
//!
//! * Slices are written before the Service, because kube-vip 1.2 does not announce a Service
//!   without endpoints.
//! * If the Service has another address family than the wanted one, the Service is deleted before
//!   its slices are replaced. Until the Service is gone, its slices follow the VMs. Without slices,
//!   the announcing node itself would answer at the Service's address.
//! * No object of another owner is written. If the Service has another owner, no slice is written
//!   either.
//! * The last slice of the LoadBalancer's own Service is deleted only when the Service is gone.

mod service;
mod settings;
mod slices;

use std::cell::LazyCell;
use std::net::IpAddr;
use std::time::Duration;

use kube::ResourceExt;

use self::settings::KeptSettings;
use super::{LbContext, ReconcileError, ServingOutcome};
use crate::api::{ANNOTATION_NETWORK, LoadBalancer};
use crate::controllers::failed_reconciles::LONGEST_DELAY;
use crate::domain::AnnouncedAddresses;
use crate::domain::load_balancer::facts;
use crate::domain::load_balancer::status::{self, AddressOutcome};
use crate::domain::vm_backends::endpoint_slices::remembered;
use crate::domain::vm_backends::endpoints::{self, AddressFamily, VmBackend, VmEndpoint};
use crate::domain::vm_backends::health::{self, CheckSettings, ProbeTarget};
use crate::domain::vm_backends::lb_identity::LbIdentity;
use crate::domain::vm_backends::listeners;
use crate::domain::vm_backends::readiness::{BackendCounts, ServiceState, ServingStatus};
use crate::domain::vm_backends::service as service_domain;
use crate::domain::vm_backends::service::WantedService;
use crate::k8s::CallError;

/// Maximum number of steps until the Service, or all EndpointSlices, are as desired. Each step is
/// decided from the answer to the one before. More are needed only if the API server stores
/// something else than the operator writes, for example because of an admission webhook.
const MOST_STEPS: usize = 5;
/// Time until the next reconcile after a change of the Service's address. The claim of the old
/// address can be released only after the operator has written the Service, and no watch event
/// reports the operator's own write.
const AGAIN_AFTER_MOVE: Duration = Duration::from_secs(2);

/// Reason why a Service or an EndpointSlice was not written.
enum WriteObstacle {
    /// The Service with the LoadBalancer's name has another owner, named in the text.
    ForeignService(String),
    /// An EndpointSlice that should be written has another owner; the text names the slice and that
    /// owner.
    ForeignSlice(String),
    /// The API server refuses the write; the text contains the reason.
    Refused(String),
    /// The write failed, and a retry may succeed.
    Error(ReconcileError),
}

impl From<ReconcileError> for WriteObstacle {
    fn from(error: ReconcileError) -> Self {
        Self::Error(error)
    }
}

impl From<CallError> for WriteObstacle {
    fn from(error: CallError) -> Self {
        match error.refusal() {
            Some(why) => Self::Refused(why.to_owned()),
            None => Self::Error(error.into()),
        }
    }
}

/// Writes or deletes the Service and the EndpointSlices, depending on the LoadBalancer:
///
/// * A vm load balancer that has an address, or whose announcer leases an address: Service and
///   slices are written, if the finalizer and the published address are stored already.
/// * Any other vm load balancer: the Service is deleted.
/// * A guest load balancer, which the guest itself serves: if its type was vm before, the former
///   Service and its slices are deleted.
///
/// Returns `None` if the VMs were not listed yet, and the term is younger than
/// [`super::VMS_WITHIN`].
pub(super) async fn serve(
    lb: &LoadBalancer,
    outcome: AddressOutcome,
    ctx: &LbContext,
) -> Result<Option<ServingOutcome>, ReconcileError> {
    let is_vm = listeners::is_vm(lb);
    if is_vm && !outcome.is_allocated() {
        return end_service(lb, outcome, ctx).await.map(Some);
    }
    if !is_vm {
        end_former_service(lb, ctx).await?;
    }
    if !is_vm || !status::may_serve(lb) {
        return Ok(Some(ServingOutcome { outcome, report: None, again: None }));
    }
    let before = ctx.shared.views.service_addresses(lb);
    let Some(mut report) = announce(lb, &outcome, ctx).await? else { return Ok(None) };
    // No watch event reports the operator's own write of the Service. After this write, the claims
    // of other addresses can be released.
    let had_others = match before {
        AnnouncedAddresses::Known(all) => all.into_iter().any(|ip| Some(ip) != outcome.address()),
        AnnouncedAddresses::Unknown => false,
    };
    let again = again(&report.service, had_others, report.backends.is_some());
    let outcome = match status::moves_from(lb, &outcome) {
        // The old address is not released while it may be announced.
        Some(old) if status::may_lead_to(old.ip, ServiceTarget::new(lb, ctx).own().as_ref()) => {
            report.moving_from = Some(old.ip).filter(|_| report.ingress.is_empty());
            status::keep_old_address(old)
        }
        _ => outcome,
    };
    Ok(Some(ServingOutcome { outcome, report: Some(report), again }))
}

/// Time until the next reconcile of a LoadBalancer whose Service has the state `service`. `None`:
/// an event will report each change. `had_others`: whether the Service had, before this reconcile,
/// an address that is not the LoadBalancer's. `has_vms`: whether the VMs were listed.
///
/// If `had_others` is true and `has_vms` is false, the time is long: no reconcile changes the
/// Service before the VMs are listed, and the completion of their list triggers a reconcile.
fn again(service: &ServiceState, had_others: bool, has_vms: bool) -> Option<Duration> {
    match service {
        // No watch event reports a change of a foreign Service, or that the API server would accept
        // a rejected write. A Service that waits for a finalizer is watched, but not if a user has
        // removed the operator's label.
        ServiceState::Foreign(_) | ServiceState::Refused(_) | ServiceState::Waiting(_) => {
            Some(LONGEST_DELAY)
        }
        ServiceState::Held(left) => Some(*left),
        ServiceState::Ours if had_others && !has_vms => Some(LONGEST_DELAY),
        ServiceState::Ours => had_others.then_some(AGAIN_AFTER_MOVE),
        // The Service is not written until the spec changes.
        ServiceState::Faulty(_) => None,
    }
}

/// Ends the health checks of the VMs, and deletes the Service of a vm load balancer that has no
/// address now. While a finalizer delays the deletion, the result has a report, so that
/// `status.address` keeps the address at which the Service is announced. Because of this field, the
/// DHCPLease of a leased address stays too.
async fn end_service(
    lb: &LoadBalancer,
    outcome: AddressOutcome,
    ctx: &LbContext,
) -> Result<ServingOutcome, ReconcileError> {
    let at = ServiceTarget::new(lb, ctx);
    ctx.prober.remove(&at.key);
    let may_exist = status::may_have_service(lb) || at.own().is_some_and(|own| own.deleting);
    let report = (may_exist && !suspend(lb, ctx).await?)
        .then(|| ServingStatus::new(at.waiting(), at.ingress()));
    let again = report.as_ref().and_then(|report| again(&report.service, false, true));
    Ok(ServingOutcome { outcome, report, again })
}

/// Deletes the Service, and then the slices, that a guest load balancer still has because its type
/// was vm before. Harvester's CRD does not refuse a change of the type. If a finalizer delays the
/// deletion of the Service, the slices stay until the LoadBalancer is deleted. Without a Service,
/// they lead nowhere.
async fn end_former_service(lb: &LoadBalancer, ctx: &LbContext) -> Result<(), ReconcileError> {
    let is_served = ServiceTarget::new(lb, ctx).own().is_some();
    if is_served { withdraw(lb, ctx).await.map(drop) } else { Ok(()) }
}

/// Writes Service and EndpointSlices where they differ from the desired ones. If the VMs were not
/// listed yet, writes nothing. In this case, the result is `None` during the first
/// [`super::VMS_WITHIN`] of the term. Later, the result is a status with the present addresses of
/// the Service.
async fn announce(
    lb: &LoadBalancer,
    outcome: &AddressOutcome,
    ctx: &LbContext,
) -> Result<Option<ServingStatus>, ReconcileError> {
    let at = ServiceTarget::new(lb, ctx);
    if !ctx.shared.views.endpoints_synced() {
        if !ctx.vms_overdue() {
            return Ok(None);
        }
        // The list of Services may be incomplete too, and the address of a Service that the view
        // lacks must stay published.
        at.read_service_if_unwatched().await.map_err(into_error)?;
        return Ok(Some(ServingStatus::new(ServiceState::Ours, at.ingress())));
    }
    let listeners = match listeners::name_fault(&at.name) {
        Some(fault) => Err(fault),
        None => listeners::listeners(&lb.spec),
    };
    let named = lb.annotations().get(ANNOTATION_NETWORK).map_or("", String::as_str);
    let place = ctx.shared.views.place(named, outcome);
    let wanted = WantedService {
        lb: at.identity(),
        address: outcome.address(),
        listeners: listeners.as_deref().unwrap_or_default(),
        network: &place.network,
        attachment: place.attachment.as_ref(),
        link: place.link,
    };
    let (check, health_fault) = match health::check(&lb.spec) {
        Ok(check) => (check, None),
        Err(fault) => (None, Some(fault.to_string())),
    };
    let ended = async {
        at.read_service_if_unwatched().await?;
        if listeners.is_ok() { at.end_other_family(&wanted).await } else { Ok(true) }
    };
    let ended = ended.await;
    // A Service of another family that is still there leads to endpoints of its own family.
    let family = at.own().and_then(|own| own.family).unwrap_or_else(|| wanted.family());
    let (backends, unprobed) = at.backends(lb, named, family, wanted.address, check.as_ref());
    let health_fault = unprobed.or(health_fault);
    let done = async {
        match &listeners {
            Ok(_) if family != wanted.family() => {
                at.keep_endpoints(family, &backends).await?;
                ended.map(|_| at.waiting())
            }
            Ok(listeners) => {
                ended?;
                let ports = listeners::ports(listeners);
                let written = at.write_slices(family, &ports, &backends).await;
                if matches!(written, Err(WriteObstacle::ForeignSlice(_))) && at.own().is_some() {
                    // The Service may ask for an address of another LoadBalancer, so it is
                    // corrected even without the slices.
                    at.write_service(&wanted).await?;
                }
                written?;
                at.write_service(&wanted).await
            }
            Err(fault) => {
                ended?;
                at.keep_endpoints(family, &backends).await?;
                Ok(ServiceState::Faulty(fault.clone()))
            }
        }
    };
    let service = match done.await {
        Ok(service) => service,
        Err(WriteObstacle::ForeignService(whose)) => {
            // The operator's slices would give endpoints to the foreign Service.
            at.drop_slices().await?;
            ServiceState::Foreign(whose)
        }
        Err(WriteObstacle::ForeignSlice(which)) => ServiceState::Foreign(which),
        Err(WriteObstacle::Refused(why)) => ServiceState::Refused(why),
        Err(WriteObstacle::Error(error)) => return Err(error),
    };
    let ingress = at.ingress();
    let selector_hint = listeners::selector_hint(&lb.spec);
    let own = at.own();
    let misfit = own.as_ref().and_then(|own| service_domain::misfit(own, &backends.endpoints));
    let backends = Some(backends);
    let misplacement = wanted.misplacement(own.as_ref());
    Ok(Some(ServingStatus {
        service,
        ingress,
        backends,
        selector_hint,
        health_fault,
        doubted: ctx.prober.why_doubted(&at.key),
        misplacement,
        misfit,
        moving_from: None,
    }))
}

/// Whether the LoadBalancer may have a Service of the operator. The type and the view of Services
/// are not enough: a tenant may have changed the type of the LoadBalancer, and removed the label
/// without which the Service is not watched. So the LoadBalancer's slices count too, because the
/// operator keeps at least one of them until the Service is gone.
pub(super) fn may_be_served(lb: &LoadBalancer, ctx: &LbContext) -> bool {
    let (views, owner) = (&ctx.shared.views, facts::owner(lb));
    listeners::is_vm(lb) || views.is_served(&owner) || views.has_slices(&owner)
}

/// Ends the health checks of the VMs, and deletes the Service of the LoadBalancer, then its slices.
/// Returns whether the Service and the slices are gone. `false`: a finalizer delays the deletion of
/// the Service.
pub(super) async fn withdraw(lb: &LoadBalancer, ctx: &LbContext) -> Result<bool, ReconcileError> {
    let at = ServiceTarget::new(lb, ctx);
    ctx.prober.remove(&at.key);
    if !at.remove_service(KeptSettings::Dropped).await? {
        return Ok(false);
    }
    at.drop_slices().await?;
    Ok(true)
}

/// Deletes the Service of a LoadBalancer that has no address at present, or loses its address.
/// Keeps the settings of users for the next Service. Returns whether the Service is gone. `false`:
/// a finalizer delays the deletion. This function ends the health checks of the VMs only when the
/// Service is gone, because its slices may follow the VMs until then.
pub(super) async fn suspend(lb: &LoadBalancer, ctx: &LbContext) -> Result<bool, ReconcileError> {
    let at = ServiceTarget::new(lb, ctx);
    let is_gone = at.remove_service(KeptSettings::Kept).await?;
    if is_gone {
        ctx.prober.remove(&at.key);
    }
    Ok(is_gone)
}

fn into_error(obstacle: WriteObstacle) -> ReconcileError {
    match obstacle {
        WriteObstacle::Error(error) => error,
        WriteObstacle::ForeignService(text)
        | WriteObstacle::ForeignSlice(text)
        | WriteObstacle::Refused(text) => ReconcileError::Refused(text),
    }
}

/// Obstacle after a write of an object failed with `error`. If the object has changed since the
/// view was updated, `read` reads the object into the view, and the reconcile begins again.
async fn not_written(
    error: CallError,
    read: impl Future<Output = Result<(), WriteObstacle>>,
) -> WriteObstacle {
    match error {
        CallError::Conflict(_) | CallError::NotFound(_) => match read.await {
            Ok(()) => ReconcileError::Outdated.into(),
            Err(obstacle) => obstacle,
        },
        error => error.into(),
    }
}

/// Name and UID of a LoadBalancer, with the context to read and write its Service and slices.
struct ServiceTarget<'a> {
    ctx: &'a LbContext,
    namespace: String,
    name: String,
    uid: String,
    /// `namespace/name`.
    key: String,
}

impl<'a> ServiceTarget<'a> {
    fn new(lb: &LoadBalancer, ctx: &'a LbContext) -> Self {
        let (namespace, name) = (lb.namespace().unwrap_or_default(), lb.name_any());
        let key = format!("{namespace}/{name}");
        Self { ctx, namespace, name, uid: lb.uid().unwrap_or_default(), key }
    }

    /// Deletes the Service. Returns whether the Service is gone.
    async fn remove_service(&self, settings: KeptSettings) -> Result<bool, ReconcileError> {
        match self.read_service_if_unwatched().await {
            // A foreign Service requests no address for this LoadBalancer.
            Ok(()) | Err(WriteObstacle::ForeignService(_)) => {}
            Err(obstacle) => return Err(into_error(obstacle)),
        }
        match self.own() {
            Some(stored) => self.delete_service(&stored, settings).await.map_err(into_error),
            None => Ok(true),
        }
    }

    /// Error after [`MOST_STEPS`] steps, if the objects of the kind `kind` are not as desired yet.
    fn unsettled(&self, kind: &str) -> CallError {
        CallError::Conflict(format!("{MOST_STEPS} steps to write {kind} of {}", self.key))
    }

    fn client(&self) -> kube::Client {
        self.ctx.shared.client.clone()
    }

    fn identity(&self) -> LbIdentity<'_> {
        LbIdentity { namespace: &self.namespace, name: &self.name, uid: &self.uid }
    }

    /// Finds the VMs behind the LoadBalancer, and sets or removes their health checks. Field 0: the
    /// VMs, with address and health. Without health checks, all VMs count as healthy. Field 1: the
    /// reason why the wanted checks are not possible. `None`: they are possible, or no checks are
    /// wanted.
    ///
    /// `network` and `family`: network and family of a VM's address. An empty network means any.
    /// `address`: address of the LoadBalancer itself, which no VM may have.
    fn backends(
        &self,
        lb: &LoadBalancer,
        network: &str,
        family: AddressFamily,
        address: Option<IpAddr>,
        check: Option<&CheckSettings>,
    ) -> (BackendCounts, Option<String>) {
        let views = &self.ctx.shared.views;
        let slices = self.slices();
        // Evaluated at the first use, because few VMs need their last known address.
        let known = LazyCell::new(|| remembered(&slices));
        let wants = endpoints::WantedAddresses { network, family };
        let last = |uid: &str| known.get(uid).map(|endpoint| endpoint.address);
        let found = views.backends(lb, &wants, address, last);
        let prober = &self.ctx.prober;
        let Some(check) = check else {
            prober.remove(&self.key);
            return (BackendCounts::new(found, |_| true), None);
        };
        let targets: Vec<ProbeTarget> = found
            .iter()
            .filter_map(|backend| match backend {
                VmBackend::Endpoint { endpoint, .. } => Some(ProbeTarget {
                    id: endpoint.uid.to_string(),
                    address: endpoint.address,
                    // A new leader, or a new check, begins with the health in the EndpointSlices.
                    assume_healthy: known
                        .get(&*endpoint.uid)
                        .is_some_and(|e| e.serving && e.address == endpoint.address),
                }),
                _ => None,
            })
            .collect();
        if let Err(fault) = prober.set(&self.key, check, &targets) {
            return (BackendCounts::new(found, |_| true), Some(fault.to_string()));
        }
        let verdicts = prober.verdicts(&self.key);
        let healthy = |endpoint: &VmEndpoint| verdicts.get(&*endpoint.uid).is_some_and(|is| *is);
        (BackendCounts::new(found, healthy), None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A finalizer, a fault of the spec, or VMs that cannot be listed may delay a change of the
    /// Service for days. So frequent reconciles would be in vain.
    #[test]
    fn a_service_that_another_program_or_a_fault_holds_is_looked_at_rarely() {
        let left = Duration::from_millis(1500);
        for (service, had_others, has_vms, expected) in [
            (ServiceState::Waiting(None), true, true, Some(LONGEST_DELAY)),
            (ServiceState::Waiting(None), false, true, Some(LONGEST_DELAY)),
            (ServiceState::Held(left), true, true, Some(left)),
            (ServiceState::Ours, true, true, Some(AGAIN_AFTER_MOVE)),
            (ServiceState::Ours, true, false, Some(LONGEST_DELAY)),
            (ServiceState::Ours, false, true, None),
            (ServiceState::Ours, false, false, None),
            (ServiceState::Faulty("port: 0".to_owned()), true, true, None),
        ] {
            let found = again(&service, had_others, has_vms);
            assert_eq!(found, expected, "{service:?}, {had_others}, {has_vms}");
        }
    }
}
