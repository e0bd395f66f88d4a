//! The API server alone refuses an invalid spec, and names the field.

use anyhow::{Result, bail, ensure};
use harvester_guest_operator::api::TokenRotation;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use serde_json::{Value, json};

use crate::support::Cluster;

/// Valid spec, with `parts` replaced.
fn spec(parts: &[(&str, Value)]) -> Value {
    let mut spec = json!({
        "source": {"serviceAccountToken": {"serviceAccountName": "guest"}},
        "target": {"secret": {"name": "guest", "key": "kubeconfig"}},
    });
    for (field, value) in parts {
        spec[*field] = value.clone();
    }
    spec
}

fn source(parts: &Value) -> Value {
    spec(&[("source", parts.clone())])
}

fn secret(name: &str, key: &str) -> Value {
    spec(&[("target", json!({"secret": {"name": name, "key": key}}))])
}

fn schedule(parts: &Value) -> Value {
    spec(&[("schedule", parts.clone())])
}

fn window(start: &str, minutes: i64, days: &[&str]) -> Value {
    let window = json!({"start": start, "durationMinutes": minutes, "days": days});
    schedule(&json!({"maintenanceWindow": window}))
}

fn restart(kind: &str, name: &str) -> Value {
    spec(&[("restartWorkloads", json!([{"kind": kind, "name": name}]))])
}

fn all(source: &Value, restart: &Value) -> Value {
    let mut spec = json!({
        "source": source, "target": {"allCloudCredentials": {}},
        "rancher": {"minter": {"secretName": "rancher"}},
    });
    if !restart.is_null() {
        spec["restartWorkloads"] = restart.clone();
    }
    spec
}

/// Spec for a token in a cloud credential that leads to this server.
fn behind(source: &Value, server: &str) -> Value {
    json!({
        "source": source, "target": {"cloudCredential": {"name": "cc-abcde", "server": server}},
        "rancher": {"minter": {"secretName": "rancher"}},
    })
}

fn watched(field: &str, value: &Value) -> Value {
    json!({"target": {"secret": {"name": "guest", "key": "kubeconfig"}}, field: value})
}

