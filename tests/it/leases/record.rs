//! The record's schema, checked by the API server, and the columns and rights of users.

use anyhow::{Result, ensure};
use harvester_guest_operator::api::DHCPLease;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::support::Cluster;

fn record(name: &str, change: &Value) -> DHCPLease {
    let mut record = json!({
        "apiVersion": "loadbalancer.harvesterhci.io/v1alpha1", "kind": "DHCPLease",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"network": "default/vlan7", "macAddress": "02:00:5e:10:00:01",
            "clientID": "ff00000001", "hostname": "web"},
    });
    json_patch::merge(&mut record["spec"], change);
    serde_json::from_value(record).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_says_who_asks_and_never_another() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.bed.crds_established().await?;
    let (api, params) = (cluster.records(), PostParams::default());
    for (i, (field, wrong)) in [
        ("spec.network", json!({"network": "vlan7"})),
        ("spec.network", json!({"network": "a/b/c"})),
        ("spec.macAddress", json!({"macAddress": "00:00:00:00:00:00"})),
        ("spec.macAddress", json!({"macAddress": "03:00:5e:10:00:01"})),
        ("spec.macAddress", json!({"macAddress": "02:00:5E:10:00:01"})),
        ("spec.clientID", json!({"clientID": "ff000"})),
        ("spec.clientID", json!({"clientID": "zz00"})),
        ("spec.clientID", json!({"clientID": "ff"})),
        ("spec.hostname", json!({"hostname": "web-"})),
        ("spec.hostname", json!({"hostname": "a_b"})),
        ("spec.releaseAfter", json!({"releaseAfter": "tomorrow"})),
    ]
    .into_iter()
    .enumerate()
    {
        let refused = api.create(&params, &record(&format!("r{i}"), &wrong)).await;
        let refused = refused.expect_err(field).to_string();
        ensure!(refused.contains(field), "{wrong}: {refused}");
    }
    api.create(&params, &record("web", &json!({}))).await?;
    // Requests as kube-vip: with a hardware address of its own, and without a client identifier.
    let kube_vips = json!({"macAddress": "00:00:6c:0d:5a:be", "clientID": "",
        "hostname": "Shop.example", "requestedAddress": "10.7.0.9", "broadcast": true});
    let kube_vips = api.create(&params, &record("kube-vips", &kube_vips)).await?;
    ensure!(kube_vips.spec.requested_address.as_deref() == Some("10.7.0.9"), "{kube_vips:?}");
    for (field, change) in [
        ("spec.network", json!({"network": "default/vlan8"})),
        ("spec.macAddress", json!({"macAddress": "02:00:5e:10:00:02"})),
        ("spec.clientID", json!({"clientID": "ff00000002"})),
        ("spec.hostname", json!({"hostname": "other"})),
    ] {
        let patch = Patch::Merge(json!({"spec": change}));
        let refused = api.patch("web", &PatchParams::default(), &patch).await;
        let refused = refused.expect_err(field).to_string();
        ensure!(refused.contains(field) && refused.contains("immutable"), "{refused}");
    }
    for at in [json!("2026-01-01T00:00:00.123Z"), Value::Null] {
        let patch = Patch::Merge(json!({"spec": {"releaseAfter": at}}));
        api.patch("web", &PatchParams::default(), &patch).await?;
    }
    // Writes of spec and status do not change the other.
    let both = json!({"spec": {"releaseAfter": "2026-01-01T00:00:00Z"},
        "status": {"address": "10.7.0.99", "state": "Bound"}});
    let written =
        api.patch("web", &PatchParams::default(), &Patch::Merge(json!(both.clone()))).await?;
    assert_eq!(written.status, None, "the status is the agent's");
    let both = Patch::Merge(json!({"spec": {"releaseAfter": null}, "status": both["status"]}));
    let written = api.patch_status("web", &PatchParams::default(), &both).await?;
    assert_eq!(written.spec.release_after.as_deref(), Some("2026-01-01T00:00:00Z"));
    for wrong in [
        json!({"state": "Elsewhere"}),
        json!({"prefixLength": 33}),
        json!({"leaseSeconds": -1}),
        json!({"expiresAt": "soon"}),
    ] {
        let patch = Patch::Merge(json!({"status": wrong}));
        let refused = api.patch_status("web", &PatchParams::default(), &patch).await;
        ensure!(refused.is_err(), "{wrong} was taken");
    }
    cluster.grant("web", "10.7.0.20").await?;
    let shown = cluster.bed.kubectl(&["get", "dhcpl", "web"]).await?;
    let (head, row) = shown.trim().split_once('\n').unwrap_or_default();
    for column in ["LB", "ADDRESS", "SERVER", "EXPIRES", "STATE"] {
        ensure!(head.split_whitespace().any(|word| word == column), "no {column}: {shown}");
    }
    for value in ["10.7.0.20", "10.7.0.2", "Bound"] {
        ensure!(row.split_whitespace().any(|word| word == value), "no {value}: {shown}");
    }
    Ok(())
}

/// Roles that view a namespace read its records; only the operator and its agents write them.
#[tokio::test(flavor = "multi_thread")]
async fn tenants_see_records_and_write_none() -> Result<()> {
    let cluster = Cluster::start().await?;
    for role in ["view", "edit", "admin"] {
        let name = format!("tenant-{role}");
        cluster.bed.kubectl(&["create", "serviceaccount", &name]).await?;
        let account = format!("--serviceaccount=default:{name}");
        let role = format!("--clusterrole={role}");
        cluster.bed.kubectl(&["create", "rolebinding", &name, &role, &account]).await?;
        let user = format!("--as=system:serviceaccount:default:{name}");
        let may = async |verb: &str, what: &str| {
            let answer = cluster.bed.kubectl(&["auth", "can-i", verb, what, &user]).await;
            answer.is_ok_and(|answer| answer.trim() == "yes")
        };
        testbed::eventually(crate::support::SOON, "aggregated roles", async || {
            may("get", "dhcpleases").await
        })
        .await?;
        for verb in ["create", "update", "patch", "delete", "deletecollection"] {
            ensure!(!may(verb, "dhcpleases").await, "{name} may {verb}");
            ensure!(!may(verb, "dhcpleases/status").await, "{name} may {verb} the status");
        }
    }
    Ok(())
}
