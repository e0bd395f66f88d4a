//! Conversion and admission by the operator itself: both versions have the same rules.

use anyhow::Result;
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};
use testbed::{Operator, Start, eventually};

use super::{converts, create, lb, lbs};
use crate::admission::said::ask;
use crate::support::{Cluster, SOON};

const TRAVELS: &str = "loadbalancer.harvesterhci.io/v1beta1-fields";

async fn served() -> Result<(Cluster, Operator)> {
    let cluster = Cluster::start().await?;
    let start = Start { admission: Some("https://127.0.0.1:0".to_owned()), ..Start::default() };
    let operator = cluster.standby(start).await?;
    operator.leads().await?;
    cluster.registered().await?;
    converts(&cluster).await?;
    Ok((cluster, operator))
}

async fn merge(api: &Api<DynamicObject>, name: &str, patch: Value) -> Result<Value, kube::Error> {
    let answer = api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
    answer.map(|object| json!(object))
}

fn carries(text: &Value) -> Value {
    json!({"metadata": {"annotations": {TRAVELS: text.to_string()}}})
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_tenant_writes_into_the_annotation_is_judged_like_v1beta1() -> Result<()> {
    let (cluster, _operator) = served().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let others = json!({"scope": [{"project": "*", "namespace": "other", "guestCluster": "*"}]});
    cluster.pool_for("others", json!({"subnet": "10.2.0.0/24"}), others).await?;
    let (old, new) = (lbs(&cluster, "v1alpha1"), lbs(&cluster, "v1beta1"));

    // Fields that no version serves yet, on creation.
    let mut reserved = lb("v1alpha1", "reserved", &json!({"ipam": "pool"}));
    let text = json!({"spec": {"workloadType": "cluster", "requestedAddresses": ["10.1.0.77"]}});
    reserved["metadata"]["annotations"] = json!({TRAVELS: text.to_string()});
    let refused = create(&old, reserved).await.unwrap_err().to_string();
    assert!(refused.contains("spec.requestedAddresses: is not supported"), "{refused}");

    // A foreign address, on creation: the LoadBalancer requests it, and its pool does not admit
    // that.
    let claim = json!({"ip": "10.1.0.77", "ipPool": "pool"});
    let theirs = json!({"ip": "10.2.0.77", "ipPool": "others"});
    let mut forged = lb("v1alpha1", "forged", &json!({"ipam": "pool"}));
    let text = json!({"spec": {"workloadType": "cluster"}, "status": {"allocatedAddress": theirs}});
    forged["metadata"]["annotations"] = json!({TRAVELS: text.to_string()});
    forged["status"] = json!({"address": "10.2.0.77"});
    create(&old, forged).await?;
    let address = cluster.address("forged").await?;
    assert_eq!(address, "10.1.0.2");
    let before = json!(new.get("forged").await?);
    assert_eq!(before["spec"]["workloadType"], "cluster");
    assert_eq!(before["metadata"]["annotations"].get(TRAVELS), None);

    // On an update: another type; another's pool; fields and values that v1beta1's rules refuse.
    let guest_with = |field: &str, value: Value| {
        let mut text = json!({"spec": {"workloadType": "cluster"}});
        text["spec"][field] = value;
        text
    };
    for (text, says) in [
        (
            json!({"spec": {"workloadType": "cluster"}, "status": {"allocatedAddress": claim}}),
            "allocatedAddress",
        ),
        (json!({"spec": {"workloadType": "vm"}}), "immutable"),
        (json!({}), "immutable"),
        (json!({"spec": {"workloadType": "cluster", "ipPool": "others"}}), "does not admit"),
        (guest_with("requestedAddresses", json!(["10.1.0.77"])), "to pin an address, name a pool"),
        (guest_with("ipv6Pool", json!("pool")), "spec.ipv6Pool: is not supported"),
        (guest_with("ipFamilyPolicy", json!("RequireDualStack")), "only SingleStack is supported"),
        (
            guest_with("healthCheck", json!({"port": 80, "protocol": "icmp"})),
            "\"icmp\\\" is unknown",
        ),
        (guest_with("healthCheck", json!({"port": 80, "path": "/x"})), "belongs to http and https"),
    ] {
        let mut patch = carries(&text);
        if !text["spec"]["healthCheck"].is_null() {
            // It is carried only with the fields that v1alpha1 shows of it.
            patch["spec"] = json!({"healthCheck": {"port": 80, "successThreshold": 1,
                "failureThreshold": 3, "PeriodSeconds": 5, "timeoutSeconds": 3}});
        }
        match merge(&old, "forged", patch).await {
            Err(error) => assert!(error.to_string().contains(says), "{text}: {error}"),
            Ok(object) => panic!("{text}: {object:#}"),
        }
    }
    let after = json!(new.get("forged").await?);
    assert_eq!(after["spec"], before["spec"]);
    assert_eq!(after["status"], before["status"]);
    cluster.consistent().await
}

/// The Go webhook treated `backendServers` as addresses.
#[tokio::test(flavor = "multi_thread")]
async fn addresses_in_place_of_vms_give_a_warning_and_a_condition() -> Result<()> {
    let (cluster, _operator) = served().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let spec = json!({"ipam": "pool", "backendServers": ["10.9.0.5"],
        "listeners": [{"name": "a", "port": 80, "protocol": "TCP"}]});
    let path = "/apis/loadbalancer.harvesterhci.io/v1alpha1/namespaces/default/loadbalancers";
    let said = ask(&cluster.client, "POST", path, &lb("v1alpha1", "old", &spec)).await?;
    said.warned("10.9.0.5 is an address and selects no VM: use VM names")?;
    let message = cluster.waits("old", "NoRunningBackends").await?;
    assert_eq!(
        message,
        "no running backend servers: the selector names the address 10.9.0.5, which selects no VM: use VM names or labels"
    );
    // An existing value causes no further warning, and can be corrected in the same version.
    let one = format!("{path}/old");
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let said = ask(&cluster.client, "PATCH", &one, &label).await?;
    assert!(!said.warnings.iter().any(|warning| warning.contains("10.9.0.5")), "{said:?}");
    let right = json!({"spec": {"backendServers": ["vm-1"]}});
    let said = ask(&cluster.client, "PATCH", &one, &right).await?;
    assert!(said.accepted(), "{said:?}");
    eventually(SOON, "condition without it", async || {
        cluster.waits("old", "NoRunningBackends").await.map(|m| m == "no running backend servers")
    })
    .await
}

/// Changes by mutation reach the store, in whichever version the object was sent.
#[tokio::test(flavor = "multi_thread")]
async fn old_clients_keep_what_they_do_not_know() -> Result<()> {
    let (cluster, mut operator) = served().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let (old, new) = (lbs(&cluster, "v1alpha1"), lbs(&cluster, "v1beta1"));
    cluster.lb("guest").await?;
    let address = cluster.address("guest").await?;
    let before = json!(new.get("guest").await?);
    // A whole object without its status.
    let mut whole = old.get("guest").await?;
    assert_eq!(whole.data["status"]["address"], json!(address));
    whole.data["status"].take();
    whole.data["spec"]["description"] = json!("touched");
    old.replace("guest", &kube::api::PostParams::default(), &whole).await?;
    let after = json!(new.get("guest").await?);
    assert_eq!(after["status"], before["status"]);
    assert_eq!(after["spec"]["description"], "touched");

    // A LoadBalancer for VMs, with the defaults filled in, in both versions.
    let spec = json!({"ipam": "pool", "backendServers": ["vm-1"],
        "listeners": [{"name": "a", "port": 80, "protocol": "TCP"}],
        "healthCheck": {"port": 80, "successThreshold": 0, "failureThreshold": 0,
            "PeriodSeconds": 0, "timeoutSeconds": 0}});
    create(&old, lb("v1alpha1", "vm", &spec)).await?;
    let stored = json!(new.get("vm").await?);
    assert_eq!(
        stored["spec"]["backendServerSelector"],
        json!({"harvesterhci.io/vmName": ["vm-1"]})
    );
    let numbers = ["successThreshold", "failureThreshold", "timeoutSeconds"];
    for number in numbers {
        let shown = json!(old.get("vm").await?);
        assert_eq!(shown["spec"]["healthCheck"][number], stored["spec"]["healthCheck"][number]);
    }
    // Values that v1beta1's rules refuse and v1alpha1's schema cannot express.
    let refused = merge(&old, "vm", json!({"spec": {"healthCheck": {"port": 81}}})).await;
    assert!(refused.unwrap_err().to_string().contains("spec.healthCheck.port"));
    let refused = merge(&old, "vm", json!({"spec": {"listeners": []}})).await;
    assert!(refused.unwrap_err().to_string().contains("spec.listeners"));

    // Without the operator, v1alpha1 is refused, and v1beta1 is read.
    operator.process.terminate(SOON).await?;
    assert!(old.get("vm").await.unwrap_err().to_string().contains("conversion webhook"));
    new.get("vm").await?;
    Ok(())
}

/// The API server converts the stored object too, and names the version that the client sent.
#[tokio::test(flavor = "multi_thread")]
async fn an_update_in_v1alpha1_that_would_lose_a_field_is_refused() -> Result<()> {
    let (cluster, _operator) = served().await?;
    let (old, new) = (lbs(&cluster, "v1alpha1"), lbs(&cluster, "v1beta1"));
    // The annotations leave about 4.5 KiB, and the selector has about 5 KiB.
    let values: Vec<String> = (0..16).map(|n| format!("{n:a>63}")).collect();
    let part = "a".repeat(63);
    let selector: Value =
        (0..4).map(|n| (format!("{part}.{part}.{part}/{n}"), json!(values))).collect();
    let listeners = json!([{"name": "a", "port": 80, "protocol": "TCP"}]);
    let spec = json!({"backendServerSelector": selector, "listeners": listeners});
    let mut stored = lb("v1beta1", "full", &spec);
    stored["metadata"]["annotations"] = json!({"big": "x".repeat(251 * 1024 + 512)});
    create(&new, stored).await?;
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let refused = merge(&old, "full", label.clone()).await.unwrap_err().to_string();
    let expected = "spec.backendServerSelector: is too large for v1alpha1";
    assert!(refused.contains(expected), "{refused}");
    let labelled = merge(&new, "full", label).await?;
    assert_eq!(labelled["spec"]["backendServerSelector"], selector);
    let longer = json!({"metadata": {"annotations": {"more": "x".repeat(2 * 1024)}}});
    let refused = merge(&new, "full", longer).await.unwrap_err().to_string();
    assert!(refused.contains("metadata.annotations: have "), "{refused}");
    Ok(())
}
