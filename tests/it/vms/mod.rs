//! Load balancers of type vm: Services and EndpointSlices from ready VMs.

mod addresses;
mod announcing;
mod crash;
mod endpoints;
mod families;
mod held;
pub(crate) mod input;
mod leaving;
mod matrix;
mod moving;
mod not_ours;
mod order;
pub(crate) mod raw;
mod repair;
mod scale;
mod second_opinion;
mod takeover;
mod topology;
mod watching;

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::api::LoadBalancer;
use harvester_guest_operator::domain::vm_backends::endpoint_slices::SINK_UID;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use kube::api::{ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::core::{NamespaceResourceScope, Resource};
use kube::{Api, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use testbed::eventually;
use testbed::kubevirt::{Nic, Vm};
use tokio::net::{TcpListener, TcpSocket, UdpSocket};

use crate::support::{Cluster, SOON, lb, ready};

/// Name of the sink in [`Cluster::endpoints`].
const SINK: &str = "~sink";

/// An endpoint of a slice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) address: String,
    /// `ready`, or the endpoint's other conditions.
    pub(crate) state: String,
    pub(crate) node: String,
    pub(crate) uid: String,
}

/// Name of an endpoint, and its fields.
fn seen(endpoint: &Endpoint) -> (String, Seen) {
    let target = endpoint.target_ref.clone().unwrap_or_default();
    let c = endpoint.conditions.clone().unwrap_or_default();
    let state = match (c.ready, c.serving, c.terminating) {
        (Some(true), Some(true), Some(false)) => "ready".to_owned(),
        (Some(false), Some(true), Some(true)) => "serving, terminating".to_owned(),
        (Some(false), Some(false), Some(true)) => "terminating".to_owned(),
        (Some(false), Some(false), Some(false)) => "not ready".to_owned(),
        odd => format!("{odd:?}"),
    };
    let uid = target.uid.unwrap_or_default();
    let name = if uid == SINK_UID { SINK.to_owned() } else { target.name.unwrap_or_default() };
    let address = endpoint.addresses.join(",");
    (name, Seen { address, state, node: endpoint.node_name.clone().unwrap_or_default(), uid })
}

/// Shared by the scenarios about LoadBalancers of VMs.
impl Cluster {
    fn all<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), "default")
    }

    fn services(&self) -> Api<Service> {
        self.all()
    }

    fn slices(&self) -> Api<EndpointSlice> {
        self.all()
    }

    /// Creates a LoadBalancer for the VMs whose label `app` is its name.
    async fn vm_lb(&self, name: &str) -> Result<LoadBalancer> {
        self.lb_with(name, json!({"backendServerSelector": {"app": [name]}})).await
    }

    /// Creates a LoadBalancer with annotations.
    async fn annotated(&self, name: &str, annotations: Value, spec: Value) -> Result<()> {
        let mut lb = lb(name, &spec)?;
        lb.metadata.annotations = serde_json::from_value(annotations)?;
        self.lbs().create(&PostParams::default(), &lb).await?;
        Ok(())
    }

    async fn slices_of(&self, namespace: &str, lb: &str) -> Result<Vec<EndpointSlice>> {
        let api: Api<EndpointSlice> = Api::namespaced(self.client.clone(), namespace);
        let of = ListParams::default().labels(&format!("kubernetes.io/service-name={lb}"));
        Ok(api.list(&of).await?.items)
    }

    /// Waits until the LoadBalancer counts so many VMs, and so many ready ones.
    pub(crate) async fn waits_for_endpoints(&self, lb: &str, counts: (i32, i32)) -> Result<()> {
        eventually(SOON, &format!("{counts:?} endpoints of {lb}"), async || {
            let status = self.lbs().get(lb).await.map_err(|e| e.to_string())?.status;
            let is = status.and_then(|s| s.endpoints).map(|e| (e.total, e.ready));
            if is == Some(counts) { Ok(true) } else { Err(format!("{is:?}")) }
        })
        .await
    }

    /// Endpoints by the name of the VM. Fails if one occurs twice.
    pub(crate) async fn endpoints(&self, lb: &str) -> Result<BTreeMap<String, Seen>> {
        self.endpoints_in("default", lb).await
    }

    async fn endpoints_in(&self, namespace: &str, lb: &str) -> Result<BTreeMap<String, Seen>> {
        let mut found = BTreeMap::new();
        for slice in self.slices_of(namespace, lb).await? {
            for (name, seen) in slice.endpoints.iter().flatten().map(seen) {
                let other = found.insert(name.clone(), seen);
                ensure!(other.is_none(), "{name} is there twice: {other:?}");
            }
        }
        Ok(found)
    }

    /// Waits until the endpoints are these, by name, address and state.
    async fn endpoints_are(&self, lb: &str, expected: &[(&str, &str, &str)]) -> Result<()> {
        let expected: Vec<String> =
            expected.iter().map(|(n, a, s)| format!("{n} {a} {s}")).collect();
        eventually(SOON, &format!("endpoints {expected:?} of {lb}"), async || {
            let found = self.endpoints(lb).await.map_err(|e| format!("{e:#}"))?;
            let found: Vec<String> =
                found.iter().map(|(n, e)| format!("{n} {} {}", e.address, e.state)).collect();
            if found == expected { Ok(true) } else { Err(format!("{found:?}")) }
        })
        .await
    }

    /// Waits until the LoadBalancer is ready for this reason, and returns the message.
    async fn serves(&self, name: &str, reason: &str) -> Result<String> {
        eventually(SOON, &format!("readiness of {name}, {reason}"), async || {
            let lb = self.lbs().get(name).await.map_err(|e| e.to_string())?;
            let is = ready(&lb);
            if is.0 == "True" && is.1 == reason { Ok(Some(is.2)) } else { Err(format!("{is:?}")) }
        })
        .await
    }

    /// Published address of a LoadBalancer.
    async fn reached_at(&self, name: &str) -> Result<Option<String>> {
        Ok(self.lbs().get(name).await?.status.and_then(|status| status.address))
    }

    /// Waits until the LoadBalancer publishes this address.
    async fn is_reached_at(&self, name: &str, address: Option<&str>) -> Result<()> {
        eventually(SOON, &format!("{name} reached at {address:?}"), async || {
            let now = self.reached_at(name).await.map_err(|e| e.to_string())?;
            if now.as_deref() == address { Ok(true) } else { Err(format!("{now:?}")) }
        })
        .await
    }

    /// Writes the Service's status, as an announcer would.
    async fn announce(&self, service: &str, addresses: &[&str]) -> Result<()> {
        let ingress: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
        let ingress = if ingress.is_empty() { Value::Null } else { json!(ingress) };
        let status = json!({"status": {"loadBalancer": {"ingress": ingress}}});
        let params = PatchParams::default();
        self.services().patch_status(service, &params, &Patch::Merge(status)).await?;
        Ok(())
    }

    /// Waits for a Service that satisfies the condition, and returns it.
    async fn service_when(
        &self,
        name: &str,
        what: &str,
        is: impl Fn(&Service) -> bool,
    ) -> Result<Service> {
        eventually(SOON, &format!("Service {name} with {what}"), async || {
            let found = self.services().get_opt(name).await.map_err(|e| e.to_string())?;
            match found {
                Some(service) if is(&service) => Ok(Some(service)),
                other => Err(format!("{}", json!(other))),
            }
        })
        .await
    }

    /// Merges a patch into an object.
    async fn edit<K>(&self, name: &str, patch: Value) -> Result<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug,
    {
        let api = self.all::<K>();
        let edited = api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        edited.with_context(|| format!("edit {name}: {patch}"))
    }
}

/// A VM of a load balancer, with an address on the pod network.
fn vm(lb: &str, name: &str, address: &str) -> Vm {
    Vm::new("default", name).label("app", lb).nic(Nic::pod("eth0", &[address]))
}

/// Resource version, which every write changes.
fn version(meta: &ObjectMeta) -> String {
    meta.resource_version.clone().unwrap_or_default()
}

fn annotation<'a>(service: &'a Service, key: &str) -> Option<&'a str> {
    service.annotations().get(key).map(String::as_str)
}

/// An address of this machine that is not loopback, a closed port there as long as its socket is
/// held, and a listener.
async fn ports_here() -> Result<(String, TcpSocket, TcpListener)> {
    let way_out = UdpSocket::bind("0.0.0.0:0").await?;
    way_out.connect("192.0.2.1:9").await.context("this machine has no address")?;
    let here = way_out.local_addr()?.ip();
    let closed = if here.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    closed.bind((here, 0).into())?;
    Ok((here.to_string(), closed, TcpListener::bind((here, 0)).await?))
}
