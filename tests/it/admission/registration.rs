//! Registration of admission, and its repair when others interfere.

use std::time::Duration;

use anyhow::{Result, ensure};
use harvester_guest_operator::http::certificates::Data;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use testbed::{Start, eventually};

use super::{CONFIGURATION, Probe, answered, itself};
use crate::support::{Cluster, SOON, settled, shows};

#[tokio::test(flavor = "multi_thread")]
async fn two_that_start_at_once_agree_and_every_request_is_asked_about() -> Result<()> {
    let cluster = Cluster::start().await?;
    // One address for both: the configuration must not differ between them.
    let balancer = testbed::Balancer::start().await?;
    let start = || super::through(&balancer);
    let (mut first, mut second) =
        tokio::try_join!(cluster.standby(start()), cluster.standby(start()))?;
    for operator in [&first, &second] {
        balancer.add(operator.admission.unwrap(), operator.http);
        operator.ready().await?;
    }
    cluster.registered().await?;
    let before = cluster.stored().await?;
    for _ in 0..20 {
        Probe::new(&cluster.client)?.once().await?;
    }
    eventually(SOON, "count of all of them", async || {
        anyhow::Ok(answered(&first).await? + answered(&second).await? >= 20.0)
    })
    .await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    ensure!(cluster.stored().await? == before, "the Secret changed again");
    let repairs = first.metric("hgo_registration_repairs_total", &[]).await?
        + second.metric("hgo_registration_repairs_total", &[]).await?;
    assert_eq!(repairs, 0.0, "two replicas that agree repair nothing");
    // The operator's own writes do not go through admission: the leader writes a condition of the
    // pool.
    let asked = answered(&first).await? + answered(&second).await?;
    eventually(SOON, "leader", async || {
        Ok::<_, anyhow::Error>(
            first.metric("hgo_leader", &[]).await? + second.metric("hgo_leader", &[]).await? == 1.0,
        )
    })
    .await?;
    let range = json!({"subnet": "10.1.0.0/24", "gateway": "10.1.0.1"});
    cluster.pool("p", range).await?;
    cluster.lb("lb").await?;
    cluster.address("lb").await?;
    // Others created a pool and a LoadBalancer.
    let asked =
        settled(
            "requests",
            async || Ok(answered(&first).await? + answered(&second).await? - asked),
        )
        .await?;
    assert_eq!(asked, 2.0);

    // Replicas that end repair nothing any more: `takeover --undo` opens admission then.
    for operator in [&mut first, &mut second] {
        operator.process.signal("TERM")?;
        eventually(SOON, "the beginning of the end", async || {
            anyhow::Ok(!matches!(operator.get("/readyz").await, Ok((200, _))))
        })
        .await?;
    }
    cluster.patch_validating(json!({"webhooks": []})).await?;
    for operator in [&mut first, &mut second] {
        operator.process.wait(SOON).await?;
    }
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(cluster.client.clone());
    let left = validating.get(CONFIGURATION).await?.webhooks.unwrap_or_default();
    ensure!(left.is_empty(), "a replica that ended put them back: {left:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_go_webhook_left_is_taken_over_and_put_right_when_changed() -> Result<()> {
    let cluster = Cluster::start().await?;
    // As Harvester's webhook writes them; its Secret is the owner.
    let go = |role: &str, policy: &str| {
        json!({
            "metadata": {"name": CONFIGURATION, "ownerReferences": [{
                "apiVersion": "v1", "kind": "Secret", "name": "harvester-load-balancer-webhook-ca",
                "uid": "0ba5a3c6-6a3f-4d8e-8d8e-000000000000",
            }]},
            "webhooks": [{
                "name": format!("{role}.harvester-system.harvester-load-balancer-webhook"),
                "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": policy,
                "clientConfig": {"service": {
                    "namespace": "harvester-system", "name": "harvester-load-balancer-webhook",
                    "path": "/v1/webhook/x",
                }},
                "rules": [{
                    "apiGroups": ["loadbalancer.harvesterhci.io"], "apiVersions": ["v1beta1"],
                    "resources": ["ippools"], "operations": ["CREATE"], "scope": "*",
                }],
            }],
        })
    };
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(cluster.client.clone());
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(cluster.client.clone());
    let params = PostParams::default();
    // The installation of the operator over it does not change it.
    validating.delete(CONFIGURATION, &DeleteParams::default()).await?;
    mutating.delete(CONFIGURATION, &DeleteParams::default()).await?;
    validating.create(&params, &serde_json::from_value(go("validator", "Fail"))?).await?;
    mutating.create(&params, &serde_json::from_value(go("mutator", "Ignore"))?).await?;
    let probe = Probe::new(&cluster.client)?;
    ensure!(probe.once().await.is_err(), "the Go webhook is answered");

    let mut operator = cluster.standby(itself()).await?;
    operator.ready().await?;
    cluster.registered().await?;
    let taken = validating.get(CONFIGURATION).await?;
    assert_eq!(taken.metadata.owner_references, None);
    assert_eq!(validating.list(&kube::api::ListParams::default()).await?.items.len(), 1);

    // Changed, emptied, and the Secret with it: all are restored, without a failed call.
    cluster.patch_validating(json!({"webhooks": []})).await?;
    cluster.registered().await?;
    let material = cluster.stored().await?;
    cluster.store(Data::default()).await?;
    cluster.patch_validating(json!({"webhooks": []})).await?;
    cluster.registered().await?;
    ensure!(cluster.stored().await? == material, "the Secret is not the same");

    // Deleted: the operator logs it, and the installation restores it.
    mutating.delete(CONFIGURATION, &DeleteParams::default()).await?;
    eventually(SOON, "log of it", async || {
        let word = format!("MutatingWebhookConfiguration {CONFIGURATION} is missing");
        operator.process.log().contains(&word)
    })
    .await?;
    probe.once().await?;
    cluster.reinstalled().await?;
    cluster.registered().await?;
    let repaired = "hgo_registration_repairs_total";
    shows(&operator, repaired, &[], |repairs| repairs >= 2.0).await?;

    // Repeated changes get slow repairs: four in 5 s, and one more whenever twice as much time has
    // passed.
    let before = settled("repairs", async || operator.metric(repaired, &[]).await).await?;
    let began = tokio::time::Instant::now();
    let mut changes = 0.0;
    while began.elapsed() < Duration::from_secs(5) || changes <= 20.0 {
        cluster.patch_validating(json!({"metadata": {"labels": null}})).await?;
        changes += 1.0;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let repairs = operator.metric(repaired, &[]).await? - before;
    let most = 4.0 + (began.elapsed().as_secs_f64() / 5.0).log2().ceil();
    assert!(repairs <= most, "{repairs} repairs of {changes} changes, more than {most}");
    eventually(SOON, "log of a foreign change", async || {
        operator.process.log().contains("another client changed the registration of admission")
    })
    .await?;

    // Off: webhooks without an operator are emptied, and foreign configurations would stay.
    operator.process.terminate(SOON).await?;
    ensure!(probe.once().await.is_err(), "without an operator, admission must fail closed");
    cluster
        .patch_validating(json!({
            "metadata": {"labels": {"loadbalancer.harvesterhci.io/registered-by": "harvester-guest-operator"}},
        }))
        .await?;
    let _off = cluster.standby(Start::default()).await?;
    eventually(SOON, "end of the webhooks", async || {
        validating.get(CONFIGURATION).await.map(|found| found.webhooks.is_none_or(|w| w.is_empty()))
    })
    .await?;
    probe.once().await?;
    Ok(())
}

/// Admission is not registered before an operator behind the Service is ready.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_without_endpoints_is_not_registered() -> Result<()> {
    let cluster = Cluster::start().await?;
    let options = ["--admission", "service", "--admission-addr", "127.0.0.1:0"];
    let start = Start { options: options.map(str::to_owned).to_vec(), ..Start::default() };
    let operator = cluster.standby(start).await?;
    operator.ready().await?;
    eventually(SOON, "log of it", async || {
        operator.process.log().contains("has no ready endpoint")
    })
    .await?;
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(cluster.client.clone());
    ensure!(validating.get(CONFIGURATION).await?.webhooks.is_none());
    Probe::new(&cluster.client)?.once().await?;
    Ok(())
}
