//! Each right that the chart grants where credentials are replaced is taken away: the operator
//! reports the missing right, and continues when it is granted again.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::api::TokenRotationStatus;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::rbac::v1::{PolicyRule, Role};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use testbed::{Chart, Operator, eventually};

use super::fixture::{NAME, cluster, spec, start};
use crate::chart::rights::{said, single};
use crate::support::{Cluster, LATER, SOON};

const ROLE: &str = "harvester-guest-operator-credentials";
const WORKLOADS: [&str; 3] = ["Deployment", "StatefulSet", "DaemonSet"];

#[tokio::test(flavor = "multi_thread")]
async fn without_any_one_right_it_says_which_and_goes_on_with_it() -> Result<()> {
    let cluster = cluster().await?;
    let rules = given(&cluster).await?;
    for kind in WORKLOADS {
        workload(&cluster, kind).await?;
    }
    cluster.put(&cluster.kubeconfig()).await?;
    let restart: Vec<_> =
        WORKLOADS.iter().map(|kind| json!({"kind": kind, "name": "ccm"})).collect();
    cluster.rotation(spec(&[("restartWorkloads", json!(restart))])).await?;
    let mut operator = leader(&cluster).await?;
    cluster.published(1).await?;
    cluster.one_is_left().await?;
    stop(&cluster, &mut operator).await?;

    cluster.robbed();
    let mut taken = BTreeSet::new();
    for right in single(&rules) {
        let said = said(&right);
        let rest: Vec<_> = single(&rules).into_iter().filter(|rule| *rule != right).collect();
        write(&cluster, &rest).await?;
        granted(&cluster, &right, false).await?;
        // Each right is taken away once, so no call was refused for it before.
        ensure!(!cluster.bed.asked()?.forbidden.contains_key(&said), "{said}: already refused");
        // A read right is missed at once, a write right only when a credential is due.
        let request = said.replace(' ', "-");
        let reads = ["get", "list"].contains(&right.verbs[0].as_str());
        let mut operator = leader(&cluster).await?;
        if !reads {
            cluster.annotate("rotate", &request).await?;
        }
        missed(&cluster, &operator, &right).await?;
        write(&cluster, &rules).await?;
        granted(&cluster, &right, true).await?;
        if reads {
            cluster.reason("Ready", "Current").await?;
            cluster.annotate("rotate", &request).await?;
        }
        let done = |s: &TokenRotationStatus| s.rotate_request.as_ref() == Some(&request);
        cluster.says(&format!("rotation with {said:?}"), done).await?;
        cluster.one_is_left().await?;
        cluster.reason("Ready", "Current").await?;
        stop(&cluster, &mut operator).await?;
        println!("{said}: missed, reported, and continued");
        ensure!(taken.insert(said.clone()), "{said} is granted twice");
    }
    ensure!(taken.len() == 10, "{taken:?}");
    Ok(())
}

/// The chart's role for one account by name, in place of the role for all accounts.
async fn given(cluster: &Cluster) -> Result<Vec<PolicyRule>> {
    let namespace = "credentials.namespaces[0].name=default";
    let account = format!("credentials.namespaces[0].serviceAccounts={{{NAME}}}");
    let chart = Chart::locate().await?.render(&["--set", namespace, "--set", &account]).await?;
    let rendered = chart.get("rbac/credentials.yaml").context("no rights in the chart")?;
    let role = rendered.split("---\n").find(|part| part.contains("kind: Role\n"));
    let role: Role = serde_saphyr::from_str(role.context("no role")?)?;
    let mut rules = role.rules.unwrap_or_default();
    // The rights to TokenRotations are for all cloud credentials of a Rancher: see rancher/all.rs.
    rules.retain(|rule| rule.resources.iter().flatten().all(|one| one != "tokenrotations"));
    let named = rules.iter().filter(|rule| rule.resource_names.is_some()).count();
    ensure!(named == 1, "{rules:?}");
    write(cluster, &rules).await?;
    Ok(rules)
}

