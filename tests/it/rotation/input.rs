//! Specs that make no sense are refused by the API server alone, and the field is named.

use anyhow::{Result, bail, ensure};
use harvester_guest_operator::api::TokenRotation;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use serde_json::{Value, json};

use crate::support::Cluster;

/// One that makes sense, with the parts given in place of its own.
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
    spec(&[("tell", json!({"restart": [{"kind": kind, "name": name}]}))])
}

fn all(source: &Value, tell: &Value) -> Value {
    let mut spec = json!({
        "source": source, "target": {"allCloudCredentials": {}},
        "rancher": {"minter": {"secretName": "rancher"}},
    });
    if !tell.is_null() {
        spec["tell"] = tell.clone();
    }
    spec
}

fn watched(field: &str, value: &Value) -> Value {
    json!({"target": {"secret": {"name": "guest", "key": "kubeconfig"}}, field: value})
}

/// Each with what its refusal must say.
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
        (restart("Pod", "web"), ["spec.tell.restart[0].kind", "\"Deployment\""]),
        (restart("Deployment", "Web"), ["spec.tell.restart", "lower-case letters"]),
        (spec(&[("tell", json!({"restart": []}))]), ["spec.tell.restart", "at least 1"]),
        (spec(&[("onDelete", json!("Delete"))]), ["spec.onDelete", "\"Revoke\""]),
        (
            watched("tell", &json!({"restart": [{"kind": "Deployment", "name": "web"}]})),
            ["spec.tell", "without spec.source"],
        ),
        (watched("overlapSeconds", &json!(60)), ["spec.overlapSeconds", "without spec.source"]),
        (watched("onDelete", &json!("Revoke")), ["spec.onDelete", "without spec.source"]),
    ]
}

/// What lacks a part that it cannot be without, or goes beyond a bound.
fn lacking() -> Vec<(Value, [&'static str; 2])> {
    let rancher = |part: &str, value: Value| {
        let minter = json!({"secretName": "rancher", "key": "token"});
        let mut rancher = json!({"url": "https://rancher", "minter": minter});
        rancher[part] = value;
        watched("rancher", &rancher)
    };
    let server = rancher("url", json!("https://rancher"))["rancher"].clone();
    let authority = |value: Value| rancher("certificateAuthoritySecret", value);
    let tell = |value: Value| spec(&[("tell", value)]);
    let stored = |seconds: i64| {
        let token = json!({"serviceAccountName": "guest", "lifetimeSeconds": seconds});
        source(&json!({"serviceAccountTokenSecret": token}))
    };
    let minted = |seconds: i64| source(&json!({"rancherToken": {"lifetimeSeconds": seconds}}));
    let window_of = |value: Value| schedule(&json!({"maintenanceWindow": value}));
    vec![
        (spec(&[("rancher", server)]), ["spec.rancher: it has nothing to do with", "remove it"]),
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
        (tell(json!({})), ["spec.tell.restart", "Required"]),
        (
            tell(json!({"restart": [{"kind": "Deployment"}]})),
            ["spec.tell.restart[0].name", "Required"],
        ),
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
            all(
                &json!({"rancherToken": {}}),
                &json!({"restart": [{"kind": "Deployment", "name": "web"}]}),
            ),
            ["spec.tell: cloud credentials are read in Rancher", "remove it"],
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
    // What they were made from makes sense, and so does one that is only watched.
    let renewed = all(&json!({"rancherToken": {}}), &Value::Null);
    for good in [spec(&[]), watched("onDelete", &json!("Keep")), renewed] {
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

/// What a spec may not become, and what is said of that.
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
        // By two steps it would become another's.
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
    ]
}
