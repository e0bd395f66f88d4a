//! A guest cluster with a control plane of its own: a Service there gets an address of the host.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use testbed::kubevirt::create_node;
use testbed::{Announcer, Announcing, Bed, CloudProvider, clear_options, client_from, eventually};
use tokio::process::Command;

use crate::PATIENCE;
use crate::objects::{Balancer, balancers};

const CLUSTER: &str = "dev";
/// Namespace of the guest's VMs and LoadBalancers in the host.
const NAMESPACE: &str = "guests";
/// Parts of a Harvester: the namespace, and of its role for cloud providers the rule that counts
/// here.
const HARVESTER: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: guests}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "harvesterhci.io:cloudprovider"}
rules:
  - apiGroups: [loadbalancer.harvesterhci.io]
    resources: [loadbalancers]
    verbs: [get, list, watch, update, create, delete]
"#;
const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: default, labels: {app: web}}
spec:
  nodeName: node-1
  automountServiceAccountToken: false
  containers: [{name: web, image: web}]
";
const EXPOSE: [&str; 7] = ["expose", "pod", "web", "--type", "LoadBalancer", "--port", "80"];

/// Programs of the guest: its cloud provider and its kube-vip, played. They end when this is
/// dropped.
pub(crate) struct Guest {
    _provider: CloudProvider,
    _announcer: Announcer,
}

pub(crate) async fn run(host: &Bed, guest: &Bed, operator: &Path) -> Result<(Guest, String)> {
    let begun = Instant::now();
    host.apply_yaml(HARVESTER).await?;
    // It gives up soon on a server that is busy, and goes on when it is run again.
    let text =
        eventually(PATIENCE, "cloud config", async || cloud_config(host, operator).await.map(Some))
            .await?;
    let provider =
        CloudProvider::start(guest.admin(), client_from(&text).await?, CLUSTER, NAMESPACE);
    let announcer = Announcer::start(guest.admin(), Announcing::default());
    println!(
        "      host: cloud-config --cluster {CLUSTER} made the guest's kubeconfig, account and rights, \
         in {} ms",
        begun.elapsed().as_millis()
    );
    run_pod(guest).await?;

    let begun = Instant::now();
    guest.kubectl(&EXPOSE).await?;
    println!("      guest: kubectl {}", EXPOSE.join(" "));
    let services: Api<Service> = Api::default_namespaced(guest.admin());
    let address = eventually(PATIENCE, "address of the guest's Service", async || {
        let service = services.get("web").await.map_err(|error| error.to_string())?;
        let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
        let ingress = status.and_then(|balancer| balancer.ingress.as_ref()?.first());
        let address = ingress.and_then(|ingress| ingress.ip.clone());
        address.map(Some).ok_or_else(|| format!("{:?}", service.metadata.annotations))
    })
    .await?;
    let took = begun.elapsed().as_millis();
    for line in guest.kubectl(&["get", "service", "web"]).await?.lines() {
        println!("        {line}");
    }
    let balancer = on_host(host).await?;
    let (key, has) = (&balancer.key, balancer.address.as_deref());
    ensure!(has == Some(&address), "the guest shows {address}, and {key} of the host has {has:?}");
    println!("      host: {key} has it of the pool {}, {took} ms after the start", balancer.pool);
    println!(
        "      Played: the guest's cloud provider, which looks once a second, and its kube-vip"
    );
    let guest = Guest { _provider: provider, _announcer: announcer };
    Ok((guest, format!("a Service in a guest cluster shows {address} after {took} ms")))
}

/// Runs the operator's command of that name, as an administrator does.
async fn cloud_config(host: &Bed, operator: &Path) -> Result<String> {
    let mut command = Command::new(operator);
    clear_options(command.as_std_mut());
    let output = command
        .args(["cloud-config", "--cluster", CLUSTER, "--namespace", NAMESPACE, "--csi", "none"])
        .args(["--server", host.url(), "--kubeconfig"])
        .arg(host.kubeconfig())
        .env("RUST_BACKTRACE", "0")
        .kill_on_drop(true)
        .output()
        .await
        .context("start cloud-config")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cloud-config: {}: {}", output.status, said.trim());
    Ok(String::from_utf8(output.stdout)?)
}

/// Plays a node: without an endpoint kube-vip announces no Service.
async fn run_pod(guest: &Bed) -> Result<()> {
    create_node(&guest.admin(), "node-1", &[], "10.100.0.11").await?;
    guest.apply_yaml(POD).await?;
    let status = json!({"status": {
        "phase": "Running", "podIP": "10.42.0.7", "podIPs": [{"ip": "10.42.0.7"}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }});
    let pods: Api<Pod> = Api::default_namespaced(guest.admin());
    pods.patch_status("web", &PatchParams::default(), &Patch::Merge(status)).await?;
    Ok(())
}

/// The guest's only LoadBalancer.
async fn on_host(host: &Bed) -> Result<Balancer> {
    let all = balancers(&host.admin(), NAMESPACE).list(&ListParams::default()).await?.items;
    let names: Vec<String> = all.iter().map(kube::ResourceExt::name_any).collect();
    ensure!(all.len() == 1, "of one Service these LoadBalancers were made: {names:?}");
    let balancer = all.first().context("no LoadBalancer")?;
    let service = balancer.labels().get("cloudprovider.harvesterhci.io/serviceName");
    ensure!(service.is_some_and(|name| name == "web"), "{names:?} is of the Service {service:?}");
    Ok(Balancer::read(balancer))
}
