//! A scenario in which the operator needs each of its rights once.

use anyhow::{Result, ensure};
use harvester_guest_operator::api::TokenRotation;
use harvester_guest_operator::domain::dhcp_lease::agent_name;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, ClusterResourceScope, GroupVersionKind, NamespaceResourceScope};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use testbed::kubevirt::{Guest, Nic, Vm, create_node};
use testbed::{Start, agent_template, eventually};

use crate::leases::{Agent, agents};
use crate::support::{Cluster, LATER, SOON};

const NETWORK: &str = "default/vlan7";
const CRD: &str = "loadbalancers.loadbalancer.harvesterhci.io";
const IP_POOLS: &str = "ippools.loadbalancer.harvesterhci.io";
const SECRET: &str = "harvester-guest-operator-admission";
const REGISTERED_BY: &str = "loadbalancer.harvesterhci.io/registered-by";
const WEBHOOK: &str = "harvester-load-balancer-webhook";

/// Creates a VM for the length of the test, on a node in a zone.
pub(super) async fn vm(cluster: &Cluster) -> Result<Guest> {
    let zone = [("topology.kubernetes.io/zone", "a")];
    create_node(&cluster.client, "node-1", &zone, "10.0.0.1").await?;
    let vm = Vm::new("default", "vm").label("app", "web").nic(Nic::pod("eth0", &["10.9.0.1"]));
    Guest::run(&cluster.client, vm, "node-1").await
}

/// Removes the objects of an earlier run, so that all work is due again. No operator may run.
pub(super) async fn begin(cluster: &Cluster) -> Result<()> {
    // First the webhooks, which would be called for the rest.
    let unregistered = json!({"metadata": {"labels": {REGISTERED_BY: null}}, "webhooks": null});
    change::<ValidatingWebhookConfiguration>(cluster, &unregistered).await?;
    change::<MutatingWebhookConfiguration>(cluster, &unregistered).await?;
    clear(cluster.lbs()).await?;
    clear(cluster.pools()).await?;
    clear(cluster.records()).await?;
    clear(rotations(cluster)).await?;
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), "harvester-system");
    let empty = Patch::Merge(json!({"data": null}));
    secrets.patch(SECRET, &PatchParams::default(), &empty).await?;
    gone::<Lease>(cluster, "kube-system", "harvester-load-balancer").await?;
    gone::<ConfigMap>(cluster, "kube-system", "kubevip").await?;
    gone::<Deployment>(cluster, "harvester-system", &agent_name(NETWORK)).await?;
    for name in ["vm", "theirs", "sliced"] {
        gone::<Service>(cluster, "default", name).await?;
        gone::<EndpointSlice>(cluster, "default", name).await?;
    }
    // Objects may be stored in an old version, and kube-vip has recorded addresses.
    let stored = json!({"status": {"storedVersions": ["v1alpha1", "v1beta1"]}});
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    crds.patch_status(CRD, &PatchParams::default(), &Patch::Merge(stored)).await?;
    // The operator removes a subresource while another controller leads.
    let ours = harvester_guest_operator::api::crds().into_iter().find(|c| c.name_any() == IP_POOLS);
    let ours = Patch::Merge(json!({"spec": {"versions": ours.map(|crd| crd.spec.versions)}}));
    crds.patch(IP_POOLS, &PatchParams::default(), &ours).await?;
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "kubevip", "namespace": "kube-system"},
        "data": {"cidr-other": "10.7.0.0/24"}});
    cluster.bed.apply_yaml(&object.to_string()).await?;
    let object = json!({"metadata": {"annotations": {"topology.kubernetes.io/zone": null}}});
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(
        "kubevirt.io",
        "v1",
        "VirtualMachineInstance",
    ));
    let vmis: Api<DynamicObject> = Api::namespaced_with(cluster.client.clone(), "default", &kind);
    vmis.patch("vm", &PatchParams::default(), &Patch::Merge(object)).await?;
    patiently(async || Ok(cluster.lbs().list(&ListParams::default()).await.map(drop)?)).await
}

/// Repeats a call: the API server answers 429 for a moment after a write of the CRD, which the
/// operator does too.
async fn patiently<T>(call: impl AsyncFn() -> Result<T>) -> Result<T> {
    eventually(SOON, "an answer about LoadBalancers", async || call().await.map(Some)).await
}

async fn lb(cluster: &Cluster, name: &str, spec: Value) -> Result<()> {
    patiently(async || cluster.lb_with(name, spec.clone()).await.map(drop)).await
}

async fn deleted(cluster: &Cluster, name: &str) -> Result<()> {
    patiently(async || cluster.delete(name).await).await?;
    patiently(async || {
        let left = cluster.lbs().get_opt(name).await?;
        ensure!(left.is_none(), "{name} is still there");
        Ok(())
    })
    .await
}

