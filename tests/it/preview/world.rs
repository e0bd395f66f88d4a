//! Objects as the Go controller leaves them, one for each thing that a plan can say.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use chrono::{SecondsFormat, TimeDelta, Utc};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testbed::kubevirt::{Guest, Nic, Vm, create_node};

use super::{Cells, Printed};
use crate::support::Cluster;

/// LoadBalancers in this world.
pub(super) const LBS: usize = 14;
const FINALIZER: &str = "wrangler.cattle.io/harvester-lb-controller";

/// The right to read the Secrets of one namespace.
pub(super) const SECRETS: &str = r"
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: preview-secrets, namespace: guests}
rules: [{apiGroups: [''], resources: [secrets], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: preview-secrets, namespace: guests}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: preview-secrets}
subjects: [{kind: ServiceAccount, name: harvester-guest-operator-preview, namespace: harvester-system}]
";

/// Stores the world. The guests live until they are dropped.
pub(super) async fn store(cluster: &Cluster) -> Result<Vec<Guest>> {
    pools(cluster).await?;
    let zone = [("topology.kubernetes.io/zone", "a")];
    create_node(&cluster.client, "node-1", &zone, "10.1.0.2").await?;
    let vm = Vm::new("default", "vm").label("app", "web").nic(Nic::pod("eth0", &["10.9.0.1"]));
    let guest = Guest::run(&cluster.client, vm, "node-1").await?;

    // Kept; kept though the ledger lacks it; of two with one address the second loses it.
    published(cluster, "kept", "pool", "10.1.0.5").await?;
    published(cluster, "unrecorded", "pool", "10.1.0.6").await?;
    published(cluster, "double", "pool", "10.1.0.5").await?;
    published(cluster, "pool-gone", "gone", "10.8.0.5").await?;
    // New ones: served, in no pool, in a pool that is full, in a pool whose scope does not admit it.
    cluster.lb("new").await?;
    let pool = |name: &str| json!({"workloadType": "cluster", "ipam": "pool", "ipPool": name});
    cluster.lb_with("nowhere", pool("nowhere")).await?;
    cluster.lb_with("tiny-1", pool("tiny")).await?;
    cluster.lb_with("tiny-2", pool("tiny")).await?;
    cluster.lb_with("idle", pool("shadow")).await?;
    // Leased by its guest; by the host, where no agent runs.
    cluster.lb_with("by-guest", json!({"workloadType": "cluster", "ipam": "dhcp"})).await?;
    let mut host =
        crate::support::lb("by-host", &json!({"workloadType": "cluster", "ipam": "dhcp"}))?;
    let asks = [("loadbalancer.harvesterhci.io/dhcp", "host")];
    host.metadata.annotations = Some(BTreeMap::from(asks.map(|(k, v)| (k.into(), v.into()))));
    cluster.lbs().create(&PostParams::default(), &host).await?;
    // VMs: one runs, none runs, and a Service that is another's.
    let vms = |app: &str| json!({"backendServerSelector": {"app": [app]}, "ipPool": "pool"});
    cluster.lb_with("web", vms("web")).await?;
    let foreign = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "theirs", "namespace": "default"}, "spec": {"ports": [{"port": 80}]}});
    cluster.bed.apply_yaml(&foreign.to_string()).await?;
    cluster.lb_with("theirs", vms("web")).await?;
    // Half deleted.
    published(cluster, "leaving", "pool", "10.1.0.7").await?;
    cluster.lbs().delete("leaving", &DeleteParams::default()).await?;
    credentials(cluster).await?;
    Ok(vec![guest])
}

async fn pools(cluster: &Cluster) -> Result<()> {
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24", "gateway": "10.1.0.1"})).await?;
    let demo = json!({"priority": 1, "scope": [{"namespace": "demo", "project": "*", "guestCluster": "*"}]});
    // Of two that are created within a second, the later name stands back.
    cluster.pool_for("shadow", json!({"subnet": "10.1.0.0/25"}), demo).await?;
    // Serves only those that name it.
    let one = json!({"subnet": "10.5.0.0/24", "rangeStart": "10.5.0.9", "rangeEnd": "10.5.0.9"});
    cluster.pool_for("tiny", one, json!({})).await?;
    let allocated = json!({
        "10.1.0.5": "default/kept", "10.1.0.7": "default/leaving", "10.1.0.8": "default/gone",
    });
    let status = json!({"total": 253, "available": 250, "lastAllocated": "10.1.0.8", "allocated": allocated});
    let patch = Patch::Merge(json!({"status": status}));
    cluster.pools().patch("pool", &PatchParams::default(), &patch).await?;
    Ok(())
}