async fn write(cluster: &Cluster, rules: &[PolicyRule]) -> Result<()> {
    let api: Api<Role> = Api::namespaced(cluster.client.clone(), "default");
    let patch = Patch::Merge(json!({"rules": rules}));
    api.patch(ROLE, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Waits until the API server's authorizer applies the changed role.
async fn granted(cluster: &Cluster, right: &PolicyRule, wanted: bool) -> Result<()> {
    let one = |of: &Option<Vec<String>>| of.iter().flatten().next().cloned().unwrap_or_default();
    let resource = one(&right.resources);
    let (resource, part) = resource.split_once('/').unwrap_or((&resource, ""));
    let review = json!({"metadata": {}, "spec": {
        "user": "system:serviceaccount:harvester-system:harvester-guest-operator",
        "resourceAttributes": {"namespace": "default", "group": one(&right.api_groups),
            "resource": resource, "subresource": part, "name": one(&right.resource_names),
            "verb": right.verbs[0]},
    }});
    let review: SubjectAccessReview = serde_json::from_value(review)?;
    eventually(SOON, &format!("change of the right {right:?}"), async || {
        let api = Api::all(cluster.client.clone());
        let answer: SubjectAccessReview = api.create(&PostParams::default(), &review).await?;
        anyhow::Ok(answer.status.is_some_and(|status| status.allowed) == wanted)
    })
    .await
}

/// Waits until the API server refuses the call and the operator reports the right: in the
/// condition, or, for the watch of Secrets, in the log.
async fn missed(cluster: &Cluster, operator: &Operator, right: &PolicyRule) -> Result<()> {
    let words = said(right);
    let resource = right.resources.iter().flatten().next().context("no resource")?;
    let named = format!("cannot {} resource \"{resource}\"", right.verbs[0]);
    // Without the right to read, no credential is created.
    let is_blind = ["get", "list"].contains(&right.verbs[0].as_str());
    let before = cluster.status().await?.serial;
    let went_on = eventually(LATER, &format!("report that it {named}"), async || {
        let TokenRotationStatus { conditions, serial, .. } = cluster.status().await?;
        if is_blind && serial != before {
            return Ok(Some(true));
        }
        if !cluster.bed.asked()?.forbidden.contains_key(&words) {
            return Ok(None);
        }
        if right.verbs == ["watch"] {
            return Ok(operator.process.log().contains(&named).then_some(false));
        }
        let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
        let message = ready.and_then(|ready| ready.message.clone()).unwrap_or_default();
        ensure!(message.contains(&named), "{conditions:?}");
        anyhow::Ok(Some(false))
    })
    .await?;
    ensure!(!went_on, "it {named}, and still issued another credential");
    Ok(())
}

async fn leader(cluster: &Cluster) -> Result<Operator> {
    let operator = cluster.standby(start()).await?;
    operator.leads().await?;
    Ok(operator)
}

async fn stop(cluster: &Cluster, operator: &mut Operator) -> Result<()> {
    operator.process.terminate(SOON).await?;
    // The Lease was released: the next operator need not wait.
    let _ = cluster.free_lease().await;
    Ok(())
}

async fn workload(cluster: &Cluster, kind: &str) -> Result<()> {
    let labels = json!({"app": "ccm"});
    let mut spec = json!({
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels},
            "spec": {"containers": [{"name": "ccm", "image": "none"}]}},
    });
    if kind != "DaemonSet" {
        spec["replicas"] = json!(0);
    }
    if kind == "StatefulSet" {
        spec["serviceName"] = json!("ccm");
    }
    let object = json!({"apiVersion": "apps/v1", "kind": kind,
        "metadata": {"name": "ccm", "namespace": "default"}, "spec": spec});
    cluster.bed.apply_yaml(&object.to_string()).await
}