/// Deletes all objects of a kind, finalizers or not.
async fn clear<K>(api: Api<K>) -> Result<()>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let loose = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    patiently(async || {
        for object in api.list(&ListParams::default()).await? {
            api.patch(&object.name_any(), &PatchParams::default(), &loose).await?;
        }
        api.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        Ok(())
    })
    .await
}

async fn gone<K>(cluster: &Cluster, namespace: &str, name: &str) -> Result<()>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    let api: Api<K> = Api::namespaced(cluster.client.clone(), namespace);
    match api.delete(name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        other => other.map(drop).map_err(Into::into),
    }
}

/// Changes the webhook configuration of a kind, as an administrator does.
async fn change<K>(cluster: &Cluster, patch: &Value) -> Result<()>
where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    let api: Api<K> = Api::all(cluster.client.clone());
    api.patch(WEBHOOK, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

/// Runs the scenario, from the first start to the release of the last address.
pub(super) async fn work(cluster: &Cluster) -> Result<()> {
    let variables = vec![("HGO_ADMISSION_OWNER".to_owned(), "harvester-guest-operator".to_owned())];
    let admission = Some("https://127.0.0.1:0".to_owned());
    let options = ["--dhcp-release-grace".to_owned(), "0".to_owned()];
    let options = [&options[..], &agent_template()?].concat();
    let start = Start { admission, variables, options, ..Start::default() };
    let mut operator = cluster.standby(start).await?;
    operator.leads().await?;
    cluster.pool("p", json!({"subnet": "10.1.0.0/24", "gateway": "10.1.0.1"})).await?;
    lb(cluster, "cluster", json!({"workloadType": "cluster", "ipam": "pool"})).await?;
    let address = cluster.address("cluster").await?;
    let web = json!({"backendServerSelector": {"app": ["web"]}});
    lb(cluster, "vm", web).await?;
    cluster.waits_for_endpoints("vm", (1, 1)).await?;
    // One more port: with a removed port the Service would be replaced.
    let more = [80, 81].map(|port| json!({"name": format!("p{port}"), "port": port}));
    patiently(async || cluster.patch_lb("vm", json!({"spec": {"listeners": more}})).await).await?;
    // At first, the announcement of the Service is delayed.
    let services = kube::Api::<Service>::default_namespaced(cluster.client.clone());
    eventually(SOON, "two ports of the Service", async || {
        let spec = services.get("vm").await?.spec.unwrap_or_default();
        anyhow::Ok(spec.ports.is_some_and(|ports| ports.len() == 2))
    })
    .await?;
    // The operator reads a pool again after a foreign write; admission asks whether a LoadBalancer
    // exists.
    cluster.patch_pool("p", json!({"spec": {"description": "changed"}})).await?;
    let release = |owner: &str| {
        let at = "loadbalancer.harvesterhci.io/manuallyReleaseIP";
        json!({"metadata": {"annotations": {at: format!("{address}: {owner}")}}})
    };
    // The address is in use, and stays claimed.
    patiently(async || cluster.patch_pool("p", release("default/cluster")).await).await?;
    ensure!(cluster.allocated("p").await?.contains_key(&address), "an address in use was released");
    not_ours(cluster).await?;
    leases(cluster).await?;
    credentials(cluster).await?;
    // Others change the webhook configurations and their Secret.
    let unlabelled = json!({"metadata": {"labels": {REGISTERED_BY: null}}});
    change::<ValidatingWebhookConfiguration>(cluster, &unlabelled).await?;
    change::<MutatingWebhookConfiguration>(cluster, &unlabelled).await?;
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), "harvester-system");
    let spoil = Patch::Merge(json!({"data": {"ca.key": null}}));
    let spoilt = secrets.patch(SECRET, &PatchParams::default(), &spoil).await?;
    eventually(SOON, "another Secret", async || {
        let now = secrets.get(SECRET).await?;
        anyhow::Ok(now.resource_version() != spoilt.resource_version())
    })
    .await?;
    for name in ["vm", "theirs", "sliced"] {
        deleted(cluster, name).await?;
    }
    operator.process.kill9()?;
    cluster.free_lease().await?;
    // Off: the operator empties the configurations. The test then makes two requests that admission
    // would refuse.
    let mut operator = cluster.standby(Start::default()).await?;
    operator.leads().await?;
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(cluster.client.clone());
    eventually(LATER, "end of the webhooks", async || {
        validating.get(WEBHOOK).await.map(|found| found.webhooks.is_none_or(|w| w.is_empty()))
    })
    .await?;
    for owner in ["default/other", "default/another"] {
        cluster.patch_pool("p", release(owner)).await?;
        eventually(SOON, &format!("refusal of {owner}"), async || {
            let said = cluster.pool_says("p", "ManualRelease", "OtherOwner").await?;
            anyhow::Ok(said.ends_with(owner))
        })
        .await?;
    }
    deleted(cluster, "cluster").await?;
    eventually(LATER, "the end of the old version", async || {
        let crds: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
        let stored = crds.get(CRD).await?.status.and_then(|status| status.stored_versions);
        anyhow::Ok(!stored.unwrap_or_default().iter().any(|version| version == "v1alpha1"))
    })
    .await?;
    operator.process.kill9()?;
    cluster.free_lease().await?;
    another_leads(cluster).await
}

