//! Owns a stand-in for the host's announcer (kube-vip), which puts addresses of Services into the
//! network and writes them to the Services' status.
//!
//! It follows kube-vip 1.2's rule: it publishes nothing before the Service's EndpointSlices hold an
//! endpoint; with the policy Local, an endpoint that serves on the announcer's node
//! (`getAllEndpoints`, pkg/endpoints/endpoints_generic.go). When the last such endpoint goes, the
//! network loses the address, and the status keeps it. A Service that changes in place a field that
//! `serviceChanged` compares (kube-vip v1.2.3 pkg/services/processor.go: addresses, external
//! traffic policy, families) loses the address in the network for good, and the status keeps it.
//! The announcer announces a new Service, and after its own restart also the changed one.

mod packet_filter;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::{LoadBalancerIngress, PortStatus, Service, ServicePort};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, Resource, ResourceExt};
use kube_runtime::WatchStreamExt as _;
use kube_runtime::watcher::{self, Event, watcher};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use self::packet_filter::PacketFilter;
use crate::net::Lan;

const ADDRESSES: &str = "kube-vip.io/loadbalancerIPs";
const IGNORE: &str = "kube-vip.io/ignore";
const HOST: &str = "kube-vip.io/vipHost";
const WITHOUT_ENDPOINTS: &str = "kube-vip.io/allow-reconcile-without-endpoints";
const SERVICE: &str = "kubernetes.io/service-name";
/// Delay after a failed write.
const AGAIN: Duration = Duration::from_millis(100);
/// Watch timeout in seconds; shorter than the silence that ends a call of a bed's client.
const WATCH: u32 = 20;

/// Options of an announcer.
#[derive(Clone, Debug, Default)]
pub struct Announcing {
    /// Address for a Service that asks for `0.0.0.0`; without it such a Service gets no address.
    pub leased: Option<String>,
    /// Whether to count only serving endpoints, as later versions do; 1.2 counts all.
    pub serving_only: bool,
    /// Network to put addresses into; without it only statuses are written.
    pub lan: Option<Arc<Lan>>,
    /// Node of the announcer, which it writes to Services. Without it each endpoint counts as one
    /// of that node.
    pub node: Option<String>,
    /// Whether to start away: it observes everything and does nothing.
    pub away: bool,
}

/// A running announcer. Dropping it ends it; what it published stays.
#[derive(Debug)]
pub struct Announcer {
    task: JoinHandle<()>,
    away: watch::Sender<bool>,
}

impl Announcer {
    /// Starts an announcer for all Services of the cluster.
    pub fn start(client: Client, how: Announcing) -> Self {
        let (away, present) = watch::channel(how.away);
        let task = tokio::spawn(announce(client, how, present));
        Self { task, away }
    }

    /// Makes it stop acting, or act again as after a restart.
    pub fn away(&self, away: bool) {
        self.away.send_replace(away);
    }
}

impl Drop for Announcer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Namespace and name.
type Key = (String, String);

async fn announce(client: Client, how: Announcing, mut away: watch::Receiver<bool>) {
    let mut services = changes::<Service>(&client);
    let mut slices = changes::<EndpointSlice>(&client);
    let mut view = View { how, ..View::default() };
    loop {
        let unfinished = !view.changed.is_empty() && !*away.borrow();
        tokio::select! {
            Some(event) = services.next() => view.service(event),
            Some(event) = slices.next() => view.slice(event),
            Ok(()) = away.changed() => {}
            () = sleep(AGAIN), if unfinished => {}
            else => return,
        }
        // An incomplete list looks as if the other objects were deleted.
        if *away.borrow_and_update() {
            view.instances.clear();
            continue;
        }
        if !view.is_whole() {
            continue;
        }
        for key in std::mem::take(&mut view.changed) {
            if let Err(e) = view.settle(&client, &key).await {
                eprintln!("testbed: announcer: {}/{}: {e:#}", key.0, key.1);
                view.changed.insert(key);
            }
        }
    }
}

/// Stream of all events of a kind, without end.
fn changes<K>(client: &Client) -> BoxStream<'static, Event<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let config = watcher::Config::default().timeout(WATCH);
    watcher(Api::<K>::all(client.clone()), config)
        .default_backoff()
        .filter_map(async |event| event.ok())
        .boxed()
}

