//! LoadBalancers that the host leases for, and the addresses of deleted and recreated ones.

use anyhow::{Result, ensure};
use chrono::TimeDelta;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use testbed::{Call, Proxy, Start, eventually};

use super::{Agent, NETWORK, blind, grace, uid};
use crate::support::{Cluster, SOON, address, ready};

const DHCP: &str = "loadbalancer.harvesterhci.io/dhcp";

/// A guest's cloud provider deletes a LoadBalancer that takes too long, and creates it again.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_comes_back_in_time_has_its_address_at_once() -> Result<()> {
    let cluster = Cluster::start().await?;
    let _agent = Agent::start(&cluster, NETWORK).await?;
    let operator = cluster.standby(grace(86_400)).await?;
    operator.leads().await?;
    for vm in [false, true] {
        let name = if vm { "vm" } else { "guest" };
        let spec = if vm { json!({}) } else { json!({"workloadType": "cluster"}) };
        let ip = if vm { "10.7.0.20" } else { "10.7.0.21" };
        cluster.dhcp_lb_with(name, &[], spec.clone()).await?;
        cluster.grant(name, ip).await?;
        cluster.publishes(name, ip).await?;
        let before = cluster.record(name).await?;
        cluster.deleted(name).await?;
        let left = cluster.is_left(name, true).await?;
        assert_eq!((uid(&left), &left.status), (uid(&before), &before.status));
        // The played agent does nothing here: the address is published from its record.
        cluster.dhcp_lb_with(name, &[], spec).await?;
        cluster.publishes(name, ip).await?;
        let kept = cluster.is_left(name, false).await?;
        assert_eq!(uid(&kept), uid(&before));
        assert_eq!(kept.spec.mac_address, before.spec.mac_address);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_grace_the_address_is_given_back_and_the_next_one_is_asked_anew() -> Result<()> {
    let cluster = Cluster::start().await?;
    let _agent = Agent::start(&cluster, NETWORK).await?;
    let operator = cluster.standby(grace(0)).await?;
    operator.leads().await?;
    cluster.dhcp_lb("web", &[]).await?;
    cluster.grant("web", "10.7.0.20").await?;
    cluster.publishes("web", "10.7.0.20").await?;
    let before = cluster.record("web").await?;
    cluster.deleted("web").await?;
    // It returns while the agent releases the address: it waits for that.
    eventually(SOON, "deletion of the record", async || {
        cluster.records().get("web").await.map(|r| r.metadata.deletion_timestamp.is_some())
    })
    .await?;
    cluster.dhcp_lb("web", &[]).await?;
    cluster.withdrawn("web", "DHCPReturning").await?;
    cluster.let_go("web").await?;
    let after = eventually(SOON, "another record", async || {
        let record = cluster.records().get_opt("web").await?;
        anyhow::Ok(record.filter(|record| uid(record) != uid(&before)))
    })
    .await?;
    // To the server it is the same client.
    assert_eq!(after.spec, before.spec);
    cluster.grant("web", "10.7.0.20").await?;
    cluster.publishes("web", "10.7.0.20").await?;
    Ok(())
}

/// The operator's view is stale: it does not show the recreated LoadBalancer yet.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_came_back_unseen_keeps_its_record() -> Result<()> {
    let cluster = Cluster::start().await?;
    let proxy = Proxy::start(&cluster.bed).await?;
    let _agent = Agent::start(&cluster, NETWORK).await?;
    let via = Some((proxy.url().to_owned(), proxy.ca_pem().to_owned()));
    let operator = cluster.standby(Start { via, ..grace(86_400) }).await?;
    operator.leads().await?;
    cluster.dhcp_lb("web", &[]).await?;
    cluster.grant("web", "10.7.0.20").await?;
    cluster.publishes("web", "10.7.0.20").await?;
    let before = cluster.record("web").await?;
    cluster.deleted("web").await?;
    cluster.is_left("web", true).await?;

    blind(&proxy, "loadbalancers").await?;
    cluster.dhcp_lb("web", &[]).await?;
    let over = Patch::Merge(json!({"spec": {"releaseAfter": "2026-01-01T00:00:00Z"}}));
    cluster.records().patch("web", &PatchParams::default(), &over).await?;
    eventually(SOON, "question for the LoadBalancer itself", async || {
        let asked = |call: &Call| call.resource() == Some("loadbalancers") && call.name().is_some();
        proxy.calls().iter().any(|record| asked(&record.call))
    })
    .await?;
    proxy.clear_rule();
    cluster.publishes("web", "10.7.0.20").await?;
    let kept = cluster.is_left("web", false).await?;
    assert_eq!((uid(&kept), &kept.metadata.deletion_timestamp), (uid(&before), &None));
    Ok(())
}

