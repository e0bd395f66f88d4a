//! Selection of the pool that serves a LoadBalancer.

use anyhow::{Context as _, Result};
use harvester_guest_operator::api::LoadBalancer;
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use testbed::eventually;

use crate::support::{Cluster, SOON, address, lb};

#[tokio::test(flavor = "multi_thread")]
async fn a_load_balancer_without_a_pool_reports_why_and_is_served_when_there_is_one() -> Result<()>
{
    let cluster = Cluster::start().await?;
    let _operator = cluster.operator().await?;
    let scope = |namespace: &str| json!({"scope": [{"project": "*", "namespace": namespace, "guestCluster": "*"}]});
    cluster.lb("any").await?;
    let message = cluster.waits("any", "NoMatchedIPPool").await?;
    assert!(message.contains("no matched IPPool") && message.contains("spec.ipPool"), "{message}");

    let named = |pool: &str| json!({"workloadType": "cluster", "ipPool": pool});
    cluster.lb_with("early", named("later")).await?;
    let message = cluster.waits("early", "IPPoolNotFound").await?;
    assert!(message.contains("\"later\"") && message.contains("spec.ipPool"), "{message}");
    cluster.pool_for("later", json!({"subnet": "10.1.0.0/24"}), json!({})).await?;
    assert_eq!(cluster.address("early").await?, "10.1.0.2");

    cluster.pool_for("theirs", json!({"subnet": "10.2.0.0/24"}), scope("theirs")).await?;
    cluster.lb_with("intruder", named("theirs")).await?;
    let message = cluster.waits("intruder", "IPPoolForbidden").await?;
    let parts = ["\"theirs\"", "scope", "namespace:\"default\""];
    assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    assert!(cluster.allocated("theirs").await?.is_empty());

    // The LoadBalancers wait only for a selector that admits them.
    cluster.patch_pool("theirs", json!({"spec": {"selector": scope("default")}})).await?;
    assert_eq!(cluster.address("any").await?, "10.2.0.2", "the oldest first");
    assert_eq!(cluster.address("intruder").await?, "10.2.0.3");
    cluster.consistent().await
}

/// Annotations are written by the LoadBalancer's owner; the Namespace by an administrator.
#[tokio::test(flavor = "multi_thread")]
async fn the_project_is_the_namespaces_whatever_the_load_balancer_says() -> Result<()> {
    let cluster = Cluster::start().await?;
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let team = Namespace {
        metadata: kube::core::ObjectMeta { name: Some("team".into()), ..Default::default() },
        ..Default::default()
    };
    namespaces.create(&PostParams::default(), &team).await?;
    let move_to = async |namespace: &str, project: &str| {
        let patch = json!({"metadata": {"annotations": {"field.cattle.io/projectId": project}}});
        namespaces.patch(namespace, &PatchParams::default(), &Patch::Merge(patch)).await
    };
    for (name, subnet) in [("ours", "10.1.0.0/24"), ("theirs", "10.2.0.0/24")] {
        let scope = json!({"scope": [{"project": format!("local/{name}"), "namespace": "*", "guestCluster": "*"}]});
        cluster.pool_for(name, json!({"subnet": subnet}), scope).await?;
    }
    move_to("default", "local:ours").await?;
    let _operator = cluster.operator().await?;
    let claims = json!({"loadbalancer.harvesterhci.io/project": "local/theirs"});
    let create = async |namespace: &str, name: &str, pool: Option<&str>| {
        let mut lb = lb(name, &json!({"workloadType": "cluster", "ipPool": pool}))?;
        lb.metadata.namespace = Some(namespace.to_owned());
        lb.metadata.annotations = serde_json::from_value(claims.clone())?;
        let api = Api::<LoadBalancer>::namespaced(cluster.client.clone(), namespace);
        api.create(&PostParams::default(), &lb).await?;
        anyhow::Ok(api)
    };
    create("default", "lb", None).await?;
    assert_eq!(cluster.address("lb").await?, "10.1.0.2", "not from theirs");
    create("default", "named", Some("theirs")).await?;
    let message = cluster.waits("named", "IPPoolForbidden").await?;
    assert!(message.contains("local/ours"), "{message}");

    // A namespace that moves takes its waiters with it. A namespace without a project is in no
    // other either.
    let waiters = create("team", "waiter", None).await?;
    let reason = async || {
        let lb = waiters.get("waiter").await.map_err(|e| e.to_string())?;
        let (_, reason, message) = crate::support::ready(&lb);
        if reason == "NoMatchedIPPool" { Ok(true) } else { Err(message) }
    };
    eventually(SOON, "waiter of team", reason).await?;
    move_to("team", "local:nobodys").await?;
    eventually(SOON, "waiter of a project without a pool", reason).await?;
    move_to("team", "local:theirs").await?;
    let served = eventually(SOON, "address in team", async || {
        waiters.get("waiter").await.map(|lb| address(&lb))
    })
    .await?;
    assert_eq!(served, "10.2.0.2");
    move_to("default", "local:theirs").await?;
    assert_eq!(cluster.address("named").await?, "10.2.0.3");
    assert_eq!(cluster.address("lb").await?, "10.1.0.2", "an existing claim stays");
    cluster.consistent().await
}