async fn published(cluster: &Cluster, name: &str, pool: &str, ip: &str) -> Result<()> {
    let mut lb = serde_json::to_value(crate::support::lb(
        name,
        &json!({"workloadType": "cluster", "ipam": "pool"}),
    )?)?;
    lb["metadata"]["finalizers"] = json!([FINALIZER]);
    lb["status"] = json!({
        "address": ip,
        "allocatedAddress": {"ipPool": pool, "ip": ip, "mask": "255.255.255.0", "gateway": "10.1.0.1"},
        "conditions": [{"type": "Ready", "status": "True", "message": ""}],
    });
    cluster.lbs().create(&PostParams::default(), &serde_json::from_value(lb)?).await?;
    Ok(())
}

/// A token that ends in so many days.
fn token(days: i64) -> String {
    let end = (Utc::now() + TimeDelta::days(days)).timestamp();
    let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}.c2ln", part(json!({"alg": "none"})), part(json!({"exp": end, "sub": "robot"})))
}

async fn credentials(cluster: &Cluster) -> Result<()> {
    let secret = |name: &str, key: &str, value: String| {
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "guests"},
            "data": {key: STANDARD.encode(value)}})
    };
    let kubeconfig = json!({"users": [
        {"name": "soon", "user": {"token": token(3)}},
        {"name": "late", "user": {"token": token(90)}},
    ]});
    for object in [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "guests"}}),
        secret("cloud-config", "cloud-config", kubeconfig.to_string()),
        secret("password", "password", "no token at all".to_owned()),
        json!({"apiVersion": "credentials.harvesterhci.io/v1alpha1", "kind": "TokenRotation",
            "metadata": {"name": "watched", "namespace": "guests"},
            "spec": {"target": {"secret": {"name": "elsewhere", "key": "token"}}}}),
    ] {
        cluster.bed.apply_yaml(&object.to_string()).await?;
    }
    let end = Utc::now() + TimeDelta::days(2);
    let end = end.to_rfc3339_opts(SecondsFormat::Secs, true);
    let status = json!({"status": {"expiresAt": end}}).to_string();
    let args = ["patch", "tokenrotation", "watched", "-n", "guests", "--subresource=status"];
    cluster.bed.kubectl(&[&args[..], &["--type=merge", "-p", &status]].concat()).await?;
    Ok(())
}

/// Checks the facts of this world that are known beforehand. The operator shows that the rest is right.
pub(super) fn is_printed(printed: &Printed, lbs: &BTreeMap<String, Cells>) -> Result<()> {
    for (name, cells) in [
        ("kept", ["10.1.0.5", "10.1.0.5", "True", "Allocated"]),
        ("unrecorded", ["10.1.0.6", "10.1.0.6", "True", "Allocated"]),
        ("pool-gone", ["10.8.0.5", "10.8.0.5", "True", "IPPoolNotFound"]),
        ("nowhere", ["-", "-", "False", "IPPoolNotFound"]),
        ("tiny-1", ["-", "10.5.0.9", "True", "Allocated"]),
        ("tiny-2", ["-", "-", "False", "NoAvailableIP"]),
        ("by-guest", ["-", "0.0.0.0", "True", "DHCP"]),
        ("by-host", ["-", "-", "False", "NoDHCPAgent"]),
    ] {
        let found = &lbs[&format!("default/{name}")];
        ensure!(found[..4] == cells, "{name}: {found:?}");
    }
    for (name, reason) in [("web", "NotAnnounced"), ("theirs", "ServiceConflict")] {
        let found = &lbs[&format!("default/{name}")];
        ensure!(
            found[0] == "-" && found[1].starts_with("10.1.0.") && found[3] == reason,
            "{found:?}"
        );
    }
    let double = &lbs["default/double"];
    ensure!(double[0] == "10.1.0.5" && double[1] != "10.1.0.5", "{double:?}");
    let gets: Vec<&String> = lbs.values().map(|cells| &cells[1]).filter(|ip| *ip != "-").collect();
    let unique: std::collections::BTreeSet<_> = gets.iter().collect();
    ensure!(unique.len() == gets.len(), "an address is foreseen twice: {gets:?}");
    ensure!(!gets.iter().any(|ip| *ip == "10.1.0.2"), "the node's own address is foreseen");

    let found = printed.section("Found").join("\n");
    ensure!(found.contains("10.1.0.8 is recorded for LoadBalancer default/gone"), "{found}");
    let ends = printed.section("Credentials that expire");
    let soon = ends.iter().filter(|line| line.contains(": soon, and nothing")).count();
    ensure!(ends.len() == 3 && soon == 2, "{ends:?}");
    ensure!(ends[0].contains("Secret guests/elsewhere, key token: expires in"), "{ends:?}");
    ensure!(
        ends[1].contains("Secret guests/cloud-config, key cloud-config, user soon"),
        "{ends:?}"
    );
    ensure!(printed.section("Not known").is_empty(), "{}", printed.text);
    Ok(())
}
