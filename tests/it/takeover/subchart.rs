//! Helm itself, with a chart that installs CRDs and the Go controller as Harvester's does: the sub-chart is
//! disabled, enabled again, and rolled back.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::api;
use serde_json::json;
use tempfile::TempDir;
use testbed::{Helm, Shared, Version};

const RELEASE: [&str; 3] = ["harvester", "--namespace", "harvester-system"];
const CRDS: [&str; 2] =
    ["crd/ippools.loadbalancer.harvesterhci.io", "crd/loadbalancers.loadbalancer.harvesterhci.io"];

/// Writes the chart: CRDs as templates, and one Deployment.
fn chart(dir: &TempDir) -> Result<()> {
    let templates = dir.path().join("templates");
    fs::create_dir(&templates)?;
    fs::write(dir.path().join("Chart.yaml"), "apiVersion: v2\nname: harvester\nversion: 1.0.0\n")?;
    fs::write(dir.path().join("values.yaml"), "enabled: true\nreplicaCount: 1\n")?;
    for crd in api::crds().iter().take(2) {
        let mut crd = json!(crd);
        crd["spec"]["conversion"] = json!(null);
        let text = format!("{{{{- if .Values.enabled }}}}\n{crd}\n{{{{- end }}}}\n");
        let name = crd["spec"]["names"]["plural"].as_str().context("no name")?;
        fs::write(templates.join(format!("{name}.yaml")), text)?;
    }
    let labels = json!({"app": "go"});
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "harvester-load-balancer", "namespace": "harvester-system"},
        "spec": {"replicas": "REPLICAS", "selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels},
            "spec": {"containers": [{"name": "go", "image": "go"}]},
        }},
    });
    let deployment = deployment.to_string().replace("\"REPLICAS\"", "{{ .Values.replicaCount }}");
    let text = format!("{{{{- if .Values.enabled }}}}\n{deployment}\n{{{{- end }}}}\n");
    fs::write(templates.join("deployment.yaml"), text)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_annotation_keeps_every_address_when_the_sub_chart_is_disabled() -> Result<()> {
    for version in [Version::Three, Version::Four] {
        let bed = Shared::take_bare().await?;
        let helm = Helm::on(&bed, version).await?;
        let dir = TempDir::new()?;
        chart(&dir)?;
        let path = dir.path().to_str().context("the path is not UTF-8")?;
        let upgrade = async |set: &str| {
            let args = ["upgrade", "--install", RELEASE[0], path, RELEASE[1], RELEASE[2]];
            helm.run(&[&args[..], &["--create-namespace", "--set", set]].concat()).await
        };
        let replicas = async || {
            let name = "deployment/harvester-load-balancer";
            let at = "jsonpath={.spec.replicas}";
            bed.kubectl(&["get", name, "-n", RELEASE[2], "-o", at, "--ignore-not-found"]).await
        };
        upgrade("enabled=true").await?;
        bed.crds_established().await?;
        let lb = json!({
            "apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "LoadBalancer",
            "metadata": {"name": "a", "namespace": "default"},
            "spec": {"workloadType": "cluster", "ipam": "pool"},
        });
        bed.apply_yaml(&lb.to_string()).await?;
        // What `takeover --apply` does.
        for crd in CRDS {
            bed.kubectl(&["annotate", crd, "helm.sh/resource-policy=keep"]).await?;
        }
        upgrade("replicaCount=0").await?;
        ensure!(replicas().await? == "0", "{version:?}: the Go controller runs");

        upgrade("enabled=false").await?;
        ensure!(replicas().await?.is_empty(), "{version:?}: not disabled");
        bed.kubectl(&["get", "lb", "a"]).await.context("the LoadBalancer is gone")?;
        // Helm takes what its release has marked, and nothing else: `--adopt-crds` marks otherwise.
        let mark = async |release: &str| {
            for crd in CRDS {
                let mark = format!("meta.helm.sh/release-name={release}");
                bed.kubectl(&["annotate", "--overwrite", crd, &mark]).await?;
            }
            anyhow::Ok(())
        };
        mark("harvester-guest-operator").await?;
        let refused = upgrade("enabled=true").await;
        ensure!(format!("{refused:?}").contains("cannot be imported"), "{version:?}: {refused:?}");
        mark(RELEASE[0]).await?;
        upgrade("enabled=true,replicaCount=0").await?;
        bed.kubectl(&["get", "lb", "a"]).await.context("the LoadBalancer is gone")?;
        helm.run(&["rollback", RELEASE[0], "1", RELEASE[1], RELEASE[2]]).await?;
        ensure!(replicas().await? == "1", "{version:?}: replicas as in that revision");
        for crd in CRDS {
            let found =
                bed.kubectl(&["get", crd, "-o", "jsonpath={.metadata.annotations}"]).await?;
            ensure!(found.contains("resource-policy"), "{version:?}: {crd} is not kept any more");
        }
    }
    Ok(())
}
