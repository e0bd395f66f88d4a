//! Faults of a LoadBalancer of VMs are reported with the field's name, by the API server or by the
//! condition, and change no existing object.

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::api;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::PostParams;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use testbed::kubevirt::Guest;
use testbed::{Announcer, Announcing, Operator, eventually};

use super::{SINK, ports_here, version, vm};
use crate::support::{Cluster, SOON, lb, listeners, settled, unanswered, writes};

const SPEC: &str = "InvalidSpec";
const HEALTH: &str = "InvalidHealthCheck";

/// A fault in a spec.
struct Fault {
    spec: Value,
    /// Field that the API server names.
    field: &'static str,
    /// Field that the condition names, where the API server does not check.
    said: &'static str,
}

impl Fault {
    fn reason(&self) -> &'static str {
        if self.said.starts_with("spec.healthCheck.") { HEALTH } else { SPEC }
    }
}

fn faults() -> Vec<Fault> {
    let (any_name, any_port) = ("spec.listeners[].name", "spec.listeners[].port");
    let (name, port) = ("spec.listeners[0].name", "spec.listeners[0].port");
    let back = "spec.listeners[0].backendPort";
    let long = "a".repeat(64);
    let twice = [
        (json!({"name": "a", "port": 80}), json!({"name": "a", "port": 81})),
        (json!({"name": "a", "port": 80}), json!({"name": "b", "port": 80})),
        (json!({"port": 80}), json!({"port": 81})),
    ];
    let [by_name, by_port, nameless] = twice.map(|(a, b)| json!([a, b]));
    let listeners = [
        (json!([]), "spec.listeners", "spec.listeners"),
        (json!([{"name": "a", "port": 0}]), port, port),
        (json!([{"name": "a", "port": -1}]), port, port),
        (json!([{"name": "a", "port": 65536}]), port, port),
        (json!([{"name": "a", "port": 80, "backendPort": 65536}]), back, back),
        (json!([{"name": "A", "port": 80}]), any_name, name),
        (json!([{"name": "a-", "port": 80}]), any_name, name),
        (json!([{"name": long, "port": 80}]), name, name),
        (
            json!([{"name": "a", "port": 80, "protocol": "SCTP"}]),
            "spec.listeners[].protocol",
            "spec.listeners[0].protocol",
        ),
        (by_name, any_name, "spec.listeners[1].name"),
        (by_port, any_port, "spec.listeners[1].port"),
        (nameless, any_name, name),
    ];
    let too_many = (1..=257).map(|n| json!({"name": format!("n{n}"), "port": n})).collect();
    let too_many = (Value::Array(too_many), "spec.listeners", "spec.listeners");
    let of_listeners = listeners.into_iter().chain([too_many]).map(|(listeners, field, said)| {
        Fault { spec: json!({"listeners": listeners}), field, said }
    });
    of_listeners.chain(health_faults()).collect()
}

fn health_faults() -> Vec<Fault> {
    let tcp = listeners();
    let udp = json!([{"name": "dns", "port": 53, "protocol": "UDP"}]);
    let port = "spec.healthCheck.port";
    let checks = [
        (&tcp, json!({"port": 80}), port),
        (&udp, json!({"port": 53}), port),
        (&tcp, json!({"port": 8080, "successThreshold": -1}), "spec.healthCheck.successThreshold"),
        (&tcp, json!({"port": 8080, "failureThreshold": -1}), "spec.healthCheck.failureThreshold"),
        (&tcp, json!({"port": 8080, "periodSeconds": -1}), "spec.healthCheck.periodSeconds"),
        (&tcp, json!({"port": 8080, "timeoutSeconds": -1}), "spec.healthCheck.timeoutSeconds"),
    ];
    let fault = |(listeners, check, field): (&Value, Value, &'static str)| Fault {
        spec: json!({"listeners": listeners, "healthCheck": check}),
        field,
        said: field,
    };
    checks.into_iter().map(fault).collect()
}

