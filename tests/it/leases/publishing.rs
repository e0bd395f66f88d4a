//! Publication of leased addresses: published, moved, lost, found again.

use std::time::Duration;

use anyhow::{Result, ensure};
use chrono::TimeDelta;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testbed::kubevirt::{Guest, Nic, Vm, create_node};
use testbed::{Operator, Proxy, Start, Verdict, eventually};

use super::takeover;
use super::{Agent, FINALIZER, NETWORK, blind};
use crate::support::{Cluster, SOON, address, lb, ready, shows};

const LB_FINALIZER: &str = "wrangler.cattle.io/harvester-lb-controller";

#[tokio::test(flavor = "multi_thread")]
async fn what_an_agent_leases_is_published_moved_withdrawn_and_published_again() -> Result<()> {
    let cluster = Cluster::start().await?;
    let _agent = Agent::start(&cluster, NETWORK).await?;
    let operator = cluster.operator().await?;
    cluster.dhcp_lb("web", &[]).await?;
    // The record has the client's identity before the first request.
    let record = cluster.record("web").await?;
    assert_eq!(record.spec.network, NETWORK);
    assert_eq!(record.spec.hostname, "web");
    assert_eq!(record.metadata.finalizers.as_deref(), Some(&[FINALIZER.to_owned()][..]));
    assert_eq!(record.metadata.owner_references, None, "it outlives its LoadBalancer");
    assert_eq!(record.status, None);
    let message = cluster.withdrawn("web", "DHCPPending").await?;
    assert!(message.contains(NETWORK), "{message}");

    cluster.grant("web", "10.7.0.20").await?;
    let lb = cluster.publishes("web", "10.7.0.20").await?;
    let status = lb.status.clone().unwrap();
    let allocated = status.allocated_address.unwrap();
    assert_eq!(allocated.ip_pool, None);
    assert_eq!(allocated.mask.as_deref(), Some("255.255.255.0"));
    assert_eq!(allocated.gateway.as_deref(), Some("10.7.0.1"));
    assert_eq!(status.address.as_deref(), Some("10.7.0.20"), "as for an address from a pool");
    assert!(lb.metadata.finalizers.unwrap().contains(&LB_FINALIZER.to_owned()));
    let condition = ready(&cluster.lbs().get("web").await?);
    assert_eq!((condition.0.as_str(), condition.1.as_str()), ("True", "Leased"), "{condition:?}");

    // The server granted another address: the record lost the first one before.
    cluster.take_away("web", "Selecting").await?;
    let message = cluster.withdrawn("web", "DHCPLeaseLost").await?;
    assert!(message.contains("another one is requested"), "{message}");
    let lb = cluster.lbs().get("web").await?;
    assert_eq!(lb.status.unwrap().address, None, "no address is published");
    cluster.warned("web", "DHCPLeaseLost").await?;
    cluster.grant("web", "10.7.0.21").await?;
    cluster.publishes("web", "10.7.0.21").await?;
    // Both at once, as after an interrupted watch.
    cluster.grant("web", "10.7.0.22").await?;
    let lb = cluster.publishes("web", "10.7.0.22").await?;
    assert_eq!(lb.status.unwrap().address.as_deref(), Some("10.7.0.22"));
    cluster.warned("web", "AddressChanged").await?;

    for (change, count) in [("published", 2.0), ("moved", 1.0), ("withdrawn", 1.0)] {
        let label = format!("change=\"{change}\"");
        eventually(SOON, change, async || {
            operator.metric("hgo_dhcp_address_changes_total", &[&label]).await.map(|n| n == count)
        })
        .await?;
    }
    eventually(SOON, "the agent in the metrics", async || {
        let up = operator.metric("hgo_dhcp_agent_up", &["default/vlan7"]).await?;
        let bound = operator.metric("hgo_dhcp_records", &["Bound"]).await?;
        anyhow::Ok(up == 1.0 && bound == 1.0)
    })
    .await
}

