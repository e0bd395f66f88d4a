//! Checks that the tenant gains nothing, and that the victim loses nothing.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::api::{
    LABEL_SERVICE_LB, LABEL_SERVICE_NAME, LB_FINALIZER, LoadBalancer,
};
use harvester_guest_operator::domain::load_balancer::{facts, status};
use harvester_guest_operator::domain::object_fields::finalizers::removal_patch;
use harvester_guest_operator::domain::vm_backends::listeners;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use testbed::eventually;

use super::{ASKED, HELD, HONEST, LIAR, MINE, ON_LAN, VICTIM};
use crate::support::{Cluster, SOON, address};

/// Whether the tenant wrote this endpoint into a slice of the operator.
fn is_mine(endpoint: &Endpoint) -> bool {
    endpoint.hostname.as_deref() == Some(MINE)
}

/// Endpoint addresses of the operator's slices in a namespace, without the placeholder's.
/// The tenant's own slices and endpoints are left out: who may write EndpointSlices may name any
/// address in them, with or without this operator (CVE-2021-25740), so they show nothing about the
/// operator. An endpoint that the operator took over from them has lost the tenant's host name, and
/// counts. [`is_put_right`] says what becomes of the others.
pub(super) async fn endpoints(cluster: &Cluster, namespace: &str) -> Result<BTreeSet<String>> {
    let api = Api::<EndpointSlice>::namespaced(cluster.client.clone(), namespace);
    let mut found = BTreeSet::new();
    for slice in api.list(&ListParams::default()).await? {
        let is_ours = !slice.name_any().ends_with("-mine");
        let endpoints = slice.endpoints.into_iter().flatten().filter(|_| is_ours);
        let endpoints = endpoints.filter(|endpoint| !is_mine(endpoint));
        found.extend(endpoints.flat_map(|endpoint| endpoint.addresses));
    }
    found.remove("192.0.2.1");
    Ok(found)
}

/// Checks that no tenant has an address or endpoint of another.
pub(super) async fn nothing_gained(cluster: &Cluster) -> Result<()> {
    let mut holders = BTreeMap::new();
    for lb in Api::<LoadBalancer>::all(cluster.client.clone()).list(&ListParams::default()).await? {
        let Some(ip) = address(&lb) else { continue };
        // The address of an object in deletion is free before its finalizer is removed.
        if lb.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let namespace = lb.namespace().unwrap_or_default();
        let own = if namespace == "hostile" { "10.1.0." } else { "10.2.0." };
        ensure!(ip == "0.0.0.0" || ip.starts_with(own), "{namespace}/{} has {ip}", lb.name_any());
        let other = holders.insert(ip.clone(), lb.name_any());
        ensure!(ip == "0.0.0.0" || other.is_none(), "{ip}: {other:?} and {}", lb.name_any());
    }
    ensure!(holders.get(VICTIM).is_some_and(|name| name == "victim"), "{holders:?}");
    let theirs = endpoints(cluster, "theirs").await?;
    ensure!(theirs.iter().eq([HONEST]), "the victim's endpoints: {theirs:?}");
    let hostile = endpoints(cluster, "hostile").await?;
    let is_own = |address: &String| [LIAR, ON_LAN].contains(&address.as_str());
    ensure!(hostile.iter().all(is_own), "endpoints: {hostile:?}");
    Ok(())
}

/// UID of the victim's Service. Fails if the victim does not publish the address that it is
/// announced at.
pub(super) async fn victims_service(cluster: &Cluster) -> Result<String> {
    let lbs = Api::<LoadBalancer>::namespaced(cluster.client.clone(), "theirs");
    let published = lbs.get("victim").await?.status.and_then(|status| status.address);
    ensure!(published.as_deref() == Some(VICTIM), "the victim publishes {published:?}");
    let services = Api::<Service>::namespaced(cluster.client.clone(), "theirs");
    services.get("victim").await?.uid().context("a Service without UID")
}

/// Waits until the operator has done its part for each LoadBalancer that the tenant holds in
/// deletion, and removes the tenant's finalizer then. Such a LoadBalancer still shows its address,
/// which the operator has released.
pub(super) async fn let_go(cluster: &Cluster) -> Result<()> {
    eventually(SOON, "end of the LoadBalancers in deletion", async || {
        let left = let_go_once(cluster).await?;
        ensure!(left.is_empty(), "in deletion: {left:?}");
        anyhow::Ok(true)
    })
    .await
}

