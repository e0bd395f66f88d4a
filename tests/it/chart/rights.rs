//! Least privilege, by the API server's audit log: every request of the operator is granted, and
//! every granted right is needed.
//!
//! Every [`Cluster`] of every test checks at its end that no request was forbidden.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};
use testbed::Chart;

use super::{all_on, default_objects, duties, object, objects};
use crate::cloud_config::roles::RELEASES;
use crate::support::Cluster;

const NAME: &str = "harvester-guest-operator";

/// Role of the operator's account: namespace and name. Empty namespace: a ClusterRole.
type Of = (&'static str, &'static str);
/// Role that lets the operator make Deployments, for agents of networks that have the annotation.
const DEPLOYMENTS: Of = ("harvester-system", "harvester-guest-operator-deployments");
const ROLES: [Of; 8] = [
    ("", NAME),
    ("kube-system", NAME),
    ("harvester-system", "harvester-guest-operator-admission"),
    ("harvester-system", "harvester-guest-operator-agents"),
    DEPLOYMENTS,
    ("default", "harvester-guest-operator-networks"),
    ("kube-system", "harvester-guest-operator-kube-vip"),
    ("harvester-system", "harvester-guest-operator-management"),
];

/// A right: the role that grants it, and the rule of this right alone.
type Right = (Of, PolicyRule);

/// All rights that the chart grants to the operator, each one verb on one resource.
async fn rights() -> Result<Vec<Right>> {
    let rendered = default_objects().await;
    let (mut rights, mut seen) = (Vec::new(), BTreeSet::new());
    for of in ROLES {
        let kind = if of.0.is_empty() { "ClusterRole" } else { "Role" };
        let role = in_namespace(&rendered, kind, of);
        let rules: Vec<PolicyRule> = serde_json::from_value(role["rules"].clone())?;
        for rule in single(&rules) {
            ensure!(seen.insert(said(&rule)), "{} is granted twice", said(&rule));
            rights.push((of, rule));
        }
    }
    Ok(rights)
}

/// The scenario passes with all rights, and each right is used.
#[tokio::test(flavor = "multi_thread")]
async fn every_right_is_needed() -> Result<()> {
    let cluster = Cluster::start().await?;
    let _guest = duties::vm(&cluster).await?;
    duties::begin(&cluster).await?;
    duties::work(&cluster).await?;
    let seen: BTreeSet<_> = rights().await?.iter().map(|(_, right)| said(right)).collect();
    let surplus = || -> Result<Vec<String>> {
        let asked = cluster.bed.asked()?;
        ensure!(asked.forbidden.is_empty(), "not granted: {:#?}", asked.forbidden);
        Ok(seen.difference(&asked.rights).cloned().collect())
    };
    // Some requests, such as those for Events, may still be queued at the operator's end.
    for _ in 0..2 {
        if !surplus()?.is_empty() {
            duties::begin(&cluster).await?;
            duties::work(&cluster).await?;
        }
    }
    ensure!(surplus()?.is_empty(), "granted and never used: {:?}", surplus()?);
    Ok(())
}

/// Only the roles grant these rights: another account of the namespace has none of them, and the
/// operator's account has each. So a right that is used is refused without its one rule.
#[tokio::test(flavor = "multi_thread")]
async fn every_right_comes_from_its_one_rule() -> Result<()> {
    let cluster = Cluster::start().await?;
    let (mut missing, mut elsewhere) = (Vec::new(), Vec::new());
    for (of, right) in rights().await? {
        if !is_allowed(&cluster.client, NAME, of, &right).await? {
            missing.push(said(&right));
        }
        if is_allowed(&cluster.client, "another", of, &right).await? {
            elsewhere.push(said(&right));
        }
    }
    ensure!(missing.is_empty(), "not granted by the role: {missing:?}");
    ensure!(elsewhere.is_empty(), "granted without the role: {elsewhere:?}");
    Ok(())
}

/// Answer of the API server: an account of `harvester-system` has a right of a role.
async fn is_allowed(client: &Client, account: &str, of: Of, right: &PolicyRule) -> Result<bool> {
    let first = |list: &Option<Vec<String>>| list.as_ref().and_then(|list| list.first().cloned());
    let resource = first(&right.resources).unwrap_or_default();
    let (resource, subresource) = resource.split_once('/').unwrap_or((&resource, ""));
    let review: SubjectAccessReview = serde_json::from_value(json!({"metadata": {}, "spec": {
        "user": format!("system:serviceaccount:harvester-system:{account}"),
        "groups": [
            "system:serviceaccounts", "system:serviceaccounts:harvester-system",
            "system:authenticated",
        ],
        "resourceAttributes": {
            "namespace": of.0, "group": first(&right.api_groups), "resource": resource,
            "subresource": subresource, "name": first(&right.resource_names),
            "verb": right.verbs.first(),
        },
    }}))?;
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    let answer = reviews.create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

/// Splits rules into rules of one verb on one resource.
pub(crate) fn single(rules: &[PolicyRule]) -> Vec<PolicyRule> {
    let mut single = Vec::new();
    for rule in rules {
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                single.extend(rule.verbs.iter().map(|verb| PolicyRule {
                    api_groups: Some(vec![group.clone()]),
                    resources: Some(vec![resource.clone()]),
                    verbs: vec![verb.clone()],
                    ..rule.clone()
                }));
            }
        }
    }
    single
}