/// A new leader that may not read DHCPLeases has a view without records.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_stays_published_while_no_record_may_be_read() -> Result<()> {
    let cluster = Cluster::start().await?;
    let _agent = Agent::start(&cluster, NETWORK).await?;
    let mut operator = cluster.operator().await?;
    cluster.dhcp_lb("web", &[]).await?;
    cluster.grant("web", "10.7.0.20").await?;
    cluster.publishes("web", "10.7.0.20").await?;
    operator.process.kill9()?;
    cluster.free_lease().await?;
    cluster.robbed();
    let roles: Api<ClusterRole> = Api::all(cluster.client.clone());
    let role = roles.get("harvester-guest-operator").await?;
    let is_other = |rule: &&PolicyRule| rule.resources.iter().flatten().all(|r| r != "dhcpleases");
    let rest: Vec<PolicyRule> = role.rules.iter().flatten().filter(is_other).cloned().collect();
    let patch = Patch::Merge(json!({"rules": rest}));
    roles.patch("harvester-guest-operator", &PatchParams::default(), &patch).await?;
    let account = "--as=system:serviceaccount:harvester-system:harvester-guest-operator";
    let resource = "dhcpleases.loadbalancer.harvesterhci.io";
    let asked = ["auth", "can-i", "list", resource, "--all-namespaces", account];
    eventually(SOON, "end of the right", async || {
        // The exit code is 1 if the account has no right.
        anyhow::Ok(cluster.bed.kubectl(&asked).await.is_err())
    })
    .await?;
    let operator = cluster.operator().await?;
    let failed = ["load_balancer", "refused"];
    shows(&operator, "hgo_reconcile_errors_total", &failed, |errors| errors >= 1.0).await?;
    shows(&operator, "hgo_watch_errors_total", &["DHCPLease"], |errors| errors >= 1.0).await?;
    cluster.publishes("web", "10.7.0.20").await?;
    let (status, reason, message) = ready(&cluster.lbs().get("web").await?);
    ensure!((status.as_str(), reason.as_str()) == ("True", "Leased"), "{reason}: {message}");
    Ok(())
}

/// A guest's cloud provider writes to `status.address` the address that the guest announces.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_a_guest_tells_stays_its_own() -> Result<()> {
    let cluster = Cluster::start().await?;
    let _agent = Agent::start(&cluster, NETWORK).await?;
    let _operator = cluster.operator().await?;
    cluster.dhcp_lb("web", &[]).await?;
    cluster.grant("web", "10.7.0.20").await?;
    cluster.publishes("web", "10.7.0.20").await?;
    cluster.patch_lb("web", json!({"status": {"address": "192.168.1.1"}})).await?;
    cluster.grant("web", "10.7.0.21").await?;
    let lb = cluster.publishes("web", "10.7.0.21").await?;
    assert_eq!(lb.status.unwrap().address.as_deref(), Some("192.168.1.1"));
    Ok(())
}

/// An agent that died cannot remove its address from the record.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_ends_by_the_clock_when_its_agent_is_silent() -> Result<()> {
    let cluster = Cluster::start().await?;
    let agent = Agent::start(&cluster, NETWORK).await?;
    let _operator = cluster.operator().await?;
    cluster.dhcp_lb("web", &[]).await?;
    cluster.record("web").await?;
    let short = TimeDelta::seconds(20);
    cluster.grant_for("web", "10.7.0.20", short).await?;
    cluster.publishes("web", "10.7.0.20").await?;
    agent.stop().await?;
    let message = cluster.withdrawn("web", "DHCPLeaseLost").await?;
    assert!(message.contains("agent is not running"), "{message}");
    let record = cluster.record("web").await?;
    assert_eq!(record.status.unwrap().address.as_deref(), Some("10.7.0.20"), "the agent's to say");
    // The agent is back, and has the address again.
    let _agent = Agent::start(&cluster, NETWORK).await?;
    cluster.grant("web", "10.7.0.20").await?;
    cluster.publishes("web", "10.7.0.20").await?;
    Ok(())
}