/// State that the announcer has observed.
#[derive(Debug, Default)]
struct View {
    how: Announcing,
    services: BTreeMap<Key, Service>,
    services_listed: bool,
    /// Service of each EndpointSlice, and its endpoints.
    slices: BTreeMap<Key, (Key, Vec<Endpoint>)>,
    slices_listed: bool,
    /// Services to reconcile.
    changed: BTreeSet<Key>,
    /// Addresses of each Service that are in the network, and the traffic admitted to them.
    bound: BTreeMap<Key, Vec<(String, PacketFilter)>>,
    /// Instances of kube-vip, by the Service's UID.
    instances: BTreeMap<String, Instance>,
}

/// kube-vip's memory of a Service.
#[derive(Debug)]
struct Instance {
    /// Addresses, policy and families at the time when the instance was made.
    snapshot: Value,
    /// Ports at the time when the instance was made: kube-vip never reads them again
    /// (`SetServicePorts`).
    ports: Vec<(String, i32)>,
    /// Whether the Service has changed one of the snapshot's fields.
    is_lost: bool,
}

impl View {
    fn service(&mut self, event: Event<Service>) {
        match event {
            Event::Apply(service) | Event::InitApply(service) => {
                let key = key(&service);
                self.changed.insert(key.clone());
                self.services.insert(key, service);
            }
            Event::Delete(service) => {
                let key = key(&service);
                self.services.remove(&key);
                self.changed.insert(key);
            }
            Event::Init => {
                self.services_listed = false;
                self.changed.extend(std::mem::take(&mut self.services).into_keys());
            }
            Event::InitDone => self.services_listed = true,
        }
    }

    fn slice(&mut self, event: Event<EndpointSlice>) {
        match event {
            Event::Apply(slice) | Event::InitApply(slice) => {
                let name = slice.labels().get(SERVICE).cloned().unwrap_or_default();
                let service = (slice.namespace().unwrap_or_default(), name);
                self.changed.insert(service.clone());
                self.slices.insert(key(&slice), (service, slice.endpoints.unwrap_or_default()));
            }
            Event::Delete(slice) => {
                self.changed.extend(self.slices.remove(&key(&slice)).map(|(service, _)| service));
            }
            Event::Init => {
                self.slices_listed = false;
                let former = std::mem::take(&mut self.slices).into_values();
                self.changed.extend(former.map(|(service, _)| service));
            }
            Event::InitDone => self.slices_listed = true,
        }
    }

    fn is_whole(&self) -> bool {
        self.services_listed && self.slices_listed
    }

    fn counts(&self, endpoint: &Endpoint, is_local: bool) -> bool {
        let conditions = endpoint.conditions.as_ref();
        let serving = conditions.and_then(|c| c.serving.or(c.ready)).unwrap_or(true);
        let here = self.how.node.is_none() || endpoint.node_name == self.how.node;
        if is_local { serving && here } else { serving || !self.how.serving_only }
    }

    /// Reconciles one Service.
    async fn settle(&mut self, client: &Client, key: &Key) -> Result<()> {
        let asked = self.asked(key).filter(|_| !self.is_lost(key));
        let ports = self.ports(key);
        if let Some(lan) = &self.how.lan {
            let wanted = asked.clone().unwrap_or_default();
            let bound = self.bound.entry(key.clone()).or_default();
            while let Some(at) = bound.iter().position(|(address, _)| !wanted.contains(address)) {
                let (address, filter) = &bound[at];
                lan.unbind(address).await?;
                filter.remove(lan.host()).await?;
                bound.remove(at);
            }
            for address in wanted {
                if bound.iter().all(|(bound, _)| *bound != address) {
                    lan.bind(&address).await?;
                    let filter = PacketFilter::new(key, &address, &ports);
                    bound.push((address, filter.clone()));
                    filter.insert(lan.host()).await?;
                }
            }
        }
        let Some(asked) = asked else { return Ok(()) };
        let ports: Vec<Value> = ports
            .iter()
            .map(|(protocol, port)| json!({"protocol": protocol, "port": port}))
            .collect();
        let ingress: Vec<Value> =
            asked.iter().map(|ip| json!({"ip": ip, "ports": ports})).collect();
        if self.services.get(key).map(published) == Some(json!(ingress)) {
            return Ok(());
        }
        let api = Api::<Service>::namespaced(client.clone(), &key.0);
        let params = PatchParams::default();
        let node = json!({"metadata": {"annotations": {HOST: self.how.node}}});
        let status = json!({"status": {"loadBalancer": {"ingress": ingress}}});
        let written = async {
            if self.how.node.is_some() {
                api.patch(&key.1, &params, &Patch::Merge(node)).await?;
            }
            api.patch_status(&key.1, &params, &Patch::Merge(status)).await
        };
        match written.await {
            // The answer to the write is the latest known state: the watch delivers later ones.
            Ok(service) => drop(self.services.insert(key.clone(), service)),
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(e) => return Err(e.into()),
        }
        Ok(())
    }

