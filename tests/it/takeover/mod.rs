//! The `takeover` command: from the Go controller to the operator and back.

mod automatic;
mod guests;
mod harvester;
mod subchart;
mod upgrades;
mod world;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use testbed::kubevirt::{self, Vm};
use testbed::{Proxy, eventually};

use self::harvester::{CONTROLLER, Harvester, OPERATOR, WEBHOOK};
use self::upgrades::created;
use crate::crash::{Last, cut_after};
use crate::support::SOON;

/// VirtualMachines, each with an instance.
const VMS: usize = 20;

impl Harvester {
    /// Guests with addresses from the Go controller, and VMs that have its finalizers.
    async fn populated(&self) -> Result<BTreeMap<String, String>> {
        self.cluster.pool("pool", json!({"subnet": "10.1.0.0/24", "gateway": "10.1.0.1"})).await?;
        for name in ["a", "b", "c"] {
            created(&self.cluster, name).await?;
            self.cluster.address(name).await?;
        }
        let client = &self.cluster.client;
        for index in 0..VMS {
            let vm = Vm::new("default", &format!("vm-{index}"));
            let machine = serde_json::from_value(vm.machine())?;
            kubevirt::machines(client, "default").create(&PostParams::default(), &machine).await?;
            let instance = serde_json::from_value(vm.instance())?;
            kubevirt::instances(client, "default")
                .create(&PostParams::default(), &instance)
                .await?;
        }
        eventually(SOON, "finalizers of the Go controller", async || {
            self.held().await.map(|held| held == 2 * VMS)
        })
        .await?;
        self.cluster.addresses().await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_take_over_and_the_way_back_move_no_address() -> Result<()> {
    let harvester = Harvester::start().await?;
    let before = harvester.populated().await?;

    // Without an operator to go on nothing is stopped, and a plan changes nothing at all.
    let (ok, text) = harvester.takeover(&[]).await?;
    ensure!(ok && text.contains("not possible now: the operator is not installed"), "{text}");
    ensure!(text.contains("3 LoadBalancers keep their address"), "{text}");
    let (ok, text) = harvester.takeover(&["--apply"]).await?;
    ensure!(!ok && text.contains("install it first, with helm install"), "{text}");
    harvester.install().await?;
    let (ok, text) = harvester.takeover(&[]).await?;
    ensure!(ok && text.contains("nothing was changed: --apply carries the plan out"), "{text}");
    for step in [
        "annotate CRD ippools.loadbalancer.harvesterhci.io",
        "set the replicas of harvester-load-balancer in the values of ManagedChart fleet-local/harvester to 0",
        "stop the Go controller: Deployment harvester-system/harvester-load-balancer to 0 replicas",
        "remove the Go controller's finalizers from 40 VirtualMachines and VirtualMachineInstances",
    ] {
        ensure!(text.contains(step), "{step}\n{text}");
    }
    assert_eq!((harvester.replicas(CONTROLLER).await?, harvester.held().await?), (1, 2 * VMS));
    harvester.leads("go").await?;

    let (ok, text) = harvester.takeover(&["--apply"]).await?;
    ensure!(ok && text.contains("3 of 3 addresses are as before"), "{text}");
    harvester.leads("operator").await?;
    assert_eq!(harvester.replicas(CONTROLLER).await?, 0);
    assert_eq!(harvester.replicas(WEBHOOK).await?, 0);
    assert_eq!(harvester.held().await?, 0, "a VM that is deleted now would stay");
    eventually(SOON, "end of the finalizers in the metrics", async || {
        harvester.metric("hgo_go_finalizers", &[]).await.map(|left| left == 0.0)
    })
    .await?;
    let crds: Api<CustomResourceDefinition> = Api::all(harvester.cluster.client.clone());
    for plural in ["ippools", "loadbalancers"] {
        let crd = crds.get(&format!("{plural}.loadbalancer.harvesterhci.io")).await?;
        assert_eq!(
            crd.annotations().get("helm.sh/resource-policy").map(String::as_str),
            Some("keep")
        );
    }
    // An upgrade of Harvester starts nothing, and the operator serves.
    harvester.upgraded().await?;
    assert_eq!(harvester.replicas(CONTROLLER).await?, 0);
    created(&harvester.cluster, "during").await?;
    harvester.cluster.address("during").await?;
    harvester.addresses_are(&before).await?;
    let (ok, text) = harvester.takeover(&["--apply"]).await?;
    ensure!(ok && text.contains("nothing is left to do"), "{text}");

    let during = harvester.cluster.addresses().await?;
    let (ok, text) = harvester.takeover(&["--undo", "--apply"]).await?;
    ensure!(ok && text.contains("4 of 4 addresses are as before"), "{text}");
    harvester.leads("go").await?;
    assert_eq!(harvester.replicas(OPERATOR).await?, 0);
    assert_eq!(harvester.values().await?, json!({"enabled": true}));
    created(&harvester.cluster, "after").await?;
    harvester.cluster.address("after").await?;
    harvester.addresses_are(&during).await?;
    eventually(SOON, "finalizers of the Go controller", async || {
        harvester.held().await.map(|held| held == 2 * VMS)
    })
    .await?;

    // And once more to the operator.
    let (ok, text) = harvester.takeover(&["--apply"]).await?;
    ensure!(ok && text.contains("start the operator"), "{text}");
    harvester.leads("operator").await?;
    harvester.addresses_are(&during).await?;
    harvester.end().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_that_is_deleted_during_a_take_over_goes_away() -> Result<()> {
    let harvester = Harvester::start().await?;
    harvester.populated().await?;
    harvester.install().await?;
    let deletions = async {
        let machines = kubevirt::machines(&harvester.cluster.client, "default");
        for index in 0..VMS {
            machines.delete(&format!("vm-{index}"), &DeleteParams::default()).await?;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        anyhow::Ok(())
    };
    let options = ["--apply", "--finalizers-per-second", "10"];
    let (ran, deleted) = tokio::join!(harvester.takeover(&options), deletions);
    deleted?;
    ensure!(ran?.0, "the command failed");
    let machines = kubevirt::machines(&harvester.cluster.client, "default");
    eventually(SOON, "end of each VM", async || {
        machines.list(&ListParams::default()).await.map(|all| all.items.is_empty())
    })
    .await?;
    harvester.end().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_way_back_is_refused_while_a_status_is_a_subresource() -> Result<()> {
    let harvester = Harvester::start().await?;
    harvester.populated().await?;
    harvester.install().await?;
    let (ok, _) = harvester.takeover(&["--apply"]).await?;
    ensure!(ok, "the take-over failed");
    crate::forms::serve_as_ours(&harvester.cluster).await?;
    let (ok, text) = harvester.takeover(&["--undo", "--apply"]).await?;
    ensure!(
        !ok && text.contains("CRD ippools.loadbalancer.harvesterhci.io is the operator's"),
        "{text}"
    );
    assert_eq!(harvester.replicas(OPERATOR).await?, 2);
    harvester.leads("operator").await?;
    harvester.end().await;
    Ok(())
}

/// Harvester's chart may put its own CRDs back at any time. Helm patches a CRD by what differs between
/// two manifests (helm, `pkg/kube/client.go`, `createPatch`), so that other annotations stay.
#[tokio::test(flavor = "multi_thread")]
async fn the_operators_crds_replace_harvesters_and_go_back() -> Result<()> {
    const NAME: &str = "ippools.loadbalancer.harvesterhci.io";
    let harvester = Harvester::start().await?;
    let cluster = harvester.cluster.clone();
    let before = harvester.populated().await?;
    harvester.install().await?;
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let theirs = crds.get(NAME).await?;
    let has_subresource = async || match cluster.pools().get_status("pool").await {
        Err(kube::Error::Api(status)) if status.is_not_found() => anyhow::Ok(false),
        found => Ok(found.map(|_| true)?),
    };
    ensure!(!has_subresource().await?, "not Harvester's form");
    let (ok, text) = harvester.takeover(&["--apply", "--adopt-crds"]).await?;
    ensure!(ok && text.contains(&format!("replace the form of CRD {NAME} by the")), "{text}");
    ensure!(text.contains("3 of 3 addresses are as before"), "{text}");
    eventually(SOON, "the operator's form", has_subresource).await?;
    let release = "meta.helm.sh/release-name";
    assert_eq!(
        crds.get(NAME).await?.annotations().get(release).map(String::as_str),
        Some(OPERATOR)
    );
    created(&cluster, "on-ours").await?;
    cluster.address("on-ours").await?;
    let (ok, text) = harvester.takeover(&[]).await?;
    ensure!(ok && text.contains("nothing is left to do"), "{text}");

    // An upgrade of Harvester with another form of the CRD: it serves on, and is replaced again.
    let upgrade = Patch::Merge(json!({"spec": {"versions": theirs.spec.versions}}));
    crds.patch(NAME, &PatchParams::default(), &upgrade).await?;
    created(&cluster, "on-theirs").await?;
    cluster.address("on-theirs").await?;
    let (ok, text) = harvester.takeover(&["--apply"]).await?;
    ensure!(ok && text.contains("5 of 5 addresses are as before"), "{text}");
    eventually(SOON, "the operator's form", has_subresource).await?;
    created(&cluster, "on-ours-again").await?;
    cluster.address("on-ours-again").await?;
    harvester.addresses_are(&before).await?;

    let during = cluster.addresses().await?;
    let (ok, text) = harvester.takeover(&["--undo", "--apply"]).await?;
    ensure!(ok && text.contains("6 of 6 addresses are as before"), "{text}");
    harvester.leads("go").await?;
    let now = crds.get(NAME).await?;
    assert_eq!(now.spec.versions, theirs.spec.versions);
    assert_eq!(now.annotations().get(release), theirs.annotations().get(release));
    created(&cluster, "on-go").await?;
    cluster.address("on-go").await?;
    harvester.addresses_are(&during).await?;
    harvester.end().await;
    Ok(())
}

/// Waits until `cut` has cut a command off after this number of writes, and the last of the writes
/// has had its effect.
async fn cut_off(cut: &AtomicUsize, writes: usize) {
    while cut.load(Ordering::SeqCst) <= writes {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
}

/// A command that is killed after any of its writes goes on when it runs again, in both directions. A
/// command that cannot reach the API server for a moment goes on by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_is_cut_off_after_any_write_goes_on() -> Result<()> {
    const WRITTEN: [&str; 4] = [
        "customresourcedefinitions",
        "managedcharts",
        "deployments",
        "validatingwebhookconfigurations",
    ];
    let harvester = Harvester::start().await?;
    let before = harvester.populated().await?;
    harvester.install().await?;
    let proxy = Proxy::start(&harvester.cluster.bed).await?;
    let kubeconfig = harvester.admin_through(&proxy).await?;
    let mut cuts = [0, 0];
    let mut whole = false;
    for writes in 0.. {
        whole = true;
        for (way, options) in
            [&["--apply", "--adopt-crds"][..], &["--undo", "--apply"]].into_iter().enumerate()
        {
            let cut = cut_after(&proxy, &WRITTEN, Last::Unanswered, writes);
            let was_cut = tokio::select! {
                // The command is killed.
                () = cut_off(&cut, writes) => true,
                ran = harvester.takeover_within(options, Some(&kubeconfig)) => {
                    ensure!(ran?.0, "{options:?} failed");
                    false
                }
            };
            cuts[way] += usize::from(was_cut);
            whole &= !was_cut;
            // The next command is cut off from the API server for a moment, after one write.
            let cut = cut_after(&proxy, &WRITTEN, Last::Unanswered, 1);
            let back = async {
                cut_off(&cut, 1).await;
                proxy.clear_rule();
                std::future::pending::<Infallible>().await
            };
            let (ok, text) = tokio::select! {
                never = back => match never {},
                ran = harvester.takeover_within(options, Some(&kubeconfig)) => ran?,
            };
            proxy.clear_rule();
            ensure!(ok, "{options:?} after {writes} writes: {text}");
            let was_away = cut.load(Ordering::SeqCst) > 1;
            ensure!(!was_away || text.contains("tried again"), "{options:?}: {text}");
            harvester.leads(if way == 0 { "operator" } else { "go" }).await?;
            harvester.addresses_are(&before).await?;
        }
        if whole {
            break;
        }
    }
    println!("cut off after each of {cuts:?} writes");
    assert!(whole && cuts[0] >= 3 && cuts[1] >= 3, "{cuts:?}: uncounted?");
    assert_eq!(harvester.values().await?, json!({"enabled": true}));
    harvester.end().await;
    Ok(())
}