/// The lease expires while the operator corrects the Service. The event of that Service has replaced
/// the reconcile at the expiry.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_ends_by_the_clock_during_a_slow_write() -> Result<()> {
    let cluster = Cluster::start().await?;
    let proxy = Proxy::start(&cluster.bed).await?;
    create_node(&cluster.client, "node-1", &[], "10.0.0.1").await?;
    let vm = Vm::new("default", "vm").label("app", "web").nic(Nic::pod("eth0", &["10.9.0.1"]));
    let _guest = Guest::run(&cluster.client, vm, "node-1").await?;
    let agent = Agent::start(&cluster, NETWORK).await?;
    let via = Some((proxy.url().to_owned(), proxy.ca_pem().to_owned()));
    let operator = cluster.standby(Start { via, ..Start::default() }).await?;
    operator.leads().await?;
    cluster.dhcp_lb_with("web", &[], json!({"backendServerSelector": {"app": ["web"]}})).await?;
    cluster.record("web").await?;
    // Longer than the first part of a term, in which an address outlives its lease.
    let end = tokio::time::Instant::now() + Duration::from_secs(30);
    cluster.grant_for("web", "10.7.0.20", TimeDelta::seconds(30)).await?;
    cluster.publishes("web", "10.7.0.20").await?;
    let services: Api<Service> = Api::namespaced(cluster.client.clone(), "default");
    eventually(SOON, "Service", async || {
        services.get_opt("web").await.map(|service| service.is_some())
    })
    .await?;
    agent.stop().await?;
    proxy.set_rule(|call| {
        let is_slow = call.is_write() && call.resource() == Some("services");
        // A second less than the operator waits for an answer.
        if is_slow { Verdict::Delay(Duration::from_secs(4)) } else { Verdict::Pass }
    });
    tokio::time::sleep_until(end - Duration::from_secs(2)).await;
    let ports = json!([{"name": "http", "port": 81, "protocol": "TCP", "targetPort": 8080}]);
    let changed = Patch::Merge(json!({"spec": {"ports": ports}}));
    services.patch("web", &PatchParams::default(), &changed).await?;
    cluster.withdrawn("web", "DHCPLeaseLost").await.map(drop)
}

/// kube-vip announces for VMs: its Service requests the leased address, follows it, and goes before
/// the LoadBalancer's status loses the address.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_follows_the_lease_and_goes_with_it() -> Result<()> {
    let cluster = Cluster::start().await?;
    create_node(&cluster.client, "node-1", &[], "10.0.0.1").await?;
    let vm = Vm::new("default", "vm").label("app", "web").nic(Nic::pod("eth0", &["10.9.0.1"]));
    let _guest = Guest::run(&cluster.client, vm, "node-1").await?;
    let _agent = Agent::start(&cluster, NETWORK).await?;
    let _operator = cluster.standby(Start::default()).await?;
    let spec = json!({"backendServerSelector": {"app": ["web"]}});
    cluster.dhcp_lb_with("web", &[], spec).await?;
    cluster.record("web").await?;
    let services: Api<Service> = Api::namespaced(cluster.client.clone(), "default");
    let asks = async |ip: &str| {
        eventually(SOON, &format!("a Service that asks for {ip}"), async || {
            let service = services.get_opt("web").await?;
            let asked = service.and_then(|s| s.spec).and_then(|spec| spec.load_balancer_ip);
            anyhow::Ok(asked.as_deref() == Some(ip))
        })
        .await
    };
    cluster.waits("web", "DHCPPending").await?;
    ensure!(services.get_opt("web").await?.is_none(), "nothing is announced before");
    cluster.grant("web", "10.7.0.20").await?;
    asks("10.7.0.20").await?;
    let set = json!({
        "metadata": {"annotations": {"note": "mine"}},
        "spec": {"sessionAffinity": "ClientIP", "loadBalancerSourceRanges": ["10.0.0.0/8"]},
    });
    services.patch("web", &PatchParams::default(), &Patch::Merge(&set)).await?;
    cluster.grant("web", "10.7.0.21").await?;
    asks("10.7.0.21").await?;
    cluster.publishes("web", "10.7.0.21").await?;
    cluster.take_away("web", "Lost").await?;
    cluster.withdrawn("web", "DHCPLeaseLost").await?;
    eventually(SOON, "end of the Service", async || {
        services.get_opt("web").await.map(|service| service.is_none())
    })
    .await?;
    cluster.grant("web", "10.7.0.21").await?;
    asks("10.7.0.21").await?;
    // User settings have outlived a lease that moved, and one that was lost.
    let service = json!(services.get("web").await?);
    assert_eq!(service["metadata"]["annotations"]["note"], "mine");
    assert_eq!(service["spec"]["sessionAffinity"], "ClientIP");
    assert_eq!(service["spec"]["loadBalancerSourceRanges"], json!(["10.0.0.0/8"]));
    takeover::of_a_service(&cluster).await
}