/// Removes the tenant's finalizer where the operator has removed its own, and the Service. Returns
/// the names of the LoadBalancers that were in deletion.
async fn let_go_once(cluster: &Cluster) -> Result<Vec<String>> {
    let lbs = Api::<LoadBalancer>::namespaced(cluster.client.clone(), "hostile");
    let services = Api::<Service>::namespaced(cluster.client.clone(), "hostile");
    let mut left = Vec::new();
    for lb in lbs.list(&ListParams::default()).await?.iter().filter(|lb| facts::is_leaving(lb)) {
        let name = lb.name_any();
        left.push(name.clone());
        let service = services.get_opt(&name).await?;
        let is_served = service.is_some_and(|service| is_owned_by(lb, &service.metadata));
        let is_held = lb.finalizers().iter().any(|finalizer| finalizer == LB_FINALIZER);
        if is_held || (listeners::is_vm(lb) && is_served) {
            continue;
        }
        if let Some(patch) = removal_patch(&lb.metadata, &[HELD]) {
            lbs.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
    }
    Ok(left)
}

/// Whether an object names the LoadBalancer as its owner.
fn is_owned_by(lb: &LoadBalancer, meta: &ObjectMeta) -> bool {
    let mut owners = meta.owner_references.iter().flatten();
    owners.any(|owner| lb.metadata.uid.as_ref() == Some(&owner.uid))
}

/// Whether the Service is the operator's own: the Service of a vm LoadBalancer that has an address.
fn is_the_operators(lb: &LoadBalancer, service: &Service) -> bool {
    let serves = listeners::is_vm(lb) && status::may_serve(lb);
    serves && lb.name_any() == service.name_any() && is_owned_by(lb, &service.metadata)
}

/// Checks that the operator's own Services and slices in the tenant's namespace have nothing of
/// what the tenant wrote into them, and that no LoadBalancer there publishes the victim's address.
///
/// The operator guarantees this only some time after the attack. A tenant who may write Services
/// can have kube-vip announce any address, by a Service of its own or, until the operator corrects
/// it, by the operator's Service. Until then, the operator may publish what kube-vip has announced.
/// A Service or slice whose owner the tenant has removed is the tenant's own: the operator leaves
/// it. So is a forged Service, unless it has the name of its owner, which serves.
pub(super) async fn is_put_right(cluster: &Cluster) -> Result<()> {
    let (client, all) = (cluster.client.clone(), ListParams::default());
    let lbs = Api::<LoadBalancer>::namespaced(client.clone(), "hostile").list(&all).await?;
    let is_owned = |meta: &ObjectMeta| lbs.iter().any(|lb| is_owned_by(lb, meta));
    let is_ours = |service: &&Service| lbs.iter().any(|lb| is_the_operators(lb, service));
    let slices = Api::<EndpointSlice>::namespaced(client.clone(), "hostile").list(&all).await?;
    for lb in &lbs {
        let published = lb.status.as_ref().and_then(|status| status.address.as_deref());
        ensure!(published != Some(VICTIM), "{} publishes {VICTIM}", lb.name_any());
    }
    let labelled = ListParams::default().labels(&format!("{LABEL_SERVICE_LB}=true"));
    let services = Api::<Service>::namespaced(client, "hostile").list(&labelled).await?;
    let mut checked = BTreeSet::new();
    for service in services.iter().filter(is_ours) {
        let name = service.name_any();
        let field = service.spec.as_ref().and_then(|spec| spec.load_balancer_ip.as_deref());
        let asked = service.annotations().get(ASKED).map(String::as_str);
        let asks = field == Some(VICTIM) || asked == Some(VICTIM);
        ensure!(!asks, "Service {name} asks for {VICTIM}");
        let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
        let ingress = status.and_then(|balancer| balancer.ingress.as_ref());
        let mut ingress = ingress.into_iter().flatten();
        let has = ingress.any(|ingress| ingress.ip.as_deref() == Some(VICTIM));
        ensure!(!has, "Service {name} has {VICTIM}");
        checked.insert(name);
    }
    // The slices of a LoadBalancer that has no Service lead no traffic.
    for slice in slices.iter().filter(|slice| is_owned(&slice.metadata)) {
        let service = slice.labels().get(LABEL_SERVICE_NAME);
        let is_checked = service.is_some_and(|name| checked.contains(name));
        let has = is_checked && slice.endpoints.iter().flatten().any(is_mine);
        ensure!(!has, "EndpointSlice {} is the tenant's", slice.name_any());
    }
    Ok(())
}