#[tokio::test(flavor = "multi_thread")]
async fn pools_serve_in_their_order_and_the_next_one_when_one_is_full() -> Result<()> {
    let cluster = Cluster::start().await?;
    let scope = |project: &str, cluster: &str| json!([{"project": project, "namespace": "default", "guestCluster": cluster}]);
    for (name, subnet, selector) in [
        ("vlan", "10.1.0.2/32", json!({"network": "default/vlan", "scope": scope("*", "*")})),
        ("high", "10.2.0.2/32", json!({"priority": 7, "scope": scope("local/p", "guest")})),
        ("low", "10.3.0.2/32", json!({"priority": 1, "scope": scope("*", "*")})),
        // Blank admits any, and comes after a selector that admits by name.
        ("blank", "10.4.0.2/32", json!({"priority": 99, "scope": scope("", "")})),
        (
            "global",
            "10.5.0.0/29",
            json!({"scope": [{"project": "*", "namespace": "*", "guestCluster": "*"}]}),
        ),
    ] {
        cluster.pool_for(name, json!({"subnet": subnet}), selector).await?;
    }
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let project = json!({"metadata": {"annotations": {"field.cattle.io/projectId": "local:p"}}});
    namespaces.patch("default", &PatchParams::default(), &Patch::Merge(project)).await?;
    let _operator = cluster.operator().await?;
    let ask = async |name: &str, type_: &str, network: &str| {
        let mut lb = lb(name, &json!({"workloadType": type_}))?;
        lb.metadata.annotations = serde_json::from_value(json!({
            "loadbalancer.harvesterhci.io/network": network,
            "loadbalancer.harvesterhci.io/cluster": "guest",
        }))?;
        cluster.lbs().create(&PostParams::default(), &lb).await?;
        anyhow::Ok(())
    };
    for (name, type_, network, ip) in [
        ("exact", "cluster", "default/vlan", "10.1.0.2"),
        ("vlan-is-full", "cluster", "default/vlan", "10.5.0.2"),
        ("no-such-vlan", "cluster", "default/VLAN", "10.5.0.3"),
        ("priority", "cluster", "", "10.2.0.2"),
        ("high-is-full", "vm", "", "10.3.0.2"),
        ("blank-is-for-all", "vm", "", "10.4.0.2"),
        ("all-full-but-global", "vm", "", "10.5.0.4"),
        ("another", "cluster", "", "10.5.0.5"),
        ("last", "cluster", "", "10.5.0.6"),
    ] {
        ask(name, type_, network).await?;
        assert_eq!(cluster.address(name).await.context(name)?, ip, "{name}");
    }
    ask("none-left", "cluster", "").await?;
    let message = cluster.waits("none-left", "NoAvailableIP").await?;
    assert!(message.contains("high, low, blank, global"), "{message}");
    cluster.deleted("high-is-full").await?;
    assert_eq!(cluster.address("none-left").await?, "10.3.0.2");
    cluster.consistent().await
}