/// Words of a rule as in the audit log.
pub(crate) fn said(rule: &PolicyRule) -> String {
    let words = [rule.api_groups.as_ref(), rule.resources.as_ref(), Some(&rule.verbs)];
    let words: Vec<&str> = words.into_iter().flatten().map(|w| w[0].as_str()).collect();
    assert!(!words.contains(&"*"), "{rule:?}");
    words.join(" ")
}

fn in_namespace<'a>(rendered: &'a [Value], kind: &str, of: Of) -> &'a Value {
    let role = object(rendered, kind, of.1);
    assert_eq!(role["metadata"]["namespace"].as_str().unwrap_or_default(), of.0);
    role
}

/// The list above holds all roles of the operator's account.
#[tokio::test]
async fn the_account_has_no_other_role() {
    let mut bound = BTreeSet::new();
    for object in default_objects().await {
        let to = object["subjects"].as_array().into_iter().flatten();
        if to.clone().any(|subject| subject["name"] == NAME) {
            let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
            let role = object["roleRef"]["name"].as_str().unwrap();
            bound.insert((namespace.to_owned(), role.to_owned()));
        }
    }
    let known = ROLES.map(|(namespace, name)| (namespace.to_owned(), name.to_owned()));
    assert_eq!(bound, BTreeSet::from(known));
}

/// The chart's role for guest clusters grants the rights of Harvester's own role, and no others.
#[tokio::test]
async fn guests_get_harvesters_own_rights() {
    const ROLE: &str = "harvesterhci.io:cloudprovider";
    let all_on = Chart::locate().await.unwrap().render(&["--values", &all_on()]).await.unwrap();
    let rights = |role: &Value| {
        let rules: Vec<PolicyRule> = serde_json::from_value(role["rules"].clone()).unwrap();
        let all: BTreeSet<String> = single(&rules).iter().map(|rule| format!("{rule:?}")).collect();
        assert!(all.len() > 20, "{all:?}");
        all
    };
    let ours = rights(object(&objects(&all_on), "ClusterRole", ROLE));
    for release in &RELEASES {
        let roles = release.roles();
        let roles = roles.split("---\n").map(|text| serde_saphyr::from_str(text).unwrap());
        let harvesters: Vec<Value> = roles.collect();
        let name = release.name;
        let harvesters = rights(object(&harvesters, "ClusterRole", ROLE));
        assert_eq!(ours, harvesters, "{name}: the chart's (left)");
    }
}

/// Creating these kinds would give all rights: a webhook receives every written object, a Secret
/// may hold any account's token, and a pod may have any account of its namespace.
#[tokio::test]
async fn neither_webhook_configurations_nor_secrets_nor_pods_can_be_made() {
    let grave = [
        "secrets",
        "validatingwebhookconfigurations",
        "mutatingwebhookconfigurations",
        "pods",
        "deployments",
        "replicasets",
        "replicationcontrollers",
        "statefulsets",
        "daemonsets",
        "jobs",
        "cronjobs",
    ];
    let mut excepted = 0;
    for object in default_objects().await {
        for rule in object["rules"].as_array().into_iter().flatten() {
            let resources = rule["resources"].as_array().unwrap().iter().filter_map(Value::as_str);
            if !resources.into_iter().any(|resource| grave.contains(&resource)) {
                continue;
            }
            // The one exception: agents of networks that have the annotation.
            let is_excepted = object["kind"] == "Role"
                && object["metadata"]["name"] == DEPLOYMENTS.1
                && object["metadata"]["namespace"] == DEPLOYMENTS.0
                && rule["resources"] == json!(["deployments"]);
            if is_excepted {
                excepted += 1;
                continue;
            }
            assert!(!rule["verbs"].as_array().unwrap().contains(&json!("create")), "{rule}");
        }
    }
    assert_eq!(excepted, 1, "roles that may create Deployments");
}

/// Secrets are read by name only, and only in the operator's own namespace.
#[tokio::test]
async fn secrets_are_out_of_reach() {
    let rendered = default_objects().await;
    for object in &rendered {
        let kind = object["kind"].as_str().unwrap();
        for rule in object["rules"].as_array().into_iter().flatten() {
            let resources = rule["resources"].as_array().unwrap();
            if !resources.iter().any(|resource| resource == "secrets") {
                continue;
            }
            assert_eq!(kind, "Role");
            assert_eq!(object["metadata"]["namespace"], "harvester-system");
            assert!(rule["resourceNames"].is_array(), "{rule}");
        }
    }
}
