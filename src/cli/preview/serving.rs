//! Plans the Service and the EndpointSlices of a VM load balancer, as a leader does.

use std::sync::Arc;

use chrono::Utc;
use k8s_openapi::api::core::v1::Service as FullService;
use kube::{Api, Client, ResourceExt as _};

use crate::api::{ANNOTATION_NETWORK, LoadBalancer};
use crate::domain::load_balancer::facts;
use crate::domain::load_balancer::status::{self, AddressOutcome};
use crate::domain::preview::PlannedWrite;
use crate::domain::vm_backends::endpoint_slices::{self, SliceWrite, StoredSlice, remembered};
use crate::domain::vm_backends::endpoints::{
    AddressFamily, VmEndpoint, WantedAddresses as Members,
};
use crate::domain::vm_backends::health;
use crate::domain::vm_backends::lb_identity::LbIdentity;
use crate::domain::vm_backends::listeners;
use crate::domain::vm_backends::ports::EndpointPort;
use crate::domain::vm_backends::readiness::{BackendCounts, ServiceState, ServingStatus};
use crate::domain::vm_backends::service::stored::read_service;
use crate::domain::vm_backends::service::{self, ServicePlan, StoredService, WantedService};
use crate::k8s::CallError;
use crate::k8s::calls::ApiCalls as _;
use crate::k8s::views::Views;

/// Plan for a LoadBalancer: its address, its status, and the writes that the operator would make.
pub(super) struct ServingPreview {
    /// Address that would be published, or the reason why none would be.
    pub(super) outcome: AddressOutcome,
    /// State of the Service, as the LoadBalancer's status would report it. `None`: no Service is
    /// wanted.
    pub(super) report: Option<ServingStatus>,
    /// Writes of Service and EndpointSlices.
    pub(super) changes: Vec<PlannedWrite>,
    /// Whether the plan counts a VM as unhealthy only because no stored EndpointSlice records the
    /// VM as healthy. `preview` runs no health checks. A health check could find the VM healthy.
    pub(super) unchecked: bool,
}

/// A VM load balancer and its stored Service.
struct PreviewTarget<'a> {
    views: &'a Views,
    lb: LbIdentity<'a>,
    /// `namespace/name` of the LoadBalancer.
    key: &'a str,
    /// Stored Service with the LoadBalancer's name, of any owner. `None`: there is none.
    stored: Option<StoredService>,
}

/// Plans the Service and the EndpointSlices of a LoadBalancer. `None`: objects that the plan needs
/// could not be read. `outcome`: address that would be published, or the reason why none would be.
pub(super) async fn serve(
    views: &Views,
    client: &Client,
    lb: &LoadBalancer,
    outcome: AddressOutcome,
) -> Option<ServingPreview> {
    if !listeners::is_vm(lb) {
        return Some(ServingPreview {
            outcome,
            report: None,
            changes: Vec::new(),
            unchecked: false,
        });
    }
    if !views.endpoints_synced() && !views.has_no_vms() {
        return None;
    }
    let (namespace, name) = (lb.namespace().unwrap_or_default(), lb.name_any());
    let (key, uid) = (facts::name(lb), lb.uid().unwrap_or_default());
    let at = PreviewTarget {
        views,
        lb: LbIdentity { namespace: &namespace, name: &name, uid: &uid },
        key: &key,
        stored: stored(views, client, &namespace, &name).await.ok()?,
    };
    if !outcome.is_allocated() {
        let changes = at.own().map(|_| PlannedWrite::new("Service", &key, "deleted"));
        let changes = changes.into_iter().collect();
        return Some(ServingPreview { outcome, report: None, changes, unchecked: false });
    }
    let (mut report, changes, unchecked) = at.announce(lb, &outcome);
    let outcome = match status::moves_from(lb, &outcome) {
        Some(old) if status::may_lead_to(old.ip, at.own()) => {
            report.moving_from = Some(old.ip).filter(|_| report.ingress.is_empty());
            status::keep_old_address(old)
        }
        _ => outcome,
    };
    Some(ServingPreview { outcome, report: Some(report), changes, unchecked })
}

/// Deletions of the Service and the EndpointSlices of a LoadBalancer that is being deleted.
pub(super) fn withdrawn(views: &Views, lb: &LoadBalancer) -> Vec<PlannedWrite> {
    let key = facts::name(lb);
    let gone = |kind: &str, name: &str| PlannedWrite::new(kind, name, "deleted");
    let services = views.services.of(&key).map(|_| gone("Service", &key));
    let namespace = lb.namespace().unwrap_or_default();
    let slices = views.slices.of(&key);
    services
        .chain(slices.map(|slice| gone("EndpointSlice", &format!("{namespace}/{}", slice.name))))
        .collect()
}

