//! The Service and the EndpointSlices of a vm load balancer: made, kept, and withdrawn.
//!
//! Invariants: slices are written before the Service, because kube-vip 1.2 announces nothing
//! without endpoints; nothing is written that another owns, nor a slice for another's Service;
//! withdrawal begins with the Service, and is complete only when that is gone.

mod service;
mod settings;
mod slices;

use std::cell::LazyCell;
use std::net::IpAddr;

use kube::ResourceExt;

use self::settings::Settings;
use super::{Context, Error, LAST_RETRY, Served};
use crate::api::{ANNOTATION_NETWORK, LoadBalancer};
use crate::domain::load_balancer::facts;
use crate::domain::load_balancer::status::{self, Finding};
use crate::domain::pools::allocator::Verdict;
use crate::domain::vm_backends::backend_address::Rules;
use crate::domain::vm_backends::endpoint_slices::remembered;
use crate::domain::vm_backends::endpoints::{self, Backend};
use crate::domain::vm_backends::health::{self, Check, Target};
use crate::domain::vm_backends::listeners::{self, Backends, Report, Service};
use crate::domain::vm_backends::service as service_domain;
use crate::domain::vm_backends::service::{Identity, Wanted};
use crate::k8s::CallError;

/// How often a write is decided anew for an object that keeps changing under it.
const REPETITIONS: usize = 5;

/// What stands in the way of a write.
enum Obstacle {
    /// The Service by the name is another's: this says whose.
    ForeignService(String),
    /// An EndpointSlice by the name is another's: this says which.
    ForeignSlice(String),
    /// The API server refuses it: this says why.
    Refused(String),
    /// Something that may pass.
    Error(Error),
}

impl From<CallError> for Obstacle {
    fn from(error: CallError) -> Self {
        match error.refusal() {
            Some(why) => Self::Refused(why.to_owned()),
            None => Self::Error(error.into()),
        }
    }
}

/// Makes Service and EndpointSlices of a vm load balancer, or takes the Service away until there is an
/// address again. Others are served by their guest cluster. `None`: VMs were not listed yet.
pub(super) async fn serve(
    lb: &LoadBalancer,
    finding: Finding,
    ctx: &Context,
) -> Result<Option<Served>, Error> {
    if !listeners::is_vm(lb) || !status::may_serve(lb) {
        return Ok(Some(Served { finding, report: None, again: None }));
    }
    if !finding.is_allocated() {
        // It may have lost its address to one with a better claim.
        suspend(lb, ctx).await?;
        return Ok(Some(Served { finding, report: None, again: None }));
    }
    let Some(mut report) = announce(lb, &finding, ctx).await? else { return Ok(None) };
    // A foreign Service carries no label to watch it by, and the end of a refusal is no event.
    let again = match report.service {
        Service::Foreign(_) | Service::Refused(_) => Some(LAST_RETRY),
        Service::Held(left) => Some(left),
        _ => None,
    };
    let finding = match status::moves_from(lb, &finding) {
        // That is not given up while it may be announced.
        Some(old) if may_lead_here(lb, old.ip, ctx) => {
            report.moving_from = Some(old.ip).filter(|_| report.ingress.is_empty());
            status::staying_at(old)
        }
        _ => finding,
    };
    Ok(Some(Served { finding, report: Some(report), again }))
}

/// Makes Service and EndpointSlices say what they must. `None`: VMs were not listed yet.
async fn announce(
    lb: &LoadBalancer,
    finding: &Finding,
    ctx: &Context,
) -> Result<Option<Report>, Error> {
    let at = At::new(lb, ctx);
    if !ctx.shared.views.endpoints_synced() {
        let report = ctx.vms_overdue().then(|| Report {
            service: at.own().map_or(Service::Waiting, |_| Service::Ours),
            ingress: at.ingress(),
            backends: None,
            selector_hint: None,
            health_fault: None,
            doubted: None,
            default_interface: None,
            misfit: None,
            moving_from: None,
        });
        return Ok(report);
    }
    let listeners =
        listeners::name_fault(&at.name).map_or_else(|| listeners::listeners(&lb.spec), Err);
    let named = lb.annotations().get(ANNOTATION_NETWORK).map_or("", String::as_str);
    // Where its pool says that the address is unique, or where it was leased. A global pool's is unique
    // everywhere.
    let network = match finding {
        Finding::Pool(Verdict::Held { network: Some(network), .. }) => network,
        Finding::Host(Ok(lease)) => &lease.network,
        _ => named,
    };
    let attachment = ctx.shared.views.attachment(network);
    let link = attachment.as_ref().map(|at| ctx.shared.views.link(at)).unwrap_or_default();
    let wanted = Wanted {
        lb: at.identity(),
        address: finding.address(),
        listeners: listeners.as_deref().unwrap_or_default(),
        network,
        attachment: attachment.as_ref(),
        link,
    };
    let (check, health_fault) = match health::check(&lb.spec) {
        Ok(check) => (check, None),
        Err(fault) => (None, Some(fault.to_string())),
    };
    let backends = at.backends(&wanted, named, check.as_ref());
    let (backends, health_fault) = match backends {
        Ok(backends) => (backends, health_fault),
        Err((backends, fault)) => (backends, Some(fault)),
    };
    let done = async {
        at.know_service().await?;
        match &listeners {
            Ok(listeners) => {
                let ports = listeners::ports(listeners);
                at.write_slices(wanted.family(), &ports, &backends).await?;
                at.write_service(&wanted).await
            }
            Err(fault) => {
                at.keep_endpoints(wanted.family(), &backends).await?;
                Ok(Service::Faulty(fault.clone()))
            }
        }
    };
    let service = match done.await {
        Ok(service) => service,
        Err(Obstacle::ForeignService(whose)) => {
            // Slices of ours would give another's Service endpoints.
            at.drop_slices().await?;
            Service::Foreign(whose)
        }
        Err(Obstacle::ForeignSlice(which)) => Service::Foreign(which),
        Err(Obstacle::Refused(why)) => Service::Refused(why),
        Err(Obstacle::Error(error)) => return Err(error),
    };
    let ingress = at.ingress();
    let selector_hint = listeners::selector_hint(&lb.spec);
    let own = at.own();
    let misfit = own.as_ref().and_then(|own| service_domain::misfit(own, &backends.endpoints));
    let backends = Some(backends);
    let default_interface = wanted.on_default_interface(own.as_ref());
    Ok(Some(Report {
        service,
        ingress,
        backends,
        selector_hint,
        health_fault,
        doubted: ctx.prober.why_doubted(&at.key),
        default_interface,
        misfit,
        moving_from: None,
    }))
}