/// A status is stored, not trusted: foreign content is corrected, and a wiped status restored.
#[tokio::test(flavor = "multi_thread")]
async fn a_status_that_another_client_writes_is_put_right() -> Result<()> {
    let cluster = Cluster::start().await?;
    let _agent = Agent::start(&cluster, NETWORK).await?;
    // Admission is off: the write is not refused.
    let _operator = cluster.operator().await?;
    cluster.dhcp_lb("web", &[]).await?;
    cluster.grant("web", "10.7.0.20").await?;
    cluster.publishes("web", "10.7.0.20").await?;
    for forged in [
        json!({"ip": "10.7.0.99"}),
        json!({"ip": "0.0.0.0", "mask": null, "gateway": null}),
        json!({"ip": "10.7.0.20", "ipPool": "theirs"}),
        json!({"gateway": "10.7.0.99"}),
    ] {
        cluster.patch_lb("web", json!({"status": {"allocatedAddress": forged}})).await?;
        eventually(SOON, &format!("end of {forged}"), async || {
            let lb = cluster.lbs().get("web").await.map_err(|e| e.to_string())?;
            let now = lb.status.clone().and_then(|s| s.allocated_address).unwrap_or_default();
            let right = address(&lb).as_deref() == Some("10.7.0.20")
                && now.ip_pool.is_none()
                && now.gateway.as_deref() == Some("10.7.0.1")
                && now.mask.as_deref() == Some("255.255.255.0");
            if right { Ok(true) } else { Err(format!("{now:?}")) }
        })
        .await?;
    }
    cluster.patch_lb("web", json!({"status": null})).await?;
    cluster.publishes("web", "10.7.0.20").await?;
    // A LoadBalancer created with an address in its status has none.
    cluster.dhcp_lb("forged", &[]).await?;
    cluster
        .patch_lb("forged", json!({"status": {"allocatedAddress": {"ip": "10.7.0.20"}}}))
        .await?;
    cluster.withdrawn("forged", "DHCPLeaseLost").await?;
    Ok(())
}

/// The operator's view is stale: it does not show the loss of the address yet.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_was_lost_unseen_is_not_published_again() -> Result<()> {
    let cluster = Cluster::start().await?;
    let proxy = Proxy::start(&cluster.bed).await?;
    let _agent = Agent::start(&cluster, NETWORK).await?;
    let via = Some((proxy.url().to_owned(), proxy.ca_pem().to_owned()));
    let operator = cluster.standby(Start { via, ..Start::default() }).await?;
    operator.leads().await?;
    cluster.dhcp_lb("web", &[]).await?;
    cluster.grant("web", "10.7.0.20").await?;
    cluster.publishes("web", "10.7.0.20").await?;
    blind(&proxy, "dhcpleases").await?;
    cluster.take_away("web", "Lost").await?;
    cluster.patch_lb("web", json!({"status": null})).await?;
    cluster.withdrawn("web", "DHCPLeaseLost").await?;
    proxy.clear_rule();
    cluster.grant("web", "10.7.0.21").await?;
    cluster.publishes("web", "10.7.0.21").await.map(drop)
}