fn selecting(spec: &Value, app: &str) -> Value {
    let mut spec = spec.clone();
    spec["backendServerSelector"] = json!({"app": [app]});
    spec
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_refused_with_the_field_named() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    let operator = cluster.operator().await?;
    let _announcer = Announcer::start(cluster.client.clone(), Announcing::default());
    Guest::run(&cluster.client, vm("web", "a", "10.52.0.7"), "node-1").await?;
    for fault in faults() {
        let refused = cluster.lb_with("bad", fault.spec.clone()).await;
        let Err(refused) = refused else { anyhow::bail!("accepted: {}", fault.spec) };
        let refused = format!("{refused:#}");
        ensure!(refused.contains(fault.field), "{}: {refused}", fault.spec);
    }

    // Names that no Service can have.
    for name in ["1web", "a.b"] {
        cluster.vm_lb(name).await?;
        let said = cluster.waits(name, "InvalidSpec").await?;
        assert!(said.starts_with("metadata.name: "), "{said}");
        assert_eq!(cluster.warned(name, "InvalidSpec").await?, said);
        cluster.deleted(name).await?;
    }

    // The VM's label is the last of the largest number of values; zeros are defaults.
    let mut values: Vec<String> = (1..64).map(|n| format!("value-{n}")).collect();
    values.push("web".to_owned());
    let many = json!({
        "backendServerSelector": {"app": values},
        "healthCheck": {
            "port": 0, "successThreshold": 0, "failureThreshold": 0,
            "periodSeconds": 0, "timeoutSeconds": 0,
        },
    });
    cluster.lb_with("many", many).await?;
    cluster.serves("many", "Announced").await?;
    cluster.endpoints_are("many", &[("a", "10.52.0.7", "ready")]).await?;

    // A closed port.
    let (here, closed, _) = ports_here().await?;
    let port = closed.local_addr()?.port();
    let checked = json!({
        "backendServerSelector": {"app": ["checked"]},
        "listeners": [{"name": "http", "port": 80, "backendPort": port}],
        "healthCheck": {
            "port": port, "successThreshold": 0, "failureThreshold": 0,
            "periodSeconds": 1, "timeoutSeconds": 1,
        },
    });
    Guest::run(&cluster.client, vm("checked", "b", &here), "node-1").await?;
    cluster.lb_with("checked", checked).await?;
    let said = cluster.waits("checked", "BackendsUnhealthy").await?;
    assert!(said.starts_with("running backend servers are not probed as healthy"), "{said}");
    eventually(SOON, "probe that fails", async || {
        let refused = operator.metric("hgo_probes_total", &["result=\"refused\""]).await?;
        anyhow::Ok(refused >= 1.0)
    })
    .await?;
    assert_eq!(cluster.endpoints("checked").await?["b"].state, "not ready");
    cluster.waits("checked", "BackendsUnhealthy").await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn where_the_schema_does_not_look_the_condition_names_the_field() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.pool("pool", json!({"subnet": "10.1.0.0/24"})).await?;
    as_harvester_ships_it(&cluster).await?;
    let operator = cluster.operator().await?;
    let _announcer = Announcer::start(cluster.client.clone(), Announcing::default());
    let mut guest = Guest::run(&cluster.client, vm("web", "a", "10.52.0.7"), "node-1").await?;
    let good = selecting(&json!({"listeners": listeners()}), "web");
    cluster.lb_with("good", good.clone()).await?;
    cluster.serves("good", "Announced").await?;

    for (number, fault) in faults().into_iter().enumerate() {
        let name = format!("bad-{number}");
        cluster.lb_with(&name, selecting(&fault.spec, "web")).await?;
        let context = || format!("{}", fault.spec);
        let said = if fault.reason() == HEALTH {
            // The LoadBalancer serves, without probes.
            cluster.serves(&name, HEALTH).await.with_context(context)?
        } else {
            cluster.waits(&name, SPEC).await.with_context(context)?
        };
        ensure!(said.contains(&format!("{}: ", fault.said)), "{}: {said}", fault.spec);
        assert_eq!(cluster.warned(&name, fault.reason()).await?, said);
        cluster.deleted(&name).await?;

        // The same fault in a LoadBalancer that serves changes no existing object.
        let (service, slice) = objects(&cluster).await?;
        let listeners = fault.spec["listeners"].clone();
        let check = fault.spec.get("healthCheck").cloned().unwrap_or(Value::Null);
        let merge = json!({"spec": {"listeners": listeners, "healthCheck": check}});
        cluster.patch_lb("good", merge).await?;
        if fault.reason() == SPEC {
            cluster.waits("good", SPEC).await.with_context(context)?;
            assert_eq!(objects(&cluster).await?, (service, slice), "{}", fault.spec);
        } else {
            cluster.serves("good", HEALTH).await.with_context(context)?;
        }
        cluster.is_reached_at("good", Some("10.1.0.2")).await?;
        assert_eq!(cluster.address("good").await?, "10.1.0.2");
        let merge = json!({"spec": {"listeners": good["listeners"], "healthCheck": null}});
        cluster.patch_lb("good", merge).await?;
        cluster.serves("good", "Announced").await.with_context(context)?;
    }
    cluster.consistent().await?;

    // VMs come and go meanwhile, and a requested address goes to no other.
    cluster.pool_for("other", json!({"subnet": "10.2.0.0/24"}), json!({})).await?;
    let broken = json!({"spec": {"listeners": [], "ipPool": "other"}});
    cluster.patch_lb("good", broken).await?;
    cluster.waits("good", SPEC).await?;
    guest.pause(true).await?;
    cluster
        .endpoints_are(
            "good",
            &[("a", "10.52.0.7", "not ready"), (SINK, "192.0.2.1", "serving, terminating")],
        )
        .await?;
    guest.pause(false).await?;
    cluster.endpoints_are("good", &[("a", "10.52.0.7", "ready")]).await?;
    assert_eq!(cluster.allocated("pool").await?.len(), 1, "the Service asks for it");
    cluster.is_reached_at("good", Some("10.1.0.2")).await?;
    cluster.patch_lb("good", json!({"spec": {"listeners": good["listeners"]}})).await?;
    cluster.is_reached_at("good", Some("10.2.0.2")).await?;
    cluster.serves("good", "Announced").await?;
    cluster.consistent().await?;

    // This schema drops newer fields; the operator does not write them again and again. A write without
    // an answer is repeated, and counted by the time that the writes have settled.
    let before = settled("writes", async || writes(&operator).await).await?;
    let silent = unanswered(&operator)?;
    let lb = cluster.lbs().get("good").await?;
    cluster.lb_with("marker", good).await?;
    cluster.serves("marker", "Announced").await?;
    // A write is counted at its answer, and the status is read before.
    let sent = settled("writes", async || writes(&operator).await).await? - before;
    println!("{sent} writes for a load balancer on the schema that Harvester ships");
    let lost = unanswered(&operator)? - silent;
    assert!(sent <= 15.0 + lost, "{sent} writes, {lost} calls without an answer");
    assert_eq!(version(&cluster.lbs().get("good").await?.metadata), version(&lb.metadata));
    for round in 0..5 {
        let before = reconciles(&operator).await?;
        cluster.patch_lb("good", json!({"spec": {"description": round.to_string()}})).await?;
        eventually(SOON, "reconcile", async || anyhow::Ok(reconciles(&operator).await? > before))
            .await?;
    }
    let more = settled("writes", async || writes(&operator).await).await? - before - sent;
    let lost = unanswered(&operator)? - silent - lost;
    assert!(more <= lost, "{more} writes without a change, {lost} calls without an answer");
    Ok(())
}

