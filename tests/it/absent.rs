//! Kinds that a cluster does not serve, and kinds that are installed later.

use anyhow::{Result, ensure};
use kube::api::PostParams;
use serde_json::json;
use testbed::eventually;
use testbed::kubevirt::install_kubevirt;

use crate::support::{Cluster, LATER, SOON, lb};

const VMIS: (&str, &str) = ("virtualmachineinstances", "kubevirt.io");
const VMS: (&str, &str) = ("virtualmachines", "kubevirt.io");
const NETWORKS: (&str, &str) = ("network-attachment-definitions", "k8s.cni.cncf.io");

async fn without(kinds: &[(&str, &str)]) -> Result<Cluster> {
    let cluster = Cluster::start().await?;
    for (plural, group) in kinds {
        cluster.bed.kubectl(&["delete", "crd", &format!("{plural}.{group}")]).await?;
        let path = format!("/apis/{group}/v1/{plural}");
        eventually(SOON, &format!("end of {plural}"), async || {
            Ok::<_, anyhow::Error>(cluster.bed.kubectl(&["get", "--raw", &path]).await.is_err())
        })
        .await?;
    }
    Ok(cluster)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_kind_is_logged_once_and_found_when_it_comes() -> Result<()> {
    let cluster = without(&[VMIS, VMS, NETWORKS]).await?;
    let operator = cluster.operator().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    // No VM determines the network of a guest, so its LoadBalancer waits for none.
    let mut guest = lb("lb", &json!({"workloadType": "cluster"}))?;
    let label = ("cloudprovider.harvesterhci.io/cluster".to_owned(), "prod".to_owned());
    guest.metadata.labels = Some([label].into());
    cluster.lbs().create(&PostParams::default(), &guest).await?;
    cluster.address("lb").await?;
    let missing = ["VirtualMachineInstance", "VirtualMachine", "NetworkAttachmentDefinition"];
    // Five times for each kind.
    eventually(LATER, "more questions", async || {
        let asked = operator.metric("hgo_api_requests_total", &["\"404\""]).await?;
        anyhow::Ok(asked >= 15.0)
    })
    .await?;
    let log = operator.process.log();
    for kind in missing {
        let of_it = log.lines().filter(|line| line.contains(&format!("kind=\"{kind}\"")));
        // A late answer is another matter, and logged as well.
        let logged: Vec<&str> = of_it.filter(|line| !line.contains("no answer within")).collect();
        ensure!(logged.len() == 1 && logged[0].contains("does not serve"), "{kind}: {logged:#?}");
    }
    ensure!(!log.contains("cannot count the finalizers"), "{log}");
    install_kubevirt(&cluster.bed).await?;
    eventually(LATER, "list of VMs", async || {
        Ok::<_, anyhow::Error>(operator.process.log().contains("virtual machines listed"))
    })
    .await
}

/// A vm LoadBalancer that names no network needs none.
#[tokio::test(flavor = "multi_thread")]
async fn where_there_is_no_multus_vms_are_served_all_the_same() -> Result<()> {
    let cluster = without(&[NETWORKS]).await?;
    let operator = cluster.operator().await?;
    eventually(LATER, "list of VMs", async || {
        Ok::<_, anyhow::Error>(operator.process.log().contains("virtual machines listed"))
    })
    .await
}