/// Creates a VM of guest cluster `prod` on the network, and starts an operator that cannot list VMs
/// until the rule of the proxy is cleared.
async fn without_vms(cluster: &Cluster) -> Result<(Proxy, Operator)> {
    create_node(&cluster.client, "node-1", &[], "10.0.0.1").await?;
    let vm = Vm::new("default", "prod-1").label("guestcluster.harvesterhci.io/name", "prod");
    let vm = vm.nic(Nic::attached("nic-1", NETWORK, &["10.7.0.9"]));
    Guest::run(&cluster.client, vm, "node-1").await?;
    let proxy = Proxy::start(&cluster.bed).await?;
    proxy.set_rule(|call| {
        let vms = call.resource() == Some("virtualmachineinstances");
        if vms { Verdict::Hang } else { Verdict::Pass }
    });
    let via = Some((proxy.url().to_owned(), proxy.ca_pem().to_owned()));
    let operator = cluster.standby(Start { via, ..Start::default() }).await?;
    Ok((proxy, operator))
}

/// Creates a LoadBalancer of guest cluster `prod` that names no network.
async fn unnamed(cluster: &Cluster, name: &str, spec: &Value) -> Result<()> {
    let mut lb = lb(name, spec)?;
    let label = ("cloudprovider.harvesterhci.io/cluster".to_owned(), "prod".to_owned());
    lb.metadata.labels = Some([label].into());
    cluster.lbs().create(&PostParams::default(), &lb).await?;
    Ok(())
}

/// A LoadBalancer whose VMs determine its network waits until these are listed: a new leader does
/// not leave an address to the guest because of missing facts.
#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_names_no_network_waits_for_the_list_of_vms() -> Result<()> {
    let cluster = Cluster::start().await?;
    let _agent = Agent::start(&cluster, NETWORK).await?;
    let (proxy, _operator) = without_vms(&cluster).await?;
    unnamed(&cluster, "unnamed", &json!({"workloadType": "cluster", "ipam": "dhcp"})).await?;
    // A later one that names its network has been reconciled.
    cluster.dhcp_lb("named", &[]).await?;
    cluster.withdrawn("named", "DHCPPending").await?;
    let waits = cluster.lbs().get("unnamed").await?;
    ensure!(address(&waits).is_none(), "{waits:?}");
    proxy.clear_rule();
    proxy.cut_all();
    let record = cluster.record("unnamed").await?;
    ensure!(record.spec.network == NETWORK, "{record:?}");
    Ok(())
}

/// Admission is off, so no annotation names the network. An address of another network's pool would
/// stay.
#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_names_no_network_gets_an_address_of_its_vms_network() -> Result<()> {
    let cluster = Cluster::start().await?;
    let scope = json!([{"project": "*", "namespace": "default", "guestCluster": "*"}]);
    cluster.pool_for("nodes", json!({"subnet": "10.1.0.0/24"}), json!({"scope": scope})).await?;
    let on_network = json!({"network": NETWORK, "scope": scope});
    cluster.pool_for("vms", json!({"subnet": "10.7.0.0/24"}), on_network).await?;
    let guest = json!({"workloadType": "cluster"});
    // The ledgers are loaded with the first one. The second one is only reconciled.
    unnamed(&cluster, "before", &guest).await?;
    let (proxy, operator) = without_vms(&cluster).await?;
    operator.leads().await?;
    unnamed(&cluster, "after", &guest).await?;
    // A later one that names its pool does not wait.
    unnamed(&cluster, "named", &json!({"workloadType": "cluster", "ipPool": "nodes"})).await?;
    let given = cluster.address("named").await?;
    ensure!(given.starts_with("10.1.0."), "{given}");
    for name in ["before", "after"] {
        cluster.waits(name, "NetworkUnknown").await?;
    }
    proxy.clear_rule();
    proxy.cut_all();
    for name in ["before", "after"] {
        let given = cluster.address(name).await?;
        ensure!(given.starts_with("10.7.0."), "{name}: {given}");
    }
    cluster.consistent().await
}
