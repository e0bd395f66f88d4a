//! Further output of the process: series that end, and the report for maintainers.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use serde_json::{Value, json};
use testbed::{Operator, Start, eventually, install_credentials};

use crate::rotation;
use crate::support::{Cluster, SOON, shows};

const NAMESPACE: &str = "harvester-system";
const NAME: &str = "harvester-guest-operator";

/// Whether a replica shows the leader's series.
async fn shows_ledgers(operator: &Operator) -> Result<bool> {
    let text = operator.get("/metrics").await?.1;
    let of_leader = ["hgo_pool_", "hgo_waiters", "hgo_load_balancers", "hgo_endpoints"];
    Ok(text.lines().any(|line| of_leader.iter().any(|name| line.starts_with(name))))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_only_the_leader_knows_ends_with_its_term() -> Result<()> {
    let cluster = Cluster::start().await?;
    let mut first = cluster.operator().await?;
    let second = cluster.standby(Start::default()).await?;
    second.ready().await?;
    cluster.pool("p", json!({"subnet": "10.1.0.0/30", "gateway": "10.1.0.1"})).await?;
    cluster.lb("a").await?;
    cluster.address("a").await?;
    cluster.lb("b").await?;
    cluster.waits("b", "NoAvailableIP").await?;
    shows(&first, "hgo_waiters", &["NoAvailableIP"], |waiters| waiters == 1.0).await?;
    ensure!(!shows_ledgers(&second).await?, "the standby shows ledgers");
    // The first is stopped, not dead: after its stall it finds that another one leads.
    first.process.signal("STOP")?;
    second.leads().await?;
    first.process.signal("CONT")?;
    eventually(SOON, "series only on the second", async || {
        anyhow::Ok(!shows_ledgers(&first).await? && shows_ledgers(&second).await?)
    })
    .await?;
    for gauge in ["hgo_shared_addresses", "hgo_reconciles_pending"] {
        shows(&first, gauge, &[], |found| found == 0.0).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_report_says_what_is_asked_first_and_no_secret() -> Result<()> {
    let cluster = Cluster::start().await?;
    let admission = Some("https://127.0.0.1:0".to_owned());
    let identity = Some("the-leader".to_owned());
    install_credentials(&cluster.bed).await?;
    let operator = cluster.standby(Start { admission, identity, ..rotation::start() }).await?;
    operator.leads().await?;
    cluster.registered().await?;
    rotation::watched(&cluster).await?;
    shows(&operator, "hgo_credential_rotations", &["Watched"], |found| found == 1.0).await?;
    cluster.pool("small", json!({"subnet": "10.1.0.0/30", "gateway": "10.1.0.1"})).await?;
    cluster.lb("held").await?;
    let address = cluster.address("held").await?;
    cluster.lb("late").await?;
    cluster.waits("late", "NoAvailableIP").await?;

    let kubeconfig = cluster.bed.service_account_kubeconfig(NAMESPACE, NAME, None).await?;
    let output = Command::new(Path::new(env!("CARGO_BIN_EXE_harvester-guest-operator")))
        .arg("support")
        .env("HGO_KUBECONFIG", &kubeconfig)
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "support: {}: {said}", output.status);
    let text = String::from_utf8(output.stdout)?;
    let report: Value = serde_saphyr::from_str(&text)?;
    ensure!(!text.contains("error:"), "{text}");
    ensure!(report["operator"] == env!("CARGO_PKG_VERSION"), "{text}");
    ensure!(report["apiServer"].as_str().is_some_and(|v| v.starts_with('v')), "{text}");
    ensure!(report["lease"]["holderIdentity"] == "the-leader", "{text}");
    ensure!(report["pools"][0]["name"] == "small" && report["pools"][0]["allocated"] == 1);
    ensure!(report["loadBalancers"]["True Allocated"] == 1, "{text}");
    ensure!(report["waiters"][0]["name"] == "default/late", "{text}");
    ensure!(report["waiters"][0]["reason"] == "NoAvailableIP", "{text}");
    ensure!(report["credentials"]["counts"]["True Watched"] == 1, "{text}");
    ensure!(report["credentials"]["soonestExpiries"][0]["name"] == "default/guest", "{text}");
    let decisions = report["lastDecisions"].as_array().map_or(&[][..], Vec::as_slice);
    ensure!(decisions.iter().any(|d| d["allocatedAddress"]["ip"] == address.as_str()), "{text}");
    ensure!(report["validation"]["webhooks"][0]["clientConfig"]["caBundle"] == true, "{text}");
    ensure!(report["customResourceDefinition"]["storedVersions"] == json!(["v1beta1"]), "{text}");

    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let data = secrets.get("harvester-guest-operator-admission").await?.data.unwrap_or_default();
    ensure!(data.len() > 3, "{:?}", data.keys());
    let kubeconfig = std::fs::read_to_string(kubeconfig)?;
    let token = kubeconfig.split_whitespace().max_by_key(|word| word.len()).unwrap_or_default();
    let shown = |value: &[u8]| {
        let encoded = json!(k8s_openapi::ByteString(value.to_vec()));
        text.contains(encoded.as_str().unwrap_or("?"))
            || String::from_utf8_lossy(value).lines().any(|l| l.len() > 20 && text.contains(l))
    };
    for (key, value) in &data {
        ensure!(!shown(&value.0), "{key} is in the report");
    }
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), "default");
    for (key, value) in secrets.get("guest").await?.data.unwrap_or_default() {
        ensure!(!shown(&value.0), "{key} of the watched credential is in the report");
    }
    ensure!(token.len() > 100 && !text.contains(token.trim_matches('"')), "the token is in it");
    // The report names the parts that cannot be read, and has the rest.
    let powerless = cluster.bed.service_account_kubeconfig(NAMESPACE, "default", None).await?;
    cluster.robbed();
    let output = Command::new(Path::new(env!("CARGO_BIN_EXE_harvester-guest-operator")))
        .args(["support", "--kubeconfig"])
        .arg(powerless)
        .output()?;
    let report: Value = serde_saphyr::from_str(&String::from_utf8(output.stdout)?)?;
    ensure!(output.status.success() && report["apiServer"].is_string(), "{report}");
    ensure!(report["lease"]["error"].as_str().is_some_and(|e| e.contains("forbidden")), "{report}");
    ensure!(report["notRead"].as_array().is_some_and(|list| list.len() == 3), "{report}");
    Ok(())
}
