//! Agents that the operator makes for networks that request one, and foreign Deployments.

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::api::ANNOTATION_DHCP_SUBNETS;
use harvester_guest_operator::domain::dhcp_lease::agent_name;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use testbed::kubevirt::{networks, vlan};
use testbed::{Start, agent_template, eventually};

use super::{Agent, declare};
use crate::support::{Cluster, SOON};

const DHCP: &str = "loadbalancer.harvesterhci.io/dhcp";

pub(crate) fn deployments(cluster: &Cluster) -> Api<Deployment> {
    Api::namespaced(cluster.client.clone(), "harvester-system")
}

/// Waits until the agent of a network is as wanted.
pub(crate) async fn agent(
    cluster: &Cluster,
    network: &str,
    what: &str,
    is: impl Fn(&Deployment) -> bool,
) -> Result<Deployment> {
    eventually(SOON, &format!("{what} of {network}"), async || {
        let found = deployments(cluster).get_opt(&agent_name(network)).await?;
        anyhow::Ok(found.filter(|deployment| is(deployment)))
    })
    .await
}

pub(crate) async fn no_agent(cluster: &Cluster, network: &str) -> Result<()> {
    eventually(SOON, &format!("end of the agent of {network}"), async || {
        deployments(cluster).get_opt(&agent_name(network)).await.map(|found| found.is_none())
    })
    .await
}

/// Annotates a network; no value removes the annotation.
pub(crate) async fn annotate(cluster: &Cluster, network: &str, value: Option<&str>) -> Result<()> {
    let (namespace, name) = network.split_once('/').context("no namespace")?;
    let patch = Patch::Merge(json!({"metadata": {"annotations": {DHCP: value}}}));
    networks(&cluster.client, namespace).patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

async fn subnets(cluster: &Cluster, network: &str, value: Option<&str>) -> Result<()> {
    let (namespace, name) = network.split_once('/').context("no namespace")?;
    let patch =
        Patch::Merge(json!({"metadata": {"annotations": {ANNOTATION_DHCP_SUBNETS: value}}}));
    networks(&cluster.client, namespace).patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Waits for an Event with the reason why a network has no agent.
async fn refused(cluster: &Cluster, network: &str, why: &str) -> Result<()> {
    let (namespace, name) = network.split_once('/').context("no namespace")?;
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), namespace);
    eventually(SOON, &format!("refusal of {network}"), async || {
        let all = events.list(&ListParams::default()).await?;
        let said = all.into_iter().filter(|event| {
            event.reason.as_deref() == Some("DHCPRefused")
                && event.regarding.as_ref().and_then(|of| of.name.as_deref()) == Some(name)
        });
        anyhow::Ok(said.into_iter().any(|event| event.note.unwrap_or_default().contains(why)))
    })
    .await
}

/// Waits for a status of a network's agent; null without one.
async fn says(cluster: &Cluster, network: &str, is: impl Fn(&Value) -> bool) -> Result<Value> {
    let (namespace, name) = network.split_once('/').context("no namespace")?;
    eventually(SOON, &format!("status of {network}"), async || {
        let found = networks(&cluster.client, namespace).get(name).await;
        let found = found.map_err(|error| error.to_string())?;
        let text = found.annotations().get("loadbalancer.harvesterhci.io/dhcp-status");
        let said: Value = text.map_or(Value::Null, |text| json!(text));
        let said = said.as_str().map_or(Ok(Value::Null), serde_json::from_str);
        let said = said.map_err(|error| error.to_string())?;
        if is(&said) { Ok(Some(said)) } else { Err(said.to_string()) }
    })
    .await
}

fn affinity(deployment: &Deployment) -> Option<String> {
    let pod = deployment.spec.as_ref()?.template.spec.as_ref()?;
    let terms = pod.affinity.as_ref()?.node_affinity.as_ref()?;
    let terms = terms.required_during_scheduling_ignored_during_execution.as_ref()?;
    Some(terms.node_selector_terms.first()?.match_expressions.as_ref()?.first()?.key.clone())
}