/// Stored Service `namespace`/`name`. `Ok(None)`: there is none. The view has only Services with
/// the operator's label. Any other Service is read from the API server.
async fn stored(
    views: &Views,
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<Option<StoredService>, CallError> {
    if let Some(stored) = views.services.of(&format!("{namespace}/{name}")).next() {
        return Ok(Some(stored));
    }
    let api = Api::<FullService>::namespaced(client.clone(), namespace);
    Ok(api.call_get_opt(name).await?.map(|service| read_service(&service)))
}

impl PreviewTarget<'_> {
    /// Stored Service with the LoadBalancer's name, if the LoadBalancer owns the Service.
    fn own(&self) -> Option<&StoredService> {
        self.stored.as_ref().filter(|stored| service::foreign(&stored.owners, self.lb).is_none())
    }

    fn slices(&self) -> Vec<Arc<StoredSlice>> {
        let all = self.views.slices.of(self.key);
        all.filter(|slice| slice.owner == self.lb.uid).collect()
    }

    /// Plans the Service and the EndpointSlices. Returns three values: the report for the
    /// LoadBalancer's status, the planned writes, and the value of [`ServingPreview::unchecked`].
    fn announce(
        &self,
        lb: &LoadBalancer,
        outcome: &AddressOutcome,
    ) -> (ServingStatus, Vec<PlannedWrite>, bool) {
        let ingress = self.own().map(|own| own.ingress.clone()).unwrap_or_default();
        let mut report = ServingStatus::new(ServiceState::Ours, ingress);
        if !self.views.endpoints_synced() {
            return (report, Vec::new(), false);
        }
        let listeners = match listeners::name_fault(self.lb.name) {
            Some(fault) => Err(fault),
            None => listeners::listeners(&lb.spec),
        };
        let named = lb.annotations().get(ANNOTATION_NETWORK).map_or("", String::as_str);
        let place = self.views.place(named, outcome);
        let wanted = WantedService {
            lb: self.lb,
            address: outcome.address(),
            listeners: listeners.as_deref().unwrap_or_default(),
            network: &place.network,
            attachment: place.attachment.as_ref(),
            link: place.link,
        };
        let check = health::check(&lb.spec);
        let slices = self.slices();
        let known = remembered(&slices);
        let members = Members { network: named, family: wanted.family() };
        let last = |uid: &str| known.get(uid).map(|endpoint| endpoint.address);
        let found = self.views.backends(lb, &members, wanted.address, last);
        // A leader begins its term with the verdicts of health checks that the stored
        // EndpointSlices record. So this plan uses the same verdicts.
        let is_well = |endpoint: &VmEndpoint| {
            let before = known.get(&*endpoint.uid);
            before.is_some_and(|e| e.serving && e.address == endpoint.address)
        };
        let is_checked = matches!(check, Ok(Some(_)));
        let backends = BackendCounts::new(found, |endpoint| !is_checked || is_well(endpoint));
        let (state, mut changes) = match &listeners {
            Ok(_) => self.service(&wanted),
            Err(fault) => (ServiceState::Faulty(fault.clone()), Vec::new()),
        };
        let ports = match &listeners {
            Ok(listeners) => Some(listeners::ports(listeners)),
            Err(_) => self.own().map(|own| own.backend_ports(&slices)),
        };
        if let Some(ports) = ports.filter(|_| !matches!(state, ServiceState::Foreign(_))) {
            changes.extend(self.endpoints(wanted.family(), &ports, &slices, &backends));
        }
        report.service = state;
        report.selector_hint = listeners::selector_hint(&lb.spec);
        report.health_fault = check.err().map(|fault| fault.to_string());
        report.misfit = self.own().and_then(|own| service::misfit(own, &backends.endpoints));
        report.misplacement = wanted.misplacement(self.own());
        let unchecked = is_checked && backends.unhealthy > 0;
        report.backends = Some(backends);
        (report, changes, unchecked)
    }

    fn service(&self, wanted: &WantedService<'_>) -> (ServiceState, Vec<PlannedWrite>) {
        let change = |what: &str| vec![PlannedWrite::new("Service", self.key, what)];
        let patched = |patch| vec![PlannedWrite::patch("Service", self.key, &patch)];
        let now = Utc::now().fixed_offset();
        match service::plan(self.stored.as_ref(), wanted, now) {
            ServicePlan::Keep => (ServiceState::Ours, Vec::new()),
            ServicePlan::Create(_) => (ServiceState::Ours, change("created")),
            ServicePlan::Change(patch) | ServicePlan::ChangeStatus(patch) => {
                (ServiceState::Ours, patched(patch))
            }
            ServicePlan::DelayAnnouncement(left) => {
                (ServiceState::Held(left.to_std().unwrap_or_default()), Vec::new())
            }
            ServicePlan::Foreign(whose) => {
                (ServiceState::Foreign(service::conflict(self.key, &whose)), Vec::new())
            }
            ServicePlan::Leaving => {
                let finalizer = self.stored.as_ref().and_then(|stored| stored.finalizer.clone());
                (ServiceState::Waiting(finalizer), Vec::new())
            }
            ServicePlan::Replace => (ServiceState::Ours, change("deleted, and created again")),
        }
    }

    fn endpoints(
        &self,
        family: AddressFamily,
        ports: &[EndpointPort],
        slices: &[Arc<StoredSlice>],
        backends: &BackendCounts,
    ) -> Vec<PlannedWrite> {
        let announcing = self.own().and_then(|own| self.views.announcing_node(own));
        let endpoints = &backends.endpoints;
        let plan = endpoint_slices::plan(
            self.lb.name,
            family,
            ports,
            slices,
            endpoints,
            announcing.as_ref(),
        );
        let change = |write: &SliceWrite| {
            let count = write.endpoints().iter().filter(|endpoint| !endpoint.is_sink()).count();
            let what = match write {
                SliceWrite::Create { .. } => format!("created: {count} endpoints"),
                SliceWrite::Update { .. } => format!("{count} endpoints"),
                SliceWrite::Delete { .. } => "deleted".to_owned(),
            };
            PlannedWrite::new(
                "EndpointSlice",
                &format!("{}/{}", self.lb.namespace, write.name()),
                what,
            )
        };
        plan.writes.iter().map(change).collect()
    }
}
