//! Reads, writes and deletes the Service of a vm load balancer.

use chrono::Utc;
use k8s_openapi::api::core::v1::Service as FullService;
use kube::{Api, ResourceExt};

use super::settings::KeptSettings;
use super::{MOST_STEPS, ServiceTarget, WriteObstacle, not_written};
use crate::domain::vm_backends::readiness::ServiceState;
use crate::domain::vm_backends::service::stored::read_service;
use crate::domain::vm_backends::service::{self, ServicePlan, StoredService, WantedService};
use crate::k8s::calls::ApiCalls as _;

impl ServiceTarget<'_> {
    pub(super) fn stored(&self) -> Option<StoredService> {
        self.ctx.shared.views.services.of(&self.key).next()
    }

    /// Service with the LoadBalancer's name, if the LoadBalancer owns this Service.
    pub(super) fn own(&self) -> Option<StoredService> {
        self.stored().filter(|stored| service::foreign(&stored.owners, self.identity()).is_none())
    }

    /// Addresses at which kube-vip announces the Service that this LoadBalancer owns. Empty: there
    /// is no such Service, or it is not announced.
    pub(super) fn ingress(&self) -> Vec<String> {
        self.own().map(|stored| stored.ingress).unwrap_or_default()
    }

    /// Reads the Service from the API server, unless the view has the LoadBalancer's own Service
    /// with the operator's label. A Service without this label is not watched: the view may lack
    /// such a Service, or still have it after its deletion. `Err`: the Service has another owner,
    /// or could not be read.
    pub(super) async fn read_service_if_unwatched(&self) -> Result<(), WriteObstacle> {
        let is_watched = self.own().is_some_and(|own| own.labelled);
        if is_watched { Ok(()) } else { self.read_service().await }
    }

    pub(super) async fn read_service(&self) -> Result<(), WriteObstacle> {
        let api = Api::<FullService>::namespaced(self.client(), &self.namespace);
        match Box::pin(api.call_get_opt(&self.name)).await? {
            Some(service) => {
                let owners = read_service(&service).owners;
                if let Some(whose) = service::foreign(&owners, self.identity()) {
                    self.forget_service();
                    return Err(self.foreign_service(&whose));
                }
                self.store_service(&service);
            }
            None => self.forget_service(),
        }
        Ok(())
    }

    fn foreign_service(&self, whose: &str) -> WriteObstacle {
        WriteObstacle::ForeignService(service::conflict(&self.key, whose))
    }

    pub(super) fn store_service(&self, service: &FullService) {
        let version = service.resource_version().unwrap_or_default();
        let services = &self.ctx.shared.views.services;
        services.store(&self.key, &self.name, &version, read_service(service));
    }

    fn forget_service(&self) {
        if let Some(stored) = self.stored() {
            self.ctx.shared.views.services.forget(&self.key, &self.name, &stored.version);
        }
    }

    pub(super) async fn write_service(
        &self,
        wanted: &WantedService<'_>,
    ) -> Result<ServiceState, WriteObstacle> {
        let writer = &self.ctx.shared.writer;
        for _ in 0..MOST_STEPS {
            let stored = self.stored();
            let answer = match service::plan(stored.as_ref(), wanted, Utc::now().fixed_offset()) {
                ServicePlan::Keep => {
                    self.forget_settings().await?;
                    return Ok(ServiceState::Ours);
                }
                ServicePlan::DelayAnnouncement(left) => {
                    return Ok(ServiceState::Held(left.to_std().unwrap_or_default()));
                }
                ServicePlan::Foreign(whose) => return Err(self.foreign_service(&whose)),
                ServicePlan::Leaving => return Ok(self.waiting()),
                ServicePlan::Create(service) => self.create_service(service).await,
                ServicePlan::Change(patch) => {
                    let _turn = self.ctx.writes.take(self.namespace.clone()).await;
                    Box::pin(writer.patch_service(&self.namespace, &self.name, &patch)).await
                }
                ServicePlan::ChangeStatus(patch) => {
                    let _turn = self.ctx.writes.take(self.namespace.clone()).await;
                    let write = writer.patch_service_status(&self.namespace, &self.name, &patch);
                    Box::pin(write).await
                }
                ServicePlan::Replace => {
                    let Some(stored) = stored else { continue };
                    tracing::info!(lb = self.key, asks = wanted.asked(), "recreating the Service");
                    if self.delete_service(&stored, KeptSettings::Kept).await? {
                        continue;
                    }
                    return Ok(self.waiting());
                }
            };
            match answer {
                Ok(service) => self.store_service(&service),
                Err(error) => return Err(not_written(error, self.read_service()).await),
            }
        }
        Err(self.unsettled("Service").into())
    }

    /// State of a Service whose deletion is not complete. Contains the finalizer that delays the
    /// deletion, if the view has one.
    pub(super) fn waiting(&self) -> ServiceState {
        ServiceState::Waiting(self.stored().and_then(|stored| stored.finalizer))
    }

    /// Deletes the Service if it has another address family than the wanted one. Returns `false` if
    /// a finalizer delays the deletion, otherwise `true`.
    pub(super) async fn end_other_family(
        &self,
        wanted: &WantedService<'_>,
    ) -> Result<bool, WriteObstacle> {
        match self.own() {
            Some(stored) if service::other_family(&stored, wanted) => {
                if !stored.deleting {
                    tracing::info!(lb = self.key, asks = wanted.asked(), "recreating the Service");
                }
                self.delete_service(&stored, KeptSettings::Kept).await
            }
            _ => Ok(true),
        }
    }

    /// Deletes the Service. Returns whether it is gone; `false`: a finalizer delays the deletion.
    pub(super) async fn delete_service(
        &self,
        stored: &StoredService,
        settings: KeptSettings,
    ) -> Result<bool, WriteObstacle> {
        if stored.deleting {
            // A finalizer delays the deletion.
            return Ok(false);
        }
        let mut stored = stored.clone();
        if settings == KeptSettings::Kept {
            match self.keep_settings(&stored.uid).await? {
                Some(now) => stored = now,
                None => return Ok(true),
            }
        }
        let _turn = self.ctx.writes.take(self.namespace.clone()).await;
        let writer = &self.ctx.shared.writer;
        let StoredService { uid, version, .. } = &stored;
        match Box::pin(writer.delete_service(&self.namespace, &self.name, uid, version)).await {
            Ok(Some(left)) => {
                self.store_service(&left);
                Ok(false)
            }
            Ok(None) => {
                self.forget_service();
                Ok(true)
            }
            Err(error) => Err(not_written(error, self.read_service()).await),
        }
    }
}