    /// Ports that kube-vip has stored for a Service: those of its instance.
    fn ports(&self, key: &Key) -> Vec<(String, i32)> {
        let uid = self.services.get(key).and_then(ResourceExt::uid);
        let instance = uid.and_then(|uid| self.instances.get(&uid));
        instance.map(|instance| instance.ports.clone()).unwrap_or_default()
    }

    /// Whether the Service changed in a way that makes kube-vip lose its address.
    fn is_lost(&mut self, key: &Key) -> bool {
        let Some(service) = self.services.get(key) else { return false };
        let Some(spec) = &service.spec else { return false };
        let snapshot = json!([
            service.annotations().get(ADDRESSES).or(spec.load_balancer_ip.as_ref()),
            spec.external_traffic_policy,
            spec.ip_families,
            spec.ip_family_policy,
        ]);
        let uid = service.uid().unwrap_or_default();
        let instance = self.instances.entry(uid).or_insert_with(|| Instance {
            snapshot: snapshot.clone(),
            ports: spec.ports.iter().flatten().map(protocol_and_port).collect(),
            is_lost: false,
        });
        instance.is_lost |= instance.snapshot != snapshot;
        instance.is_lost
    }

    /// Addresses that the Service should have now.
    fn asked(&self, key: &Key) -> Option<Vec<String>> {
        let service = self.services.get(key)?;
        let spec = service.spec.as_ref()?;
        let says = |annotation: &str| service.annotations().get(annotation).map(String::as_str);
        let ignored = says(IGNORE) == Some("true") || service.metadata.deletion_timestamp.is_some();
        if spec.type_.as_deref() != Some("LoadBalancer") || ignored {
            return None;
        }
        let is_local = spec.external_traffic_policy.as_deref() == Some("Local");
        let own = self.slices.values().filter(|(owner, _)| owner == key);
        let any = own.flat_map(|(_, endpoints)| endpoints).any(|e| self.counts(e, is_local));
        if !any && (is_local || says(WITHOUT_ENDPOINTS) != Some("true")) {
            return None;
        }
        let asked = says(ADDRESSES).or(spec.load_balancer_ip.as_deref())?;
        let asked: Option<Vec<String>> = asked
            .split(',')
            .map(str::trim)
            .filter(|address| !address.is_empty())
            .map(|address| match address {
                "0.0.0.0" => self.how.leased.clone(),
                address => Some(address.to_owned()),
            })
            .collect();
        asked.filter(|asked| !asked.is_empty())
    }
}

/// Content of the status: each address with the ports published for it, and their errors
/// (`ingressEqual`, pkg/services/services.go).
fn published(service: &Service) -> Value {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = status.and_then(|balancer| balancer.ingress.as_ref());
    let of = |ingress: &LoadBalancerIngress| {
        let port = |port: &PortStatus| match &port.error {
            Some(error) => json!({"protocol": port.protocol, "port": port.port, "error": error}),
            None => json!({"protocol": port.protocol, "port": port.port}),
        };
        let ports: Vec<Value> = ingress.ports.iter().flatten().map(port).collect();
        json!({"ip": ingress.ip, "ports": ports})
    };
    ingress.into_iter().flatten().map(of).collect()
}

fn protocol_and_port(port: &ServicePort) -> (String, i32) {
    (port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()), port.port)
}

fn key<K: Resource>(object: &K) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}
