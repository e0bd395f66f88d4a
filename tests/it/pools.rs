//! Conflicting pools without admission: one stays in use, the other reports the reason, and no two
//! LoadBalancers on one network have the same address.

use anyhow::Result;
use harvester_guest_operator::api::ConditionStatus;
use k8s_openapi::api::core::v1::{Node, Service};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testbed::eventually;
use testbed::kubevirt::{create_node, networks, vlan};

use crate::support::{Cluster, SOON, nothing_failed, shows};

const EVERYBODY: [(&str, &str); 3] = [("project", "*"), ("namespace", "*"), ("guestCluster", "*")];

fn range(first: u8, last: u8) -> Value {
    json!({
        "subnet": "10.1.0.0/24",
        "rangeStart": format!("10.1.0.{first}"),
        "rangeEnd": format!("10.1.0.{last}"),
    })
}

fn scope(namespace: &str) -> Value {
    json!([{"project": "*", "namespace": namespace, "guestCluster": ""}])
}

fn named(pool: &str) -> Value {
    json!({"workloadType": "cluster", "ipPool": pool})
}

/// Waits until the pool is in use.
async fn serves(cluster: &Cluster, pool: &str) -> Result<()> {
    eventually(SOON, &format!("{pool} in use"), async || {
        let status = cluster.pool_status(pool).await.map_err(|e| e.to_string())?;
        let ready = status.conditions.iter().find(|c| c.type_ == "Ready");
        match ready {
            Some(ready) if ready.status == ConditionStatus::True => Ok(true),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn of_pools_made_at_the_same_moment_one_is_in_use_and_the_other_says_why() -> Result<()> {
    let cluster = Cluster::start().await?;
    let operator = cluster.operator().await?;
    let all: serde_json::Map<String, Value> =
        EVERYBODY.iter().map(|(k, v)| ((*k).to_owned(), json!(v))).collect();
    let everybody = json!([all]);
    let x = |rest: Value, range: Value| {
        let mut selector = rest;
        selector["network"] = json!("default/x");
        (range, selector)
    };
    // Pairs: the conflicting pools, and the reason of the one that is not in use.
    let rounds = [
        ("RangeConflict", (range(10, 20), json!({})), (range(20, 30), json!({}))),
        (
            "SecondGlobalPool",
            (range(40, 44), json!({"scope": everybody})),
            (range(45, 49), json!({"scope": everybody})),
        ),
        (
            "PriorityConflict",
            x(json!({"priority": 3, "scope": scope("a")}), range(50, 54)),
            x(json!({"priority": 3, "scope": scope("b")}), range(55, 59)),
        ),
        (
            "ScopeConflict",
            x(json!({"scope": scope("default")}), range(60, 64)),
            x(json!({"scope": scope("*")}), range(65, 69)),
        ),
    ];
    for (reason, (range_a, for_a), (range_b, for_b)) in rounds {
        // Often both are created within one second: then the name decides.
        let (a, b) =
            (format!("{}-a", reason.to_lowercase()), format!("{}-b", reason.to_lowercase()));
        let (first, second) = tokio::join!(
            cluster.pool_for(&a, range_a, for_a),
            cluster.pool_for(&b, range_b, for_b)
        );
        let time = |pool: Result<harvester_guest_operator::api::IPPool>| {
            pool.map(|pool| pool.metadata.creation_timestamp.map(|time| time.0))
        };
        let (senior, junior) = if time(second)? < time(first)? { (&b, &a) } else { (&a, &b) };
        let message = cluster.pool_says(junior, "Ready", reason).await?;
        assert!(message.contains(senior.as_str()) && message.starts_with("spec."), "{message}");
        assert_eq!(cluster.warned(junior, reason).await?, message);
        serves(&cluster, senior).await?;
        for (lb, pool) in [(format!("{senior}-lb"), senior), (format!("{junior}-lb"), junior)] {
            cluster.lb_with(&lb, named(pool)).await.ok();
        }
        // The scopes of some rounds do not admit this namespace by name.
        if reason == "RangeConflict" || reason == "SecondGlobalPool" {
            cluster.address(&format!("{senior}-lb")).await?;
            let waits = cluster.waits(&format!("{junior}-lb"), "IPPoolNotReady").await?;
            assert!(waits.contains(&message), "{waits}");
            assert!(cluster.allocated(junior).await?.is_empty());
            // The one in use goes, and the waiting LoadBalancer is served.
            cluster.deleted(&format!("{senior}-lb")).await?;
            cluster.pool_deleted(senior).await?;
            cluster.address(&format!("{junior}-lb")).await?;
            serves(&cluster, junior).await?;
        }
    }
    shows(&operator, "hgo_shared_addresses", &[], |shared| shared == 0.0).await?;
    nothing_failed(&operator).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_widened_over_anothers_claims_gives_none_of_them_out() -> Result<()> {
    let cluster = Cluster::start().await?;
    let mut operator = cluster.operator().await?;
    cluster.pool_for("senior", range(10, 11), json!({})).await?;
    serves(&cluster, "senior").await?;
    // Certainly a later creation time.
    tokio::time::sleep(std::time::Duration::from_millis(1_100)).await;
    cluster.pool_for("junior", range(12, 13), json!({})).await?;
    for lb in ["one", "two"] {
        cluster.lb_with(lb, named("junior")).await?;
        cluster.address(lb).await?;
    }
    let before = cluster.addresses().await?;
    // Without a leader.
    operator.process.kill9()?;
    cluster.free_lease().await?;
    cluster.patch_pool("senior", json!({"spec": {"ranges": [range(10, 13)]}})).await?;
    for n in 0..4 {
        cluster.lb_with(&format!("new-{n}"), named("senior")).await?;
    }
    let operator = cluster.operator().await?;
    let message = cluster.pool_says("junior", "Ready", "RangeConflict").await?;
    assert!(message.contains("10.1.0.12 to 10.1.0.13") && message.contains("senior"), "{message}");
    let served = async |count: usize| {
        eventually(SOON, &format!("{count} addresses"), async || {
            let addresses = cluster.addresses().await.map_err(|e| e.to_string())?;
            let distinct: std::collections::BTreeSet<_> = addresses.values().collect();
            assert_eq!(distinct.len(), addresses.len(), "twice: {addresses:?}");
            let kept = before.iter().all(|(lb, ip)| addresses.get(lb).is_none_or(|now| now == ip));
            assert!(kept, "{addresses:?}");
            if addresses.len() == count { Ok(true) } else { Err(format!("{addresses:?}")) }
        })
        .await
    };
    served(4).await?;
    eventually(SOON, "2 of 4, none left", async || {
        let status = cluster.pool_status("senior").await.map_err(|e| e.to_string())?;
        let found = (status.total, status.available, status.allocated.len());
        if found == (4, 0, 2) { Ok(true) } else { Err(format!("{found:?}")) }
    })
    .await?;
    // An address released there becomes free here; the waiting LoadBalancer gets it.
    cluster.deleted("one").await?;
    served(4).await?;
    cluster.deleted("two").await?;
    served(4).await?;
    assert_eq!(cluster.allocated("senior").await?.len(), 4);
    shows(&operator, "hgo_shared_addresses", &[], |shared| shared == 0.0).await?;
    // Narrowed again, it does not conflict any more.
    for n in 0..4 {
        cluster.deleted(&format!("new-{n}")).await?;
    }
    cluster.patch_pool("senior", json!({"spec": {"ranges": [range(10, 11)]}})).await?;
    serves(&cluster, "junior").await?;
    cluster.consistent().await
}

#[tokio::test(flavor = "multi_thread")]
async fn networks_decide_and_may_become_known_late() -> Result<()> {
    let cluster = Cluster::start().await?;
    let operator = cluster.operator().await?;
    for name in ["x", "y"] {
        let selector = json!({"network": format!("default/{name}")});
        cluster.pool_for(name, range(10, 12), selector).await?;
        // The same range on networks that are not known to be one.
        cluster.lb_with(name, named(name)).await?;
        assert_eq!(cluster.address(name).await?, "10.1.0.10");
        tokio::time::sleep(std::time::Duration::from_millis(1_100)).await;
    }
    let known = async |name: &str, id: u16| {
        let api = networks(&cluster.client, "default");
        let network = vlan("default", name, id);
        if api.get_opt(name).await?.is_none() {
            api.create(&PostParams::default(), &serde_json::from_value(network)?).await?;
        } else {
            let patch = json!({"spec": network["spec"]});
            api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
        anyhow::Ok(())
    };
    known("x", 100).await?;
    known("y", 100).await?;
    let message = cluster.pool_says("y", "Ready", "RangeConflict").await?;
    assert!(
        message.contains("network default/y and network default/x are the same segment"),
        "{message}"
    );
    // Both had it before: reported, and not changed.
    let note = cluster.warned("x", "AddressShared").await?;
    assert!(note.contains("10.1.0.10") && note.contains("default/y"), "{note}");
    shows(&operator, "hgo_shared_addresses", &[], |shared| shared == 1.0).await?;
    for name in ["x", "y"] {
        assert_eq!(cluster.address(name).await?, "10.1.0.10");
    }
    cluster.lb_with("waiter", named("y")).await?;
    cluster.waits("waiter", "IPPoolNotReady").await?;
    // The networks turn out to be two.
    known("y", 200).await?;
    serves(&cluster, "y").await?;
    assert_eq!(cluster.address("waiter").await?, "10.1.0.11");
    shows(&operator, "hgo_shared_addresses", &[], |shared| shared == 0.0).await.map(drop)
}

/// Addresses of nodes, of Harvester itself, and of foreign Services.
#[tokio::test(flavor = "multi_thread")]
async fn addresses_of_the_cluster_itself_are_held_back_and_shown() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/28"})).await?;
    let _operator = cluster.operator().await?;
    cluster.lb("early").await?;
    assert_eq!(cluster.address("early").await?, "10.1.0.2");
    create_node(&cluster.client, "node-2", &[], "10.1.0.2").await?;
    create_node(&cluster.client, "node-3", &[], "10.1.0.3").await?;
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let pods = json!({"spec": {"podCIDR": "10.1.0.12/31", "podCIDRs": ["10.1.0.12/31"]}});
    nodes.patch("node-3", &PatchParams::default(), &Patch::Merge(pods)).await?;
    cluster
        .bed
        .apply_yaml(
            r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: vip, namespace: harvester-system}
data: {enabled: "true", ip: 10.1.0.4}
---
apiVersion: v1
kind: Service
metadata: {name: foreign, namespace: default}
spec: {type: LoadBalancer, ports: [{port: 80}]}
"#,
        )
        .await?;
    let services: Api<Service> = Api::namespaced(cluster.client.clone(), "default");
    let ingress = json!({"status": {"loadBalancer": {"ingress": [{"ip": "10.1.0.5"}]}}});
    services.patch_status("foreign", &PatchParams::default(), &Patch::Merge(ingress)).await?;
    let all = [
        "10.1.0.2 is an address of Node node-2, and LoadBalancer default/early holds it: move that LoadBalancer",
        "10.1.0.3 is an address of Node node-3",
        "10.1.0.4 is the management address (ConfigMap harvester-system/vip)",
        "10.1.0.5 is the load-balancer address of Service default/foreign",
        "10.1.0.12/31 is in the pod network of Node node-3",
    ];
    let says = format!("held back: {}", all.join("; "));
    eventually(SOON, &says, async || {
        let status = cluster.pool_status("pool").await.map_err(|e| e.to_string())?;
        let ready = status.conditions.iter().find(|c| c.type_ == "Ready");
        let said = ready.and_then(|ready| ready.message.clone()).unwrap_or_default();
        if said == says && status.available == 7 { Ok(true) } else { Err(format!("{status:?}")) }
    })
    .await?;
    let note = cluster.warned("pool", "AddressReserved").await?;
    assert!(note.contains("10.1.0.2 is held by default/early"), "{note}");
    cluster.lb("late").await?;
    assert_eq!(cluster.address("late").await?, "10.1.0.6");
    assert_eq!(cluster.address("early").await?, "10.1.0.2", "in use, it stays");
    // Released, it is not claimed again.
    cluster.deleted("early").await?;
    let names: Vec<String> = (0..6).map(|n| format!("more-{n}")).collect();
    cluster.lbs_at_once(names.clone()).await?;
    for name in &names {
        cluster.address(name).await?;
    }
    cluster.lb("one-too-many").await?;
    cluster.waits("one-too-many", "NoAvailableIP").await?;
    let given = cluster.allocated("pool").await?;
    let held_back = ["10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.5", "10.1.0.12", "10.1.0.13"];
    assert!(held_back.iter().all(|ip| !given.contains_key(*ip)), "{given:?}");
    Ok(())
}