/// Number of the reconciles that have ended.
async fn reconciles(operator: &Operator) -> Result<f64> {
    operator.metric("hgo_reconcile_seconds_count", &[]).await
}

/// Versions of Service and slice.
async fn objects(cluster: &Cluster) -> Result<(String, String)> {
    let service = cluster.services().get("good").await?;
    let slice = cluster.slices().get("good").await?;
    Ok((version(&service.metadata), version(&slice.metadata)))
}

/// Installs the CRD without rules and newer fields, and waits until the server serves it.
pub(crate) async fn as_harvester_ships_it(cluster: &Cluster) -> Result<()> {
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let crd = api::crds().remove(1);
    let mut crd = json!(crd);
    drop_keys(
        &mut crd,
        &[
            "x-kubernetes-validations",
            "minimum",
            "maximum",
            "maxLength",
            "maxItems",
            "maxProperties",
            "endpoints",
            "addresses",
            "expectedStatuses",
            "serverName",
            "caBundle",
            "path",
        ],
    );
    let mut crd: CustomResourceDefinition = serde_json::from_value(crd)?;
    let name = crd.name_any();
    eventually(SOON, "new CRD", async || {
        crd.metadata.resource_version = crds.get(&name).await?.resource_version();
        crds.replace(&name, &PostParams::default(), &crd).await.map(|_| true)
    })
    .await?;
    let bad = lb("bad", &json!({"listeners": []}))?;
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    eventually(SOON, "acceptance of an invalid spec", async || {
        cluster.lbs().create(&dry, &bad).await.map(|_| true)
    })
    .await
}

fn drop_keys(value: &mut Value, keys: &[&str]) {
    match value {
        Value::Object(map) => {
            map.retain(|key, _| !keys.contains(&key.as_str()));
            map.values_mut().for_each(|v| drop_keys(v, keys));
        }
        Value::Array(list) => list.iter_mut().for_each(|v| drop_keys(v, keys)),
        _ => {}
    }
}
