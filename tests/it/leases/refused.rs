//! Addresses that are recorded and not published, and requests that admission refuses.

use anyhow::{Result, ensure};
use kube::api::{Patch, PatchParams};
use serde_json::json;
use testbed::{Start, eventually};

use super::{Agent, NETWORK};
use crate::support::{Cluster, SOON, address, ready};

const DHCP: &str = "loadbalancer.harvesterhci.io/dhcp";

fn network(name: &str, vlan: u16) -> String {
    json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"config": json!({"cniVersion": "0.3.1", "name": name, "type": "bridge",
            "bridge": "br-a", "vlan": vlan}).to_string()},
    })
    .to_string()
}

/// `vlan7`, with its addresses as Harvester's UI writes them.
fn described(cidr: &str) -> String {
    let mut network: serde_json::Value =
        serde_json::from_str(&network("vlan7", 7)).unwrap_or_default();
    let route = json!({"mode": "manual", "cidr": cidr, "gateway": "10.7.0.253"});
    network["metadata"]["annotations"] =
        json!({"network.harvesterhci.io/route": route.to_string()});
    network.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_of_another_is_not_published() -> Result<()> {
    let cluster = Cluster::start().await?;
    for (name, vlan) in [("other-name", 7), ("vlan8", 8)] {
        cluster.bed.apply_yaml(&network(name, vlan)).await?;
    }
    cluster.bed.apply_yaml(&described("10.7.0.0/24")).await?;
    cluster.infrastructure("10.7.0.61", "10.7.0.71", "10.7.0.72").await?;
    let _agent = Agent::start(&cluster, NETWORK).await?;
    let _operator = cluster.operator().await?;
    // On the same bridge and VLAN, by another name; and on another VLAN.
    let range = |start: &str| {
        json!({"subnet": "10.7.0.0/24", "rangeStart": start, "rangeEnd": "10.7.0.199",
            "gateway": "10.7.0.254"})
    };
    cluster.pool_for("here", range("10.7.0.100"), json!({"network": "default/other-name"})).await?;
    cluster.pool_for("there", range("10.7.0.50"), json!({"network": "default/vlan8"})).await?;
    eventually(SOON, "ready pool", async || {
        let conditions = cluster.pool_status("here").await?.conditions;
        anyhow::Ok(!conditions.is_empty())
    })
    .await?;
    cluster.dhcp_lb("web", &[]).await?;
    for (ip, named) in [
        ("10.7.0.150", "IPPool here"),
        ("10.7.0.254", "gateway of IPPool here"),
        ("10.7.0.1", "gateway of its own subnet"),
        ("10.7.0.61", "a node's own"),
        ("10.7.0.71", "the cluster's management address"),
        ("10.7.0.72", "the address of a Service"),
        ("10.96.0.1", "the address of a Service"),
        ("10.96.0.10", "in the cluster's service network"),
        ("10.52.0.10", "in the cluster's pod network"),
        ("8.8.8.8", "outside 10.7.0.0/24, the addresses of network default/vlan7"),
        ("10.7.0.253", "the gateway of network default/vlan7"),
    ] {
        cluster.grant("web", ip).await?;
        eventually(SOON, &format!("refusal of {ip}"), async || {
            let message = cluster.withdrawn("web", "DHCPAddressUnusable").await?;
            anyhow::Ok(message.contains(ip) && message.contains(named))
        })
        .await?;
    }
    // A new description of the network enqueues the LoadBalancer, and removes no published address.
    cluster.grant("web", "10.7.1.60").await?;
    cluster.withdrawn("web", "DHCPAddressUnusable").await?;
    cluster.bed.apply_yaml(&described("10.7.0.0/23")).await?;
    cluster.publishes("web", "10.7.1.60").await?;
    cluster.bed.apply_yaml(&described("10.7.0.0/24")).await?;
    cluster.grant("web", "10.7.0.60").await?;
    cluster.publishes("web", "10.7.0.60").await?;
    // The server grants it to a second one as well: the first one retains it.
    cluster.dhcp_lb("second", &[]).await?;
    cluster.grant("second", "10.7.0.60").await?;
    let message = cluster.withdrawn("second", "DHCPAddressUnusable").await?;
    ensure!(!message.contains("web"), "names another's object: {message}");
    cluster.publishes("web", "10.7.0.60").await?;
    // A later pool over it removes no published address.
    cluster
        .pool_for(
            "later",
            json!({"subnet": "10.7.0.0/24", "rangeStart": "10.7.0.40", "rangeEnd": "10.7.0.70",
                "gateway": "10.7.0.254"}),
            json!({"network": NETWORK}),
        )
        .await?;
    // Until the pool is observed, its addresses are published, and stay.
    let mut last = 61;
    eventually(SOON, "refusal for IPPool later", async || {
        last = if last < 70 { last + 1 } else { 62 };
        let ip = format!("10.7.0.{last}");
        cluster.grant("second", &ip).await?;
        eventually(SOON, &format!("result of {ip}"), async || {
            let lb = cluster.lbs().get("second").await?;
            let (_, _, message) = ready(&lb);
            let refused = message.contains(&ip) && message.contains("IPPool later");
            let published = address(&lb).as_deref() == Some(&ip);
            anyhow::Ok((refused || published).then_some(refused))
        })
        .await
    })
    .await?;
    cluster.publishes("web", "10.7.0.60").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn admission_guards_status_and_annotation() -> Result<()> {
    let cluster = Cluster::start().await?;
    let _agent = Agent::start(&cluster, NETWORK).await?;
    let admission = Some("https://127.0.0.1:0".to_owned());
    let operator = cluster.standby(Start { admission, ..Start::default() }).await?;
    operator.leads().await?;
    let wrong = eventually(SOON, "admission", async || {
        match cluster.dhcp_lb("wrong", &[(DHCP, "ipv6")]).await {
            Err(error) if format!("{error:#}").contains("must be host or guest") => {
                anyhow::Ok(Some(format!("{error:#}")))
            }
            // Not registered yet.
            Err(error) => Err(error),
            Ok(_) => {
                cluster.delete("wrong").await?;
                Ok(None)
            }
        }
    })
    .await?;
    ensure!(wrong.contains(DHCP) && wrong.contains("\"ipv6\""), "{wrong}");
    cluster.dhcp_lb("web", &[]).await?;
    cluster.grant("web", "10.7.0.20").await?;
    cluster.publishes("web", "10.7.0.20").await?;
    for (field, forged) in [
        ("status.allocatedAddress.ip", json!({"allocatedAddress": {"ip": "10.7.0.99"}})),
        ("status.allocatedAddress.ip", json!({"allocatedAddress": {"ip": "0.0.0.0"}})),
        ("status.allocatedAddress.ipPool", json!({"allocatedAddress": {"ipPool": "p"}})),
        ("status.allocatedAddress.gateway", json!({"allocatedAddress": {"gateway": "10.7.0.9"}})),
    ] {
        let patch = Patch::Merge(json!({"status": forged}));
        let refused = cluster.lbs().patch("web", &PatchParams::default(), &patch).await;
        let refused = refused.expect_err(field).to_string();
        ensure!(refused.contains(field), "{field}: {refused}");
    }
    // A guest may write the address that it announces, but not another's.
    cluster.patch_lb("web", json!({"status": {"address": "10.7.0.20"}})).await?;
    let lb = cluster.patch_lb("web", json!({"status": {"address": "10.7.0.99"}})).await?;
    assert_eq!(lb.status.as_ref().unwrap().address.as_deref(), Some("10.7.0.20"));
    // A client that drops unknown fields removes no address.
    let mut wiped = cluster.lbs().get("web").await?;
    wiped.status = None;
    let kept = cluster.lbs().replace("web", &kube::api::PostParams::default(), &wiped).await?;
    assert_eq!(address(&kept).as_deref(), Some("10.7.0.20"));
    // The operator is no tenant: it moves the address.
    cluster.grant("web", "10.7.0.21").await?;
    cluster.publishes("web", "10.7.0.21").await?;
    // A pool over a leased address is refused, unless it excludes the address.
    let range = |exclude: &[&str]| {
        json!({"subnet": "10.7.0.0/24", "rangeStart": "10.7.0.10", "rangeEnd": "10.7.0.30",
            "gateway": "10.7.0.254", "exclude": exclude})
    };
    let here = json!({"network": NETWORK});
    let refused = cluster.pool_for("over", range(&[]), here.clone()).await;
    let refused = refused.expect_err("a pool over a leased address").to_string();
    for part in ["spec.ranges[0]", "10.7.0.21 (default/web)", "exclude"] {
        ensure!(refused.contains(part), "{part}: {refused}");
    }
    cluster.pool_for("beside", range(&["10.7.0.21"]), here).await?;
    Ok(())
}