fn has_options(deployment: &Deployment, options: &[&str]) -> bool {
    let pod = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let args = pod.and_then(|pod| pod.containers.first()?.args.as_ref());
    args.is_some_and(|args| args.iter().skip(4).eq(options))
}

/// Sets an invalid annotation: it ends no lease, changes no agent, and leaves no address to the
/// announcer.
async fn a_typo(cluster: &Cluster, network: &str) -> Result<Deployment> {
    const OPTIONS: [&str; 2] = ["--subnets", "10.7.0.0/24"];
    subnets(cluster, network, Some(OPTIONS[1])).await?;
    agent(cluster, network, "agent with subnets", |found| has_options(found, &OPTIONS)).await?;
    cluster.grant("ui", "10.7.0.9").await?;
    cluster.publishes("ui", "10.7.0.9").await?;
    subnets(cluster, network, Some("10.7.0.0/33")).await?;
    let former = says(cluster, network, |said| said["reason"] == "FormerOptions").await?;
    ensure!(former["agent"] == "played", "{former}");
    refused(cluster, network, "retains its current options").await?;
    cluster.lb_with("later", json!({"ipam": "dhcp"})).await?;
    let why = cluster.waits("later", "DHCPNetworkInvalid").await?;
    for part in [network, ANNOTATION_DHCP_SUBNETS, "\"10.7.0.0/33\"", "such as 10.7.0.0/24"] {
        ensure!(why.contains(part), "{part}: {why}");
    }
    cluster.publishes("ui", "10.7.0.9").await?;
    agent(cluster, network, "agent that goes on", |found| has_options(found, &OPTIONS)).await?;
    subnets(cluster, network, None).await?;
    cluster.record("later").await?;
    agent(cluster, network, "agent without subnets", |found| has_options(found, &[])).await
}

