//! Least privilege, by the API server's own record: whatever the operator asks for is granted, and
//! whatever is granted is asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use testbed::kubevirt::{Guest, Nic, Vm, create_node, install_kubevirt};
use testbed::{Bed, Options, Start, eventually};

use super::{default_objects, object};
use crate::support::{Cluster, LATER};

const ACCOUNT: &str = "system:serviceaccount:harvester-system:harvester-guest-operator";
const CRD: &str = "loadbalancers.loadbalancer.harvesterhci.io";
/// Asked for only when somebody else was faster, or what somebody else did is not yet seen: nothing
/// that a test could bring about each time. `group resource verb`.
const NOW_AND_THEN: [&str; 3] = [
    "discovery.k8s.io endpointslices get",
    "events.k8s.io events patch",
    "loadbalancer.harvesterhci.io ippools get",
];

#[tokio::test(flavor = "multi_thread")]
async fn what_is_granted_is_used_and_what_is_used_is_granted() -> Result<()> {
    let dir = tempfile::TempDir::new()?;
    let (policy, log) = (dir.path().join("policy.yaml"), dir.path().join("audit.log"));
    let everything = json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy",
        "omitStages": ["RequestReceived"], "rules": [{"level": "Metadata"}]});
    fs::write(&policy, everything.to_string())?;
    let api_server_args = vec![
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", log.display()),
    ];
    let bed = Bed::start(Options { api_server_args, ..Options::default() }).await?;
    testbed::install(&bed).await?;
    install_kubevirt(&bed).await?;
    let cluster = Cluster::over(bed).await?;
    work(&cluster).await?;

    let (asked, refused) = record(&fs::read_to_string(&log)?);
    ensure!(refused.is_empty(), "not granted: {refused:?}");
    let granted = granted().await;
    let surplus: Vec<_> = granted
        .difference(&asked)
        .filter(|right| !NOW_AND_THEN.contains(&right.as_str()))
        .collect();
    ensure!(surplus.is_empty(), "granted and not asked for: {surplus:?}");
    cluster.bed.stop().await
}

/// A bit of everything.
async fn work(cluster: &Cluster) -> Result<()> {
    let kubectl = async |args: &str| {
        cluster.bed.kubectl(&args.split(' ').collect::<Vec<_>>()).await.map(drop)
    };
    // Objects may be stored in an old version, and kube-vip was told addresses.
    let stored = json!({"status": {"storedVersions": ["v1alpha1", "v1beta1"]}}).to_string();
    let patch = ["patch", "crd", CRD, "--subresource=status", "--type=merge", "-p", &stored];
    cluster.bed.kubectl(&patch).await?;
    let told = "create configmap kubevip -n kube-system --from-literal=cidr-other=10.7.0.0/24";
    kubectl(told).await?;
    let variables = vec![("HGO_ADMISSION_OWNER".to_owned(), "harvester-guest-operator".to_owned())];
    let admission = Some("https://127.0.0.1:0".to_owned());
    let operator = cluster.standby(Start { admission, variables, ..Start::default() }).await?;
    operator.leads().await?;
    let zone = [("topology.kubernetes.io/zone", "a")];
    create_node(&cluster.client, "node-1", &zone, "10.0.0.1").await?;
    let vm = Vm::new("default", "vm").label("app", "web").nic(Nic::pod("eth0", &["10.9.0.1"]));
    let _guest = Guest::run(&cluster.client, vm, "node-1").await?;
    cluster.pool("p", json!({"subnet": "10.1.0.0/24", "gateway": "10.1.0.1"})).await?;
    cluster.lb("cluster").await?;
    let address = cluster.address("cluster").await?;
    cluster.lb_with("vm", json!({"backendServerSelector": {"app": ["web"]}})).await?;
    cluster.waits_for_endpoints("vm", (1, 1)).await?;
    let more = json!([{"name": "a", "port": 81, "protocol": "TCP", "backendPort": 8080}]);
    cluster.patch_lb("vm", json!({"spec": {"listeners": more}})).await?;
    // It is asked whether the LoadBalancer exists.
    let release =
        format!("loadbalancer.harvesterhci.io/manuallyReleaseIP={address}: default/cluster");
    let annotated = cluster.bed.kubectl(&["annotate", "ippool", "p", &release]).await;
    ensure!(annotated.is_err(), "an address in use was released");
    // A Service that is not ours is looked at.
    kubectl("create service clusterip theirs --tcp=80:80").await?;
    cluster.lb_with("theirs", json!({"backendServerSelector": {"app": ["web"]}})).await?;
    cluster.waits("theirs", "ServiceConflict").await?;
    // What leads to admission is changed by somebody else, and its Secret.
    let webhook = "harvester-load-balancer-webhook";
    for kind in ["validatingwebhookconfiguration", "mutatingwebhookconfiguration"] {
        kubectl(&format!("label {kind} {webhook} app.kubernetes.io/managed-by-")).await?;
    }
    let key = r#"[{"op":"remove","path":"/data/ca.key"}]"#;
    let secret =
        "patch secret harvester-guest-operator-admission -n harvester-system --type json -p";
    kubectl(&format!("{secret} {key}")).await?;
    eventually(LATER, "the end of the old version", async || {
        let at = "jsonpath={.status.storedVersions}";
        let stored = cluster.bed.kubectl(&["get", "crd", CRD, "-o", at]).await?;
        anyhow::Ok(!stored.contains("v1alpha1"))
    })
    .await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    for name in ["vm", "theirs", "cluster"] {
        cluster.deleted(name).await?;
    }
    drop(operator);
    // Off: what leads to admission is removed.
    let operator = cluster.standby(Start::default()).await?;
    operator.leads().await?;
    kubectl("wait --for=delete validatingwebhookconfiguration --all --timeout=20s").await
}

