//! Owns a stand-in for Harvester's guest cloud provider: it makes a LoadBalancer in the host cluster
//! for each Service of type LoadBalancer in a guest cluster.
//!
//! It follows what harvester/cloud-provider-harvester does (pkg/cloud-controller-manager): it
//! creates the LoadBalancer, reads it once a second until it has an address, and asks the guest's
//! kube-vip for that address by an annotation of the Service. It watches no LoadBalancers. A Service
//! that is deleted stays until its LoadBalancer is deleted.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Service;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt as _};
use kube_runtime::WatchStreamExt as _;
use kube_runtime::watcher::{self, Event, watcher};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::interval;

const ADDRESSES: &str = "kube-vip.io/loadbalancerIPs";
/// Finalizer that Kubernetes' service controller sets.
const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
/// Watch timeout in seconds; shorter than the silence that ends a call of a bed's client.
const WATCH: u32 = 20;
/// Pause between two reads of a LoadBalancer.
const PAUSE: Duration = Duration::from_secs(1);

/// A running cloud provider. Dropping it ends it; what it made stays.
#[derive(Debug)]
pub struct CloudProvider {
    task: JoinHandle<()>,
}

/// The two clusters, and the guest's name and namespace in the host.
struct Clusters {
    guest: Client,
    host: Client,
    name: String,
    namespace: String,
}

impl CloudProvider {
    /// Starts it for all Services of a guest cluster. It makes LoadBalancers in a namespace of the
    /// host, with the client of the guest's cloud config.
    pub fn start(guest: Client, host: Client, name: &str, namespace: &str) -> Self {
        let (name, namespace) = (name.to_owned(), namespace.to_owned());
        Self { task: tokio::spawn(Clusters { guest, host, name, namespace }.serve()) }
    }
}

impl Drop for CloudProvider {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Clusters {
    async fn serve(self) {
        let config = watcher::Config::default().timeout(WATCH);
        let services = watcher(Api::<Service>::all(self.guest.clone()), config);
        let mut services = std::pin::pin!(services.default_backoff());
        // Services that are not settled yet, by UID.
        let mut open: BTreeMap<String, Service> = BTreeMap::new();
        let mut look = interval(PAUSE);
        loop {
            tokio::select! {
                Some(event) = services.next() => match event {
                    Ok(Event::Apply(service) | Event::InitApply(service)) => {
                        match open.get_mut(&uid(&service)) {
                            // The next step waits for its turn.
                            Some(known) => *known = service,
                            None => self.settle(&mut open, service).await,
                        }
                    }
                    Ok(Event::Delete(service)) => drop(open.remove(&uid(&service))),
                    Ok(Event::Init | Event::InitDone) | Err(_) => {}
                },
                _ = look.tick() => {
                    for service in std::mem::take(&mut open).into_values() {
                        self.settle(&mut open, service).await;
                    }
                }
                else => return,
            }
        }
    }

    /// Takes the next step for a Service, and notes whether another one is left.
    async fn settle(&self, open: &mut BTreeMap<String, Service>, service: Service) {
        let is_done = self.step(&service).await.unwrap_or_else(|error| {
            let (namespace, name) = (service.namespace().unwrap_or_default(), service.name_any());
            eprintln!("testbed: cloud provider: {namespace}/{name}: {error:#}");
            false
        });
        if !is_done {
            open.insert(uid(&service), service);
        }
    }

    async fn step(&self, service: &Service) -> Result<bool> {
        let is_balanced =
            service.spec.as_ref().is_some_and(|spec| spec.type_.as_deref() == Some("LoadBalancer"));
        let is_held = service.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
        if service.metadata.deletion_timestamp.is_some() {
            return if is_held { self.delete(service).await } else { Ok(true) };
        }
        if !is_balanced || service.annotations().contains_key(ADDRESSES) {
            return Ok(true);
        }
        if !is_held {
            self.patch(service, json!({"metadata": {"finalizers": [FINALIZER]}})).await?;
        }
        let Some(address) = self.address(service).await? else { return Ok(false) };
        self.patch(service, json!({"metadata": {"annotations": {ADDRESSES: address}}})).await?;
        Ok(true)
    }

    /// Address of the Service's LoadBalancer, which is made if it does not exist.
    async fn address(&self, service: &Service) -> Result<Option<String>> {
        let (api, name) = (self.balancers(), self.balancer_of(service));
        let Some(found) = api.get_opt(&name).await? else {
            let balancer = json!({
                "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
                "metadata": {"name": name, "labels": {
                    "cloudprovider.harvesterhci.io/cluster": self.name,
                    "cloudprovider.harvesterhci.io/serviceNamespace": service.namespace(),
                    "cloudprovider.harvesterhci.io/serviceName": service.name_any(),
                }},
                "spec": {"workloadType": "cluster", "ipam": "pool"},
            });
            let balancer = serde_json::from_value(balancer)?;
            api.create(&PostParams::default(), &balancer).await.context("create a LoadBalancer")?;
            return Ok(None);
        };
        let address = found.data["status"]["allocatedAddress"]["ip"].as_str();
        Ok(address.filter(|address| !address.is_empty()).map(str::to_owned))
    }

    /// Deletes the LoadBalancer, then lets the Service go.
    async fn delete(&self, service: &Service) -> Result<bool> {
        let name = self.balancer_of(service);
        match self.balancers().delete(&name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            done => drop(done.context("delete a LoadBalancer")?),
        }
        self.patch(service, json!({"metadata": {"finalizers": null}})).await?;
        Ok(true)
    }

    async fn patch(&self, service: &Service, patch: serde_json::Value) -> Result<()> {
        let namespace = service.namespace().unwrap_or_default();
        let api = Api::<Service>::namespaced(self.guest.clone(), &namespace);
        let params = PatchParams::default();
        match api.patch(&service.name_any(), &params, &Patch::Merge(patch)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            done => done.map(drop).context("change a Service"),
        }
    }

    fn balancers(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("loadbalancer.harvesterhci.io", "v1beta1", "LoadBalancer");
        let kind = ApiResource::from_gvk_with_plural(&kind, "loadbalancers");
        Api::namespaced_with(self.host.clone(), &self.namespace, &kind)
    }

    /// Name of the Service's LoadBalancer. It ends in a part of the Service's UID.
    fn balancer_of(&self, service: &Service) -> String {
        let (namespace, uid) = (service.namespace().unwrap_or_default(), uid(service));
        let part = uid.split('-').next().unwrap_or_default();
        format!("{}-{namespace}-{}-{part}", self.name, service.name_any())
    }
}

fn uid(service: &Service) -> String {
    service.uid().unwrap_or_default()
}