/// A command makes an agent for the network, another removes it, and foreign objects are not
/// changed.
#[tokio::test(flavor = "multi_thread")]
async fn a_network_that_asks_for_an_agent_has_one_as_long_as_it_asks() -> Result<()> {
    const OURS: &str = "default/vlan7";
    const THEIRS: &str = "default/vlan8";
    const LISTED: &str = "default/vlan9";
    const TENANTS: &str = "tenant/vlan7";
    let cluster = Cluster::start().await?;
    cluster.bed.kubectl(&["create", "namespace", "tenant"]).await?;
    // Another owner's Deployment has that name already.
    let theirs = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": agent_name(THEIRS), "namespace": "harvester-system"},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            },
        },
    });
    cluster.bed.apply_yaml(&theirs.to_string()).await?;
    cluster.bed.apply_yaml(&vlan("tenant", "vlan7", 7).to_string()).await?;
    let mut network = vlan("default", "vlan7", 7);
    network["metadata"]["labels"]["network.harvesterhci.io/clusternetwork"] = json!("prod");
    cluster.bed.apply_yaml(&network.to_string()).await?;
    // Multus accepts a definition without a spec, and reads a file of the node instead.
    let bare = json!({"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": "bare", "namespace": "tenant"}});
    cluster.bed.apply_yaml(&bare.to_string()).await?;
    let more = ["--dhcp-networks", LISTED, "--dhcp-default-network", OURS];
    let options = [&agent_template()?[..], &more.map(str::to_owned)].concat();
    let role = "harvester-guest-operator";
    let variables = vec![("HGO_ADMISSION_OWNER".to_owned(), role.to_owned())];
    let start = || {
        let (options, variables) = (options.clone(), variables.clone());
        Start { options, variables, ..Start::default() }
    };
    let mut operator = cluster.standby(start()).await?;
    operator.leads().await?;
    for network in [OURS, THEIRS, LISTED] {
        declare(&cluster.client, network).await?;
    }
    annotate(&cluster, TENANTS, Some("host")).await?;

    let made = agent(&cluster, OURS, "agent", |_| true).await?;
    // It is deleted with the operator's role.
    let owners: Vec<&str> = made.owner_references().iter().map(|of| of.name.as_str()).collect();
    ensure!(owners == [role], "{owners:?}");
    ensure!(affinity(&made).as_deref() == Some("network.harvesterhci.io/prod"), "{made:?}");
    let pod = made.spec.as_ref().and_then(|spec| spec.template.spec.clone()).unwrap_or_default();
    let container = pod.containers.first().context("no container")?;
    let args = ["--network", OURS, "--interface", "net1"].map(str::to_owned).to_vec();
    ensure!(container.args == Some(args), "{:?}", container.args);
    let nowhere = says(&cluster, OURS, |said| said["reason"] == "NoNode").await?;
    ensure!(nowhere["message"].as_str().is_some_and(|text| text.contains("prod")), "{nowhere}");
    refused(&cluster, THEIRS, "is not the operator's").await?;
    says(&cluster, THEIRS, |said| said["reason"] == "Refused").await?;
    refused(&cluster, LISTED, "leaseAgent.networks").await?;
    refused(&cluster, TENANTS, "leaseAgent.namespaces").await?;

    // Edited by hand, and moved to another cluster network.
    let stop = Patch::Merge(json!({"spec": {"replicas": 0}}));
    deployments(&cluster).patch(&agent_name(OURS), &PatchParams::default(), &stop).await?;
    let replicas = |deployment: &Deployment| deployment.spec.as_ref().and_then(|s| s.replicas);
    agent(&cluster, OURS, "running agent", |found| {
        replicas(found) == Some(2) && found.metadata.generation > Some(2)
    })
    .await?;
    let label = json!({"network.harvesterhci.io/clusternetwork": "mgmt"});
    let moved = Patch::Merge(json!({"metadata": {"labels": label}}));
    networks(&cluster.client, "default").patch("vlan7", &PatchParams::default(), &moved).await?;
    let everywhere = agent(&cluster, OURS, "agent anywhere", |found| affinity(found).is_none());
    everywhere.await?;

    // Its pod, played, takes the network's Lease, and releases it.
    let played = Agent::start(&cluster, OURS).await?;
    let served = says(&cluster, OURS, |said| said["agent"] == "played").await?;
    ensure!(served["since"].is_string() && served.get("reason").is_none(), "{served}");
    // A LoadBalancer made in the UI names no network.
    let ui = json!({"ipam": "dhcp", "backendServerSelector": {"app": ["web"]}});
    cluster.lb_with("ui", ui).await?;
    let record = cluster.record("ui").await?;
    ensure!(record.spec.network == OURS, "{record:?}");

    let before = a_typo(&cluster, OURS).await?;
    played.stop().await?;
    says(&cluster, OURS, |said| said["reason"] == "AgentAway").await?;

    // Another leader writes no correct object. It has reconciled the others when it has reconciled
    // the last network.
    operator.process.kill9()?;
    cluster.free_lease().await?;
    let _operator = cluster.standby(start()).await?;
    cluster.bed.apply_yaml(&vlan("default", "last", 10).to_string()).await?;
    declare(&cluster.client, "default/last").await?;
    agent(&cluster, "default/last", "agent", |_| true).await?;
    let after = deployments(&cluster).get(&agent_name(OURS)).await?;
    ensure!(before.metadata.generation == after.metadata.generation, "{after:?}");

    for network in [OURS, THEIRS, LISTED, TENANTS, "default/last"] {
        annotate(&cluster, network, None).await?;
    }
    no_agent(&cluster, OURS).await?;
    no_agent(&cluster, "default/last").await?;
    for network in [OURS, THEIRS, LISTED, "default/last"] {
        let keeps = network == LISTED;
        says(&cluster, network, |said| said.is_null() != keeps).await?;
    }
    let left = deployments(&cluster).list(&ListParams::default()).await?;
    let left: Vec<String> = left.iter().map(kube::ResourceExt::name_any).collect();
    ensure!(left == [agent_name(THEIRS)], "{left:?}");
    let kept = deployments(&cluster).get(&agent_name(THEIRS)).await?;
    ensure!(kept.metadata.generation == Some(1) && kept.labels().is_empty(), "{kept:?}");
    Ok(())
}