/// LoadBalancer and finalizer were removed by force, while no operator ran.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_without_a_load_balancer_is_given_back() -> Result<()> {
    let cluster = Cluster::start().await?;
    let _agent = Agent::start(&cluster, NETWORK).await?;
    let mut operator = cluster.standby(grace(0)).await?;
    operator.leads().await?;
    for name in ["asleep", "awake"] {
        cluster.dhcp_lb(name, &[]).await?;
        cluster.grant(name, if name == "awake" { "10.7.0.20" } else { "10.7.0.21" }).await?;
        cluster.address(name).await?;
    }
    let strip = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    cluster.lbs().patch("awake", &PatchParams::default(), &strip).await?;
    cluster.delete("awake").await?;
    cluster.let_go("awake").await?;
    cluster.record_gone("awake").await?;
    operator.process.kill9()?;
    cluster.lbs().patch("asleep", &PatchParams::default(), &strip).await?;
    cluster.delete("asleep").await?;
    let _operator = cluster.standby(grace(0)).await?;
    cluster.let_go("asleep").await?;
    cluster.record_gone("asleep").await
}

/// The record goes at the end of its lease, and not before, if there is no agent.
#[tokio::test(flavor = "multi_thread")]
async fn without_an_agent_a_record_goes_when_its_time_is_over() -> Result<()> {
    let cluster = Cluster::start().await?;
    let agent = Agent::start(&cluster, NETWORK).await?;
    let operator = cluster.standby(grace(0)).await?;
    operator.leads().await?;
    cluster.dhcp_lb("late", &[]).await?;
    cluster.grant("late", "10.7.0.20").await?;
    cluster.dhcp_lb("over", &[]).await?;
    cluster.grant("over", "10.7.0.21").await?;
    for name in ["late", "over"] {
        cluster.address(name).await?;
    }
    agent.stop().await?;
    cluster.grant_for("over", "10.7.0.21", TimeDelta::seconds(-1)).await?;
    for name in ["late", "over"] {
        cluster.deleted(name).await?;
    }
    cluster.record_gone("over").await?;
    cluster.warned("over", "RecordRemoved").await?;
    eventually(SOON, "deletion of the other record", async || {
        cluster.records().get("late").await.map(|r| r.metadata.deletion_timestamp.is_some())
    })
    .await?;
    cluster.grant_for("late", "10.7.0.20", TimeDelta::seconds(-1)).await?;
    cluster.record_gone("late").await
}