/// Whether the address may still lead here: the Service is announced there or asks for it, or has
/// asked for another since and the announcer has not said yet that it saw that.
fn may_lead_here(lb: &LoadBalancer, address: IpAddr, ctx: &Context) -> bool {
    let own = At::new(lb, ctx).own();
    own.is_some_and(|stored| {
        let moves = stored.ingress.is_empty() && facts::is_announced_at(lb, address);
        moves || stored.asks_for(address)
    })
}

/// Takes Service and slices away. Returns whether they are gone.
pub(super) async fn withdraw(lb: &LoadBalancer, ctx: &Context) -> Result<bool, Error> {
    let at = At::new(lb, ctx);
    if !at.remove_service(Settings::Dropped).await? {
        return Ok(false);
    }
    at.drop_slices().await?;
    Ok(true)
}

/// Takes the Service away until there is an address again.
async fn suspend(lb: &LoadBalancer, ctx: &Context) -> Result<(), Error> {
    At::new(lb, ctx).remove_service(Settings::Kept).await.map(drop)
}

fn into_error(obstacle: Obstacle) -> Error {
    match obstacle {
        Obstacle::Error(error) => error,
        Obstacle::ForeignService(text) | Obstacle::ForeignSlice(text) | Obstacle::Refused(text) => {
            Error::Refused(text)
        }
    }
}

/// A LoadBalancer, and where its objects are.
struct At<'a> {
    ctx: &'a Context,
    namespace: String,
    name: String,
    uid: String,
    /// `namespace/name`.
    key: String,
}

impl<'a> At<'a> {
    fn new(lb: &LoadBalancer, ctx: &'a Context) -> Self {
        let (namespace, name) = (lb.namespace().unwrap_or_default(), lb.name_any());
        let key = format!("{namespace}/{name}");
        Self { ctx, namespace, name, uid: lb.uid().unwrap_or_default(), key }
    }

    /// Ends the checks of its VMs, and deletes the Service. Returns whether that is gone.
    async fn remove_service(&self, settings: Settings) -> Result<bool, Error> {
        self.ctx.prober.remove(&self.key);
        match self.know_service().await {
            // It asks for nothing on this one's behalf.
            Ok(()) | Err(Obstacle::ForeignService(_)) => {}
            Err(obstacle) => return Err(into_error(obstacle)),
        }
        match self.stored() {
            Some(stored) => self.delete_service(&stored, settings).await.map_err(into_error),
            None => Ok(true),
        }
    }

    fn client(&self) -> kube::Client {
        self.ctx.shared.client.clone()
    }

    fn identity(&self) -> Identity<'_> {
        Identity { namespace: &self.namespace, name: &self.name, uid: &self.uid }
    }

    /// The VMs behind it, at their addresses on the network that is `named`, and their health. An
    /// error: the check cannot be done, and is not.
    fn backends(
        &self,
        wanted: &Wanted<'_>,
        named: &str,
        check: Option<&Check>,
    ) -> Result<Backends, (Backends, String)> {
        let views = &self.ctx.shared.views;
        let slices = self.slices();
        // Few VMs need it.
        let known = LazyCell::new(|| remembered(&slices));
        let wants = endpoints::Wanted { network: named, family: wanted.family() };
        let rules = Rules {
            own: wanted.address,
            reserved: &|address| views.infrastructure.why_reserved(address),
            range: &|network| views.network_range(network),
        };
        let found = views.of_members(&self.namespace, &self.name, |(name, vm, pods)| {
            let last = || known.get(&*vm.uid).map(|endpoint| endpoint.address);
            endpoints::backend(name.clone(), vm, pods, &wants, last, &rules)
        });
        let prober = &self.ctx.prober;
        let Some(check) = check else {
            prober.remove(&self.key);
            return Ok(Backends::new(found, |_| true));
        };
        let targets: Vec<Target> = found
            .iter()
            .filter_map(|backend| match backend {
                Backend::Endpoint { endpoint, .. } => Some(Target {
                    id: endpoint.uid.to_string(),
                    address: endpoint.address,
                    // A new leader, and a check that was just asked for, begin with what is.
                    assume_healthy: known
                        .get(&*endpoint.uid)
                        .is_some_and(|e| e.serving && e.address == endpoint.address),
                }),
                _ => None,
            })
            .collect();
        if let Err(fault) = prober.set(&self.key, Some(check), &targets) {
            return Err((Backends::new(found, |_| true), fault.to_string()));
        }
        let verdicts = prober.verdicts(&self.key);
        Ok(Backends::new(found, |endpoint| verdicts.get(&*endpoint.uid).copied().unwrap_or(false)))
    }
}