/// Another controller leads, whose records the status subresource of IPPool would drop.
async fn another_leads(cluster: &Cluster) -> Result<()> {
    let theirs: Lease = serde_json::from_value(json!({
        "metadata": {"name": "harvester-load-balancer"},
        "spec": {"holderIdentity": "harvester-load-balancer-5d4-x", "leaseDurationSeconds": 45},
    }))?;
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), "kube-system");
    leases.create(&PostParams::default(), &theirs).await?;
    let _operator = cluster.standby(Start::default()).await?;
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    eventually(LATER, "the end of the status subresource", async || {
        let versions = crds.get(IP_POOLS).await?.spec.versions;
        let subresources = versions.into_iter().filter_map(|version| version.subresources);
        anyhow::Ok(subresources.into_iter().all(|all| all.status.is_none()))
    })
    .await
}

/// A lease by the host, from the record to its end without an agent.
async fn leases(cluster: &Cluster) -> Result<()> {
    let agent = Agent::start(cluster, NETWORK).await?;
    patiently(async || cluster.dhcp_lb("leased", &[]).await.map(drop)).await?;
    cluster.grant("leased", "10.7.0.20").await?;
    cluster.publishes("leased", "10.7.0.20").await?;
    agent.stop().await?;
    cluster.over("leased").await?;
    deleted(cluster, "leased").await?;
    cluster.record_gone("leased").await?;
    // The network also requests an agent's Deployment, which is then changed.
    agents::agent(cluster, NETWORK, "agent", |_| true).await?;
    let stop = Patch::Merge(json!({"spec": {"replicas": 0}}));
    let made = agents::deployments(cluster);
    made.patch(&agent_name(NETWORK), &PatchParams::default(), &stop).await?;
    agents::agent(cluster, NETWORK, "running agent", |agent| {
        agent.spec.as_ref().and_then(|spec| spec.replicas) == Some(2)
    })
    .await?;
    agents::annotate(cluster, NETWORK, None).await?;
    agents::no_agent(cluster, NETWORK).await
}

fn rotations(cluster: &Cluster) -> Api<TokenRotation> {
    Api::namespaced(cluster.client.clone(), "default")
}

/// A rotation in a namespace that no option names: its condition says so, and its deletion does not
/// wait.
async fn credentials(cluster: &Cluster) -> Result<()> {
    let rotation = json!({
        "apiVersion": "credentials.harvesterhci.io/v1alpha1", "kind": "TokenRotation",
        "metadata": {"name": "guest", "namespace": "default",
            "finalizers": ["credentials.harvesterhci.io/rotation"]},
        "spec": {"target": {"secret": {"name": "guest", "key": "token"}}},
    });
    cluster.bed.apply_yaml(&rotation.to_string()).await?;
    eventually(SOON, "reason of the namespace", async || {
        let status = rotations(cluster).get("guest").await?.status.unwrap_or_default();
        let reasons = status.conditions.into_iter().filter_map(|condition| condition.reason);
        anyhow::Ok(reasons.into_iter().any(|reason| reason == "NamespaceNotAllowed"))
    })
    .await?;
    rotations(cluster).delete("guest", &DeleteParams::default()).await?;
    eventually(SOON, "end of the TokenRotation", async || {
        rotations(cluster).get_opt("guest").await.map(|rotation| rotation.is_none())
    })
    .await
}

/// Reads a Service and an EndpointSlice that are not the operator's.
async fn not_ours(cluster: &Cluster) -> Result<()> {
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "theirs"},
        "spec": {"selector": {"app": "theirs"}, "ports": [{"port": 80}]}});
    cluster.bed.apply_yaml(&service.to_string()).await?;
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "sliced", "namespace": "default"},
        "addressType": "IPv4", "endpoints": [{"addresses": ["10.99.0.1"]}],
    });
    cluster.bed.apply_yaml(&slice.to_string()).await?;
    for name in ["theirs", "sliced"] {
        lb(cluster, name, json!({"backendServerSelector": {"app": ["web"]}})).await?;
        cluster.waits(name, "ServiceConflict").await?;
    }
    Ok(())
}