/// What was asked for, and what of it was refused.
fn record(log: &str) -> (BTreeSet<String>, BTreeMap<String, String>) {
    let (mut asked, mut refused) = (BTreeSet::new(), BTreeMap::new());
    for line in log.lines() {
        let Ok(event) = serde_json::from_str::<Value>(line) else { continue };
        if event["user"]["username"] != ACCOUNT || event["objectRef"].is_null() {
            continue;
        }
        let text = |field: &str| event["objectRef"][field].as_str().unwrap_or_default().to_owned();
        let resource = match text("subresource") {
            sub if sub.is_empty() => text("resource"),
            sub => format!("{}/{sub}", text("resource")),
        };
        let verb = event["verb"].as_str().unwrap_or_default();
        let right = format!("{} {resource} {verb}", text("apiGroup"));
        if event["responseStatus"]["code"] == 403 {
            refused.insert(right.clone(), event["responseStatus"]["message"].to_string());
        }
        asked.insert(right);
    }
    (asked, refused)
}

/// What the chart grants the operator.
async fn granted() -> BTreeSet<String> {
    let rendered = default_objects().await;
    let roles = [
        ("ClusterRole", "harvester-guest-operator"),
        ("Role", "harvester-guest-operator"),
        ("Role", "harvester-guest-operator-admission"),
        ("Role", "harvester-guest-operator-kube-vip"),
    ];
    let mut granted = BTreeSet::new();
    let words = |list: &Value| -> Vec<String> {
        list.as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
    };
    for (kind, name) in roles {
        for rule in object(&rendered, kind, name)["rules"].as_array().unwrap() {
            for group in words(&rule["apiGroups"]) {
                for resource in words(&rule["resources"]) {
                    for verb in words(&rule["verbs"]) {
                        assert!(verb != "*" && resource != "*" && group != "*", "{rule}");
                        granted.insert(format!("{group} {resource} {verb}"));
                    }
                }
            }
        }
    }
    granted
}

/// Secrets are read by name only, and only in the operator's own namespace.
#[tokio::test]
async fn secrets_are_out_of_reach() {
    let rendered = default_objects().await;
    for object in &rendered {
        let kind = object["kind"].as_str().unwrap();
        for rule in object["rules"].as_array().into_iter().flatten() {
            let resources = rule["resources"].as_array().unwrap();
            if !resources.iter().any(|resource| resource == "secrets") {
                continue;
            }
            assert_eq!(kind, "Role");
            assert_eq!(object["metadata"]["namespace"], "harvester-system");
            let only_create = rule["verbs"] == json!(["create"]);
            assert!(only_create || rule["resourceNames"].is_array(), "{rule}");
        }
    }
}
