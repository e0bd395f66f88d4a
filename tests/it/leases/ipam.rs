//! Changes of `spec.ipam`, which Harvester's CRD does not refuse. Admission is off here.

use anyhow::Result;
use harvester_guest_operator::api::ANNOTATION_NETWORK;
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use testbed::{Proxy, Start, Verdict, eventually};

use super::{Agent, NETWORK};
use crate::support::{Cluster, SOON, lb, settled};
use crate::vms::input::as_harvester_ships_it;

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_ipam_leaves_no_claim_and_no_record_behind() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    as_harvester_ships_it(&cluster).await?;
    let _agent = Agent::start(&cluster, NETWORK).await?;
    let _operator = cluster.operator().await?;
    let services: Api<Service> = Api::namespaced(cluster.client.clone(), "default");
    let asks = async |ip: &str| {
        eventually(SOON, &format!("a Service that asks for {ip}"), async || {
            let service = services.get_opt("vm").await?;
            let asked = service.and_then(|s| s.spec).and_then(|spec| spec.load_balancer_ip);
            anyhow::Ok(asked.as_deref() == Some(ip))
        })
        .await
    };
    let change = async |name: &str, ipam: &str| {
        cluster.patch_lb(name, json!({"spec": {"ipam": ipam}})).await
    };
    let mut vm = lb("vm", &json!({"backendServerSelector": {"app": ["web"]}}))?;
    vm.metadata.annotations = Some([(ANNOTATION_NETWORK.to_owned(), NETWORK.to_owned())].into());
    cluster.lbs().create(&PostParams::default(), &vm).await?;
    asks("10.1.0.2").await?;
    cluster.lb("guest").await?;
    cluster.publishes("guest", "10.1.0.3").await?;

    // The host leases for the one, and the guest for the other.
    for name in ["vm", "guest"] {
        change(name, "dhcp").await?;
    }
    cluster.publishes("guest", "0.0.0.0").await?;
    cluster.grant("vm", "10.7.0.20").await?;
    cluster.publishes("vm", "10.7.0.20").await?;
    asks("10.7.0.20").await?;
    eventually(SOON, "end of the claims", async || {
        cluster.allocated("pool").await.map(|claims| claims.is_empty())
    })
    .await?;
    cluster.consistent().await?;

    for name in ["vm", "guest"] {
        change(name, "pool").await?;
    }
    asks("10.1.0.2").await?;
    cluster.publishes("vm", "10.1.0.2").await?;
    cluster.publishes("guest", "10.1.0.3").await?;
    cluster.let_go("vm").await?;
    cluster.record_gone("vm").await?;
    cluster.consistent().await
}

/// Two LoadBalancers that lose no claim by the change itself: one waits for a pool, and the other
/// gets another type as well, so that its Service is no longer maintained.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_ipam_ends_a_wait_for_a_pool_and_a_service_of_the_former_type() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    as_harvester_ships_it(&cluster).await?;
    let _operator = cluster.operator().await?;
    let services: Api<Service> = Api::namespaced(cluster.client.clone(), "default");
    cluster.lb_with("typed", json!({"backendServerSelector": {"app": ["web"]}})).await?;
    eventually(SOON, "a Service", async || {
        services.get_opt("typed").await.map(|service| service.is_some())
    })
    .await?;
    let guest = json!({"workloadType": "cluster", "ipPool": "later"});
    cluster.lb_with("waiting", guest.clone()).await?;
    cluster.waits("waiting", "IPPoolNotFound").await?;

    let typed = json!({"spec": {"ipam": "dhcp", "workloadType": "cluster"}});
    cluster.patch_lb("typed", typed).await?;
    cluster.patch_lb("waiting", json!({"spec": {"ipam": "dhcp", "ipPool": null}})).await?;
    for name in ["typed", "waiting"] {
        cluster.publishes(name, "0.0.0.0").await?;
    }
    assert_eq!(services.get_opt("typed").await?, None);

    // A LoadBalancer that waited would be served before a new one.
    cluster.pool_for("later", json!({"subnet": "10.2.0.0/24"}), json!({})).await?;
    cluster.lb_with("next", guest).await?;
    cluster.address("next").await?;
    assert_eq!(cluster.allocated("later").await?.len(), 1);
    assert_eq!(cluster.allocated("pool").await?.len(), 0);
    cluster.consistent().await
}

/// Harvester's CRD of IPPool drops the UIDs of a ledger, so the new leader knows the owner of the
/// claim by name. The Service is of the LoadBalancer's former type.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_without_a_uid_outlives_the_service_of_a_former_type() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let mut operator = cluster.operator().await?;
    let typed = json!({"workloadType": "cluster", "ipam": "dhcp"});
    let typed = cluster.lb_with("typed", typed).await?;
    cluster.publishes("typed", "0.0.0.0").await?;
    let services: Api<Service> = Api::namespaced(cluster.client.clone(), "default");
    let former = serde_json::from_value(json!({
        "metadata": {"name": "typed", "ownerReferences": [{
            "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
            "name": "typed", "uid": typed.metadata.uid,
        }]},
        "spec": {"ports": [{"port": 80}]},
    }))?;
    services.create(&PostParams::default(), &former).await?;
    operator.process.terminate(SOON).await?;
    let claims = json!({"10.1.0.55": "default/typed", "10.1.0.56": "default/gone"});
    cluster.patch_pool_status("pool", json!({"status": {"allocated": claims}})).await?;

    let _operator = cluster.operator().await?;
    eventually(SOON, "end of the other claim", async || {
        cluster.allocated("pool").await.map(|claims| !claims.contains_key("10.1.0.56"))
    })
    .await?;
    let left = settled("claims", async || cluster.allocated("pool").await).await?;
    assert_eq!(left.keys().collect::<Vec<_>>(), ["10.1.0.55"]);
    services.delete("typed", &DeleteParams::default()).await?;
    cluster.consistent().await
}

/// The operator is killed between the claim and its publication, and the status shows neither the
/// claim nor a wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_was_never_published_is_released_after_a_change_of_ipam() -> Result<()> {
    let cluster = Cluster::start().await?;
    let proxy = Proxy::start(&cluster.bed).await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    as_harvester_ships_it(&cluster).await?;
    let via = Some((proxy.url().to_owned(), proxy.ca_pem().to_owned()));
    let mut operator = cluster.standby(Start { via, ..Start::default() }).await?;
    operator.leads().await?;
    proxy.set_rule(|call| {
        let publishes = call.is_write() && call.resource() == Some("loadbalancers");
        if publishes { Verdict::CutBefore } else { Verdict::Pass }
    });
    cluster.lb("guest").await?;
    let claims = async |count: usize| {
        eventually(SOON, &format!("{count} claims"), async || {
            cluster.allocated("pool").await.map(|claims| claims.len() == count)
        })
        .await
    };
    claims(1).await?;
    operator.process.kill9()?;
    proxy.clear_rule();
    cluster.free_lease().await?;
    assert_eq!(cluster.lbs().get("guest").await?.status, None);

    cluster.patch_lb("guest", json!({"spec": {"ipam": "dhcp"}})).await?;
    let _operator = cluster.operator().await?;
    cluster.publishes("guest", "0.0.0.0").await?;
    claims(0).await?;
    cluster.consistent().await
}