/// The condition says so; an address 0.0.0.0 stays until the LoadBalancer is created again. Where
/// the network is declared, a LoadBalancer created while the agent is away for a moment waits for
/// it.
#[tokio::test(flavor = "multi_thread")]
async fn where_no_network_is_declared_the_announcer_leases_and_goes_on() -> Result<()> {
    let cluster = Cluster::start().await?;
    let _operator = cluster.operator().await?;
    cluster.dhcp_lb("web", &[]).await?;
    cluster.publishes("web", "0.0.0.0").await?;
    let condition = ready(&cluster.lbs().get("web").await?);
    assert_eq!((condition.0.as_str(), condition.1.as_str()), ("True", "DHCP"));
    assert!(
        condition.2.contains(NETWORK) && condition.2.contains("does not lease"),
        "{condition:?}"
    );
    cluster.dhcp_lb("host", &[(DHCP, "host")]).await?;
    let message = cluster.withdrawn("host", "NoDHCPAgent").await?;
    assert!(message.contains(NETWORK), "{message}");
    let before = cluster.lbs().get("web").await?;

    // An agent comes: it serves the waiting LoadBalancer, and does not change those whose announcer
    // leases.
    let agent = Agent::start(&cluster, NETWORK).await?;
    cluster.grant("host", "10.7.0.20").await?;
    cluster.publishes("host", "10.7.0.20").await?;
    agent.stop().await?;
    cluster.dhcp_lb("early", &[]).await?;
    let message = cluster.withdrawn("early", "NoDHCPAgent").await?;
    assert!(message.contains(NETWORK) && message.contains("is not running"), "{message}");
    let _agent = Agent::start(&cluster, NETWORK).await?;
    cluster.grant("early", "10.7.0.23").await?;
    cluster.publishes("early", "10.7.0.23").await?;
    cluster.dhcp_lb("guest", &[(DHCP, "guest")]).await?;
    cluster.publishes("guest", "0.0.0.0").await?;
    cluster.patch_lb("web", json!({"metadata": {"labels": {"touched": "yes"}}})).await?;
    cluster.patch_lb("guest", json!({"metadata": {"annotations": {DHCP: null}}})).await?;
    // The last of them was reconciled when a later one was.
    cluster.dhcp_lb("after", &[]).await?;
    cluster.grant("after", "10.7.0.21").await?;
    cluster.publishes("after", "10.7.0.21").await?;
    for name in ["web", "guest"] {
        let lb = cluster.lbs().get(name).await?;
        assert_eq!(address(&lb).as_deref(), Some("0.0.0.0"));
        ensure!(cluster.records().get_opt(name).await?.is_none(), "{name} has a record");
    }
    assert_eq!(before.status, cluster.lbs().get("web").await?.status);
    cluster.deleted("web").await?;
    cluster.dhcp_lb("web", &[]).await?;
    cluster.grant("web", "10.7.0.22").await?;
    cluster.publishes("web", "10.7.0.22").await?;
    Ok(())
}

/// Neither the leasing party nor the network changes under an address.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_in_use_stays_whatever_annotations_say_later() -> Result<()> {
    let cluster = Cluster::start().await?;
    let _agent = Agent::start(&cluster, NETWORK).await?;
    let _other = Agent::start(&cluster, "default/vlan8").await?;
    let _operator = cluster.standby(Start::default()).await?;
    cluster.dhcp_lb("web", &[]).await?;
    cluster.grant("web", "10.7.0.20").await?;
    cluster.publishes("web", "10.7.0.20").await?;
    let at = |network: &str, who: Option<&str>| {
        json!({"metadata": {"annotations":
            {"loadbalancer.harvesterhci.io/network": network, DHCP: who}}})
    };
    for patch in [at("default/vlan8", None), at(NETWORK, Some("guest")), at("default/vlan8", None)]
    {
        cluster.patch_lb("web", patch).await?;
        // It was reconciled when the later mask was published.
        let mask = json!({"prefixLength": 25});
        cluster.write_status("web", mask).await?;
        eventually(SOON, "another mask", async || {
            let lb = cluster.lbs().get("web").await?;
            let allocated = lb.status.and_then(|s| s.allocated_address).unwrap_or_default();
            assert_eq!(allocated.ip.as_deref(), Some("10.7.0.20"));
            anyhow::Ok(allocated.mask.as_deref() == Some("255.255.255.128"))
        })
        .await?;
        cluster.write_status("web", json!({"prefixLength": 24})).await?;
        eventually(SOON, "the former mask", async || {
            let lb = cluster.lbs().get("web").await?;
            let allocated = lb.status.and_then(|s| s.allocated_address).unwrap_or_default();
            anyhow::Ok(allocated.mask.as_deref() == Some("255.255.255.0"))
        })
        .await?;
    }
    // Created again, it is on the other network: the address on the first is released first.
    let first = cluster.record("web").await?;
    cluster.deleted("web").await?;
    let on_it = ("loadbalancer.harvesterhci.io/network", "default/vlan8");
    cluster.dhcp_lb("web", &[on_it]).await?;
    cluster.withdrawn("web", "DHCPReturning").await?;
    cluster.let_go("web").await?;
    let second = eventually(SOON, "another record", async || {
        let record = cluster.records().get_opt("web").await?;
        anyhow::Ok(record.filter(|record| uid(record) != uid(&first)))
    })
    .await?;
    assert_eq!(second.spec.network, "default/vlan8");
    assert_ne!(second.spec.mac_address, first.spec.mac_address);
    Ok(())
}