/// Invalid values, each with two parts of its refusal.
fn bad() -> Vec<(Value, [&'static str; 2])> {
    let token = |name: &str, seconds: i64| {
        let token = json!({"serviceAccountName": name, "lifetimeSeconds": seconds});
        source(&json!({"serviceAccountToken": token}))
    };
    let account = json!({"serviceAccountName": "guest"});
    let both = json!({"serviceAccountToken": account, "serviceAccountTokenSecret": account});
    let no_key = json!({"secret": {"name": "guest"}});
    let no_user = json!({"secret": {"name": "guest", "key": "k", "kubeconfigUser": ""}});
    vec![
        (json!({}), ["spec.target", "Required"]),
        (spec(&[("target", json!({}))]), ["spec.target", "exactly one of secret"]),
        (spec(&[("target", no_key)]), ["spec.target.secret.key", "Required"]),
        (spec(&[("target", no_user)]), ["spec.target.secret.kubeconfigUser", "at least 1"]),
        (secret("Guest", "k"), ["spec.target.secret.name", "lower-case letters"]),
        (secret("", "k"), ["spec.target.secret.name", "at least 1"]),
        (secret("guest", "a/b"), ["spec.target.secret.key", "letters, digits"]),
        (source(&json!({})), ["spec.source", "exactly one of serviceAccountToken"]),
        (source(&both), ["spec.source", "exactly one of serviceAccountToken"]),
        (
            source(&json!({"serviceAccountToken": {}})),
            ["spec.source.serviceAccountToken.serviceAccountName", "Required"],
        ),
        (
            token("../guest", 3600),
            ["spec.source.serviceAccountToken", "serviceAccountName: must be the name"],
        ),
        (token("guest", 599), ["spec.source.serviceAccountToken.lifetimeSeconds", "600"]),
        (
            token("guest", 31_536_001),
            ["spec.source.serviceAccountToken.lifetimeSeconds", "31536000"],
        ),
        (
            source(&json!({"serviceAccountTokenSecret": {"serviceAccountName": "Guest"}})),
            ["spec.source.serviceAccountTokenSecret", "serviceAccountName: must be the name"],
        ),
        (
            schedule(&json!({"renewWhenLeftPercent": 0})),
            ["spec.schedule.renewWhenLeftPercent", "1"],
        ),
        (
            schedule(&json!({"renewWhenLeftPercent": 100})),
            ["spec.schedule.renewWhenLeftPercent", "99"],
        ),
        (schedule(&json!({"minimumLeftSeconds": -1})), ["spec.schedule.minimumLeftSeconds", "0"]),
        (schedule(&json!({"jitterPercent": 51})), ["spec.schedule.jitterPercent", "50"]),
        (schedule(&json!({"paused": "yes"})), ["spec.schedule.paused", "boolean"]),
        (window("24:00", 60, &[]), ["spec.schedule.maintenanceWindow.start", "such as 02:30"]),
        (window("2:30", 60, &[]), ["spec.schedule.maintenanceWindow.start", "at least 5"]),
        (window("02:30", 4, &[]), ["spec.schedule.maintenanceWindow.durationMinutes", "5"]),
        (window("02:30", 60, &["Monday"]), ["spec.schedule.maintenanceWindow.days[0]", "\"Mon\""]),
        (spec(&[("overlapSeconds", json!(-1))]), ["spec.overlapSeconds", "0"]),
        (spec(&[("overlapSeconds", json!(2_592_001))]), ["spec.overlapSeconds", "2592000"]),
        (restart("Pod", "web"), ["spec.restartWorkloads[0].kind", "\"Deployment\""]),
        (restart("Deployment", "Web"), ["spec.restartWorkloads", "lower-case letters"]),
        (spec(&[("restartWorkloads", json!([]))]), ["spec.restartWorkloads", "at least 1"]),
        (spec(&[("onDelete", json!("Delete"))]), ["spec.onDelete", "\"Revoke\""]),
        (
            watched("restartWorkloads", &json!([{"kind": "Deployment", "name": "web"}])),
            ["spec.restartWorkloads", "without spec.source"],
        ),
        (watched("overlapSeconds", &json!(60)), ["spec.overlapSeconds", "without spec.source"]),
        (watched("onDelete", &json!("Revoke")), ["spec.onDelete", "without spec.source"]),
    ]
}

/// Specs without a required field or with a value out of bounds, each with two parts of its
/// refusal.
#[allow(clippy::too_many_lines, reason = "one table")]
fn lacking() -> Vec<(Value, [&'static str; 2])> {
    let rancher = |part: &str, value: Value| {
        let minter = json!({"secretName": "rancher", "key": "token"});
        let mut rancher = json!({"url": "https://rancher", "minter": minter});
        rancher[part] = value;
        watched("rancher", &rancher)
    };
    let server = rancher("url", json!("https://rancher"))["rancher"].clone();
    let authority = |value: Value| rancher("certificateAuthoritySecret", value);
    let restarts = |value: Value| spec(&[("restartWorkloads", value)]);
    let stored = |seconds: i64| {
        let token = json!({"serviceAccountName": "guest", "lifetimeSeconds": seconds});
        source(&json!({"serviceAccountTokenSecret": token}))
    };
    let minted = |seconds: i64| source(&json!({"rancherToken": {"lifetimeSeconds": seconds}}));
    let window_of = |value: Value| schedule(&json!({"maintenanceWindow": value}));
    let name = json!({"serviceAccountName": "guest"});
    let account = json!({"serviceAccountToken": name});
    let stored_account = json!({"serviceAccountTokenSecret": name});
    let here = "https://10.0.0.1:6443";
    let cut = |mut spec: Value, path: &str, field: &str| {
        spec.pointer_mut(path).and_then(Value::as_object_mut).map(|part| part.remove(field));
        spec
    };
    vec![
        (
            spec(&[("rancher", server)]),
            ["spec.rancher: this spec.source does not use it", "remove it"],
        ),
        (rancher("url", json!("http://rancher")), ["spec.rancher.url: must be", "https://"]),
        (
            watched("rancher", &json!({"url": "https://rancher"})),
            ["spec.rancher.minter", "Required"],
        ),
        (rancher("minter", json!({"key": "b"})), ["spec.rancher.minter.secretName", "Required"]),
        (authority(json!({"name": "a"})), ["certificateAuthoritySecret.key", "Required"]),
        (authority(json!({"key": "b"})), ["certificateAuthoritySecret.name", "Required"]),
        (
            spec(&[("target", json!({"cloudCredential": {}}))]),
            ["spec.target.cloudCredential.name", "Required"],
        ),
        (
            source(&json!({"serviceAccountTokenSecret": {}})),
            ["spec.source.serviceAccountTokenSecret.serviceAccountName", "Required"],
        ),
        (restarts(json!({})), ["spec.restartWorkloads", "array"]),
        (restarts(json!([{"kind": "Deployment"}])), ["spec.restartWorkloads[0].name", "Required"]),
        (window_of(json!({"start": "02:30"})), ["maintenanceWindow.durationMinutes", "Required"]),
        (window_of(json!({"durationMinutes": 60})), ["maintenanceWindow.start", "Required"]),
        (window("02:30", 1441, &[]), ["maintenanceWindow.durationMinutes", "1440"]),
        (
            schedule(&json!({"minimumLeftSeconds": 31_536_001})),
            ["spec.schedule.minimumLeftSeconds", "31536000"],
        ),
        (schedule(&json!({"jitterPercent": -1})), ["spec.schedule.jitterPercent", "0"]),
        (stored(599), ["spec.source.serviceAccountTokenSecret.lifetimeSeconds", "600"]),
        (stored(31_536_001), ["spec.source.serviceAccountTokenSecret.lifetimeSeconds", "31536000"]),
        (
            source(&json!({"rancherToken": {"cluster": "C/1"}})),
            ["spec.source.rancherToken.cluster: must be", "the id of a cluster"],
        ),
        (
            all(&json!({"serviceAccountToken": {"serviceAccountName": "guest"}}), &Value::Null),
            ["spec.target.allCloudCredentials", "only tokens of spec.source.rancherToken"],
        ),
        (
            all(&json!({"rancherToken": {"cluster": "c-1"}}), &Value::Null),
            ["spec.source.rancherToken.cluster", "remove it"],
        ),
        (
            all(&json!({"rancherToken": {"allowOtherUser": true}}), &Value::Null),
            ["spec.source.rancherToken.allowOtherUser", "remove it"],
        ),
        (
            all(&json!({"rancherToken": {}}), &json!([{"kind": "Deployment", "name": "web"}])),
            ["spec.restartWorkloads: cloud credentials are read in Rancher", "remove it"],
        ),
        (
            behind(&account, "http://10.0.0.1"),
            ["spec.target.cloudCredential.server: must be https://", "nothing after it"],
        ),
        (
            behind(&account, "https://10.0.0.1/k8s"),
            ["spec.target.cloudCredential.server: must be https://", "nothing after it"],
        ),
        (behind(&account, ""), ["spec.target.cloudCredential.server", "at least 9"]),
        (
            cut(behind(&account, here), "/target/cloudCredential", "server"),
            [
                "spec.target.cloudCredential.server: must be the URL",
                "does not accept a ServiceAccount's token",
            ],
        ),
        (
            cut(behind(&stored_account, here), "/target/cloudCredential", "server"),
            [
                "spec.target.cloudCredential.server: must be the URL",
                "does not accept a ServiceAccount's token",
            ],
        ),
        (
            behind(&json!({"rancherToken": {}}), here),
            [
                "spec.target.cloudCredential.server: it is only for a ServiceAccount's token",
                "remove it",
            ],
        ),
        (
            cut(behind(&account, here), "", "source"),
            [
                "spec.target.cloudCredential.server: it is only for a ServiceAccount's token",
                "remove it",
            ],
        ),
        (
            cut(behind(&account, here), "", "rancher"),
            ["spec.rancher: must be set when", "spec.target.cloudCredential"],
        ),
        (minted(599), ["spec.source.rancherToken.lifetimeSeconds", "600"]),
        (minted(31_536_001), ["spec.source.rancherToken.lifetimeSeconds", "31536000"]),
    ]
}

fn check(answer: kube::Result<DynamicObject>, input: &Value, parts: [&str; 2]) -> Result<()> {
    let message = match answer {
        Err(kube::Error::Api(status)) if status.code == 422 => status.message.clone(),
        other => bail!("{input}: {other:?}"),
    };
    let missing = parts.iter().find(|part| !message.contains(**part));
    ensure!(missing.is_none(), "{input}: no {missing:?} in {message}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_sense_is_refused_by_its_field() -> Result<()> {
    let cluster = Cluster::start().await?;
    let kind = ApiResource::erase::<TokenRotation>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(cluster.client.clone(), "default", &kind);
    let create = async |spec: &Value| {
        let object = DynamicObject::new("one", &kind).data(json!({"spec": spec}));
        api.create(&PostParams::default(), &object).await
    };
    let table = bad();
    assert!(table.len() >= 25, "{}", table.len());
    for (spec, parts) in table.into_iter().chain(lacking()) {
        check(create(&spec).await, &spec, parts)?;
        ensure!(api.get_opt("one").await?.is_none(), "{spec} was stored");
    }
    // The specs that they were made from are valid, and so is one that only watches.
    let renewed = all(&json!({"rancherToken": {}}), &Value::Null);
    let token = |kind: &str| {
        behind(&json!({kind: {"serviceAccountName": "guest"}}), "https://10.0.0.1:6443")
    };
    let (bound, stored) = (token("serviceAccountToken"), token("serviceAccountTokenSecret"));
    for good in [spec(&[]), watched("onDelete", &json!("Keep")), renewed, bound, stored] {
        create(&good).await?;
        api.delete("one", &DeleteParams::default()).await?;
    }
    for (from, change, said) in changes() {
        create(&from).await?;
        let patch = Patch::Merge(json!({"spec": change}));
        let answer = api.patch("one", &PatchParams::default(), &patch).await;
        check(answer, &change, [said, "make another TokenRotation"])?;
        api.delete("one", &DeleteParams::default()).await?;
    }
    Ok(())
}

/// Changes of a spec that are refused, each with a part of the refusal.
fn changes() -> Vec<(Value, Value, &'static str)> {
    let other = json!({"serviceAccountName": "other"});
    let account = spec(&[]);
    let stored = source(&json!({"serviceAccountTokenSecret": {"serviceAccountName": "guest"}}));
    let minter = json!({"secretName": "rancher", "key": "token"});
    let rancher = json!({"url": "https://rancher", "minter": minter});
    let mut tokens = source(&json!({"rancherToken": {}}));
    tokens["rancher"] = rancher.clone();
    let kind = "spec.source: its kind is immutable";
    let presence = "spec.source: it can be neither added nor removed";
    let only_watched = json!({"target": {"secret": {"name": "guest", "key": "kubeconfig"}}});
    let url = "spec.rancher.url is immutable";
    vec![
        (
            account.clone(),
            json!({"target": {"secret": {"name": "other"}}}),
            "spec.target is immutable",
        ),
        (
            account.clone(),
            json!({"source": {"serviceAccountToken": other}}),
            "spec.source.serviceAccountToken.serviceAccountName is immutable",
        ),
        // Removed and added again, a source could name another account.
        (account.clone(), json!({"source": null}), presence),
        (only_watched, json!({"source": {"serviceAccountToken": other}}), presence),
        (
            account,
            json!({"source": {"serviceAccountToken": null, "serviceAccountTokenSecret": other}}),
            kind,
        ),
        (
            stored.clone(),
            json!({"source": {"serviceAccountTokenSecret": other}}),
            "spec.source.serviceAccountTokenSecret.serviceAccountName is immutable",
        ),
        (
            stored,
            json!({"rancher": rancher,
                "source": {"serviceAccountTokenSecret": null, "rancherToken": {}}}),
            kind,
        ),
        (tokens.clone(), json!({"rancher": {"url": "https://other"}}), url),
        (tokens, json!({"rancher": null, "source": null}), url),
        (
            all(&json!({"rancherToken": {}}), &Value::Null),
            json!({"rancher": {"url": "https://other"}}),
            url,
        ),
        (
            behind(
                &json!({"serviceAccountToken": {"serviceAccountName": "guest"}}),
                "https://10.0.0.1",
            ),
            json!({"target": {"cloudCredential": {"server": "https://10.0.0.2"}}}),
            "spec.target is immutable",
        ),
    ]
}
